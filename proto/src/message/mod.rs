//! The message container: what a queue stores, in the form in which it was published.
//!
//! Stored form, integers big-endian:
//!
//! | bytes | what |
//! |---|---|
//! | 1 | format: 1; 2 if the broker has dead-lettered it, so that its headers of deaths are the broker's own; 3 if it has a header `BCC`, which consumers do not see |
//! | 1 | protocol it was published with: 1 = AMQP 0-9-1 |
//! | 1 + n | exchange |
//! | 2 + n | routing key |
//! | 4 + n | property block (AMQP 0-9-1: flags and properties as on the wire) |
//! | rest | body |
//!
//! Everything before the body is the *head*. In memory head and body are two buffers, so that a body is a slice of
//! what was read from the socket until it is written to a store.

mod expiration;
mod keys;

use bytes::{BufMut, Bytes, BytesMut};

use crate::amqp091::{FieldValue, PropertiesRef, Property, TableRef};

pub use expiration::{InvalidExpiration, MAX_EXPIRATION_MS, parse_expiration};
pub use keys::{KeysHeader, KeysNotArray, keys_in};

const FORMAT: u8 = 1;
/// The same of a message that was dead-lettered: clients' own headers of that kind mean nothing.
const FORMAT_DEAD: u8 = 2;
/// The same of a message with a `BCC` header: kept for the message's death, and shown to nobody.
const FORMAT_BCC: u8 = 3;
/// Bytes of a head around exchange, key and properties.
const FIXED: usize = 1 + 1 + 1 + 2 + 4;

/// The protocol a message was published with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Protocol {
    /// AMQP 0-9-1.
    Amqp091,
}

impl Protocol {
    const fn tag(self) -> u8 {
        match self {
            Protocol::Amqp091 => 1,
        }
    }

    const fn from_tag(tag: u8) -> Option<Self> {
        match tag {
            1 => Some(Protocol::Amqp091),
            _ => None,
        }
    }
}

/// Stored bytes that are not a message of a form this binary knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MessageError {
    /// They end inside the head.
    #[error("stored message is truncated")]
    Truncated,
    /// Written by a newer binary, or not a message.
    #[error("unknown message format {0}")]
    Format(u8),
    /// A protocol that this binary does not know.
    #[error("unknown message protocol {0}")]
    Protocol(u8),
    /// Exchange, key or properties that cannot be read.
    #[error("stored message has an unreadable head")]
    Head,
}

/// A message. Cloning is cheap.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    head: Bytes,
    exchange_len: u8,
    key_len: u16,
    body: Bytes,
}

impl Message {
    /// A message published with AMQP 0-9-1. Its head is built in `arena`, which many messages of one read share.
    /// `properties` is a checked property block; exchange and key must fit their length fields, as everything read
    /// from a short string does (longer ones are cut).
    pub fn new(arena: &mut BytesMut, exchange: &str, routing_key: &[u8], properties: &[u8], body: Bytes) -> Self {
        Self::of_format(FORMAT, arena, exchange, routing_key, properties, body)
    }

    /// A message published with AMQP 0-9-1 that names further keys in a `BCC` header: consumers do not see that header.
    pub fn with_bcc(arena: &mut BytesMut, exchange: &str, routing_key: &[u8], properties: &[u8], body: Bytes) -> Self {
        Self::of_format(FORMAT_BCC, arena, exchange, routing_key, properties, body)
    }

    /// A message that the broker publishes again because it died in a queue; `properties` tell of its deaths.
    pub fn dead_lettered(exchange: &str, routing_key: &[u8], properties: &[u8], body: Bytes) -> Self {
        Self::of_format(FORMAT_DEAD, &mut BytesMut::new(), exchange, routing_key, properties, body)
    }

