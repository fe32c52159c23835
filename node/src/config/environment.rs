//! Environment variables: each `WARREN_X` has the alias `RABBITMQ_X`, and the former wins.

use super::problem::Origin;

/// Reads variables; the process's own or, in tests, a list.
pub struct Environment<'a> {
    read: &'a dyn Fn(&str) -> Option<String>,
}

impl<'a> Environment<'a> {
    /// An environment that `read` answers for.
    pub fn new(read: &'a dyn Fn(&str) -> Option<String>) -> Self {
        Environment { read }
    }

    /// The value of `WARREN_<name>` or `RABBITMQ_<name>`, and which of them it was. An empty value counts as unset,
    /// as it does for RabbitMQ's scripts.
    pub fn get(&self, name: &str) -> Option<(String, Origin)> {
        ["WARREN_", "RABBITMQ_"].iter().find_map(|prefix| {
            let full = format!("{prefix}{name}");
            let value = (self.read)(&full).filter(|value| !value.is_empty())?;
            Some((value, Origin::Environment(full)))
        })
    }

    /// As [`get`](Self::get), where an empty value says something.
    pub fn given(&self, name: &str) -> Option<(String, Origin)> {
        ["WARREN_", "RABBITMQ_"].iter().find_map(|prefix| {
            let full = format!("{prefix}{name}");
            Some(((self.read)(&full)?, Origin::Environment(full)))
        })
    }

    /// Only the value.
    pub fn value(&self, name: &str) -> Option<String> {
        self.get(name).map(|(value, _)| value)
    }

    /// A variable by its full name.
    pub fn raw(&self, name: &str) -> Option<String> {
        (self.read)(name)
    }

    /// Whether a flag variable is set to something that means yes.
    pub fn flag(&self, name: &str) -> bool {
        self.value(name).is_some_and(|value| matches!(value.as_str(), "1" | "true" | "yes" | "on"))
    }
}

/// The process's environment; a value that is not UTF-8 counts as unset.
pub fn process(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

/// This machine's host name up to the first dot, as node names use it; the whole of it with `long`.
pub fn host_name(long: bool) -> String {
    let name = rustix::system::uname();
    let name = name.nodename().to_string_lossy().into_owned();
    let name = if name.is_empty() { "localhost".to_owned() } else { name };
    match name.split_once('.') {
        Some((short, _)) if !long => short.to_owned(),
        _ => name,
    }
}
