//! From the disk to the index, before anything else happens.
//!
//! Closed segments are known from their rows in `meta`; those that were open when the process ended are read key by key
//! and closed at once, so that a segment is only ever written by one life of the process.

use std::collections::BTreeMap;
use std::sync::Arc;

use rocksdb::{DB, ReadOptions, WriteBatch, WriteOptions};
use rustc_hash::FxHashMap;
use warren_proto::ids::GroupId;
use warren_proto::peer::{StoredRuns, StoredSegment};

use super::batch::stored_runs;
use super::index::{self, Index, MAX_INDEX, Run};
use super::keys::{self, EntryKey};
use super::read::{group_ids, read_live, stored_snapshot};
use super::values::{self, corrupt};
use super::{Segment, family, read_error, write_error};
use crate::log_store::StoreError;

/// What a store starts with.
pub(super) struct Recovered {
    pub groups: FxHashMap<GroupId, Arc<Index>>,
    pub segments: BTreeMap<u32, Segment>,
    pub open: u32,
}

pub(super) fn recover(db: &DB) -> Result<Recovered, StoreError> {
    check_layout(db)?;
    let mut groups = FxHashMap::default();
    for group in group_ids(db)? {
        groups.insert(group, floor_of(db, group)?);
    }
    let mut segments = closed_segments(db)?;
    let stale = rows(db, &segments, &mut groups)?;
    let stored = open_segment(db)?;
    let was_open = stored.unwrap_or(1);
    if was_open == u32::MAX {
        return Err(corrupt("the open segment's number makes no sense"));
    }
    if let Some((closed, _)) = segments.range(was_open..).next() {
        return Err(corrupt(format_args!("segment {closed} is closed, and {was_open} was open")));
    }
    let scanned = scan_open(db, was_open, &mut segments, &mut groups)?;
    for (group, index) in &mut groups {
        settle(*group, index)?;
    }
    for index in groups.values() {
        for run in &index.runs {
            if let Some(segment) = segments.get_mut(&run.segment) {
                segment.alive += index.alive_in(run);
            }
        }
    }
    let open = stored.map_or(1, |was_open| was_open + 1);
    write_rows(db, scanned.then_some(was_open), open, &stale, &segments, &groups)?;
    segments.insert(open, Segment::default());
    let groups = groups.into_iter().map(|(group, index)| (group, Arc::new(index))).collect();
    Ok(Recovered { groups, segments, open })
}

/// Refuses a layout that this binary does not know; marks a new database.
fn check_layout(db: &DB) -> Result<(), StoreError> {
    let meta = family(db, keys::META)?;
    match db.get_cf(meta, keys::FORMAT).map_err(read_error)?.as_deref() {
        Some([values::LAYOUT]) => Ok(()),
        Some(other) => Err(StoreError::Newer(format!(
            "the layout is {other:?}, this version knows {}: start the newer version that wrote it",
            values::LAYOUT
        ))),
        None => {
            let mut options = WriteOptions::default();
            options.set_sync(true);
            db.put_cf_opt(meta, keys::FORMAT, [values::LAYOUT], &options).map_err(write_error)
        }
    }
}

/// A group's index with its floor and no entries yet.
fn floor_of(db: &DB, group: GroupId) -> Result<Index, StoreError> {
    let Some(stored) = stored_snapshot(db, group)? else {
        return Ok(Index::default());
    };
    if stored.index >= MAX_INDEX {
        return Err(corrupt(format_args!("group {group}: a snapshot at {} makes no sense", stored.index)));
    }
    let live = read_live(db, group, &stored)?;
    if live.last().is_some_and(|r| *r.end() > stored.index) {
        return Err(corrupt(format_args!("group {group}: a live range lies above its snapshot")));
    }
    Ok(Index {
        floor: stored.index,
        floor_term: stored.term,
        live: Arc::new(live),
        chunks: (stored.state_chunks, stored.live_chunks),
        has_snapshot: true,
        installed: stored.installed,
        ..Index::default()
    })
}

