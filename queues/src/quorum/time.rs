//! What time does: messages expire, delayed ones get ready, consumers hold theirs too long.

use super::Reply;
use super::consumer::{Consumer, Kind};
use super::effects::{DeadReason, Effect, Effects, TimerKey};
use super::messages::When;
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::consumer::ConsumerKey;
use crate::msg_ids::MsgIds;

impl Queue {
    /// When a message that is published now expires.
    pub(super) fn expiry(&self, meta: &Meta, ttl_ms: Option<u64>) -> When {
        match ttl_ms.into_iter().chain(self.config.message_ttl_ms).min() {
            // One that may not wait at all can still be handed out at once.
            Some(ttl) => When::at(meta.ts_ms.saturating_add(ttl.max(1))),
            None => When::NEVER,
        }
    }

    /// Makes delayed messages ready that are due, and takes expired ones from every head. Takes from `budget` what it moves.
    pub(super) fn pass_time(&mut self, meta: &Meta, budget: &mut usize, fx: &mut Effects) {
        while *budget > 0
            && let Some(ready) = self.ready_or_expired(meta, meta.ts_ms, budget, fx)
        {
            *budget -= usize::from(ready);
        }
        self.expire(meta, budget, fx);
    }

    /// Makes the first delayed message ready, if its time has come by `until`; one that has expired dies instead, as long
    /// as there is a budget, and else when its turn comes. Answers whether it is ready, `None` if there was none.
    fn ready_or_expired(&mut self, meta: &Meta, until: u64, budget: &mut usize, fx: &mut Effects) -> Option<bool> {
        let message = self.messages.take_due(until)?;
        if message.expiry.is_past(meta.ts_ms) && *budget > 0 {
            *budget -= 1;
            self.bury(DeadReason::Expired, message, fx);
            return Some(false);
        }
        self.messages.back(message);
        Some(true)
    }

    pub(super) fn expire(&mut self, meta: &Meta, budget: &mut usize, fx: &mut Effects) {
        while *budget > 0
            && let Some(message) = self.messages.take_expired(meta.ts_ms)
        {
            *budget -= 1;
            self.bury(DeadReason::Expired, message, fx);
        }
    }

    /// Sets the timer of expiry, if it has to go off earlier than it is set to. One that goes off too early is set again.
    pub(super) fn arm_expiry(&mut self, fx: &mut Effects) {
        let Some(due) = self.messages.next_due() else { return };
        if self.armed_expiry.is_none_or(|armed| due < armed) {
            self.armed_expiry = Some(due);
            fx.push(Effect::Timer { key: TimerKey::ExpireMessages, at_ms: Some(due) });
        }
    }

    /// The same of what consumers hold: it must be answered by `deadline`.
    pub(super) fn arm_deadline(&mut self, deadline: When, fx: &mut Effects) {
        let Some(due) = deadline.get() else { return };
        if self.armed_deadline.is_none_or(|armed| due < armed) {
            self.armed_deadline = Some(due);
            fx.push(Effect::Timer { key: TimerKey::ConsumerDeadlines, at_ms: Some(due) });
        }
    }

    /// The first deadline of all.
    pub(super) fn next_deadline(&self) -> Option<u64> {
        self.consumers.iter().flat_map(|c| c.held.iter()).filter_map(|(_, message)| message.deadline.get()).min()
    }

    pub(super) fn consumer_deadlines(&mut self, meta: &Meta, fx: &mut Effects) -> Reply {
        if meta.version < MV2 {
            return Reply::Unsupported;
        }
        self.armed_deadline = None;
        let overdue: Vec<(ConsumerKey, MsgIds)> = self
            .consumers
            .iter()
            .map(|c| (c.seat.key, overdue(c, meta.ts_ms)))
            .filter(|(_, ids)| !ids.is_empty())
            .collect();
        for (key, ids) in overdue {
            self.take_overdue(meta, key, ids, fx);
        }
        let next = self.next_deadline();
        self.arm_deadline(When::from(next), fx);
        Reply::Ok
    }

    fn take_overdue(&mut self, meta: &Meta, key: ConsumerKey, ids: MsgIds, fx: &mut Effects) {
        let rule = self.return_rule(meta, false);
        let Some(consumer) = self.consumers.get_mut(key) else { return };
        let mut dead = Vec::new();
        for run in ids.runs() {
            consumer
                .held
                .take_run(run.start, run.count, |message| dead.extend(self.messages.give_back(message, &rule)));
        }
        if consumer.attached() {
            consumer.timed_out.extend(ids.runs().iter().flat_map(|run| run.start..run.start + run.count));
        }
        let waits = self.config.single_active && consumer.attached() && consumer.held.is_empty();
        let (session, tag) = (consumer.seat.id.session, consumer.seat.id.tag.clone());
        let dequeue = consumer.kind == Kind::Dequeue;
        fx.push(Effect::Released { session, tag, key, ids, dequeue });
        self.bury_all(DeadReason::DeliveryLimit, dead, fx);
        if waits {
            self.set_waiting(key, fx);
        }
        self.consumers.reschedule(key);
        self.remove_if_finished(meta, key, fx);
    }

    pub(super) fn retry_now(&mut self, meta: &Meta, count: Option<u64>, budget: &mut usize, fx: &mut Effects) -> Reply {
        if meta.version < MV2 {
            return Reply::Unsupported;
        }
        let mut moved = 0;
        while count.is_none_or(|count| moved < count)
            && let Some(ready) = self.ready_or_expired(meta, u64::MAX, budget, fx)
        {
            moved += u64::from(ready);
        }
        Reply::Retried { count: moved }
    }

    /// When the queue is to be deleted for want of use, ms: never while it has a consumer that is not cut off, be it a
    /// cancelled one, or a dequeue, that still holds a message.
    pub fn expires_at(&self) -> Option<u64> {
        let expires = self.config.expires_ms?;
        let used = self.consumers.iter().any(|c| c.suspected.is_none());
        (!used).then(|| self.last_active_ms.saturating_add(expires))
    }
}

/// What a consumer should have answered by now.
fn overdue(consumer: &Consumer, now_ms: u64) -> MsgIds {
    consumer.held.iter().filter(|(_, message)| message.deadline.is_past(now_ms)).map(|(id, _)| id).collect()
}
