//! The binary form of commands in the log: a tag byte, then fields in order; integers are LEB128.
//!
//! | Tag | Command | Fields |
//! |---|---|---|
//! | 1 | RegisterEnqueuer | session |
//! | 2 | Enqueue | flags (1 = origin, 2 = delivery count), [session, seq], [delivery count], meta size, container to the end |
//! | 3 | Attach | consumer id, mode (0 = prefetch) and its number, priority, flags (1 = acks), args, user name |
//! | 4, 5 | Dequeue, and settled at once | consumer id |
//! | 6 | Settle | consumer ref, ids |
//! | 7 | Return | consumer ref, ids |
//! | 8 | Return as failed; from version 2 | consumer ref, ids |
//! | 9 | Discard | consumer ref, ids |
//! | 10, 11 | Cancel, Remove | consumer ref |
//! | 12 | Purge | |
//! | 13, 14 | SessionDown: gone, no connection | session |
//! | 15 | NodeUp | node |
//! | 16 | PurgeNodes | count, nodes |
//! | 17 | UpdateConfig | the configuration: see `put_config` |
//! | 18 | Timeout of a disconnected consumer; from version 2 | key |
//! | 19 | Continue | |
//!
//! A session is node and incarnation (8 bytes each, little-endian) and id. A consumer id is a session and a tag (length,
//! bytes). A consumer ref is 0 and a key, or 1 and a consumer id. Ids are a count of runs, then for each its start as a
//! signed distance from the end of the run before, and its length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use warren_proto::ids::{MachineVersion, NodeId};

use super::command::{Attach, Command, Enqueue, Mode};
use super::config::{Config, DeadLetter, DeadLetterStrategy, DelayedRetry, Overflow, RetryOn};
use super::effects::TimerKey;
use super::version::MV2;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
use crate::enqueuer::Origin;
use crate::message::StoredMessage;
use crate::msg_ids::{MsgIds, Run};
use crate::session::SessionLoss;
use crate::wire::{DecodeError, Reader, option, put_bytes, put_option, put_session, put_varint, put_zigzag};

const REGISTER: u8 = 1;
const ENQUEUE: u8 = 2;
const ATTACH: u8 = 3;
const DEQUEUE: u8 = 4;
const DEQUEUE_SETTLED: u8 = 5;
const SETTLE: u8 = 6;
const RETURN: u8 = 7;
const RETURN_FAILED: u8 = 8;
const DISCARD: u8 = 9;
const CANCEL: u8 = 10;
const REMOVE: u8 = 11;
const PURGE: u8 = 12;
const SESSION_GONE: u8 = 13;
const SESSION_NO_CONNECTION: u8 = 14;
const NODE_UP: u8 = 15;
const PURGE_NODES: u8 = 16;
const UPDATE_CONFIG: u8 = 17;
const CONSUMER_DISCONNECTED: u8 = 18;
const CONTINUE: u8 = 19;

const WITH_ORIGIN: u8 = 1;
const WITH_DELIVERY_COUNT: u8 = 2;
const ACKS: u8 = 1;
const MODE_PREFETCH: u8 = 0;
const REJECT_PUBLISH: u8 = 1;
const SINGLE_ACTIVE: u8 = 2;
const DEAD_LETTER: u8 = 1;
const AT_LEAST_ONCE: u8 = 2;
const WITH_KEY: u8 = 4;
const BY_KEY: u8 = 0;
const BY_ID: u8 = 1;

/// Bytes that an enqueue can take beyond its container, at most.
const ENQUEUE_OVERHEAD: usize = 2 + 16 + 10 + 10 + 5 + 5;

