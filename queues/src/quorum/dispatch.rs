//! Handing ready messages to consumers, and credit.

use super::consumer::Kind;
use super::effects::{CreditReply, Effect, Effects};
use super::messages::When;
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::consumer::{ConsumerKey, ConsumerRef};
use crate::consumers::Seated;

/// Messages that one apply moves, at most: what is left is [`work_owed`](Queue::work_owed), or due at once.
pub(super) const MAX_WORK: usize = 16_384;

impl Queue {
    /// Gives messages to consumers that can take one, in turn, until there are no more of either. No message is handed out
    /// that has expired. Takes from `budget` what it moves.
    pub(super) fn checkout(&mut self, meta: &Meta, budget: &mut usize, fx: &mut Effects) {
        while *budget > 0 && self.messages.ready() > 0 {
            let Some(consumer) = self.consumers.next() else {
                return;
            };
            let Some(message) = self.messages.take(meta.version) else {
                return;
            };
            *budget -= 1;
            let timeout = consumer.timeout_ms.filter(|_| meta.version >= MV2);
            let deadline = When::from(timeout.map(|timeout| meta.ts_ms.saturating_add(timeout)));
            let (key, message) = (consumer.seat.key, consumer.assign(message, deadline));
            fx.deliver(&mut consumer.seat.slot, key, message, || {
                (consumer.seat.id.session, consumer.seat.id.tag.clone())
            });
            if consumer.able() {
                self.consumers.reschedule(key);
            }
            self.arm_deadline(deadline, fx);
            self.expire(meta, budget, fx);
        }
    }

    /// Whether an apply stopped at its bound: the leader then proposes [`Command::Continue`](super::Command::Continue).
    /// Any other command goes on with the work as well.
    pub fn work_owed(&self) -> bool {
        (self.messages.ready() > 0 && !self.consumers.service().is_empty()) || self.drops_owed()
    }

    /// Grants credit. Answers the consumer, if it takes any.
    pub(super) fn credit(
        &mut self,
        consumer: &ConsumerRef,
        credit: u32,
        delivery_count: u32,
        drain: bool,
    ) -> Option<ConsumerKey> {
        let consumer = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key))?;
        if consumer.kind == Kind::Dequeue || consumer.mode.window().is_some() {
            return None;
        }
        // RFC 1982: the difference of two serial numbers, as a signed one.
        let left = delivery_count.wrapping_add(credit).wrapping_sub(consumer.delivery_count) as i32;
        consumer.granted = left.max(0) as u32;
        consumer.drain = drain;
        let key = consumer.seat.key;
        self.consumers.reschedule(key);
        Some(key)
    }

    /// After the deliveries of a grant: gives up what a draining consumer could not use, and tells where it stands.
    pub(super) fn credited(&mut self, key: ConsumerKey, fx: &mut Effects) {
        let available = self.messages.ready();
        let Some(consumer) = self.consumers.get_mut(key) else {
            return;
        };
        if consumer.drain {
            consumer.delivery_count = consumer.delivery_count.wrapping_add(consumer.granted);
            consumer.granted = 0;
        }
        let active = !consumer.waiting;
        fx.push(Effect::CreditReply(CreditReply {
            session: consumer.seat.id.session,
            tag: consumer.seat.id.tag.clone(),
            key,
            delivery_count: consumer.delivery_count,
            credit: consumer.granted,
            available: if active { available } else { 0 },
            drain: consumer.drain,
            active,
        }));
        self.consumers.reschedule(key);
    }
}
