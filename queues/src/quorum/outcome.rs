//! What consumers answer: settled, given back, rejected for good.

use super::Reply;
use super::effects::{DropReason, Effects, push_dropped};
use super::messages::{Message, Messages, ReturnRule};
use super::state::{Meta, Queue};
use crate::consumer::{ConsumerKey, ConsumerRef};
use crate::consumers::Seated;
use crate::msg_ids::MsgIds;

impl Queue {
    pub(super) fn settle(&mut self, meta: &Meta, consumer: &ConsumerRef, ids: &MsgIds, fx: &mut Effects) -> Reply {
        self.answered(meta, consumer, ids, fx, |messages, message| messages.release(&message));
        Reply::Ok
    }

    pub(super) fn discard(&mut self, meta: &Meta, consumer: &ConsumerRef, ids: &MsgIds, fx: &mut Effects) -> Reply {
        let mut dropped = 0;
        self.answered(meta, consumer, ids, fx, |messages, message| {
            messages.release(&message);
            dropped += 1;
        });
        push_dropped(fx, DropReason::Rejected, dropped);
        Reply::Ok
    }

    pub(super) fn give_back(
        &mut self,
        meta: &Meta,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        rule: ReturnRule,
        fx: &mut Effects,
    ) -> Reply {
        let mut dropped = 0;
        self.answered(meta, consumer, ids, fx, |messages, message| {
            dropped += u64::from(!messages.give_back(message, rule));
        });
        push_dropped(fx, DropReason::DeliveryLimit, dropped);
        Reply::Ok
    }

    /// Takes messages from a consumer in the order of the ids, and what follows for the consumer.
    fn answered(
        &mut self,
        meta: &Meta,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        fx: &mut Effects,
        mut each: impl FnMut(&mut Messages, Message),
    ) {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return;
        };
        for run in ids.runs() {
            consumer.held.take_run(run.start, run.count, |message| each(&mut self.messages, message));
        }
        let (key, finished) = (consumer.seat.key, consumer.finished());
        if consumer.able() && !consumer.seat.in_service() {
            self.consumers.reschedule(key);
        } else if finished {
            self.remove_consumer(meta, key, fx);
        }
    }

    /// Gives back all that a consumer holds, oldest first.
    pub(super) fn return_all(&mut self, key: ConsumerKey, rule: ReturnRule, fx: &mut Effects) {
        let Some(consumer) = self.consumers.get_mut(key) else {
            return;
        };
        let mut dropped = 0;
        consumer.held.take_all(|message| dropped += u64::from(!self.messages.give_back(message, rule)));
        push_dropped(fx, DropReason::DeliveryLimit, dropped);
        self.consumers.reschedule(key);
    }
}