pub(super) fn encode(command: &Command, version: MachineVersion, out: &mut BytesMut) {
    match command {
        Command::RegisterEnqueuer { session } => {
            out.put_u8(REGISTER);
            put_session(out, session);
        }
        Command::Enqueue(enqueue) => put_enqueue(out, enqueue),
        Command::Attach(attach) => put_attach(out, attach),
        Command::Dequeue { consumer, settled } => {
            out.put_u8(if *settled { DEQUEUE_SETTLED } else { DEQUEUE });
            put_consumer_id(out, consumer);
        }
        Command::Settle { consumer, ids } => put_outcome(out, SETTLE, consumer, ids),
        Command::Return { consumer, ids, failed } => {
            let tag = if *failed && version >= MV2 { RETURN_FAILED } else { RETURN };
            put_outcome(out, tag, consumer, ids);
        }
        Command::Discard { consumer, ids } => put_outcome(out, DISCARD, consumer, ids),
        Command::Cancel { consumer } => {
            out.put_u8(CANCEL);
            put_consumer_ref(out, consumer);
        }
        Command::Remove { consumer } => {
            out.put_u8(REMOVE);
            put_consumer_ref(out, consumer);
        }
        Command::Purge => out.put_u8(PURGE),
        Command::SessionDown { session, loss } => {
            out.put_u8(match loss {
                SessionLoss::Gone => SESSION_GONE,
                SessionLoss::NoConnection => SESSION_NO_CONNECTION,
            });
            put_session(out, session);
        }
        Command::NodeUp { node } => {
            out.put_u8(NODE_UP);
            out.put_u64_le(node.0);
        }
        Command::PurgeNodes { nodes } => {
            out.put_u8(PURGE_NODES);
            put_varint(out, nodes.len() as u64);
            nodes.iter().for_each(|node| out.put_u64_le(node.0));
        }
        Command::UpdateConfig(config) => {
            out.put_u8(UPDATE_CONFIG);
            put_config(out, config);
        }
        Command::Timeout(TimerKey::ConsumerDisconnected(key)) => {
            out.put_u8(CONSUMER_DISCONNECTED);
            put_varint(out, key.0);
        }
        Command::Continue => out.put_u8(CONTINUE),
    }
}

pub(super) fn decode(version: MachineVersion, mut bytes: Bytes) -> Result<Command, DecodeError> {
    if bytes.first() == Some(&ENQUEUE) {
        bytes.advance(1);
        return enqueue(bytes).map(Command::Enqueue);
    }
    let mut r = Reader::new(&bytes);
    let tag = r.u8()?;
    if matches!(tag, RETURN_FAILED | CONSUMER_DISCONNECTED) && version < MV2 {
        return Err(DecodeError::NotInVersion { tag, version });
    }
    let command = match tag {
        REGISTER => Command::RegisterEnqueuer { session: r.session()? },
        ATTACH => Command::Attach(Box::new(attach(&mut r, &bytes)?)),
        DEQUEUE | DEQUEUE_SETTLED => {
            Command::Dequeue { consumer: consumer_id(&mut r, &bytes)?, settled: tag == DEQUEUE_SETTLED }
        }
        SETTLE => Command::Settle { consumer: consumer_ref(&mut r, &bytes)?, ids: ids(&mut r)? },
        RETURN | RETURN_FAILED => {
            Command::Return { consumer: consumer_ref(&mut r, &bytes)?, ids: ids(&mut r)?, failed: tag == RETURN_FAILED }
        }
        DISCARD => Command::Discard { consumer: consumer_ref(&mut r, &bytes)?, ids: ids(&mut r)? },
        CANCEL => Command::Cancel { consumer: consumer_ref(&mut r, &bytes)? },
        REMOVE => Command::Remove { consumer: consumer_ref(&mut r, &bytes)? },
        PURGE => Command::Purge,
        SESSION_GONE => Command::SessionDown { session: r.session()?, loss: SessionLoss::Gone },
        SESSION_NO_CONNECTION => Command::SessionDown { session: r.session()?, loss: SessionLoss::NoConnection },
        NODE_UP => Command::NodeUp { node: NodeId(r.u64_le()?) },
        PURGE_NODES => {
            let count = r.count(8)?;
            let nodes = (0..count).map(|_| Ok(NodeId(r.u64_le()?))).collect::<Result<_, DecodeError>>()?;
            Command::PurgeNodes { nodes }
        }
        UPDATE_CONFIG => Command::UpdateConfig(config(&mut r)?),
        CONSUMER_DISCONNECTED => Command::Timeout(TimerKey::ConsumerDisconnected(ConsumerKey(r.varint()?))),
        CONTINUE => Command::Continue,
        _ => return Err(DecodeError::UnknownTag(tag)),
    };
    r.end()?;
    Ok(command)
}

