//! A FIFO of messages that were never handed out, at about 8 bytes each.
//!
//! References ascend, so a chunk stores its first one and, per message, the distance from it and the size of the body.
//! A chunk ends after 256 messages, or where a distance does not fit. What few messages have (failed deliveries carried
//! over from another queue) is in a side list that most chunks leave empty; so is the column of expiry times, 6 bytes each.

use std::collections::VecDeque;

use warren_proto::ids::Reference;

use super::message::{Message, When};

const CHUNK: usize = 256;

#[derive(Debug, Clone, Copy)]
struct Slot {
    delta: u32,
    size: u32,
}

#[derive(Debug, Default)]
struct Chunk {
    base: u64,
    slots: Vec<Slot>,
    /// (position in the chunk, failed deliveries carried over), ascending.
    carried: Vec<(u32, u32)>,
    /// Empty, or as long as `slots`.
    expiries: Vec<When>,
}

impl Chunk {
    fn message(&self, at: usize) -> Option<Message> {
        let slot = self.slots.get(at)?;
        let carried = match self.carried.is_empty() {
            true => 0,
            false => self.carried.binary_search_by_key(&(at as u32), |c| c.0).map_or(0, |i| self.carried[i].1),
        };
        let reference = Reference(self.base + u64::from(slot.delta));
        Some(Message::fresh(reference, slot.size, carried, self.expiry(at)))
    }

    fn expiry(&self, at: usize) -> When {
        self.expiries.get(at).copied().unwrap_or_default()
    }

    fn push(&mut self, slot: Slot, carried: u32, expiry: When) {
        if carried > 0 {
            self.carried.push((self.slots.len() as u32, carried));
        }
        if expiry != When::NEVER || !self.expiries.is_empty() {
            self.expiries.resize(self.slots.len(), When::NEVER);
            self.expiries.push(expiry);
        }
        self.slots.push(slot);
    }

    fn clear(&mut self) {
        self.slots.clear();
        self.carried.clear();
        self.expiries.clear();
    }
}

/// The FIFO.
#[derive(Debug, Default)]
pub(in crate::quorum) struct PackedFifo {
    chunks: VecDeque<Chunk>,
    /// Position of the first message in the first chunk.
    head: usize,
    len: usize,
    /// A full-sized allocation, emptied, for the next chunk.
    spare: Vec<Slot>,
}

impl PackedFifo {
    pub fn len(&self) -> usize {
        self.len
    }

    /// Appends a message. References ascend.
    pub fn push(&mut self, reference: Reference, size: u32, carried: u32, expiry: When) {
        let delta = match self.chunks.back_mut() {
            Some(chunk) if chunk.slots.is_empty() => {
                chunk.base = reference.0;
                Some(0)
            }
            Some(chunk) if chunk.slots.len() < CHUNK => {
                reference.0.checked_sub(chunk.base).and_then(|delta| u32::try_from(delta).ok())
            }
            _ => None,
        };
        let delta = delta.unwrap_or_else(|| {
            self.open_chunk(reference.0);
            0
        });
        if let Some(chunk) = self.chunks.back_mut() {
            chunk.push(Slot { delta, size }, carried, expiry);
            self.len += 1;
        }
    }

    fn open_chunk(&mut self, base: u64) {
        let dense = self.chunks.back().is_some_and(|chunk| chunk.slots.len() == CHUNK);
        let mut slots = std::mem::take(&mut self.spare);
        if dense && slots.capacity() == 0 {
            // A backlog builds up: the next chunk will be full too. Otherwise it grows as it needs to, since
            // messages that are far apart in the log get chunks of their own.
            slots.reserve_exact(CHUNK);
        }
        self.chunks.push_back(Chunk { base, slots, carried: Vec::new(), expiries: Vec::new() });
    }

    /// The oldest message's reference.
    pub fn head(&self) -> Option<Reference> {
        let chunk = self.chunks.front()?;
        Some(Reference(chunk.base + u64::from(chunk.slots.get(self.head)?.delta)))
    }

