//! The hot path: publishes and deliveries, read without owning anything and written straight into the output.

use bytes::{BufMut, Bytes, BytesMut};

use super::content::BASIC_CLASS;
use super::egress::FrameSink;
use super::frame::{FRAME_END, FRAME_OVERHEAD, FrameKind, put_frame_head};
use super::method::{BasicAck, BasicDeliver, BasicGetOk, BasicPublish, BasicReturn};
use super::octets::{MalformedArguments, Octets, put_short};
use super::reply::{ProtocolError, ReplyCode};

/// `basic.publish`, borrowed from the frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PublishRef<'a> {
    /// Where to.
    pub exchange: &'a str,
    /// The routing key.
    pub routing_key: &'a str,
    /// Whether to return it if no queue takes it.
    pub mandatory: bool,
    /// Not supported by any server of this family.
    pub immediate: bool,
}

/// `basic.deliver`, borrowed from the frame's payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DeliverRef<'a> {
    /// The consumer.
    pub consumer_tag: &'a str,
    /// The number to acknowledge.
    pub delivery_tag: u64,
    /// Whether it may have been delivered before.
    pub redelivered: bool,
    /// Where it was published.
    pub exchange: &'a str,
    /// The key it was published with.
    pub routing_key: &'a str,
}

/// Class and method id of a method frame's payload.
pub fn method_ids(payload: &[u8]) -> Option<(u16, u16)> {
    let mut octets = Octets::new(payload);
    Some((octets.u16()?, octets.u16()?))
}

fn arguments(payload: &[u8]) -> Result<Octets<'_>, MalformedArguments> {
    payload.get(4..).map(Octets::new).ok_or(MalformedArguments::Truncated)
}

fn end<T>(octets: &Octets<'_>, value: T) -> Result<T, MalformedArguments> {
    if octets.is_empty() { Ok(value) } else { Err(MalformedArguments::Trailing) }
}

impl<'a> PublishRef<'a> {
    /// Reads a method frame's payload whose ids are those of `basic.publish`.
    pub fn decode(payload: &'a [u8]) -> Result<Self, ProtocolError> {
        Self::read(payload).map_err(|e| ProtocolError::from(e).in_method(BasicPublish::IDS))
    }

    fn read(payload: &'a [u8]) -> Result<Self, MalformedArguments> {
        let mut octets = arguments(payload)?;
        octets.u16().ok_or(MalformedArguments::Truncated)?;
        let exchange = octets.short_str()?;
        let routing_key = octets.short_str()?;
        let bits = octets.u8().ok_or(MalformedArguments::Truncated)?;
        let publish = PublishRef { exchange, routing_key, mandatory: bits & 1 != 0, immediate: bits & 2 != 0 };
        end(&octets, publish)
    }
}

impl<'a> DeliverRef<'a> {
    /// Reads a method frame's payload whose ids are those of `basic.deliver`.
    pub fn decode(payload: &'a [u8]) -> Result<Self, ProtocolError> {
        Self::read(payload).map_err(|e| ProtocolError::from(e).in_method(BasicDeliver::IDS))
    }

    fn read(payload: &'a [u8]) -> Result<Self, MalformedArguments> {
        let mut octets = arguments(payload)?;
        let consumer_tag = octets.short_str()?;
        let delivery_tag = octets.u64().ok_or(MalformedArguments::Truncated)?;
        let redelivered = octets.u8().ok_or(MalformedArguments::Truncated)? & 1 != 0;
        let exchange = octets.short_str()?;
        let routing_key = octets.short_str()?;
        end(&octets, DeliverRef { consumer_tag, delivery_tag, redelivered, exchange, routing_key })
    }
}

/// A content's last part for the writers below: who it goes to and what it consists of.
pub struct OutgoingContent<'a, P: FnOnce(&mut BytesMut)> {
    /// The channel.
    pub channel: u16,
    /// The negotiated frame_max; 0 is no limit.
    pub frame_max: u32,
    /// Writes the property block: verbatim or with headers added.
    pub properties: P,
    /// The body.
    pub body: &'a Bytes,
}

/// A property block that is replayed as it was received.
pub fn verbatim(block: &[u8]) -> impl FnOnce(&mut BytesMut) + '_ {
    move |out| out.extend_from_slice(block)
}

/// Appends `basic.deliver` and its content.
pub fn write_deliver<P: FnOnce(&mut BytesMut)>(
    sink: &mut impl FrameSink,
    deliver: DeliverRef<'_>,
    content: OutgoingContent<'_, P>,
) {
    let out = sink.buffer();
    let DeliverRef { consumer_tag, delivery_tag, redelivered, exchange, routing_key } = deliver;
    // Grow at most once for the method, header and a small body.
    out.reserve(consumer_tag.len() + exchange.len() + routing_key.len() + 128);
    write_method(out, content.channel, BasicDeliver::IDS, |out| {
        put_short(out, consumer_tag.as_bytes());
        out.put_u64(delivery_tag);
        out.put_u8(redelivered.into());
        put_short(out, exchange.as_bytes());
        put_short(out, routing_key.as_bytes());
    });
    write_content(sink, content);
}

/// Appends `basic.get-ok` and its content.
pub fn write_get_ok<P: FnOnce(&mut BytesMut)>(
    sink: &mut impl FrameSink,
    method: &BasicGetOk,
    content: OutgoingContent<'_, P>,
) {
    method.write_frame(content.channel, sink.buffer());
    write_content(sink, content);
}

