//! Which log entries the state still needs.

use std::ops::RangeInclusive;

use super::state::Queue;

impl Queue {
    /// The log indexes whose entries hold a message that is still in the queue: ascending, disjoint, not adjacent.
    pub fn live(&self) -> Vec<RangeInclusive<u64>> {
        let mut scattered: Vec<u64> = self.messages.returns().iter().map(|m| m.reference.index()).collect();
        for consumer in self.consumers.iter() {
            scattered.extend(consumer.held.iter().map(|(_, m)| m.reference.index()));
        }
        scattered.sort_unstable();
        let lane = self.messages.lane().iter().map(|m| m.reference.index());
        merge(lane, scattered.into_iter())
    }
}

/// The union of two ascending sequences as ranges.
fn merge(a: impl Iterator<Item = u64>, b: impl Iterator<Item = u64>) -> Vec<RangeInclusive<u64>> {
    let (mut a, mut b) = (a.peekable(), b.peekable());
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    loop {
        let next = match (a.peek(), b.peek()) {
            (Some(x), Some(y)) if x <= y => a.next(),
            (_, Some(_)) => b.next(),
            (_, None) => a.next(),
        };
        let Some(index) = next else { return ranges };
        match ranges.last_mut() {
            Some(last) if index <= last.end().saturating_add(1) => *last = *last.start()..=index.max(*last.end()),
            _ => ranges.push(index..=index),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_repeats_count_once() {
        let ranges = merge([1, 1, 2, 7, 9].into_iter(), [3, 7, 8, 20].into_iter());
        assert_eq!(ranges, [1..=3, 7..=9, 20..=20]);
    }
}
