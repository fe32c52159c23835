//! The node's name, and the settings that environment variables give.

use std::path::Path;

use warren_broker::feature_flags::first_start::Forced;

use super::environment::Environment;
use super::problem::{Origin, Problem};
use super::settings::{LogFormat, LogLevel, NodeName, Settings};
use super::{Overrides, keys, settings, value};

/// The name from the command line, the environment, or `rabbit`.
pub fn node_name(
    overrides: &Overrides,
    environment: &Environment<'_>,
    host: &str,
    long: bool,
    problems: &mut Vec<Problem>,
) -> Option<NodeName> {
    let (text, origin) = match &overrides.node {
        Some(name) => (name.clone(), Origin::File("--node".into())),
        None => environment
            .get("NODENAME")
            .unwrap_or_else(|| ("rabbit".to_owned(), Origin::Environment("WARREN_NODENAME".to_owned()))),
    };
    match NodeName::parse(&text, host) {
        Ok(name) if name.is_long() && !long => {
            let why = format!("node name `{name}` has a long host name: set WARREN_USE_LONGNAME=true to use it");
            problems.push(Problem::new(origin, why));
            None
        }
        Ok(name) => Some(name),
        Err(why) => {
            problems.push(Problem::new(origin, why));
            None
        }
    }
}

/// Applies the variables that stand for settings. Returns whether they gave the peer port.
pub fn apply_environment(
    settings: &mut Settings,
    ports_in_files: bool,
    environment: &Environment<'_>,
    problems: &mut Vec<Problem>,
) -> bool {
    let mut read = Reader { environment, problems };
    let ip = read.parsed("NODE_IP_ADDRESS", value::ip);
    let port = read.parsed("NODE_PORT", value::port);
    let mut peer_port_given = false;
    if !ports_in_files && (ip.is_some() || port.is_some()) {
        let port = port.unwrap_or(settings::AMQP_PORT);
        settings.listeners.tcp = Some(vec![value::Listen::Tcp { ip, port }]);
    }
    if let Some(port) = port.and_then(|port| port.checked_add(20_000)) {
        settings.peer.port = port;
        peer_port_given = true;
    }
    // An empty list is a list, too.
    if let Some((list, origin)) = read.environment.given("FEATURE_FLAGS") {
        match Forced::parse(&list) {
            Ok(_) => settings.flags.forced = Some(list),
            Err(why) => read.problems.push(Problem::new(origin, why)),
        }
    }
    if let Some(port) = read.parsed("DIST_PORT", value::port) {
        settings.peer.port = port;
        peer_port_given = true;
    }
    let defaults = &mut settings.defaults;
    for (name, field) in [
        ("DEFAULT_USER", &mut defaults.user),
        ("DEFAULT_PASS", &mut defaults.pass),
        ("DEFAULT_VHOST", &mut defaults.vhost),
    ] {
        if let Some(text) = environment.value(name) {
            *field = text;
        }
    }
    log_variables(&mut settings.log, &mut read);
    peer_port_given
}

fn log_variables(log: &mut settings::Log, read: &mut Reader<'_, '_>) {
    if let Some(dir) = read.environment.value("LOG_BASE") {
        log.dir = Some(dir.into());
        log.file.enabled = true;
    }
    match read.environment.value("LOGS").as_deref() {
        None => {}
        Some("-") => {
            log.console.enabled = true;
            log.file.enabled = false;
        }
        Some(path) => {
            let path = Path::new(path);
            log.file.enabled = true;
            log.dir = path.parent().map(Path::to_owned).or(log.dir.take());
            log.file_name = path.file_name().map(|name| name.to_string_lossy().into_owned());
        }
    }
    // `debug`, `category=level`, `+json`: a comma-separated list.
    for item in read.environment.value("LOG").unwrap_or_default().split(',').filter(|item| !item.is_empty()) {
        let parsed = match item.split_once('=') {
            None if item == "+json" => {
                log.console.format = LogFormat::Json;
                log.file.format = LogFormat::Json;
                continue;
            }
            None => keys::log_level(item).map(|level| (None, level)),
            Some((category, level)) => keys::log_level(level).map(|level| (Some(category), level)),
        };
        match parsed {
            Ok((None, level)) => {
                log.console.level = level;
                log.file.level = level;
            }
            Ok((Some(category), level)) => {
                log.categories.retain(|(name, _): &(String, LogLevel)| name != category);
                log.categories.push((category.to_owned(), level));
            }
            Err(why) => read.problems.push(Problem::new(Origin::Environment("WARREN_LOG".to_owned()), why)),
        }
    }
}

struct Reader<'a, 'p> {
    environment: &'a Environment<'a>,
    problems: &'p mut Vec<Problem>,
}

impl Reader<'_, '_> {
    fn parsed<T>(&mut self, name: &str, parse: impl Fn(&str) -> Result<T, String>) -> Option<T> {
        let (text, origin) = self.environment.get(name)?;
        match parse(&text) {
            Ok(value) => Some(value),
            Err(why) => {
                self.problems.push(Problem::new(origin, why));
                None
            }
        }
    }
}
