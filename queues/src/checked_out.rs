//! What a consumer holds: messages by message id.

use std::collections::{BTreeMap, VecDeque};

/// A ring may be this long however little is in it.
const MIN_SPAN: usize = 64;
/// Above that, the ring is at most this many times as long as what is held.
const MAX_SPARSENESS: usize = 4;

/// Messages that a consumer holds, by id. Ids count up from the first and are never reused. A ring indexed by
/// `id - base` holds the recent ones; a few that stay while thousands pass go to a map, so that memory follows what is
/// held and not how long the oldest has been.
#[derive(Debug, Clone)]
pub(crate) struct CheckedOut<T> {
    base: u64,
    ring: VecDeque<Option<T>>,
    in_ring: usize,
    old: BTreeMap<u64, T>,
}

impl<T> Default for CheckedOut<T> {
    fn default() -> Self {
        CheckedOut { base: 0, ring: VecDeque::new(), in_ring: 0, old: BTreeMap::new() }
    }
}

impl<T> CheckedOut<T> {
    /// As it was when `next_id` was the next id and these were held. `held` must be below `next_id`.
    pub fn restore(next_id: u64, held: BTreeMap<u64, T>) -> Self {
        debug_assert!(held.keys().all(|id| *id < next_id));
        CheckedOut { base: next_id, ring: VecDeque::new(), in_ring: 0, old: held }
    }

    /// How many are held.
    pub fn len(&self) -> usize {
        self.in_ring + self.old.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The id of the next message.
    pub fn next_id(&self) -> u64 {
        self.base + self.ring.len() as u64
    }

    /// Adds a message and answers its id.
    pub fn push(&mut self, message: T) -> u64 {
        let id = self.next_id();
        self.ring.push_back(Some(message));
        self.in_ring += 1;
        while self.ring.len() > MIN_SPAN.max(MAX_SPARSENESS * self.len()) {
            if let Some(message) = self.ring.pop_front().flatten() {
                self.old.insert(self.base, message);
                self.in_ring -= 1;
            }
            self.base += 1;
            self.trim();
        }
        id
    }

    /// The lowest id held and its message.
    pub fn first(&self) -> Option<(u64, &T)> {
        self.iter().next()
    }

    /// Takes those of `count` ids from `start` on that are held, ascending.
    pub fn take_run(&mut self, start: u64, count: u64, mut each: impl FnMut(T)) {
        let end = start.saturating_add(count).min(self.next_id());
        if start < self.base && !self.old.is_empty() {
            let until = end.min(self.base);
            while start < until
                && let Some(id) = self.old.range(start..until).next().map(|(id, _)| *id)
                && let Some(message) = self.old.remove(&id)
            {
                each(message);
            }
        }
        for id in start.max(self.base)..end {
            if let Some(message) = self.ring.get_mut((id - self.base) as usize).and_then(Option::take) {
                self.in_ring -= 1;
                each(message);
            }
        }
        self.trim();
    }

    /// Takes all, ascending.
    pub fn take_all(&mut self, each: impl FnMut(T)) {
        self.take_run(0, u64::MAX, each);
    }

    /// In ascending order of ids.
    pub fn iter(&self) -> impl Iterator<Item = (u64, &T)> {
        let recent = self.ring.iter().enumerate();
        self.old
            .iter()
            .map(|(id, message)| (*id, message))
            .chain(recent.filter_map(|(i, slot)| slot.as_ref().map(|message| (self.base + i as u64, message))))
    }

    fn trim(&mut self) {
        while let Some(None) = self.ring.front() {
            self.ring.pop_front();
            self.base += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_count_up_and_unknown_ones_are_ignored() {
        let mut held = CheckedOut::default();
        for m in ["a", "b", "c"] {
            held.push(m);
        }
        let mut taken = Vec::new();
        held.take_run(1, 1, |m| taken.push(m));
        held.take_run(1, 1, |m| taken.push(m));
        held.take_run(7, u64::MAX, |m| taken.push(m));
        assert_eq!(taken, ["b"]);
        assert_eq!(held.push("d"), 3);
        held.take_all(|m| taken.push(m));
        assert_eq!(taken, ["b", "a", "c", "d"]);
        assert_eq!(held.next_id(), 4);
    }

    #[test]
    fn one_message_held_for_ever_does_not_hold_the_ring() {
        let mut held = CheckedOut::default();
        held.push(0u64);
        for i in 1..100_000 {
            assert_eq!(held.push(i), i);
            held.take_run(i, 1, drop);
        }
        assert!(held.ring.len() <= MIN_SPAN);
        assert_eq!(held.first(), Some((0, &0)));
        assert_eq!(held.len(), 1);
        let mut last = Vec::new();
        held.take_run(0, 1, |m| last.push(m));
        assert_eq!((last, held.is_empty()), (vec![0], true));
    }
}
