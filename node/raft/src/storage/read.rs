//! Reading entries, snapshots and the records of groups.

use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use rocksdb::{DB, ReadOptions};
use warren_proto::ids::GroupId;
use warren_proto::peer::{StoredMembership, StoredSnapshot};

use super::index::{Index, Run};
use super::keys::{self, Chunk, ENTRY_KEY, EntryKey, GroupKey};
use super::ranges::Ranges;
use super::values::{self, corrupt};
use super::{RocksStore, family, read_error, recovery};
use crate::log_store::{Entry, GroupRecord, HardState, Membership, SnapshotMeta, StoreError};

/// How often a read starts again because the log changed under it.
const ATTEMPTS: usize = 8;

/// What became of one attempt to read.
enum Outcome<T> {
    Done(T),
    /// A key that the index names is not there.
    Missing(u64),
}

impl RocksStore {
    /// Reads by the index that is published now; where a key is missing because the log moved on, by the next one.
    fn by_index<T: Default>(
        &self,
        group: GroupId,
        attempt: impl Fn(&Index) -> Result<Outcome<T>, StoreError>,
    ) -> Result<T, StoreError> {
        let Some(mut index) = self.index(group) else {
            return Ok(T::default());
        };
        for _ in 0..ATTEMPTS {
            let missing = match attempt(&index)? {
                Outcome::Done(result) => return Ok(result),
                Outcome::Missing(missing) => missing,
            };
            // The batch that removed the key may be durable and its index not published yet: wait for that writer.
            drop(self.writer.lock());
            match self.index(group) {
                None => return Ok(T::default()),
                Some(now) if Arc::ptr_eq(&now, &index) => {
                    return Err(corrupt(format_args!("group {group}: entry {missing} is missing")));
                }
                Some(now) => index = now,
            }
        }
        Err(StoreError::Read(format!("group {group}: the log changes faster than it can be read")))
    }

    pub(super) fn read_entries(
        &self,
        group: GroupId,
        from: u64,
        to: u64,
        max_bytes: u64,
    ) -> Result<Vec<Entry>, StoreError> {
        self.by_index(group, |index| {
            let from = from.max(index.floor + 1);
            let to = to.min(index.last() + 1);
            let mut out: Vec<Entry> = Vec::new();
            let mut bytes = 0;
            while let Some(next) = Some(out.last().map_or(from, |e| e.index + 1)).filter(|n| *n < to) {
                let Some(run) = index.run_of(next) else {
                    return Ok(Outcome::Missing(next));
                };
                let last = run.last.min(to - 1);
                let before = out.len();
                let mut full = false;
                self.scan(group, run, next, last, |entry| {
                    bytes += entry.data.len() as u64;
                    full = bytes > max_bytes && !out.is_empty();
                    if !full {
                        out.push(entry);
                    }
                    !full
                })?;
                if let Some(gap) = out[before..].iter().zip(next..).find(|(e, i)| e.index != *i) {
                    return Ok(Outcome::Missing(gap.1));
                }
                if full {
                    break;
                }
                if out.last().is_none_or(|e| e.index < last) {
                    return Ok(Outcome::Missing(out.last().map_or(next, |e| e.index + 1)));
                }
            }
            Ok(Outcome::Done(out))
        })
    }

    /// Gives the entries `first..=last` of a run that are there, in order, while `take` says so.
    pub(super) fn scan(
        &self,
        group: GroupId,
        run: &Run,
        first: u64,
        last: u64,
        mut take: impl FnMut(Entry) -> bool,
    ) -> Result<(), StoreError> {
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(keys::entries_from(run.segment, group, last.saturating_add(1)));
        let mut iterator = self.db.raw_iterator_cf_opt(self.family(keys::LOG)?, options);
        iterator.seek(keys::entries_from(run.segment, group, first));
        while let Some((key, value)) = iterator.item() {
            let key = EntryKey::parse(key).ok_or_else(|| corrupt("an entry's key has the wrong length"))?;
            // Entries that were superseded after their segment closed have keys too.
            if key.term == run.term && key.staged == run.staged {
                let (kind, data) = values::entry(Bytes::copy_from_slice(value))?;
                if !take(Entry { index: key.index, term: key.term, kind, data }) {
                    return Ok(());
                }
            }
            iterator.next();
        }
        iterator.status().map_err(read_error)
    }

