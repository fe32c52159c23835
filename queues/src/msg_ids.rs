//! Lists of message ids, as runs.

use smallvec::SmallVec;

/// Consecutive ids: `start`, `start + 1`, ... `count` of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Run {
    /// The first id.
    pub start: u64,
    /// How many.
    pub count: u64,
}

/// Message ids of one consumer in the order in which the client named them, as runs of consecutive ids.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct MsgIds(SmallVec<[Run; 2]>);

impl MsgIds {
    /// Runs in one command, at most: a consumer can hold no more messages than a prefetch count can say.
    pub const MAX_RUNS: usize = 1 << 16;

    /// No ids.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds one id at the end.
    pub fn push(&mut self, id: u64) {
        self.push_run(Run { start: id, count: 1 });
    }

    /// Adds a run at the end, merged with the one before it where it continues that.
    pub fn push_run(&mut self, run: Run) {
        if run.count == 0 {
            return;
        }
        if let Some(last) = self.0.last_mut()
            && last.start.checked_add(last.count) == Some(run.start)
            && let Some(count) = last.count.checked_add(run.count)
        {
            last.count = count;
            return;
        }
        self.0.push(run);
    }

    /// The runs in order.
    pub fn runs(&self) -> &[Run] {
        &self.0
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<u64> for MsgIds {
    fn from(id: u64) -> Self {
        let mut ids = MsgIds::new();
        ids.push(id);
        ids
    }
}

impl FromIterator<u64> for MsgIds {
    fn from_iter<I: IntoIterator<Item = u64>>(iter: I) -> Self {
        let mut ids = MsgIds::new();
        iter.into_iter().for_each(|id| ids.push(id));
        ids
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consecutive_ids_become_one_run_and_the_clients_order_is_kept() {
        let ids: MsgIds = [5, 6, 7, 2, 3, 9].into_iter().collect();
        let runs: Vec<_> = ids.runs().iter().map(|r| (r.start, r.count)).collect();
        assert_eq!(runs, [(5, 3), (2, 2), (9, 1)]);
    }
}
