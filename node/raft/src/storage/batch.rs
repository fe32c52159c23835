//! One call of the driver as one RocksDB batch: keys first, the index that readers see after the batch is durable.

use std::collections::hash_map::Entry as Slot;
use std::ops::RangeInclusive;
use std::sync::Arc;

use rocksdb::{ColumnFamily, WriteBatch};
use rustc_hash::{FxHashMap, FxHashSet};
use warren_proto::ids::GroupId;
use warren_proto::peer::{StoredGroup, StoredRun, StoredRuns, StoredSegment, StoredSnapshot, StoredTombstone};

use super::index::{self, Index, Run, Staging};
use super::keys::{self, Chunk, ENTRY_KEY, EntryKey, GroupKey};
use super::{RocksStore, Segment, Writer, ranges, values};
use crate::log_store::{Entry, GroupRecord, SnapshotMeta, StoreError, Write};

/// Bytes of one chunk of a snapshot in `snap`.
pub(super) const CHUNK: usize = 1 << 20;

/// A batch in the making. The writer's counts change as it grows: a batch that is not written ends the store.
pub(super) struct Batch<'a> {
    pub writer: &'a mut Writer,
    pub batch: WriteBatch,
    log: &'a ColumnFamily,
    meta: &'a ColumnFamily,
    snap: &'a ColumnFamily,
    /// Changed indexes; `None` = the group is deleted.
    pub changed: FxHashMap<GroupId, Option<Index>>,
    /// What closed segments hold of a group changed.
    rows: FxHashSet<(u32, GroupId)>,
    value: Vec<u8>,
}

impl RocksStore {
    pub(super) fn write_all(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.in_batch(|store, batch| {
            writes.iter().try_for_each(|write| match write {
                Write::Create(record) => batch.create(store, record),
                Write::Append(group, entries) => batch.append(store, *group, entries),
                Write::HardState(group, state) => {
                    batch.existing(store, *group)?;
                    batch.put_meta(GroupKey::HardState, *group, &values::hard_state(state));
                    Ok(())
                }
                Write::Membership(group, membership) => {
                    batch.existing(store, *group)?;
                    let value = values::message(&values::membership(membership));
                    batch.put_meta(GroupKey::Membership, *group, &value);
                    Ok(())
                }
                Write::Snapshot(group, meta, state) => batch.snapshot(store, *group, meta, state),
                Write::Install(group, meta, state) => batch.install(store, *group, meta, state),
                Write::Delete(group) => batch.delete(store, *group),
            })
        })
    }

    pub(super) fn stage_entries(&self, group: GroupId, snapshot: u64, entries: &[Entry]) -> Result<(), StoreError> {
        self.in_batch(|store, batch| batch.stage(store, group, snapshot, entries))
    }

    /// Closes the open segment if it is full, then fills, writes and publishes a batch.
    pub(super) fn in_batch(
        &self,
        fill: impl FnOnce(&RocksStore, &mut Batch<'_>) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        let mut writer = self.writer.lock();
        self.check_failed(&mut writer)?;
        let full = writer.unflushed >= self.config.segment_bytes;
        if full {
            // The memtables end between two segments, so that each table file holds one.
            self.flush(&mut writer, false)?;
        }
        let mut batch = self.batch(&mut writer)?;
        if full {
            batch.close_segment(self);
        }
        let filled = fill(self, &mut batch).and_then(|()| batch.finish(self));
        let Batch { batch, changed, .. } = match filled {
            Ok(()) => batch,
            Err(error) => {
                let why = error.to_string();
                writer.failed = Some(why);
                return Err(error);
            }
        };
        self.commit(&mut writer, batch)?;
        self.publish(changed);
        Ok(())
    }

    pub(super) fn batch<'a>(&'a self, writer: &'a mut Writer) -> Result<Batch<'a>, StoreError> {
        Ok(Batch {
            writer,
            batch: WriteBatch::default(),
            log: self.family(keys::LOG)?,
            meta: self.family(keys::META)?,
            snap: self.family(keys::SNAP)?,
            changed: FxHashMap::default(),
            rows: FxHashSet::default(),
            value: Vec::new(),
        })
    }

    /// Lets readers see changed indexes.
    pub(super) fn publish(&self, changed: FxHashMap<GroupId, Option<Index>>) {
        let mut groups = self.groups.write();
        for (group, index) in changed {
            match index {
                Some(index) => drop(groups.insert(group, Arc::new(index))),
                None => drop(groups.remove(&group)),
            }
        }
    }
}

impl Batch<'_> {
    /// The group's index as of the changes so far, to be changed.
    pub fn index(&mut self, store: &RocksStore, group: GroupId) -> Result<&mut Index, StoreError> {
        let slot = match self.changed.entry(group) {
            Slot::Occupied(slot) => slot.into_mut(),
            Slot::Vacant(slot) => slot.insert(store.index(group).map(|i| Index::clone(&i))),
        };
        slot.as_mut().ok_or_else(|| StoreError::Write(format!("group {group} does not exist here")))
    }

