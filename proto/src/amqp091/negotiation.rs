//! What happens before a connection is open: the protocol header, tuning, and SASL responses.

use super::field::TableRef;
use super::frame::FRAME_MIN_SIZE;
use super::method::{ConnectionTune, ConnectionTuneOk};
use super::reply::{ProtocolError, ReplyCode};

/// The header that starts an AMQP 0-9-1 connection.
pub const HEADER_0_9_1: [u8; 8] = *b"AMQP\x00\x00\x09\x01";
/// The header that asks for AMQP 1.0 with SASL; also the answer to anything that is not understood.
pub const HEADER_1_0_SASL: [u8; 8] = *b"AMQP\x03\x01\x00\x00";

/// What a client's first eight bytes lead to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Opening {
    /// AMQP 0-9-1; also for the header of 0-9.
    Amqp091,
    /// AMQP 1.0 with SASL.
    Amqp10Sasl,
    /// Something else: send this header and close.
    Refuse {
        /// The header to send.
        answer: [u8; 8],
        /// What the client seems to be.
        mistake: Mistake,
    },
}

/// What a client that is refused seems to speak.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mistake {
    /// AMQP 1.0 without SASL, which is required.
    Amqp10WithoutSasl,
    /// Another version of AMQP 0.
    OtherVersion,
    /// A TLS handshake on a port without TLS.
    Tls,
    /// HTTP.
    Http,
    /// Anything else.
    Unknown,
}

impl Opening {
    /// Judges a client's first eight bytes.
    pub fn judge(header: &[u8; 8]) -> Self {
        let (answer, mistake) = match *header {
            HEADER_0_9_1 | [b'A', b'M', b'Q', b'P', 1, 1, 0, 9] => return Opening::Amqp091,
            HEADER_1_0_SASL => return Opening::Amqp10Sasl,
            [b'A', b'M', b'Q', b'P', _, 1, 0, 0] => (HEADER_1_0_SASL, Mistake::Amqp10WithoutSasl),
            [b'A', b'M', b'Q', b'P', 0, 0, 9..=255, _] => (HEADER_0_9_1, Mistake::OtherVersion),
            [b'A', b'M', b'Q', b'P', ..] => (HEADER_1_0_SASL, Mistake::OtherVersion),
            [0x16, 3, ..] => (HEADER_1_0_SASL, Mistake::Tls),
            [b'G', b'E', b'T', b' ', ..] | [b'P', b'O', b'S', b'T', ..] | [b'H', b'E', b'A', b'D', ..] => {
                (HEADER_1_0_SASL, Mistake::Http)
            }
            _ => (HEADER_1_0_SASL, Mistake::Unknown),
        };
        Opening::Refuse { answer, mistake }
    }
}

/// The limits of a connection: what the server offers in `connection.tune`, or what both agreed on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tuning {
    /// Channels open at once; 0 is no limit.
    pub channel_max: u16,
    /// Bytes of a frame with its envelope; 0 is no limit.
    pub frame_max: u32,
    /// Seconds between heartbeats; 0 is none.
    pub heartbeat: u16,
}

impl Tuning {
    /// What is offered where nothing is configured.
    pub const DEFAULT: Tuning = Tuning { channel_max: 2047, frame_max: 131_072, heartbeat: 60 };

    /// The method that offers it.
    pub fn offer(&self) -> ConnectionTune {
        ConnectionTune { channel_max: self.channel_max, frame_max: self.frame_max, heartbeat: self.heartbeat }
    }

    /// Checks a client's answer to this offer: no value below its minimum, none above the offer, where 0 (no limit)
    /// is above any limit. The heartbeat is the client's choice.
    pub fn agree(&self, answer: &ConnectionTuneOk) -> Result<Tuning, ProtocolError> {
        limit("channel_max", answer.channel_max.into(), 1, self.channel_max.into())?;
        limit("frame_max", answer.frame_max, FRAME_MIN_SIZE, self.frame_max)?;
        Ok(Tuning { channel_max: answer.channel_max, frame_max: answer.frame_max, heartbeat: answer.heartbeat })
    }
}

fn limit(name: &str, client: u32, least: u32, server: u32) -> Result<(), ProtocolError> {
    let text = if client != 0 && client < least {
        format!("negotiated {name} = {client} is lower than the minimum allowed value ({least})")
    } else if server != 0 && (client == 0 || client > server) {
        format!("negotiated {name} = {client} is higher than the maximum allowed value ({server})")
    } else {
        return Ok(());
    };
    Err(ProtocolError::new(ReplyCode::NotAllowed, text).in_method(ConnectionTune::IDS))
}

/// A user name and a password from a SASL response.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Credentials<'a> {
    /// The user's name.
    pub user: &'a str,
    /// The password's bytes.
    pub password: &'a [u8],
}

impl std::fmt::Debug for Credentials<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Credentials").field("user", &self.user).finish_non_exhaustive()
    }
}

impl<'a> Credentials<'a> {
    /// Reads a PLAIN response: NUL, user, NUL, password, with no authorisation id before it and nothing after it.
    pub fn from_plain(response: &'a [u8]) -> Option<Self> {
        let rest = response.strip_prefix(&[0])?;
        let nul = memchr::memchr(0, rest)?;
        let (user, password) = (&rest[..nul], &rest[nul + 1..]);
        if password.contains(&0) {
            return None;
        }
        Some(Credentials { user: std::str::from_utf8(user).ok()?, password })
    }

