//! Direct reply-to: answers that go straight to a channel, past every queue.
//!
//! A channel that consumes from `amq.rabbitmq.reply-to` gets an address made of its session's identity and a secret.
//! Whoever publishes to that address on any node sends the message as an event to that session; the secret proves that
//! the address was given out by the consumer that is still there. Nothing is stored, and what comes too late vanishes.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use bytes::{BufMut, Bytes, BytesMut};
use warren_broker::queue::protocol::{Body, Delivery, QueueEvent, ToSession};
use warren_proto::amqp091::{ProtocolError, ReplyCode, ShortStr};
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_proto::message::Message;

use super::{Channel, Context};

/// The pseudo-queue, and the start of every address.
pub const REPLY_TO: &str = "amq.rabbitmq.reply-to";
/// Events that come from no queue: no group has this id.
pub const NO_QUEUE: GroupId = GroupId(0);
const SECRET: usize = 16;

/// A channel's consumer of direct replies.
#[derive(Debug)]
pub struct ReplyConsumer {
    tag: ShortStr,
    secret: Bytes,
    /// What `reply-to` is rewritten to.
    address: String,
}

/// Where a direct reply goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReplyAddress {
    session: SessionRef,
    secret: Bytes,
}

impl ReplyAddress {
    fn encode(&self) -> String {
        let mut opaque = BytesMut::with_capacity(24 + SECRET);
        opaque.put_u64(self.session.node.0);
        opaque.put_u64(self.session.incarnation);
        opaque.put_u64(self.session.id);
        opaque.extend_from_slice(&self.secret);
        format!("{REPLY_TO}.{}", URL_SAFE_NO_PAD.encode(opaque))
    }

    /// Reads an address; `None` for every other name.
    pub fn decode(name: &[u8]) -> Option<Self> {
        let opaque = name.strip_prefix(REPLY_TO.as_bytes())?.strip_prefix(b".")?;
        let opaque = URL_SAFE_NO_PAD.decode(opaque).ok()?;
        let number = |at: usize| opaque.get(at..at + 8).and_then(|b| b.try_into().ok()).map(u64::from_be_bytes);
        let session = SessionRef { node: NodeId(number(0)?), incarnation: number(8)?, id: number(16)? };
        let secret = opaque.get(24..).filter(|secret| secret.len() == SECRET)?;
        Some(ReplyAddress { session, secret: Bytes::copy_from_slice(secret) })
    }

    /// Whether somebody may be there: certain for this node, a guess for others.
    pub fn is_alive(&self, context: &Context) -> bool {
        if self.session.node == context.broker.me() {
            return context.broker.sessions().contains(self.session);
        }
        context.broker.links().is_up(self.session.node)
    }

    /// Sends a message there.
    pub fn send(self, message: &Message, context: &Context) {
        let mut container = BytesMut::with_capacity(message.encoded_len());
        message.encode(&mut container);
        let delivery =
            Delivery { msg_id: 0, acquired_count: 0, delivery_count: 0, body: Body::Here(container.freeze()) };
        let event =
            QueueEvent::Deliver { tag: self.secret, key: Reference::default(), messages: vec![delivery], again: false };
        let leader = context.broker.me();
        context.broker.links().to_session(ToSession { session: self.session, group: NO_QUEUE, leader, event });
    }
}

impl Channel {
    /// Starts the channel's consumer of direct replies.
    pub(super) fn consume_replies(&mut self, tag: ShortStr, no_ack: bool) -> Result<(), ProtocolError> {
        let refused = |text: &'static str| Err(ProtocolError::new(ReplyCode::PreconditionFailed, text));
        if !no_ack {
            return refused("reply consumer cannot acknowledge");
        }
        if self.replies.is_some() {
            return refused("reply consumer already set");
        }
        let mut secret = [0; SECRET];
        getrandom::fill(&mut secret)
            .map_err(|e| ProtocolError::new(ReplyCode::InternalError, format!("no random numbers: {e}")))?;
        let secret = Bytes::copy_from_slice(&secret);
        let address = ReplyAddress { session: self.session.id(), secret: secret.clone() }.encode();
        self.replies = Some(ReplyConsumer { tag, secret, address });
        Ok(())
    }

    /// Whether that is the tag of the consumer of direct replies.
    pub(super) fn is_reply_consumer(&self, tag: &[u8]) -> bool {
        self.replies.as_ref().is_some_and(|replies| replies.tag.as_bytes() == tag)
    }

    /// What `reply-to` is rewritten to, if there is a consumer.
    pub(super) fn reply_address(&self) -> Option<&str> {
        self.replies.as_ref().map(|replies| replies.address.as_str())
    }

    /// Takes an event that came from no queue: the consumer's tag and the messages, if it is meant for it.
    pub(super) fn direct_replies(&self, event: QueueEvent) -> Option<(Bytes, Vec<Delivery>)> {
        match (event, &self.replies) {
            (QueueEvent::Deliver { tag, messages, .. }, Some(replies)) if tag == replies.secret => {
                Some((replies.tag.clone().into_bytes(), messages))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_reads_back_and_other_names_are_none() {
        let address = ReplyAddress {
            session: SessionRef { node: NodeId(u64::MAX), incarnation: 7, id: 9 },
            secret: Bytes::from_static(&[5; SECRET]),
        };
        let name = address.encode();
        assert!(name.len() <= ShortStr::MAX);
        assert_eq!(ReplyAddress::decode(name.as_bytes()), Some(address));
        for other in [REPLY_TO, "amq.rabbitmq.reply-to.", "amq.rabbitmq.reply-to.x", "orders", &name[..name.len() - 4]]
        {
            assert_eq!(ReplyAddress::decode(other.as_bytes()), None, "{other}");
        }
    }
}
