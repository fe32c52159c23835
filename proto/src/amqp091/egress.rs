//! Bytes on their way out: small frames in one buffer, large bodies beside it, written with one vectored call.

use std::collections::VecDeque;
use std::io::IoSlice;

use bytes::{Buf, Bytes, BytesMut};

/// Bodies over this many bytes are not copied behind their frame's head.
pub const SHARE_BODY_ABOVE: usize = 16 << 10;

/// Where frames are written to.
pub trait FrameSink {
    /// The buffer for heads, methods and small bodies.
    fn buffer(&mut self) -> &mut BytesMut;

    /// Appends a body, or a part of one.
    fn put_body(&mut self, body: &Bytes);
}

impl FrameSink for BytesMut {
    fn buffer(&mut self) -> &mut BytesMut {
        self
    }

    fn put_body(&mut self, body: &Bytes) {
        self.extend_from_slice(body);
    }
}

/// An output buffer of chunks. Read it as a [`Buf`]; it keeps its memory for the next batch once it is drained.
#[derive(Debug, Default)]
pub struct Egress {
    /// What was closed off by a large body, then that body, and so on.
    chunks: VecDeque<Bytes>,
    chunk_bytes: usize,
    tail: BytesMut,
}

impl Egress {
    /// An empty buffer.
    pub fn new() -> Self {
        Egress::default()
    }

    /// Bytes waiting.
    pub fn len(&self) -> usize {
        self.chunk_bytes + self.tail.len()
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Gives memory back if the buffer is empty and holds more than `keep` bytes of it.
    pub fn shrink(&mut self, keep: usize) {
        if self.is_empty() && self.tail.capacity() > keep {
            self.tail = BytesMut::new();
            self.chunks = VecDeque::new();
        }
    }

    fn push(&mut self, chunk: Bytes) {
        self.chunk_bytes += chunk.len();
        self.chunks.push_back(chunk);
    }
}

impl FrameSink for Egress {
    fn buffer(&mut self) -> &mut BytesMut {
        &mut self.tail
    }

    fn put_body(&mut self, body: &Bytes) {
        if body.len() <= SHARE_BODY_ABOVE {
            self.tail.extend_from_slice(body);
            return;
        }
        if !self.tail.is_empty() {
            let before = self.tail.split().freeze();
            self.push(before);
        }
        self.push(body.clone());
    }
}

impl Buf for Egress {
    fn remaining(&self) -> usize {
        self.len()
    }

    fn chunk(&self) -> &[u8] {
        self.chunks.front().map_or(&self.tail[..], |chunk| chunk)
    }

    fn chunks_vectored<'a>(&'a self, out: &mut [IoSlice<'a>]) -> usize {
        let parts = self.chunks.iter().map(|chunk| &chunk[..]).chain([&self.tail[..]]);
        let mut filled = 0;
        for (slot, part) in out.iter_mut().zip(parts.filter(|part| !part.is_empty())) {
            *slot = IoSlice::new(part);
            filled += 1;
        }
        filled
    }

    fn advance(&mut self, mut n: usize) {
        while let Some(first) = self.chunks.front_mut() {
            let taken = n.min(first.len());
            first.advance(taken);
            self.chunk_bytes -= taken;
            n -= taken;
            if !first.is_empty() {
                return;
            }
            self.chunks.pop_front();
        }
        if n == self.tail.len() {
            self.tail.clear();
        } else {
            self.tail.advance(n);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_bodies_are_shared_and_come_out_in_order_whatever_is_written_at_a_time() {
        let large = Bytes::from(vec![7; SHARE_BODY_ABOVE + 1]);
        for step in [1, 3, 1000, 100_000] {
            let mut egress = Egress::new();
            let mut expected = Vec::new();
            for body in [Bytes::from_static(b"small"), large.clone(), large.clone(), Bytes::new()] {
                egress.buffer().extend_from_slice(b"head");
                expected.extend_from_slice(b"head");
                egress.put_body(&body);
                expected.extend_from_slice(&body);
            }
            assert_eq!(egress.len(), expected.len());
            let mut written = Vec::new();
            while egress.has_remaining() {
                let mut slices = [IoSlice::new(&[]); 2];
                let filled = egress.chunks_vectored(&mut slices);
                let bytes: Vec<u8> = slices[..filled].iter().flat_map(|s| s.iter().copied()).collect();
                let n = bytes.len().min(step);
                written.extend_from_slice(&bytes[..n]);
                egress.advance(n);
            }
            assert_eq!(written, expected);
            assert!(egress.is_empty());
        }
    }
}
