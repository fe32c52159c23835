//! What a queue shows of itself.

use super::command::Mode;
use super::state::Queue;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta};

/// A queue's counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Overview {
    /// All messages.
    pub messages: u64,
    /// Those that no consumer holds.
    pub ready: u64,
    /// Those of them that were held before.
    pub ready_returned: u64,
    /// Those of the others that have a high priority: 5 and above.
    pub ready_high: u64,
    /// Those that were given back and are not ready before their time.
    pub delayed: u64,
    /// Those that are dead and kept until they have arrived elsewhere. Not among `messages`.
    pub dead: u64,
    /// Those that a consumer holds.
    pub unacked: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// Bytes of ready bodies.
    pub bytes_ready: u64,
    /// Bytes of held bodies.
    pub bytes_unacked: u64,
    /// Bytes of the bodies of dead messages that are kept.
    pub bytes_dead: u64,
    /// Consumers that are neither cancelled, cut off nor timed out.
    pub consumers: u64,
    /// Sessions that have published.
    pub publishers: u64,
    /// When the queue was last used or lost a consumer, ms.
    pub last_active_ms: u64,
}

/// A consumer as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its name.
    pub id: ConsumerId,
    /// Its key.
    pub key: ConsumerKey,
    /// How it gets credit.
    pub mode: Mode,
    /// Its priority.
    pub priority: i32,
    /// What it told of itself.
    pub meta: ConsumerMeta,
    /// Whether it may get messages.
    pub status: ConsumerStatus,
    /// How many messages it holds.
    pub num_checked_out: usize,
}

/// Whether a consumer may get messages, and why not.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ConsumerStatus {
    /// It may.
    Up,
    /// It alone may.
    SingleActive,
    /// Another one is the active one.
    Waiting,
    /// Its node cannot be reached.
    Suspected,
    /// It held messages too long and has not answered them.
    TimedOut,
}

impl Queue {
    /// Ready messages by priority, the highest first, without those that were held before.
    pub fn ready_by_priority(&self) -> impl Iterator<Item = (u8, u64)> + '_ {
        self.messages.lanes().iter().map(|(priority, lane)| (priority, lane.len() as u64))
    }

    /// When the first and the last delayed message get ready, ms.
    pub fn delayed_until(&self) -> Option<(u64, u64)> {
        let (first, _) = self.messages.delayed().first_key_value()?;
        let (last, _) = self.messages.delayed().last_key_value()?;
        Some((first.0, last.0))
    }

    /// The counts now.
    pub fn overview(&self) -> Overview {
        let totals = self.messages.totals();
        let ready = self.messages.ready();
        Overview {
            messages: self.messages.waiting() + totals.held,
            ready,
            ready_returned: self.messages.returns().len() as u64,
            ready_high: self.messages.lanes().high(),
            delayed: self.messages.delayed().len() as u64,
            dead: self.dlx.len(),
            unacked: totals.held,
            bytes: self.messages.waiting_bytes() + totals.held_bytes,
            bytes_ready: totals.ready_bytes,
            bytes_unacked: totals.held_bytes,
            bytes_dead: self.dlx.bytes(),
            consumers: self.consumers.iter().filter(|c| c.counts()).count() as u64,
            publishers: self.sessions.iter().filter(|(_, s)| s.enqueuer.is_some()).count() as u64,
            last_active_ms: self.last_active_ms,
        }
    }

    /// The attached consumers in the order in which they came.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerInfo> + '_ {
        let attached = self.consumers.iter().filter(|c| c.attached());
        attached.map(|c| ConsumerInfo {
            id: c.seat.id.clone(),
            key: c.seat.key,
            mode: c.mode,
            priority: c.seat.priority,
            meta: c.meta.clone(),
            status: match c {
                _ if c.suspected.is_some() => ConsumerStatus::Suspected,
                _ if !c.timed_out.is_empty() => ConsumerStatus::TimedOut,
                _ if c.waiting => ConsumerStatus::Waiting,
                _ if self.config.single_active => ConsumerStatus::SingleActive,
                _ => ConsumerStatus::Up,
            },
            num_checked_out: c.held.len(),
        })
    }
}
