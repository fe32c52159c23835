//! Reading and writing the standard's primitive types, big-endian.

use bytes::{BufMut, Bytes, BytesMut};

use super::field::{FieldTable, TableError, TableRef};
use super::reply::{ProtocolError, ReplyCode};
use super::short_str::ShortStr;

/// Arguments that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum MalformedArguments {
    /// They end early.
    #[error("arguments are truncated")]
    Truncated,
    /// There are bytes left.
    #[error("bytes follow the arguments")]
    Trailing,
    /// A short string is not UTF-8.
    #[error("a short string is not valid UTF-8")]
    NotUtf8,
    /// Property flags that no property of the basic class has.
    #[error("unknown property flags")]
    UnknownProperties,
    /// A field table inside them.
    #[error(transparent)]
    Table(#[from] TableError),
}

impl From<MalformedArguments> for ProtocolError {
    /// A bad table is a syntax error, everything else a frame error.
    fn from(error: MalformedArguments) -> Self {
        let code = match error {
            MalformedArguments::Table(_) => ReplyCode::SyntaxError,
            MalformedArguments::Truncated
            | MalformedArguments::Trailing
            | MalformedArguments::NotUtf8
            | MalformedArguments::UnknownProperties => ReplyCode::FrameError,
        };
        ProtocolError::new(code, error.to_string())
    }
}

/// A cursor over bytes that somebody else sent.
#[derive(Debug, Clone)]
pub(crate) struct Octets<'a> {
    rest: &'a [u8],
}

impl<'a> Octets<'a> {
    pub(crate) fn new(bytes: &'a [u8]) -> Self {
        Octets { rest: bytes }
    }

    pub(crate) fn rest(&self) -> &'a [u8] {
        self.rest
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(crate) fn take(&mut self, n: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.rest.split_at_checked(n)?;
        self.rest = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (taken, rest) = self.rest.split_first_chunk::<N>()?;
        self.rest = rest;
        Some(*taken)
    }

    pub(crate) fn u8(&mut self) -> Option<u8> {
        self.array::<1>().map(|[b]| b)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        self.array().map(u16::from_be_bytes)
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        self.array().map(u32::from_be_bytes)
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        self.array().map(u64::from_be_bytes)
    }

    /// The bytes of a short string, not yet checked to be UTF-8.
    pub(crate) fn short(&mut self) -> Option<&'a [u8]> {
        let n = self.u8()?;
        self.take(usize::from(n))
    }

    pub(crate) fn short_str(&mut self) -> Result<&'a str, MalformedArguments> {
        let bytes = self.short().ok_or(MalformedArguments::Truncated)?;
        std::str::from_utf8(bytes).map_err(|_| MalformedArguments::NotUtf8)
    }

    pub(crate) fn long(&mut self) -> Option<&'a [u8]> {
        let n = self.u32()?;
        self.take(usize::try_from(n).ok()?)
    }
}

/// Reads a method's arguments: strings become slices of `source`, bits are unpacked.
#[derive(Debug)]
pub(crate) struct ArgumentReader<'a> {
    source: &'a Bytes,
    octets: Octets<'a>,
    /// The octet that bits are taken from, and the next bit's number.
    bits: Option<(u8, u32)>,
}

impl<'a> ArgumentReader<'a> {
    /// Reads from `source` after its first `skip` bytes, which must be there.
    pub(crate) fn new(source: &'a Bytes, skip: usize) -> Self {
        ArgumentReader { source, octets: Octets::new(&source[skip..]), bits: None }
    }

    pub(crate) fn finish(self) -> Result<(), MalformedArguments> {
        if self.octets.is_empty() { Ok(()) } else { Err(MalformedArguments::Trailing) }
    }

