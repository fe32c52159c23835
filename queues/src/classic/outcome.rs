//! What consumers answer: settled, given back, rejected for good, written out.

use super::Reply;
use super::consumer::Window;
use super::effects::{Effect, Effects};
use super::messages::{Messages, Taken};
use super::state::Queue;
use crate::consumer::ConsumerRef;
use crate::msg_ids::MsgIds;

impl Queue {
    pub(super) fn settle(&mut self, consumer: &ConsumerRef, ids: &MsgIds, fx: &mut Effects) -> Reply {
        self.answered(consumer, ids, fx, |messages, taken| messages.release(&taken));
        Reply::Ok
    }

    pub(super) fn give_back(&mut self, consumer: &ConsumerRef, ids: &MsgIds, failed: bool, fx: &mut Effects) -> Reply {
        self.answered(consumer, ids, fx, |messages, taken| messages.give_back(taken, failed));
        Reply::Ok
    }

    pub(super) fn discard(&mut self, consumer: &ConsumerRef, ids: &MsgIds, fx: &mut Effects) -> Reply {
        let mut count = 0;
        self.answered(consumer, ids, fx, |messages, taken| {
            messages.release(&taken);
            count += 1;
        });
        if count > 0 {
            fx.push(Effect::Rejected { count });
        }
        Reply::Ok
    }

    pub(super) fn sent(&mut self, consumer: &ConsumerRef, count: u32) -> Reply {
        if let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key))
            && let Window::Unsent(unsent) = &mut consumer.window
        {
            *unsent = unsent.saturating_sub(count);
            let key = consumer.seat.key;
            self.consumers.reschedule(key);
        }
        Reply::Ok
    }

    /// Takes messages from a consumer in the order of the ids, and what follows for the consumer.
    fn answered(
        &mut self,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        fx: &mut Effects,
        mut each: impl FnMut(&mut Messages, Taken),
    ) {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return;
        };
        for run in ids.runs() {
            consumer.held.take_run(run.start, run.count, |taken| each(&mut self.messages, taken));
        }
        let key = consumer.seat.key;
        self.consumers.reschedule(key);
        self.forget_if_finished(key, fx);
    }
}