    fn of_format(
        format: u8,
        arena: &mut BytesMut,
        exchange: &str,
        routing_key: &[u8],
        properties: &[u8],
        body: Bytes,
    ) -> Self {
        let exchange = &exchange.as_bytes()[..exchange.len().min(u8::MAX.into())];
        let routing_key = &routing_key[..routing_key.len().min(u16::MAX.into())];
        debug_assert!(arena.is_empty());
        arena.reserve(FIXED + exchange.len() + routing_key.len() + properties.len());
        arena.put_u8(format);
        arena.put_u8(Protocol::Amqp091.tag());
        arena.put_u8(exchange.len() as u8);
        arena.extend_from_slice(exchange);
        arena.put_u16(routing_key.len() as u16);
        arena.extend_from_slice(routing_key);
        arena.put_u32(properties.len() as u32);
        arena.extend_from_slice(properties);
        Message {
            head: arena.split().freeze(),
            exchange_len: exchange.len() as u8,
            key_len: routing_key.len() as u16,
            body,
        }
    }

    /// Reads a stored message; head and body share its buffer.
    pub fn parse(data: Bytes) -> Result<Self, MessageError> {
        let [format, protocol, exchange_len] = *data.first_chunk().ok_or(MessageError::Truncated)?;
        if ![FORMAT, FORMAT_DEAD, FORMAT_BCC].contains(&format) {
            return Err(MessageError::Format(format));
        }
        Protocol::from_tag(protocol).ok_or(MessageError::Protocol(protocol))?;
        let key_at = 3 + usize::from(exchange_len);
        let key_len = u16::from_be_bytes(chunk(&data, key_at)?);
        let properties_at = key_at + 2 + usize::from(key_len);
        let properties_len = u32::from_be_bytes(chunk(&data, properties_at)?) as usize;
        let head_len = properties_at + 4 + properties_len;
        if head_len > data.len() {
            return Err(MessageError::Truncated);
        }
        let message = Message { exchange_len, key_len, body: data.slice(head_len..), head: data.slice(..head_len) };
        let readable = std::str::from_utf8(message.exchange_bytes()).is_ok()
            && PropertiesRef::locate(message.property_block()).is_ok();
        if readable { Ok(message) } else { Err(MessageError::Head) }
    }

    /// Appends the stored form.
    pub fn encode(&self, out: &mut BytesMut) {
        out.reserve(self.encoded_len());
        out.extend_from_slice(&self.head);
        out.extend_from_slice(&self.body);
    }

    /// Bytes of the stored form.
    pub fn encoded_len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Bytes of the head.
    pub fn meta_size(&self) -> usize {
        self.head.len()
    }

    /// Bytes of the body.
    pub fn body_size(&self) -> usize {
        self.body.len()
    }

    /// The encoded head.
    pub fn head(&self) -> &Bytes {
        &self.head
    }

    /// The body.
    pub fn body(&self) -> &Bytes {
        &self.body
    }

    /// The same message in memory of its own, for those who keep it longer than the buffers it was read from.
    pub fn detached(&self) -> Self {
        let mut all = BytesMut::with_capacity(self.encoded_len());
        self.encode(&mut all);
        let mut head = all.freeze();
        let body = head.split_off(self.head.len());
        Message { head, body, ..*self }
    }

    /// Whether the broker has dead-lettered it.
    pub fn is_dead_lettered(&self) -> bool {
        self.head[0] == FORMAT_DEAD
    }

    /// The exchange it was published to, or the one it was dead-lettered to.
    pub fn exchange(&self) -> &str {
        std::str::from_utf8(self.exchange_bytes()).unwrap_or_default()
    }

    fn exchange_bytes(&self) -> &[u8] {
        &self.head[3..3 + usize::from(self.exchange_len)]
    }

    fn key_at(&self) -> usize {
        3 + usize::from(self.exchange_len) + 2
    }

    /// The routing key.
    pub fn routing_key(&self) -> &[u8] {
        &self.head[self.key_at()..self.key_at() + usize::from(self.key_len)]
    }

    /// The routing key as text; empty if it is none, which no 0-9-1 client can publish.
    pub fn routing_key_str(&self) -> &str {
        std::str::from_utf8(self.routing_key()).unwrap_or_default()
    }

    /// The property block, flags and properties as on the wire.
    pub fn property_block(&self) -> &[u8] {
        &self.head[self.key_at() + usize::from(self.key_len) + 4..]
    }