    fn plain<T>(&mut self, read: impl FnOnce(&mut Octets<'a>) -> Option<T>) -> Result<T, MalformedArguments> {
        self.bits = None;
        read(&mut self.octets).ok_or(MalformedArguments::Truncated)
    }

    fn bit(&mut self) -> Result<bool, MalformedArguments> {
        let (octet, n) = match self.bits {
            Some((octet, n)) if n < 8 => (octet, n),
            _ => (self.octets.u8().ok_or(MalformedArguments::Truncated)?, 0),
        };
        self.bits = Some((octet, n + 1));
        Ok(octet >> n & 1 == 1)
    }
}

/// Writes a method's arguments, packing neighbouring bits.
#[derive(Debug)]
pub(crate) struct ArgumentWriter<'a> {
    out: &'a mut BytesMut,
    /// Bits set in the last octet written, if it is one of bits.
    bits: u32,
}

impl<'a> ArgumentWriter<'a> {
    pub(crate) fn new(out: &'a mut BytesMut) -> Self {
        ArgumentWriter { out, bits: 0 }
    }

    fn plain(&mut self) -> &mut BytesMut {
        self.bits = 0;
        self.out
    }

    fn bit(&mut self, bit: bool) {
        if self.bits == 0 || self.bits == 8 {
            self.out.put_u8(0);
            self.bits = 0;
        }
        if let Some(last) = self.out.last_mut() {
            *last |= u8::from(bit) << self.bits;
        }
        self.bits += 1;
    }
}

/// One argument's type: how it is read and written.
pub(crate) trait Argument: Sized {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments>;
    fn write(&self, w: &mut ArgumentWriter<'_>);
}

impl Argument for bool {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
        r.bit()
    }
    fn write(&self, w: &mut ArgumentWriter<'_>) {
        w.bit(*self);
    }
}

macro_rules! integer_arguments {
    ($($int:ident $put:ident),*) => {$(
        impl Argument for $int {
            fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
                r.plain(|o| o.$int())
            }
            fn write(&self, w: &mut ArgumentWriter<'_>) {
                w.plain().$put(*self);
            }
        }
    )*};
}

integer_arguments!(u8 put_u8, u16 put_u16, u32 put_u32, u64 put_u64);

impl Argument for ShortStr {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
        let bytes = r.plain(|o| o.short())?;
        ShortStr::from_bytes(r.source.slice_ref(bytes)).map_err(|_| MalformedArguments::NotUtf8)
    }
    fn write(&self, w: &mut ArgumentWriter<'_>) {
        put_short(w.plain(), self.as_bytes());
    }
}

/// A long string: arbitrary bytes.
impl Argument for Bytes {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
        let bytes = r.plain(|o| o.long())?;
        Ok(r.source.slice_ref(bytes))
    }
    fn write(&self, w: &mut ArgumentWriter<'_>) {
        put_long(w.plain(), self);
    }
}

impl Argument for FieldTable {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
        let bytes = r.plain(|o| o.long())?;
        Ok(TableRef::new(bytes).to_table()?)
    }
    fn write(&self, w: &mut ArgumentWriter<'_>) {
        self.encode(w.plain());
    }
}

/// An argument that the standard reserves: read and dropped, written as nothing or zero.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Reserved<T>(std::marker::PhantomData<T>);

impl<T: Argument + Default> Argument for Reserved<T> {
    fn read(r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
        T::read(r)?;
        Ok(Reserved(std::marker::PhantomData))
    }
    fn write(&self, w: &mut ArgumentWriter<'_>) {
        T::default().write(w);
    }
}

/// Writes a short string; what does not fit is cut off.
pub(crate) fn put_short(out: &mut BytesMut, bytes: &[u8]) {
    let bytes = &bytes[..bytes.len().min(ShortStr::MAX)];
    out.put_u8(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// Writes a long string.
pub(crate) fn put_long(out: &mut BytesMut, bytes: &[u8]) {
    out.put_u32(bytes.len() as u32);
    out.extend_from_slice(bytes);
}

/// Writes what `body` writes, preceded by its length.
pub(crate) fn put_sized(out: &mut BytesMut, body: impl FnOnce(&mut BytesMut)) {
    let at = out.len();
    out.put_u32(0);
    body(out);
    let len = (out.len() - at - 4) as u32;
    out[at..at + 4].copy_from_slice(&len.to_be_bytes());
}
