//! Handing ready messages to consumers, and credit.

use super::effects::{CreditReply, Effect, Effects};
use super::messages::When;
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::consumer::{ConsumerKey, ConsumerRef};
use crate::consumers::Seated;
use crate::defect::{Defect, broken};
use crate::effects::DeliverSlot;

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
            if !broken(Defect::ExpiredServed) {
                self.expire(meta, budget, fx);
            }
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
        if !consumer.attached() || consumer.mode.window().is_some() {
            return None;
        }
        consumer.granted = granted(credit, delivery_count, consumer.delivery_count);
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
        if consumer.drain && consumer.able() && available > 0 {
            // The apply stopped at its bound: the rest is handed out before credit is given up.
            return;
        }
        let drain = std::mem::take(&mut consumer.drain);
        if drain && !broken(Defect::DrainNotCounted) {
            consumer.delivery_count = consumer.delivery_count.wrapping_add(consumer.granted);
        }
        if drain {
            consumer.granted = 0;
        }
        let active = !consumer.waiting;
        // What it is given from now on belongs behind this reply.
        consumer.seat.slot = DeliverSlot::default();
        fx.push(Effect::CreditReply(CreditReply {
            session: consumer.seat.id.session,
            tag: consumer.seat.id.tag.clone(),
            key,
            delivery_count: consumer.delivery_count,
            credit: consumer.granted,
            available: if active { available } else { 0 },
            drain,
            active,
        }));
        self.consumers.reschedule(key);
    }

    /// Answers the drains that an apply left at its bound, where nothing more can be handed out.
    pub(super) fn finish_drains(&mut self, fx: &mut Effects) {
        let pending = self.consumers.iter().filter(|c| c.drain);
        let pending: Vec<_> = pending.map(|c| c.seat.key).collect();
        pending.into_iter().for_each(|key| self.credited(key, fx));
    }
}

/// What is left of `credit` that was granted after `seen` deliveries, when there were `sent` (serial numbers, RFC 1982).
fn granted(credit: u32, seen: u32, sent: u32) -> u32 {
    if broken(Defect::CreditDoesNotWrap) {
        return seen.saturating_add(credit).saturating_sub(sent);
    }
    match sent.wrapping_sub(seen) as i32 {
        in_flight @ 0.. => credit.saturating_sub(in_flight as u32),
        behind => credit.saturating_add(behind.unsigned_abs()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_counts_from_what_the_receiver_has_seen() {
        assert_eq!(granted(5, 10, 10), 5);
        assert_eq!(granted(5, 10, 13), 2);
        assert_eq!(granted(5, 10, 17), 0);
        assert_eq!(granted(5, 12, 10), 7);
        assert_eq!(granted(5, 0xffff_fffe, 1), 2);
        assert_eq!(granted(5, 1, 0xffff_fffe), 8);
        assert_eq!(granted(u32::MAX, 7, 9), u32::MAX - 2);
        assert_eq!(granted(u32::MAX, 9, 7), u32::MAX);
    }
}