    /// When the oldest message expires.
    pub fn head_expiry(&self) -> When {
        self.chunks.front().map_or(When::NEVER, |chunk| chunk.expiry(self.head))
    }

    /// Takes the oldest message.
    pub fn pop(&mut self) -> Option<Message> {
        let only = self.chunks.len() == 1;
        let chunk = self.chunks.front_mut()?;
        let message = chunk.message(self.head)?;
        self.head += 1;
        self.len -= 1;
        if self.head == chunk.slots.len() {
            self.head = 0;
            if only {
                // The only chunk is used over and over while the queue is kept short.
                chunk.clear();
            } else if let Some(mut chunk) = self.chunks.pop_front()
                && chunk.slots.capacity() >= CHUNK
            {
                chunk.slots.clear();
                self.spare = chunk.slots;
            }
        }
        Some(message)
    }

    /// Oldest first.
    pub fn iter(&self) -> impl Iterator<Item = Message> + '_ {
        self.chunks.iter().enumerate().flat_map(|(i, chunk)| {
            let from = if i == 0 { self.head } else { 0 };
            (from..chunk.slots.len()).filter_map(|at| chunk.message(at))
        })
    }

    /// Bytes of memory taken.
    #[cfg(test)]
    pub fn memory(&self) -> usize {
        let chunks = self.chunks.iter().map(|c| {
            c.slots.capacity() * size_of::<Slot>()
                + c.carried.capacity() * 8
                + c.expiries.capacity() * size_of::<When>()
        });
        chunks.sum::<usize>() + self.chunks.capacity() * size_of::<Chunk>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_million_ready_messages_take_less_than_nine_bytes_each() {
        let mut fifo = PackedFifo::default();
        for i in 0..1_000_000u64 {
            fifo.push(Reference::new(1 + i / 100 * 3, (i % 100) as u16), 12, 0, When::NEVER);
        }
        assert!(fifo.memory() < 9_000_000, "{}", fifo.memory());
    }

    #[test]
    fn messages_far_apart_in_the_log_cost_little_more() {
        let mut fifo = PackedFifo::default();
        for i in 0..1000u64 {
            fifo.push(Reference::new(1 + i * 100_000, 0), 12, 0, When::NEVER);
        }
        assert!(fifo.memory() < 160_000, "{}", fifo.memory());
        assert_eq!(fifo.iter().count(), 1000);
    }

    #[test]
    fn an_expiry_time_costs_six_bytes_more() {
        let mut fifo = PackedFifo::default();
        for i in 0..1_000_000u64 {
            fifo.push(Reference::new(1 + i / 100, (i % 100) as u16), 12, 0, When::at(1_900_000_000_000 + i));
        }
        assert!(fifo.memory() < 17_500_000, "{}", fifo.memory());
    }

    proptest::proptest! {
        #[test]
        fn it_gives_back_what_it_got_in_order(
            ops in proptest::collection::vec((0u64..1 << 34, 0u32..9, 0u32..2, 0u64..3, 0usize..4), 0..2000)
        ) {
            let mut fifo = PackedFifo::default();
            let mut model = VecDeque::new();
            let mut reference = 0;
            for (step, size, carried, expiry, pops) in ops {
                reference += 1 + if step < 1 << 33 { step % 3 } else { step };
                let expiry = When::from((expiry > 1).then_some(expiry));
                fifo.push(Reference(reference), size, carried, expiry);
                model.push_back(Message::fresh(Reference(reference), size, carried, expiry));
                for _ in 0..pops.saturating_sub(1) {
                    assert_eq!(fifo.head(), model.front().map(|m| m.reference));
                    assert_eq!(fifo.head_expiry(), model.front().map_or(When::NEVER, |m| m.expiry));
                    assert_eq!(fifo.pop(), model.pop_front());
                }
                assert_eq!(fifo.len(), model.len());
            }
            assert!(fifo.iter().eq(model));
        }
    }
}
