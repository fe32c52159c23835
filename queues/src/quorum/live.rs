//! Which log entries the state still needs.

use std::ops::RangeInclusive;

use super::state::Queue;

impl Queue {
    /// The log indexes whose entries hold a message that is still in the queue: ascending, disjoint, not adjacent.
    pub fn live(&self) -> Vec<RangeInclusive<u64>> {
        let mut scattered: Vec<u64> = self.messages.returns().iter().map(|m| m.reference.index()).collect();
        scattered.extend(self.messages.delayed().values().map(|m| m.reference.index()));
        scattered.extend(self.dlx.iter().map(|(_, m)| m.reference.index()));
        for consumer in self.consumers.iter() {
            scattered.extend(consumer.held.iter().map(|(_, m)| m.reference.index()));
        }
        scattered.sort_unstable();
        let mut live = ranges(scattered.into_iter().map(|index| index..=index));
        for (_, lane) in self.messages.lanes().iter() {
            let lane = ranges(lane.iter().map(|m| m.reference.index()).map(|index| index..=index));
            live = merge(live, lane);
        }
        live
    }
}

/// Ascending ranges, joined where they touch.
fn ranges(ascending: impl Iterator<Item = RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    let mut ranges: Vec<RangeInclusive<u64>> = Vec::new();
    for next in ascending {
        match ranges.last_mut() {
            Some(last) if *next.start() <= last.end().saturating_add(1) => {
                *last = *last.start()..=*next.end().max(last.end());
            }
            _ => ranges.push(next),
        }
    }
    ranges
}

/// The union of two lists of ranges.
fn merge(a: Vec<RangeInclusive<u64>>, b: Vec<RangeInclusive<u64>>) -> Vec<RangeInclusive<u64>> {
    if a.is_empty() {
        return b;
    }
    let (mut a, mut b) = (a.into_iter().peekable(), b.into_iter().peekable());
    ranges(std::iter::from_fn(|| match (a.peek(), b.peek()) {
        (Some(x), Some(y)) if x.start() <= y.start() => a.next(),
        (_, Some(_)) => b.next(),
        (_, None) => a.next(),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_join_and_repeats_count_once() {
        let of = |indexes: &[u64]| ranges(indexes.iter().map(|index| *index..=*index));
        assert_eq!(merge(of(&[1, 1, 2, 7, 9]), of(&[3, 7, 8, 20])), [1..=3, 7..=9, 20..=20]);
        assert_eq!(merge(of(&[]), of(&[4])), [4..=4]);
    }
}
