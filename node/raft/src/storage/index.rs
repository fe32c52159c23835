//! Where each entry of a group is: which segment, which term. Kept in memory, immutable once readers can see it.

use std::sync::Arc;

use super::ranges::{self, Ranges};

/// No log gets this long: an index at or above it is damage, and counting on from one below it cannot overflow.
pub(super) const MAX_INDEX: u64 = 1 << 62;

/// Entries `first..=last` of one term in one segment. Those that are dead (at or below the floor and not live) may have
/// no key any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Run {
    pub first: u64,
    pub last: u64,
    pub term: u64,
    pub segment: u32,
    /// Index of the snapshot for which they were staged; 0 = appended.
    pub staged: u64,
}

impl Run {
    fn continues(&self, next: &Run) -> bool {
        self.last + 1 == next.first
            && self.term == next.term
            && self.segment == next.segment
            && self.staged == next.staged
    }
}

/// A group's log.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Index {
    /// Index of the snapshot; entries at or below it exist only where live.
    pub floor: u64,
    pub floor_term: u64,
    pub live: Arc<Ranges>,
    /// Ascending, disjoint; contiguous above the floor.
    pub runs: Vec<Run>,
    /// Chunks of the snapshot's state and of its live ranges.
    pub chunks: (u32, u32),
    pub has_snapshot: bool,
    /// The newest snapshot that was received.
    pub installed: u64,
    /// Entries received for a snapshot that is not installed yet.
    pub staging: Option<Arc<Staging>>,
}

/// Entries staged for one snapshot.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Staging {
    pub snapshot: u64,
    /// Ascending, disjoint.
    pub runs: Vec<Run>,
}

impl Index {
    /// Last index of the log.
    pub fn last(&self) -> u64 {
        self.runs.last().map_or(self.floor, |r| r.last.max(self.floor))
    }

    /// Whether an entry must be readable, if it is in a run.
    pub fn is_alive(&self, index: u64) -> bool {
        index > self.floor || ranges::contains(&self.live, index)
    }

    /// The alive indexes within `first..=last`, in order.
    pub fn alive_within(&self, first: u64, last: u64) -> Ranges {
        let mut out: Ranges = ranges::within(&self.live, first, last.min(self.floor)).collect();
        let above = first.max(self.floor + 1);
        if above <= last {
            out.push(above..=last);
        }
        out
    }

    /// Number of alive entries of a run.
    pub fn alive_in(&self, run: &Run) -> u64 {
        let above = if run.last > self.floor { run.last - run.first.max(self.floor + 1) + 1 } else { 0 };
        above + ranges::count(&self.live, run.first, run.last.min(self.floor))
    }

    /// The run that holds an index, whether that is alive or not.
    pub fn run_of(&self, index: u64) -> Option<&Run> {
        find(&self.runs, index)
    }

    /// Adds entries at the end.
    pub fn append(&mut self, run: Run) {
        push(&mut self.runs, run);
    }

    /// Takes the entries from an index on away and answers the runs that held them.
    pub fn truncate(&mut self, from: u64) -> Vec<Run> {
        let keep = self.runs.partition_point(|r| r.first < from);
        let mut cut = self.runs.split_off(keep);
        if let Some(last) = self.runs.last_mut()
            && last.last >= from
        {
            cut.insert(0, Run { first: from, ..*last });
            last.last = from - 1;
        }
        cut
    }

    /// Forgets runs without an alive entry, and answers them.
    pub fn forget_dead(&mut self) -> Vec<Run> {
        let runs = std::mem::take(&mut self.runs);
        let (alive, dead) = runs.into_iter().partition(|r| self.alive_in(r) > 0);
        self.runs = alive;
        dead
    }

    /// Moves the part `first..=last` of a run to another segment.
    pub fn relocate(&mut self, first: u64, last: u64, segment: u32) {
        let mut runs = Vec::with_capacity(self.runs.len() + 2);
        for run in self.runs.drain(..) {
            let (from, to) = (run.first.max(first), run.last.min(last));
            if from > to {
                push(&mut runs, run);
                continue;
            }
            if run.first < from {
                push(&mut runs, Run { last: from - 1, ..run });
            }
            push(&mut runs, Run { first: from, last: to, segment, ..run });
            if to < run.last {
                push(&mut runs, Run { first: to + 1, ..run });
            }
        }
        self.runs = runs;
    }

    /// Joins neighbours of one segment and term where nothing alive lies between them.
    pub fn join(&mut self) {
        let mut runs: Vec<Run> = Vec::with_capacity(self.runs.len());
        for run in std::mem::take(&mut self.runs) {
            if let Some(last) = runs.last_mut()
                && last.term == run.term
                && last.segment == run.segment
                && last.staged == run.staged
                && run.first <= self.floor + 1
                && ranges::count(&self.live, last.last + 1, run.first - 1) == 0
            {
                last.last = run.last;
                continue;
            }
            push(&mut runs, run);
        }
        self.runs = runs;
    }
}

impl Staging {
    pub fn contains(&self, index: u64) -> bool {
        find(&self.runs, index).is_some()
    }

    /// Adds one entry.
    pub fn insert(&mut self, run: Run) {
        match self.runs.last() {
            Some(last) if last.last >= run.first => {
                let at = self.runs.partition_point(|r| r.last < run.first);
                self.runs.insert(at, run);
            }
            _ => push(&mut self.runs, run),
        }
    }
}

/// Adds a run above all others, joined to the last where it continues it.
pub(super) fn push(runs: &mut Vec<Run>, run: Run) {
    match runs.last_mut() {
        Some(last) if last.continues(&run) => last.last = run.last,
        _ => runs.push(run),
    }
}

fn find(runs: &[Run], index: u64) -> Option<&Run> {
    let at = runs.partition_point(|r| r.last < index);
    runs.get(at).filter(|r| r.first <= index)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(first: u64, last: u64, term: u64, segment: u32) -> Run {
        Run { first, last, term, segment, staged: 0 }
    }

    #[test]
    fn truncation_gives_back_what_it_takes() {
        let mut index = Index { runs: vec![run(1, 5, 1, 1), run(6, 9, 2, 1), run(10, 12, 2, 2)], ..Index::default() };
        assert_eq!(index.truncate(8), [run(8, 9, 2, 1), run(10, 12, 2, 2)]);
        assert_eq!(index.runs, [run(1, 5, 1, 1), run(6, 7, 2, 1)]);
        assert_eq!(index.last(), 7);
        assert_eq!(index.truncate(20), []);
    }

    #[test]
    fn only_live_entries_count_below_the_floor() {
        let mut index = Index {
            floor: 10,
            live: Arc::new(vec![2..=3, 9..=9]),
            runs: vec![run(1, 5, 1, 1), run(6, 8, 2, 1), run(9, 12, 2, 2)],
            ..Index::default()
        };
        assert_eq!(index.alive_in(&index.runs[0]), 2);
        assert_eq!(index.alive_in(&index.runs[2]), 3);
        assert_eq!(index.alive_within(1, 11), [2..=3, 9..=9, 11..=11]);
        index.forget_dead();
        assert_eq!(index.runs.len(), 2);
        index.relocate(2, 3, 5);
        assert_eq!(index.runs, [run(1, 1, 1, 1), run(2, 3, 1, 5), run(4, 5, 1, 1), run(9, 12, 2, 2)]);
    }
}