    /// Refuses groups that do not exist, without copying their index.
    fn existing(&self, store: &RocksStore, group: GroupId) -> Result<(), StoreError> {
        let exists = match self.changed.get(&group) {
            Some(index) => index.is_some(),
            None => store.groups.read().contains_key(&group),
        };
        if exists { Ok(()) } else { Err(StoreError::Write(format!("group {group} does not exist here"))) }
    }

    fn put_meta(&mut self, kind: GroupKey, group: GroupId, value: &[u8]) {
        self.batch.put_cf(self.meta, keys::group(kind, group), value);
    }

    /// Writes an entry into the open segment.
    pub fn put_entry(&mut self, group: GroupId, entry: &Entry, staged: u64) -> Run {
        let segment = self.writer.open;
        let key = EntryKey { segment, group, index: entry.index, term: entry.term, staged };
        self.value.clear();
        values::put_entry(entry.kind, &entry.data, &mut self.value);
        let mut buf = [0; ENTRY_KEY + 8];
        self.batch.put_cf(self.log, key.encode(&mut buf), &self.value);
        let count = self.writer.segments.entry(segment).or_default();
        count.entries += 1;
        count.alive += 1;
        count.bytes += (ENTRY_KEY + self.value.len()) as u64;
        Run { first: entry.index, last: entry.index, term: entry.term, segment, staged }
    }

    /// Notes that alive entries of a run are dead. In the open segment their keys go, so that they die in the memtable:
    /// each key there was written once, which is what makes a single delete legal. A closed segment only loses count.
    pub fn bury(&mut self, group: GroupId, run: &Run, dead: impl IntoIterator<Item = RangeInclusive<u64>>) {
        let open = run.segment == self.writer.open;
        let mut count = 0;
        for range in dead {
            count += range.end() - range.start() + 1;
            if open {
                for index in range {
                    let key = EntryKey { segment: run.segment, group, index, term: run.term, staged: run.staged };
                    let mut buf = [0; ENTRY_KEY + 8];
                    self.batch.single_delete_cf(self.log, key.encode(&mut buf));
                }
            }
        }
        if let Some(segment) = self.writer.segments.get_mut(&run.segment) {
            segment.alive = segment.alive.saturating_sub(count);
        }
    }

    /// A run is not part of the log any more, alive entries or not.
    fn drop_run(&mut self, group: GroupId, run: &Run, alive: Vec<RangeInclusive<u64>>) {
        self.bury(group, run, alive);
        self.note_row(run.segment, group);
    }

    /// What a closed segment holds of the group must be written anew.
    pub fn note_row(&mut self, segment: u32, group: GroupId) {
        if segment != self.writer.open {
            self.rows.insert((segment, group));
        }
    }