    /// The properties, located anew at each call: keep what it answers.
    pub fn properties(&self) -> PropertiesRef<'_> {
        PropertiesRef::locate(self.property_block()).unwrap_or(PropertiesRef::EMPTY)
    }

    /// The headers, if there are any.
    pub fn headers(&self) -> Option<TableRef<'_>> {
        self.properties().headers()
    }

    /// Whether the publisher asked for persistence.
    pub fn is_persistent(&self) -> bool {
        self.properties().is_persistent()
    }

    /// Priority, if given.
    pub fn priority(&self) -> Option<u8> {
        self.properties().priority()
    }

    /// Time to live in ms; `None` if there is none or if it cannot be read.
    pub fn expiration_ms(&self) -> Option<u64> {
        parse_expiration(self.properties().expiration()?).ok()
    }

    /// The keys in the header `CC` or `BCC`; none if it is absent.
    pub fn keys_in(&self, header: KeysHeader) -> Result<impl Iterator<Item = &[u8]>, KeysNotArray> {
        keys::keys_in(self.properties(), header)
    }

    /// The same body and properties under another exchange and key.
    pub fn readdressed(&self, exchange: &str, routing_key: &[u8]) -> Self {
        let (block, body) = (self.property_block(), self.body.clone());
        Message::of_format(self.head[0], &mut BytesMut::new(), exchange, routing_key, block, body)
    }

    /// The same message with another property block.
    pub fn with_property_block(&self, block: &[u8]) -> Self {
        let body = self.body.clone();
        Message::of_format(self.head[0], &mut BytesMut::new(), self.exchange(), self.routing_key(), block, body)
    }

    /// The same message without its `BCC` header: what is stored.
    pub fn without_bcc(&self) -> Self {
        self.rewritten(|properties, out| properties.write_without_header("BCC", out))
    }

    /// The same message with another reply-to.
    pub fn with_reply_to(&self, reply_to: &str) -> Self {
        self.rewritten(|properties, out| properties.write_with_text(Property::ReplyTo, reply_to, out))
    }

    /// The same message with these headers set.
    pub fn with_headers(&self, added: &[(&str, FieldValue)]) -> Self {
        self.rewritten(|properties, out| properties.write_with_headers(added, out))
    }

    fn rewritten(&self, write: impl FnOnce(&PropertiesRef<'_>, &mut BytesMut)) -> Self {
        let mut block = BytesMut::with_capacity(self.property_block().len() + 64);
        write(&self.properties(), &mut block);
        self.with_property_block(&block)
    }

    /// Writes the property block for a delivery: verbatim, or with `x-acquired-count` and `x-delivery-count` (as `l`)
    /// if the message was handed out before.
    pub fn write_delivered_properties(&self, counts: DeliveryCounts, out: &mut BytesMut) {
        if self.head[0] == FORMAT_BCC {
            let shown = self.rewritten(|properties, out| properties.write_without_header("BCC", out));
            let shown = Message::new(&mut BytesMut::new(), "", b"", shown.property_block(), Bytes::new());
            return shown.write_delivered_properties(counts, out);
        }
        if counts.acquired == 0 {
            out.extend_from_slice(self.property_block());
            return;
        }
        let clamp = |n: u64| FieldValue::I64(i64::try_from(n).unwrap_or(i64::MAX));
        let acquired = ("x-acquired-count", clamp(counts.acquired));
        let properties = self.properties();
        match counts.failed {
            None => properties.write_with_headers(&[acquired], out),
            Some(failed) => {
                properties.write_with_headers(&[acquired, ("x-delivery-count", clamp(failed))], out);
            }
        }
    }
}

/// How often a message was handed out before this delivery, where its queue counts that.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DeliveryCounts {
    /// Times handed out and given back.
    pub acquired: u64,
    /// Times failed, once it is known.
    pub failed: Option<u64>,
}

fn chunk<const N: usize>(data: &Bytes, at: usize) -> Result<[u8; N], MessageError> {
    data.get(at..).and_then(|rest| rest.first_chunk()).copied().ok_or(MessageError::Truncated)
}

#[cfg(test)]
mod tests;