    pub(super) fn read_indexes(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Entry>>, StoreError> {
        let read = self.by_index(group, |index| {
            let mut wanted: Vec<(usize, EntryKey)> = Vec::with_capacity(indexes.len());
            for (at, &i) in indexes.iter().enumerate() {
                if let Some(run) = index.run_of(i).filter(|_| index.is_alive(i)) {
                    let (segment, term, staged) = (run.segment, run.term, run.staged);
                    wanted.push((at, EntryKey { segment, group, index: i, term, staged }));
                }
            }
            let mut out = vec![None; indexes.len()];
            let keys: Vec<Vec<u8>> =
                wanted.iter().map(|(_, key)| key.encode(&mut [0; ENTRY_KEY + 8]).to_vec()).collect();
            let found = self.db.batched_multi_get_cf(self.family(keys::LOG)?, &keys, false);
            for ((at, key), value) in wanted.into_iter().zip(found) {
                let Some(value) = value.map_err(read_error)? else {
                    return Ok(Outcome::Missing(key.index));
                };
                let (kind, data) = values::entry(Bytes::copy_from_slice(&value))?;
                out[at] = Some(Entry { index: key.index, term: key.term, kind, data });
            }
            Ok(Outcome::Done(out))
        })?;
        // A group that is not here has no entries.
        Ok(if read.len() == indexes.len() { read } else { vec![None; indexes.len()] })
    }

    pub(super) fn read_snapshot(&self, group: GroupId) -> Result<Option<(SnapshotMeta, Bytes)>, StoreError> {
        // The records and the chunks of one snapshot: both go when the next replaces them, so read until they agree.
        for _ in 0..ATTEMPTS {
            let Some(stored) = stored_snapshot(&self.db, group)? else {
                return Ok(None);
            };
            let read = read_live(&self.db, group, &stored).and_then(|live| {
                let state = chunks(&self.db, group, stored.index, Chunk::State, stored.state_chunks, stored.state_len)?;
                Ok((live, state))
            });
            let (live, state) = match read {
                Ok(read) => read,
                Err(_) if stored_snapshot(&self.db, group)?.is_none_or(|now| now.index != stored.index) => {
                    continue;
                }
                Err(error) => return Err(error),
            };
            if crc32c::crc32c(&state) != stored.state_crc {
                return Err(corrupt(format_args!("group {group}: the snapshot's state does not match its checksum")));
            }
            return Ok(Some((values::parse_snapshot(&stored, live)?, state)));
        }
        Err(StoreError::Read(format!("group {group}: snapshots change faster than they can be read")))
    }

    pub(super) fn read_groups(&self) -> Result<Vec<GroupRecord>, StoreError> {
        let meta = self.family(keys::META)?;
        let mut out = Vec::new();
        for group in group_ids(&self.db)? {
            let get = |kind| self.db.get_cf(meta, keys::group(kind, group)).map_err(read_error);
            let lacks = |what| corrupt(format_args!("group {group} has no {what}"));
            let founding = values::parse_founding(&get(GroupKey::Member)?.ok_or_else(|| lacks("member record"))?)?;
            let hard_state: HardState =
                values::parse_hard_state(&get(GroupKey::HardState)?.ok_or_else(|| lacks("hard state"))?)?;
            let membership = get(GroupKey::Membership)?.ok_or_else(|| lacks("membership"))?;
            let membership: StoredMembership = values::parse_message("membership", &membership)?;
            let membership: Membership = values::parse_membership(membership)?;
            let index = self.index(group).ok_or_else(|| lacks("log"))?;
            let snapshot = match stored_snapshot(&self.db, group)? {
                Some(stored) => Some(values::parse_snapshot(&stored, Ranges::clone(&index.live))?),
                None => None,
            };
            out.push(GroupRecord {
                group,
                me: founding.me,
                init: founding.init,
                founding: founding.membership,
                founding_version: founding.version,
                hard_state,
                membership,
                snapshot,
                last_index: index.last(),
            });
        }
        Ok(out)
    }
}

/// Groups that have a member here.
pub(super) fn group_ids(db: &DB) -> Result<Vec<GroupId>, StoreError> {
    let mut out = Vec::new();
    recovery::for_each(db, keys::META, keys::ALL_MEMBERS, |key, _| {
        let group = keys::group_of(GroupKey::Member, key);
        out.push(group.ok_or_else(|| corrupt("a member's key has the wrong length"))?);
        Ok(())
    })?;
    Ok(out)
}

/// The record of a group's newest snapshot.
pub(super) fn stored_snapshot(db: &DB, group: GroupId) -> Result<Option<StoredSnapshot>, StoreError> {
    let value = db.get_cf(family(db, keys::META)?, keys::group(GroupKey::Snapshot, group)).map_err(read_error)?;
    value.map(|v| values::parse_message("snapshot record", &v)).transpose()
}

/// The live ranges of a snapshot.
pub(super) fn read_live(db: &DB, group: GroupId, stored: &StoredSnapshot) -> Result<Ranges, StoreError> {
    let bytes = chunks(db, group, stored.index, Chunk::Live, stored.live_chunks, stored.live_len)?;
    if crc32c::crc32c(&bytes) != stored.live_crc {
        return Err(corrupt(format_args!("group {group}: the live ranges do not match their checksum")));
    }
    values::parse_live(&bytes)
}

fn chunks(db: &DB, group: GroupId, snapshot: u64, kind: Chunk, count: u32, len: u64) -> Result<Bytes, StoreError> {
    let snap = family(db, keys::SNAP)?;
    let mut out = BytesMut::new();
    for number in 0..count {
        let key = keys::chunk(group, snapshot, kind, number);
        let value = db.get_pinned_cf(snap, key).map_err(read_error)?;
        match value.as_deref().and_then(|v| v.split_first()) {
            Some((&values::VERSION, data)) => out.extend_from_slice(data),
            Some((version, _)) => {
                return Err(corrupt(format_args!("group {group}: a snapshot chunk has unknown version {version}")));
            }
            None => {
                return Err(corrupt(format_args!("group {group}: chunk {number} of the snapshot is missing")));
            }
        }
    }
    if out.len() as u64 != len {
        return Err(corrupt(format_args!("group {group}: the snapshot has {} bytes of {len}", out.len())));
    }
    Ok(out.freeze())
}
