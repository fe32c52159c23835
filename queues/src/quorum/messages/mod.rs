//! The messages of a queue: which are ready in what order, how many there are, and how many bytes.
//!
//! Consumers hold what is checked out, the [`Dlx`](super::dlx::Dlx) what is dead and kept; every message passes through here
//! on its way to them and back, so that the counters are kept in one place.

mod lanes;
mod message;
mod packed;

use std::collections::{BTreeMap, VecDeque};

use warren_proto::ids::{MachineVersion, Reference};

use super::config::{DelayedRetry, RetryOn};
use crate::defect::{Defect, broken};

pub(super) use lanes::{Lanes, MAX_PRIORITY};
pub use message::Annotations;
pub(super) use message::{Message, When};
pub(super) use packed::PackedFifo;

/// Log bytes that a dead enqueue frees beyond its body.
const ENQUEUE_OVERHEAD: u64 = 256;

/// How a message is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct ReturnRule {
    pub failed: bool,
    pub limit: Option<u32>,
    pub compare: Compare,
    pub retry: Option<DelayedRetry>,
    /// When the consumer wants it to be ready again; wins over `retry`.
    pub deliver_at: Option<u64>,
    pub now_ms: u64,
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
    /// Whether the message, with its return counted, has come back too often.
    fn exceeded(&self, message: &Message) -> bool {
        let count = match self.compare {
            Compare::Acquired => message.acquired_count,
            Compare::Deliveries => message.delivery_count,
        };
        self.limit.is_some_and(|limit| count + u32::from(broken(Defect::LimitTooLow)) > limit)
    }

    /// When the message is to be ready again, if not at once.
    fn ready_at(&self, message: &Message) -> Option<u64> {
        if let Some(at) = self.deliver_at {
            return Some(at).filter(|at| *at > self.now_ms);
        }
        let retry = self.retry.filter(|retry| match retry.on {
            RetryOn::All => true,
            RetryOn::Failed => self.failed,
            RetryOn::Returned => !self.failed,
        })?;
        let delay = retry.min_ms.saturating_mul(u64::from(message.delivery_count.max(1))).min(retry.max_ms);
        (delay > 0).then(|| self.now_ms.saturating_add(delay))
    }
}

/// Numbers of messages and bytes of their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub held: u64,
    pub ready_bytes: u64,
    pub delayed_bytes: u64,
    pub held_bytes: u64,
}

/// Messages that nobody holds, and the counters of those that consumers hold.
#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Never handed out.
    lanes: Lanes,
    /// Given back, in the order of their return; served before the lanes.
    returns: VecDeque<Message>,
    /// Given back and not ready before their time.
    delayed: BTreeMap<(u64, Reference), Message>,
    totals: Totals,
    /// Not state: how many in the lanes and returns have an expiry time.
    expiring: u64,
    /// Not state: what a snapshot could free since the last one.
    reclaimable: u64,
}

impl Messages {
    /// As decoded from a snapshot: what consumers hold is added with [`restore_held`](Self::restore_held).
    pub fn restore(lanes: Lanes, returns: VecDeque<Message>, delayed: BTreeMap<(u64, Reference), Message>) -> Self {
        let ready = || lanes.messages().chain(returns.iter().cloned());
        let totals = Totals {
            ready_bytes: ready().map(|m| u64::from(m.size)).sum(),
            delayed_bytes: delayed.values().map(|m| u64::from(m.size)).sum(),
            ..Totals::default()
        };
        let expiring = ready().filter(|m| m.expiry != When::NEVER).count() as u64;
        Messages { lanes, returns, delayed, totals, expiring, reclaimable: 0 }
    }

    pub fn restore_held(&mut self, message: &Message) {
        self.totals.held += 1;
        self.totals.held_bytes += u64::from(message.size);
    }

    pub fn ready(&self) -> u64 {
        (self.lanes.len() + self.returns.len()) as u64
    }

    /// Those that nobody holds, ready or not.
    pub fn waiting(&self) -> u64 {
        self.ready() + self.delayed.len() as u64
    }

