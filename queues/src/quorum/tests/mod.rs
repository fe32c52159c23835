//! A queue with a log of its own, for tests.

mod codec;
mod consumer_timeout;
mod controls;
mod counts;
mod credit;
mod dead_letters;
mod delayed_retry;
mod delivering;
mod expiry;
mod hostile;
mod limits;
mod model;
mod ops;
mod priorities;
mod property;
mod publishing;
mod recorded;
mod sessions;
mod single_active;
mod snapshots;

use bytes::Bytes;
use warren_proto::batch::{Batch, BatchBuilder};
use warren_proto::ids::{MachineVersion, NodeId, Reference, SessionRef};

use super::*;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
use crate::enqueuer::Origin;
use crate::message::StoredMessage;
use crate::msg_ids::MsgIds;
use crate::session::SessionLoss;

/// One member: it encodes each command, reads it back as a member does, and applies it.
pub(super) struct Member {
    pub queue: Queue,
    pub version: MachineVersion,
    pub index: u64,
    pub ts_ms: u64,
    /// Effects of the last command.
    pub fx: Effects,
}

impl Member {
    pub fn new(version: MachineVersion) -> Self {
        Member::with(version, Config::default())
    }

    pub fn with(version: MachineVersion, config: Config) -> Self {
        Member { queue: Queue::new(config), version, index: 1, ts_ms: 1_000_000, fx: Effects::new() }
    }

    pub fn apply(&mut self, command: Command) -> Reply {
        self.index += 1;
        self.fx.clear();
        let mut batch = BatchBuilder::new(self.version);
        Encoder::for_group(self.version).encode(&command, &mut batch).unwrap();
        let bytes = Batch::parse(batch.finish(self.ts_ms)).unwrap().get(0).unwrap();
        let reply = self.queue.apply_encoded(&self.meta(), &mut Decoder::new(self.version), bytes, &mut self.fx);
        self.queue.check_invariants().unwrap();
        reply
    }

    pub fn meta(&self) -> Meta {
        Meta { reference: Reference::new(self.index, 0), term: 1, ts_ms: self.ts_ms, version: self.version }
    }

    pub fn publish(&mut self, count: usize) {
        for _ in 0..count {
            assert_eq!(self.apply(publish(None, 10)), Reply::Ok);
        }
    }

    /// Publishes many, without a look at the whole state after each.
    pub fn fill(&mut self, count: usize) {
        for _ in 0..count {
            self.index += 1;
            let meta = self.meta();
            self.queue.apply(&meta, publish(None, 4), &mut self.fx);
            self.fx.clear();
        }
    }

    pub fn attach(&mut self, id: &ConsumerId, prefetch: u32) -> ConsumerKey {
        self.attach_at(id, prefetch, 0)
    }

    pub fn attach_at(&mut self, id: &ConsumerId, prefetch: u32, priority: i32) -> ConsumerKey {
        match self.apply(attach(id, prefetch, priority)) {
            Reply::Attached { key, .. } => key,
            other => panic!("{other:?}"),
        }
    }

    pub fn get(&mut self, tag: &str) -> (ConsumerKey, Delivered) {
        match self.apply(Command::Dequeue { consumer: consumer(1, tag), settled: false, default_timeout_ms: None }) {
            Reply::Got { key, message, .. } => (key, message),
            other => panic!("{other:?}"),
        }
    }

    pub fn settle(&mut self, key: ConsumerKey, ids: impl IntoIterator<Item = u64>) {
        assert_eq!(self.apply(Command::Settle { consumer: key.into(), ids: MsgIds::from_iter(ids) }), Reply::Ok);
    }

    pub fn give_back(&mut self, key: ConsumerKey, ids: impl IntoIterator<Item = u64>, failed: bool) {
        let command = Command::Return { consumer: key.into(), ids: MsgIds::from_iter(ids), failed };
        assert_eq!(self.apply(command), Reply::Ok);
    }

    /// What the last command delivered: consumer and message, in order.
    pub fn delivered(&self) -> Vec<(ConsumerKey, Delivered)> {
        let mut all = Vec::new();
        for effect in self.fx.iter() {
            if let Effect::Deliver(deliver) = effect {
                all.extend(deliver.messages.iter().map(|m| (deliver.key, m.clone())));
            }
        }
        all
    }

    /// Log indexes of what the last command delivered.
    pub fn delivered_indexes(&self) -> Vec<u64> {
        self.delivered().iter().map(|(_, m)| m.reference.index()).collect()
    }

    pub fn effects(&self) -> Vec<Effect> {
        self.fx.iter().cloned().collect()
    }
}

pub(super) fn session(node: u64, id: u64) -> SessionRef {
    SessionRef { node: NodeId(node), incarnation: 7, id }
}

pub(super) fn consumer(node: u64, tag: &str) -> ConsumerId {
    ConsumerId { session: session(node, 1), tag: Bytes::copy_from_slice(tag.as_bytes()) }
}

pub(super) fn publish(origin: Option<(SessionRef, u64)>, size: usize) -> Command {
    let message = StoredMessage::new(3, Bytes::from(vec![b'x'; size + 3])).unwrap();
    let origin = origin.map(|(session, seq)| Origin { session, seq });
    Command::Enqueue(Enqueue { origin, delivery_count: 0, priority: None, ttl_ms: None, message })
}

pub(super) fn attach(id: &ConsumerId, prefetch: u32, priority: i32) -> Command {
    Command::Attach(Box::new(Attach {
        consumer: id.clone(),
        mode: Mode::SimplePrefetch(prefetch),
        priority,
        timeout_ms: None,
        default_timeout_ms: None,
        meta: ConsumerMeta { ack: true, args: Bytes::new(), username: Bytes::from_static(b"guest") },
    }))
}

pub(super) fn down(session: SessionRef, loss: SessionLoss) -> Command {
    Command::SessionDown { session, loss }
}

pub(super) fn by_key(key: ConsumerKey) -> ConsumerRef {
    key.into()
}

/// Where dead messages go: published once, or kept until they have arrived.
pub(super) fn dead_letter(kept: bool) -> Option<DeadLetter> {
    let strategy = if kept { DeadLetterStrategy::AtLeastOnce } else { DeadLetterStrategy::AtMostOnce };
    Some(DeadLetter { exchange: "dead".to_owned(), routing_key: None, strategy })
}

/// What was published as dead by the last command: why, and the log index.
pub(super) fn died(m: &Member) -> Vec<(DeadReason, u64)> {
    let dead = |effect: &Effect| match effect {
        Effect::DeadLetter { reason, messages } => {
            Some(messages.iter().map(|d| (*reason, d.reference.index())).collect::<Vec<_>>())
        }
        _ => None,
    };
    m.fx.iter().filter_map(dead).flatten().collect()
}
