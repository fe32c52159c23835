//! The messages of a classic queue: which are ready in what order, how many there are, and how many bytes.

use std::collections::{BTreeMap, VecDeque};

use crate::message::StoredMessage;

/// Room for this many messages is kept when a queue runs empty; more is given back to the system.
const MAX_IDLE_CAPACITY: usize = 4096;

/// A message that was handed out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Taken {
    /// Its place in the order of publishing.
    pub position: u64,
    pub message: StoredMessage,
    /// Whether it had been handed out before.
    pub redelivered: bool,
    /// Failed deliveries.
    pub delivery_count: u32,
}

/// Numbers of messages and bytes of their bodies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Totals {
    pub held: u64,
    pub ready_bytes: u64,
    pub held_bytes: u64,
}

#[derive(Debug, Default)]
pub(super) struct Messages {
    /// Never handed out; their positions are consecutive.
    fresh: VecDeque<StoredMessage>,
    /// Position of the first fresh message, whether it is there yet or not.
    next_fresh: u64,
    /// Given back, by position: all of them before the fresh ones.
    returned: BTreeMap<u64, Taken>,
    totals: Totals,
}

impl Messages {
    pub fn ready(&self) -> u64 {
        (self.fresh.len() + self.returned.len()) as u64
    }

    pub fn returned(&self) -> u64 {
        self.returned.len() as u64
    }

    pub fn totals(&self) -> &Totals {
        &self.totals
    }

    pub fn enqueue(&mut self, message: StoredMessage) {
        self.totals.ready_bytes += u64::from(message.body_size());
        self.fresh.push_back(message);
    }

    /// Hands out the next message: the caller holds it from here on.
    pub fn take(&mut self) -> Option<Taken> {
        let taken = match self.returned.pop_first() {
            Some((_, taken)) => taken,
            None => self.take_fresh()?,
        };
        let size = u64::from(taken.message.body_size());
        self.totals.ready_bytes -= size;
        self.totals.held_bytes += size;
        self.totals.held += 1;
        Some(taken)
    }

    fn take_fresh(&mut self) -> Option<Taken> {
        let message = self.fresh.pop_front()?;
        let position = self.next_fresh;
        self.next_fresh += 1;
        if self.fresh.is_empty() && self.fresh.capacity() > MAX_IDLE_CAPACITY {
            self.fresh = VecDeque::new();
        }
        Some(Taken { position, message, redelivered: false, delivery_count: 0 })
    }

    /// A held message is gone for good.
    pub fn release(&mut self, taken: &Taken) {
        self.totals.held_bytes -= u64::from(taken.message.body_size());
        self.totals.held -= 1;
    }

    /// A held message returns to its position.
    pub fn give_back(&mut self, mut taken: Taken, failed: bool) {
        debug_assert!(taken.position < self.next_fresh);
        self.release(&taken);
        self.totals.ready_bytes += u64::from(taken.message.body_size());
        taken.redelivered = true;
        if failed {
            taken.delivery_count = taken.delivery_count.saturating_add(1);
        }
        self.returned.insert(taken.position, taken);
    }

    /// Drops all that is ready. Answers how many.
    pub fn purge(&mut self) -> u64 {
        let count = self.ready();
        self.next_fresh += self.fresh.len() as u64;
        self.fresh = VecDeque::new();
        self.returned.clear();
        self.totals.ready_bytes = 0;
        count
    }

    /// Ready messages in the order in which they will leave.
    pub fn iter(&self) -> impl Iterator<Item = &StoredMessage> {
        self.returned.values().map(|taken| &taken.message).chain(&self.fresh)
    }
}