    /// Bytes of the same.
    pub fn waiting_bytes(&self) -> u64 {
        self.totals.ready_bytes + self.totals.delayed_bytes
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn lanes(&self) -> &Lanes {
        &self.lanes
    }

    pub fn returns(&self) -> &VecDeque<Message> {
        &self.returns
    }

    pub fn delayed(&self) -> &BTreeMap<(u64, Reference), Message> {
        &self.delayed
    }

    #[allow(clippy::too_many_arguments)]
    pub fn enqueue(
        &mut self,
        priority: Option<u8>,
        version: MachineVersion,
        reference: Reference,
        size: u32,
        carried: u32,
        expiry: When,
    ) {
        self.lanes.push(priority, version, reference, size, carried, expiry);
        self.totals.ready_bytes += u64::from(size);
        self.expiring += u64::from(expiry != When::NEVER);
    }

    /// An enqueue that turned out to be a duplicate, or out of order.
    pub fn refused(&mut self, size: u32) {
        self.reclaimed(u64::from(size) + ENQUEUE_OVERHEAD);
    }

    /// Hands out the next message: the caller holds it from here on.
    pub fn take(&mut self, version: MachineVersion) -> Option<Message> {
        let message = self.take_ready(version)?;
        self.totals.held_bytes += u64::from(message.size);
        self.totals.held += 1;
        Some(message)
    }

    /// Takes the next message out of the queue.
    pub fn take_ready(&mut self, version: MachineVersion) -> Option<Message> {
        let message = self.returns.pop_front().or_else(|| self.lanes.take(version))?;
        self.left(&message);
        Some(message)
    }

    /// Takes the message that makes room for others out of the queue: the next one, or else the first that is delayed.
    pub fn take_dropped(&mut self, version: MachineVersion) -> Option<Message> {
        if broken(Defect::DropPassesReturns)
            && let Some(message) = self.lanes.take(version)
        {
            self.left(&message);
            return Some(message);
        }
        self.take_ready(version).or_else(|| self.take_delayed())
    }

    /// Takes a message out of the queue that has expired and is at a head: of the returned ones, then of the lanes from the
    /// highest to the lowest.
    pub fn take_expired(&mut self, now_ms: u64) -> Option<Message> {
        if self.expiring == 0 {
            return None;
        }
        let message = match self.returns.pop_front_if(|m| m.expiry.is_past(now_ms)) {
            Some(message) => message,
            None => self.lanes.take_expired(now_ms)?,
        };
        self.left(&message);
        Some(message)
    }

    /// Takes the delayed message out of the queue that would be ready first.
    pub fn take_delayed(&mut self) -> Option<Message> {
        let first = match broken(Defect::LateCountsUp) {
            true => self.delayed.keys().copied().min_by_key(|(_, reference)| *reference)?,
            false => *self.delayed.first_key_value()?.0,
        };
        let message = self.delayed.remove(&first)?;
        self.totals.delayed_bytes -= u64::from(message.size);
        Some(message)
    }

    /// A ready message is nowhere now.
    fn left(&mut self, message: &Message) {
        self.totals.ready_bytes -= u64::from(message.size);
        self.expiring -= u64::from(message.expiry != When::NEVER);
    }

    /// Takes the first delayed message out of the queue, if its time has come by `now_ms`.
    pub fn take_due(&mut self, now_ms: u64) -> Option<Message> {
        let ((at, _), _) = self.delayed.first_key_value()?;
        if *at <= now_ms { self.take_delayed() } else { None }
    }

    /// When something has to be done: a message expires at a head, or a delayed one gets ready.
    pub fn next_due(&self) -> Option<u64> {
        let expiry = match self.expiring {
            0 => None,
            _ => self.returns.front().and_then(|m| m.expiry.get()).into_iter().chain(self.lanes.next_expiry()).min(),
        };
        let delayed = self.delayed.first_key_value().map(|((at, _), _)| *at);
        expiry.into_iter().chain(delayed).min()
    }

    /// A held message is gone for good.
    pub fn release(&mut self, message: &Message) {
        self.not_held(message);
        self.gone(message);
    }

    /// A held message is nowhere now.
    pub fn not_held(&mut self, message: &Message) {
        self.totals.held_bytes -= u64::from(message.size);
        self.totals.held -= 1;
    }

    /// A message that is nowhere any more leaves its log entry dead.
    pub fn gone(&mut self, message: &Message) {
        self.reclaimed(u64::from(message.size) + ENQUEUE_OVERHEAD);
    }

    /// A held message comes back. It is answered, and nowhere, if it has come back too often.
    pub fn give_back(&mut self, mut message: Message, rule: &ReturnRule) -> Option<Message> {
        self.not_held(&message);
        message.deadline = When::NEVER;
        message.count(rule.failed);
        if rule.exceeded(&message) {
            return Some(message);
        }
        if broken(Defect::ReturnLost) {
            return None;
        }
        match rule.ready_at(&message) {
            Some(at) => {
                self.totals.delayed_bytes += u64::from(message.size);
                self.delayed.insert((at, message.reference), message);
            }
            None => self.back(message),
        }
        None
    }

    /// Puts a message behind the returned ones.
    pub fn back(&mut self, message: Message) {
        self.totals.ready_bytes += u64::from(message.size);
        self.expiring += u64::from(message.expiry != When::NEVER);
        if broken(Defect::ReturnToLane) {
            let (carried, expiry) = (message.carried(), message.expiry);
            return self.lanes.push(None, MachineVersion(2), message.reference, message.size, carried, expiry);
        }
        self.returns.push_back(message);
    }

    /// Drops all that is ready. Answers how many.
    pub fn purge(&mut self) -> u64 {
        let count = self.ready();
        self.reclaimed(self.totals.ready_bytes + count * ENQUEUE_OVERHEAD);
        let turn = self.lanes.turn();
        self.lanes = Lanes::default();
        self.lanes.restore_turn(turn);
        self.returns = VecDeque::new();
        self.totals.ready_bytes = 0;
        self.expiring = 0;
        count
    }

    /// Drops all that is delayed. Answers how many.
    pub fn purge_delayed(&mut self) -> u64 {
        let count = self.delayed.len() as u64;
        self.reclaimed(self.totals.delayed_bytes + count * ENQUEUE_OVERHEAD);
        self.delayed.clear();
        self.totals.delayed_bytes = 0;
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

    /// For the invariants: how many it believes to have an expiry time.
    pub fn expiring(&self) -> u64 {
        self.expiring
    }
}
