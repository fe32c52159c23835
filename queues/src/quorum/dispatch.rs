//! Handing ready messages to consumers.

use super::effects::Effects;
use super::state::Queue;
use crate::consumers::Seated;

/// Messages that one apply hands out, at most: what is left is [`work_owed`](Queue::work_owed).
const MAX_DELIVERIES: usize = 16_384;

impl Queue {
    /// Gives messages to consumers that can take one, in turn, until there are no more of either.
    pub(super) fn checkout(&mut self, fx: &mut Effects) {
        for _ in 0..MAX_DELIVERIES {
            if self.messages.ready() == 0 {
                return;
            }
            let Some(consumer) = self.consumers.next() else {
                return;
            };
            let Some(message) = self.messages.take() else {
                return;
            };
            let (key, message) = (consumer.seat.key, consumer.assign(message));
            fx.deliver(&mut consumer.seat.slot, key, message, || {
                (consumer.seat.id.session, consumer.seat.id.tag.clone())
            });
            if consumer.able() {
                self.consumers.reschedule(key);
            }
        }
    }

    /// Whether an apply stopped at its bound: the leader then proposes [`Command::Continue`](super::Command::Continue).
    /// Any other command goes on with the work as well.
    pub fn work_owed(&self) -> bool {
        self.messages.ready() > 0 && !self.consumers.service().is_empty()
    }
}
