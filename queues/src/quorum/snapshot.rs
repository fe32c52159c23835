//! The encoded state: the same state always gives the same bytes, on every member.
//!
//! Format 1, in this order (integers are LEB128, see `wire.rs`; lists start with their count): format byte; configuration;
//! the last applied reference; last active; sessions; ready messages that were never handed out; returned messages;
//! consumers with what they hold; the service queue's keys. A message's reference is the distance from the one before it
//! in its list. Indexes and counters that follow from these are not stored.

use std::collections::{BTreeMap, VecDeque};

use bytes::{BufMut, Bytes};
use warren_proto::ids::Reference;

use super::codec;
use super::consumer::{Base, Consumer, Kind, Overlay};
use super::messages::{Message, Messages, PackedFifo};
use super::state::Queue;
use crate::checked_out::CheckedOut;
use crate::consumer::ConsumerKey;
use crate::consumers::{Consumers, Seat};
use crate::enqueuer::Enqueuer;
use crate::sessions::{Session, Sessions};
use crate::wire::{DecodeError, Reader, put_session, put_varint, put_zigzag};

const FORMAT: u8 = 1;

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
        put_lane(&mut out, self.messages.lane());
        put_varint(&mut out, self.messages.returns().len() as u64);
        let mut last = 0;
        for message in self.messages.returns() {
            put_message(&mut out, &mut last, message);
        }
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
        let lane = lane(&mut r)?;
        let mut returns = VecDeque::new();
        let mut last = 0;
        for _ in 0..r.count(5)? {
            returns.push_back(message(&mut r, &mut last)?);
        }
        let mut messages = Messages::restore(lane, returns);
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
        let queue = Queue { config, applied, last_active_ms, messages, sessions, consumers, undecodable: 0 };
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
    out.put_u8(u8::from(state.suspected));
    put_varint(out, u64::from(state.consumers));
    // Sequence numbers start at 1.
    put_varint(out, state.enqueuer.map_or(0, |enqueuer| enqueuer.next_seq));
}

fn known_session(r: &mut Reader<'_>) -> Result<Session, DecodeError> {
    let suspected = r.flag("suspected")?;
    let consumers = r.u32("consumers of a session")?;
    let next_seq = r.varint()?;
    Ok(Session { suspected, consumers, enqueuer: (next_seq > 0).then_some(Enqueuer { next_seq }) })
}

fn put_lane(out: &mut Vec<u8>, lane: &PackedFifo) {
    put_varint(out, lane.len() as u64);
    let mut last = 0;
    for message in lane.iter() {
        put_varint(out, message.reference.0 - last);
        put_varint(out, u64::from(message.size) << 1 | u64::from(message.carried > 0));
        if message.carried > 0 {
            put_varint(out, u64::from(message.carried));
        }
        last = message.reference.0;
    }
}

fn lane(r: &mut Reader<'_>) -> Result<PackedFifo, DecodeError> {
    let mut lane = PackedFifo::default();
    let mut last = 0u64;
    for _ in 0..r.count(2)? {
        let step = r.varint()?;
        if step == 0 {
            return Err(DecodeError::Value("order of references"));
        }
        last = last.checked_add(step).ok_or(DecodeError::Value("reference"))?;
        let size = r.varint()?;
        let carried = if size & 1 == 0 { 0 } else { r.u32("carried delivery count")? };
        let size = u32::try_from(size >> 1).map_err(|_| DecodeError::Value("size"))?;
        lane.push(Reference(last), size, carried);
    }
    Ok(lane)
}

fn put_message(out: &mut Vec<u8>, last: &mut u64, message: &Message) {
    put_zigzag(out, message.reference.0.wrapping_sub(*last) as i64);
    *last = message.reference.0;
    for field in [message.size, message.acquired_count, message.delivery_count, message.carried] {
        put_varint(out, u64::from(field));
    }
}

fn message(r: &mut Reader<'_>, last: &mut u64) -> Result<Message, DecodeError> {
    *last = last.wrapping_add(r.zigzag()? as u64);
    Ok(Message {
        reference: Reference(*last),
        size: r.u32("size")?,
        acquired_count: r.u32("acquired count")?,
        delivery_count: r.u32("delivery count")?,
        carried: r.u32("carried delivery count")?,
    })
}

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
    });
    match consumer.overlay {
        Overlay::None => out.put_u8(0),
        Overlay::Suspected { since_ms } => {
            out.put_u8(1);
            put_varint(out, since_ms);
        }
    }
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
    let base = if r.flag("consumer status")? { Base::Cancelled } else { Base::Up };
    let overlay =
        if r.flag("consumer overlay")? { Overlay::Suspected { since_ms: r.varint()? } } else { Overlay::None };
    let next_id = r.varint()?;
    if next_id >= MAX_MSG_ID {
        return Err(DecodeError::Value("message id"));
    }
    let mut held = BTreeMap::new();
    let (mut last, mut id_above) = (0, 0u64);
    for _ in 0..r.count(6)? {
        id_above = id_above.saturating_add(r.varint()?);
        if id_above >= next_id || held.insert(id_above, message(r, &mut last)?).is_some() {
            return Err(DecodeError::Value("message id"));
        }
    }
    let held = CheckedOut::restore(next_id, held);
    Ok(Consumer { seat: Seat::new(id, key, priority), kind, mode, meta, base, overlay, held })
}
