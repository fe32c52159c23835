//! Publishing without encoding: the frames of a message are laid out once per queue, and each message is a copy of
//! them with its timestamp, number and a body that does not compress to nothing.

use bytes::BytesMut;
use warren_proto::amqp091::{BasicPublish, FRAME_END, FRAME_OVERHEAD, FrameKind, ShortStr};

use super::connection::CHANNEL;

/// A message's first bytes: when it was meant to be sent (8 bytes), then its number (4 bytes).
pub const STAMP: usize = 12;
/// Body bytes come from a pool of this size, each message from another place, so that storage which compresses
/// neighbouring messages gains nothing.
const POOL: usize = 1 << 20;

/// The pool of body bytes that all queues' messages are cut from.
#[derive(Debug)]
pub struct Bodies {
    pool: Vec<u8>,
    size: usize,
}

impl Bodies {
    /// Bodies of `size` bytes.
    pub fn new(size: usize) -> Self {
        let mut state = 0x9e37_79b9_7f4a_7c15_u64;
        let pool = (0..POOL + size)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        Bodies { pool, size }
    }

    /// The body of message `number`.
    fn body(&self, number: u64) -> &[u8] {
        let at = (number.wrapping_mul(self.size as u64 + 61) % POOL as u64) as usize;
        &self.pool[at..at + self.size]
    }
}

/// The frames of a message to one queue, up to the body.
#[derive(Debug)]
pub struct Publication {
    head: Vec<u8>,
    /// Largest body part of one frame.
    part: usize,
}

impl Publication {
    /// Lays out messages of `size` bytes to `queue`, through the default exchange.
    pub fn new(queue: &str, size: usize, persistent: bool, priority: Option<u8>, frame_max: u32) -> Self {
        let mut head = BytesMut::new();
        BasicPublish { routing_key: ShortStr::truncated(queue), ..Default::default() }.write_frame(CHANNEL, &mut head);
        let mut head = head.to_vec();
        let delivery_mode = if persistent { 2 } else { 1 };
        let mut header = Vec::with_capacity(16);
        header.extend_from_slice(&60u16.to_be_bytes());
        header.extend_from_slice(&0u16.to_be_bytes());
        header.extend_from_slice(&(size as u64).to_be_bytes());
        let flags = if priority.is_some() { 0x1800u16 } else { 0x1000 };
        header.extend_from_slice(&flags.to_be_bytes());
        header.push(delivery_mode);
        header.extend(priority);
        frame_head(&mut head, FrameKind::Header, header.len());
        head.extend_from_slice(&header);
        head.push(FRAME_END);
        Publication { head, part: frame_max as usize - FRAME_OVERHEAD }
    }

    /// Appends message `number`, meant to be sent at `due`.
    pub fn write(&self, out: &mut Vec<u8>, bodies: &Bodies, number: u64, due: u64) {
        out.extend_from_slice(&self.head);
        let body = bodies.body(number);
        let mut first = true;
        for part in body.chunks(self.part) {
            frame_head(out, FrameKind::Body, part.len());
            let at = out.len();
            out.extend_from_slice(part);
            if first && part.len() >= STAMP {
                out[at..at + 8].copy_from_slice(&due.to_be_bytes());
                out[at + 8..at + STAMP].copy_from_slice(&(number as u32).to_be_bytes());
            }
            first = false;
            out.push(FRAME_END);
        }
    }
}

fn frame_head(out: &mut Vec<u8>, kind: FrameKind, size: usize) {
    let mut head = [kind.octet(), 0, 0, 0, 0, 0, 0];
    head[1..3].copy_from_slice(&CHANNEL.to_be_bytes());
    head[3..7].copy_from_slice(&(size as u32).to_be_bytes());
    out.extend_from_slice(&head);
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use warren_proto::amqp091::{ContentHeader, FrameLimits, Method, PropertiesRef};

    use super::*;

    fn frames(size: usize, frame_max: u32) -> Vec<(FrameKind, Bytes)> {
        let publication = Publication::new("q", size, true, Some(9), frame_max);
        let mut out = Vec::new();
        publication.write(&mut out, &Bodies::new(size), 7, 0x0102_0304_0506_0708);
        FrameLimits::new(frame_max)
            .frames(Bytes::from(out))
            .map(|frame| {
                let frame = frame.unwrap();
                (frame.kind, frame.payload)
            })
            .collect()
    }

    #[test]
    fn a_publication_is_what_the_codec_reads() {
        let frames = frames(12, 8192);
        assert_eq!(frames.len(), 3);
        let Method::BasicPublish(publish) = Method::decode(&frames[0].1).unwrap() else { panic!() };
        assert_eq!(publish.routing_key.as_str(), "q");
        let header = ContentHeader::decode(&frames[1].1).unwrap();
        assert_eq!(header.body_size, 12);
        let properties = PropertiesRef::parse(&header.properties).unwrap();
        assert_eq!((properties.priority(), properties.delivery_mode()), (Some(9), Some(2)));
        assert_eq!(&frames[2].1[..], [1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 7]);
    }

    #[test]
    fn large_bodies_are_split_and_empty_ones_have_no_frame() {
        let parts: Vec<usize> = frames(20_000, 8192).iter().skip(2).map(|(_, part)| part.len()).collect();
        assert_eq!(parts, [8184, 8184, 3632]);
        assert_eq!(frames(0, 8192).len(), 2);
    }
}
