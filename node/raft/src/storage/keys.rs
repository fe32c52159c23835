//! Keys of the three column families. All numbers are big-endian, so that keys sort as the numbers do.

use warren_proto::ids::GroupId;

/// Column family of entries.
pub(super) const LOG: &str = "log";
/// Column family of everything small.
pub(super) const META: &str = "meta";
/// Column family of chunked snapshots.
pub(super) const SNAP: &str = "snap";

/// `meta`: the layout's version.
pub(super) const FORMAT: [u8; 1] = [0x00];

/// `meta`: number of the open segment. Numbers are never used again, so that what is left of a dropped segment can never be
/// taken for a part of another.
pub(super) const OPEN_SEGMENT: [u8; 1] = [0x01];

/// Kinds of `meta` keys that are followed by a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum GroupKey {
    Member = 0x10,
    HardState = 0x11,
    Membership = 0x12,
    Snapshot = 0x13,
    Tombstone = 0x1f,
}

const RUNS: u8 = 0x02;
const SEGMENT: u8 = 0x03;

/// `meta`: one record of a group.
pub(super) fn group(kind: GroupKey, group: GroupId) -> [u8; 9] {
    let mut key = [kind as u8; 9];
    key[1..].copy_from_slice(&group.0.to_be_bytes());
    key
}

/// First of all keys of members, and the first key above them.
pub(super) const ALL_MEMBERS: ([u8; 1], [u8; 1]) = ([GroupKey::Member as u8], [GroupKey::Member as u8 + 1]);

/// The group of a `meta` key of that kind.
pub(super) fn group_of(kind: GroupKey, key: &[u8]) -> Option<GroupId> {
    let rest: [u8; 8] = key.strip_prefix(&[kind as u8])?.try_into().ok()?;
    Some(GroupId(u64::from_be_bytes(rest)))
}

/// `meta`: what a closed segment holds of a group.
pub(super) fn runs(segment: u32, group: GroupId) -> [u8; 13] {
    let mut key = [RUNS; 13];
    key[1..5].copy_from_slice(&segment.to_be_bytes());
    key[5..].copy_from_slice(&group.0.to_be_bytes());
    key
}

/// First of all keys of [`runs`], and the first key above them.
pub(super) const ALL_RUNS: ([u8; 1], [u8; 1]) = ([RUNS], [RUNS + 1]);

/// Bounds of the keys of [`runs`] of one segment.
pub(super) fn runs_of_segment(segment: u32) -> (Vec<u8>, Vec<u8>) {
    (segment_prefix(RUNS, segment), segment_prefix(RUNS, segment.saturating_add(1)))
}

/// Segment and group of a key of [`runs`].
pub(super) fn parse_runs(key: &[u8]) -> Option<(u32, GroupId)> {
    let rest: &[u8; 12] = key.strip_prefix(&[RUNS])?.try_into().ok()?;
    let (segment, group) = rest.split_at(4);
    Some((u32::from_be_bytes(segment.try_into().ok()?), GroupId(u64::from_be_bytes(group.try_into().ok()?))))
}

/// `meta`: a closed segment.
pub(super) fn segment(segment: u32) -> Vec<u8> {
    segment_prefix(SEGMENT, segment)
}

/// First of all keys of [`segment`], and the first key above them.
pub(super) const ALL_SEGMENTS: ([u8; 1], [u8; 1]) = ([SEGMENT], [SEGMENT + 1]);

/// The segment of such a key.
pub(super) fn parse_segment(key: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(key.strip_prefix(&[SEGMENT])?.try_into().ok()?))
}

fn segment_prefix(kind: u8, segment: u32) -> Vec<u8> {
    let mut key = vec![kind];
    key.extend_from_slice(&segment.to_be_bytes());
    key
}

/// Length of an entry's key where it was appended; a staged entry's is eight longer.
pub(super) const ENTRY_KEY: usize = 4 + 8 + 8 + 8;