fn closed_segments(db: &DB) -> Result<BTreeMap<u32, Segment>, StoreError> {
    let mut segments = BTreeMap::new();
    for_each(db, keys::META, keys::ALL_SEGMENTS, |key, value| {
        let number = keys::parse_segment(key).ok_or_else(|| corrupt("a segment's key has the wrong length"))?;
        let stored: StoredSegment = values::parse_message("segment record", value)?;
        segments.insert(number, Segment { entries: stored.entries, bytes: stored.bytes, alive: 0, settled: false });
        Ok(())
    })?;
    Ok(segments)
}

/// Reads what closed segments hold. Answers the rows that say more than the index: of segments that were dropped, of
/// groups that were deleted, and with entries that were staged for nothing.
fn rows(
    db: &DB,
    segments: &BTreeMap<u32, Segment>,
    groups: &mut FxHashMap<GroupId, Index>,
) -> Result<Vec<(u32, GroupId)>, StoreError> {
    let mut stale = Vec::new();
    for_each(db, keys::META, keys::ALL_RUNS, |key, value| {
        let (segment, group) = keys::parse_runs(key).ok_or_else(|| corrupt("a row's key has the wrong length"))?;
        let Some(index) = groups.get_mut(&group).filter(|_| segments.contains_key(&segment)) else {
            stale.push((segment, group));
            return Ok(());
        };
        let stored: StoredRuns = values::parse_message("segment row", value)?;
        for run in stored.runs {
            if run.first == 0 || run.first > run.last || run.last >= MAX_INDEX {
                return Err(corrupt(format_args!("group {group}: a row of segment {segment} makes no sense")));
            }
            let run = Run { first: run.first, last: run.last, term: run.term, segment, staged: run.staged };
            if counts(index, &run) {
                index.runs.push(run);
            } else if stale.last() != Some(&(segment, group)) {
                stale.push((segment, group));
            }
        }
        Ok(())
    })?;
    Ok(stale)
}

/// Entries staged for a snapshot that was not installed are no part of the log.
fn counts(index: &Index, run: &Run) -> bool {
    run.staged == 0 || run.staged == index.installed
}

/// Number of the segment that was open when the process ended; `None` in a new store.
fn open_segment(db: &DB) -> Result<Option<u32>, StoreError> {
    let value = db.get_cf(family(db, keys::META)?, keys::OPEN_SEGMENT).map_err(read_error)?;
    value.map(|v| values::parse_open_segment(&v)).transpose()
}

/// Reads the keys of the segment that nobody closed. Answers whether there were any.
fn scan_open(
    db: &DB,
    open: u32,
    segments: &mut BTreeMap<u32, Segment>,
    groups: &mut FxHashMap<GroupId, Index>,
) -> Result<bool, StoreError> {
    let mut options = ReadOptions::default();
    options.fill_cache(false);
    let mut iterator = db.raw_iterator_cf_opt(family(db, keys::LOG)?, options);
    iterator.seek(keys::segment_start(open));
    let mut count = Segment::default();
    while let Some((key, value)) = iterator.item() {
        count.entries += 1;
        count.bytes += (key.len() + value.len()) as u64;
        let key = EntryKey::parse(key).ok_or_else(|| corrupt("an entry's key has the wrong length"))?;
        if value.first() != Some(&values::VERSION) {
            return Err(corrupt(format_args!("entry {} of group {} has an unknown version", key.index, key.group)));
        }
        let EntryKey { segment, group, index: at, term, staged } = key;
        if segment != open {
            return Err(corrupt(format_args!("segment {segment} was written, and {open} was open")));
        }
        if at == 0 || at >= MAX_INDEX {
            return Err(corrupt(format_args!("group {group}: an entry at {at} makes no sense")));
        }
        if let Some(index) = groups.get_mut(&group) {
            let run = Run { first: at, last: at, term, segment, staged };
            if counts(index, &run) && index.is_alive(at) {
                index::push(&mut index.runs, run);
            }
        }
        iterator.next();
    }
    iterator.status().map_err(read_error)?;
    if count.entries == 0 {
        return Ok(false);
    }
    segments.insert(open, count);
    Ok(true)
}

