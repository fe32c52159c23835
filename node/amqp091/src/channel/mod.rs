//! Channels: each is one session of the broker, and the state that AMQP adds to it.

mod basic;
mod confirms;
mod consume;
mod deliver;
mod publish;
mod reply_to;
mod topology;

use std::sync::Arc;

use bytes::BytesMut;
use warren_broker::{Broker, ChannelFigures, Connection, Delivered, EventSender, Session};
use warren_proto::amqp091::{
    Assembly, BasicPublish, ContentHeader, Egress, Frame, FrameKind, FrameSink, Method, ProtocolError, ReplyCode,
    ShortStr, method_ids,
};
use warren_proto::ids::SessionRef;

use crate::settings::Settings;

use publish::{Pending, Publisher};
use reply_to::ReplyConsumer;

/// What all channels of a connection share.
pub struct Context {
    /// The broker.
    pub broker: Arc<Broker>,
    /// The node's settings.
    pub settings: Arc<Settings>,
    /// Who asks, and for what connection.
    pub caller: warren_broker::operations::Context,
    /// Negotiated frame_max.
    pub frame_max: u32,
    /// Whether the client understands a `basic.cancel` from the server.
    pub cancel_notify: bool,
}

/// What a frame leads to.
pub enum Step {
    /// Nothing further.
    Done,
    /// This method waits for the metadata or for a queue: run it with [`Channel::carry_out`].
    Slow(Method),
    /// The client closes the channel.
    Close,
}

/// What a slow method is answered with.
pub enum Answer {
    /// Nothing: the client asked for no answer.
    Silence,
    /// A method.
    Method(Method),
    /// A message, and how many are ready behind it.
    Message(Delivered, u64),
}

/// An open channel.
pub struct Channel {
    number: u16,
    session: Session,
    assembly: Assembly<Pending>,
    /// Prefetch of consumers that are started from now on; 0 is no limit.
    prefetch: u16,
    /// The queue that an empty name stands for.
    last_queue: Option<ShortStr>,
    publisher: Publisher,
    /// The consumer of direct replies, if there is one.
    replies: Option<ReplyConsumer>,
    /// What operators see of the channel.
    listed: Arc<warren_broker::Channel>,
    /// Something happened since that was told.
    unlisted: bool,
}

impl Channel {
    /// Opens the channel of that number on a connection.
    pub fn open(number: u16, broker: &Arc<Broker>, events: EventSender, connection: &Connection) -> Self {
        let session = Session::open(broker, events);
        Channel {
            number,
            listed: connection.open_channel(number, session.id()),
            unlisted: false,
            session,
            assembly: Assembly::default(),
            prefetch: 0,
            last_queue: None,
            publisher: Publisher::default(),
            replies: None,
        }
    }

    /// The session's identity.
    pub fn session_id(&self) -> SessionRef {
        self.session.id()
    }

    /// Whether events for that identity are this channel's.
    pub fn owns(&self, session: SessionRef) -> bool {
        self.session.owns(session)
    }

    /// Whether a queue wants no more publishes for now.
    pub fn is_blocked(&self) -> bool {
        self.session.is_blocked()
    }

    /// Takes a frame.
    pub fn frame(
        &mut self,
        frame: Frame,
        context: &Context,
        arena: &mut BytesMut,
        egress: &mut Egress,
    ) -> Result<Step, ProtocolError> {
        match frame.kind {
            FrameKind::Method => {
                self.assembly.expect_method()?;
                match method_ids(&frame.payload) {
                    Some(BasicPublish::IDS) => self.begin_publish(frame.payload).map(|()| Step::Done),
                    ids => {
                        let method = Method::decode(&frame.payload)?;
                        let quick = self.quick(method, egress);
                        quick.map_err(|e| e.in_method(ids.unwrap_or_default()))
                    }
                }
            }
            FrameKind::Header => {
                let header = ContentHeader::decode_after(frame.payload, |block| self.publisher.knows(block))
                    .map_err(|e| self.assembly.blame(e))?;
                let content = self.checked_header(header, context)?;
                self.complete(content, context, arena, egress)
            }
            FrameKind::Body => {
                let content = self.assembly.body(frame.payload)?;
                self.complete(content, context, arena, egress)
            }
            FrameKind::Heartbeat => Ok(Step::Done),
        }
    }

    /// Takes a header; a body that is too large is refused before it arrives.
    fn checked_header(
        &mut self,
        header: ContentHeader,
        context: &Context,
    ) -> Result<Option<warren_proto::amqp091::Content<Pending>>, ProtocolError> {
        let (size, largest) = (header.body_size, context.settings.max_message_size);
        if size > largest && self.assembly.is_pending() {
            let text = format!("message size {size} is larger than configured max size {largest}");
            let error = ProtocolError::new(ReplyCode::PreconditionFailed, text);
            return Err(error.in_method(BasicPublish::IDS));
        }
        self.assembly.header(header)
    }

