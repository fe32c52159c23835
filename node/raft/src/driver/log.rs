//! One group's log as Raft reads it: the store for what is durable, and an in-memory tail for what is recent.
//!
//! The tail holds at least every entry that is not durable yet, so the store is only asked for entries it has. It also
//! keeps applied entries of a busy group for a while, *also below a snapshot just taken*: a follower a few entries
//! behind then gets those entries instead of a snapshot.

use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;

use raft::eraftpb::{self, Snapshot};
use raft::{GetEntriesContext, RaftState, Storage, StorageError};
use warren_proto::ids::{GroupId, MemberUid};

use super::wire;
use crate::log_store::{LogStore, SnapshotMeta};

/// Bytes that an entry costs beside its data.
const ENTRY_OVERHEAD: usize = 128;

pub(crate) struct GroupLog {
    group: GroupId,
    store: Arc<dyn LogStore>,
    /// Consecutive entries up to `last`.
    tail: VecDeque<eraftpb::Entry>,
    tail_bytes: usize,
    /// Index and term of the entry just below the tail's first.
    below: (u64, u64),
    /// Index and term of the newest durable snapshot: the store has entries above it.
    floor: (u64, u64),
    last: u64,
    /// Highest index known durable, and still so: falls when the log is overwritten.
    written: u64,
    initial: RaftState,
    snapshot: Option<Arc<SnapshotMeta>>,
    /// Raft wanted a snapshot for this member and there was none that serves it.
    wanted: Cell<Option<u64>>,
    /// Members whose last transfer failed, and the tick before which none is started again.
    backoff: Vec<Backoff>,
    now_tick: u64,
}

struct Backoff {
    uid: u64,
    failures: u32,
    until: u64,
}

impl GroupLog {
    pub(crate) fn new(
        group: GroupId,
        store: Arc<dyn LogStore>,
        initial: RaftState,
        snapshot: Option<Arc<SnapshotMeta>>,
        last: u64,
        last_term: u64,
    ) -> Self {
        let floor = snapshot.as_ref().map_or((0, 0), |s| (s.index, s.term));
        GroupLog {
            group,
            store,
            tail: VecDeque::new(),
            tail_bytes: 0,
            below: (last, last_term),
            floor,
            last,
            written: last,
            initial,
            snapshot,
            wanted: Cell::new(None),
            backoff: Vec::new(),
            now_tick: 0,
        }
    }

    pub(crate) fn last(&self) -> u64 {
        self.last
    }

    pub(crate) fn written(&self) -> u64 {
        self.written
    }

    pub(crate) fn snapshot_meta(&self) -> Option<&Arc<SnapshotMeta>> {
        self.snapshot.as_ref()
    }

    /// The member for which Raft wanted a snapshot that does not exist, once.
    pub(crate) fn take_wanted(&self) -> Option<u64> {
        self.wanted.take()
    }

    fn tail_start(&self) -> u64 {
        self.below.0 + 1
    }

    /// Entries that Raft hands over to be written.
    pub(crate) fn append(&mut self, entries: &[eraftpb::Entry]) {
        let Some(first) = entries.first() else { return };
        debug_assert!(first.index <= self.last + 1);
        if first.index <= self.last {
            self.truncate_from(first.index);
        }
        for e in entries {
            self.tail_bytes += e.data.len() + ENTRY_OVERHEAD;
            self.last = e.index;
            self.tail.push_back(e.clone());
        }
    }

    fn truncate_from(&mut self, index: u64) {
        if index < self.tail_start() {
            self.tail.clear();
            self.tail_bytes = 0;
            let below = index - 1;
            let term = self.term_of(below).unwrap_or(0);
            self.below = (below, term);
        } else {
            while self.tail.back().is_some_and(|e| e.index >= index) {
                if let Some(e) = self.tail.pop_back() {
                    self.tail_bytes -= e.data.len() + ENTRY_OVERHEAD;
                }
            }
        }
        self.written = self.written.min(index - 1);
    }

