//! Snapshots of the local state: when one is worth taking, and what follows once it is durable.

use std::sync::Arc;

use warren_proto::ids::GroupId;

use super::config::{DriverConfig, mix};
use super::group::Group;
use super::shared::Shared;
use crate::log_store::{SnapshotMeta, Write};
use crate::machine::StateMachine;

/// Bytes of state for which a group waits a millisecond longer between two snapshots.
const STATE_PER_MS: u64 = 1024;

pub(crate) struct Snapshots {
    taken: u64,
    threshold: u64,
    last_ms: u64,
    /// Applied index at the newest snapshot.
    at: u64,
    /// Bytes of entries applied since: what a restart would replay.
    replayed: u64,
    /// Bytes of the newest snapshot's state.
    state_len: u64,
    /// Number of the write that holds it, while that is not durable.
    writing: Option<(u64, Arc<SnapshotMeta>)>,
}

impl Snapshots {
    /// For a member whose newest snapshot has `state_len` bytes.
    pub fn new(config: &DriverConfig, group: GroupId, applied: u64, state_len: u64) -> Self {
        let mut new =
            Snapshots { taken: 0, threshold: 0, last_ms: 0, at: applied, replayed: 0, state_len, writing: None };
        new.draw_threshold(config, group);
        new
    }

    /// Whether one is on its way to the disk.
    pub fn is_writing(&self) -> bool {
        self.writing.is_some()
    }

    /// Milliseconds to the next snapshot, at least: as long as the state is large. A busy queue that is kept short is
    /// written often, so that its entries are dead before the database writes them a second time.
    fn pause(&self, config: &DriverConfig) -> u64 {
        let longest = config.snapshot_interval_ms;
        (longest / 5 + self.state_len / STATE_PER_MS).min(longest)
    }

    fn draw_threshold(&mut self, config: &DriverConfig, group: GroupId) {
        let span = config.snapshot_max_bytes.saturating_sub(config.snapshot_min_bytes).max(1);
        let draw = mix(&[config.seed, config.node.0, group.0, self.taken, 0x736e_6170]);
        self.threshold = config.snapshot_min_bytes + draw % span;
    }
}

impl<M: StateMachine> Group<M> {
    /// Takes a snapshot if it would free enough, or if `force` says so.
    pub fn maybe_snapshot(&mut self, force: bool, shared: &mut Shared) {
        let applied = self.state.applied;
        let busy = self.snapshots.writing.is_some() || self.installing.is_some() || !self.sending.is_empty();
        if self.stop.is_some() || busy || applied == 0 || applied <= self.snapshot_index() {
            return;
        }
        if !force {
            let reclaimable = self.state.machine.reclaimable_bytes();
            let many = applied - self.snapshots.at >= shared.config.snapshot_max_entries;
            // With a backlog there may be nothing to reclaim; a restart is not to replay all of it. A state that is large is
            // written less often, so that all its snapshots together cost a fraction of what the log does.
            let config = &shared.config;
            let long = self.snapshots.replayed >= config.snapshot_replay_bytes.max(4 * self.snapshots.state_len);
            let worth = reclaimable >= self.snapshots.threshold || (many && reclaimable > 0) || long;
            if !worth || shared.now_ms < self.snapshots.last_ms + self.snapshots.pause(config) {
                return;
            }
        }
        let snapshot = self.state.machine.snapshot();
        debug_assert!(snapshot.live.iter().all(|r| r.start() <= r.end() && *r.end() <= applied));
        let meta = Arc::new(SnapshotMeta {
            index: applied,
            term: self.state.applied_term,
            membership: self.state.membership.clone(),
            version: self.state.version,
            live: snapshot.live,
            state_len: snapshot.state.len() as u64,
            state_crc: crc32c::crc32c(&snapshot.state),
        });
        let number = shared.write(self.id, Write::Snapshot(self.id, (*meta).clone(), snapshot.state));
        self.snapshots.writing = Some((number, meta));
        self.snapshots.taken += 1;
        self.snapshots.replayed = 0;
        self.snapshots.state_len = self.snapshots.writing.as_ref().map_or(0, |(_, meta)| meta.state_len);
        self.snapshots.last_ms = shared.now_ms;
        self.snapshots.at = applied;
        self.snapshots.draw_threshold(&shared.config, self.id);
    }

    /// So many bytes of entries were applied.
    pub fn count_applied(&mut self, bytes: usize) {
        self.snapshots.replayed += bytes as u64;
    }

    /// Before an orderly stop: a snapshot that spares the next start more than it costs.
    pub fn snapshot_to_stop(&mut self, shared: &mut Shared) {
        let spared = self.snapshots.replayed;
        if spared >= shared.config.snapshot_stop_bytes && spared >= self.snapshots.state_len {
            self.maybe_snapshot(true, shared);
        }
    }

    /// Writes up to `number` are durable: Raft's log may begin above the snapshot.
    pub fn finish_snapshot(&mut self, number: u64) {
        if let Some((_, meta)) = self.snapshots.writing.take_if(|(write, _)| *write <= number) {
            self.raw.mut_store().compact(meta);
        }
    }

    /// A snapshot from the leader took the place of the state at `applied`.
    pub fn snapshot_replaced(&mut self, applied: u64, state_len: u64, shared: &Shared) {
        self.snapshots.writing = None;
        self.snapshots.replayed = 0;
        self.snapshots.state_len = state_len;
        self.snapshots.at = applied;
        self.snapshots.last_ms = shared.now_ms;
    }

    /// Raft found no snapshot for a member that the log no longer serves: takes one.
    pub fn snapshot_if_wanted(&mut self, shared: &mut Shared) {
        if self.raw.store().take_wanted().is_some() {
            self.maybe_snapshot(true, shared);
        }
    }
}
