//! What consumers answer: settled, given back, rejected for good, modified.

use super::Reply;
use super::command::Modify;
use super::effects::{DeadReason, Effects};
use super::messages::{Message, Messages, ReturnRule};
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::consumer::{ConsumerKey, ConsumerRef};
use crate::consumers::Seated;
use crate::defect::{Defect, broken};
use crate::msg_ids::MsgIds;

impl Queue {
    pub(super) fn settle(&mut self, meta: &Meta, consumer: &ConsumerRef, ids: &MsgIds, fx: &mut Effects) -> Reply {
        self.answered(meta, consumer, ids, DeadReason::Rejected, fx, |messages, message| {
            messages.release(&message);
            None
        })
    }

    pub(super) fn discard(
        &mut self,
        meta: &Meta,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        failed: bool,
        annotations: &[(bytes::Bytes, bytes::Bytes)],
        fx: &mut Effects,
    ) -> Reply {
        self.answered(meta, consumer, ids, DeadReason::Rejected, fx, |messages, mut message| {
            messages.not_held(&message);
            message.deadline = Default::default();
            message.count(failed);
            message.annotate(annotations);
            Some(message)
        })
    }

    pub(super) fn give_back(
        &mut self,
        meta: &Meta,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        rule: &ReturnRule,
        annotations: &[(bytes::Bytes, bytes::Bytes)],
        fx: &mut Effects,
    ) -> Reply {
        self.answered(meta, consumer, ids, DeadReason::DeliveryLimit, fx, |messages, mut message| {
            message.annotate(annotations);
            messages.give_back(message, rule)
        })
    }

    pub(super) fn modify(&mut self, meta: &Meta, modify: &Modify, fx: &mut Effects) -> Reply {
        let Modify { consumer, ids, failed, undeliverable_here, deliver_at_ms, annotations } = modify;
        if *undeliverable_here {
            return self.discard(meta, consumer, ids, *failed, annotations, fx);
        }
        let deliver_at = deliver_at_ms.filter(|_| meta.version >= MV2);
        let rule = ReturnRule { deliver_at, ..self.return_rule(meta, *failed) };
        self.give_back(meta, consumer, ids, &rule, annotations, fx)
    }

    /// Takes messages from a consumer in the order of the ids, and what follows for the consumer. What `each` answers has
    /// died.
    fn answered(
        &mut self,
        meta: &Meta,
        consumer: &ConsumerRef,
        ids: &MsgIds,
        reason: DeadReason,
        fx: &mut Effects,
        mut each: impl FnMut(&mut Messages, Message) -> Option<Message>,
    ) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return Reply::Ok;
        };
        let mut dead = Vec::new();
        for run in ids.runs() {
            consumer.held.take_run(run.start, run.count, |message| dead.extend(each(&mut self.messages, message)));
        }
        if !consumer.timed_out.is_empty() {
            ids.runs().iter().for_each(|run| consumer.timed_out_answered(run));
        }
        let (key, finished) = (consumer.seat.key, consumer.finished());
        if consumer.able() && !consumer.seat.in_service() && !broken(Defect::CreditNotRefilled) {
            self.consumers.reschedule(key);
        } else if finished {
            self.remove_consumer(meta, key, fx);
        }
        self.bury_all(reason, dead, fx);
        Reply::Ok
    }

    /// Gives back all that a consumer holds, oldest first.
    pub(super) fn return_all(&mut self, key: ConsumerKey, rule: &ReturnRule, fx: &mut Effects) {
        let Some(consumer) = self.consumers.get_mut(key) else {
            return;
        };
        let mut dead = Vec::new();
        consumer.held.take_all(|message| dead.extend(self.messages.give_back(message, rule)));
        self.bury_all(DeadReason::DeliveryLimit, dead, fx);
        self.consumers.reschedule(key);
    }
}
