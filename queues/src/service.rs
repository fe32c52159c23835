//! Whose turn it is: consumers that can take a message, highest priority first, round robin among equals.

use std::collections::VecDeque;

use crate::consumer::ConsumerKey;

/// Empty levels kept so that their memory is reused, at most.
const MAX_EMPTY_LEVELS: usize = 8;

#[derive(Debug, Clone)]
struct Level {
    priority: i32,
    keys: VecDeque<ConsumerKey>,
}

/// The service queue. No key may be in it twice: the consumer's record says whether it is in.
#[derive(Debug, Clone, Default)]
pub(crate) struct ServiceQueue {
    /// Descending by priority.
    levels: Vec<Level>,
    len: usize,
}

impl ServiceQueue {
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Puts a consumer behind its equals.
    pub fn push(&mut self, priority: i32, key: ConsumerKey) {
        let at = match self.levels.iter().position(|level| level.priority <= priority) {
            Some(at) if self.levels[at].priority == priority => at,
            at => {
                let at = at.unwrap_or(self.levels.len());
                self.levels.insert(at, Level { priority, keys: VecDeque::new() });
                at
            }
        };
        self.levels[at].keys.push_back(key);
        self.len += 1;
    }

    /// The consumer whose turn it is; it is out of the queue then.
    pub fn pop(&mut self) -> Option<ConsumerKey> {
        let at = self.levels.iter().position(|level| !level.keys.is_empty())?;
        let key = self.levels[at].keys.pop_front();
        self.len -= 1;
        self.trim(at);
        key
    }

    /// Takes a consumer out, wherever it stands.
    pub fn remove(&mut self, priority: i32, key: ConsumerKey) {
        let Some(at) = self.levels.iter().position(|level| level.priority == priority) else {
            return;
        };
        let keys = &mut self.levels[at].keys;
        if let Some(i) = keys.iter().position(|k| *k == key) {
            keys.remove(i);
            self.len -= 1;
            self.trim(at);
        }
    }

    fn trim(&mut self, at: usize) {
        if self.levels[at].keys.is_empty() && self.levels.len() > MAX_EMPTY_LEVELS {
            self.levels.remove(at);
        }
    }

    /// In the order of turns.
    pub fn iter(&self) -> impl Iterator<Item = (i32, ConsumerKey)> + '_ {
        self.levels.iter().flat_map(|level| level.keys.iter().map(|key| (level.priority, *key)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn higher_priorities_come_first_and_equals_take_turns() {
        let mut q = ServiceQueue::default();
        for (priority, key) in [(0, 1), (5, 2), (0, 3), (-1, 4), (5, 5)] {
            q.push(priority, ConsumerKey(key));
        }
        let order: Vec<_> = std::iter::from_fn(|| q.pop()).map(|k| k.0).collect();
        assert_eq!(order, [2, 5, 1, 3, 4]);
        assert!(q.is_empty());
    }

    #[test]
    fn a_removed_consumer_has_no_turn() {
        let mut q = ServiceQueue::default();
        for key in 1..=20 {
            q.push(key as i32, ConsumerKey(key));
        }
        q.remove(20, ConsumerKey(20));
        q.remove(7, ConsumerKey(3));
        assert_eq!(q.pop(), Some(ConsumerKey(19)));
        assert_eq!(q.iter().count(), 18);
    }
}
