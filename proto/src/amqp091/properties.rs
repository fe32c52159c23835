//! Basic properties: read in place from the encoded block, or owned and encoded anew.

use bytes::{BufMut, Bytes, BytesMut};

use super::field::{FieldTable, FieldValue, TableRef};
use super::octets::{MalformedArguments, Octets, put_short, put_sized};
use super::short_str::ShortStr;

/// A property, numbered in wire order: its flag is bit `15 - n`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Property {
    /// MIME type.
    ContentType,
    /// MIME encoding.
    ContentEncoding,
    /// Headers, a field table.
    Headers,
    /// 2 is persistent.
    DeliveryMode,
    /// 0 to 255.
    Priority,
    /// For requests and replies.
    CorrelationId,
    /// Queue to reply to.
    ReplyTo,
    /// Time to live in ms, as decimal text.
    Expiration,
    /// The application's id.
    MessageId,
    /// Seconds since 1970.
    Timestamp,
    /// The application's message type.
    Type,
    /// Publisher's user name, checked by the broker.
    UserId,
    /// Publisher's application.
    AppId,
    /// Accepted and forwarded.
    ClusterId,
}

impl Property {
    const COUNT: usize = 14;
    const ALL: [Property; Self::COUNT] = [
        Property::ContentType,
        Property::ContentEncoding,
        Property::Headers,
        Property::DeliveryMode,
        Property::Priority,
        Property::CorrelationId,
        Property::ReplyTo,
        Property::Expiration,
        Property::MessageId,
        Property::Timestamp,
        Property::Type,
        Property::UserId,
        Property::AppId,
        Property::ClusterId,
    ];

    const fn flag(self) -> u16 {
        1 << (15 - self as u8)
    }
}

/// The flag that announces another word of flags.
const CONTINUATION: u16 = 1;

/// An encoded property block (flags and properties as on the wire), checked once and read in place.
#[derive(Debug, Clone, Copy)]
pub struct PropertiesRef<'a> {
    block: &'a [u8],
    flags: u16,
    /// Where each present property starts, and at the end where the last one ends.
    at: [u32; Property::COUNT + 1],
}

impl<'a> PropertiesRef<'a> {
    /// The block without properties.
    pub const EMPTY: PropertiesRef<'static> = PropertiesRef { block: &[0, 0], flags: 0, at: [2; Property::COUNT + 1] };

    /// Checks the whole block: strings, the headers table and that nothing follows.
    pub fn parse(block: &'a [u8]) -> Result<Self, MalformedArguments> {
        let properties = Self::locate(block)?;
        if let Some(headers) = properties.headers() {
            headers.check()?;
        }
        Ok(properties)
    }

    /// Finds the properties of a block that was checked before it was stored; the headers are not looked into.
    pub fn locate(block: &'a [u8]) -> Result<Self, MalformedArguments> {
        let mut octets = Octets::new(block);
        let flags = octets.u16().ok_or(MalformedArguments::Truncated)?;
        if flags & 0b10 != 0 {
            return Err(MalformedArguments::UnknownProperties);
        }
        if flags & CONTINUATION != 0 && octets.u16().ok_or(MalformedArguments::Truncated)? != 0 {
            return Err(MalformedArguments::UnknownProperties);
        }
        let mut at = [0; Property::COUNT + 1];
        for property in Property::ALL {
            at[property as usize] = (block.len() - octets.rest().len()) as u32;
            if flags & property.flag() != 0 {
                skip(property, &mut octets)?;
            }
        }
        if !octets.is_empty() {
            return Err(MalformedArguments::Trailing);
        }
        at[Property::COUNT] = block.len() as u32;
        Ok(PropertiesRef { block, flags, at })
    }

