//! Contents: a method, a header with properties, and a body in frames, put together per channel.

use bytes::{Buf, Bytes, BytesMut};

use super::frame::Frame;
use super::octets::Octets;
use super::properties::PropertiesRef;
use super::reply::{ProtocolError, ReplyCode};

/// The largest body that any server of this family takes; a header that announces more is refused at once.
pub const MAX_BODY_SIZE: u64 = 512 << 20;
/// The only class whose methods carry content.
pub const BASIC_CLASS: u16 = 60;
/// Bytes of a header before its properties.
const HEADER_FIXED: usize = 2 + 2 + 8;
/// Memory set aside for a body of several frames before its bytes arrive, at most.
const BODY_RESERVE: u64 = 1 << 20;

/// A content header's fixed part, and the property block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContentHeader {
    /// Bytes of body that follow.
    pub body_size: u64,
    /// Flags and properties as on the wire, checked.
    pub properties: Bytes,
}

impl ContentHeader {
    /// Reads a header frame's payload.
    pub fn decode(payload: &Bytes) -> Result<Self, ProtocolError> {
        Self::decode_after(payload.clone(), <[u8]>::is_empty)
    }

    /// Reads a header frame's payload; `is_known` tells property blocks that were checked before, often those of the last
    /// messages: they are not checked again.
    pub fn decode_after(mut payload: Bytes, is_known: impl FnOnce(&[u8]) -> bool) -> Result<Self, ProtocolError> {
        let mut octets = Octets::new(&payload);
        let (Some(class), Some(weight), Some(body_size)) = (octets.u16(), octets.u16(), octets.u64()) else {
            return Err(ProtocolError::new(ReplyCode::FrameError, "content header is truncated"));
        };
        if class != BASIC_CLASS {
            let text = format!("content header of class {class}, expected {BASIC_CLASS}");
            return Err(ProtocolError::new(ReplyCode::UnexpectedFrame, text));
        }
        if weight != 0 {
            return Err(ProtocolError::new(ReplyCode::UnexpectedFrame, "content header with a weight"));
        }
        if body_size > MAX_BODY_SIZE {
            let text = format!("body of {body_size} bytes is larger than {MAX_BODY_SIZE}");
            return Err(ProtocolError::new(ReplyCode::FrameError, text));
        }
        payload.advance(HEADER_FIXED);
        if !is_known(&payload) {
            PropertiesRef::parse(&payload)?;
        }
        Ok(ContentHeader { body_size, properties: payload })
    }
}

/// A whole content.
#[derive(Debug, Clone, PartialEq)]
pub struct Content<M> {
    /// What was known when the method arrived.
    pub method: M,
    /// Flags and properties as on the wire, checked.
    pub properties: Bytes,
    /// The body: a slice of the read buffer where it came in one frame.
    pub body: Bytes,
}

#[derive(Debug)]
enum State<M> {
    /// Between contents.
    Method,
    Header(M),
    Body {
        method: M,
        properties: Bytes,
        body: BytesMut,
        missing: usize,
    },
}

/// Puts one channel's contents together. `M` is what the method's reader wants to keep until the body is there.
#[derive(Debug)]
pub struct Assembly<M> {
    ids: (u16, u16),
    state: State<M>,
}

impl<M> Default for Assembly<M> {
    fn default() -> Self {
        Assembly { ids: (0, 0), state: State::Method }
    }
}

impl<M> Assembly<M> {
    /// Whether a content has begun and is not complete.
    pub fn is_pending(&self) -> bool {
        !matches!(self.state, State::Method)
    }

    /// Called for each method: an error if a header or body is due instead.
    pub fn expect_method(&self) -> Result<(), ProtocolError> {
        match self.state {
            State::Method => Ok(()),
            State::Header(_) => Err(self.unexpected("a method where a content header is due")),
            State::Body { .. } => Err(self.unexpected("a method where a content body is due")),
        }
    }

    /// Begins a content after its method.
    pub fn begin(&mut self, method: M, ids: (u16, u16)) {
        debug_assert!(!self.is_pending());
        self.ids = ids;
        self.state = State::Header(method);
    }

    /// Forgets what was begun.
    pub fn abandon(&mut self) {
        self.state = State::Method;
    }

    /// Takes the header. A content with an empty body is complete with it.
    pub fn header(&mut self, header: ContentHeader) -> Result<Option<Content<M>>, ProtocolError> {
        let method = match std::mem::replace(&mut self.state, State::Method) {
            State::Header(method) => method,
            other => {
                self.state = other;
                return Err(self.unexpected("a content header out of turn"));
            }
        };
        if header.body_size == 0 {
            return Ok(Some(Content { method, properties: header.properties, body: Bytes::new() }));
        }
        self.state = State::Body {
            method,
            properties: header.properties,
            body: BytesMut::new(),
            missing: header.body_size as usize,
        };
        Ok(None)
    }

    /// Takes a part of the body.
    pub fn body(&mut self, part: Bytes) -> Result<Option<Content<M>>, ProtocolError> {
        let State::Body { body, missing, .. } = &mut self.state else {
            return Err(self.unexpected("a content body out of turn"));
        };
        if part.len() > *missing {
            let text = format!("body frame of {} bytes where {missing} are left", part.len());
            return Err(ProtocolError::new(ReplyCode::FrameError, text).in_method(self.ids));
        }
        let complete_in_one = body.is_empty() && part.len() == *missing;
        if !complete_in_one {
            if body.is_empty() {
                body.reserve((*missing as u64).min(BODY_RESERVE) as usize);
            }
            body.extend_from_slice(&part);
            *missing -= part.len();
            if *missing > 0 {
                return Ok(None);
            }
        }
        match std::mem::replace(&mut self.state, State::Method) {
            State::Body { method, properties, body, .. } => {
                let body = if complete_in_one { part } else { body.freeze() };
                Ok(Some(Content { method, properties, body }))
            }
            State::Method | State::Header(_) => Ok(None),
        }
    }