    /// Reads an AMQPLAIN response: a bare field table with LOGIN and PASSWORD.
    pub fn from_amqplain(response: &'a [u8]) -> Option<Self> {
        let table = TableRef::new(response);
        table.check().ok()?;
        let bytes = |name| match table.get(name)? {
            super::ValueRef::LongStr(bytes) | super::ValueRef::ByteArray(bytes) => Some(bytes),
            _ => None,
        };
        let user = std::str::from_utf8(bytes("LOGIN")?).ok()?;
        Some(Credentials { user, password: bytes("PASSWORD")? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp091::{FieldTable, FieldValue};

    #[test]
    fn the_header_table_of_the_specification_holds() {
        let refused = |header: &[u8; 8]| match Opening::judge(header) {
            Opening::Refuse { answer, mistake } => (answer, mistake),
            other => panic!("{other:?}"),
        };
        assert_eq!(Opening::judge(b"AMQP\x00\x00\x09\x01"), Opening::Amqp091);
        assert_eq!(Opening::judge(b"AMQP\x01\x01\x00\x09"), Opening::Amqp091);
        assert_eq!(Opening::judge(b"AMQP\x03\x01\x00\x00"), Opening::Amqp10Sasl);
        assert_eq!(refused(b"AMQP\x00\x01\x00\x00"), (HEADER_1_0_SASL, Mistake::Amqp10WithoutSasl));
        assert_eq!(refused(b"AMQP\x02\x01\x00\x00"), (HEADER_1_0_SASL, Mistake::Amqp10WithoutSasl));
        assert_eq!(refused(b"AMQP\x00\x00\x09\x00"), (HEADER_0_9_1, Mistake::OtherVersion));
        assert_eq!(refused(b"AMQP\x00\x00\x0a\x00"), (HEADER_0_9_1, Mistake::OtherVersion));
        assert_eq!(refused(b"AMQP\x00\x00\x08\x00"), (HEADER_1_0_SASL, Mistake::OtherVersion));
        assert_eq!(refused(b"GET / HT"), (HEADER_1_0_SASL, Mistake::Http));
        assert_eq!(refused(b"\x16\x03\x01\x02\x00\x01\x00\x01"), (HEADER_1_0_SASL, Mistake::Tls));
        assert_eq!(refused(b"\0\0\0\0\0\0\0\0"), (HEADER_1_0_SASL, Mistake::Unknown));
    }

    fn tune_ok(channel_max: u16, frame_max: u32, heartbeat: u16) -> ConnectionTuneOk {
        ConnectionTuneOk { channel_max, frame_max, heartbeat }
    }

    #[test]
    fn tuning_refuses_what_is_below_the_minimum_or_above_the_offer() {
        let offer = Tuning::DEFAULT;
        for bad in [(2047, 4096), (2047, 0), (2047, 131_073), (0, 131_072), (2048, 131_072)] {
            let error = offer.agree(&tune_ok(bad.0, bad.1, 60)).unwrap_err();
            assert_eq!((error.code, error.class_id, error.method_id), (ReplyCode::NotAllowed, 10, 30));
        }
        let agreed = offer.agree(&tune_ok(1, 8192, 0)).unwrap();
        assert_eq!(agreed, Tuning { channel_max: 1, frame_max: 8192, heartbeat: 0 });
    }

    #[test]
    fn an_offer_without_limits_takes_any_answer() {
        let offer = Tuning { channel_max: 0, frame_max: 0, heartbeat: 0 };
        assert!(offer.agree(&tune_ok(0, 0, 500)).is_ok());
        assert!(offer.agree(&tune_ok(65535, u32::MAX, 0)).is_ok());
        assert!(offer.agree(&tune_ok(0, 8191, 0)).is_err());
    }

    #[test]
    fn plain_takes_exactly_a_user_and_a_password() {
        let ok = Credentials::from_plain(b"\0guest\0secret").unwrap();
        assert_eq!((ok.user, ok.password), ("guest", &b"secret"[..]));
        assert!(!format!("{ok:?}").contains("secret"));
        for bad in [&b"id\0guest\0secret"[..], b"\0guest\0secret\0", b"\0guest", b"", b"\0\xff\0x"] {
            assert_eq!(Credentials::from_plain(bad), None);
        }
    }

    #[test]
    fn amqplain_takes_long_strings_and_byte_arrays() {
        let table = FieldTable::new()
            .with("LOGIN", "guest")
            .with("PASSWORD", FieldValue::ByteArray(bytes::Bytes::from_static(b"\xff\0")))
            .to_bytes();
        let ok = Credentials::from_amqplain(&table).unwrap();
        assert_eq!((ok.user, ok.password), ("guest", &b"\xff\0"[..]));
        assert_eq!(Credentials::from_amqplain(&table[..table.len() - 1]), None);
        let number = FieldTable::new().with("LOGIN", "a").with("PASSWORD", 1_i64).to_bytes();
        assert_eq!(Credentials::from_amqplain(&number), None);
    }
}