/// Puts a group's runs in order and checks that the log has no gap and no entry twice.
fn settle(group: GroupId, index: &mut Index) -> Result<(), StoreError> {
    index.forget_dead();
    index.runs.sort_unstable_by_key(|r| r.first);
    if let Some(pair) = index.runs.windows(2).find(|w| w[0].last >= w[1].first) {
        return Err(corrupt(format_args!("group {group}: entry {} is there twice", pair[1].first)));
    }
    let mut next = index.floor + 1;
    for run in index.runs.iter().filter(|r| r.last > index.floor) {
        if run.first > next {
            return Err(corrupt(format_args!("group {group}: entries {next}..{} are missing", run.first)));
        }
        next = run.last + 1;
    }
    index.join();
    let (live, found) = (
        super::ranges::count(&index.live, 1, index.floor),
        index.runs.iter().map(|r| super::ranges::count(&index.live, r.first, r.last.min(index.floor))).sum::<u64>(),
    );
    if live != found {
        tracing::error!(group = group.0, live, found, "live entries below the snapshot are missing");
    }
    Ok(())
}

/// Makes the scanned segments closed ones, and stale rows say what the index does: the same snapshot may be received
/// again, and then its leftovers would count.
fn write_rows(
    db: &DB,
    scanned: Option<u32>,
    open: u32,
    stale: &[(u32, GroupId)],
    segments: &BTreeMap<u32, Segment>,
    groups: &FxHashMap<GroupId, Index>,
) -> Result<(), StoreError> {
    let meta = family(db, keys::META)?;
    let mut batch = WriteBatch::default();
    batch.put_cf(meta, keys::OPEN_SEGMENT, values::open_segment(open));
    let row = |batch: &mut WriteBatch, segment: u32, group: GroupId| {
        let row = groups.get(&group).map(|index| stored_runs(index, segment)).unwrap_or_default();
        match row.runs.is_empty() {
            true => batch.delete_cf(meta, keys::runs(segment, group)),
            false => batch.put_cf(meta, keys::runs(segment, group), values::message(&row)),
        }
    };
    // Stale rows first: a segment that is closed now may have had some.
    stale.iter().for_each(|(segment, group)| row(&mut batch, *segment, *group));
    if let Some(segment) = scanned {
        let count = segments.get(&segment).copied().unwrap_or_default();
        let value = values::message(&StoredSegment { entries: count.entries, bytes: count.bytes });
        batch.put_cf(meta, keys::segment(segment), value);
        let here = groups.iter().filter(|(_, index)| index.runs.iter().any(|r| r.segment == segment));
        here.for_each(|(group, _)| row(&mut batch, segment, *group));
    }
    let mut options = WriteOptions::default();
    options.set_sync(true);
    db.write_opt(batch, &options).map_err(write_error)
}

/// Visits the keys from `range.0` up to but without `range.1`.
pub(super) fn for_each(
    db: &DB,
    name: &'static str,
    range: (impl AsRef<[u8]>, impl Into<Vec<u8>>),
    mut visit: impl FnMut(&[u8], &[u8]) -> Result<(), StoreError>,
) -> Result<(), StoreError> {
    let mut options = ReadOptions::default();
    options.set_iterate_upper_bound(range.1);
    let mut iterator = db.raw_iterator_cf_opt(family(db, name)?, options);
    iterator.seek(range.0);
    while let Some((key, value)) = iterator.item() {
        visit(key, value)?;
        iterator.next();
    }
    iterator.status().map_err(read_error)
}
