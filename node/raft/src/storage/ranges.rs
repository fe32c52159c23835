//! Sets of log indexes as ascending, disjoint, inclusive ranges.

use std::ops::RangeInclusive;

pub(super) type Ranges = Vec<RangeInclusive<u64>>;

/// Whether the set holds an index.
pub(super) fn contains(set: &[RangeInclusive<u64>], index: u64) -> bool {
    let at = set.partition_point(|r| *r.end() < index);
    set.get(at).is_some_and(|r| *r.start() <= index)
}

/// The set's part within `first..=last`, in order; nothing where `first` is above `last`.
pub(super) fn within(
    set: &[RangeInclusive<u64>],
    first: u64,
    last: u64,
) -> impl Iterator<Item = RangeInclusive<u64>> + '_ {
    let at = set.partition_point(|r| *r.end() < first);
    set[at..]
        .iter()
        .take_while(move |r| first <= last && *r.start() <= last)
        .map(move |r| (*r.start()).max(first)..=(*r.end()).min(last))
}

/// Number of indexes of the set within `first..=last`.
pub(super) fn count(set: &[RangeInclusive<u64>], first: u64, last: u64) -> u64 {
    within(set, first, last).map(|r| r.end() - r.start() + 1).sum()
}

/// The indexes of `from` that `minus` does not hold.
pub(super) fn difference(from: impl IntoIterator<Item = RangeInclusive<u64>>, minus: &[RangeInclusive<u64>]) -> Ranges {
    let mut out = Ranges::new();
    for range in from {
        let mut next = *range.start();
        for cut in within(minus, *range.start(), *range.end()) {
            if next < *cut.start() {
                out.push(next..=cut.start() - 1);
            }
            next = cut.end() + 1;
        }
        if next <= *range.end() {
            out.push(next..=*range.end());
        }
    }
    out
}

/// Whether ranges are ascending, disjoint and not empty.
pub(super) fn is_valid(set: &[RangeInclusive<u64>]) -> bool {
    set.iter().all(|r| r.start() <= r.end()) && set.windows(2).all(|w| w[0].end() < w[1].start())
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn arithmetic_agrees_with_sets_of_numbers() {
        // A small generator: every subset pattern of 0..10 by its bits.
        let ranges = |bits: u32| -> Ranges {
            let mut out = Ranges::new();
            for i in (0..10).filter(|i| bits & (1 << i) != 0) {
                match out.last_mut() {
                    Some(r) if *r.end() + 1 == i => *r = *r.start()..=i,
                    _ => out.push(i..=i),
                }
            }
            out
        };
        let set = |r: &Ranges| r.iter().cloned().flatten().collect::<BTreeSet<u64>>();
        for a in (0..1024).step_by(7) {
            for b in (0..1024).step_by(11) {
                let (ra, rb) = (ranges(a), ranges(b));
                let (sa, sb) = (set(&ra), set(&rb));
                let diff = difference(ra.iter().cloned(), &rb);
                assert!(is_valid(&diff));
                assert_eq!(set(&diff), sa.difference(&sb).copied().collect());
                assert_eq!(count(&ra, 7, 2), 0);
                assert_eq!(count(&ra, 2, 7), sa.range(2..=7).count() as u64);
                assert!((0..10).all(|i| contains(&ra, i) == sa.contains(&i)));
            }
        }
    }
}