/// Appends `basic.return` (312, `NO_ROUTE`) and the content that comes back.
pub fn write_return<P: FnOnce(&mut BytesMut)>(
    sink: &mut impl FrameSink,
    exchange: &str,
    routing_key: &str,
    content: OutgoingContent<'_, P>,
) {
    write_method(sink.buffer(), content.channel, BasicReturn::IDS, |out| {
        out.put_u16(ReplyCode::NoRoute.code());
        put_short(out, ReplyCode::NoRoute.name().as_bytes());
        put_short(out, exchange.as_bytes());
        put_short(out, routing_key.as_bytes());
    });
    write_content(sink, content);
}

/// Appends `basic.publish` and its content.
pub fn write_publish<P: FnOnce(&mut BytesMut)>(
    sink: &mut impl FrameSink,
    publish: PublishRef<'_>,
    content: OutgoingContent<'_, P>,
) {
    write_method(sink.buffer(), content.channel, BasicPublish::IDS, |out| {
        out.put_u16(0);
        put_short(out, publish.exchange.as_bytes());
        put_short(out, publish.routing_key.as_bytes());
        out.put_u8(u8::from(publish.mandatory) | u8::from(publish.immediate) << 1);
    });
    write_content(sink, content);
}

/// Appends `basic.ack`.
pub fn write_ack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    write_method(out, channel, BasicAck::IDS, |out| {
        out.put_u64(delivery_tag);
        out.put_u8(multiple.into());
    });
}

fn write_method(out: &mut BytesMut, channel: u16, ids: (u16, u16), write: impl FnOnce(&mut BytesMut)) {
    sized_frame(out, FrameKind::Method, channel, |out| {
        out.put_u16(ids.0);
        out.put_u16(ids.1);
        write(out);
    });
}

fn sized_frame(out: &mut BytesMut, kind: FrameKind, channel: u16, write: impl FnOnce(&mut BytesMut)) {
    put_frame_head(out, kind, channel, 0);
    let start = out.len();
    write(out);
    let size = (out.len() - start) as u32;
    out[start - 4..start].copy_from_slice(&size.to_be_bytes());
    out.put_u8(FRAME_END);
}

/// Appends a content's header frame and its body frames.
pub fn write_content<P: FnOnce(&mut BytesMut)>(sink: &mut impl FrameSink, content: OutgoingContent<'_, P>) {
    let OutgoingContent { channel, frame_max, properties, body } = content;
    sized_frame(sink.buffer(), FrameKind::Header, channel, |out| {
        out.put_u16(BASIC_CLASS);
        out.put_u16(0);
        out.put_u64(body.len() as u64);
        properties(out);
    });
    let largest = match frame_max {
        0 => body.len(),
        n => (n as usize).saturating_sub(FRAME_OVERHEAD).max(1),
    };
    let mut at = 0;
    while at < body.len() {
        let end = body.len().min(at + largest);
        put_frame_head(sink.buffer(), FrameKind::Body, channel, end - at);
        if end - at == body.len() {
            sink.put_body(body);
        } else {
            sink.put_body(&body.slice(at..end));
        }
        sink.buffer().put_u8(FRAME_END);
        at = end;
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Assembly, FrameKind, FrameLimits, Method, Properties};
    use super::*;

    #[test]
    fn a_delivery_is_split_by_frame_max_and_reads_back() {
        for (size, frames) in [(0, 2), (1, 3), (8184, 3), (8185, 4), (20_000, 5)] {
            let body = Bytes::from(vec![b'x'; size]);
            let block = Properties::persistent().to_bytes();
            let deliver = DeliverRef {
                consumer_tag: "ctag",
                delivery_tag: 7,
                redelivered: true,
                exchange: "e",
                routing_key: "k",
            };
            let mut out = BytesMut::new();
            let content = OutgoingContent { channel: 5, frame_max: 8192, properties: verbatim(&block), body: &body };
            write_deliver(&mut out, deliver, content);
            let read: Vec<_> = FrameLimits::new(8192).frames(out.freeze()).map(Result::unwrap).collect();
            assert_eq!(read.len(), frames);
            assert_eq!(DeliverRef::decode(&read[0].payload).unwrap(), deliver);
            assert!(matches!(Method::decode(&read[0].payload).unwrap(), Method::BasicDeliver(_)));
            let mut assembly = Assembly::default();
            assembly.begin((), BasicDeliver::IDS);
            let mut whole = None;
            for frame in read.into_iter().skip(1) {
                assert!(whole.is_none());
                assert_ne!(frame.kind, FrameKind::Method);
                whole = assembly.frame(frame).unwrap();
            }
            let whole = whole.unwrap();
            assert_eq!((whole.properties, whole.body), (block, body));
        }
    }

    #[test]
    fn a_publish_reads_the_same_borrowed_and_owned() {
        let publish = PublishRef { exchange: "x", routing_key: "a.b", mandatory: true, immediate: false };
        let mut out = BytesMut::new();
        let content = OutgoingContent {
            channel: 1,
            frame_max: 0,
            properties: verbatim(&[0, 0]),
            body: &Bytes::from_static(b"hi"),
        };
        write_publish(&mut out, publish, content);
        let frame = FrameLimits::new(0).decode(&mut out).unwrap().unwrap();
        assert_eq!(method_ids(&frame.payload), Some(BasicPublish::IDS));
        assert_eq!(PublishRef::decode(&frame.payload).unwrap(), publish);
        match Method::decode(&frame.payload).unwrap() {
            Method::BasicPublish(owned) => {
                assert_eq!(owned.routing_key, "a.b");
                assert!(owned.mandatory && !owned.immediate);
            }
            other => panic!("{other:?}"),
        }
        let truncated = &frame.payload[..frame.payload.len() - 1];
        let error = PublishRef::decode(truncated).unwrap_err();
        assert_eq!((error.code, error.class_id, error.method_id), (ReplyCode::FrameError, 60, 40));
    }
}
