//! The binary form of commands in the log: a tag byte, then fields in order; integers are LEB128.
//!
//! | Tag | Command | Fields |
//! |---|---|---|
//! | 1 | RegisterEnqueuer | session |
//! | 2 | Enqueue | flags (1 = origin, 2 = delivery count, 4 = priority, 8 = TTL, 16 = from version 2: follows), [session, seq], [delivery count], [priority, 1 byte], [TTL], meta size, container to the end |
//! | 3 | Attach | consumer id, mode, priority, flags (1 = acks), args, user name, timeout, default timeout |
//! | 4, 5 | Dequeue, and settled at once | consumer id, default timeout |
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
//! | 20 | Modify | consumer ref, ids, flags (1 = failed, 2 = undeliverable here), delivery time, count, (name, value) each |
//! | 21 | Credit | consumer ref, credit, delivery count, drain |
//! | 22 | Timeout of messages | |
//! | 23 | Timeout of what consumers hold; from version 2 | |
//! | 24 | DlxAttach | session, prefetch |
//! | 25 | DlxSettle | session, ids |
//! | 26 | DelayedRetryNow; from version 2 | count |
//!
//! An enqueue that *follows* has the session of the last one with an origin in the same log entry, and the next number:
//! most publishes of an entry do, and this saves them some twenty bytes.
//!
//! A number that may be absent is written as 0, or as the number plus 1. A mode is 0 and a prefetch count, or 1 and the
//! initial delivery count.
//!
//! A session is node and incarnation (8 bytes each, little-endian) and id. A consumer id is a session and a tag (length,
//! bytes). A consumer ref is 0 and a key, or 1 and a consumer id. Ids are a count of runs, then for each its start as a
//! signed distance from the end of the run before, and its length.

use bytes::{Buf, BufMut, Bytes, BytesMut};
use warren_proto::ids::{MachineVersion, NodeId};

use super::command::{Attach, Command, Enqueue, Mode, Modify, Traits};
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
const MODIFY: u8 = 20;
const CREDIT: u8 = 21;
const EXPIRE_MESSAGES: u8 = 22;
const CONSUMER_DEADLINES: u8 = 23;
const DLX_ATTACH: u8 = 24;
const DLX_SETTLE: u8 = 25;
const DELAYED_RETRY_NOW: u8 = 26;

const WITH_ORIGIN: u8 = 1;
const WITH_DELIVERY_COUNT: u8 = 2;
const WITH_PRIORITY: u8 = 4;
const WITH_TTL: u8 = 8;
const FOLLOWS: u8 = 16;
const ACKS: u8 = 1;
const MODE_PREFETCH: u8 = 0;
const MODE_CREDITED: u8 = 1;
const FAILED: u8 = 1;
const UNDELIVERABLE_HERE: u8 = 2;
/// Notes of one modification, at most.
pub(super) const MAX_ANNOTATIONS: usize = 256;
const REJECT_PUBLISH: u8 = 1;
const SINGLE_ACTIVE: u8 = 2;
const DEAD_LETTER: u8 = 1;
const AT_LEAST_ONCE: u8 = 2;
const WITH_KEY: u8 = 4;
const BY_KEY: u8 = 0;
const BY_ID: u8 = 1;

/// Bytes that an enqueue can take beyond its container, at most.
const ENQUEUE_OVERHEAD: usize = 2 + 16 + 10 + 10 + 5 + 1 + 10 + 5;

