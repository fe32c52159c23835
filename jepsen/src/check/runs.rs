//! Sets of messages in little memory: the numbers of one publisher come mostly in sequence.

use std::collections::BTreeMap;

use super::history::{Process, Value};

/// A set of messages, kept as runs of consecutive numbers of one publisher.
#[derive(Debug, Clone, Default)]
pub(super) struct Runs {
    /// First number to last, by publisher.
    all: BTreeMap<Process, BTreeMap<u64, u64>>,
}

impl Runs {
    pub fn contains(&self, value: Value) -> bool {
        let runs = self.all.get(&value.process);
        let run = runs.and_then(|runs| runs.range(..=value.counter).next_back());
        run.is_some_and(|(_, last)| *last >= value.counter)
    }

    /// Adds a message. Answers whether it was not there.
    pub fn insert(&mut self, value: Value) -> bool {
        if self.contains(value) {
            return false;
        }
        let runs = self.all.entry(value.process).or_default();
        let mut first = value.counter;
        if let Some((before, last)) = runs.range(..value.counter).next_back()
            && last.checked_add(1) == Some(value.counter)
        {
            first = *before;
        }
        let next = value.counter.checked_add(1).and_then(|next| runs.remove(&next));
        runs.insert(first, next.unwrap_or(value.counter));
        true
    }

    /// The first and the last number of a publisher's.
    pub fn ends(&self, process: Process) -> Option<(u64, u64)> {
        let runs = self.all.get(&process)?;
        Some((*runs.first_key_value()?.0, *runs.last_key_value()?.1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_any_order_become_one_run() {
        let mut runs = Runs::default();
        for n in [3, 1, 5, 2, 4, u64::MAX, 0] {
            assert!(runs.insert(Value::new(7, n)));
            assert!(!runs.insert(Value::new(7, n)));
        }
        assert_eq!(runs.all[&Process(7)], BTreeMap::from([(0, 5), (u64::MAX, u64::MAX)]));
        assert_eq!(runs.ends(Process(7)), Some((0, u64::MAX)));
        assert!(!runs.contains(Value::new(7, 6)) && !runs.contains(Value::new(8, 1)));
    }
}
