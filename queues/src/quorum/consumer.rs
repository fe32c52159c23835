//! One consumer.

use super::command::Mode;
use super::effects::Delivered;
use super::messages::Message;
use crate::checked_out::CheckedOut;
use crate::consumer::ConsumerMeta;
use crate::consumers::{Seat, Seated};

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

/// What lies over that.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Overlay {
    None,
    /// Its node cannot be reached.
    Suspected {
        since_ms: u64,
    },
}

#[derive(Debug)]
pub(super) struct Consumer {
    pub seat: Seat,
    pub kind: Kind,
    pub mode: Mode,
    pub meta: ConsumerMeta,
    pub base: Base,
    pub overlay: Overlay,
    pub held: CheckedOut<Message>,
}

impl Consumer {
    /// How many messages it may be given now.
    pub fn credit(&self) -> u32 {
        match (self.kind, self.base) {
            (Kind::Subscription, Base::Up) => {
                self.mode.window().saturating_sub(u32::try_from(self.held.len()).unwrap_or(u32::MAX))
            }
            (Kind::Dequeue, _) | (_, Base::Cancelled) => 0,
        }
    }

    /// Whether nothing keeps it: it gets nothing more and holds nothing.
    pub fn finished(&self) -> bool {
        self.held.is_empty() && (self.kind == Kind::Dequeue || self.base == Base::Cancelled)
    }

    /// Whether it counts as a consumer of the queue.
    pub fn counts(&self) -> bool {
        self.kind == Kind::Subscription && self.base == Base::Up && self.overlay == Overlay::None
    }

    /// When what it holds must be returned, if it is cut off.
    pub fn disconnected_deadline(&self, timeout_ms: u64) -> Option<u64> {
        match self.overlay {
            Overlay::Suspected { since_ms } if !self.held.is_empty() => Some(since_ms.saturating_add(timeout_ms)),
            _ => None,
        }
    }

    /// Hands it a message.
    pub fn assign(&mut self, message: Message) -> Delivered {
        delivered(self.held.push(message), &message)
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
        self.overlay == Overlay::None && self.credit() > 0
    }
}

/// The form in which a message leaves.
pub(super) fn delivered(msg_id: u64, message: &Message) -> Delivered {
    Delivered {
        msg_id,
        reference: message.reference,
        acquired_count: message.acquired_count,
        delivery_count: message.carried.saturating_add(message.delivery_count),
        size: message.size,
    }
}
