//! The value types of the configuration: booleans, sizes, durations, addresses.

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

/// `true`/`false`, or `on`/`off` for flags.
pub fn boolean(text: &str) -> Result<bool, String> {
    match text {
        "true" | "on" => Ok(true),
        "false" | "off" => Ok(false),
        _ => Err(format!("`{text}` is not a boolean (true, false)")),
    }
}

/// A non-negative integer in `range`.
pub fn integer(text: &str, range: std::ops::RangeInclusive<u64>) -> Result<u64, String> {
    let value: u64 = text.parse().map_err(|_| format!("`{text}` is not a non-negative integer"))?;
    if range.contains(&value) {
        Ok(value)
    } else {
        Err(format!("`{text}` is outside {}..{}", range.start(), range.end()))
    }
}

/// An integer, or `infinity` for none.
pub fn limit(text: &str) -> Result<Option<u64>, String> {
    match text {
        "infinity" | "unlimited" => Ok(None),
        _ => integer(text, 0..=u64::MAX).map(Some).map_err(|why| format!("{why} or `infinity`")),
    }
}

/// A byte size: a plain integer, or one with a unit. `k kb m mb ...` are powers of 1000, `ki kib mi mib ...` of 1024,
/// in any case.
pub fn bytes(text: &str) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a byte size (such as 4096, 10MB, 2GiB)");
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let number: u64 = text[..digits].parse().map_err(|_| wrong())?;
    let unit: u64 = match text[digits..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "k" | "kb" => 1_000,
        "m" | "mb" => 1_000_000,
        "g" | "gb" => 1_000_000_000,
        "t" | "tb" => 1_000_000_000_000,
        "p" | "pb" => 1_000_000_000_000_000,
        "ki" | "kib" => 1 << 10,
        "mi" | "mib" => 1 << 20,
        "gi" | "gib" => 1 << 30,
        "ti" | "tib" => 1 << 40,
        "pi" | "pib" => 1 << 50,
        _ => return Err(wrong()),
    };
    number.checked_mul(unit).ok_or_else(wrong)
}

/// A duration: an integer with a unit, `1h30m`-style sums of those, or a bare integer counted in `bare`.
pub fn duration(text: &str, bare: Duration) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a duration (such as 500ms, 10s, 5m)");
    let mut total = Duration::ZERO;
    let mut rest = text.trim();
    if rest.is_empty() {
        return Err(wrong());
    }
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let number: u32 = rest[..digits].parse().map_err(|_| wrong())?;
        rest = &rest[digits..];
        let letters = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let unit = match &rest[..letters] {
            "" => bare,
            "ms" => Duration::from_millis(1),
            "s" => Duration::from_secs(1),
            "m" => Duration::from_secs(60),
            "h" => Duration::from_secs(3600),
            "d" => Duration::from_secs(86400),
            _ => return Err(wrong()),
        };
        rest = &rest[letters..];
        total = unit.checked_mul(number).and_then(|part| total.checked_add(part)).ok_or_else(wrong)?;
    }
    Ok(total)
}

/// Milliseconds when no unit is given.
pub fn milliseconds(text: &str) -> Result<Duration, String> {
    duration(text, Duration::from_millis(1))
}

/// A TCP port.
pub fn port(text: &str) -> Result<u16, String> {
    match text.parse() {
        Ok(0) | Err(_) => Err(format!("`{text}` is not a TCP port")),
        Ok(port) => Ok(port),
    }
}

/// An IP address; an IPv6 one may stand in brackets.
pub fn ip(text: &str) -> Result<IpAddr, String> {
    text.trim_start_matches('[').trim_end_matches(']').parse().map_err(|_| format!("`{text}` is not an IP address"))
}

/// Where to listen.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Listen {
    /// A TCP port, on one address or (without one) on all.
    Tcp {
        /// The address, or all of them.
        ip: Option<IpAddr>,
        /// The port.
        port: u16,
    },
    /// A Unix socket.
    Unix(PathBuf),
}

impl std::fmt::Display for Listen {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Listen::Tcp { ip: Some(IpAddr::V6(ip)), port } => write!(f, "[{ip}]:{port}"),
            Listen::Tcp { ip: Some(ip), port } => write!(f, "{ip}:{port}"),
            Listen::Tcp { ip: None, port } => write!(f, "[::]:{port}"),
            Listen::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// A listener: `5672`, `127.0.0.1:5672`, `[::1]:5672`, or the path of a Unix socket.
pub fn listener(text: &str) -> Result<Listen, String> {
    if let Some(path) = text.strip_prefix("local:") {
        return Ok(Listen::Unix(path.into()));
    }
    if text.starts_with('/') {
        return Ok(Listen::Unix(text.into()));
    }
    match text.rsplit_once(':') {
        None => Ok(Listen::Tcp { ip: None, port: port(text)? }),
        Some((address, number)) => {
            let port = port(number)?;
            Ok(Listen::Tcp { ip: Some(ip(address)?), port })
        }
    }
}

/// One word out of `choices`.
pub fn word<T: Copy>(text: &str, choices: &[(&str, T)]) -> Result<T, String> {
    choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value).ok_or_else(|| {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        format!("`{text}` is not one of {}", names.join(", "))
    })
}

/// A file that must be readable now, so that a wrong path is found at boot and not at the first handshake.
pub fn readable_file(text: &str) -> Result<PathBuf, String> {
    match std::fs::File::open(text) {
        Ok(_) => Ok(text.into()),
        Err(error) => Err(format!("cannot read `{text}`: {error}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_know_both_kinds_of_units() {
        assert_eq!(bytes("10").unwrap(), 10);
        assert_eq!(bytes("10kB").unwrap(), 10_000);
        assert_eq!(bytes("10KiB").unwrap(), 10_240);
        assert_eq!(bytes("2g").unwrap(), 2_000_000_000);
        assert_eq!(bytes("2GI").unwrap(), 2 << 30);
        for wrong in ["10XB", "", "-1", "MB", "99999999999PB", "1.5GB"] {
            assert!(bytes(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn durations_know_units_and_bare_numbers() {
        assert_eq!(milliseconds("250").unwrap(), Duration::from_millis(250));
        assert_eq!(milliseconds("10s").unwrap(), Duration::from_secs(10));
        assert_eq!(milliseconds("1h30m").unwrap(), Duration::from_secs(5400));
        assert_eq!(duration("60", Duration::from_secs(1)).unwrap(), Duration::from_secs(60));
        for wrong in ["", "s", "10x", "-5s"] {
            assert!(milliseconds(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn listeners_are_ports_addresses_or_socket_paths() {
        assert_eq!(listener("5672").unwrap(), Listen::Tcp { ip: None, port: 5672 });
        assert_eq!(listener("127.0.0.1:5673").unwrap().to_string(), "127.0.0.1:5673");
        assert_eq!(listener("[::1]:5672").unwrap().to_string(), "[::1]:5672");
        assert_eq!(listener("/run/w.sock").unwrap(), Listen::Unix("/run/w.sock".into()));
        for wrong in ["0", "70000", "host:5672", "1.2.3.4:", ""] {
            assert!(listener(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_may_be_infinite() {
        assert_eq!(limit("infinity").unwrap(), None);
        assert_eq!(limit("7").unwrap(), Some(7));
        assert!(limit("many").is_err());
    }
}
