//! What can be asked of a quorum queue.

use bytes::Bytes;
use warren_proto::ids::{MachineVersion, NodeId, SessionRef};

use super::config::Config;
use super::effects::TimerKey;
use super::version::{MV1, MV2};
use crate::consumer::{ConsumerId, ConsumerMeta, ConsumerRef};
use crate::enqueuer::Origin;
use crate::message::StoredMessage;
use crate::msg_ids::MsgIds;
use crate::session::SessionLoss;

/// The version-neutral form in which sessions ask: the same content as a command, before the leader encodes it in the
/// version that its group has.
pub type Request = Command;

/// A command in a group's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Command {
    /// Makes a session known before it publishes. Answers `Registered`.
    RegisterEnqueuer {
        /// The session.
        session: SessionRef,
    },
    /// Publishes a message. Answers `Ok`, `OutOfSequence` or `UnknownEnqueuer`.
    Enqueue(Enqueue),
    /// Attaches a consumer, or attaches one again with other properties. Answers `Attached`.
    Attach(Box<Attach>),
    /// Takes one message (basic.get). Answers `Got` or `Empty`. Asked again with the id of one that still holds its
    /// message, it answers the same message.
    Dequeue {
        /// Names the temporary consumer that holds the message. Not to be used by anything else.
        consumer: ConsumerId,
        /// Whether the message is done with at once.
        settled: bool,
        /// How long it may be held, in ms, if the queue's configuration does not say. From version 2.
        default_timeout_ms: Option<u64>,
    },
    /// Done with. Answers `Ok`; unknown ids and consumers are ignored.
    Settle {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
    },
    /// Given back, in the order of the ids. Answers `Ok`; unknown ids and consumers are ignored.
    Return {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
        /// Whether the delivery failed (basic.reject), or is merely undone (basic.nack, basic.recover).
        failed: bool,
    },
    /// Rejected for good; the delivery failed. Answers `Ok`; unknown ids and consumers are ignored.
    Discard {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
    },
    /// Given back or rejected, and changed. Answers `Ok`; unknown ids and consumers are ignored.
    Modify(Box<Modify>),
    /// Grants a consumer credit. Answers `Ok`, also for a consumer that is unknown or cancelled, or has a prefetch count:
    /// these take none. Else a [`CreditReply`](super::CreditReply) follows the deliveries; that to a drain comes with a
    /// later command where one apply cannot hand out all.
    Credit {
        /// The consumer.
        consumer: ConsumerRef,
        /// Messages that it may be given, counted from `delivery_count` on.
        credit: u32,
        /// How many the receiver has seen; a serial number (RFC 1982).
        delivery_count: u32,
        /// Whether credit that cannot be used now is to be given up.
        drain: bool,
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
    /// Drops all messages that no consumer holds; at version 1, the ready ones. Answers `Purged`.
    Purge,
    /// A session is lost. Proposed after every command that was accepted from it.
    SessionDown {
        /// The session.
        session: SessionRef,
        /// How.
        loss: SessionLoss,
    },
    /// A node that could not be reached can be again.
    NodeUp {
        /// The node.
        node: NodeId,
    },
    /// Nodes left the cluster: their sessions are gone.
    PurgeNodes {
        /// The nodes.
        nodes: Vec<NodeId>,
    },
    /// Replaces the configuration.
    UpdateConfig(Config),
    /// A timer fired that an effect had set.
    Timeout(TimerKey),
    /// Attaches the worker that takes dead messages to their new queues; it replaces an older one, and gets what that one
    /// had under new message ids. Answers `Ok`, or `NotFound` while dead messages are not kept.
    DlxAttach {
        /// The worker.
        session: SessionRef,
        /// How many messages it may hold.
        prefetch: u32,
    },
    /// Dead messages have arrived. Answers `Ok`; what the worker does not hold is ignored.
    DlxSettle {
        /// The worker.
        session: SessionRef,
        /// Which.
        ids: MsgIds,
    },
    /// Makes delayed messages ready before their time. Answers `Retried`.
    DelayedRetryNow {
        /// How many, those first that would be ready first; `None` = all.
        count: Option<u64>,
    },
    /// Goes on with work that an earlier command left at its bound
    /// ([`Queue::work_owed`](super::Queue::work_owed)).
    Continue,
}

