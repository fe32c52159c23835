//! Frames: the envelope of everything after the protocol header.
//!
//! A reader collects bytes in one growing buffer. [`FrameLimits::whole_frames`] says how much of it is whole frames;
//! that part is split off, frozen and walked with [`Frames`], whose payloads are slices of it.

use bytes::{BufMut, Bytes, BytesMut};

use super::reply::{ProtocolError, ReplyCode};

/// The octet that ends every frame.
pub const FRAME_END: u8 = 0xCE;
/// Bytes of a frame around its payload.
pub const FRAME_OVERHEAD: usize = 8;
/// The smallest frame_max that may be negotiated, and the limit until negotiation is over.
pub const FRAME_MIN_SIZE: u32 = 8192;
/// Where no limit was negotiated (frame_max 0), a payload still cannot exceed the largest body.
const UNLIMITED_PAYLOAD: usize = super::content::MAX_BODY_SIZE as usize;
/// Bytes by which RabbitMQ lets a frame exceed frame_max.
const TOLERANCE: usize = 8;
const HEAD: usize = 7;

/// What a frame carries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FrameKind {
    /// A method.
    Method,
    /// A content's header.
    Header,
    /// A part of a content's body.
    Body,
    /// A sign of life.
    Heartbeat,
}

impl FrameKind {
    /// The octet on the wire.
    pub const fn octet(self) -> u8 {
        match self {
            FrameKind::Method => 1,
            FrameKind::Header => 2,
            FrameKind::Body => 3,
            FrameKind::Heartbeat => 8,
        }
    }

    /// The kind for an octet.
    pub const fn from_octet(octet: u8) -> Option<Self> {
        match octet {
            1 => Some(FrameKind::Method),
            2 => Some(FrameKind::Header),
            3 => Some(FrameKind::Body),
            8 => Some(FrameKind::Heartbeat),
            _ => None,
        }
    }
}

/// A frame; its payload shares the read buffer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// What it carries.
    pub kind: FrameKind,
    /// The channel's number; 0 is the connection itself.
    pub channel: u16,
    /// The bytes between the frame's head and its end octet.
    pub payload: Bytes,
}

/// How large a frame may be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FrameLimits {
    max_payload: usize,
}

/// One frame's extent at the start of some bytes.
enum Extent {
    /// Not all there yet.
    Partial,
    /// This many bytes, of which the payload is what lies between head and end octet.
    Whole(usize),
}

impl FrameLimits {
    /// Limits for a negotiated frame_max; 0 means that none was agreed.
    pub fn new(frame_max: u32) -> Self {
        let max_payload = match frame_max {
            0 => UNLIMITED_PAYLOAD,
            n => (n as usize).saturating_sub(FRAME_OVERHEAD) + TOLERANCE,
        };
        FrameLimits { max_payload }
    }

    /// Length of the whole frames at the start of `bytes`. Stops before a frame that is not all there; counts one
    /// that is broken in, as far as it was received, so that [`Frames`] reports it after those before it.
    pub fn whole_frames(&self, bytes: &[u8]) -> usize {
        let mut at = 0;
        loop {
            match self.extent(&bytes[at..]) {
                Ok(Extent::Whole(len)) => at += len,
                Ok(Extent::Partial) => return at,
                Err(_) => return bytes.len(),
            }
        }
    }

    /// Takes the first frame off `buffer`, if all of it is there.
    pub fn decode(&self, buffer: &mut BytesMut) -> Result<Option<Frame>, ProtocolError> {
        match self.extent(buffer)? {
            Extent::Partial => Ok(None),
            Extent::Whole(len) => parse(&buffer.split_to(len).freeze(), 0, len).map(Some),
        }
    }

    /// Walks the frames in `bytes`, which [`FrameLimits::whole_frames`] has measured.
    pub fn frames(&self, bytes: Bytes) -> Frames {
        Frames { limits: *self, bytes, at: 0 }
    }

    fn extent(&self, bytes: &[u8]) -> Result<Extent, ProtocolError> {
        let Some(head) = bytes.first_chunk::<HEAD>() else {
            // An unknown type is refused without waiting for the rest of a head.
            return match bytes.first() {
                Some(octet) => kind(*octet).map(|_| Extent::Partial),
                None => Ok(Extent::Partial),
            };
        };
        kind(head[0])?;
        let size = u32::from_be_bytes([head[3], head[4], head[5], head[6]]) as usize;
        if size > self.max_payload {
            let text = format!("frame of {size} bytes is larger than the negotiated maximum");
            return Err(ProtocolError::new(ReplyCode::FrameError, text));
        }
        let len = HEAD + size + 1;
        match bytes.get(len - 1) {
            None => Ok(Extent::Partial),
            Some(&FRAME_END) => Ok(Extent::Whole(len)),
            Some(other) => {
                let text = format!("frame ends with {other:#04x} instead of 0xce");
                Err(ProtocolError::new(ReplyCode::FrameError, text))
            }
        }
    }
}

fn kind(octet: u8) -> Result<FrameKind, ProtocolError> {
    FrameKind::from_octet(octet)
        .ok_or_else(|| ProtocolError::new(ReplyCode::FrameError, format!("unknown frame type {octet}")))
}

