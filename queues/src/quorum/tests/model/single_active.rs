//! Single active consumer.

use std::cmp::Reverse;

use super::*;

impl Model {
    /// The active consumer, if there is one: attached, not waiting, with nothing or a lost connection lying over it. One that
    /// makes way is only looked at where no other one is there.
    pub(super) fn active(&self) -> Option<usize> {
        let active = |c: &Con| c.attached() && !c.waiting && c.timed_out.is_empty();
        let quiescing = |at: &usize| self.consumers[*at].base == Base::Quiescing;
        (0..self.consumers.len()).filter(|at| active(&self.consumers[*at])).min_by_key(quiescing)
    }

    fn first_waiting(&self) -> Option<usize> {
        let mut waiting: Vec<_> = (0..self.consumers.len()).filter(|at| self.consumers[*at].waiting).collect();
        waiting.sort_by_key(|at| {
            let c = &self.consumers[*at];
            (!c.is_up(), Reverse(c.priority), Reverse(c.credit()), c.key)
        });
        waiting.first().copied().filter(|at| self.consumers[*at].is_up())
    }

    pub(super) fn activate(&mut self) {
        if !self.config.single_active {
            return;
        }
        for c in self.consumers.iter_mut().filter(|c| c.base == Base::Quiescing && c.held.is_empty()) {
            (c.base, c.waiting) = (Base::Up, true);
        }
        let Some(next) = self.first_waiting() else { return };
        match self.active() {
            None => {
                // Those that are left over held something too long.
                for c in self.consumers.iter_mut().filter(|c| c.attached() && !c.waiting) {
                    match c.held.is_empty() {
                        true => (c.base, c.waiting) = (Base::Up, true),
                        false => c.base = Base::Quiescing,
                    }
                }
                self.consumers[next].waiting = false;
            }
            Some(active) if self.consumers[next].priority > self.consumers[active].priority => {
                let active = &mut self.consumers[active];
                if active.base == Base::Up && active.held.is_empty() {
                    active.waiting = true;
                    self.consumers[next].waiting = false;
                } else if active.base == Base::Up {
                    active.base = Base::Quiescing;
                }
            }
            Some(_) => {}
        }
    }

    /// A consumer that was cut off for too long is not the active one any more.
    pub(super) fn make_way(&mut self, key: ConsumerKey) {
        let single_active = self.config.single_active;
        let c = self.by_key(key);
        if single_active && c.attached() {
            (c.waiting, c.base) = (true, Base::Up);
        }
    }
}