/// A publish.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Enqueue {
    /// Who publishes; `None` = untracked.
    pub origin: Option<Origin>,
    /// Failed deliveries that the message had before, in another queue.
    pub delivery_count: u32,
    /// Its priority; more than 31 counts as 31, `None` as 4.
    pub priority: Option<u8>,
    /// How long it may wait, in ms.
    pub ttl_ms: Option<u64>,
    /// The message.
    pub message: StoredMessage,
}

/// What a publish tells the queue besides the message: fields of the enqueue, read from the message once by the session's
/// node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traits {
    /// See [`Enqueue::delivery_count`].
    pub delivery_count: u32,
    /// See [`Enqueue::priority`].
    pub priority: Option<u8>,
    /// See [`Enqueue::ttl_ms`].
    pub ttl_ms: Option<u64>,
}

/// An outcome that changes its messages.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Modify {
    /// Who held them.
    pub consumer: ConsumerRef,
    /// What.
    pub ids: MsgIds,
    /// Whether the delivery failed.
    pub failed: bool,
    /// Whether they leave the queue, like rejected ones, rather than come back.
    pub undeliverable_here: bool,
    /// When they are to be ready again, ms since 1970; a time that is past delays nothing. From version 2.
    pub deliver_at_ms: Option<u64>,
    /// Noted on each: names with opaque values.
    pub annotations: Vec<(Bytes, Bytes)>,
}

/// A consumer to be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attach {
    /// Its name.
    pub consumer: ConsumerId,
    /// How much it may be given.
    pub mode: Mode,
    /// Consumers of a higher priority are served first.
    pub priority: i32,
    /// How long it may hold a message, in ms, if it says so. From version 2.
    pub timeout_ms: Option<u64>,
    /// The same, if neither it nor the queue's configuration says so; `None` = as long as it likes.
    pub default_timeout_ms: Option<u64>,
    /// What is kept to be shown.
    pub meta: ConsumerMeta,
}

/// How a consumer gets credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It may hold this many messages; 0 stands for [`Mode::UNLIMITED_PREFETCH`].
    SimplePrefetch(u32),
    /// It is given as many messages as it grants credit for (AMQP 1.0, section 2.6.7).
    Credited {
        /// Where the delivery count starts.
        initial_delivery_count: u32,
    },
}

impl Mode {
    /// What a prefetch of 0, "unlimited", is.
    pub const UNLIMITED_PREFETCH: u32 = 2000;

    /// How many messages the consumer may hold; `None` if that is not what bounds it.
    pub(super) fn window(self) -> Option<u32> {
        match self {
            Mode::SimplePrefetch(0) => Some(Self::UNLIMITED_PREFETCH),
            Mode::SimplePrefetch(n) => Some(n),
            Mode::Credited { .. } => None,
        }
    }

    /// Where the delivery count starts.
    pub(super) fn initial_delivery_count(self) -> u32 {
        match self {
            Mode::SimplePrefetch(_) => 0,
            Mode::Credited { initial_delivery_count } => initial_delivery_count,
        }
    }
}

impl Command {
    /// The lowest machine version that can carry the command's meaning. The rejecting form of `Return` is defined at
    /// both: version 1 counts it as a plain one.
    pub fn min_version(&self) -> MachineVersion {
        match self {
            Command::Timeout(TimerKey::ConsumerDisconnected(_) | TimerKey::ConsumerDeadlines)
            | Command::DelayedRetryNow { .. } => MV2,
            Command::RegisterEnqueuer { .. }
            | Command::Enqueue(_)
            | Command::Attach(_)
            | Command::Dequeue { .. }
            | Command::Settle { .. }
            | Command::Return { .. }
            | Command::Discard { .. }
            | Command::Modify(_)
            | Command::Credit { .. }
            | Command::Timeout(TimerKey::ExpireMessages)
            | Command::DlxAttach { .. }
            | Command::DlxSettle { .. }
            | Command::Cancel { .. }
            | Command::Remove { .. }
            | Command::Purge
            | Command::SessionDown { .. }
            | Command::NodeUp { .. }
            | Command::PurgeNodes { .. }
            | Command::UpdateConfig(_)
            | Command::Continue => MV1,
        }
    }

    /// Reads one command alone at a group's version; those of a log entry are read by one [`Decoder`](super::Decoder). A
    /// message's bytes share `bytes`' buffer.
    pub fn decode(version: MachineVersion, bytes: Bytes) -> Result<Command, crate::DecodeError> {
        super::Decoder::new(version).decode(bytes)
    }

    /// Writes the command as a group at `version` reads it.
    pub fn encode(&self, version: MachineVersion, out: &mut bytes::BytesMut) {
        super::codec::encode(self, version, out);
    }
}