    /// Takes a header or body frame's payload; see [`Assembly::header`] and [`Assembly::body`]. Other frames are
    /// out of turn.
    pub fn frame(&mut self, frame: Frame) -> Result<Option<Content<M>>, ProtocolError> {
        match frame.kind {
            super::FrameKind::Header => {
                let header = ContentHeader::decode(&frame.payload).map_err(|e| self.blame(e))?;
                self.header(header)
            }
            super::FrameKind::Body => self.body(frame.payload),
            super::FrameKind::Method | super::FrameKind::Heartbeat => {
                Err(self.unexpected("a frame without content where content is due"))
            }
        }
    }

    /// Adds the pending method's ids to an error.
    pub fn blame(&self, error: ProtocolError) -> ProtocolError {
        if self.is_pending() { error.in_method(self.ids) } else { error }
    }

    fn unexpected(&self, text: &'static str) -> ProtocolError {
        self.blame(ProtocolError::new(ReplyCode::UnexpectedFrame, text))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::amqp091::Properties;
    use bytes::BufMut;

    const PUBLISH: (u16, u16) = (60, 40);

    fn header(class: u16, weight: u16, size: u64, properties: &[u8]) -> Bytes {
        let mut out = BytesMut::new();
        out.put_u16(class);
        out.put_u16(weight);
        out.put_u64(size);
        out.extend_from_slice(properties);
        out.freeze()
    }

    fn ok_header(size: u64) -> ContentHeader {
        ContentHeader::decode(&header(60, 0, size, &Properties::persistent().to_bytes())).unwrap()
    }

    fn begun() -> Assembly<&'static str> {
        let mut assembly = Assembly::default();
        assembly.begin("m", PUBLISH);
        assembly
    }

    fn fault(error: ProtocolError) -> (ReplyCode, u16, u16) {
        (error.code, error.class_id, error.method_id)
    }

    #[test]
    fn a_body_in_one_frame_is_not_copied() {
        let mut assembly = begun();
        assert!(assembly.header(ok_header(4)).unwrap().is_none());
        let part = Bytes::from_static(b"body");
        let content = assembly.body(part.clone()).unwrap().unwrap();
        assert_eq!(content.body.as_ptr(), part.as_ptr());
        assert!(!assembly.is_pending());
    }

    #[test]
    fn a_body_in_many_frames_is_joined_and_empty_frames_do_no_harm() {
        let mut assembly = begun();
        assembly.header(ok_header(5)).unwrap();
        for part in ["", "ab", "", "c"] {
            assert!(assembly.body(Bytes::from(part)).unwrap().is_none());
        }
        assert_eq!(assembly.body(Bytes::from("de")).unwrap().unwrap().body, "abcde");
    }

    #[test]
    fn an_empty_body_needs_no_body_frame() {
        assert_eq!(begun().header(ok_header(0)).unwrap().unwrap().body, "");
    }

    #[test]
    fn frames_out_of_turn_name_the_pending_method() {
        let mut idle = Assembly::<()>::default();
        assert_eq!(fault(idle.header(ok_header(1)).unwrap_err()), (ReplyCode::UnexpectedFrame, 0, 0));
        assert_eq!(fault(idle.body(Bytes::new()).unwrap_err()), (ReplyCode::UnexpectedFrame, 0, 0));
        let mut assembly = begun();
        assert_eq!(fault(assembly.expect_method().unwrap_err()), (ReplyCode::UnexpectedFrame, 60, 40));
        assert_eq!(fault(assembly.body(Bytes::new()).unwrap_err()), (ReplyCode::UnexpectedFrame, 60, 40));
        assembly.header(ok_header(1)).unwrap();
        assert_eq!(fault(assembly.header(ok_header(1)).unwrap_err()), (ReplyCode::UnexpectedFrame, 60, 40));
        assert_eq!(fault(assembly.expect_method().unwrap_err()), (ReplyCode::UnexpectedFrame, 60, 40));
    }

    #[test]
    fn a_body_frame_longer_than_the_rest_is_a_frame_error() {
        let mut assembly = begun();
        assembly.header(ok_header(1)).unwrap();
        assert_eq!(fault(assembly.body(Bytes::from("ab")).unwrap_err()), (ReplyCode::FrameError, 60, 40));
    }

    #[test]
    fn headers_of_other_classes_with_weight_or_huge_bodies_are_refused() {
        let code = |payload| ContentHeader::decode(&payload).unwrap_err().code;
        assert_eq!(code(header(50, 0, 0, &[0, 0])), ReplyCode::UnexpectedFrame);
        assert_eq!(code(header(60, 1, 0, &[0, 0])), ReplyCode::UnexpectedFrame);
        assert_eq!(code(header(60, 0, MAX_BODY_SIZE + 1, &[0, 0])), ReplyCode::FrameError);
        assert_eq!(code(header(60, 0, 0, &[0])), ReplyCode::FrameError);
        assert_eq!(code(header(60, 0, 0, &[0, 2])), ReplyCode::FrameError);
        assert_eq!(code(header(60, 0, 0, &[0x80, 0, 1, 0xff])), ReplyCode::FrameError);
        assert_eq!(code(header(60, 0, 0, &[0x20, 0, 0, 0, 0, 3, 1, b'a', b'?'])), ReplyCode::SyntaxError);
        assert_eq!(code(Bytes::from_static(&[0, 60])), ReplyCode::FrameError);
    }
}
