//! Log entries that are dead for the queue, and whose messages still have to be read to be published elsewhere.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;

/// Entries that this member's snapshots must not let go yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Pins(Arc<Mutex<BTreeMap<u64, u32>>>);

/// Keeps entries until it is dropped.
#[derive(Debug)]
pub(super) struct Pinned {
    pins: Pins,
    indexes: Vec<u64>,
}

impl Pins {
    pub(super) fn pin(&self, mut indexes: Vec<u64>) -> Pinned {
        indexes.dedup();
        let mut all = self.0.lock();
        indexes.iter().for_each(|index| *all.entry(*index).or_default() += 1);
        drop(all);
        Pinned { pins: self.clone(), indexes }
    }

    /// Adds what is pinned to ascending ranges of live entries.
    pub fn add_to(&self, live: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
        let pinned = self.0.lock();
        if pinned.is_empty() {
            return live;
        }
        let mut all = live;
        all.extend(pinned.keys().map(|index| *index..=*index));
        drop(pinned);
        all.sort_unstable_by_key(|range| *range.start());
        let mut joined: Vec<RangeInclusive<u64>> = Vec::with_capacity(all.len());
        for range in all {
            match joined.last_mut() {
                Some(last) if *range.start() <= last.end().saturating_add(1) => {
                    *last = *last.start()..=*range.end().max(last.end());
                }
                _ => joined.push(range),
            }
        }
        joined
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        let mut all = self.pins.0.lock();
        for index in &self.indexes {
            if let Some(count) = all.get_mut(index) {
                *count -= 1;
                if *count == 0 {
                    all.remove(index);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_stays_until_the_last_that_needs_it_is_done() {
        let pins = Pins::default();
        let (a, b) = (pins.pin(vec![5, 5, 9]), pins.pin(vec![5]));
        assert_eq!(pins.add_to(vec![1..=3, 8..=8]), [1..=3, 5..=5, 8..=9]);
        drop(a);
        assert_eq!(pins.add_to(vec![4..=4]), [4..=5]);
        drop(b);
        assert_eq!(pins.add_to(vec![4..=4]), [4..=4]);
    }
}