    /// Entries up to `index` of `term` are durable.
    pub(crate) fn persisted(&mut self, index: u64, term: u64) {
        if index > self.written && index <= self.last && self.term_of(index) == Some(term) {
            self.written = index;
        }
    }

    /// Forgets the oldest entries that are durable and applied, down to `keep` bytes.
    pub(crate) fn trim(&mut self, applied: u64, keep: usize) {
        let limit = applied.min(self.written);
        while self.tail_bytes > keep && self.tail.front().is_some_and(|e| e.index <= limit) {
            if let Some(e) = self.tail.pop_front() {
                self.tail_bytes -= e.data.len() + ENTRY_OVERHEAD;
                self.below = (e.index, e.term);
            }
        }
        if self.tail.is_empty() && self.tail.capacity() > 64 {
            self.tail = VecDeque::new();
        }
    }

    /// A snapshot taken here is durable: the store's log begins above it.
    pub(crate) fn compact(&mut self, meta: Arc<SnapshotMeta>) {
        if meta.index < self.floor.0 {
            return;
        }
        self.floor = (meta.index, meta.term);
        if self.below.0 < meta.index && self.tail.is_empty() {
            self.below = self.floor;
        }
        self.snapshot = Some(meta);
    }

    /// A snapshot from the leader replaces the log.
    pub(crate) fn install(&mut self, meta: Arc<SnapshotMeta>) {
        self.tail.clear();
        self.tail_bytes = 0;
        self.floor = (meta.index, meta.term);
        self.below = self.floor;
        self.last = meta.index;
        self.written = meta.index;
        self.snapshot = Some(meta);
    }

    pub(crate) fn set_tick(&mut self, tick: u64) {
        self.now_tick = tick;
    }

    pub(crate) fn tick(&self) -> u64 {
        self.now_tick
    }

    /// A transfer to this member failed: the next waits, ever longer.
    pub(crate) fn back_off(&mut self, uid: u64, first_ticks: u64, most_ticks: u64) {
        let now = self.now_tick;
        let entry = match self.backoff.iter_mut().find(|b| b.uid == uid) {
            Some(b) => b,
            None => {
                self.backoff.push(Backoff { uid, failures: 0, until: 0 });
                let last = self.backoff.len() - 1;
                &mut self.backoff[last]
            }
        };
        entry.until = now + (first_ticks << entry.failures.min(10)).min(most_ticks);
        entry.failures += 1;
    }

    /// Bytes of entries in memory.
    pub(crate) fn tail_bytes(&self) -> usize {
        self.tail_bytes
    }

    /// A transfer to this member has to wait for others, which is no failure.
    pub(crate) fn hold_off(&mut self, uid: u64, ticks: u64) {
        self.back_off(uid, ticks, ticks);
        if let Some(entry) = self.backoff.iter_mut().find(|b| b.uid == uid) {
            entry.failures -= 1;
        }
    }

    /// The member answers again, or got its snapshot.
    pub(crate) fn forgive(&mut self, uid: u64) {
        self.backoff.retain(|b| b.uid != uid);
    }

    /// The first index that can be read.
    fn first(&self) -> u64 {
        if self.tail.is_empty() { self.floor.0 + 1 } else { self.tail_start().min(self.floor.0 + 1) }
    }

    pub(crate) fn term_of(&self, index: u64) -> Option<u64> {
        if index == 0 {
            return Some(0);
        }
        if index == self.below.0 {
            return Some(self.below.1);
        }
        if index == self.floor.0 {
            return Some(self.floor.1);
        }
        if index >= self.tail_start() {
            return self.tail.get((index - self.tail_start()) as usize).map(|e| e.term);
        }
        if index < self.floor.0 || index > self.last {
            return None;
        }
        match self.store.term(self.group, index) {
            Ok(term) => term,
            Err(error) => {
                tracing::error!(group = self.group.0, index, %error, "cannot read an entry's term");
                None
            }
        }
    }

