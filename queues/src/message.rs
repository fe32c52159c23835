//! A message as queues store it.

use bytes::Bytes;

/// A stored message container: header bytes, then body bytes, both opaque to every queue.
///
/// The bytes should be of a buffer of about their own size: a queue that keeps a small slice of a large network buffer
/// keeps the whole buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredMessage {
    meta_size: u32,
    container: Bytes,
}

impl StoredMessage {
    /// A container of which the first `meta_size` bytes are header. `None` if it is shorter than that, or longer than
    /// 4 GiB.
    pub fn new(meta_size: u32, container: Bytes) -> Option<Self> {
        let len = u32::try_from(container.len()).ok()?;
        (meta_size <= len).then_some(StoredMessage { meta_size, container })
    }

    /// Bytes of header.
    pub fn meta_size(&self) -> u32 {
        self.meta_size
    }

    /// Bytes of body: what limits and statistics count.
    pub fn body_size(&self) -> u32 {
        self.container.len() as u32 - self.meta_size
    }

    /// Header and body.
    pub fn container(&self) -> &Bytes {
        &self.container
    }

    /// Header and body.
    pub fn into_container(self) -> Bytes {
        self.container
    }

    /// The header, sharing the buffer.
    pub fn meta(&self) -> Bytes {
        self.container.slice(..self.meta_size as usize)
    }

    /// The body, sharing the buffer.
    pub fn body(&self) -> Bytes {
        self.container.slice(self.meta_size as usize..)
    }
}