fn parse(bytes: &Bytes, at: usize, len: usize) -> Result<Frame, ProtocolError> {
    let head = &bytes[at..at + HEAD];
    let frame = Frame {
        kind: kind(head[0])?,
        channel: u16::from_be_bytes([head[1], head[2]]),
        payload: bytes.slice(at + HEAD..at + len - 1),
    };
    match (frame.kind, frame.channel) {
        (FrameKind::Heartbeat, 1..) => {
            Err(ProtocolError::new(ReplyCode::UnexpectedFrame, "heartbeat on a channel other than 0"))
        }
        (FrameKind::Header | FrameKind::Body, 0) => {
            Err(ProtocolError::new(ReplyCode::UnexpectedFrame, "content frame on channel 0"))
        }
        _ => Ok(frame),
    }
}

/// The frames of one read, in order. After an error there are no more.
#[derive(Debug)]
pub struct Frames {
    limits: FrameLimits,
    bytes: Bytes,
    at: usize,
}

impl Iterator for Frames {
    type Item = Result<Frame, ProtocolError>;

    fn next(&mut self) -> Option<Self::Item> {
        let frame = match self.limits.extent(&self.bytes[self.at..]) {
            Ok(Extent::Partial) => return None,
            Ok(Extent::Whole(len)) => {
                let frame = parse(&self.bytes, self.at, len);
                self.at += len;
                frame
            }
            Err(error) => Err(error),
        };
        if frame.is_err() {
            self.at = self.bytes.len();
        }
        Some(frame)
    }
}

/// Appends a heartbeat frame.
pub fn write_heartbeat(out: &mut BytesMut) {
    out.extend_from_slice(&[FrameKind::Heartbeat.octet(), 0, 0, 0, 0, 0, 0, FRAME_END]);
}

/// Appends a frame's head, for a payload of `size` bytes that follows.
pub(crate) fn put_frame_head(out: &mut BytesMut, kind: FrameKind, channel: u16, size: usize) {
    out.put_u8(kind.octet());
    out.put_u16(channel);
    out.put_u32(size as u32);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(kind: u8, channel: u16, payload: &[u8], end: u8) -> Vec<u8> {
        let mut out = vec![kind];
        out.extend(channel.to_be_bytes());
        out.extend((payload.len() as u32).to_be_bytes());
        out.extend(payload);
        out.push(end);
        out
    }

    fn code(bytes: Vec<u8>) -> ReplyCode {
        let limits = FrameLimits::new(FRAME_MIN_SIZE);
        let measured = limits.whole_frames(&bytes);
        let bytes = Bytes::from(bytes).slice(..measured);
        limits.frames(bytes).find_map(Result::err).expect("an error").code
    }

    #[test]
    fn frames_of_one_read_share_its_buffer_and_the_rest_stays() {
        let mut bytes = frame(1, 3, b"method", FRAME_END);
        bytes.extend(frame(3, 3, b"body", FRAME_END));
        let whole = bytes.len();
        bytes.extend(&frame(3, 3, b"later", FRAME_END)[..9]);
        let limits = FrameLimits::new(FRAME_MIN_SIZE);
        assert_eq!(limits.whole_frames(&bytes), whole);
        let frames: Vec<_> = limits.frames(Bytes::from(bytes).slice(..whole)).map(Result::unwrap).collect();
        assert_eq!(frames.len(), 2);
        assert_eq!((frames[1].kind, frames[1].channel), (FrameKind::Body, 3));
        assert_eq!(frames[1].payload, "body");
    }

    #[test]
    fn an_oversized_frame_is_refused_by_its_head_alone() {
        let limits = FrameLimits::new(FRAME_MIN_SIZE);
        let fits = frame(3, 1, &[0; FRAME_MIN_SIZE as usize], FRAME_END);
        assert_eq!(limits.whole_frames(&fits), fits.len());
        assert!(limits.decode(&mut BytesMut::from(&fits[..])).unwrap().is_some());
        let head = [3, 0, 1, 0, 0, 0x20, 1];
        assert_eq!(code(head.to_vec()), ReplyCode::FrameError);
    }

    #[test]
    fn a_wrong_end_octet_and_an_unknown_type_are_frame_errors() {
        assert_eq!(code(frame(1, 0, b"x", 0)), ReplyCode::FrameError);
        assert_eq!(code(frame(9, 0, b"x", FRAME_END)), ReplyCode::FrameError);
        assert_eq!(code(b"G".to_vec()), ReplyCode::FrameError);
    }

    #[test]
    fn heartbeats_belong_to_channel_zero_and_content_to_the_others() {
        assert_eq!(code(frame(8, 1, b"", FRAME_END)), ReplyCode::UnexpectedFrame);
        assert_eq!(code(frame(2, 0, b"", FRAME_END)), ReplyCode::UnexpectedFrame);
        assert_eq!(code(frame(3, 0, b"", FRAME_END)), ReplyCode::UnexpectedFrame);
    }

    #[test]
    fn frames_before_a_broken_one_are_still_read() {
        let mut bytes = frame(1, 0, b"good", FRAME_END);
        bytes.extend(frame(1, 0, b"bad", 0));
        let limits = FrameLimits::new(FRAME_MIN_SIZE);
        assert_eq!(limits.whole_frames(&bytes), bytes.len());
        let mut frames = limits.frames(Bytes::from(bytes));
        assert_eq!(frames.next().unwrap().unwrap().payload, "good");
        assert!(frames.next().unwrap().is_err());
        assert!(frames.next().is_none());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(bytes: Vec<u8>) {
            let limits = FrameLimits::new(FRAME_MIN_SIZE);
            let measured = limits.whole_frames(&bytes);
            let mut buffer = BytesMut::from(&bytes[..]);
            while let Ok(Some(_)) = limits.decode(&mut buffer) {}
            limits.frames(Bytes::from(bytes).slice(..measured)).for_each(drop);
        }
    }
}
