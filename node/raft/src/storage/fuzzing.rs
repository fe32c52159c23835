//! The decoders of what the store keeps, and of what entries of Raft's own hold, for the fuzz targets in
//! `node/raft/fuzz` and the property tests: bytes are refused, or written again as they were read.

use bytes::Bytes;
use warren_proto::peer::{StoredMembership, StoredRuns, StoredSegment, StoredSnapshot, StoredTombstone};

use super::keys::{self, ENTRY_KEY, EntryKey, GroupKey};
use super::{ranges, values, wal_tail};
use crate::driver::{decode_change, encode_change};

/// A key of any column family.
pub fn key(bytes: &[u8]) {
    if let Some(key) = EntryKey::parse(bytes) {
        assert_eq!(key.encode(&mut [0; ENTRY_KEY + 8]), bytes);
    }
    if let Some((segment, group)) = keys::parse_runs(bytes) {
        assert_eq!(keys::runs(segment, group), bytes);
    }
    if let Some(segment) = keys::parse_segment(bytes) {
        assert_eq!(keys::segment(segment), bytes);
    }
    let kinds = [GroupKey::Member, GroupKey::HardState, GroupKey::Membership, GroupKey::Snapshot, GroupKey::Tombstone];
    for kind in kinds {
        if let Some(group) = keys::group_of(kind, bytes) {
            assert_eq!(keys::group(kind, group), bytes);
        }
    }
}

/// A value of any column family, and the live ranges that chunks make.
pub fn value(bytes: &[u8]) {
    if let Ok((kind, data)) = values::entry(Bytes::copy_from_slice(bytes)) {
        let mut again = Vec::new();
        values::put_entry(kind, &data, &mut again);
        assert_eq!(again, bytes);
    }
    if let Ok(state) = values::parse_hard_state(bytes) {
        assert_eq!(values::hard_state(&state), bytes);
    }
    if let Ok(number) = values::parse_open_segment(bytes) {
        assert_eq!(values::open_segment(number), bytes);
    }
    if let Ok(stored) = values::parse_message::<StoredMembership>("membership", bytes)
        && let Ok(membership) = values::parse_membership(stored)
    {
        let again = values::parse_membership(values::membership(&membership));
        assert_eq!(again.expect("what was written can be read"), membership);
    }
    if let Ok(stored) = values::parse_message::<StoredSnapshot>("snapshot", bytes) {
        let _ = values::parse_snapshot(&stored, Vec::new());
    }
    let _ = values::parse_founding(bytes);
    let _ = values::parse_message::<StoredRuns>("row", bytes);
    let _ = values::parse_message::<StoredSegment>("segment", bytes);
    let _ = values::parse_message::<StoredTombstone>("tombstone", bytes);
    if let Ok(live) = values::parse_live(bytes) {
        assert!(ranges::is_valid(&live));
        assert_eq!(values::parse_live(&values::live(&live)).expect("what was written can be read"), live);
    }
}

/// A file of the write-ahead log: whole, or cut where it is whole.
pub fn write_ahead_log(bytes: &[u8]) {
    judge_log(bytes);
}

/// A file of several blocks, of which a script says what is in it.
pub fn write_ahead_log_of(script: &[u8]) {
    let (log, tail) = wal_tail::scripted(script);
    let judged = judge_log(&log);
    if let Some(tail) = tail {
        assert_eq!(judged, tail);
    }
}

fn judge_log(bytes: &[u8]) -> wal_tail::Tail {
    let tail = wal_tail::tail_of(bytes);
    if let wal_tail::Tail::Torn(end) = tail {
        assert_eq!(wal_tail::tail_of(&bytes[..end as usize]), wal_tail::Tail::Whole);
    }
    tail
}

/// The data of a membership entry.
pub fn membership_change(bytes: &[u8]) {
    if let Some(change) = decode_change(bytes) {
        assert_eq!(decode_change(&encode_change(&change)).expect("what was written can be read"), change);
    }
}
