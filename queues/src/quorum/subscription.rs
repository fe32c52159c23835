//! Consumers come and go: attach, dequeue, cancel, remove.

use std::collections::BTreeSet;

use super::Reply;
use super::command::{Attach, Mode};
use super::consumer::{Base, Consumer, Kind, delivered};
use super::effects::{Effect, Effects, TimerKey};
use super::messages::When;
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::checked_out::CheckedOut;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
use crate::consumers::Seat;
use crate::effects::DeliverSlot;

impl Queue {
    pub(super) fn attach(&mut self, meta: &Meta, attach: &Attach, fx: &mut Effects) -> Reply {
        let timeout_ms = attach.timeout_ms.or(self.config.consumer_timeout_ms).or(attach.default_timeout_ms);
        let known = self.consumers.by_id(&attach.consumer).map(|consumer| consumer.seat.key);
        let key = match known {
            Some(key) => {
                self.attach_again(key, attach, fx);
                key
            }
            None => {
                let mut consumer = new_consumer(meta, &attach.consumer, Kind::Subscription, attach.mode);
                consumer.seat.priority = attach.priority;
                consumer.meta = attach.meta.detached();
                consumer.waiting = self.config.single_active;
                let key = consumer.seat.key;
                self.sessions.consumer_added(attach.consumer.session, fx);
                self.consumers.insert(consumer);
                key
            }
        };
        if let Some(consumer) = self.consumers.get_mut(key) {
            consumer.timeout_ms = timeout_ms;
        }
        self.consumers.reschedule(key);
        self.activate(fx);
        match self.consumers.get(key) {
            Some(consumer) => Reply::Attached {
                key,
                next_msg_id: consumer.held.next_id(),
                credit: consumer.credit(),
                delivery_count: consumer.delivery_count,
                num_checked_out: consumer.held.len(),
                active: !consumer.waiting,
            },
            None => Reply::NotFound,
        }
    }

    fn attach_again(&mut self, key: ConsumerKey, attach: &Attach, fx: &mut Effects) {
        let another_active = self.active().is_some_and(|active| active.seat.key != key);
        let Some(consumer) = self.consumers.get_mut(key) else { return };
        let was_attached = consumer.attached();
        consumer.kind = Kind::Subscription;
        (consumer.granted, consumer.drain) = (0, false);
        if consumer.mode != attach.mode {
            consumer.delivery_count = attach.mode.initial_delivery_count();
        }
        consumer.mode = attach.mode;
        consumer.meta = attach.meta.detached();
        if !was_attached {
            consumer.base = Base::Up;
            // It may keep what it holds, but its turn is over if another one has taken it.
            consumer.waiting = self.config.single_active && another_active;
        }
        // It begins anew: nobody will answer what was taken from it before.
        consumer.timed_out.clear();
        // What it is given from now on belongs behind the answer to this attach.
        consumer.seat.slot = DeliverSlot::default();
        self.consumers.set_priority(key, attach.priority);
        self.unsuspect(key, fx);
    }

    pub(super) fn dequeue(
        &mut self,
        meta: &Meta,
        id: &ConsumerId,
        settled: bool,
        default_timeout_ms: Option<u64>,
        budget: &mut usize,
        fx: &mut Effects,
    ) -> Reply {
        self.last_active_ms = self.last_active_ms.max(meta.ts_ms);
        if self.config.single_active {
            return Reply::SingleActive;
        }
        self.pass_time(meta, budget, fx);
        let ready = self.messages.ready();
        if let Some(consumer) = self.consumers.by_id(id) {
            return match (consumer.kind, consumer.held.first()) {
                (Kind::Dequeue, Some((msg_id, message))) => {
                    Reply::Got { key: consumer.seat.key, message: delivered(msg_id, message), ready }
                }
                (Kind::Dequeue, None) | (Kind::Subscription, _) => Reply::IdInUse,
            };
        }
        // Without budget, what is next may have expired.
        let next = if *budget > 0 { self.messages.take(meta.version) } else { None };
        let Some(message) = next else {
            return Reply::Empty;
        };
        let key = ConsumerKey::from(meta.reference);
        let message = if settled {
            self.messages.release(&message);
            delivered(0, &message)
        } else {
            let mut consumer = new_consumer(meta, id, Kind::Dequeue, Mode::SimplePrefetch(1));
            consumer.timeout_ms = self.config.consumer_timeout_ms.or(default_timeout_ms);
            let timeout = consumer.timeout_ms.filter(|_| meta.version >= MV2);
            let deadline = When::from(timeout.map(|timeout| meta.ts_ms.saturating_add(timeout)));
            let message = consumer.assign(message, deadline);
            self.sessions.consumer_added(id.session, fx);
            self.consumers.insert(consumer);
            self.arm_deadline(deadline, fx);
            message
        };
        Reply::Got { key, message, ready: self.messages.ready() }
    }

    pub(super) fn cancel(&mut self, meta: &Meta, consumer: &ConsumerRef, fx: &mut Effects) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return Reply::NotFound;
        };
        consumer.base = Base::Cancelled;
        consumer.waiting = false;
        (consumer.granted, consumer.drain) = (0, false);
        consumer.timed_out.clear();
        let (key, num_checked_out) = (consumer.seat.key, consumer.held.len());
        self.consumers.reschedule(key);
        self.remove_if_finished(meta, key, fx);
        Reply::Cancelled { key, num_checked_out }
    }

    pub(super) fn remove(&mut self, meta: &Meta, consumer: &ConsumerRef, fx: &mut Effects) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get(key)) else {
            return Reply::NotFound;
        };
        let (key, num_checked_out) = (consumer.seat.key, consumer.held.len());
        let rule = self.return_rule(meta, false);
        self.return_all(key, &rule, fx);
        self.remove_consumer(meta, key, fx);
        Reply::Cancelled { key, num_checked_out }
    }

    pub(super) fn remove_if_finished(&mut self, meta: &Meta, key: ConsumerKey, fx: &mut Effects) {
        if self.consumers.get(key).is_some_and(Consumer::finished) {
            self.remove_consumer(meta, key, fx);
        }
    }

    /// Forgets a consumer that holds nothing.
    pub(super) fn remove_consumer(&mut self, meta: &Meta, key: ConsumerKey, fx: &mut Effects) {
        let Some(consumer) = self.consumers.remove(key) else {
            return;
        };
        debug_assert!(consumer.held.is_empty());
        if consumer.suspected.is_some() {
            fx.push(Effect::Timer { key: TimerKey::ConsumerDisconnected(key), at_ms: None });
        }
        self.sessions.consumer_removed(consumer.seat.id.session, fx);
        self.last_active_ms = self.last_active_ms.max(meta.ts_ms);
    }
}

fn new_consumer(meta: &Meta, id: &ConsumerId, kind: Kind, mode: Mode) -> Consumer {
    Consumer {
        seat: Seat::new(id.detached(), meta.reference.into(), 0),
        kind,
        mode,
        meta: ConsumerMeta::default(),
        base: Base::Up,
        waiting: false,
        suspected: None,
        timeout_ms: None,
        timed_out: BTreeSet::new(),
        held: CheckedOut::default(),
        granted: 0,
        delivery_count: mode.initial_delivery_count(),
        drain: false,
    }
}
