//! What can be asked of a classic queue.

use warren_proto::ids::{NodeId, SessionRef};

use crate::consumer::{ConsumerId, ConsumerMeta, ConsumerRef};
use crate::enqueuer::Origin;
use crate::message::StoredMessage;
use crate::msg_ids::MsgIds;

/// A command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Makes a session known before it publishes. Answers `Registered`.
    RegisterEnqueuer {
        /// The session.
        session: SessionRef,
    },
    /// Publishes a message. Answers `Ok`, `OutOfSequence` or `UnknownEnqueuer`.
    Enqueue {
        /// Who publishes; `None` = untracked.
        origin: Option<Origin>,
        /// The message.
        message: StoredMessage,
    },
    /// Attaches a consumer, or attaches one again with other properties. Answers `Attached` or `ExclusiveUse`.
    Attach(Box<Attach>),
    /// Takes one message (basic.get). Answers `Got` or `Empty`. Asked again with the id of one that still holds its
    /// message, it answers the same message.
    Dequeue {
        /// Names the temporary consumer that holds the message. Not to be used by anything else.
        consumer: ConsumerId,
        /// Whether the message is done with at once.
        settled: bool,
    },
    /// Done with: acknowledged, or, where the client does not acknowledge, written out. Answers `Ok`; unknown ids and
    /// consumers are ignored.
    Settle {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
    },
    /// Given back, each to its original position. Answers `Ok`; unknown ids and consumers are ignored.
    Return {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
        /// Whether the delivery failed (basic.reject), or is merely undone (basic.nack, basic.recover).
        failed: bool,
    },
    /// Rejected for good. Answers `Ok`; unknown ids and consumers are ignored.
    Discard {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
    },
    /// The session has written this many messages out to a consumer without a prefetch limit. Ignored for others, for
    /// which what they hold is the limit. Answers `Ok`.
    Sent {
        /// The consumer.
        consumer: ConsumerRef,
        /// How many.
        count: u32,
    },
    /// Stops deliveries; what the consumer holds stays with it. Answers `Cancelled` or `NotFound`.
    Cancel {
        /// The consumer.
        consumer: ConsumerRef,
    },
    /// Stops deliveries and returns what the consumer holds. Answers `Cancelled` or `NotFound`.
    Remove {
        /// The consumer.
        consumer: ConsumerRef,
    },
    /// Drops all ready messages. Answers `Purged`.
    Purge,
    /// A session ended or was lost. Comes after every command that was accepted from it.
    SessionDown {
        /// The session.
        session: SessionRef,
    },
    /// A node left or cannot be reached: its sessions are lost.
    NodeDown {
        /// The node.
        node: NodeId,
    },
    /// Goes on with deliveries that an earlier command left at its bound
    /// ([`Queue::work_owed`](super::Queue::work_owed)).
    Continue,
}

/// A consumer to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Its name.
    pub consumer: ConsumerId,
    /// How many unacknowledged messages it may hold; 0 = any number. Without meaning where the client does not
    /// acknowledge.
    pub prefetch: u32,
    /// Whether it must be the only one.
    pub exclusive: bool,
    /// Consumers of a higher priority are served first.
    pub priority: i32,
    /// Whether the client acknowledges, and what is kept to be shown.
    pub meta: ConsumerMeta,
}
