//! The read side of a load connection: one growing buffer, walked frame by frame in place.

use std::io;

use tokio::net::TcpStream;
use warren_proto::amqp091::{FRAME_END, FRAME_OVERHEAD};

/// What is read at once.
const CHUNK: usize = 256 * 1024;
/// A broker's frames are never larger than this; more is a broken stream.
const MAX_FRAME: usize = 16 << 20;
const HEAD: usize = 7;

/// A frame in the buffer: its type octet and payload.
#[derive(Debug, Clone, Copy)]
pub struct RawFrame<'a> {
    /// The type octet.
    pub kind: u8,
    /// The bytes between head and end octet.
    pub payload: &'a [u8],
}

/// Bytes read and not yet walked.
#[derive(Debug)]
pub struct Inbox {
    buffer: Vec<u8>,
    start: usize,
    end: usize,
}

impl Inbox {
    /// An empty inbox.
    pub fn new() -> Self {
        Inbox { buffer: vec![0; CHUNK], start: 0, end: 0 }
    }

    /// Reads what the socket has now. Returns the number of bytes, 0 if there are none.
    pub fn fill(&mut self, stream: &TcpStream) -> io::Result<usize> {
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        } else if self.buffer.len() - self.end < CHUNK / 4 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
            if self.buffer.len() - self.end < CHUNK / 4 {
                self.buffer.resize(self.buffer.len() * 2, 0);
            }
        }
        match stream.try_read(&mut self.buffer[self.end..]) {
            Ok(0) => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the broker closed the connection")),
            Ok(count) => {
                self.end += count;
                Ok(count)
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(0),
            Err(error) => Err(error),
        }
    }

    /// The next whole frame, if there is one.
    pub fn next(&mut self) -> io::Result<Option<RawFrame<'_>>> {
        let bytes = &self.buffer[self.start..self.end];
        let Some(head) = bytes.first_chunk::<HEAD>() else {
            return Ok(None);
        };
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if size > MAX_FRAME {
            return Err(broken("a frame is larger than any negotiated size"));
        }
        let Some(&end) = bytes.get(HEAD + size) else {
            return Ok(None);
        };
        if end != FRAME_END {
            return Err(broken("a frame does not end with 0xce"));
        }
        let at = self.start + HEAD;
        self.start += size + FRAME_OVERHEAD;
        Ok(Some(RawFrame { kind: self.buffer[at - HEAD], payload: &self.buffer[at..at + size] }))
    }
}

fn broken(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text)
}
