//! The primitives of the compact binary form: bytes, LEB128 integers, lengths.

use std::ops::Range;

use bytes::BufMut;
use warren_proto::ids::{MachineVersion, NodeId, SessionRef};

/// Bytes that are no command, or no state, of a version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum DecodeError {
    /// It ends too early.
    #[error("truncated")]
    Truncated,
    /// It goes on after its end.
    #[error("trailing bytes")]
    Trailing,
    /// No version that this binary knows defines it.
    #[error("unknown tag {0}")]
    UnknownTag(u8),
    /// A later version defines it.
    #[error("tag {tag} is not defined at machine version {version}")]
    NotInVersion {
        /// The command's tag.
        tag: u8,
        /// The version asked for.
        version: MachineVersion,
    },
    /// A field has a value that it cannot have.
    #[error("bad value of {0}")]
    Value(&'static str),
}

pub(crate) fn put_varint(out: &mut impl BufMut, mut value: u64) {
    while value >= 0x80 {
        out.put_u8(value as u8 | 0x80);
        value >>= 7;
    }
    out.put_u8(value as u8);
}

pub(crate) fn put_zigzag(out: &mut impl BufMut, value: i64) {
    put_varint(out, (value << 1 ^ value >> 63) as u64);
}

pub(crate) fn put_bytes(out: &mut impl BufMut, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// A number that may be absent; `u64::MAX` is written as the number below it.
pub(crate) fn put_option(out: &mut impl BufMut, value: Option<u64>) {
    put_varint(out, value.map_or(0, |value| value.saturating_add(1)));
}

/// What [`put_option`] wrote.
pub(crate) fn option(r: &mut Reader<'_>) -> Result<Option<u64>, DecodeError> {
    Ok(r.varint()?.checked_sub(1))
}

pub(crate) fn put_session(out: &mut impl BufMut, session: &SessionRef) {
    out.put_u64_le(session.node.0);
    out.put_u64_le(session.incarnation);
    put_varint(out, session.id);
}

/// Reads the same.
pub(crate) struct Reader<'a> {
    data: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    pub fn new(data: &'a [u8]) -> Self {
        Reader { data, at: 0 }
    }

    pub fn remaining(&self) -> usize {
        self.data.len() - self.at
    }

    pub fn u8(&mut self) -> Result<u8, DecodeError> {
        let byte = *self.data.get(self.at).ok_or(DecodeError::Truncated)?;
        self.at += 1;
        Ok(byte)
    }

    pub fn flag(&mut self, what: &'static str) -> Result<bool, DecodeError> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(DecodeError::Value(what)),
        }
    }

    pub fn u64_le(&mut self) -> Result<u64, DecodeError> {
        let bytes = self.data[self.at..].first_chunk::<8>().ok_or(DecodeError::Truncated)?;
        self.at += 8;
        Ok(u64::from_le_bytes(*bytes))
    }

    pub fn varint(&mut self) -> Result<u64, DecodeError> {
        match self.data.get(self.at) {
            Some(byte) if *byte < 0x80 => {
                self.at += 1;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, DecodeError> {
        let mut value = 0;
        let mut shift = 0;
        for (i, byte) in self.data[self.at..].iter().enumerate() {
            if shift == 63 && *byte > 1 {
                return Err(DecodeError::Value("integer"));
            }
            value |= u64::from(byte & 0x7f) << shift;
            if *byte < 0x80 {
                self.at += i + 1;
                return Ok(value);
            }
            shift += 7;
        }
        Err(DecodeError::Truncated)
    }

    pub fn u32(&mut self, what: &'static str) -> Result<u32, DecodeError> {
        u32::try_from(self.varint()?).map_err(|_| DecodeError::Value(what))
    }

    pub fn zigzag(&mut self) -> Result<i64, DecodeError> {
        let value = self.varint()?;
        Ok((value >> 1) as i64 ^ -((value & 1) as i64))
    }

    pub fn i32(&mut self, what: &'static str) -> Result<i32, DecodeError> {
        i32::try_from(self.zigzag()?).map_err(|_| DecodeError::Value(what))
    }

    /// A count of things that take at least `least` bytes each, so that no count allocates more than the input's size.
    pub fn count(&mut self, least: usize) -> Result<usize, DecodeError> {
        let count = usize::try_from(self.varint()?).map_err(|_| DecodeError::Truncated)?;
        match count.checked_mul(least) {
            Some(bytes) if bytes <= self.remaining() => Ok(count),
            _ => Err(DecodeError::Truncated),
        }
    }

    /// Where the next length-prefixed bytes are.
    pub fn bytes(&mut self) -> Result<Range<usize>, DecodeError> {
        let len = self.count(1)?;
        let range = self.at..self.at + len;
        self.at = range.end;
        Ok(range)
    }

    /// Length-prefixed UTF-8.
    pub fn text(&mut self, what: &'static str) -> Result<&'a str, DecodeError> {
        let range = self.bytes()?;
        std::str::from_utf8(&self.data[range]).map_err(|_| DecodeError::Value(what))
    }

    /// How far it has read.
    pub fn position(&self) -> usize {
        self.at
    }

    pub fn session(&mut self) -> Result<SessionRef, DecodeError> {
        Ok(SessionRef { node: NodeId(self.u64_le()?), incarnation: self.u64_le()?, id: self.varint()? })
    }

    pub fn end(self) -> Result<(), DecodeError> {
        if self.remaining() == 0 { Ok(()) } else { Err(DecodeError::Trailing) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    proptest::proptest! {
        #[test]
        fn integers_come_back_as_they_went(value: u64, signed: i64) {
            let mut out = Vec::new();
            put_varint(&mut out, value);
            put_zigzag(&mut out, signed);
            let mut r = Reader::new(&out);
            assert_eq!(r.varint(), Ok(value));
            assert_eq!(r.zigzag(), Ok(signed));
            assert_eq!(r.end(), Ok(()));
        }
    }
}
