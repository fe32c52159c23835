//! The read buffer: grows with traffic, and costs next to nothing while a connection is idle.

use bytes::BytesMut;
use warren_proto::amqp091::{Frame, FrameLimits, ProtocolError};

/// The least that is asked of the kernel at once.
const SMALLEST: usize = 2 << 10;
/// The most.
const LARGEST: usize = 128 << 10;

/// Bytes that were received and not yet taken as frames.
#[derive(Debug)]
pub struct Inbound {
    buffer: BytesMut,
    /// Room made for the next read; doubles when reads fill it, halves when they leave most of it empty.
    target: usize,
}

impl Default for Inbound {
    fn default() -> Self {
        Inbound { buffer: BytesMut::new(), target: SMALLEST }
    }
}

impl Inbound {
    /// The buffer, with room for the next read.
    pub fn with_room(&mut self) -> &mut BytesMut {
        // A quarter is still worth a system call and saves a new allocation for each read.
        if self.buffer.capacity() - self.buffer.len() < self.target / 4 {
            self.buffer.reserve(self.target);
        }
        &mut self.buffer
    }

    /// Learns from a read of `n` bytes.
    pub fn adapt(&mut self, n: usize) {
        if n * 10 > self.target * 9 {
            self.target = (self.target * 2).min(LARGEST);
        } else if n * 10 < self.target * 2 {
            self.target = (self.target / 2).max(SMALLEST);
        }
    }

    /// What is there.
    pub fn bytes(&self) -> &[u8] {
        &self.buffer
    }

    /// Takes the first `n` bytes.
    pub fn take(&mut self, n: usize) -> bytes::Bytes {
        self.buffer.split_to(n).freeze()
    }

    /// Takes the first frame, if all of it is there.
    pub fn next_frame(&mut self, limits: &FrameLimits) -> Result<Option<Frame>, ProtocolError> {
        limits.decode(&mut self.buffer)
    }

    /// Gives the memory back if nothing is there: called when a connection has been quiet for a while.
    pub fn rest(&mut self) {
        if self.buffer.is_empty() {
            *self = Inbound::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_room_follows_the_traffic_and_rest_gives_it_back() {
        let mut inbound = Inbound::default();
        for _ in 0..20 {
            let room = inbound.with_room();
            let n = room.capacity() - room.len();
            room.resize(room.len() + n, 1);
            inbound.adapt(n);
            inbound.take(n);
        }
        assert_eq!(inbound.target, LARGEST);
        for _ in 0..20 {
            inbound.adapt(10);
        }
        assert_eq!(inbound.target, SMALLEST);
        inbound.rest();
        assert_eq!(inbound.with_room().capacity(), SMALLEST);
    }

    #[test]
    fn rest_keeps_what_was_not_taken() {
        let mut inbound = Inbound::default();
        inbound.with_room().extend_from_slice(b"partial");
        inbound.rest();
        assert_eq!(inbound.bytes(), b"partial");
    }
}
