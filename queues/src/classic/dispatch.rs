//! Handing ready messages to consumers.

use super::consumer::delivered;
use super::effects::{Delivered, Effects};
use super::state::Queue;
use crate::consumer::ConsumerRef;
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
            let Some(consumer) = self.consumers.next() else { return };
            let Some(taken) = self.messages.take() else { return };
            let message = consumer.assign(taken);
            let able = consumer.able();
            let seat = &mut consumer.seat;
            let key = seat.key;
            fx.deliver(&mut seat.slot, key, message, || (seat.id.session, seat.id.tag.clone()));
            if able {
                self.consumers.reschedule(key);
            }
        }
    }

    /// Whether an apply stopped at its bound: the host then applies [`Command::Continue`](super::Command::Continue).
    /// Any other command goes on with the work as well.
    pub fn work_owed(&self) -> bool {
        self.messages.ready() > 0 && !self.consumers.service().is_empty()
    }

    /// What a consumer holds, from message id `from` on, ascending: for a session that missed a delivery.
    pub fn held(&self, consumer: &ConsumerRef, from: u64) -> impl Iterator<Item = Delivered> {
        let consumer = self.consumers.key_of(consumer).and_then(|key| self.consumers.get(key));
        let held = consumer.into_iter().flat_map(|c| c.held.iter().map(|(msg_id, taken)| delivered(msg_id, taken)));
        held.filter(move |message| message.msg_id >= from)
    }
}
