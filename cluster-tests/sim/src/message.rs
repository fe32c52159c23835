//! What travels between nodes: Raft's messages, what sessions ask of queues, and what queues tell sessions.

use bytes::Bytes;
use warren_proto::ids::{GroupId, NodeId, SessionRef};
use warren_proto::peer::RaftMessage;
use warren_queues::quorum::{Command, Reply, Traits};
use warren_queues::{ConsumerId, ConsumerKey, MsgIds};
use warren_raft::driver::Lane;

/// A message on its way to a node.
#[derive(Debug, Clone)]
pub enum Envelope {
    /// Between members of a group.
    Raft(Lane, Box<RaftMessage>),
    /// For whoever leads the group, sent to the node that is thought to.
    ToGroup(GroupId, Ask),
    /// For a session on the node.
    ToSession(ToSession),
}

impl Envelope {
    /// About how many bytes it takes on the wire.
    pub fn size(&self) -> u64 {
        match self {
            Envelope::Raft(_, message) => {
                let entries: usize = message.entries.iter().map(|e| e.data.len() + 32).sum();
                let snapshot = message.snapshot.as_ref().map_or(0, |_| 1024);
                64 + entries as u64 + snapshot
            }
            Envelope::ToGroup(_, Ask::Publish { messages, .. }) => {
                messages.iter().map(|(_, body)| body.len() as u64 + 16).sum()
            }
            Envelope::ToGroup(..) | Envelope::ToSession(_) => 128,
        }
    }
}

/// What can be asked of a group's leader.
#[derive(Debug, Clone)]
pub enum Ask {
    /// A queue: publishes with consecutive sequence numbers.
    Publish {
        /// The publishing session.
        from: SessionRef,
        /// The first message's number.
        first_seq: u64,
        /// What the queue is told of each, and its body.
        messages: Vec<(Traits, Bytes)>,
    },
    /// A queue: bodies of messages that died in another one, published once.
    DeadLetters(Vec<Bytes>),
    /// A queue whose member keeps dead messages: what their new queue tells the worker.
    WorkerHears(ToSession),
    /// A queue: a command that is answered.
    Command {
        /// Who asks.
        from: SessionRef,
        /// Comes back with the answer.
        correlation: u64,
        /// The command.
        command: Box<Command>,
    },
    /// A queue: what the consumer holds, again.
    Redeliver {
        /// The consumer.
        consumer: ConsumerId,
        /// The first message id that its session has not seen.
        from_msg_id: u64,
    },
    /// A queue: this session does not exist any more.
    SessionGone(SessionRef),
    /// A queue: a node cannot be reached from here any more, or can be again.
    NodesChanged,
    /// The metadata tree: an encoded command.
    Metadata(Bytes),
}

/// Something that a queue's member tells a session.
#[derive(Debug, Clone)]
pub struct ToSession {
    /// The session.
    pub session: SessionRef,
    /// The queue's group.
    pub group: GroupId,
    /// The member's node.
    pub from: NodeId,
    /// What.
    pub event: QueueEvent,
}

/// What a queue tells a session.
#[derive(Debug, Clone)]
pub enum QueueEvent {
    /// Publishes `first..=last` were applied.
    Enqueued {
        /// The first.
        first: u64,
        /// The last.
        last: u64,
        /// What came of them.
        outcome: Outcome,
    },
    /// A command was applied at this log index.
    Replied {
        /// The command's.
        correlation: u64,
        /// The answer.
        reply: Box<Reply>,
        /// For a `Got`: whose message it is.
        uid: Option<u64>,
    },
    /// Messages for a consumer.
    Deliver {
        /// The consumer.
        key: ConsumerKey,
        /// The messages, ascending.
        messages: Vec<Handed>,
        /// Whether this answers [`Ask::Redeliver`]: ids that are left out are not held any more.
        again: bool,
    },
    /// Whether new publishes are to be refused.
    Status {
        /// Whether.
        reject: bool,
    },
    /// Messages were taken from a consumer that held them too long.
    Released {
        /// The consumer.
        key: ConsumerKey,
        /// Which; none if it was told before.
        ids: MsgIds,
    },
    /// The sender leads now, or still: what is pending should be sent to it.
    LeaderChanged,
    /// The sender cannot append.
    NotLeader {
        /// Who can, as far as it knows.
        leader: Option<NodeId>,
        /// Whether it leads but is full.
        busy: bool,
    },
}

/// What came of a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// It is in the queue, or was before: the confirm.
    Enqueued,
    /// An earlier one is missing.
    OutOfSequence,
    /// The queue does not know the session.
    UnknownEnqueuer,
    /// Anything else: never expected.
    Refused,
}

/// A message as a consumer gets it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Handed {
    /// Its id at the consumer.
    pub msg_id: u64,
    /// The message's identity, read from its body.
    pub uid: u64,
    /// Where it was enqueued.
    pub reference: u64,
    /// How often it was handed out before.
    pub acquired_count: u32,
}

/// Ids of sessions from here on are those of workers that take dead messages to their new queue: with the group from
/// whose leader they come.
const WORKERS: u64 = 1 << 39;

/// The id of a worker's session.
pub fn worker_id(group: GroupId) -> u64 {
    WORKERS + group.0
}

/// The group of a worker's session, if it is one.
pub fn worker_of(session: SessionRef) -> Option<GroupId> {
    session.id.checked_sub(WORKERS).map(GroupId)
}

/// A message's identity: its session's id and its sequence number there.
pub fn uid(session: u64, seq: u64) -> u64 {
    session << 24 | seq
}

/// The session's id in a message's identity.
pub fn publisher_of(uid: u64) -> u64 {
    uid >> 24
}

/// The sequence number in a message's identity.
pub fn seq_of(uid: u64) -> u64 {
    uid & 0xff_ffff
}

/// Reads the identity from a body.
pub fn uid_in(body: &[u8]) -> Option<u64> {
    Some(u64::from_le_bytes(body.get(..8)?.try_into().ok()?))
}