    fn complete(
        &mut self,
        content: Option<warren_proto::amqp091::Content<Pending>>,
        context: &Context,
        arena: &mut BytesMut,
        egress: &mut Egress,
    ) -> Result<Step, ProtocolError> {
        if let Some(content) = content {
            self.publish(content, context, arena, egress).map_err(|e| e.in_method(BasicPublish::IDS))?;
        }
        Ok(Step::Done)
    }

    /// Handles a method at once, or says that it is slow.
    fn quick(&mut self, method: Method, egress: &mut Egress) -> Result<Step, ProtocolError> {
        match method {
            Method::BasicAck(_)
            | Method::BasicNack(_)
            | Method::BasicReject(_)
            | Method::BasicRecover(_)
            | Method::BasicRecoverAsync(_)
            | Method::BasicQos(_)
            | Method::ConfirmSelect(_)
            | Method::ChannelFlow(_)
            | Method::AccessRequest(_) => {
                if let Some(answer) = self.basic(method)? {
                    answer.write_frame(self.number, egress.buffer());
                }
                Ok(Step::Done)
            }
            Method::ExchangeDeclare(_)
            | Method::ExchangeDelete(_)
            | Method::ExchangeBind(_)
            | Method::ExchangeUnbind(_)
            | Method::QueueDeclare(_)
            | Method::QueueBind(_)
            | Method::QueueUnbind(_)
            | Method::QueuePurge(_)
            | Method::QueueDelete(_)
            | Method::BasicConsume(_)
            | Method::BasicCancel(_)
            | Method::BasicGet(_) => Ok(Step::Slow(method)),
            Method::ChannelClose(_) => Ok(Step::Close),
            // The client's answers to what the server sent on its own.
            Method::BasicCancelOk(_) | Method::ChannelFlowOk(_) => Ok(Step::Done),
            Method::TxSelect(_) | Method::TxCommit(_) | Method::TxRollback(_) => {
                Err(ProtocolError::new(ReplyCode::NotImplemented, "transactions are not supported"))
            }
            Method::ChannelOpen(_) => Err(ProtocolError::new(ReplyCode::ChannelError, "second 'channel.open' seen")),
            other => {
                let (class, id) = other.ids();
                let text = format!("method {class}.{id} is not for the server on an open channel");
                Err(ProtocolError::new(ReplyCode::CommandInvalid, text))
            }
        }
    }

    /// Runs a slow method.
    pub async fn carry_out(&mut self, method: Method, context: &Context) -> Result<Answer, ProtocolError> {
        let ids = method.ids();
        let answer = match method {
            Method::BasicConsume(_) | Method::BasicCancel(_) | Method::BasicGet(_) => {
                self.consume_class(method, context).await
            }
            method => self.topology(method, context).await,
        };
        answer.map_err(|e| e.in_method(ids))
    }

    /// Sends the queues what the batch gave them, and writes the confirms that it brought.
    pub fn end_batch(&mut self, egress: &mut Egress) {
        self.publisher.age();
        self.session.flush();
        self.write_confirms(egress);
        self.unlisted = true;
    }

    /// Tells the listings how the channel stands, if it may have changed. Not done with every batch: it takes a look at
    /// every publish that waits for its confirm.
    pub fn list(&mut self) {
        if !std::mem::take(&mut self.unlisted) {
            return;
        }
        let count = |number| u32::try_from(number).unwrap_or(u32::MAX);
        self.listed.set_figures(ChannelFigures {
            confirm: self.session.confirms_selected(),
            consumers: count(self.session.consumer_count() + usize::from(self.replies.is_some())),
            unacknowledged: count(self.session.unacknowledged()),
            unconfirmed: count(self.session.unconfirmed()),
            prefetch: self.prefetch,
        });
    }

    fn write_confirms(&mut self, egress: &mut Egress) {
        if let Some(resolved) = self.session.take_confirms() {
            let (acks, nacks) = (&resolved.acks, &resolved.nacks);
            confirms::write_confirms(egress.buffer(), self.number, acks, nacks, resolved.lowest_unresolved);
        }
    }

    /// Whether something waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.session.is_waiting()
    }

    /// Whether [`Channel::tick`] is to be called.
    pub fn needs_tick(&self) -> bool {
        self.session.needs_tick()
    }

    /// A node is reachable again.
    pub fn node_up(&mut self, node: warren_proto::ids::NodeId) {
        self.session.node_up(node);
    }

    /// Deliveries of a queue were dropped because the client was slow, and are to be fetched.
    pub fn missed(&mut self, group: warren_proto::ids::GroupId) {
        self.session.missed(group);
    }

    /// Ends the session. The receiver hears when its queues know.
    pub fn close(self) -> tokio::sync::oneshot::Receiver<()> {
        self.session.close()
    }
}
