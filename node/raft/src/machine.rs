//! What the Raft host asks of a replicated state machine.

use std::ops::RangeInclusive;

use bytes::Bytes;
use warren_proto::batch::{Batch, BatchBuilder};
use warren_proto::ids::{GroupId, MachineVersion, NodeId};

/// A member's part in its group, as the machine sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// Follows, stands for election, or only listens.
    Follower,
    /// Won its term but has not applied an entry of it yet: must answer nothing and deliver nothing.
    Elected,
    /// Leads, and its own term's first entry is applied.
    Leader,
}

/// Why a request came back without having been appended, or without its fate being known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refusal {
    /// This member does not lead. The leader that it knows of, if any. Nothing was appended.
    NotLeader(Option<NodeId>),
    /// This member leads but its term's first entry is not applied, or it is full. Nothing was appended; try again.
    Busy,
    /// The group stopped on this node (deleted, faulted, or blocked on a newer machine version).
    Stopped,
}

/// What a machine may read while it is called.
pub struct GroupCx<'a> {
    /// The group.
    pub group: GroupId,
    /// This member's role.
    pub role: Role,
    /// The current term.
    pub term: u64,
    /// The leader that this member knows of.
    pub leader: Option<NodeId>,
    /// Wall clock in ms as the host read it for this round of work. For effects only: `apply` takes time from its entry.
    pub now_ms: u64,
    /// Reads bodies of entries, from memory or from the log.
    pub entries: &'a dyn EntryReader,
}

/// Reads committed entries' batches, also those below the snapshot that are still live.
pub trait EntryReader: Send + Sync {
    /// The batch of an entry that is still in memory.
    fn cached(&self, group: GroupId, index: u64) -> Option<Batch>;

    /// Batches by log index, read from disk where they are not in memory; `None` where the entry is gone. Blocks:
    /// never call it from `apply`.
    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Batch>>, ReadError>;
}

/// The log could not be read.
#[derive(Debug, Clone, thiserror::Error)]
#[error("reading the log failed: {0}")]
pub struct ReadError(pub String);

/// A committed entry that reaches the machine.
pub struct Applied {
    /// Log index.
    pub index: u64,
    /// Term in which it was appended.
    pub term: u64,
    /// The group's effective machine version at this index.
    pub version: MachineVersion,
    /// The commands.
    pub batch: Batch,
    /// False while entries are replayed after a restart: state changes, but no effect may leave the machine.
    pub live: bool,
}

/// State, without bodies, and what must stay readable for it.
pub struct MachineSnapshot {
    /// Encoded state; opaque to the host.
    pub state: Bytes,
    /// Log indexes that hold a message still in the state: ascending, disjoint, inclusive ranges.
    pub live: Vec<RangeInclusive<u64>>,
}

/// The stored state cannot be read by this binary.
#[derive(Debug, Clone, thiserror::Error)]
#[error("machine state cannot be decoded: {0}")]
pub struct RestoreError(pub String);

/// A replicated state machine together with what its leader does about it. Called from one thread at a time.
///
/// `apply` must be deterministic and total: the same entries give the same state on every member, whatever the bytes.
/// Everything else (answering callers, sending deliveries) goes out through handles that the implementation owns, must
/// not block, and happens only where the role in `cx` allows.
pub trait StateMachine: Send + 'static {
    /// The version-neutral form in which work reaches the leader.
    type Request: Send + 'static;

    /// Versions that this binary can apply.
    fn supported(&self) -> RangeInclusive<MachineVersion>;

    /// Ready leader only: encodes a request as commands into `out`, or answers it at once and appends nothing.
    /// After a round of `prepare` calls the host proposes the batch and calls [`proposed`](Self::proposed) once.
    fn prepare(&mut self, request: Self::Request, out: &mut BatchBuilder, cx: &GroupCx<'_>);

    /// The batch that collected the commands since the last call has this log index and term, or was not appended.
    /// Not called where no command was collected.
    fn proposed(&mut self, outcome: Result<(u64, u64), Refusal>, cx: &GroupCx<'_>);

    /// Gives a request back: this member cannot append it.
    fn refuse(&mut self, request: Self::Request, why: Refusal, cx: &GroupCx<'_>);

    /// A committed entry, in log order, each exactly once per life of the in-memory state, on every member.
    fn apply(&mut self, entry: Applied, cx: &GroupCx<'_>);

    /// The role or the known leader changed. Called after the entries applied so far.
    fn role_changed(&mut self, cx: &GroupCx<'_>);

    /// Ready leader only, about once a second, or while the group sleeps only when [`wake_at`](Self::wake_at) says: may
    /// append commands.
    fn tick(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>);

    /// Ready leader only, before each [`tick`](Self::tick): the other nodes whose voters hold what was committed about a
    /// second ago.
    fn followers(&mut self, _keeping_up: &[NodeId], _cx: &GroupCx<'_>) {}

    /// When the leader wants [`tick`](Self::tick) next at the latest, wall clock ms, also while its group sleeps; `None` =
    /// nothing is owed.
    fn wake_at(&self) -> Option<u64> {
        None
    }

    /// Estimated log bytes that a snapshot taken now would free since the last one.
    fn reclaimable_bytes(&self) -> u64;

    /// The state now. Resets [`reclaimable_bytes`](Self::reclaimable_bytes).
    fn snapshot(&mut self) -> MachineSnapshot;

    /// Replaces the state by a snapshot's, taken at `index` under `version`.
    fn restore(
        &mut self,
        state: &[u8],
        index: u64,
        version: MachineVersion,
        cx: &GroupCx<'_>,
    ) -> Result<(), RestoreError>;

    /// The group is deleted or stopped on this node: answer whoever still waits. Called once; after a panic too, with
    /// the state as the panic left it.
    fn stopped(&mut self, cx: &GroupCx<'_>);
}