    fn create(&mut self, store: &RocksStore, record: &GroupRecord) -> Result<(), StoreError> {
        let group = record.group;
        if self.existing(store, group).is_ok() {
            return Err(StoreError::Write(format!("group {group} exists already")));
        }
        let founding = StoredGroup {
            me: record.me.0,
            init: record.init.clone(),
            founding: Some(values::membership(&record.founding)),
            founding_version: u32::from(record.founding_version.0),
        };
        self.put_meta(GroupKey::Member, group, &values::message(&founding));
        self.put_meta(GroupKey::HardState, group, &values::hard_state(&record.hard_state));
        let membership = values::message(&values::membership(&record.membership));
        self.put_meta(GroupKey::Membership, group, &membership);
        self.batch.delete_cf(self.meta, keys::group(GroupKey::Tombstone, group));
        self.changed.insert(group, Some(Index::default()));
        Ok(())
    }

    fn append(&mut self, store: &RocksStore, group: GroupId, entries: &[Entry]) -> Result<(), StoreError> {
        let Some(first) = entries.first().map(|e| e.index) else {
            return Ok(());
        };
        let index = self.index(store, group)?;
        if first <= index.floor || first > index.last() + 1 {
            let (floor, last) = (index.floor, index.last());
            return Err(StoreError::Write(format!("group {group}: append at {first} to a log of {floor}..={last}")));
        }
        if entries.iter().zip(first..).any(|(e, i)| e.index != i) {
            return Err(StoreError::Write(format!("group {group}: entries from {first} on are not contiguous")));
        }
        let cut = index.truncate(first);
        for run in &cut {
            self.drop_run(group, run, vec![run.first..=run.last]);
        }
        let mut runs: Vec<Run> = Vec::with_capacity(1);
        for entry in entries {
            let run = self.put_entry(group, entry, 0);
            index::push(&mut runs, run);
        }
        self.writer.open_groups.insert(group);
        let index = self.index(store, group)?;
        runs.into_iter().for_each(|run| index.append(run));
        Ok(())
    }

    fn snapshot(
        &mut self,
        store: &RocksStore,
        group: GroupId,
        meta: &SnapshotMeta,
        state: &[u8],
    ) -> Result<(), StoreError> {
        let old = self.index(store, group)?.clone();
        if meta.index < old.floor {
            tracing::warn!(group = group.0, index = meta.index, floor = old.floor, "a snapshot older than the last");
            return Ok(());
        }
        if meta.index > old.last() {
            let last = old.last();
            return Err(StoreError::Write(format!("group {group}: snapshot at {} of a log to {last}", meta.index)));
        }
        check_live(group, meta)?;
        // What was alive and is not any more. An entry that was dead stays dead, whatever the new list says.
        let dead = ranges::difference(old.alive_within(1, meta.index), &meta.live);
        for run in &old.runs {
            let part: Vec<_> = ranges::within(&dead, run.first, run.last).collect();
            self.bury(group, run, part);
        }
        let live = ranges::difference(
            meta.live.iter().cloned(),
            &ranges::difference([1..=meta.index], &old.alive_within(1, meta.index)),
        );
        self.put_snapshot(group, &old, meta, live, state, old.installed);
        let index = self.index(store, group)?;
        let forgotten = index.forget_dead();
        forgotten.iter().for_each(|run| self.note_row(run.segment, group));
        Ok(())
    }

