//! Exchanges, queues and bindings: translation between methods and the broker's operations.

use warren_broker::BrokerError;
use warren_broker::error::no_queue;
use warren_broker::operations::{BindingSpec, ExchangeSpec, QueueSpec};
use warren_metastore::records::DestinationKind;
use warren_proto::amqp091::{
    ExchangeBind, ExchangeBindOk, ExchangeDeclare, ExchangeDeclareOk, ExchangeDelete, ExchangeDeleteOk, ExchangeUnbind,
    ExchangeUnbindOk, FieldTable, Method, ProtocolError, QueueBind, QueueBindOk, QueueDeclare, QueueDeclareOk,
    QueueDelete, QueueDeleteOk, QueuePurge, QueuePurgeOk, QueueUnbind, QueueUnbindOk, ReplyCode, ShortStr,
};

use super::reply_to::{REPLY_TO, ReplyAddress};
use super::{Answer, Channel, Context};
use crate::errors::from_broker;

fn answer(nowait: bool, method: impl Into<Method>) -> Answer {
    if nowait { Answer::Silence } else { Answer::Method(method.into()) }
}

fn count(messages: u64) -> u32 {
    u32::try_from(messages).unwrap_or(u32::MAX)
}

impl Channel {
    /// Runs a method of the exchange or queue class.
    pub(super) async fn topology(&mut self, method: Method, context: &Context) -> Result<Answer, ProtocolError> {
        match method {
            Method::ExchangeDeclare(declare) => exchange_declare(declare, context).await,
            Method::ExchangeDelete(delete) => exchange_delete(delete, context).await,
            Method::ExchangeBind(bind) => exchange_bind(bind, context).await,
            Method::ExchangeUnbind(unbind) => exchange_unbind(unbind, context).await,
            Method::QueueDeclare(declare) => self.queue_declare(declare, context).await,
            Method::QueueBind(bind) => self.queue_bind(bind, context).await,
            Method::QueueUnbind(unbind) => self.queue_unbind(unbind, context).await,
            Method::QueuePurge(purge) => self.queue_purge(purge, context).await,
            Method::QueueDelete(delete) => self.queue_delete(delete, context).await,
            other => {
                debug_assert!(false, "not a method of the exchange or queue class: {other:?}");
                Err(ProtocolError::new(ReplyCode::CommandInvalid, "unexpected method"))
            }
        }
    }

    /// The queue that a name means: an empty one is the last that was declared on the channel.
    pub(super) fn queue_name(&self, name: &ShortStr) -> Result<ShortStr, ProtocolError> {
        if !name.is_empty() {
            return Ok(name.clone());
        }
        self.last_queue.clone().ok_or_else(|| ProtocolError::new(ReplyCode::NotFound, "no previously declared queue"))
    }

    async fn queue_declare(&mut self, declare: QueueDeclare, context: &Context) -> Result<Answer, ProtocolError> {
        let name = declare.queue;
        if name.starts_with(REPLY_TO) {
            return declare_reply_queue(name, declare.nowait, context);
        }
        let spec = QueueSpec {
            name: name.to_string(),
            passive: declare.passive,
            durable: declare.durable,
            exclusive: declare.exclusive,
            auto_delete: declare.auto_delete,
            nowait: declare.nowait,
            arguments: declare.arguments,
        };
        let declared = context.broker.queue_declare(&context.caller, spec).await.map_err(from_broker)?;
        let queue = ShortStr::truncated(&declared.name);
        self.last_queue = Some(queue.clone());
        let ok = QueueDeclareOk {
            queue,
            message_count: count(declared.messages),
            consumer_count: count(declared.consumers),
        };
        Ok(answer(declare.nowait, ok))
    }

