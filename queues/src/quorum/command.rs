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
    /// Rejected for good. Answers `Ok`; unknown ids and consumers are ignored.
    Discard {
        /// Who held them.
        consumer: ConsumerRef,
        /// What.
        ids: MsgIds,
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
    /// The message.
    pub message: StoredMessage,
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
    /// What is kept to be shown.
    pub meta: ConsumerMeta,
}

/// How a consumer gets credit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// It may hold this many messages; 0 stands for [`Mode::UNLIMITED_PREFETCH`].
    SimplePrefetch(u32),
}

impl Mode {
    /// What a prefetch of 0, "unlimited", is.
    pub const UNLIMITED_PREFETCH: u32 = 2000;

    /// How many messages the consumer may hold.
    pub(super) fn window(self) -> u32 {
        match self {
            Mode::SimplePrefetch(0) => Self::UNLIMITED_PREFETCH,
            Mode::SimplePrefetch(n) => n,
        }
    }
}

impl Command {
    /// The lowest machine version that can carry the command's meaning. The rejecting form of `Return` is defined at
    /// both: version 1 counts it as a plain one.
    pub fn min_version(&self) -> MachineVersion {
        match self {
            Command::Timeout(TimerKey::ConsumerDisconnected(_)) => MV2,
            Command::RegisterEnqueuer { .. }
            | Command::Enqueue(_)
            | Command::Attach(_)
            | Command::Dequeue { .. }
            | Command::Settle { .. }
            | Command::Return { .. }
            | Command::Discard { .. }
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

    /// Reads one command at a group's version. A message's bytes share `bytes`' buffer.
    pub fn decode(version: MachineVersion, bytes: Bytes) -> Result<Command, crate::DecodeError> {
        super::codec::decode(version, bytes)
    }

    /// Writes the command as a group at `version` reads it.
    pub fn encode(&self, version: MachineVersion, out: &mut bytes::BytesMut) {
        super::codec::encode(self, version, out);
    }
}
