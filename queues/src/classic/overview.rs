//! What a queue shows of itself.

use super::consumer::Consumer;
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
    /// Those that a consumer holds.
    pub unacked: u64,
    /// Bytes of all bodies.
    pub bytes: u64,
    /// Bytes of ready bodies.
    pub bytes_ready: u64,
    /// Bytes of held bodies.
    pub bytes_unacked: u64,
    /// Attached consumers.
    pub consumers: u64,
    /// Sessions that have published.
    pub publishers: u64,
    /// When the queue was created, asked for a message, or lost a consumer, ms.
    pub last_active_ms: u64,
}

/// A consumer as it is listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerInfo {
    /// Its name.
    pub id: ConsumerId,
    /// Its key.
    pub key: ConsumerKey,
    /// How many messages it may hold; 0 = any number.
    pub prefetch: u32,
    /// Its priority.
    pub priority: i32,
    /// Whether it is the only one.
    pub exclusive: bool,
    /// What it told of itself.
    pub meta: ConsumerMeta,
    /// How many messages it holds.
    pub num_checked_out: usize,
}

impl Queue {
    /// The counts now.
    pub fn overview(&self) -> Overview {
        let totals = self.messages.totals();
        let ready = self.messages.ready();
        Overview {
            messages: ready + totals.held,
            ready,
            ready_returned: self.messages.returned(),
            unacked: totals.held,
            bytes: totals.ready_bytes + totals.held_bytes,
            bytes_ready: totals.ready_bytes,
            bytes_unacked: totals.held_bytes,
            consumers: self.attached,
            publishers: self.sessions.iter().filter(|(_, s)| s.enqueuer.is_some()).count() as u64,
            last_active_ms: self.last_active_ms,
        }
    }

    /// The attached consumers in the order in which they came.
    pub fn consumers(&self) -> impl Iterator<Item = ConsumerInfo> + '_ {
        self.consumers.iter().filter(|c| Consumer::attached(c)).map(|c| ConsumerInfo {
            id: c.seat.id.clone(),
            key: c.seat.key,
            prefetch: c.prefetch,
            priority: c.seat.priority,
            exclusive: c.exclusive,
            meta: c.meta.clone(),
            num_checked_out: c.held.len(),
        })
    }
}