    /// The block, to replay it verbatim.
    pub fn block(&self) -> &'a [u8] {
        self.block
    }

    /// Whether the property is there.
    pub fn has(&self, property: Property) -> bool {
        self.flags & property.flag() != 0
    }

    fn encoded(&self, property: Property) -> Option<&'a [u8]> {
        if !self.has(property) {
            return None;
        }
        let n = property as usize;
        self.block.get(self.at[n] as usize..self.at[n + 1] as usize)
    }

    /// A property that is a short string; `None` for absent ones and for those of other types.
    pub fn text(&self, property: Property) -> Option<&'a str> {
        match property {
            Property::Headers | Property::DeliveryMode | Property::Priority | Property::Timestamp => None,
            _ => std::str::from_utf8(self.encoded(property)?.get(1..)?).ok(),
        }
    }

    fn octet(&self, property: Property) -> Option<u8> {
        self.encoded(property)?.first().copied()
    }

    /// Headers.
    pub fn headers(&self) -> Option<TableRef<'a>> {
        Some(TableRef::new(self.encoded(Property::Headers)?.get(4..)?))
    }

    /// Delivery mode as sent.
    pub fn delivery_mode(&self) -> Option<u8> {
        self.octet(Property::DeliveryMode)
    }

    /// Whether the publisher asked for persistence.
    pub fn is_persistent(&self) -> bool {
        self.delivery_mode() == Some(2)
    }

    /// Priority as sent.
    pub fn priority(&self) -> Option<u8> {
        self.octet(Property::Priority)
    }

    /// Timestamp in seconds.
    pub fn timestamp(&self) -> Option<u64> {
        self.encoded(Property::Timestamp)?.first_chunk().map(|b| u64::from_be_bytes(*b))
    }

    /// Name of the queue to reply to.
    pub fn reply_to(&self) -> Option<&'a str> {
        self.text(Property::ReplyTo)
    }

    /// Expiration as sent.
    pub fn expiration(&self) -> Option<&'a str> {
        self.text(Property::Expiration)
    }

    /// Publisher's user name.
    pub fn user_id(&self) -> Option<&'a str> {
        self.text(Property::UserId)
    }

    /// Everything, owned.
    pub fn to_properties(&self) -> Result<Properties, MalformedArguments> {
        let text = |property| self.text(property).and_then(|t| ShortStr::try_from(t).ok());
        Ok(Properties {
            content_type: text(Property::ContentType),
            content_encoding: text(Property::ContentEncoding),
            headers: self.headers().map(|h| h.to_table()).transpose()?,
            delivery_mode: self.delivery_mode(),
            priority: self.priority(),
            correlation_id: text(Property::CorrelationId),
            reply_to: text(Property::ReplyTo),
            expiration: text(Property::Expiration),
            message_id: text(Property::MessageId),
            timestamp: self.timestamp(),
            kind: text(Property::Type),
            user_id: text(Property::UserId),
            app_id: text(Property::AppId),
            cluster_id: text(Property::ClusterId),
        })
    }

    /// Writes the block with these headers set: one of the same name is replaced, others and all other properties
    /// are copied as they are.
    pub fn write_with_headers(&self, added: &[(&str, FieldValue)], out: &mut BytesMut) {
        self.write_with_table(out, |out| {
            self.copy_headers(out, |name| added.iter().all(|(n, _)| *n != name));
            for (name, value) in added {
                put_short(out, name.as_bytes());
                value.encode(out);
            }
        });
    }

    /// Writes the block without the headers of that name.
    pub fn write_without_header(&self, name: &str, out: &mut BytesMut) {
        self.write_with_table(out, |out| self.copy_headers(out, |n| n != name));
    }

    /// Writes the block with one short string property replaced or added. Others are copied as they are; a property
    /// of another type is left alone.
    pub fn write_with_text(&self, property: Property, text: &str, out: &mut BytesMut) {
        match property {
            Property::Headers | Property::DeliveryMode | Property::Priority | Property::Timestamp => {
                out.extend_from_slice(self.block);
            }
            _ => self.write_replacing(property, out, |out| put_short(out, text.as_bytes())),
        }
    }

    fn copy_headers(&self, out: &mut BytesMut, keep: impl Fn(&str) -> bool) {
        let Some(table) = self.headers() else { return };
        let mut rest = table.as_bytes();
        for (name, _) in table.iter().map_while(Result::ok) {
            // The iterator reads the same bytes in the same steps, so each field's extent is what it consumed.
            let Some(len) = field_len(rest) else { return };
            let (field, after) = rest.split_at(len);
            if keep(name) {
                out.extend_from_slice(field);
            }
            rest = after;
        }
    }

    fn write_with_table(&self, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
        self.write_replacing(Property::Headers, out, |out| put_sized(out, write));
    }

    fn write_replacing(&self, property: Property, out: &mut BytesMut, write: impl FnOnce(&mut BytesMut)) {
        out.put_u16((self.flags & !CONTINUATION) | property.flag());
        let (start, n) = (self.at[0] as usize, property as usize);
        out.extend_from_slice(&self.block[start..self.at[n] as usize]);
        write(out);
        out.extend_from_slice(&self.block[self.at[n + 1] as usize..]);
    }
}

