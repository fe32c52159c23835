//! What a classic queue asks of its host.

use warren_proto::ids::SessionRef;

use crate::effects::{Carries, Deliver};
use crate::message::StoredMessage;

/// The host's buffer.
pub type Effects = crate::effects::Effects<Effect>;

/// Something to do outside the machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Hand messages to a consumer.
    Deliver(Deliver<Delivered>),
    /// Watch a session, and its node. Its end becomes `SessionDown`.
    Monitor(SessionRef),
    /// The queue has no more business with the session.
    Demonitor(SessionRef),
    /// Messages were rejected for good. To be counted.
    Rejected {
        /// How many.
        count: u64,
    },
    /// The queue had consumers and has none now: an auto-delete queue is to be deleted.
    LastConsumerGone,
}

/// A message as handed to a consumer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delivered {
    /// Counts up by consumer; 0 for a dequeue that is settled at once.
    pub msg_id: u64,
    /// The message.
    pub message: StoredMessage,
    /// Whether it was handed out before.
    pub redelivered: bool,
    /// How many deliveries of it failed before.
    pub delivery_count: u32,
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
            Effect::Monitor(_) | Effect::Demonitor(_) | Effect::Rejected { .. } | Effect::LastConsumerGone => None,
        }
    }
}
