//! Work off the hot path: closing an idle segment, dropping dead ones, copying what a sparse one still holds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use rocksdb::{CompactOptions, LiveFile, WriteBatch, properties};
use warren_proto::ids::GroupId;
use warren_proto::peer::StoredTombstone;

use super::index::Run;
use super::keys::{self, GroupKey, LOG, META, SNAP};
use super::recovery::for_each;
use super::{RocksStore, Segment, Writer, read_error, values, write_error};
use crate::log_store::{Entry, StoreError, StoreFigures};

/// An open segment smaller than this is left open however idle it is.
const IDLE_WORTH: usize = 1 << 20;
/// A segment that grew by less than this in the idle time is idle.
const IDLE_GROWTH: usize = 256 << 10;
/// How long upkeep waits for a flush that it started.
const FLUSH_WAIT: Duration = Duration::from_secs(10);
/// A closed segment is worth copying if less than half of it is alive and its files have this many bytes ...
const SPARSE_WORTH: u64 = 1 << 20;
/// ... or there are more closed segments than this.
const MANY_SEGMENTS: usize = 64;
/// Bytes copied in one batch: writers wait this long.
const COPY_BATCH: u64 = 1 << 20;
/// Bytes copied in one round of upkeep.
const COPY_ROUND: u64 = 64 << 20;
/// Column families smaller than this are not compacted when idle.
const COMPACT_WORTH: usize = 1 << 20;

/// What the files of one segment hold.
#[derive(Default, Clone, Copy)]
struct OnDisk {
    bytes: u64,
    entries: u64,
}

impl RocksStore {
    /// Looks at the folder's files and asks the database; waits for a write that is under way.
    pub(super) fn read_figures(&self) -> StoreFigures {
        let files = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let disk_bytes = files.filter_map(|file| file.metadata().ok()).filter(|m| m.is_file()).map(|m| m.len()).sum();
        let of = |name: &properties::PropName| {
            let families = [LOG, META, SNAP].into_iter().filter_map(|family| self.db.cf_handle(family));
            families.filter_map(|cf| self.db.property_int_value_cf(cf, name).ok().flatten()).sum::<u64>()
        };
        let tables = of(properties::CUR_SIZE_ALL_MEM_TABLES) + of(properties::ESTIMATE_TABLE_READERS_MEM);
        // One cache for all families.
        let log = self.db.cf_handle(LOG);
        let cache = log.and_then(|cf| self.db.property_int_value_cf(cf, properties::BLOCK_CACHE_USAGE).ok().flatten());
        let segments = self.writer.lock().segments.values().filter(|s| s.entries > 0).count() as u64;
        StoreFigures { disk_bytes, memory_bytes: tables + cache.unwrap_or_default(), segments }
    }

    pub(super) fn run_upkeep(&self) -> Result<(), StoreError> {
        let Some(_alone) = self.upkeep.try_lock() else {
            return Ok(());
        };
        let idle = self.close_if_idle()?;
        if idle {
            self.await_flush()?;
        }
        let compacted = self.settle_segments()?;
        let mut dropped = self.drop_dead()?;
        if self.copy_sparse()? {
            dropped |= self.drop_dead()?;
        }
        if dropped || compacted {
            self.forget_tombstones()?;
        }
        self.sweep()?;
        if idle {
            self.compact_small()?;
        }
        Ok(())
    }

    /// Closes the open segment if it holds something and hardly grew since the last look.
    fn close_if_idle(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        self.check_failed(&mut writer)?;
        let (since, then) = writer.idle_mark;
        if since.elapsed() < self.config.idle_close {
            return Ok(false);
        }
        let grown = writer.unflushed.saturating_sub(then);
        // A flush in between makes it less than it was.
        let busy = writer.unflushed < then || grown > IDLE_GROWTH;
        writer.idle_mark = (Instant::now(), writer.unflushed);
        if busy || writer.unflushed < IDLE_WORTH {
            return Ok(false);
        }
        self.flush(&mut writer, false)?;
        let mut batch = self.batch(&mut writer)?;
        batch.close_segment(self);
        batch.finish(self)?;
        let batch = batch.batch;
        self.commit(&mut writer, batch)?;
        writer.idle_mark = (Instant::now(), writer.unflushed);
        Ok(true)
    }

    /// Memtables of closed segments that are not in files yet.
    fn unflushed_memtables(&self) -> Result<u64, StoreError> {
        let log = self.family(keys::LOG)?;
        let count = self.db.property_int_value_cf(log, properties::NUM_IMMUTABLE_MEM_TABLE).map_err(read_error)?;
        Ok(count.unwrap_or(0))
    }

