//! Short strings: names, keys and texts of at most 255 bytes.

use std::fmt;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use bytes::Bytes;

/// A UTF-8 string of at most 255 bytes, sharing the buffer that it was read from.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ShortStr(Bytes);

/// A string does not fit a short string.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ShortStrError {
    /// Over 255 bytes.
    #[error("longer than 255 bytes")]
    TooLong,
    /// Not UTF-8.
    #[error("not valid UTF-8")]
    NotUtf8,
}

impl ShortStr {
    /// Bytes that a short string can hold.
    pub const MAX: usize = 255;

    /// A string known at compile time.
    pub const fn from_static(text: &'static str) -> Self {
        assert!(text.len() <= Self::MAX);
        ShortStr(Bytes::from_static(text.as_bytes()))
    }

    /// As much of `text` as fits, cut between characters.
    pub fn truncated(text: &str) -> Self {
        let mut end = text.len().min(Self::MAX);
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        ShortStr(Bytes::copy_from_slice(&text.as_bytes()[..end]))
    }

    /// Checks length and encoding; copies nothing.
    pub fn from_bytes(bytes: Bytes) -> Result<Self, ShortStrError> {
        if bytes.len() > Self::MAX {
            return Err(ShortStrError::TooLong);
        }
        if std::str::from_utf8(&bytes).is_err() {
            return Err(ShortStrError::NotUtf8);
        }
        Ok(ShortStr(bytes))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        // Checked by every constructor; checking again is cheaper than an owned String and needs no unsafe code.
        std::str::from_utf8(&self.0).unwrap_or_default()
    }

    /// The bytes.
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// The buffer.
    pub fn into_bytes(self) -> Bytes {
        self.0
    }

    /// Whether there is no byte.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// A copy in a buffer of its own, so that a long-lived name does not keep a whole read buffer in memory.
    pub fn detached(&self) -> Self {
        ShortStr(Bytes::copy_from_slice(&self.0))
    }
}

impl TryFrom<&str> for ShortStr {
    type Error = ShortStrError;

    fn try_from(text: &str) -> Result<Self, ShortStrError> {
        if text.len() > Self::MAX {
            return Err(ShortStrError::TooLong);
        }
        Ok(ShortStr(Bytes::copy_from_slice(text.as_bytes())))
    }
}

impl TryFrom<String> for ShortStr {
    type Error = ShortStrError;

    fn try_from(text: String) -> Result<Self, ShortStrError> {
        if text.len() > Self::MAX {
            return Err(ShortStrError::TooLong);
        }
        Ok(ShortStr(Bytes::from(text)))
    }
}

impl Deref for ShortStr {
    type Target = str;

    fn deref(&self) -> &str {
        self.as_str()
    }
}

impl Hash for ShortStr {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.as_str().hash(state);
    }
}

impl std::borrow::Borrow<str> for ShortStr {
    fn borrow(&self) -> &str {
        self.as_str()
    }
}

impl PartialEq<str> for ShortStr {
    fn eq(&self, other: &str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl PartialEq<&str> for ShortStr {
    fn eq(&self, other: &&str) -> bool {
        self.as_bytes() == other.as_bytes()
    }
}

impl fmt::Debug for ShortStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

impl fmt::Display for ShortStr {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
