//! A log store in memory, for tests and the simulation: it can lose what was not synced.

use std::collections::BTreeMap;

use bytes::Bytes;
use parking_lot::Mutex;
use warren_proto::ids::GroupId;

use crate::log_store::{Entry, GroupRecord, LogStore, SnapshotMeta, StoreError, Write};

/// Keeps logs in memory. Writes become durable when [`write`](LogStore::write) is used, or, with
/// [`submit`](Self::submit), only at the next [`sync`](Self::sync): a [`crash`](Self::crash) in between loses them.
#[derive(Default)]
pub struct MemStore {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    durable: Disk,
    /// Handed over and not synced, in order, each with its number.
    pending: Vec<(u64, Vec<Write>)>,
    /// The next write fails.
    broken: bool,
    writes: u64,
}

/// What a store had durable at some time.
#[derive(Clone)]
pub struct Memory(Disk);

#[derive(Default, Clone)]
struct Disk {
    groups: BTreeMap<GroupId, Stored>,
    deleted: Vec<GroupId>,
}

#[derive(Clone)]
struct Stored {
    record: GroupRecord,
    entries: BTreeMap<u64, Entry>,
    state: Bytes,
    staged: BTreeMap<u64, BTreeMap<u64, Entry>>,
}

impl MemStore {
    /// An empty store.
    pub fn new() -> Self {
        Self::default()
    }

    /// Hands over a write without waiting for it.
    pub fn submit(&self, number: u64, writes: Vec<Write>) {
        self.inner.lock().pending.push((number, writes));
    }

    /// Makes up to `count` submitted writes durable; answers the highest number.
    pub fn sync(&self, count: usize) -> Result<Option<u64>, StoreError> {
        let mut inner = self.inner.lock();
        if inner.broken {
            return Err(StoreError::Write("broken on purpose".into()));
        }
        let count = count.min(inner.pending.len());
        let ready: Vec<_> = inner.pending.drain(..count).collect();
        let mut last = None;
        for (number, writes) in ready {
            inner.apply(&writes)?;
            last = Some(number);
        }
        Ok(last)
    }

    /// How many submitted writes wait for a sync.
    pub fn pending(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// The machine goes down: whatever was not synced is lost, except that the first `survive` pending writes made it.
    pub fn crash(&self, survive: usize) {
        let mut inner = self.inner.lock();
        let count = survive.min(inner.pending.len());
        let kept: Vec<_> = inner.pending.drain(..count).collect();
        for (_, writes) in kept {
            // A write that cannot be applied is a defect that the sync of a live run reports.
            let _ = inner.apply(&writes);
        }
        inner.pending.clear();
        for stored in inner.durable.groups.values_mut() {
            stored.staged.clear();
        }
    }

    /// What is durable now, for [`forget`](Self::forget).
    pub fn remember(&self) -> Memory {
        Memory(self.inner.lock().durable.clone())
    }

    /// The disk lied: of what it said was synced it has only what it had then.
    pub fn forget(&self, then: &Memory) {
        self.inner.lock().durable = then.0.clone();
    }

    /// From now on every write fails.
    pub fn break_writes(&self) {
        self.inner.lock().broken = true;
    }

    /// How many batches were written.
    pub fn writes(&self) -> u64 {
        self.inner.lock().writes
    }

    /// All durable entries of a group, above its floor and live below, for checks.
    pub fn durable_entries(&self, group: GroupId) -> Vec<Entry> {
        let inner = self.inner.lock();
        inner.durable.groups.get(&group).map(|s| s.entries.values().cloned().collect()).unwrap_or_default()
    }

    /// A group's durable record, for checks.
    pub fn durable_record(&self, group: GroupId) -> Option<GroupRecord> {
        self.inner.lock().durable.groups.get(&group).map(|s| s.record.clone())
    }

    /// Whether a group was deleted here.
    pub fn was_deleted(&self, group: GroupId) -> bool {
        self.inner.lock().durable.deleted.contains(&group)
    }
}

impl Inner {
    fn apply(&mut self, writes: &[Write]) -> Result<(), StoreError> {
        self.writes += 1;
        for write in writes {
            self.durable.apply(write)?;
        }
        Ok(())
    }
}

impl Disk {
    fn stored(&mut self, group: GroupId) -> Result<&mut Stored, StoreError> {
        self.groups.get_mut(&group).ok_or_else(|| StoreError::Write(format!("no group {group}")))
    }