    fn install(
        &mut self,
        store: &RocksStore,
        group: GroupId,
        meta: &SnapshotMeta,
        state: &[u8],
    ) -> Result<(), StoreError> {
        let mut old = self.index(store, group)?.clone();
        if old.has_snapshot && meta.index <= old.floor {
            tracing::warn!(group = group.0, index = meta.index, floor = old.floor, "a received snapshot is not newer");
            return Ok(());
        }
        check_live(group, meta)?;
        for run in &old.runs {
            let alive = old.alive_within(run.first, run.last);
            self.drop_run(group, run, alive);
        }
        let staging = old.staging.take();
        let mut runs = Vec::new();
        for run in staging.iter().flat_map(|s| &s.runs) {
            let fits = staging.as_ref().is_some_and(|s| s.snapshot == meta.index);
            let keep: &[RangeInclusive<u64>] = if fits { &meta.live } else { &[] };
            let dead = ranges::difference([run.first..=run.last], keep);
            let gone = dead == [run.first..=run.last];
            self.bury(group, run, dead);
            self.note_row(run.segment, group);
            if !gone {
                runs.push(*run);
            }
        }
        let staged: u64 = runs.iter().map(|r| ranges::count(&meta.live, r.first, r.last)).sum();
        let wanted: u64 = ranges::count(&meta.live, 1, u64::MAX);
        if staged != wanted {
            tracing::error!(
                group = group.0,
                index = meta.index,
                staged,
                wanted,
                "a received snapshot lacks live entries"
            );
        }
        self.put_snapshot(group, &old, meta, meta.live.clone(), state, meta.index);
        let index = self.index(store, group)?;
        index.staging = None;
        index.runs = runs;
        index.join();
        Ok(())
    }

    /// Writes a snapshot's records and chunks in place of the old ones', and the index's floor.
    fn put_snapshot(
        &mut self,
        group: GroupId,
        old: &Index,
        meta: &SnapshotMeta,
        live: ranges::Ranges,
        state: &[u8],
        installed: u64,
    ) {
        self.delete_chunks(group, old);
        let encoded = values::live(&live);
        let chunks = (
            self.put_chunks(group, meta.index, Chunk::State, state),
            self.put_chunks(group, meta.index, Chunk::Live, &encoded),
        );
        let stored = StoredSnapshot {
            index: meta.index,
            term: meta.term,
            membership: Some(values::membership(&meta.membership)),
            version: u32::from(meta.version.0),
            state_len: state.len() as u64,
            state_crc: meta.state_crc,
            state_chunks: chunks.0,
            live_len: encoded.len() as u64,
            live_crc: crc32c::crc32c(&encoded),
            live_chunks: chunks.1,
            installed,
        };
        self.put_meta(GroupKey::Snapshot, group, &values::message(&stored));
        if let Some(Some(index)) = self.changed.get_mut(&group) {
            index.floor = meta.index;
            index.floor_term = meta.term;
            index.live = Arc::new(live);
            index.chunks = chunks;
            index.has_snapshot = true;
            index.installed = installed;
        }
    }

    fn put_chunks(&mut self, group: GroupId, snapshot: u64, kind: Chunk, bytes: &[u8]) -> u32 {
        let mut count = 0;
        for chunk in bytes.chunks(CHUNK) {
            self.value.clear();
            self.value.push(values::VERSION);
            self.value.extend_from_slice(chunk);
            self.batch.put_cf(self.snap, keys::chunk(group, snapshot, kind, count), &self.value);
            count += 1;
        }
        count
    }

    /// Each chunk is written once, so a single delete is legal.
    fn delete_chunks(&mut self, group: GroupId, index: &Index) {
        for (kind, count) in [(Chunk::State, index.chunks.0), (Chunk::Live, index.chunks.1)] {
            for number in 0..count {
                self.batch.single_delete_cf(self.snap, keys::chunk(group, index.floor, kind, number));
            }
        }
    }

    fn delete(&mut self, store: &RocksStore, group: GroupId) -> Result<(), StoreError> {
        let Ok(index) = self.index(store, group).map(|i| i.clone()) else {
            return Ok(());
        };
        // The tombstone first. All of it becomes durable at once, so nothing is ever half deleted; the tombstone stays
        // until the segments that the group's data may be in are gone.
        let tombstone = StoredTombstone { segment: self.writer.open };
        self.put_meta(GroupKey::Tombstone, group, &values::message(&tombstone));
        for kind in [GroupKey::Member, GroupKey::HardState, GroupKey::Membership, GroupKey::Snapshot] {
            self.batch.delete_cf(self.meta, keys::group(kind, group));
        }
        self.delete_chunks(group, &index);
        for run in &index.runs {
            let alive = index.alive_within(run.first, run.last);
            self.drop_run(group, run, alive);
        }
        for run in index.staging.iter().flat_map(|s| &s.runs) {
            self.drop_run(group, run, vec![run.first..=run.last]);
        }
        self.changed.insert(group, None);
        Ok(())
    }

