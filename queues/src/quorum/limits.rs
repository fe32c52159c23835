//! What happens when too many messages wait.

use super::config::Overflow;
use super::effects::{DeadReason, Effect, Effects};
use super::state::{Meta, Queue};
use crate::defect::{Defect, broken};

/// Under which limit publishers may go on: four fifths.
fn released(limit: u64) -> u64 {
    limit / 10 * 8 + limit % 10 * 8 / 10
}

impl Queue {
    /// Messages that count for the limits, and bytes of their bodies: all that no consumer holds.
    fn counted(&self) -> (u64, u64) {
        (self.messages.waiting() + self.dlx.len(), self.messages.waiting_bytes() + self.dlx.bytes())
    }

    pub(super) fn over_limit(&self) -> bool {
        let (messages, bytes) = self.counted();
        self.config.max_length.is_some_and(|limit| messages > limit)
            || self.config.max_length_bytes.is_some_and(|limit| bytes > limit)
    }

    /// Whether publishers have to be told to stop.
    pub(super) fn rejects(&self) -> bool {
        self.config.overflow == Overflow::RejectPublish && self.over_limit()
    }

    /// Whether each limit that there is has room again.
    fn well_below_limit(&self) -> bool {
        if broken(Defect::UnblockedEarly) {
            return true;
        }
        let (messages, bytes) = self.counted();
        self.config.max_length.is_none_or(|limit| messages <= released(limit))
            && self.config.max_length_bytes.is_none_or(|limit| bytes <= released(limit))
    }

    /// Whether messages have to be dropped, and there is one to drop.
    pub(super) fn drops_owed(&self) -> bool {
        self.config.overflow == Overflow::DropHead && self.messages.waiting() > 0 && self.over_limit()
    }

    /// Drops what is too much, or tells publishers to stop; tells them when they may go on. Takes from `budget` what it drops.
    pub(super) fn enforce_limits(&mut self, meta: &Meta, budget: &mut usize, fx: &mut Effects) {
        while *budget > 0 && self.drops_owed() {
            let Some(message) = self.messages.take_dropped(meta.version) else {
                break;
            };
            *budget -= 1;
            self.bury(DeadReason::MaxLen, message, fx);
            self.expire(meta, budget, fx);
        }
        let rejects = self.config.overflow == Overflow::RejectPublish;
        if rejects && self.over_limit() {
            self.sessions.block_enqueuers(|session| fx.push(Effect::QueueStatus { session, reject: true }));
        } else if self.sessions.any_blocked() && (!rejects || self.well_below_limit()) {
            self.sessions.unblock_enqueuers(|session| fx.push(Effect::QueueStatus { session, reject: false }));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn publishers_go_on_below_four_fifths() {
        let below: Vec<_> = [0, 1, 2, 3, 10, 11, u64::MAX].into_iter().map(released).collect();
        assert_eq!(below, [0, 0, 1, 2, 8, 8, u64::MAX / 10 * 8 + 4]);
    }
}