    fn apply(&mut self, write: &Write) -> Result<(), StoreError> {
        match write {
            Write::Create(record) => {
                if self.groups.contains_key(&record.group) {
                    return Err(StoreError::Write(format!("group {} exists", record.group)));
                }
                let stored = Stored {
                    record: record.clone(),
                    entries: BTreeMap::new(),
                    state: Bytes::new(),
                    staged: BTreeMap::new(),
                };
                self.groups.insert(record.group, stored);
            }
            Write::Append(group, entries) => {
                let stored = self.stored(*group)?;
                let Some(first) = entries.first() else { return Ok(()) };
                let floor = stored.floor();
                if first.index <= floor || first.index > stored.record.last_index + 1 {
                    return Err(StoreError::Write(format!("append at {} leaves a gap", first.index)));
                }
                stored.entries.split_off(&first.index);
                stored.entries.extend(entries.iter().map(|e| (e.index, e.clone())));
                stored.record.last_index = entries.last().map_or(0, |e| e.index);
            }
            Write::HardState(group, hard) => self.stored(*group)?.record.hard_state = *hard,
            Write::Membership(group, membership) => {
                self.stored(*group)?.record.membership = membership.clone();
            }
            Write::Snapshot(group, meta, state) => {
                let stored = self.stored(*group)?;
                if meta.index > stored.record.last_index {
                    return Err(StoreError::Write(format!("snapshot at {} beyond the log", meta.index)));
                }
                stored.keep_live(meta);
                stored.state = state.clone();
                stored.record.snapshot = Some(meta.clone());
            }
            Write::Install(group, meta, state) => {
                let stored = self.stored(*group)?;
                stored.entries = stored.staged.remove(&meta.index).unwrap_or_default();
                stored.keep_live(meta);
                let wanted: u64 = meta.live.iter().map(|r| r.end() - r.start() + 1).sum();
                if stored.entries.len() as u64 != wanted {
                    return Err(StoreError::Write(format!("snapshot {} lacks live entries", meta.index)));
                }
                stored.staged.clear();
                stored.state = state.clone();
                stored.record.snapshot = Some(meta.clone());
                stored.record.last_index = meta.index;
            }
            Write::Delete(group) => {
                self.groups.remove(group);
                self.deleted.push(*group);
            }
        }
        Ok(())
    }
}

impl Stored {
    fn floor(&self) -> u64 {
        self.record.snapshot.as_ref().map_or(0, |s| s.index)
    }

    fn keep_live(&mut self, meta: &SnapshotMeta) {
        self.entries.retain(|i, _| *i > meta.index || meta.live.iter().any(|r| r.contains(i)));
    }
}

impl LogStore for MemStore {
    fn groups(&self) -> Result<Vec<GroupRecord>, StoreError> {
        Ok(self.inner.lock().durable.groups.values().map(|s| s.record.clone()).collect())
    }

    fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        if inner.broken {
            return Err(StoreError::Write("broken on purpose".into()));
        }
        inner.apply(writes)
    }

    fn entries(&self, group: GroupId, from: u64, to: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        let inner = self.inner.lock();
        let Some(stored) = inner.durable.groups.get(&group) else { return Ok(Vec::new()) };
        let from = from.max(stored.floor() + 1);
        let mut out = Vec::new();
        let mut bytes = 0;
        for entry in stored.entries.range(from..to.max(from)).map(|(_, e)| e) {
            bytes += entry.data.len() as u64;
            if bytes > max_bytes && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }

    fn term(&self, group: GroupId, index: u64) -> Result<Option<u64>, StoreError> {
        let inner = self.inner.lock();
        let Some(stored) = inner.durable.groups.get(&group) else { return Ok(None) };
        match &stored.record.snapshot {
            Some(snapshot) if snapshot.index == index => Ok(Some(snapshot.term)),
            Some(snapshot) if index < snapshot.index => Ok(None),
            _ => Ok(stored.entries.get(&index).map(|e| e.term)),
        }
    }

    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Entry>>, StoreError> {
        let inner = self.inner.lock();
        let stored = inner.durable.groups.get(&group);
        Ok(indexes.iter().map(|i| stored.and_then(|s| s.entries.get(i).cloned())).collect())
    }

    fn snapshot(&self, group: GroupId) -> Result<Option<(SnapshotMeta, Bytes)>, StoreError> {
        let inner = self.inner.lock();
        let stored = inner.durable.groups.get(&group);
        Ok(stored.and_then(|s| Some((s.record.snapshot.clone()?, s.state.clone()))))
    }

    fn stage(&self, group: GroupId, snapshot_index: u64, entries: &[Entry]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let stored = inner.durable.stored(group)?;
        let staged = stored.staged.entry(snapshot_index).or_default();
        staged.extend(entries.iter().map(|e| (e.index, e.clone())));
        Ok(())
    }
}
