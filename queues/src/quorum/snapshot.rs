//! The encoded state: the same state always gives the same bytes, on every member.
//!
//! Format 2, in this order (integers are LEB128, see `wire.rs`; lists start with their count): format byte; configuration;
//! the last applied reference; last active; sessions; whose turn it is among the lanes, and each lane that is not empty with
//! its priority; returned messages; delayed messages with their times; dead messages that are kept, the next message id of
//! their worker, and the worker with what it holds; consumers with what they hold; the service queue's keys. A message's
//! reference is the distance from the one before it in its list. Indexes and counters that follow from these are not stored.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use bytes::{BufMut, Bytes};
use warren_proto::ids::Reference;

use super::codec;
use super::consumer::{Base, Consumer, Kind};
use super::dlx::{Dead, Dlx, Worker};
use super::effects::DeadReason;
use super::messages::{Annotations, Lanes, MAX_PRIORITY, Message, Messages, PackedFifo, When};
use super::state::Queue;
use crate::checked_out::CheckedOut;
use crate::consumer::ConsumerKey;
use crate::consumers::{Consumers, Seat};
use crate::enqueuer::Enqueuer;
use crate::sessions::{Session, Sessions};
use crate::wire::{DecodeError, Reader, option, put_bytes, put_option, put_session, put_varint, put_zigzag};

const FORMAT: u8 = 2;

/// Message ids stay below this, so that counting on from a decoded one cannot overflow.
const MAX_MSG_ID: u64 = 1 << 62;

impl Queue {
    /// The state without bodies.
    pub fn encode_state(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(256 + 4 * self.messages.ready() as usize);
        out.put_u8(FORMAT);
        codec::put_config(&mut out, &self.config);
        put_varint(&mut out, self.applied.0);
        put_varint(&mut out, self.last_active_ms);
        put_varint(&mut out, self.sessions.len() as u64);
        for (session, state) in self.sessions.iter() {
            put_known_session(&mut out, session, state);
        }
        let lanes = self.messages.lanes();
        out.put_u8(lanes.turn());
        put_varint(&mut out, lanes.iter().count() as u64);
        for (priority, lane) in lanes.iter() {
            out.put_u8(priority);
            put_lane(&mut out, lane);
        }
        put_varint(&mut out, self.messages.returns().len() as u64);
        let mut last = 0;
        for message in self.messages.returns() {
            put_message(&mut out, &mut last, message);
        }
        put_varint(&mut out, self.messages.delayed().len() as u64);
        let (mut last, mut last_at) = (0, 0);
        for ((at, _), message) in self.messages.delayed() {
            put_varint(&mut out, at - last_at);
            last_at = *at;
            put_message(&mut out, &mut last, message);
        }
        put_dlx(&mut out, &self.dlx);
        put_varint(&mut out, self.consumers.len() as u64);
        for consumer in self.consumers.iter() {
            put_consumer(&mut out, consumer);
        }
        put_varint(&mut out, self.consumers.service().iter().count() as u64);
        for (_, key) in self.consumers.service().iter() {
            put_varint(&mut out, key.0);
        }
        out
    }

