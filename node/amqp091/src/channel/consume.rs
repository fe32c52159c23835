//! Starting and ending consumers, and taking single messages.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use warren_broker::ConsumerSpec;
use warren_broker::access::{Permission, Resource};
use warren_broker::queue::protocol::{QueueEvent, ToSession};
use warren_proto::amqp091::{
    BasicCancel, BasicCancelOk, BasicConsume, BasicConsumeOk, BasicGet, BasicGetEmpty, FieldTable, Method,
    ProtocolError, ReplyCode, ShortStr,
};

use super::reply_to::{NO_QUEUE, REPLY_TO};
use super::{Answer, Channel, Context};
use crate::errors::from_broker;

/// Arguments that only streams take.
const STREAM_ARGUMENTS: [&str; 3] = ["x-stream-offset", "x-stream-filter", "x-stream-match-unfiltered"];

/// How long a quorum queue's consumer may hold a message, in ms.
const CONSUMER_TIMEOUT: &str = "x-consumer-timeout";

impl Channel {
    /// Runs `basic.consume`, `basic.cancel` or `basic.get`.
    pub(super) async fn consume_class(&mut self, method: Method, context: &Context) -> Result<Answer, ProtocolError> {
        match method {
            Method::BasicConsume(consume) => self.consume(consume, context).await,
            Method::BasicCancel(cancel) => self.cancel(cancel).await,
            Method::BasicGet(get) => self.get(get, context).await,
            other => {
                debug_assert!(false, "neither consume, cancel nor get: {other:?}");
                Err(ProtocolError::new(ReplyCode::CommandInvalid, "unexpected method"))
            }
        }
    }

    async fn consume(&mut self, consume: BasicConsume, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&consume.queue)?;
        if let Some(limit) = context.settings.consumer_max_per_channel
            && self.session.consumer_count() >= limit as usize
        {
            let text = format!("reached maximum ({limit}) of consumers per channel");
            return Err(ProtocolError::new(ReplyCode::NotAllowed, text));
        }
        let tag = match consume.consumer_tag.is_empty() {
            true => generated_tag()?,
            false => consume.consumer_tag.detached(),
        };
        if self.session.has_consumer(tag.as_bytes()) || self.is_reply_consumer(tag.as_bytes()) {
            let text = format!("attempt to reuse consumer tag '{tag}'");
            return Err(ProtocolError::new(ReplyCode::NotAllowed, text));
        }
        let started = match consume.nowait {
            true => Answer::Silence,
            false => Answer::Method(BasicConsumeOk { consumer_tag: tag.clone() }.into()),
        };
        if &*queue == REPLY_TO {
            self.consume_replies(tag, consume.no_ack)?;
            return Ok(started);
        }
        let (priority, timeout_ms) = (priority(&consume.arguments)?, timeout(&consume.arguments)?);
        let target = context.broker.queue_to_read(&context.caller, &queue).map_err(from_broker)?;
        let spec = ConsumerSpec {
            tag: tag.into_bytes(),
            no_ack: consume.no_ack,
            exclusive: consume.exclusive,
            prefetch: self.prefetch,
            priority,
            arguments: consume.arguments.to_bytes(),
            user: context.caller.user.name.to_string(),
            timeout_ms,
        };
        self.session.consume(&target, spec).await.map_err(from_broker)?;
        Ok(started)
    }

    async fn cancel(&mut self, cancel: BasicCancel) -> Result<Answer, ProtocolError> {
        if self.is_reply_consumer(cancel.consumer_tag.as_bytes()) {
            self.replies = None;
        } else {
            self.session.cancel(cancel.consumer_tag.as_bytes()).await.map_err(from_broker)?;
        }
        match cancel.nowait {
            true => Ok(Answer::Silence),
            false => Ok(Answer::Method(BasicCancelOk { consumer_tag: cancel.consumer_tag }.into())),
        }
    }

    /// Looks at the user's permissions anew. The tags of consumers whose queues it may not read any more.
    pub fn recheck_permissions(&mut self, context: &Context) -> Vec<ShortStr> {
        self.publisher.forget_permissions();
        let (user, vhost) = (&context.caller.user.name, &context.caller.vhost);
        let lost = self.session.consumed().filter(|(_, queue)| {
            context.broker.check(user, vhost, Permission::Read, Resource::Queue(&queue.name)).is_err()
        });
        lost.filter_map(|(tag, _)| ShortStr::from_bytes(tag.clone()).ok()).collect()
    }

    /// Forgets a consumer once all that its queue delivered was taken.
    pub fn cancelled(&mut self, tag: &ShortStr) {
        self.session.cancelled(tag.as_bytes());
    }

    /// An event that marks a place among the session's events.
    pub fn marker(&self, context: &Context) -> ToSession {
        let (session, leader) = (self.session.id(), context.broker.me());
        ToSession { session, group: NO_QUEUE, leader, event: QueueEvent::Eol }
    }

    /// Whether an event is such a mark: no group has that id, so no queue says it.
    pub fn is_marker(to: &ToSession) -> bool {
        to.group == NO_QUEUE && matches!(to.event, QueueEvent::Eol)
    }

    async fn get(&mut self, get: BasicGet, context: &Context) -> Result<Answer, ProtocolError> {
        let queue = self.queue_name(&get.queue)?;
        let target = context.broker.queue_to_read(&context.caller, &queue).map_err(from_broker)?;
        match self.session.get(&target, get.no_ack).await.map_err(from_broker)? {
            Some((delivered, ready)) => Ok(Answer::Message(delivered, ready)),
            None => Ok(Answer::Method(BasicGetEmpty::default().into())),
        }
    }
}