    fn read_store(&self, low: u64, high: u64, max: u64) -> raft::Result<Vec<eraftpb::Entry>> {
        let entries = self
            .store
            .entries(self.group, low, high, max)
            .map_err(|e| raft::Error::Store(StorageError::Other(Box::new(e))))?;
        let consecutive = entries.iter().zip(low..).all(|(e, i)| e.index == i);
        if entries.is_empty() || !consecutive {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        Ok(entries.into_iter().map(wire::entry_to_raft).collect())
    }

    fn read(&self, low: u64, high: u64, max: u64) -> raft::Result<Vec<eraftpb::Entry>> {
        let start = self.tail_start();
        let mut out = Vec::new();
        let mut bytes = 0;
        if low < start {
            let until = high.min(start);
            out = self.read_store(low, until, max)?;
            if (out.len() as u64) < until - low {
                return Ok(out);
            }
            bytes = out.iter().map(|e| (e.data.len() + ENTRY_OVERHEAD) as u64).sum();
        }
        let from = low.max(start);
        for e in self.tail.iter().skip((from - start) as usize).take(high.saturating_sub(from) as usize) {
            bytes += (e.data.len() + ENTRY_OVERHEAD) as u64;
            if bytes > max && !out.is_empty() {
                break;
            }
            out.push(e.clone());
        }
        Ok(out)
    }
}

impl Storage for GroupLog {
    fn initial_state(&self) -> raft::Result<RaftState> {
        Ok(self.initial.clone())
    }

    fn entries(
        &self,
        low: u64,
        high: u64,
        max_size: impl Into<Option<u64>>,
        context: GetEntriesContext,
    ) -> raft::Result<Vec<eraftpb::Entry>> {
        if low < self.first() {
            return Err(raft::Error::Store(StorageError::Compacted));
        }
        match self.read(low, high, max_size.into().unwrap_or(u64::MAX)) {
            // A follower waits; the entries were readable when they were written, so the error is the disk's.
            Err(error) if context.can_async() => {
                tracing::error!(group = self.group.0, low, high, %error, "cannot read entries for a follower");
                Err(raft::Error::Store(StorageError::LogTemporarilyUnavailable))
            }
            other => other,
        }
    }

    fn term(&self, index: u64) -> raft::Result<u64> {
        if index > self.last {
            return Err(raft::Error::Store(StorageError::Unavailable));
        }
        self.term_of(index).ok_or(raft::Error::Store(StorageError::Compacted))
    }

    fn first_index(&self) -> raft::Result<u64> {
        Ok(self.first())
    }

    fn last_index(&self) -> raft::Result<u64> {
        Ok(self.last)
    }

    fn snapshot(&self, request_index: u64, to: u64) -> raft::Result<Snapshot> {
        let unavailable = raft::Error::Store(StorageError::SnapshotTemporarilyUnavailable);
        if self.backoff.iter().any(|b| b.uid == to && b.until > self.now_tick) {
            return Err(unavailable);
        }
        // A snapshot from before the member joined does not know it, and would be refused.
        let serves = |s: &&Arc<SnapshotMeta>| s.index >= request_index && s.membership.member(MemberUid(to)).is_some();
        let Some(meta) = self.snapshot.as_ref().filter(serves) else {
            self.wanted.set(Some(to));
            return Err(unavailable);
        };
        Ok(raft_snapshot(meta))
    }
}

/// A snapshot's metadata as Raft wants it. The state never goes through Raft.
pub(crate) fn raft_snapshot(meta: &SnapshotMeta) -> Snapshot {
    let mut snapshot = Snapshot::default();
    let m = snapshot.mut_metadata();
    m.index = meta.index;
    m.term = meta.term;
    m.set_conf_state(meta.membership.conf_state());
    snapshot
}