/// The message inside an encoded enqueue, sharing its buffer: how bodies are read back from the log. `None` if the
/// command is another one.
pub fn stored_message(command: &Bytes) -> Option<StoredMessage> {
    let mut r = Reader::new(command);
    if r.u8() != Ok(ENQUEUE) {
        return None;
    }
    let (_, _, meta_size) = enqueue_head(&mut r).ok()?;
    StoredMessage::new(meta_size, command.slice(r.position()..))
}

fn put_enqueue(out: &mut BytesMut, enqueue: &Enqueue) {
    let container = enqueue.message.container();
    out.reserve(ENQUEUE_OVERHEAD + container.len());
    out.put_u8(ENQUEUE);
    let origin = if enqueue.origin.is_some() { WITH_ORIGIN } else { 0 };
    let delivery_count = if enqueue.delivery_count > 0 { WITH_DELIVERY_COUNT } else { 0 };
    out.put_u8(origin | delivery_count);
    if let Some(origin) = &enqueue.origin {
        put_session(out, &origin.session);
        put_varint(out, origin.seq);
    }
    if enqueue.delivery_count > 0 {
        put_varint(out, u64::from(enqueue.delivery_count));
    }
    put_varint(out, u64::from(enqueue.message.meta_size()));
    out.extend_from_slice(container);
}

/// Writes an enqueue whose container is in two parts.
pub(super) fn put_publish(out: &mut BytesMut, origin: Origin, meta: &[u8], body: &[u8]) {
    out.reserve(ENQUEUE_OVERHEAD + meta.len() + body.len());
    out.put_u8(ENQUEUE);
    out.put_u8(WITH_ORIGIN);
    put_session(out, &origin.session);
    put_varint(out, origin.seq);
    put_varint(out, meta.len() as u64);
    out.extend_from_slice(meta);
    out.extend_from_slice(body);
}

/// The fields before the container: origin, delivery count, meta size.
fn enqueue_head(r: &mut Reader<'_>) -> Result<(Option<Origin>, u32, u32), DecodeError> {
    let flags = r.u8()?;
    if flags & !(WITH_ORIGIN | WITH_DELIVERY_COUNT) != 0 {
        return Err(DecodeError::Value("enqueue flags"));
    }
    let origin = match flags & WITH_ORIGIN {
        0 => None,
        _ => Some(Origin { session: r.session()?, seq: r.varint()? }),
    };
    let delivery_count = match flags & WITH_DELIVERY_COUNT {
        0 => 0,
        _ => r.u32("delivery count")?,
    };
    Ok((origin, delivery_count, r.u32("meta size")?))
}

/// Reads an enqueue after its tag.
fn enqueue(mut bytes: Bytes) -> Result<Enqueue, DecodeError> {
    let mut r = Reader::new(&bytes);
    let (origin, delivery_count, meta_size) = enqueue_head(&mut r)?;
    let head = r.position();
    bytes.advance(head);
    let message = StoredMessage::new(meta_size, bytes).ok_or(DecodeError::Truncated)?;
    Ok(Enqueue { origin, delivery_count, message })
}

fn put_attach(out: &mut BytesMut, attach: &Attach) {
    out.put_u8(ATTACH);
    put_consumer_id(out, &attach.consumer);
    put_mode(out, attach.mode);
    put_zigzag(out, i64::from(attach.priority));
    put_meta(out, &attach.meta);
}

