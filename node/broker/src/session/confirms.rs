//! Publisher confirms of one session: which publishes are resolved, and how.

use std::collections::VecDeque;

/// A publish's fate so far.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Queues that have not answered.
    waiting: u32,
    rejected: bool,
    reported: bool,
}

/// What became of publishes since the last call of [`Confirms::take`].
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Resolved {
    /// Publishes that every queue has taken, ascending.
    pub acks: Vec<u64>,
    /// Publishes that some queue has refused, ascending.
    pub nacks: Vec<u64>,
    /// The lowest tag that is not resolved; every lower one is.
    pub lowest_unresolved: u64,
}

/// Numbers publishes from 1 and resolves each exactly once.
#[derive(Debug)]
pub struct Confirms {
    /// Tag of the first slot.
    base: u64,
    slots: VecDeque<Slot>,
    acks: Vec<u64>,
    nacks: Vec<u64>,
}

impl Default for Confirms {
    fn default() -> Self {
        Confirms { base: 1, slots: VecDeque::new(), acks: Vec::new(), nacks: Vec::new() }
    }
}

impl Confirms {
    /// The next publish goes to `targets` queues; 0 resolves it at once. Answers its tag.
    pub fn publish(&mut self, targets: u32) -> u64 {
        let tag = self.base + self.slots.len() as u64;
        self.slots.push_back(Slot { waiting: targets, rejected: false, reported: false });
        if targets == 0 {
            self.resolve(tag);
        }
        tag
    }

    /// One queue has taken the publish, or is gone.
    pub fn accepted(&mut self, tag: u64) {
        let Some(slot) = self.slot(tag) else { return };
        slot.waiting = slot.waiting.saturating_sub(1);
        if slot.waiting == 0 {
            self.resolve(tag);
        }
    }

    /// One queue refuses the publish: it is nacked once, whatever the others say.
    pub fn rejected(&mut self, tag: u64) {
        let Some(slot) = self.slot(tag) else { return };
        slot.rejected = true;
        slot.waiting = slot.waiting.saturating_sub(1);
        self.resolve(tag);
    }

    fn slot(&mut self, tag: u64) -> Option<&mut Slot> {
        let at = tag.checked_sub(self.base)?;
        self.slots.get_mut(usize::try_from(at).ok()?)
    }

    fn resolve(&mut self, tag: u64) {
        let Some(slot) = self.slot(tag) else { return };
        if slot.reported {
            return;
        }
        slot.reported = true;
        if slot.rejected {
            self.nacks.push(tag);
        } else {
            self.acks.push(tag);
        }
        while self.slots.front().is_some_and(|s| s.reported) {
            self.slots.pop_front();
            self.base += 1;
        }
    }

    /// Whether [`take`](Self::take) has something to say.
    pub fn has_resolved(&self) -> bool {
        !self.acks.is_empty() || !self.nacks.is_empty()
    }

    /// Publishes that are not resolved.
    pub fn unresolved(&self) -> usize {
        self.slots.iter().filter(|s| !s.reported).count()
    }

    /// What was resolved since the last call, sorted.
    pub fn take(&mut self) -> Resolved {
        let mut acks = std::mem::take(&mut self.acks);
        let mut nacks = std::mem::take(&mut self.nacks);
        acks.sort_unstable();
        nacks.sort_unstable();
        Resolved { acks, nacks, lowest_unresolved: self.base }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_publish_is_confirmed_when_every_queue_has_taken_it() {
        let mut c = Confirms::default();
        assert_eq!(c.publish(2), 1);
        assert_eq!(c.publish(1), 2);
        c.accepted(1);
        c.accepted(2);
        assert_eq!(c.take(), Resolved { acks: vec![2], nacks: vec![], lowest_unresolved: 1 });
        c.accepted(1);
        assert_eq!(c.take(), Resolved { acks: vec![1], nacks: vec![], lowest_unresolved: 3 });
    }

    #[test]
    fn one_rejection_makes_one_nack_and_no_ack_follows() {
        let mut c = Confirms::default();
        c.publish(2);
        c.rejected(1);
        c.accepted(1);
        c.accepted(1);
        assert_eq!(c.take(), Resolved { acks: vec![], nacks: vec![1], lowest_unresolved: 2 });
        assert!(!c.has_resolved());
    }

    #[test]
    fn an_unroutable_publish_is_confirmed_at_once() {
        let mut c = Confirms::default();
        assert_eq!(c.publish(0), 1);
        assert_eq!(c.take().acks, [1]);
        assert_eq!(c.unresolved(), 0);
    }
}
