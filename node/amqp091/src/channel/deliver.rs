//! From the session to the client: deliveries, and consumers that the server ends.

use bytes::BytesMut;
use tracing::error;
use warren_broker::queue::protocol::{Body, ToSession};
use warren_broker::{Delivered, Output};
use warren_metastore::projections::QueueTarget;
use warren_proto::amqp091::{
    BasicCancel, BasicGetOk, DeliverRef, Egress, FrameSink, OutgoingContent, ProtocolError, ReplyCode, ShortStr,
    write_deliver, write_get_ok,
};
use warren_proto::message::{DeliveryCounts, Message};

use super::reply_to::NO_QUEUE;
use super::{Channel, Context};

impl Channel {
    /// Takes what a queue said, and writes what it means for the client. `outputs` is scratch space.
    ///
    /// An error closes the channel.
    pub fn event(
        &mut self,
        to: ToSession,
        context: &Context,
        egress: &mut Egress,
        outputs: &mut Vec<Output>,
    ) -> Result<(), ProtocolError> {
        if to.group == NO_QUEUE {
            self.replied(to, context, egress);
            return Ok(());
        }
        self.session.handle(to, outputs);
        self.write_outputs(context, egress, outputs)
    }

    /// Does what time demands. `outputs` is scratch space. An error closes the channel.
    pub fn tick(
        &mut self,
        context: &Context,
        egress: &mut Egress,
        outputs: &mut Vec<Output>,
    ) -> Result<(), ProtocolError> {
        self.session.tick(outputs);
        self.write_outputs(context, egress, outputs)
    }

    fn write_outputs(
        &mut self,
        context: &Context,
        egress: &mut Egress,
        outputs: &mut Vec<Output>,
    ) -> Result<(), ProtocolError> {
        let mut outcome = Ok(());
        for output in outputs.drain(..) {
            match output {
                Output::Deliver(delivered) => self.deliver(&delivered, context, egress),
                Output::Cancelled { tag } => {
                    if context.cancel_notify
                        && let Ok(consumer_tag) = ShortStr::from_bytes(tag)
                    {
                        BasicCancel { consumer_tag, nowait: true }.write_frame(self.number, egress.buffer());
                    }
                }
                Output::TimedOut { tag, queue, count } => match tag.and_then(|tag| ShortStr::from_bytes(tag).ok()) {
                    Some(consumer_tag) if context.cancel_notify => {
                        tracing::warn!(
                            queue = %queue.name,
                            vhost = %queue.vhost,
                            channel = self.number,
                            consumer = consumer_tag.as_str(),
                            count,
                            "a consumer has not acknowledged deliveries in time: they are the queue's again, and it ends"
                        );
                        BasicCancel { consumer_tag, nowait: true }.write_frame(self.number, egress.buffer());
                    }
                    _ => outcome = Err(timed_out(self.number, &queue, count)),
                },
            }
        }
        outcome
    }

    fn replied(&mut self, to: ToSession, context: &Context, egress: &mut Egress) {
        let Some((tag, messages)) = self.direct_replies(to.event) else { return };
        for message in messages {
            let Body::Here(container) = message.body else { continue };
            let delivery_tag = self.session.deliver_settled();
            let tag = tag.clone();
            let delivered =
                Delivered { tag, delivery_tag, redelivered: false, acquired_count: 0, delivery_count: 0, container };
            self.deliver(&delivered, context, egress);
        }
    }

    fn deliver(&self, delivered: &Delivered, context: &Context, egress: &mut Egress) {
        let Some(message) = readable(delivered) else {
            return;
        };
        let deliver = DeliverRef {
            consumer_tag: std::str::from_utf8(&delivered.tag).unwrap_or_default(),
            delivery_tag: delivered.delivery_tag,
            redelivered: delivered.redelivered,
            exchange: message.exchange(),
            routing_key: message.routing_key_str(),
        };
        let content = OutgoingContent {
            channel: self.number,
            frame_max: context.frame_max,
            properties: |out: &mut BytesMut| message.write_delivered_properties(counts(delivered), out),
            body: message.body(),
        };
        write_deliver(egress, deliver, content);
    }

    /// Writes `basic.get-ok` with its message; `ready` are waiting behind it.
    pub fn write_got(&self, delivered: &Delivered, ready: u64, context: &Context, egress: &mut Egress) {
        let Some(message) = readable(delivered) else {
            return;
        };
        let method = BasicGetOk {
            delivery_tag: delivered.delivery_tag,
            redelivered: delivered.redelivered,
            exchange: ShortStr::truncated(message.exchange()),
            routing_key: ShortStr::truncated(message.routing_key_str()),
            message_count: u32::try_from(ready).unwrap_or(u32::MAX),
        };
        let content = OutgoingContent {
            channel: self.number,
            frame_max: context.frame_max,
            properties: |out: &mut BytesMut| message.write_delivered_properties(counts(delivered), out),
            body: message.body(),
        };
        write_get_ok(egress, &method, content);
    }
}

/// What closes the channel of a client that cannot be told otherwise.
fn timed_out(channel: u16, queue: &QueueTarget, count: u64) -> ProtocolError {
    let text = format!(
        "delivery acknowledgement on channel {channel} timed out: {count} deliveries from queue '{}' in vhost '{}' were \
         held for too long. This timeout value can be configured, see consumer_timeout",
        queue.name, queue.vhost
    );
    ProtocolError::new(ReplyCode::PreconditionFailed, text)
}

/// The stored message. One that cannot be read stays unacknowledged, so it is not lost, and the log says so.
fn readable(delivered: &Delivered) -> Option<Message> {
    match Message::parse(delivered.container.clone()) {
        Ok(message) => Some(message),
        Err(error) => {
            error!(%error, delivery_tag = delivered.delivery_tag, "a stored message cannot be read and is not delivered");
            None
        }
    }
}

fn counts(delivered: &Delivered) -> DeliveryCounts {
    let failed = (delivered.delivery_count > 0).then(|| delivered.delivery_count.into());
    DeliveryCounts { acquired: delivered.acquired_count.into(), failed }
}