    async fn queue_bind(&mut self, bind: QueueBind, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&bind.queue)?;
        // Neither queue nor key: the key is the queue's name.
        let key = match bind.queue.is_empty() && bind.routing_key.is_empty() {
            true => &queue,
            false => &bind.routing_key,
        };
        let spec = binding(&bind.exchange, DestinationKind::Queue, &queue, key, bind.arguments);
        context.broker.bind(&context.caller, spec).await.map_err(from_broker)?;
        Ok(answer(bind.nowait, QueueBindOk::default()))
    }

    async fn queue_unbind(&mut self, unbind: QueueUnbind, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&unbind.queue)?;
        let key = match unbind.queue.is_empty() && unbind.routing_key.is_empty() {
            true => &queue,
            false => &unbind.routing_key,
        };
        let spec = binding(&unbind.exchange, DestinationKind::Queue, &queue, key, unbind.arguments);
        found(context.broker.unbind(&context.caller, spec).await)?;
        Ok(Answer::Method(QueueUnbindOk::default().into()))
    }

    async fn queue_purge(&mut self, purge: QueuePurge, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&purge.queue)?;
        let purged = context.broker.queue_purge(&context.caller, &queue).await.map_err(from_broker)?;
        Ok(answer(purge.nowait, QueuePurgeOk { message_count: count(purged) }))
    }

    async fn queue_delete(&mut self, delete: QueueDelete, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&delete.queue)?;
        let deleted = context
            .broker
            .queue_delete(&context.caller, &queue, delete.if_unused, delete.if_empty)
            .await
            .map_err(from_broker)?;
        Ok(answer(delete.nowait, QueueDeleteOk { message_count: count(deleted) }))
    }
}

/// Declaring a name of direct replies creates nothing: it tells whether somebody is there. Clients ask for the
/// pseudo-queue itself to learn whether the server has it.
fn declare_reply_queue(name: ShortStr, nowait: bool, context: &Context) -> Result<Answer, ProtocolError> {
    let alive = match ReplyAddress::decode(name.as_bytes()) {
        Some(address) => address.is_alive(context),
        None => &*name == REPLY_TO,
    };
    if !alive {
        return Err(from_broker(no_queue(&context.caller.vhost, &name)));
    }
    Ok(answer(nowait, QueueDeclareOk { queue: name, message_count: 0, consumer_count: 1 }))
}

async fn exchange_declare(declare: ExchangeDeclare, context: &Context) -> Result<Answer, ProtocolError> {
    let spec = ExchangeSpec {
        name: declare.exchange.to_string(),
        kind: declare.kind.to_string(),
        passive: declare.passive,
        durable: declare.durable,
        auto_delete: declare.auto_delete,
        internal: declare.internal,
        arguments: declare.arguments,
    };
    context.broker.exchange_declare(&context.caller, spec).await.map_err(from_broker)?;
    Ok(answer(declare.nowait, ExchangeDeclareOk::default()))
}

async fn exchange_delete(delete: ExchangeDelete, context: &Context) -> Result<Answer, ProtocolError> {
    let deleted = context.broker.exchange_delete(&context.caller, &delete.exchange, delete.if_unused).await;
    deleted.map_err(from_broker)?;
    Ok(answer(delete.nowait, ExchangeDeleteOk::default()))
}

async fn exchange_bind(bind: ExchangeBind, context: &Context) -> Result<Answer, ProtocolError> {
    let kind = DestinationKind::Exchange;
    let spec = binding(&bind.source, kind, &bind.destination, &bind.routing_key, bind.arguments);
    context.broker.bind(&context.caller, spec).await.map_err(from_broker)?;
    Ok(answer(bind.nowait, ExchangeBindOk::default()))
}

async fn exchange_unbind(unbind: ExchangeUnbind, context: &Context) -> Result<Answer, ProtocolError> {
    let kind = DestinationKind::Exchange;
    let spec = binding(&unbind.source, kind, &unbind.destination, &unbind.routing_key, unbind.arguments);
    found(context.broker.unbind(&context.caller, spec).await)?;
    Ok(answer(unbind.nowait, ExchangeUnbindOk::default()))
}

/// Unbinding what is not there is fine.
fn found(outcome: Result<(), BrokerError>) -> Result<(), ProtocolError> {
    match outcome {
        Ok(()) | Err(BrokerError::NotFound(_)) => Ok(()),
        Err(error) => Err(from_broker(error)),
    }
}

fn binding(
    source: &ShortStr,
    kind: DestinationKind,
    destination: &ShortStr,
    key: &ShortStr,
    arguments: FieldTable,
) -> BindingSpec {
    BindingSpec {
        source: source.to_string(),
        kind,
        destination: destination.to_string(),
        key: key.as_bytes().to_vec(),
        arguments,
    }
}