/// The consumer's priority: any integer; more than fits counts as the nearest that does.
fn priority(arguments: &FieldTable) -> Result<i32, ProtocolError> {
    for name in STREAM_ARGUMENTS {
        if arguments.get(name).is_some() {
            let text = format!("consumer argument '{name}' is only for streams");
            return Err(ProtocolError::new(ReplyCode::PreconditionFailed, text));
        }
    }
    let Some(value) = arguments.get("x-priority") else {
        return Ok(0);
    };
    let Some(priority) = value.as_int() else {
        let text = format!("consumer argument 'x-priority' is of type '{}', expected an integer", value.type_name());
        return Err(ProtocolError::new(ReplyCode::PreconditionFailed, text));
    };
    Ok(priority.clamp(i32::MIN.into(), i32::MAX.into()) as i32)
}

/// The consumer's own limit on how long it may hold a message.
fn timeout(arguments: &FieldTable) -> Result<Option<u64>, ProtocolError> {
    let Some(value) = arguments.get(CONSUMER_TIMEOUT) else { return Ok(None) };
    match value.as_int().map(u64::try_from) {
        Some(Ok(timeout)) => Ok(Some(timeout)),
        _ => {
            let text = format!("consumer argument '{CONSUMER_TIMEOUT}' must be a number of milliseconds, 0 or more");
            Err(ProtocolError::new(ReplyCode::PreconditionFailed, text))
        }
    }
}

fn generated_tag() -> Result<ShortStr, ProtocolError> {
    let mut random = [0; 16];
    getrandom::fill(&mut random)
        .map_err(|e| ProtocolError::new(ReplyCode::InternalError, format!("no random numbers: {e}")))?;
    Ok(ShortStr::truncated(&format!("amq.ctag-{}", URL_SAFE_NO_PAD.encode(random))))
}

#[cfg(test)]
mod tests {
    use warren_proto::amqp091::FieldValue;

    use super::*;

    #[test]
    fn a_priority_is_any_integer_and_nothing_else() {
        let with = |value: FieldValue| priority(&FieldTable::new().with("x-priority", value));
        assert_eq!(priority(&FieldTable::new()).ok(), Some(0));
        assert_eq!(with(FieldValue::I8(-3)).ok(), Some(-3));
        assert_eq!(with(FieldValue::I64(i64::MAX)).ok(), Some(i32::MAX));
        assert_eq!(with("10".into()).map_err(|e| e.code), Err(ReplyCode::PreconditionFailed));
    }

    #[test]
    fn arguments_of_streams_are_refused() {
        let arguments = FieldTable::new().with("x-stream-offset", "first");
        assert_eq!(priority(&arguments).map_err(|e| e.code), Err(ReplyCode::PreconditionFailed));
        assert_eq!(priority(&FieldTable::new().with("x-foo", 1_i64)).ok(), Some(0));
    }

    #[test]
    fn a_timeout_is_a_number_of_milliseconds() {
        let with = |value: FieldValue| timeout(&FieldTable::new().with(CONSUMER_TIMEOUT, value));
        assert_eq!(timeout(&FieldTable::new()).ok(), Some(None));
        assert_eq!(with(FieldValue::I32(60_000)).ok(), Some(Some(60_000)));
        for wrong in [FieldValue::I32(-1), "10s".into()] {
            assert_eq!(with(wrong).map_err(|e| e.code), Err(ReplyCode::PreconditionFailed));
        }
    }

    #[test]
    fn generated_tags_differ() {
        let (a, b) = (generated_tag().expect("a tag"), generated_tag().expect("a tag"));
        assert!(a.starts_with("amq.ctag-"));
        assert_ne!(a, b);
        assert_eq!(a.len(), "amq.ctag-".len() + 22);
    }
}