    fn stage(
        &mut self,
        store: &RocksStore,
        group: GroupId,
        snapshot: u64,
        entries: &[Entry],
    ) -> Result<(), StoreError> {
        let index = self.index(store, group)?;
        if index.has_snapshot && snapshot <= index.floor {
            return Ok(());
        }
        let mut staging = index.staging.take().map(|s| Staging::clone(&s)).unwrap_or_default();
        if staging.snapshot != snapshot {
            for run in &staging.runs {
                self.drop_run(group, run, vec![run.first..=run.last]);
            }
            staging = Staging { snapshot, runs: Vec::new() };
        }
        for entry in entries {
            // A transfer that starts again sends the same committed entries again.
            if entry.index <= snapshot && !staging.contains(entry.index) {
                staging.insert(self.put_entry(group, entry, snapshot));
            }
        }
        self.writer.open_groups.insert(group);
        self.index(store, group)?.staging = Some(Arc::new(staging));
        Ok(())
    }

    /// Ends the open segment and opens the next; the batch tells what the ended one holds.
    pub fn close_segment(&mut self, store: &RocksStore) {
        let closed = self.writer.open;
        let groups = std::mem::take(&mut self.writer.open_groups);
        self.writer.open = closed + 1;
        self.writer.segments.insert(closed + 1, Segment::default());
        let count = self.writer.segments.get(&closed).copied().unwrap_or_default();
        let value = values::message(&StoredSegment { entries: count.entries, bytes: count.bytes });
        self.batch.put_cf(self.meta, keys::segment(closed), value);
        self.batch.put_cf(self.meta, keys::OPEN_SEGMENT, values::open_segment(closed + 1));
        for group in groups {
            if store.index(group).is_some() || self.changed.contains_key(&group) {
                self.rows.insert((closed, group));
            }
        }
    }

    /// Writes the rows of closed segments that changed.
    pub fn finish(&mut self, store: &RocksStore) -> Result<(), StoreError> {
        for (segment, group) in std::mem::take(&mut self.rows) {
            let key = keys::runs(segment, group);
            let published;
            let index = match self.changed.get(&group) {
                Some(changed) => changed.as_ref(),
                None => {
                    published = store.index(group);
                    published.as_deref()
                }
            };
            match index.map(|i| stored_runs(i, segment)) {
                Some(row) if !row.runs.is_empty() => self.batch.put_cf(self.meta, key, values::message(&row)),
                _ => self.batch.delete_cf(self.meta, key),
            }
        }
        Ok(())
    }
}

/// What a segment holds of a group. Entries staged for a snapshot that is not installed are listed too: until then
/// recovery takes no notice of them.
pub(super) fn stored_runs(index: &Index, segment: u32) -> StoredRuns {
    let staged = index.staging.iter().flat_map(|s| &s.runs);
    let runs = index.runs.iter().chain(staged).filter(|r| r.segment == segment);
    StoredRuns {
        runs: runs.map(|r| StoredRun { first: r.first, last: r.last, term: r.term, staged: r.staged }).collect(),
    }
}

fn check_live(group: GroupId, meta: &SnapshotMeta) -> Result<(), StoreError> {
    let above = meta.live.last().is_some_and(|r| *r.end() > meta.index);
    if above || !ranges::is_valid(&meta.live) {
        return Err(StoreError::Write(format!(
            "group {group}: live ranges of snapshot {} are not in order",
            meta.index
        )));
    }
    Ok(())
}
