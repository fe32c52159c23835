//! The messages of a queue: which are ready in what order, how many there are, and how many bytes.
//!
//! Consumers hold what is checked out; every message passes through here on its way to them and back, so that the
//! counters are kept in one place.

mod packed;

use std::collections::VecDeque;

use warren_proto::ids::Reference;

pub(super) use packed::PackedFifo;

/// Log bytes that a dead enqueue frees beyond its body.
const ENQUEUE_OVERHEAD: u64 = 256;

/// A message outside the packed ready lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Message {
    pub reference: Reference,
    /// Bytes of body.
    pub size: u32,
    /// Times that it was given back.
    pub acquired_count: u32,
    /// Those of them that count as failed, in this queue: what the delivery limit looks at.
    pub delivery_count: u32,
    /// Failed deliveries in the queues that it came from.
    pub carried: u32,
}

/// How a message is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReturnRule {
    pub failed: bool,
    pub limit: Option<u32>,
    pub compare: Compare,
}

/// The count that the delivery limit looks at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Compare {
    /// Version 1.
    Acquired,
    /// From version 2.
    Deliveries,
}

impl ReturnRule {
    /// Counts the return. Whether the message may stay.
    fn count(self, message: &mut Message) -> bool {
        message.acquired_count = message.acquired_count.saturating_add(1);
        if self.failed {
            message.delivery_count = message.delivery_count.saturating_add(1);
        }
        let count = match self.compare {
            Compare::Acquired => message.acquired_count,
            Compare::Deliveries => message.delivery_count,
        };
        self.limit.is_none_or(|limit| count <= limit)
    }
}

/// Numbers of messages and bytes of their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub held: u64,
    pub ready_bytes: u64,
    pub held_bytes: u64,
}

/// Ready messages in order, and the counters of all.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Never handed out, in log order.
    lane: PackedFifo,
    /// Given back, in the order of their return; served before the lane.
    returns: VecDeque<Message>,
    totals: Totals,
    /// Not state: what a snapshot could free since the last one.
    reclaimable: u64,
}

impl Messages {
    /// As decoded from a snapshot: what consumers hold is added with [`restore_held`](Self::restore_held).
    pub fn restore(lane: PackedFifo, returns: VecDeque<Message>) -> Self {
        let ready_bytes = lane.iter().chain(returns.iter().copied()).map(|m| u64::from(m.size)).sum();
        Messages { lane, returns, totals: Totals { ready_bytes, ..Totals::default() }, reclaimable: 0 }
    }

    pub fn restore_held(&mut self, message: &Message) {
        self.totals.held += 1;
        self.totals.held_bytes += u64::from(message.size);
    }

    pub fn ready(&self) -> u64 {
        (self.lane.len() + self.returns.len()) as u64
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn lane(&self) -> &PackedFifo {
        &self.lane
    }

    pub fn returns(&self) -> &VecDeque<Message> {
        &self.returns
    }

    pub fn enqueue(&mut self, reference: Reference, size: u32, carried: u32) {
        self.lane.push(reference, size, carried);
        self.totals.ready_bytes += u64::from(size);
    }

    /// An enqueue that turned out to be a duplicate, or out of order.
    pub fn refused(&mut self, size: u32) {
        self.reclaimed(u64::from(size) + ENQUEUE_OVERHEAD);
    }

    /// Hands out the next message: the caller holds it from here on.
    pub fn take(&mut self) -> Option<Message> {
        let message = self.returns.pop_front().or_else(|| self.lane.pop())?;
        self.totals.ready_bytes -= u64::from(message.size);
        self.totals.held_bytes += u64::from(message.size);
        self.totals.held += 1;
        Some(message)
    }

    /// A held message is gone for good.
    pub fn release(&mut self, message: &Message) {
        self.totals.held_bytes -= u64::from(message.size);
        self.totals.held -= 1;
        self.reclaimed(u64::from(message.size) + ENQUEUE_OVERHEAD);
    }

    /// A held message comes back. False if it was dropped instead: it has come back too often.
    pub fn give_back(&mut self, mut message: Message, rule: ReturnRule) -> bool {
        if !rule.count(&mut message) {
            self.release(&message);
            return false;
        }
        self.totals.held_bytes -= u64::from(message.size);
        self.totals.held -= 1;
        self.totals.ready_bytes += u64::from(message.size);
        self.returns.push_back(message);
        true
    }

    /// Drops all that is ready. Answers how many.
    pub fn purge(&mut self) -> u64 {
        let count = self.ready();
        self.reclaimed(self.totals.ready_bytes + count * ENQUEUE_OVERHEAD);
        self.lane = PackedFifo::default();
        self.returns = VecDeque::new();
        self.totals.ready_bytes = 0;
        count
    }

    pub fn reclaimed(&mut self, bytes: u64) {
        self.reclaimable = self.reclaimable.saturating_add(bytes);
    }

    pub fn reclaimable(&self) -> u64 {
        self.reclaimable
    }

    pub fn reset_reclaimable(&mut self) {
        self.reclaimable = 0;
    }
}
