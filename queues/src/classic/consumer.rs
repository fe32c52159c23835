//! One consumer.

use super::effects::Delivered;
use super::messages::Taken;
use crate::checked_out::CheckedOut;
use crate::consumer::ConsumerMeta;
use crate::consumers::{Seat, Seated};

/// Messages on their way to a consumer that has no prefetch limit or does not acknowledge, at most.
pub const UNSENT_WINDOW: u32 = 2000;

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
    /// Gets no more, keeps what it has, goes with the last.
    Cancelled,
}

/// What bounds its deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Window {
    /// What it holds.
    Held(u32),
    /// What it was given and its session has not written out yet.
    Unsent(u32),
}

impl Window {
    pub fn new(prefetch: u32, ack: bool) -> Self {
        match (prefetch, ack) {
            (_, false) => Window::Held(UNSENT_WINDOW),
            (0, true) => Window::Unsent(0),
            (n, true) => Window::Held(n),
        }
    }
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub seat: Seat,
    pub kind: Kind,
    pub window: Window,
    pub prefetch: u32,
    pub exclusive: bool,
    pub meta: ConsumerMeta,
    pub base: Base,
    pub held: CheckedOut<Taken>,
}

impl Consumer {
    /// How many messages it may be given now.
    pub fn credit(&self) -> u32 {
        match (self.kind, self.base, self.window) {
            (Kind::Dequeue, _, _) | (_, Base::Cancelled, _) => 0,
            (_, _, Window::Held(limit)) => limit.saturating_sub(u32::try_from(self.held.len()).unwrap_or(u32::MAX)),
            (_, _, Window::Unsent(unsent)) => UNSENT_WINDOW.saturating_sub(unsent),
        }
    }

    /// Whether it counts as a consumer of the queue.
    pub fn attached(&self) -> bool {
        self.kind == Kind::Subscription && self.base == Base::Up
    }

    /// Whether nothing keeps it: it gets nothing more and holds nothing.
    pub fn finished(&self) -> bool {
        self.held.is_empty() && !self.attached()
    }

    /// Hands it a message.
    pub fn assign(&mut self, taken: Taken) -> Delivered {
        if let Window::Unsent(unsent) = &mut self.window {
            *unsent = unsent.saturating_add(1);
        }
        let mut message = delivered(0, &taken);
        message.msg_id = self.held.push(taken);
        message
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
        self.credit() > 0
    }
}

/// The form in which a message leaves.
pub(super) fn delivered(msg_id: u64, taken: &Taken) -> Delivered {
    Delivered {
        msg_id,
        message: taken.message.clone(),
        redelivered: taken.redelivered,
        delivery_count: taken.delivery_count,
    }
}