pub(super) fn encode(command: &Command, version: MachineVersion, out: &mut BytesMut) {
    match command {
        Command::RegisterEnqueuer { session } => {
            out.put_u8(REGISTER);
            put_session(out, session);
        }
        Command::Enqueue(enqueue) => put_enqueue(out, Source::of(enqueue.origin), enqueue),
        Command::Attach(attach) => put_attach(out, attach),
        Command::Dequeue { consumer, settled, default_timeout_ms } => {
            out.put_u8(if *settled { DEQUEUE_SETTLED } else { DEQUEUE });
            put_consumer_id(out, consumer);
            put_option(out, *default_timeout_ms);
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
        Command::Modify(modify) => put_modify(out, modify),
        Command::Credit { consumer, credit, delivery_count, drain } => {
            out.put_u8(CREDIT);
            put_consumer_ref(out, consumer);
            put_varint(out, u64::from(*credit));
            put_varint(out, u64::from(*delivery_count));
            out.put_u8(u8::from(*drain));
        }
        Command::Timeout(TimerKey::ExpireMessages) => out.put_u8(EXPIRE_MESSAGES),
        Command::Timeout(TimerKey::ConsumerDeadlines) => out.put_u8(CONSUMER_DEADLINES),
        Command::DlxAttach { session, prefetch } => {
            out.put_u8(DLX_ATTACH);
            put_session(out, session);
            put_varint(out, u64::from(*prefetch));
        }
        Command::DlxSettle { session, ids } => {
            out.put_u8(DLX_SETTLE);
            put_session(out, session);
            put_ids(out, ids);
        }
        Command::DelayedRetryNow { count } => {
            out.put_u8(DELAYED_RETRY_NOW);
            put_option(out, *count);
        }
    }
}

/// Reads the commands of one log entry, in their order.
#[derive(Debug)]
pub struct Decoder {
    version: MachineVersion,
    /// Of the last publish.
    last: Option<Origin>,
}

impl Decoder {
    /// A decoder for an entry of a group at `version`.
    pub fn new(version: MachineVersion) -> Self {
        Decoder { version, last: None }
    }

    /// Reads the next command. A message's bytes share `bytes`' buffer. After an error, what follows can still be read, but
    /// for publishes that go by the one that could not.
    pub fn decode(&mut self, mut bytes: Bytes) -> Result<Command, DecodeError> {
        if bytes.first() != Some(&ENQUEUE) {
            return decode(self.version, bytes);
        }
        bytes.advance(1);
        let read = self.enqueue(bytes);
        match &read {
            Ok(enqueue) => self.last = enqueue.origin.or(self.last),
            Err(_) => self.last = None,
        }
        read.map(Command::Enqueue)
    }

    /// Reads an enqueue after its tag.
    fn enqueue(&self, mut bytes: Bytes) -> Result<Enqueue, DecodeError> {
        let mut r = Reader::new(&bytes);
        let Head { source, traits, meta_size } = enqueue_head(&mut r)?;
        let head = r.position();
        bytes.advance(head);
        let message = StoredMessage::new(meta_size, bytes).ok_or(DecodeError::Truncated)?;
        let origin = match source {
            Source::Nowhere => None,
            Source::Origin(origin) => Some(origin),
            Source::Next if self.version < MV2 => {
                return Err(DecodeError::NotInVersion { tag: ENQUEUE, version: self.version });
            }
            Source::Next => {
                let last = self.last.ok_or(DecodeError::Value("enqueue that follows none"))?;
                Some(Origin { seq: last.seq.wrapping_add(1), ..last })
            }
        };
        let Traits { delivery_count, priority, ttl_ms } = traits;
        Ok(Enqueue { origin, delivery_count, priority, ttl_ms, message })
    }
}

/// Reads a command that is no enqueue.
fn decode(version: MachineVersion, bytes: Bytes) -> Result<Command, DecodeError> {
    let mut r = Reader::new(&bytes);
    let tag = r.u8()?;
    if matches!(tag, RETURN_FAILED | CONSUMER_DISCONNECTED | CONSUMER_DEADLINES | DELAYED_RETRY_NOW) && version < MV2 {
        return Err(DecodeError::NotInVersion { tag, version });
    }
    let command = match tag {
        REGISTER => Command::RegisterEnqueuer { session: r.session()? },
        ATTACH => Command::Attach(Box::new(attach(&mut r, &bytes)?)),
        DEQUEUE | DEQUEUE_SETTLED => {
            let consumer = consumer_id(&mut r, &bytes)?;
            Command::Dequeue { consumer, settled: tag == DEQUEUE_SETTLED, default_timeout_ms: option(&mut r)? }
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
        MODIFY => Command::Modify(Box::new(modify(&mut r, &bytes)?)),
        CREDIT => Command::Credit {
            consumer: consumer_ref(&mut r, &bytes)?,
            credit: r.u32("credit")?,
            delivery_count: r.u32("delivery count")?,
            drain: r.flag("drain")?,
        },
        EXPIRE_MESSAGES => Command::Timeout(TimerKey::ExpireMessages),
        CONSUMER_DEADLINES => Command::Timeout(TimerKey::ConsumerDeadlines),
        DLX_ATTACH => Command::DlxAttach { session: r.session()?, prefetch: r.u32("prefetch")? },
        DLX_SETTLE => Command::DlxSettle { session: r.session()?, ids: ids(&mut r)? },
        DELAYED_RETRY_NOW => Command::DelayedRetryNow { count: option(&mut r)? },
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
    let head = enqueue_head(&mut r).ok()?;
    StoredMessage::new(head.meta_size, command.slice(r.position()..))
}

/// Where an enqueue comes from, as it is written.
#[derive(Debug, Clone, Copy)]
pub(super) enum Source {
    /// It is untracked.
    Nowhere,
    /// In full.
    Origin(Origin),
    /// It follows the last one in its entry.
    Next,
}

impl Source {
    pub fn of(origin: Option<Origin>) -> Self {
        origin.map_or(Source::Nowhere, Source::Origin)
    }
}

pub(super) fn put_enqueue(out: &mut BytesMut, source: Source, enqueue: &Enqueue) {
    let Enqueue { delivery_count, priority, ttl_ms, message, .. } = enqueue;
    let traits = Traits { delivery_count: *delivery_count, priority: *priority, ttl_ms: *ttl_ms };
    put_head(out, source, &traits, message.meta_size(), message.container().len());
    out.extend_from_slice(message.container());
}

/// Writes an enqueue whose container is in two parts.
pub(super) fn put_publish(out: &mut BytesMut, source: Source, traits: &Traits, meta: &[u8], body: &[u8]) {
    put_head(out, source, traits, meta.len() as u32, meta.len() + body.len());
    out.extend_from_slice(meta);
    out.extend_from_slice(body);
}

/// Writes what comes before the container.
fn put_head(out: &mut BytesMut, source: Source, traits: &Traits, meta_size: u32, container: usize) {
    let Traits { delivery_count, priority, ttl_ms } = *traits;
    out.reserve(ENQUEUE_OVERHEAD + container);
    out.put_u8(ENQUEUE);
    let flag = |present: bool, flag: u8| if present { flag } else { 0 };
    out.put_u8(
        flag(matches!(source, Source::Origin(_)), WITH_ORIGIN)
            | flag(matches!(source, Source::Next), FOLLOWS)
            | flag(delivery_count > 0, WITH_DELIVERY_COUNT)
            | flag(priority.is_some(), WITH_PRIORITY)
            | flag(ttl_ms.is_some(), WITH_TTL),
    );
    if let Source::Origin(origin) = source {
        put_session(out, &origin.session);
        put_varint(out, origin.seq);
    }
    if delivery_count > 0 {
        put_varint(out, u64::from(delivery_count));
    }
    if let Some(priority) = priority {
        out.put_u8(priority);
    }
    if let Some(ttl) = ttl_ms {
        put_varint(out, ttl);
    }
    put_varint(out, u64::from(meta_size));
}

/// What comes before the container.
struct Head {
    source: Source,
    traits: Traits,
    meta_size: u32,
}

fn enqueue_head(r: &mut Reader<'_>) -> Result<Head, DecodeError> {
    let flags = r.u8()?;
    if flags & !(WITH_ORIGIN | WITH_DELIVERY_COUNT | WITH_PRIORITY | WITH_TTL | FOLLOWS) != 0 {
        return Err(DecodeError::Value("enqueue flags"));
    }
    let with = |flag: u8| flags & flag != 0;
    let source = match (with(WITH_ORIGIN), with(FOLLOWS)) {
        (false, false) => Source::Nowhere,
        (true, false) => Source::Origin(Origin { session: r.session()?, seq: r.varint()? }),
        (false, true) => Source::Next,
        (true, true) => return Err(DecodeError::Value("enqueue flags")),
    };
    let delivery_count = if with(WITH_DELIVERY_COUNT) { r.u32("delivery count")? } else { 0 };
    let priority = if with(WITH_PRIORITY) { Some(r.u8()?) } else { None };
    let ttl_ms = if with(WITH_TTL) { Some(r.varint()?) } else { None };
    let traits = Traits { delivery_count, priority, ttl_ms };
    Ok(Head { source, traits, meta_size: r.u32("meta size")? })
}

fn put_modify(out: &mut BytesMut, modify: &Modify) {
    put_outcome(out, MODIFY, &modify.consumer, &modify.ids);
    let failed = if modify.failed { FAILED } else { 0 };
    let undeliverable = if modify.undeliverable_here { UNDELIVERABLE_HERE } else { 0 };
    out.put_u8(failed | undeliverable);
    put_option(out, modify.deliver_at_ms);
    put_varint(out, modify.annotations.len() as u64);
    for (name, value) in &modify.annotations {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

fn modify(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Modify, DecodeError> {
    let (consumer, ids) = (consumer_ref(r, bytes)?, ids(r)?);
    let flags = r.u8()?;
    if flags & !(FAILED | UNDELIVERABLE_HERE) != 0 {
        return Err(DecodeError::Value("flags of a modification"));
    }
    let deliver_at_ms = option(r)?;
    let count = r.count(2)?;
    if count > MAX_ANNOTATIONS {
        return Err(DecodeError::Value("number of annotations"));
    }
    let mut annotations = Vec::with_capacity(count);
    for _ in 0..count {
        annotations.push((bytes.slice(r.bytes()?), bytes.slice(r.bytes()?)));
    }
    let (failed, undeliverable_here) = (flags & FAILED != 0, flags & UNDELIVERABLE_HERE != 0);
    Ok(Modify { consumer, ids, failed, undeliverable_here, deliver_at_ms, annotations })
}

fn put_attach(out: &mut BytesMut, attach: &Attach) {
    out.put_u8(ATTACH);
    put_consumer_id(out, &attach.consumer);
    put_mode(out, attach.mode);
    put_zigzag(out, i64::from(attach.priority));
    put_meta(out, &attach.meta);
    put_option(out, attach.timeout_ms);
    put_option(out, attach.default_timeout_ms);
}

fn attach(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Attach, DecodeError> {
    Ok(Attach {
        consumer: consumer_id(r, bytes)?,
        mode: mode(r)?,
        priority: r.i32("priority")?,
        meta: meta(r, bytes)?,
        timeout_ms: option(r)?,
        default_timeout_ms: option(r)?,
    })
}

pub(super) fn put_mode(out: &mut impl BufMut, mode: Mode) {
    match mode {
        Mode::SimplePrefetch(n) => {
            out.put_u8(MODE_PREFETCH);
            put_varint(out, u64::from(n));
        }
        Mode::Credited { initial_delivery_count } => {
            out.put_u8(MODE_CREDITED);
            put_varint(out, u64::from(initial_delivery_count));
        }
    }
}

pub(super) fn mode(r: &mut Reader<'_>) -> Result<Mode, DecodeError> {
    match r.u8()? {
        MODE_PREFETCH => Ok(Mode::SimplePrefetch(r.u32("prefetch")?)),
        MODE_CREDITED => Ok(Mode::Credited { initial_delivery_count: r.u32("initial delivery count")? }),
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
    put_ids(out, ids);
}

fn put_ids(out: &mut BytesMut, ids: &MsgIds) {
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
