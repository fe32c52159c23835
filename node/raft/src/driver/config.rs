//! Settings of a driver, read once.

use warren_proto::ids::NodeId;
use warren_proto::peer::RaftMessageKind;

/// How a driver paces elections, batches and snapshots. Times are in ticks where they drive Raft, so that a simulated
/// run needs no clock.
#[derive(Debug, Clone)]
pub struct DriverConfig {
    /// The node on which the driver runs.
    pub node: NodeId,
    /// Seeds every choice that is random elsewhere: election timeouts and snapshot thresholds.
    pub seed: u64,
    /// Ticks without a leader's word before a member stands for election: the timeout is drawn from once to twice this.
    pub election_ticks: usize,
    /// Ticks between a leader's heartbeats.
    pub heartbeat_ticks: usize,
    /// After the verdict that the leader's node is down, members stand one after the other; where that comes to nothing,
    /// each within 1 to this many ticks.
    pub node_down_ticks: usize,
    /// Ticks without work after which a group is put to sleep; 0 = never.
    pub hibernate_ticks: u64,
    /// Groups that stand for election at once; more wait for their turn.
    pub max_elections: usize,
    /// Ticks after which a read index request is sent again.
    pub read_retry_ticks: u64,
    /// Ticks after which a read index request fails.
    pub read_deadline_ticks: u64,
    /// Bytes of entries in one append message.
    pub max_append_bytes: u64,
    /// Append messages on their way to one follower. Times the bytes of one: what a follower that catches up is sent,
    /// and its leader reads from disk, at once.
    pub max_inflight_messages: usize,
    /// Bytes of committed entries applied before other groups get their turn.
    pub max_apply_bytes: u64,
    /// Entries that a leader may have appended and not yet committed. What arrives meanwhile waits, and is batched.
    pub max_uncommitted_entries: u64,
    /// The same in bytes.
    pub max_uncommitted_bytes: u64,
    /// Requests that wait in one group's queue; more are refused as busy.
    pub max_queued_requests: usize,
    /// Bytes of applied entries that a busy group keeps for followers a little behind.
    pub tail_bytes: usize,
    /// The same for all groups of the driver together: with many busy ones, each keeps less.
    pub tails_bytes: usize,
    /// Smallest number of reclaimable bytes that makes a snapshot worth its writing.
    pub snapshot_min_bytes: u64,
    /// Largest such number; the threshold is drawn anew between the two for each snapshot, so that groups spread out.
    pub snapshot_max_bytes: u64,
    /// Milliseconds between two snapshots of a group with a large state, at least; a small state waits as little as a fifth
    /// of it.
    pub snapshot_interval_ms: u64,
    /// Entries applied after which a group with anything to reclaim is snapshot even below the byte threshold: bounds
    /// what a restart replays.
    pub snapshot_max_entries: u64,
    /// Bytes of entries applied since the newest snapshot after which one is taken although it frees nothing.
    pub snapshot_replay_bytes: u64,
    /// Bytes of entries applied since the newest snapshot that make one worth its writing at an orderly stop.
    pub snapshot_stop_bytes: u64,
    /// Bytes of state or entries in one message of a snapshot transfer.
    pub snapshot_chunk_bytes: usize,
    /// Messages of a snapshot transfer on their way at once.
    pub snapshot_window: usize,
    /// Bytes of snapshots that the driver's groups send in one tick, all together: queues have the network first.
    pub snapshot_tick_bytes: u64,
    /// Snapshot transfers that the driver's groups have under way at once.
    pub max_transfers: usize,
    /// Bytes of state of the transfers under way, which are in memory. A state of more than half of it begins while half of
    /// it is free.
    pub max_transfer_bytes: u64,
    /// Ticks without progress after which a snapshot transfer has failed.
    pub snapshot_stall_ticks: u64,
    /// Largest state that a follower accepts.
    pub snapshot_max_state: u64,
    /// Milliseconds after which a write that is not durable yet means that the disk is stuck: the driver gives up
    /// leadership until it moves again.
    pub disk_stall_ms: u64,
    /// Deliberate defects, for tests that must fail.
    pub sabotage: Sabotage,
}

impl DriverConfig {
    /// The defaults for ticks of 100 ms.
    pub fn new(node: NodeId, seed: u64) -> Self {
        DriverConfig {
            node,
            seed,
            election_ticks: 10,
            heartbeat_ticks: 3,
            node_down_ticks: 4,
            hibernate_ticks: 20,
            max_elections: 1024,
            read_retry_ticks: 3,
            read_deadline_ticks: 100,
            max_append_bytes: 512 << 10,
            max_inflight_messages: 32,
            max_apply_bytes: 4 << 20,
            max_uncommitted_entries: 64,
            max_uncommitted_bytes: 16 << 20,
            max_queued_requests: 1 << 16,
            tail_bytes: 8 << 20,
            tails_bytes: 64 << 20,
            snapshot_min_bytes: 2 << 20,
            snapshot_max_bytes: 10 << 20,
            snapshot_interval_ms: 1000,
            snapshot_max_entries: 200_000,
            snapshot_replay_bytes: 128 << 20,
            snapshot_stop_bytes: 4 << 20,
            snapshot_chunk_bytes: 1 << 20,
            snapshot_window: 4,
            snapshot_tick_bytes: 16 << 20,
            max_transfers: 256,
            max_transfer_bytes: 256 << 20,
            snapshot_stall_ticks: 50,
            snapshot_max_state: 4 << 30,
            disk_stall_ms: 10_000,
            sabotage: Sabotage::None,
        }
    }
}

/// Defects that the simulation must be able to find.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Sabotage {
    /// None: the only value for a real node.
    #[default]
    None,
    /// Votes, asked for or given, leave before the term and the vote are durable.
    VoteBeforeSync,
    /// Acknowledgements of entries leave before the entries are durable.
    AckBeforeSync,
    /// A member counts its own entries as written when they are only handed to the writer.
    CountUnsynced,
    /// Verdicts about nodes do not wake groups that sleep.
    DeafSleepers,
    /// A member takes every commit index for its own, also beyond the end of its log.
    BlindTrust,
    /// A member whose disk lost what it acknowledged votes and stands all the same.
    VotingAmnesiac,
    /// A leader does not believe a member that doubts what it has.
    DeafToDoubt,
    /// What is lost of a snapshot on its way is never sent again.
    OneSnapshot,
}

impl Sabotage {
    /// Whether a message leaves without waiting for what it promises.
    pub(crate) fn lets_pass(self, kind: RaftMessageKind) -> bool {
        match self {
            Sabotage::None
            | Sabotage::CountUnsynced
            | Sabotage::DeafSleepers
            | Sabotage::BlindTrust
            | Sabotage::VotingAmnesiac
            | Sabotage::DeafToDoubt
            | Sabotage::OneSnapshot => false,
            Sabotage::VoteBeforeSync => matches!(kind, RaftMessageKind::RaftVote | RaftMessageKind::RaftVoteResponse),
            Sabotage::AckBeforeSync => kind == RaftMessageKind::RaftAppendResponse,
        }
    }
}

/// A well-mixed number from a few others (splitmix64's finaliser over a running sum).
pub(crate) fn mix(parts: &[u64]) -> u64 {
    let mut h: u64 = 0x9e37_79b9_7f4a_7c15;
    for p in parts {
        h = h.wrapping_add(*p).wrapping_add(0x9e37_79b9_7f4a_7c15);
        h = (h ^ (h >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        h = (h ^ (h >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        h ^= h >> 31;
    }
    h
}
