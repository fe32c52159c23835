//! Consumers come and go: attach, dequeue, cancel, remove.

use super::Reply;
use super::command::{Attach, Mode};
use super::consumer::{Base, Consumer, Kind, Overlay, delivered};
use super::effects::{Effect, Effects, TimerKey};
use super::state::{Meta, Queue};
use crate::checked_out::CheckedOut;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
use crate::consumers::Seat;
use crate::effects::DeliverSlot;

impl Queue {
    pub(super) fn attach(&mut self, meta: &Meta, attach: &Attach, fx: &mut Effects) -> Reply {
        let key = match self.consumers.by_id_mut(&attach.consumer) {
            Some(consumer) => {
                consumer.kind = Kind::Subscription;
                consumer.mode = attach.mode;
                consumer.meta = attach.meta.detached();
                consumer.base = Base::Up;
                // What it is given from now on belongs behind the answer to this attach.
                consumer.seat.slot = DeliverSlot::default();
                let key = consumer.seat.key;
                self.consumers.set_priority(key, attach.priority);
                self.unsuspect(key, fx);
                key
            }
            None => {
                let mut consumer = new_consumer(meta, &attach.consumer, Kind::Subscription, attach.mode);
                consumer.seat.priority = attach.priority;
                consumer.meta = attach.meta.detached();
                let key = consumer.seat.key;
                self.sessions.consumer_added(attach.consumer.session, fx);
                self.consumers.insert(consumer);
                key
            }
        };
        self.consumers.reschedule(key);
        match self.consumers.get(key) {
            Some(consumer) => Reply::Attached {
                key,
                next_msg_id: consumer.held.next_id(),
                credit: consumer.credit(),
                num_checked_out: consumer.held.len(),
            },
            None => Reply::NotFound,
        }
    }

    pub(super) fn dequeue(&mut self, meta: &Meta, id: &ConsumerId, settled: bool, fx: &mut Effects) -> Reply {
        self.last_active_ms = self.last_active_ms.max(meta.ts_ms);
        let ready = self.messages.ready();
        if let Some(consumer) = self.consumers.by_id_mut(id) {
            return match (consumer.kind, consumer.held.first()) {
                (Kind::Dequeue, Some((msg_id, message))) => {
                    Reply::Got { key: consumer.seat.key, message: delivered(msg_id, message), ready }
                }
                (Kind::Dequeue, None) | (Kind::Subscription, _) => Reply::IdInUse,
            };
        }
        let Some(message) = self.messages.take() else {
            return Reply::Empty;
        };
        let key = ConsumerKey::from(meta.reference);
        let message = if settled {
            self.messages.release(&message);
            delivered(0, &message)
        } else {
            let mut consumer = new_consumer(meta, id, Kind::Dequeue, Mode::SimplePrefetch(1));
            let message = consumer.assign(message);
            self.sessions.consumer_added(id.session, fx);
            self.consumers.insert(consumer);
            message
        };
        Reply::Got { key, message, ready: self.messages.ready() }
    }

    pub(super) fn cancel(&mut self, meta: &Meta, consumer: &ConsumerRef, fx: &mut Effects) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return Reply::NotFound;
        };
        consumer.base = Base::Cancelled;
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
        self.return_all(key, rule, fx);
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
        if consumer.overlay != Overlay::None {
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
        overlay: Overlay::None,
        held: CheckedOut::default(),
    }
}