    /// The state that [`encode_state`](Self::encode_state) wrote. Bytes that cannot be one are refused.
    pub fn decode_state(state: &[u8]) -> Result<Queue, DecodeError> {
        let bytes = Bytes::copy_from_slice(state);
        let mut r = Reader::new(&bytes);
        if r.u8()? != FORMAT {
            return Err(DecodeError::Value("state format"));
        }
        let config = codec::config(&mut r)?;
        let applied = Reference(r.varint()?);
        let last_active_ms = r.varint()?;
        let mut sessions = Sessions::default();
        let mut last_session = None;
        for _ in 0..r.count(18)? {
            let (session, state) = (r.session()?, known_session(&mut r)?);
            if last_session.replace(session) >= Some(session) {
                return Err(DecodeError::Value("order of sessions"));
            }
            sessions.restore(session, state);
        }
        let mut lanes = Lanes::default();
        lanes.restore_turn(r.u8()?);
        let mut above = None;
        for _ in 0..r.count(2)? {
            let priority = r.u8()?;
            if priority > MAX_PRIORITY || above.replace(priority).is_some_and(|above| above <= priority) {
                return Err(DecodeError::Value("order of priorities"));
            }
            lanes.restore(priority, lane(&mut r)?);
        }
        let mut returns = VecDeque::new();
        let mut last = 0;
        for _ in 0..r.count(5)? {
            returns.push_back(message(&mut r, &bytes, &mut last)?);
        }
        let mut delayed = BTreeMap::new();
        let (mut last, mut at) = (0, 0u64);
        for _ in 0..r.count(6)? {
            at = at.checked_add(r.varint()?).ok_or(DecodeError::Value("time"))?;
            let message = message(&mut r, &bytes, &mut last)?;
            if delayed.insert((at, message.reference), message).is_some() {
                return Err(DecodeError::Value("delayed message"));
            }
        }
        let dlx = dlx(&mut r, &bytes)?;
        let mut messages = Messages::restore(lanes, returns, delayed);
        let mut consumers = Consumers::default();
        let mut last_key = None;
        for _ in 0..r.count(24)? {
            let consumer = consumer(&mut r, &bytes)?;
            let key = consumer.seat.key;
            if last_key.replace(key) >= Some(key) || consumers.by_id(&consumer.seat.id).is_some() {
                return Err(DecodeError::Value("consumers"));
            }
            consumer.held.iter().for_each(|(_, message)| messages.restore_held(message));
            consumers.insert(consumer);
        }
        for _ in 0..r.count(1)? {
            if !consumers.enlist_restored(ConsumerKey(r.varint()?)) {
                return Err(DecodeError::Value("service queue"));
            }
        }
        r.end()?;
        let mut queue = Queue {
            config,
            applied,
            last_active_ms,
            messages,
            sessions,
            consumers,
            dlx,
            armed_expiry: None,
            armed_deadline: None,
            undecodable: 0,
        };
        queue.armed_expiry = queue.messages.next_due();
        queue.armed_deadline = queue.next_deadline();
        queue.check_invariants().map_err(|_| DecodeError::Value("state"))?;
        Ok(queue)
    }

    /// A number that equal states share: FNV-1a of the encoded state.
    pub fn digest(&self) -> u64 {
        self.encode_state()
            .iter()
            .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3))
    }
}

fn put_known_session(out: &mut Vec<u8>, session: &warren_proto::ids::SessionRef, state: &Session) {
    put_session(out, session);
    let blocked = state.enqueuer.is_some_and(|enqueuer| enqueuer.blocked);
    out.put_u8(u8::from(state.suspected) | u8::from(blocked) << 1);
    put_varint(out, u64::from(state.consumers));
    // Sequence numbers start at 1.
    put_varint(out, state.enqueuer.map_or(0, |enqueuer| enqueuer.next_seq));
}

fn known_session(r: &mut Reader<'_>) -> Result<Session, DecodeError> {
    let flags = r.u8()?;
    let consumers = r.u32("consumers of a session")?;
    let next_seq = r.varint()?;
    let (suspected, blocked) = (flags & 1 != 0, flags & 2 != 0);
    if flags > 3 || (blocked && next_seq == 0) {
        return Err(DecodeError::Value("session flags"));
    }
    Ok(Session { suspected, consumers, enqueuer: (next_seq > 0).then_some(Enqueuer { next_seq, blocked }) })
}

const WITH_CARRIED: u64 = 1;
const WITH_EXPIRY: u64 = 2;

fn put_lane(out: &mut Vec<u8>, lane: &PackedFifo) {
    put_varint(out, lane.len() as u64);
    let (mut last, mut last_expiry) = (0, 0);
    for message in lane.iter() {
        let carried = message.carried();
        put_varint(out, message.reference.0 - last);
        let flags = if carried > 0 { WITH_CARRIED } else { 0 } | message.expiry.get().map_or(0, |_| WITH_EXPIRY);
        put_varint(out, u64::from(message.size) << 2 | flags);
        if carried > 0 {
            put_varint(out, u64::from(carried));
        }
        if let Some(expiry) = message.expiry.get() {
            put_zigzag(out, expiry as i64 - last_expiry);
            last_expiry = expiry as i64;
        }
        last = message.reference.0;
    }
}