fn field_len(bytes: &[u8]) -> Option<usize> {
    let mut octets = Octets::new(bytes);
    octets.short()?;
    let size = match octets.u8()? {
        b't' | b'b' | b'B' => 1,
        b's' | b'u' => 2,
        b'I' | b'i' | b'f' => 4,
        b'D' => 5,
        b'l' | b'L' | b'd' | b'T' => 8,
        b'S' | b'x' | b'A' | b'F' => octets.u32()? as usize,
        _ => 0,
    };
    octets.take(size)?;
    Some(bytes.len() - octets.rest().len())
}

fn skip(property: Property, octets: &mut Octets<'_>) -> Result<(), MalformedArguments> {
    let found = match property {
        Property::Headers => octets.long().is_some(),
        Property::DeliveryMode | Property::Priority => octets.u8().is_some(),
        Property::Timestamp => octets.u64().is_some(),
        _ => {
            octets.short_str()?;
            true
        }
    };
    if found { Ok(()) } else { Err(MalformedArguments::Truncated) }
}

/// Owned basic properties; absent ones are `None`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Properties {
    /// MIME type.
    pub content_type: Option<ShortStr>,
    /// MIME encoding.
    pub content_encoding: Option<ShortStr>,
    /// Headers.
    pub headers: Option<FieldTable>,
    /// 2 is persistent.
    pub delivery_mode: Option<u8>,
    /// 0 to 255.
    pub priority: Option<u8>,
    /// For requests and replies.
    pub correlation_id: Option<ShortStr>,
    /// Queue to reply to.
    pub reply_to: Option<ShortStr>,
    /// Time to live in ms, as decimal text.
    pub expiration: Option<ShortStr>,
    /// The application's id.
    pub message_id: Option<ShortStr>,
    /// Seconds since 1970.
    pub timestamp: Option<u64>,
    /// The application's message type (`type`).
    pub kind: Option<ShortStr>,
    /// Publisher's user name.
    pub user_id: Option<ShortStr>,
    /// Publisher's application.
    pub app_id: Option<ShortStr>,
    /// Accepted and forwarded.
    pub cluster_id: Option<ShortStr>,
}

impl Properties {
    /// Properties of a persistent message.
    pub fn persistent() -> Self {
        Properties { delivery_mode: Some(2), ..Properties::default() }
    }

    /// Writes flags and properties.
    pub fn encode(&self, out: &mut BytesMut) {
        let flags_at = out.len();
        out.put_u16(0);
        let mut flags = 0;
        for property in Property::ALL {
            if self.put(property, out).is_some() {
                flags |= property.flag();
            }
        }
        out[flags_at..flags_at + 2].copy_from_slice(&flags.to_be_bytes());
    }

    /// The encoded block.
    pub fn to_bytes(&self) -> Bytes {
        let mut out = BytesMut::new();
        self.encode(&mut out);
        out.freeze()
    }

    fn put(&self, property: Property, out: &mut BytesMut) -> Option<()> {
        let text = match property {
            Property::Headers => {
                self.headers.as_ref()?.encode(out);
                return Some(());
            }
            Property::DeliveryMode => {
                out.put_u8(self.delivery_mode?);
                return Some(());
            }
            Property::Priority => {
                out.put_u8(self.priority?);
                return Some(());
            }
            Property::Timestamp => {
                out.put_u64(self.timestamp?);
                return Some(());
            }
            Property::ContentType => &self.content_type,
            Property::ContentEncoding => &self.content_encoding,
            Property::CorrelationId => &self.correlation_id,
            Property::ReplyTo => &self.reply_to,
            Property::Expiration => &self.expiration,
            Property::MessageId => &self.message_id,
            Property::Type => &self.kind,
            Property::UserId => &self.user_id,
            Property::AppId => &self.app_id,
            Property::ClusterId => &self.cluster_id,
        };
        put_short(out, text.as_ref()?.as_bytes());
        Some(())
    }
}
