//! Sender-selected distribution: the headers `CC` and `BCC` name further routing keys.

use crate::amqp091::{ArrayRef, PropertiesRef, ValueRef};

/// Which of the two headers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KeysHeader {
    /// Stays in the message.
    Cc,
    /// Removed before the message is stored.
    Bcc,
}

impl KeysHeader {
    /// The header's name.
    pub const fn name(self) -> &'static str {
        match self {
            KeysHeader::Cc => "CC",
            KeysHeader::Bcc => "BCC",
        }
    }
}

/// A `CC` or `BCC` header that is not an array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("header '{}' is not an array", .0.name())]
pub struct KeysNotArray(pub KeysHeader);

/// The keys in the header; elements that are no long strings are skipped.
pub fn keys_in<'a>(
    properties: PropertiesRef<'a>,
    header: KeysHeader,
) -> Result<impl Iterator<Item = &'a [u8]> + use<'a>, KeysNotArray> {
    let array = match properties.headers().and_then(|table| table.get(header.name())) {
        None => ArrayRef::EMPTY,
        Some(ValueRef::Array(array)) => array,
        Some(_) => return Err(KeysNotArray(header)),
    };
    Ok(array.iter().map_while(Result::ok).filter_map(ValueRef::as_long_str))
}