fn lane(r: &mut Reader<'_>) -> Result<PackedFifo, DecodeError> {
    let mut lane = PackedFifo::default();
    let (mut last, mut last_expiry) = (0u64, 0i64);
    for _ in 0..r.count(2)? {
        let step = r.varint()?;
        if step == 0 {
            return Err(DecodeError::Value("order of references"));
        }
        last = last.checked_add(step).ok_or(DecodeError::Value("reference"))?;
        let size = r.varint()?;
        let carried = if size & WITH_CARRIED == 0 { 0 } else { r.u32("carried delivery count")? };
        let mut expiry = When::NEVER;
        if size & WITH_EXPIRY != 0 {
            last_expiry = last_expiry.wrapping_add(r.zigzag()?);
            expiry = When::at(u64::try_from(last_expiry).map_err(|_| DecodeError::Value("expiry"))?);
        }
        let size = u32::try_from(size >> 2).map_err(|_| DecodeError::Value("size"))?;
        lane.push(Reference(last), size, carried, expiry);
    }
    Ok(lane)
}

fn put_message(out: &mut Vec<u8>, last: &mut u64, message: &Message) {
    put_zigzag(out, message.reference.0.wrapping_sub(*last) as i64);
    *last = message.reference.0;
    for field in [message.size, message.acquired_count, message.delivery_count, message.carried()] {
        put_varint(out, u64::from(field));
    }
    put_option(out, message.expiry.get());
    put_option(out, message.deadline.get());
    let none = Annotations::default();
    let annotations = message.annotations().unwrap_or(&none);
    put_varint(out, annotations.len() as u64);
    for (name, value) in annotations.iter() {
        put_bytes(out, name);
        put_bytes(out, value);
    }
}

fn message(r: &mut Reader<'_>, bytes: &Bytes, last: &mut u64) -> Result<Message, DecodeError> {
    *last = last.wrapping_add(r.zigzag()? as u64);
    let size = r.u32("size")?;
    let (acquired_count, delivery_count) = (r.u32("acquired count")?, r.u32("delivery count")?);
    let carried = r.u32("carried delivery count")?;
    let (expiry, deadline) = (When::from(option(r)?), When::from(option(r)?));
    let mut notes = Vec::new();
    for _ in 0..r.count(2)? {
        notes.push((bytes.slice(r.bytes()?), bytes.slice(r.bytes()?)));
    }
    let mut message = Message::fresh(Reference(*last), size, carried, expiry);
    (message.acquired_count, message.delivery_count, message.deadline) = (acquired_count, delivery_count, deadline);
    message.annotate(&notes);
    Ok(message)
}

fn put_dead(out: &mut Vec<u8>, last: &mut u64, (reason, message): &Dead) {
    out.put_u8(match reason {
        DeadReason::Rejected => 0,
        DeadReason::DeliveryLimit => 1,
        DeadReason::Expired => 2,
        DeadReason::MaxLen => 3,
    });
    put_message(out, last, message);
}

fn dead(r: &mut Reader<'_>, bytes: &Bytes, last: &mut u64) -> Result<Dead, DecodeError> {
    let reason = match r.u8()? {
        0 => DeadReason::Rejected,
        1 => DeadReason::DeliveryLimit,
        2 => DeadReason::Expired,
        3 => DeadReason::MaxLen,
        _ => return Err(DecodeError::Value("reason of death")),
    };
    Ok((reason, message(r, bytes, last)?))
}

fn put_dlx(out: &mut Vec<u8>, dlx: &Dlx) {
    put_varint(out, dlx.discards().len() as u64);
    let mut last = 0;
    for message in dlx.discards() {
        put_dead(out, &mut last, message);
    }
    put_varint(out, dlx.next_id());
    let Some(worker) = dlx.worker() else {
        out.put_u8(0);
        return;
    };
    out.put_u8(1);
    put_session(out, &worker.session);
    put_varint(out, u64::from(worker.prefetch));
    put_varint(out, worker.held.len() as u64);
    let (mut last, mut last_id) = (0, 0);
    for (id, message) in worker.held.iter() {
        put_varint(out, id - last_id);
        last_id = id;
        put_dead(out, &mut last, message);
    }
}

