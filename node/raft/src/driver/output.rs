//! What a driver asks of its host.

use std::ops::RangeInclusive;

use bytes::Bytes;
use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_proto::peer::RaftMessage;

use crate::log_store::{Entry, Membership, SnapshotMeta, Write};
use crate::machine::Role;

/// Traffic classes between nodes, so that small things never wait behind big ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Lane {
    /// Heartbeats, votes, acknowledgements.
    Control,
    /// Entries on their way to followers.
    Append,
    /// Snapshots.
    Bulk,
}

/// Everything that one [`poll`](super::Driver::poll) produced. Reused between rounds.
#[derive(Default)]
pub struct Output {
    /// Changes for the store, to be written together and in order of number; then
    /// [`persisted`](super::Driver::persisted) is due.
    pub write: Option<WriteBatch>,
    /// Messages that may be sent now. Those that depend on a write stay inside the driver until it is durable.
    pub messages: Vec<Outgoing>,
    /// Reads and writes of snapshot transfers, off the hot path, in any order.
    pub work: Vec<Work>,
    /// What happened to groups.
    pub events: Vec<Event>,
    /// Groups whose [`status`](super::Driver::status) may have changed.
    pub touched: Vec<GroupId>,
}

impl Output {
    /// Forgets everything, keeping the buffers.
    pub fn clear(&mut self) {
        self.write = None;
        self.messages.clear();
        self.work.clear();
        self.events.clear();
        self.touched.clear();
    }
}

/// Changes that become durable together.
#[derive(Debug, Clone)]
pub struct WriteBatch {
    /// Counts up by one per driver.
    pub number: u64,
    /// The changes, in order.
    pub writes: Vec<Write>,
}

/// A message to another node.
#[derive(Debug, Clone)]
pub struct Outgoing {
    /// Where to.
    pub to: NodeId,
    /// On which lane.
    pub lane: Lane,
    /// The message.
    pub message: RaftMessage,
}

/// Store access that a snapshot transfer needs. Its result goes to [`work_done`](super::Driver::work_done).
#[derive(Debug, Clone)]
pub enum Work {
    /// Read the stored snapshot: answer `WorkDone::State`.
    LoadState {
        /// The group.
        group: GroupId,
        /// The transfer.
        transfer: u64,
    },
    /// Read these entries: answer `WorkDone::Entries`.
    LoadEntries {
        /// The group.
        group: GroupId,
        /// The transfer.
        transfer: u64,
        /// Their indexes.
        indexes: Vec<u64>,
    },
    /// Stage these entries of a snapshot that is being received: answer `WorkDone::Staged`.
    Stage {
        /// The group.
        group: GroupId,
        /// The transfer.
        transfer: u64,
        /// Index of the snapshot.
        snapshot_index: u64,
        /// The entries.
        entries: Vec<Entry>,
    },
    /// Read these entries, which this member has already, and stage them: answer `WorkDone::Restaged`.
    Restage {
        /// The group.
        group: GroupId,
        /// The transfer.
        transfer: u64,
        /// Index of the snapshot.
        snapshot_index: u64,
        /// Their indexes.
        indexes: Vec<u64>,
    },
}

/// What came of a [`Work`].
#[derive(Debug, Clone)]
pub enum WorkDone {
    /// The stored snapshot, if there is one.
    State(Option<(SnapshotMeta, Bytes)>),
    /// The entries asked for.
    Entries(Vec<Option<Entry>>),
    /// Entries from the leader are staged.
    Staged,
    /// Entries of this member's own are staged; false = it lacks some of them.
    Restaged(bool),
    /// The store failed.
    Failed(String),
}

/// Something that happened to a group.
#[derive(Debug, Clone)]
pub enum Event {
    /// The role or the known leader of the local member changed.
    Role {
        /// The group.
        group: GroupId,
        /// Its term.
        term: u64,
        /// The local member's role.
        role: Role,
        /// The leader, if known.
        leader: Option<NodeId>,
    },
    /// A membership was applied.
    Membership {
        /// The group.
        group: GroupId,
        /// The membership now.
        membership: Membership,
    },
    /// A change asked for with this token was applied, or will not be known to be.
    Changed {
        /// The group.
        group: GroupId,
        /// The token.
        token: u64,
        /// What came of it.
        outcome: Result<(), ChangeError>,
    },
    /// The state now covers everything that was committed when this read was asked for.
    Read {
        /// The group.
        group: GroupId,
        /// The context given with the request.
        ctx: u64,
        /// The index, applied here; `None` = no leader confirmed it in time.
        index: Option<u64>,
    },
    /// The group stopped on this node and keeps its log: a panic, or a machine version that this binary cannot apply.
    Stopped {
        /// The group.
        group: GroupId,
        /// Why.
        reason: StopReason,
    },
    /// The local member's log is shorter than what it once acknowledged: the disk lost synced writes. It does not vote
    /// until a leader has covered the gap.
    Amnesia {
        /// The group.
        group: GroupId,
        /// Index known to be committed.
        commit: u64,
        /// Last index that the log has.
        last_index: u64,
    },
    /// A committed entry held no batch that this binary can read; it changed nothing, here as on every member.
    Undecodable {
        /// The group.
        group: GroupId,
        /// Its index.
        index: u64,
    },
}

/// Why a group stopped on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StopReason {
    /// The machine or the driver panicked, or stored state could not be read.
    Faulted(String),
    /// The group's machine version is outside this binary's range: it goes on after an upgrade.
    BlockedOnVersion(u16),
}

/// A change of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MemberChange {
    /// Adds a member, or changes its role. For a promotable member the leader sets the target.
    Add(crate::log_store::Member),
    /// Removes a member.
    Remove(MemberUid),
    /// Makes a learner a voter.
    Promote(MemberUid),
}

/// Why members were not changed, or leadership not transferred.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ChangeError {
    /// This member does not lead.
    #[error("not the leader")]
    NotLeader(Option<NodeId>),
    /// Another change is in progress, or the leader has not committed in its term: try again.
    #[error("cluster change not permitted now")]
    NotPermitted,
    /// It would leave no voter.
    #[error("the last voter cannot be removed")]
    LastVoter,
    /// There is no such member, or it is not a voter.
    #[error("no such voter")]
    NoSuchMember,
    /// No such group here, or it is stopped.
    #[error("no such group on this node")]
    NoSuchGroup,
    /// Leadership was lost before the change was applied: it may or may not be.
    #[error("leadership was lost before the change was applied")]
    Unknown,
    /// It did not happen in time.
    #[error("timed out")]
    Timeout,
}

/// Ranges of live indexes, as the wire and the store hold them.
pub(crate) fn live_len(live: &[RangeInclusive<u64>]) -> u64 {
    live.iter().map(|r| r.end() - r.start() + 1).sum()
}
