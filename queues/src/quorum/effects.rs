//! What a quorum queue asks of its host.

use warren_proto::ids::{Reference, SessionRef};

use crate::consumer::ConsumerKey;
use crate::effects::{Carries, Deliver};

/// The host's buffer.
pub type Effects = crate::effects::Effects<Effect>;

/// Something to do outside the machine. Effects may be lost or repeated at a change of leader: each is idempotent or
/// comes again from [`Queue::become_leader`](super::Queue::become_leader).
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Hand messages to a consumer. Done by the voter on the session's node, or else by the leader; the session drops
    /// what it has seen by message id. Comes after the answers to the commands before it.
    Deliver(Deliver<Delivered>),
    /// Leader: watch a session, and its node. Its end becomes `SessionDown`, its node's return `NodeUp`.
    Monitor(SessionRef),
    /// Leader: the queue has no more business with the session.
    Demonitor(SessionRef),
    /// Leader: tell a session who leads, so that it resends what is pending.
    LeaderChange(SessionRef),
    /// Leader: append `Timeout(key)` at this time (ms), or not at all.
    Timer {
        /// Which timer; setting it again replaces it.
        key: TimerKey,
        /// When; `None` cancels.
        at_ms: Option<u64>,
    },
    /// Leader: messages left the queue unconsumed. To be counted.
    Dropped {
        /// Why.
        reason: DropReason,
        /// How many.
        count: u64,
    },
    /// Every member: take a snapshot soon, much of the log is dead.
    ForceSnapshot,
}

/// A message as handed to a consumer, by reference: its body is in the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Delivered {
    /// Counts up by consumer; 0 for a dequeue that is settled at once.
    pub msg_id: u64,
    /// Where the message was enqueued.
    pub reference: Reference,
    /// How often it was handed out before. It is redelivered if that is not 0.
    pub acquired_count: u32,
    /// How many deliveries of it failed before, here and in the queues that it came from.
    pub delivery_count: u32,
    /// Bytes of body.
    pub size: u32,
}

impl Delivered {
    /// Whether the message was handed out before.
    pub fn redelivered(&self) -> bool {
        self.acquired_count > 0
    }
}

/// Names a timer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKey {
    /// A consumer that was cut off has been so for too long.
    ConsumerDisconnected(ConsumerKey),
}

/// Why a message left unconsumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DropReason {
    /// A consumer rejected it for good.
    Rejected,
    /// It was returned once too often.
    DeliveryLimit,
}

impl Carries for Effect {
    type Message = Delivered;

    fn from_deliver(deliver: Deliver<Delivered>) -> Self {
        Effect::Deliver(deliver)
    }

    fn monitor(session: SessionRef) -> Self {
        Effect::Monitor(session)
    }

    fn demonitor(session: SessionRef) -> Self {
        Effect::Demonitor(session)
    }

    fn deliver_mut(&mut self) -> Option<&mut Deliver<Delivered>> {
        match self {
            Effect::Deliver(deliver) => Some(deliver),
            _ => None,
        }
    }
}

/// Counts dropped messages, equal neighbours as one.
pub(super) fn push_dropped(fx: &mut Effects, reason: DropReason, count: u64) {
    if count == 0 {
        return;
    }
    match fx.last_mut() {
        Some(Effect::Dropped { reason: last, count: n }) if *last == reason => *n += count,
        _ => fx.push(Effect::Dropped { reason, count }),
    }
}
