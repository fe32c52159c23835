//! `amqp://user:password@host:port/vhost`.

/// Where to connect and as whom.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Uri {
    /// Host name or address.
    pub host: String,
    /// Port.
    pub port: u16,
    /// User.
    pub user: String,
    /// Password.
    pub password: String,
    /// Virtual host.
    pub vhost: String,
}

impl Uri {
    /// Parses a URI by the rules of the AMQP URI specification: parts may be left out, and are percent-encoded.
    pub fn parse(text: &str) -> Result<Self, String> {
        let wrong = || "expected amqp://user:password@host:port/vhost".to_owned();
        let rest = text.strip_prefix("amqp://").ok_or_else(wrong)?;
        let rest = rest.split(['?', '#']).next().unwrap_or_default();
        let (authority, path) = match rest.split_once('/') {
            Some((authority, path)) => (authority, Some(path)),
            None => (rest, None),
        };
        let (login, address) = match authority.rsplit_once('@') {
            Some((login, address)) => (Some(login), address),
            None => (None, authority),
        };
        let (user, password) = match login.map(|login| login.split_once(':').unwrap_or((login, ""))) {
            Some((user, password)) => (decode(user).ok_or_else(wrong)?, decode(password).ok_or_else(wrong)?),
            None => ("guest".to_owned(), "guest".to_owned()),
        };
        let (host, port) = match address.rsplit_once(':') {
            Some((host, port)) if !port.ends_with(']') => (host, port.parse().map_err(|_| wrong())?),
            _ => (address, 5672),
        };
        let host = host.trim_start_matches('[').trim_end_matches(']');
        Ok(Uri {
            host: if host.is_empty() { "127.0.0.1".to_owned() } else { host.to_owned() },
            port,
            user,
            password,
            vhost: match path {
                None | Some("") => "/".to_owned(),
                Some(path) => decode(path).ok_or_else(wrong)?,
            },
        })
    }
}

fn decode(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&first, after)) = rest.split_first() {
        rest = after;
        if first == b'%' {
            let digits = std::str::from_utf8(rest.get(..2)?).ok()?;
            bytes.push(u8::from_str_radix(digits, 16).ok()?);
            rest = &rest[2..];
        } else {
            bytes.push(first);
        }
    }
    String::from_utf8(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_defaults_and_are_decoded() {
        let full = Uri::parse("amqp://u%40x:p%2Fw@host:5673/v%2F1").unwrap();
        assert_eq!((full.user.as_str(), full.password.as_str()), ("u@x", "p/w"));
        assert_eq!((full.host.as_str(), full.port, full.vhost.as_str()), ("host", 5673, "v/1"));
        let bare = Uri::parse("amqp://").unwrap();
        assert_eq!((bare.host.as_str(), bare.port, bare.vhost.as_str()), ("127.0.0.1", 5672, "/"));
        assert_eq!(Uri::parse("amqp://[::1]:5/%2f").unwrap().host, "::1");
        assert_eq!(Uri::parse("amqp://[::1]").unwrap().port, 5672);
        for wrong in ["http://x", "amqp://h:port", "amqp://%zz@h"] {
            assert!(Uri::parse(wrong).is_err(), "{wrong}");
        }
    }
}