    pub(super) fn await_flush(&self) -> Result<(), StoreError> {
        let began = Instant::now();
        while self.unflushed_memtables()? > 0 && began.elapsed() < FLUSH_WAIT {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    pub(super) fn compact(&self, first: u32, last: u32) -> Result<(), StoreError> {
        let mut options = CompactOptions::default();
        options.set_exclusive_manual_compaction(false);
        let (from, to) = (keys::segment_start(first), keys::segment_start(last.saturating_add(1)));
        self.db.compact_range_cf_opt(self.family(keys::LOG)?, Some(from), Some(to), &options);
        Ok(())
    }

    /// Moves the files of closed segments out of level 0. A segment is one file there, which overlaps no other, so this
    /// only renames it in the manifest.
    fn settle_segments(&self) -> Result<bool, StoreError> {
        let unsettled: Vec<u32> = {
            let writer = self.writer.lock();
            let closed = writer.segments.range(..writer.open);
            closed.filter(|(_, s)| !s.settled).map(|(n, _)| *n).collect()
        };
        // Looked at after the list was made: a segment that closes later counts as one more memtable, never as one less.
        let waiting = usize::try_from(self.unflushed_memtables()?).unwrap_or(usize::MAX);
        let flushed = unsettled.len().saturating_sub(waiting);
        for number in &unsettled[..flushed] {
            self.compact(*number, *number)?;
            if let Some(segment) = self.writer.lock().segments.get_mut(number) {
                segment.settled = true;
            }
        }
        Ok(flushed > 0)
    }

    /// Forgets closed segments in which nothing is alive; their files go in [`sweep`](Self::sweep).
    fn drop_dead(&self) -> Result<bool, StoreError> {
        let mut writer = self.writer.lock();
        self.check_failed(&mut writer)?;
        let dead: Vec<u32> = closed(&writer).filter(|(_, s)| s.settled && s.alive == 0).map(|(n, _)| n).collect();
        if dead.is_empty() {
            return Ok(false);
        }
        let meta = self.family(keys::META)?;
        let mut batch = WriteBatch::default();
        for number in &dead {
            batch.delete_cf(meta, keys::segment(*number));
            for_each(&self.db, keys::META, keys::runs_of_segment(*number), |key, _| {
                batch.delete_cf(meta, key);
                Ok(())
            })?;
        }
        // Durable before the files go: a file may be missing that nothing names, never the other way.
        self.commit(&mut writer, batch)?;
        for number in &dead {
            writer.segments.remove(number);
        }
        writer.sweep = true;
        tracing::debug!(segments = dead.len(), "dead log segments dropped");
        Ok(true)
    }

    /// Deletes table files that hold no segment which is still known.
    fn sweep(&self) -> Result<(), StoreError> {
        let (known, open) = {
            let mut writer = self.writer.lock();
            if !std::mem::take(&mut writer.sweep) {
                return Ok(());
            }
            (writer.segments.keys().copied().collect::<Vec<u32>>(), writer.open)
        };
        let unknown = |file: &LiveFile| -> Option<(u32, u32)> {
            let (first, last) = segments_of(file)?;
            let at = known.partition_point(|n| *n < first);
            (last < open && known.get(at).is_none_or(|n| *n > last)).then_some((first, last))
        };
        let log = self.family(keys::LOG)?;
        for level in 0..2 {
            for file in self.log_files()?.iter().filter(|f| f.level == level) {
                let Some((first, last)) = unknown(file) else {
                    continue;
                };
                if level == 0 {
                    // Files cannot be dropped from level 0.
                    self.compact(first, last)?;
                }
                let (from, to) = (keys::segment_start(first), keys::segment_start(last + 1));
                self.db.delete_file_in_range_cf(log, from, to).map_err(write_error)?;
            }
        }
        Ok(())
    }

    pub(super) fn log_files(&self) -> Result<Vec<LiveFile>, StoreError> {
        let mut files = self.db.live_files().map_err(read_error)?;
        files.retain(|f| f.column_family_name == keys::LOG);
        Ok(files)
    }

    /// Copies what closed segments that are mostly dead still hold into the open one.
    fn copy_sparse(&self) -> Result<bool, StoreError> {
        let segments: Vec<(u32, Segment)> = {
            let writer = self.writer.lock();
            closed(&writer).filter(|(_, s)| s.settled && s.alive > 0 && s.alive * 2 < s.entries).collect()
        };
        if segments.is_empty() {
            return Ok(false);
        }
        let mut disk: HashMap<u32, OnDisk> = HashMap::new();
        for file in self.log_files()? {
            if let Some((first, last)) = segments_of(&file)
                && first == last
            {
                let on_disk = disk.entry(first).or_default();
                on_disk.bytes += file.size as u64;
                on_disk.entries += file.num_entries;
            }
        }
        let many = self.writer.lock().segments.len() > MANY_SEGMENTS;
        let mut budget = COPY_ROUND;
        let mut copied = false;
        for (number, segment) in segments {
            let on_disk = disk.get(&number).copied().unwrap_or_default();
            let sparse = segment.alive * 2 < on_disk.entries && on_disk.bytes >= SPARSE_WORTH;
            if budget > 0 && (sparse || many) {
                self.copy_segment(number, &mut budget)?;
                copied = true;
            }
        }
        Ok(copied)
    }

    pub(super) fn copy_segment(&self, segment: u32, budget: &mut u64) -> Result<(), StoreError> {
        let holds = |runs: &[Run]| runs.iter().any(|r| r.segment == segment);
        let groups: Vec<GroupId> =
            self.groups.read().iter().filter(|(_, i)| holds(&i.runs)).map(|(group, _)| *group).collect();
        for group in groups {
            while *budget > 0 && self.index(group).is_some_and(|i| holds(&i.runs)) {
                let Some(copied) = self.copy_some(group, segment)? else { break };
                *budget = budget.saturating_sub(copied.max(1));
            }
        }
        Ok(())
    }

    /// Copies the alive entries of a group's first run in a segment, up to a batch. The copies, the new row of the old
    /// segment and the new index are one write, so an entry is never in two places.
    ///
    /// What cannot be read stays where it is: it is reported, and the answer is that nothing is left to copy.
    fn copy_some(&self, group: GroupId, segment: u32) -> Result<Option<u64>, StoreError> {
        let mut bytes = 0;
        let mut unreadable = None;
        self.in_batch(|store, batch| {
            let Ok(index) = batch.index(store, group).cloned() else {
                return Ok(());
            };
            let Some(run) = index.runs.iter().find(|r| r.segment == segment).copied() else {
                return Ok(());
            };
            let mut entries: Vec<Entry> = Vec::new();
            for range in index.alive_within(run.first, run.last) {
                if bytes >= COPY_BATCH {
                    break;
                }
                let read = store.scan(group, &run, *range.start(), *range.end(), |entry| {
                    bytes += entry.data.len() as u64 + 1;
                    entries.push(entry);
                    bytes < COPY_BATCH
                });
                if let Err(error) = read {
                    unreadable = Some(error);
                    return Ok(());
                }
            }
            let done = if bytes >= COPY_BATCH { entries.last().map_or(run.last, |e| e.index) } else { run.last };
            let moved = index.alive_in(&Run { last: done, ..run });
            if moved != entries.len() as u64 {
                let missing = format_args!("group {group}: entries of segment {segment} are missing");
                unreadable = Some(values::corrupt(missing));
                return Ok(());
            }
            for entry in &entries {
                batch.put_entry(group, entry, run.staged);
            }
            batch.bury(group, &run, index.alive_within(run.first, done));
            batch.note_row(segment, group);
            let open = batch.writer.open;
            batch.writer.open_groups.insert(group);
            batch.index(store, group)?.relocate(run.first, done, open);
            Ok(())
        })?;
        match unreadable {
            None => Ok(Some(bytes)),
            Some(error) => {
                let error = self.of_group(group, Err::<(), _>(error));
                tracing::error!(group = group.0, segment, ?error, "entries cannot be copied to a newer segment");
                Ok(None)
            }
        }
    }

    /// Tombstones are kept until every segment that may hold the group's data is gone.
    fn forget_tombstones(&self) -> Result<(), StoreError> {
        let meta = self.family(keys::META)?;
        let mut writer = self.writer.lock();
        let oldest = writer.segments.keys().next().copied().unwrap_or(writer.open);
        let mut batch = WriteBatch::default();
        let range = ([GroupKey::Tombstone as u8], [GroupKey::Tombstone as u8 + 1]);
        for_each(&self.db, keys::META, range, |key, value| {
            let tombstone: StoredTombstone = values::parse_message("tombstone", value)?;
            if tombstone.segment < oldest {
                batch.delete_cf(meta, key);
            }
            Ok(())
        })?;
        if batch.is_empty() { Ok(()) } else { self.commit(&mut writer, batch) }
    }

    /// Frees what replaced snapshots and records left behind.
    fn compact_small(&self) -> Result<(), StoreError> {
        let files = self.db.live_files().map_err(read_error)?;
        for name in [keys::SNAP, keys::META] {
            let sizes = files.iter().filter(|f| f.column_family_name == name).map(|f| f.size);
            if sizes.sum::<usize>() > COMPACT_WORTH {
                self.db.compact_range_cf(self.family(name)?, None::<&[u8]>, None::<&[u8]>);
            }
        }
        Ok(())
    }
}

/// Closed segments.
fn closed(writer: &Writer) -> impl Iterator<Item = (u32, Segment)> + '_ {
    writer.segments.range(..writer.open).map(|(n, s)| (*n, *s))
}

/// First and last segment in a table file.
fn segments_of(file: &LiveFile) -> Option<(u32, u32)> {
    let number = |key: &Option<Vec<u8>>| Some(u32::from_be_bytes(key.as_ref()?.get(..4)?.try_into().ok()?));
    Some((number(&file.start_key)?, number(&file.end_key)?))
}
