//! Consumers come and go: attach, dequeue, cancel, remove.

use super::Reply;
use super::command::Attach;
use super::consumer::{Base, Consumer, Kind, Window, delivered};
use super::effects::{Effect, Effects};
use super::state::Queue;
use crate::checked_out::CheckedOut;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
use crate::consumers::Seat;
use crate::effects::DeliverSlot;

impl Queue {
    pub(super) fn attach(&mut self, attach: &Attach, fx: &mut Effects) -> Reply {
        if self.exclusive_conflict(attach) {
            return Reply::ExclusiveUse;
        }
        let window = Window::new(attach.prefetch, attach.meta.ack);
        let key = match self.consumers.by_id_mut(&attach.consumer) {
            Some(consumer) => {
                // What it is given from now on belongs behind the answer to this attach.
                consumer.seat.slot = DeliverSlot::default();
                self.attached += u64::from(!consumer.attached());
                // What is on its way stays so.
                consumer.window = match (window, consumer.window) {
                    (Window::Unsent(_), Window::Unsent(unsent)) => Window::Unsent(unsent),
                    (window, _) => window,
                };
                consumer.kind = Kind::Subscription;
                consumer.base = Base::Up;
                consumer.prefetch = attach.prefetch;
                consumer.exclusive = attach.exclusive;
                consumer.meta = attach.meta.detached();
                let key = consumer.seat.key;
                self.consumers.set_priority(key, attach.priority);
                key
            }
            None => {
                let key = self.new_key();
                let mut consumer = new_consumer(&attach.consumer, key, Kind::Subscription, window);
                consumer.seat.priority = attach.priority;
                consumer.prefetch = attach.prefetch;
                consumer.exclusive = attach.exclusive;
                consumer.meta = attach.meta.detached();
                self.sessions.consumer_added(attach.consumer.session, fx);
                self.consumers.insert(consumer);
                self.attached += 1;
                key
            }
        };
        self.consumers.reschedule(key);
        match self.consumers.get(key) {
            Some(consumer) => Reply::Attached {
                key,
                next_msg_id: consumer.held.next_id(),
                credit: consumer.credit(),
                delivery_count: 0,
                num_checked_out: consumer.held.len(),
                active: true,
            },
            None => Reply::NotFound,
        }
    }

    /// Whether an exclusive consumer is attached beside another, were this one attached.
    fn exclusive_conflict(&self, attach: &Attach) -> bool {
        let same = self.consumers.by_id(&attach.consumer).is_some_and(Consumer::attached);
        let others = self.attached - u64::from(same);
        // An exclusive one is the only one, so the consumers are looked through only where there is one.
        others > 0
            && (attach.exclusive || self.attached == 1 && self.consumers.iter().any(|c| c.attached() && c.exclusive))
    }

    pub(super) fn dequeue(&mut self, now_ms: u64, id: &ConsumerId, settled: bool, fx: &mut Effects) -> Reply {
        self.last_active_ms = now_ms;
        let ready = self.messages.ready();
        if let Some(consumer) = self.consumers.by_id_mut(id) {
            return match (consumer.kind, consumer.held.first()) {
                (Kind::Dequeue, Some((msg_id, taken))) => {
                    Reply::Got { key: consumer.seat.key, message: delivered(msg_id, taken), ready }
                }
                (Kind::Dequeue, None) | (Kind::Subscription, _) => Reply::IdInUse,
            };
        }
        let Some(taken) = self.messages.take() else {
            return Reply::Empty;
        };
        let key = self.new_key();
        let message = if settled {
            self.messages.release(&taken);
            delivered(0, &taken)
        } else {
            let mut consumer = new_consumer(id, key, Kind::Dequeue, Window::Held(1));
            let message = consumer.assign(taken);
            self.sessions.consumer_added(id.session, fx);
            self.consumers.insert(consumer);
            message
        };
        Reply::Got { key, message, ready: self.messages.ready() }
    }

    pub(super) fn cancel(&mut self, now_ms: u64, consumer: &ConsumerRef, fx: &mut Effects) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get_mut(key)) else {
            return Reply::NotFound;
        };
        let was_attached = consumer.attached();
        consumer.base = Base::Cancelled;
        consumer.exclusive = false;
        let (key, num_checked_out) = (consumer.seat.key, consumer.held.len());
        self.consumers.reschedule(key);
        self.detached(now_ms, was_attached, fx);
        self.forget_if_finished(key, fx);
        Reply::Cancelled { key, num_checked_out }
    }

    pub(super) fn remove(&mut self, now_ms: u64, consumer: &ConsumerRef, fx: &mut Effects) -> Reply {
        let Some(consumer) = self.consumers.key_of(consumer).and_then(|key| self.consumers.get(key)) else {
            return Reply::NotFound;
        };
        let (key, num_checked_out) = (consumer.seat.key, consumer.held.len());
        self.drop_consumer(now_ms, key, false, fx);
        Reply::Cancelled { key, num_checked_out }
    }

    /// Returns what a consumer holds, and forgets it.
    pub(super) fn drop_consumer(&mut self, now_ms: u64, key: ConsumerKey, failed: bool, fx: &mut Effects) {
        let Some(mut consumer) = self.consumers.remove(key) else {
            return;
        };
        consumer.held.take_all(|taken| self.messages.give_back(taken, failed));
        self.detached(now_ms, consumer.attached(), fx);
        self.sessions.consumer_removed(consumer.seat.id.session, fx);
    }

    pub(super) fn forget_if_finished(&mut self, key: ConsumerKey, fx: &mut Effects) {
        if self.consumers.get(key).is_some_and(Consumer::finished)
            && let Some(consumer) = self.consumers.remove(key)
        {
            self.sessions.consumer_removed(consumer.seat.id.session, fx);
        }
    }

    /// A consumer gets no more messages; it may have been the last.
    fn detached(&mut self, now_ms: u64, was_attached: bool, fx: &mut Effects) {
        if was_attached {
            self.last_active_ms = now_ms;
            self.attached -= 1;
            if self.attached == 0 {
                fx.push(Effect::LastConsumerGone);
            }
        }
    }
}

fn new_consumer(id: &ConsumerId, key: ConsumerKey, kind: Kind, window: Window) -> Consumer {
    Consumer {
        seat: Seat::new(id.detached(), key, 0),
        kind,
        window,
        prefetch: 0,
        exclusive: false,
        meta: ConsumerMeta::default(),
        base: Base::Up,
        held: CheckedOut::default(),
    }
}