fn attach(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Attach, DecodeError> {
    Ok(Attach { consumer: consumer_id(r, bytes)?, mode: mode(r)?, priority: r.i32("priority")?, meta: meta(r, bytes)? })
}

pub(super) fn put_mode(out: &mut impl BufMut, mode: Mode) {
    match mode {
        Mode::SimplePrefetch(n) => {
            out.put_u8(MODE_PREFETCH);
            put_varint(out, u64::from(n));
        }
    }
}

pub(super) fn mode(r: &mut Reader<'_>) -> Result<Mode, DecodeError> {
    match r.u8()? {
        MODE_PREFETCH => Ok(Mode::SimplePrefetch(r.u32("prefetch")?)),
        _ => Err(DecodeError::Value("mode")),
    }
}

pub(super) fn put_meta(out: &mut impl BufMut, meta: &ConsumerMeta) {
    out.put_u8(if meta.ack { ACKS } else { 0 });
    put_bytes(out, &meta.args);
    put_bytes(out, &meta.username);
}

pub(super) fn meta(r: &mut Reader<'_>, bytes: &Bytes) -> Result<ConsumerMeta, DecodeError> {
    Ok(ConsumerMeta { ack: r.flag("ack")?, args: bytes.slice(r.bytes()?), username: bytes.slice(r.bytes()?) })
}

pub(super) fn put_consumer_id(out: &mut impl BufMut, id: &ConsumerId) {
    put_session(out, &id.session);
    put_bytes(out, &id.tag);
}

pub(super) fn consumer_id(r: &mut Reader<'_>, bytes: &Bytes) -> Result<ConsumerId, DecodeError> {
    Ok(ConsumerId { session: r.session()?, tag: bytes.slice(r.bytes()?) })
}

pub(super) fn put_config(out: &mut impl BufMut, config: &Config) {
    put_option(out, config.delivery_limit.map(u64::from));
    put_varint(out, config.consumer_disconnected_timeout_ms);
    let numbers = [
        config.consumer_timeout_ms,
        config.max_length,
        config.max_length_bytes,
        config.message_ttl_ms,
        config.expires_ms,
    ];
    numbers.into_iter().for_each(|number| put_option(out, number));
    let reject = if config.overflow == Overflow::RejectPublish { REJECT_PUBLISH } else { 0 };
    let single = if config.single_active { SINGLE_ACTIVE } else { 0 };
    out.put_u8(reject | single);
    match &config.dead_letter {
        None => out.put_u8(0),
        Some(to) => {
            let once = if to.strategy == DeadLetterStrategy::AtLeastOnce { AT_LEAST_ONCE } else { 0 };
            let key = if to.routing_key.is_some() { WITH_KEY } else { 0 };
            out.put_u8(DEAD_LETTER | once | key);
            put_bytes(out, to.exchange.as_bytes());
            if let Some(key) = &to.routing_key {
                put_bytes(out, key.as_bytes());
            }
        }
    }
    match &config.delayed_retry {
        None => out.put_u8(0),
        Some(retry) => {
            out.put_u8(match retry.on {
                RetryOn::All => 1,
                RetryOn::Failed => 2,
                RetryOn::Returned => 3,
            });
            put_varint(out, retry.min_ms);
            put_varint(out, retry.max_ms);
        }
    }
}

pub(super) fn config(r: &mut Reader<'_>) -> Result<Config, DecodeError> {
    let delivery_limit = match option(r)? {
        None => None,
        Some(limit) => Some(u32::try_from(limit).map_err(|_| DecodeError::Value("delivery limit"))?),
    };
    let consumer_disconnected_timeout_ms = r.varint()?;
    let consumer_timeout_ms = option(r)?;
    let max_length = option(r)?;
    let max_length_bytes = option(r)?;
    let message_ttl_ms = option(r)?;
    let expires_ms = option(r)?;
    let flags = r.u8()?;
    if flags & !(REJECT_PUBLISH | SINGLE_ACTIVE) != 0 {
        return Err(DecodeError::Value("configuration flags"));
    }
    let overflow = if flags & REJECT_PUBLISH != 0 { Overflow::RejectPublish } else { Overflow::DropHead };
    Ok(Config {
        delivery_limit,
        consumer_disconnected_timeout_ms,
        consumer_timeout_ms,
        max_length,
        max_length_bytes,
        overflow,
        message_ttl_ms,
        expires_ms,
        single_active: flags & SINGLE_ACTIVE != 0,
        dead_letter: dead_letter(r)?,
        delayed_retry: delayed_retry(r)?,
    })
}

fn dead_letter(r: &mut Reader<'_>) -> Result<Option<DeadLetter>, DecodeError> {
    let flags = r.u8()?;
    if flags == 0 {
        return Ok(None);
    }
    if flags & DEAD_LETTER == 0 || flags & !(DEAD_LETTER | AT_LEAST_ONCE | WITH_KEY) != 0 {
        return Err(DecodeError::Value("dead-letter flags"));
    }
    let exchange = r.text("dead-letter exchange")?.to_owned();
    let routing_key = if flags & WITH_KEY != 0 { Some(r.text("dead-letter key")?.to_owned()) } else { None };
    let strategy =
        if flags & AT_LEAST_ONCE != 0 { DeadLetterStrategy::AtLeastOnce } else { DeadLetterStrategy::AtMostOnce };
    Ok(Some(DeadLetter { exchange, routing_key, strategy }))
}

fn delayed_retry(r: &mut Reader<'_>) -> Result<Option<DelayedRetry>, DecodeError> {
    let on = match r.u8()? {
        0 => return Ok(None),
        1 => RetryOn::All,
        2 => RetryOn::Failed,
        3 => RetryOn::Returned,
        _ => return Err(DecodeError::Value("kind of delayed retry")),
    };
    Ok(Some(DelayedRetry { on, min_ms: r.varint()?, max_ms: r.varint()? }))
}

fn put_consumer_ref(out: &mut BytesMut, consumer: &ConsumerRef) {
    match consumer {
        ConsumerRef::Key(key) => {
            out.put_u8(BY_KEY);
            put_varint(out, key.0);
        }
        ConsumerRef::Id(id) => {
            out.put_u8(BY_ID);
            put_consumer_id(out, id);
        }
    }
}

fn consumer_ref(r: &mut Reader<'_>, bytes: &Bytes) -> Result<ConsumerRef, DecodeError> {
    match r.u8()? {
        BY_KEY => Ok(ConsumerRef::Key(ConsumerKey(r.varint()?))),
        BY_ID => Ok(ConsumerRef::Id(consumer_id(r, bytes)?)),
        _ => Err(DecodeError::Value("consumer reference")),
    }
}

fn put_outcome(out: &mut BytesMut, tag: u8, consumer: &ConsumerRef, ids: &MsgIds) {
    out.put_u8(tag);
    put_consumer_ref(out, consumer);
    put_varint(out, ids.runs().len() as u64);
    let mut end = 0u64;
    for run in ids.runs() {
        put_zigzag(out, run.start.wrapping_sub(end) as i64);
        put_varint(out, run.count);
        end = run.start.wrapping_add(run.count);
    }
}

fn ids(r: &mut Reader<'_>) -> Result<MsgIds, DecodeError> {
    let count = r.count(2)?;
    if count > MsgIds::MAX_RUNS {
        return Err(DecodeError::Value("number of runs"));
    }
    let mut ids = MsgIds::new();
    let mut end = 0u64;
    for _ in 0..count {
        let start = end.wrapping_add(r.zigzag()? as u64);
        let count = r.varint()?;
        ids.push_run(Run { start, count });
        end = start.wrapping_add(count);
    }
    Ok(ids)
}
