//! What a quorum queue asks of its host.

use bytes::Bytes;
use warren_proto::ids::{Reference, SessionRef};

use super::messages::Annotations;
use crate::consumer::ConsumerKey;
use crate::effects::{Carries, Deliver};
use crate::msg_ids::MsgIds;

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
    /// Leader: messages left the queue unconsumed, and go nowhere. To be counted.
    Dropped {
        /// Why.
        reason: DeadReason,
        /// How many.
        count: u64,
    },
    /// Leader: messages left the queue unconsumed. To be published where the configuration says, once.
    DeadLetter {
        /// Why.
        reason: DeadReason,
        /// Which, in the order in which they left.
        messages: Vec<Delivered>,
    },
    /// Leader: messages left the queue unconsumed, and are kept until they have arrived elsewhere. To be counted.
    Kept {
        /// Why.
        reason: DeadReason,
        /// How many.
        count: u64,
    },
    /// Leader: dead messages for the worker.
    DlxDeliver {
        /// The worker.
        session: SessionRef,
        /// The messages, and why they died.
        messages: Vec<(DeadReason, Delivered)>,
    },
    /// Leader: whether the queue needs a worker that takes dead messages to their new queues.
    DlxWorker(bool),
    /// Leader: whether a session's publishes are to be refused.
    QueueStatus {
        /// The session.
        session: SessionRef,
        /// Whether the queue is over its limit.
        reject: bool,
    },
    /// Local member, like a delivery: the state of a consumer's credit, behind all deliveries of the same command.
    CreditReply(CreditReply),
    /// Leader: a consumer of a single active queue is, or is not any more, the active one.
    ConsumerActive {
        /// The consumer's session.
        session: SessionRef,
        /// Its tag.
        tag: Bytes,
        /// Its key.
        key: ConsumerKey,
        /// Whether it is the active one.
        active: bool,
    },
    /// Leader: messages were taken from a consumer that held them too long. It gets no more before it has answered them.
    Released {
        /// The consumer's session.
        session: SessionRef,
        /// Its tag.
        tag: Bytes,
        /// Its key.
        key: ConsumerKey,
        /// Which.
        ids: MsgIds,
        /// Whether a dequeue held it rather than a subscription.
        dequeue: bool,
    },
    /// Every member: take a snapshot soon, much of the log is dead.
    ForceSnapshot,
}

/// A message as handed to a consumer, by reference: its body is in the log.
#[derive(Debug, Clone, PartialEq, Eq)]
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
    /// What consumers noted on it.
    pub annotations: Option<Annotations>,
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
    /// A message expires, or a delayed one gets ready.
    ExpireMessages,
    /// A consumer has held a message for too long.
    ConsumerDeadlines,
    /// A consumer that was cut off has been so for too long.
    ConsumerDisconnected(ConsumerKey),
}

/// Why a message left unconsumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum DeadReason {
    /// A consumer rejected it for good.
    Rejected,
    /// It was returned once too often.
    DeliveryLimit,
    /// It waited too long.
    Expired,
    /// The queue was over its limit.
    MaxLen,
}

impl DeadReason {
    /// As `x-death` says it.
    pub fn name(self) -> &'static str {
        match self {
            DeadReason::Rejected => "rejected",
            DeadReason::DeliveryLimit => "delivery_limit",
            DeadReason::Expired => "expired",
            DeadReason::MaxLen => "maxlen",
        }
    }
}

/// The state of a consumer's credit after a [`Command::Credit`](super::Command::Credit).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CreditReply {
    /// The consumer's session.
    pub session: SessionRef,
    /// Its tag.
    pub tag: Bytes,
    /// Its key.
    pub key: ConsumerKey,
    /// Messages that it was given, and credit that it gave up: a serial number.
    pub delivery_count: u32,
    /// Credit left.
    pub credit: u32,
    /// Ready messages, if it may get any.
    pub available: u64,
    /// Whether it asked to give up what it could not use.
    pub drain: bool,
    /// Whether it may get any: false while it waits behind a single active one.
    pub active: bool,
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
pub(super) fn push_dropped(fx: &mut Effects, reason: DeadReason) {
    match fx.last_mut() {
        Some(Effect::Dropped { reason: last, count }) if *last == reason => *count += 1,
        _ => fx.push(Effect::Dropped { reason, count: 1 }),
    }
}

/// The same of kept ones.
pub(super) fn push_kept(fx: &mut Effects, reason: DeadReason) {
    match fx.last_mut() {
        Some(Effect::Kept { reason: last, count }) if *last == reason => *count += 1,
        _ => fx.push(Effect::Kept { reason, count: 1 }),
    }
}

/// Adds a dead message, behind others of the same reason.
pub(super) fn push_dead(fx: &mut Effects, reason: DeadReason, message: Delivered) {
    match fx.last_mut() {
        Some(Effect::DeadLetter { reason: last, messages }) if *last == reason => messages.push(message),
        _ => fx.push(Effect::DeadLetter { reason, messages: vec![message] }),
    }
}
