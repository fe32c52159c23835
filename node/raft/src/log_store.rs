//! What the driver asks of the place where logs live. The RocksDB layout and the simulation's disk both implement it.

use std::ops::RangeInclusive;

use bytes::Bytes;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};

/// A log entry as Warren stores and sends it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Log index, from 1.
    pub index: u64,
    /// Term of the leader that appended it.
    pub term: u64,
    /// What `data` holds.
    pub kind: EntryKind,
    /// A batch of commands, an encoded membership change, or nothing.
    pub data: Bytes,
}

/// What an entry's data holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EntryKind {
    /// A [`Batch`](warren_proto::batch::Batch) of commands; empty data is a new leader's no-op.
    Commands,
    /// A membership change.
    Membership,
    /// The group's effective machine version from the next entry on (u16, little-endian).
    Version,
}

/// Raft's hard state.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HardState {
    /// Current term.
    pub term: u64,
    /// Member voted for in this term; 0 = none.
    pub vote: u64,
    /// Highest index known committed. Beyond the end of the log: what the disk has lost, and the member knows of.
    pub commit: u64,
}

/// A member's part in votes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum MemberRole {
    /// Votes, counts, may lead.
    Voter,
    /// A learner that becomes a voter once its log reaches `target`.
    Promotable {
        /// The leader's next index when the member was added.
        target: u64,
    },
    /// A learner that stays one.
    NonVoter,
}

/// One member of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Member {
    /// Id of this copy.
    pub uid: MemberUid,
    /// Where it lives.
    pub node: NodeId,
    /// Its part.
    pub role: MemberRole,
}

/// A group's membership as of a log index, including a joint configuration in progress.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Membership {
    /// All members, of both halves of a joint configuration.
    pub members: Vec<Member>,
    /// Voters of the outgoing half; empty when no joint change is in progress.
    pub outgoing: Vec<MemberUid>,
    /// Members that become learners when the joint change ends.
    pub learners_next: Vec<MemberUid>,
    /// Whether Raft leaves the joint configuration by itself.
    pub auto_leave: bool,
    /// Index of the entry that made it so; 0 = as created.
    pub index: u64,
}

/// Describes a snapshot; the state's bytes are stored beside it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotMeta {
    /// Last log index that the state includes.
    pub index: u64,
    /// That entry's term.
    pub term: u64,
    /// Membership at the index.
    pub membership: Membership,
    /// Effective machine version at the index.
    pub version: MachineVersion,
    /// Indexes at or below `index` whose entries must stay readable: ascending, disjoint.
    pub live: Vec<RangeInclusive<u64>>,
    /// Length of the state in bytes.
    pub state_len: u64,
    /// CRC-32C of the state.
    pub state_crc: u32,
}

/// Everything about a group's local member except entries and state bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupRecord {
    /// The group.
    pub group: GroupId,
    /// This member.
    pub me: MemberUid,
    /// What the machine was created with; opaque.
    pub init: Bytes,
    /// Membership the group was created with (used while there is no snapshot).
    pub founding: Membership,
    /// Machine version the group was created with.
    pub founding_version: MachineVersion,
    /// Raft's hard state.
    pub hard_state: HardState,
    /// The newest membership that was applied.
    pub membership: Membership,
    /// The newest snapshot.
    pub snapshot: Option<SnapshotMeta>,
    /// Last index of the log; equals the snapshot's where the log is empty.
    pub last_index: u64,
}

/// One change to the store. All changes of one [`LogStore::write`] become durable together or not at all.
#[derive(Debug, Clone)]
#[allow(clippy::large_enum_variant, reason = "the large ones are as rare as snapshots, and lists of writes are short")]
pub enum Write {
    /// A new local member with an empty log. Fails if the group exists here.
    Create(GroupRecord),
    /// Appends entries; those at or above the first one's index that were there before are superseded.
    Append(GroupId, Vec<Entry>),
    /// Replaces the hard state.
    HardState(GroupId, HardState),
    /// Replaces the applied membership.
    Membership(GroupId, Membership),
    /// Stores a snapshot taken here: the log's floor rises to its index, entries at or below it that are not live may go.
    Snapshot(GroupId, SnapshotMeta, Bytes),
    /// Stores a snapshot received from the leader in place of everything that was there. All of its live entries were
    /// written before through [`LogStore::stage`], those included that the member had already.
    Install(GroupId, SnapshotMeta, Bytes),
    /// Deletes the member: a tombstone first, then its data.
    Delete(GroupId),
}

/// Why the store could not do its work.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// A write or sync failed: the process must stop acknowledging and exit (74).
    #[error("log write failed: {0}")]
    Write(String),
    /// A read failed.
    #[error("log read failed: {0}")]
    Read(String),
    /// Stored bytes do not decode; names the repair.
    #[error("log is corrupt: {0}")]
    Corrupt(String),
    /// Another version wrote it.
    #[error("log cannot be read: {0}")]
    Newer(String),
}

/// What a store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreFigures {
    /// Bytes of its files, all together.
    pub disk_bytes: u64,
    /// Bytes of what it keeps in memory: tables not yet written out, index, cache.
    pub memory_bytes: u64,
    /// Segments of the log that hold something.
    pub segments: u64,
}

/// Where the logs of many groups live.
pub trait LogStore: Send + Sync + 'static {
    /// Every local member, for recovery. Called once, before anything else.
    fn groups(&self) -> Result<Vec<GroupRecord>, StoreError>;

    /// Applies all of `writes` atomically and makes them durable before it returns. Called from one thread at a time.
    fn write(&self, writes: &[Write]) -> Result<(), StoreError>;

    /// Entries `from..to` above the floor, in order, stopping early once their data exceed `max_bytes` (one at least).
    fn entries(&self, group: GroupId, from: u64, to: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError>;

    /// The term of an entry at or above the floor.
    fn term(&self, group: GroupId, index: u64) -> Result<Option<u64>, StoreError>;

    /// Entries by index, above the floor or live below it; `None` where there is none.
    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Entry>>, StoreError>;

    /// The stored snapshot with its state.
    fn snapshot(&self, group: GroupId) -> Result<Option<(SnapshotMeta, Bytes)>, StoreError>;

    /// Writes live entries of a snapshot that is being received; invisible until [`Write::Install`] of that snapshot.
    /// Called from another thread than [`write`](Self::write), at any time.
    fn stage(&self, group: GroupId, snapshot_index: u64, entries: &[Entry]) -> Result<(), StoreError>;

    /// What the store takes, for whoever watches the node.
    fn figures(&self) -> StoreFigures {
        StoreFigures::default()
    }

    /// Work that may be done now and then off the hot path: dropping dead segments, closing an idle open one.
    fn maintain(&self) -> Result<(), StoreError> {
        Ok(())
    }
}
