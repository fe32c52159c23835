//! One consumer.

use std::collections::BTreeSet;

use super::command::Mode;
use super::effects::Delivered;
use super::messages::{Message, When};
use crate::checked_out::CheckedOut;
use crate::consumer::ConsumerMeta;
use crate::consumers::{Seat, Seated};
use crate::defect::{Defect, broken};
use crate::msg_ids::Run;

/// What made a consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// An attach: messages are pushed to it.
    Subscription,
    /// A dequeue: it holds one message, and goes with it.
    Dequeue,
}

/// What its session wants of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Base {
    Up,
    /// Single active: gets no more, and makes way for one of a higher priority when what it holds is answered.
    Quiescing,
    /// Gets no more, keeps what it has, goes with the last.
    Cancelled,
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub seat: Seat,
    pub kind: Kind,
    pub mode: Mode,
    pub meta: ConsumerMeta,
    pub base: Base,
    /// Single active: whether it waits for its turn to be the active one.
    pub waiting: bool,
    /// Since when its node cannot be reached.
    pub suspected: Option<u64>,
    /// How long it may hold a message, in ms.
    pub timeout_ms: Option<u64>,
    /// Taken from it because it held them too long, and not answered yet: while there are any, it gets no more.
    pub timed_out: BTreeSet<u64>,
    pub held: CheckedOut<Message>,
    /// Credit left, if it grants its own.
    pub granted: u32,
    /// Messages given to it, a serial number, if it grants its own credit.
    pub delivery_count: u32,
    /// Whether it asked to give up credit that it cannot use, and has not been told yet.
    pub drain: bool,
}

impl Consumer {
    /// How many messages it may be given now.
    pub fn credit(&self) -> u32 {
        match (self.kind, self.base) {
            (Kind::Subscription, Base::Up | Base::Quiescing) => match self.mode.window() {
                Some(window) => {
                    let window = window.saturating_add(u32::from(broken(Defect::PrefetchOverrun)));
                    window.saturating_sub(u32::try_from(self.held.len()).unwrap_or(u32::MAX))
                }
                None => self.granted,
            },
            (Kind::Dequeue, _) | (_, Base::Cancelled) => 0,
        }
    }

    /// Whether nothing keeps it: it gets nothing more and holds nothing.
    pub fn finished(&self) -> bool {
        self.held.is_empty() && (self.kind == Kind::Dequeue || self.base == Base::Cancelled)
    }

    /// Whether nothing lies over what its session wants.
    pub fn clear(&self) -> bool {
        self.suspected.is_none() && (self.timed_out.is_empty() || broken(Defect::TimedOutServed))
    }

    /// Whether it counts as a consumer of the queue.
    pub fn counts(&self) -> bool {
        self.attached() && self.clear()
    }

    /// Whether its session wants it to be there.
    pub fn attached(&self) -> bool {
        self.kind == Kind::Subscription && self.base != Base::Cancelled
    }

    /// What was taken from it of these ids is answered now.
    pub fn timed_out_answered(&mut self, run: &Run) {
        let end = run.start.saturating_add(run.count);
        while let Some(id) = self.timed_out.range(run.start..end).next().copied() {
            self.timed_out.remove(&id);
        }
    }

    /// When what it holds must be returned, if it is cut off. A single active one makes way then, whatever it holds.
    pub fn disconnected_deadline(&self, timeout_ms: u64, single_active: bool) -> Option<u64> {
        let since_ms = self.suspected?;
        let waits = !self.held.is_empty() || (single_active && self.attached() && !self.waiting);
        waits.then(|| since_ms.saturating_add(timeout_ms))
    }

    /// Hands it a message.
    pub fn assign(&mut self, mut message: Message, deadline: When) -> Delivered {
        message.deadline = deadline;
        if self.kind == Kind::Subscription && self.mode.window().is_none() {
            self.granted = self.granted.saturating_sub(1);
            self.delivery_count = self.delivery_count.wrapping_add(1);
        }
        let delivered = Delivered { msg_id: self.held.next_id(), ..shown(&message) };
        self.held.push(message);
        delivered
    }
}

impl Seated for Consumer {
    fn seat(&self) -> &Seat {
        &self.seat
    }

    fn seat_mut(&mut self) -> &mut Seat {
        &mut self.seat
    }

    fn able(&self) -> bool {
        let up = self.base == Base::Up || (self.base == Base::Quiescing && broken(Defect::QuiescingServed));
        up && !self.waiting && self.clear() && self.credit() > 0
    }
}

/// The form in which a message leaves, but for its id.
pub(super) fn shown(message: &Message) -> Delivered {
    Delivered {
        msg_id: 0,
        reference: message.reference,
        acquired_count: message.acquired_count,
        delivery_count: message.total_delivery_count(),
        size: message.size,
        annotations: message.annotations().cloned(),
    }
}

/// The form in which a message leaves.
pub(super) fn delivered(msg_id: u64, message: &Message) -> Delivered {
    Delivered { msg_id, ..shown(message) }
}