/// An entry's key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct EntryKey {
    pub segment: u32,
    pub group: GroupId,
    pub index: u64,
    pub term: u64,
    /// Index of the snapshot it was staged for; 0 = appended.
    pub staged: u64,
}

impl EntryKey {
    /// Writes the key into `buf` and answers its used part.
    pub(super) fn encode<'a>(&self, buf: &'a mut [u8; ENTRY_KEY + 8]) -> &'a [u8] {
        buf[..4].copy_from_slice(&self.segment.to_be_bytes());
        buf[4..12].copy_from_slice(&self.group.0.to_be_bytes());
        buf[12..20].copy_from_slice(&self.index.to_be_bytes());
        buf[20..28].copy_from_slice(&self.term.to_be_bytes());
        if self.staged == 0 {
            return &buf[..ENTRY_KEY];
        }
        buf[28..].copy_from_slice(&self.staged.to_be_bytes());
        &buf[..]
    }

    pub(super) fn parse(key: &[u8]) -> Option<EntryKey> {
        let number = |at: usize| -> Option<u64> { Some(u64::from_be_bytes(key.get(at..at + 8)?.try_into().ok()?)) };
        let staged = match key.len() {
            ENTRY_KEY => 0,
            n if n == ENTRY_KEY + 8 => Some(number(28)?).filter(|staged| *staged > 0)?,
            _ => return None,
        };
        Some(EntryKey {
            segment: u32::from_be_bytes(key.get(..4)?.try_into().ok()?),
            group: GroupId(number(4)?),
            index: number(12)?,
            term: number(20)?,
            staged,
        })
    }
}

/// First key of a segment in `log`: the end of the one before it.
pub(super) fn segment_start(segment: u32) -> [u8; 4] {
    segment.to_be_bytes()
}

/// Where entries of a group from an index on begin in a segment.
pub(super) fn entries_from(segment: u32, group: GroupId, index: u64) -> Vec<u8> {
    let mut key = Vec::with_capacity(20);
    key.extend_from_slice(&segment.to_be_bytes());
    key.extend_from_slice(&group.0.to_be_bytes());
    key.extend_from_slice(&index.to_be_bytes());
    key
}

/// What a chunk in `snap` belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Chunk {
    State = b's' as isize,
    Live = b'l' as isize,
}

/// `snap`: one chunk of a group's snapshot.
pub(super) fn chunk(group: GroupId, snapshot: u64, kind: Chunk, number: u32) -> [u8; 21] {
    let mut key = [kind as u8; 21];
    key[..8].copy_from_slice(&group.0.to_be_bytes());
    key[8..16].copy_from_slice(&snapshot.to_be_bytes());
    key[17..].copy_from_slice(&number.to_be_bytes());
    key
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_key_gives_back_its_parts_and_sorts_by_segment_group_index_term() {
        let key =
            |segment, group, index, term, staged| EntryKey { segment, group: GroupId(group), index, term, staged };
        let keys = [key(1, 9, 9, 9, 0), key(2, 1, 9, 9, 0), key(2, 2, 1, 9, 0), key(2, 2, 2, 1, 0), key(2, 2, 2, 1, 7)];
        let mut last = Vec::new();
        for key in keys {
            let mut buf = [0; ENTRY_KEY + 8];
            let bytes = key.encode(&mut buf).to_vec();
            assert_eq!(EntryKey::parse(&bytes), Some(key));
            assert!(last < bytes);
            last = bytes;
        }
        assert_eq!(EntryKey::parse(&last[..30]), None);
        last[28..].fill(0);
        assert_eq!(EntryKey::parse(&last), None);
    }

    #[test]
    fn meta_keys_give_back_their_parts() {
        assert_eq!(parse_runs(&runs(7, GroupId(8))), Some((7, GroupId(8))));
        assert_eq!(parse_segment(&segment(7)), Some(7));
        assert_eq!(group_of(GroupKey::Member, &group(GroupKey::Member, GroupId(3))), Some(GroupId(3)));
        assert_eq!(group_of(GroupKey::Member, &group(GroupKey::Snapshot, GroupId(3))), None);
    }
}
