//! Node names: `name@host`. The name is part of a node's identity and never changes.

use std::fmt;

/// A checked node name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NodeName {
    full: String,
    at: usize,
}

/// Longest node name: it is a folder's name, and part of every metadata path of the node.
const MAX_LENGTH: usize = 200;

impl NodeName {
    /// Checks `name@host`; a bare `name` gets `host`.
    pub fn parse(text: &str, host: &str) -> Result<Self, String> {
        let (name, host) = text.split_once('@').unwrap_or((text, host));
        let name_ok = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
        let host_ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.' | ':');
        if name.is_empty() || !name.chars().all(name_ok) {
            return Err(format!("node name `{text}`: the part before @ must be letters, digits, `_` and `-`"));
        }
        if host.is_empty() || host.starts_with('.') || !host.chars().all(host_ok) {
            return Err(format!("node name `{text}`: the part after @ is not a host name"));
        }
        if name.len() + host.len() > MAX_LENGTH {
            return Err(format!("node name `{text}` is longer than {MAX_LENGTH} bytes"));
        }
        Ok(NodeName { full: format!("{name}@{host}"), at: name.len() })
    }

    /// The whole name.
    pub fn as_str(&self) -> &str {
        &self.full
    }

    /// The part after `@`.
    pub fn host(&self) -> &str {
        &self.full[self.at + 1..]
    }

    /// Whether the host is a long one, which needs `-l` or `WARREN_USE_LONGNAME`. An IP address is no host name and
    /// is always allowed.
    pub fn is_long(&self) -> bool {
        self.host().contains('.') && self.host().parse::<std::net::IpAddr>().is_err()
    }
}

impl fmt::Display for NodeName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.full)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bare_name_gets_the_local_host() {
        assert_eq!(NodeName::parse("w1", "box").unwrap().as_str(), "w1@box");
        assert_eq!(NodeName::parse("w1@other", "box").unwrap().host(), "other");
    }

    #[test]
    fn names_that_cannot_be_folders_are_refused() {
        for wrong in ["", "@h", "a b@h", "a@", "a@../x", "../a@h", "a@h/../..", "é@h"] {
            assert!(NodeName::parse(wrong, "box").is_err(), "{wrong}");
        }
        assert!(NodeName::parse(&"a".repeat(300), "box").is_err());
    }

    #[test]
    fn long_hosts_are_told_apart() {
        assert!(NodeName::parse("a@b.example", "").unwrap().is_long());
        assert!(!NodeName::parse("a@127.0.0.1", "").unwrap().is_long());
        assert!(!NodeName::parse("a@b", "").unwrap().is_long());
    }
}
