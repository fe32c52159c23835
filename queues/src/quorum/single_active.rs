//! Single active consumer: one is served, the others wait.

use std::cmp::Reverse;

use super::consumer::{Base, Consumer};
use super::effects::{Effect, Effects};
use super::state::Queue;
use crate::consumer::ConsumerKey;
use crate::defect::{Defect, broken};

/// The order of those that wait: who may take over first.
fn place(consumer: &Consumer) -> (bool, Reverse<i32>, Reverse<u32>, ConsumerKey) {
    let able = consumer.base == Base::Up && consumer.clear();
    (!able, Reverse(consumer.seat.priority), Reverse(consumer.credit()), consumer.seat.key)
}

impl Queue {
    /// Makes the right consumer the active one. Does nothing in a queue that serves all.
    pub(super) fn activate(&mut self, fx: &mut Effects) {
        if !self.config.single_active {
            return;
        }
        self.retire_quiesced(fx);
        let Some(first) = self.first_waiting() else { return };
        let active = self.active().map(|c| (c.seat.key, c.base, c.seat.priority, c.held.is_empty()));
        match active {
            None => {
                self.supersede(fx);
                self.promote(first.key, fx);
            }
            Some(_) if broken(Defect::TwoActive) => self.promote(first.key, fx),
            Some((key, Base::Up, priority, idle)) if first.priority > priority => {
                if idle {
                    self.set_waiting(key, fx);
                    self.promote(first.key, fx);
                } else if let Some(consumer) = self.consumers.get_mut(key) {
                    consumer.base = Base::Quiescing;
                    self.consumers.reschedule(key);
                }
            }
            Some(_) => {}
        }
    }

    /// Those that made way and hold nothing any more wait again.
    fn retire_quiesced(&mut self, fx: &mut Effects) {
        let done: Vec<_> = self
            .consumers
            .iter()
            .filter(|c| c.base == Base::Quiescing && c.held.is_empty())
            .map(|c| c.seat.key)
            .collect();
        for key in done {
            self.set_waiting(key, fx);
        }
    }

    /// Another one takes over from those that held messages too long: they make way when they have answered the rest.
    fn supersede(&mut self, fx: &mut Effects) {
        let served = self.consumers.iter().filter(|c| c.attached() && !c.waiting);
        let served: Vec<_> = served.map(|c| (c.seat.key, c.held.is_empty())).collect();
        for (key, idle) in served {
            if idle {
                self.set_waiting(key, fx);
            } else if let Some(consumer) = self.consumers.get_mut(key) {
                consumer.base = Base::Quiescing;
                self.consumers.reschedule(key);
            }
        }
    }

    /// The one that is served, or that has to be waited for. One that makes way only counts where nobody has taken over.
    pub(super) fn active(&self) -> Option<&Consumer> {
        let candidates = || self.consumers.iter().filter(|c| c.attached() && !c.waiting && c.timed_out.is_empty());
        candidates().find(|c| c.base == Base::Up).or_else(|| candidates().next())
    }

    /// The one that takes over next, if one can.
    fn first_waiting(&self) -> Option<Waiting> {
        let waiting = self.consumers.iter().filter(|c| c.waiting);
        let first = waiting.min_by_key(|c| place(c)).filter(|c| c.base == Base::Up && c.clear())?;
        Some(Waiting { key: first.seat.key, priority: first.seat.priority })
    }

    fn promote(&mut self, key: ConsumerKey, fx: &mut Effects) {
        if let Some(consumer) = self.consumers.get_mut(key) {
            consumer.waiting = false;
            fx.push(told(consumer, true));
            self.consumers.reschedule(key);
        }
    }

    /// A consumer is not the active one any more.
    pub(super) fn set_waiting(&mut self, key: ConsumerKey, fx: &mut Effects) {
        if let Some(consumer) = self.consumers.get_mut(key)
            && !consumer.waiting
        {
            consumer.base = Base::Up;
            consumer.waiting = true;
            fx.push(told(consumer, false));
            self.consumers.reschedule(key);
        }
    }
}

struct Waiting {
    key: ConsumerKey,
    priority: i32,
}

fn told(consumer: &Consumer, active: bool) -> Effect {
    let id = &consumer.seat.id;
    Effect::ConsumerActive { session: id.session, tag: id.tag.clone(), key: consumer.seat.key, active }
}