fn dlx(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Dlx, DecodeError> {
    let mut discards = VecDeque::new();
    let mut last = 0;
    for _ in 0..r.count(6)? {
        discards.push_back(dead(r, bytes, &mut last)?);
    }
    let next_id = next_id(r)?;
    if !r.flag("worker")? {
        return Ok(Dlx::restore(discards, None, next_id));
    }
    let session = r.session()?;
    let prefetch = r.u32("prefetch of the worker")?;
    let held = held(r, next_id, 7, |r, last| dead(r, bytes, last))?;
    Ok(Dlx::restore(discards, Some(Worker { session, prefetch, held }), next_id))
}

fn next_id(r: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let next_id = r.varint()?;
    if next_id < MAX_MSG_ID { Ok(next_id) } else { Err(DecodeError::Value("message id")) }
}

/// What somebody holds: ids below the next one that ascend, each with what it stands for, of `least` bytes.
fn held<T>(
    r: &mut Reader<'_>,
    next_id: u64,
    least: usize,
    mut one: impl FnMut(&mut Reader<'_>, &mut u64) -> Result<T, DecodeError>,
) -> Result<CheckedOut<T>, DecodeError> {
    let mut held = BTreeMap::new();
    let (mut last, mut id_above) = (0, 0u64);
    for _ in 0..r.count(least)? {
        id_above = id_above.saturating_add(r.varint()?);
        if id_above >= next_id || held.insert(id_above, one(r, &mut last)?).is_some() {
            return Err(DecodeError::Value("message id"));
        }
    }
    Ok(CheckedOut::restore(next_id, held))
}

const WAITING: u8 = 1;
const DRAIN: u8 = 2;

fn put_consumer(out: &mut Vec<u8>, consumer: &Consumer) {
    put_varint(out, consumer.seat.key.0);
    codec::put_consumer_id(out, &consumer.seat.id);
    out.put_u8(match consumer.kind {
        Kind::Subscription => 0,
        Kind::Dequeue => 1,
    });
    codec::put_mode(out, consumer.mode);
    put_zigzag(out, i64::from(consumer.seat.priority));
    codec::put_meta(out, &consumer.meta);
    out.put_u8(match consumer.base {
        Base::Up => 0,
        Base::Cancelled => 1,
        Base::Quiescing => 2,
    });
    out.put_u8(if consumer.waiting { WAITING } else { 0 } | if consumer.drain { DRAIN } else { 0 });
    put_option(out, consumer.suspected);
    put_option(out, consumer.timeout_ms);
    put_varint(out, consumer.timed_out.len() as u64);
    let mut last_id = 0;
    for id in &consumer.timed_out {
        put_varint(out, id - last_id);
        last_id = *id;
    }
    put_varint(out, u64::from(consumer.granted));
    put_varint(out, u64::from(consumer.delivery_count));
    put_varint(out, consumer.held.next_id());
    put_varint(out, consumer.held.len() as u64);
    let (mut last, mut last_id) = (0, 0);
    for (id, message) in consumer.held.iter() {
        put_varint(out, id - last_id);
        last_id = id;
        put_message(out, &mut last, message);
    }
}

fn consumer(r: &mut Reader<'_>, bytes: &Bytes) -> Result<Consumer, DecodeError> {
    let key = ConsumerKey(r.varint()?);
    let id = codec::consumer_id(r, bytes)?.detached();
    let kind = if r.flag("consumer kind")? { Kind::Dequeue } else { Kind::Subscription };
    let mode = codec::mode(r)?;
    let priority = r.i32("priority")?;
    let meta = codec::meta(r, bytes)?.detached();
    let base = match r.u8()? {
        0 => Base::Up,
        1 => Base::Cancelled,
        2 => Base::Quiescing,
        _ => return Err(DecodeError::Value("consumer status")),
    };
    let flags = r.u8()?;
    if flags & !(WAITING | DRAIN) != 0 {
        return Err(DecodeError::Value("consumer flags"));
    }
    let (suspected, timeout_ms) = (option(r)?, option(r)?);
    let mut timed_out = BTreeSet::new();
    let mut last_id = 0u64;
    for _ in 0..r.count(1)? {
        last_id = last_id.saturating_add(r.varint()?);
        timed_out.insert(last_id);
    }
    let (granted, delivery_count) = (r.u32("credit")?, r.u32("delivery count")?);
    let next_id = next_id(r)?;
    let held = held(r, next_id, 9, |r, last| message(r, bytes, last))?;
    Ok(Consumer {
        seat: Seat::new(id, key, priority),
        kind,
        mode,
        meta,
        base,
        waiting: flags & WAITING != 0,
        suspected,
        timeout_ms,
        timed_out,
        held,
        granted,
        delivery_count,
        drain: flags & DRAIN != 0,
    })
}
