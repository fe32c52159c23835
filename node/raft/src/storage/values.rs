//! Values of the three column families: a version byte, then what it says. A reader refuses versions it does not know.

use std::ops::RangeInclusive;

use bytes::{Buf, BufMut, Bytes};
use prost::Message;
use warren_proto::ids::{MachineVersion, MemberUid, NodeId};
use warren_proto::peer::{StoredGroup, StoredMember, StoredMembership, StoredRole, StoredSnapshot};

use super::ranges::{self, Ranges};
use crate::log_store::{EntryKind, HardState, Member, MemberRole, Membership, SnapshotMeta, StoreError};

/// Version byte of every value that this binary writes.
pub(super) const VERSION: u8 = 1;
/// Version of the layout as a whole.
pub(super) const LAYOUT: u8 = 1;
/// Bytes before an entry's data: version and kind.
pub(super) const ENTRY_HEADER: usize = 2;

/// Stored bytes that make no sense. Who opened the store hears the folder and the repair too.
pub(super) fn corrupt(what: impl std::fmt::Display) -> StoreError {
    StoreError::Corrupt(what.to_string())
}

fn check_version<'a>(what: &str, value: &'a [u8]) -> Result<&'a [u8], StoreError> {
    match value.split_first() {
        Some((&VERSION, rest)) => Ok(rest),
        Some((version, _)) => Err(corrupt(format_args!("{what} has unknown version {version}"))),
        None => Err(corrupt(format_args!("{what} is empty"))),
    }
}

fn kind_byte(kind: EntryKind) -> u8 {
    match kind {
        EntryKind::Commands => 0,
        EntryKind::Membership => 1,
        EntryKind::Version => 2,
    }
}

/// Appends an entry's value to `out`.
pub(super) fn put_entry(kind: EntryKind, data: &[u8], out: &mut Vec<u8>) {
    out.put_u8(VERSION);
    out.put_u8(kind_byte(kind));
    out.put_slice(data);
}

/// Kind and data of an entry's value.
pub(super) fn entry(value: Bytes) -> Result<(EntryKind, Bytes), StoreError> {
    let rest = check_version("entry", &value)?;
    let kind = match rest.first() {
        Some(0) => EntryKind::Commands,
        Some(1) => EntryKind::Membership,
        Some(2) => EntryKind::Version,
        Some(kind) => return Err(corrupt(format_args!("entry has unknown kind {kind}"))),
        None => return Err(corrupt("entry is truncated")),
    };
    Ok((kind, value.slice(ENTRY_HEADER..)))
}

/// Version byte and a protobuf message.
pub(super) fn message(message: &impl Message) -> Vec<u8> {
    let mut out = Vec::with_capacity(1 + message.encoded_len());
    out.put_u8(VERSION);
    // A vector grows as needed: encoding cannot fail.
    let _ = message.encode(&mut out);
    out
}

/// The other way.
pub(super) fn parse_message<M: Message + Default>(what: &str, value: &[u8]) -> Result<M, StoreError> {
    M::decode(check_version(what, value)?).map_err(|e| corrupt(format_args!("{what} cannot be decoded: {e}")))
}

/// Version byte and the open segment's number, u32 little-endian.
pub(super) fn open_segment(number: u32) -> [u8; 5] {
    let mut out = [VERSION; 5];
    out[1..].copy_from_slice(&number.to_le_bytes());
    out
}

pub(super) fn parse_open_segment(value: &[u8]) -> Result<u32, StoreError> {
    let rest = check_version("open segment", value)?;
    let number = rest.try_into().map_err(|_| corrupt("the open segment's number has the wrong length"))?;
    Ok(u32::from_le_bytes(number))
}

/// Version byte, term, vote, commit, each u64 little-endian.
pub(super) fn hard_state(state: &HardState) -> [u8; 25] {
    let mut out = [VERSION; 25];
    let mut rest = &mut out[1..];
    rest.put_u64_le(state.term);
    rest.put_u64_le(state.vote);
    rest.put_u64_le(state.commit);
    out
}

pub(super) fn parse_hard_state(value: &[u8]) -> Result<HardState, StoreError> {
    let mut rest = check_version("hard state", value)?;
    if rest.len() != 24 {
        return Err(corrupt("hard state has the wrong length"));
    }
    Ok(HardState { term: rest.get_u64_le(), vote: rest.get_u64_le(), commit: rest.get_u64_le() })
}

pub(super) fn membership(m: &Membership) -> StoredMembership {
    let member = |m: &Member| {
        let (role, target) = match m.role {
            MemberRole::Voter => (StoredRole::Voter, 0),
            MemberRole::Promotable { target } => (StoredRole::Promotable, target),
            MemberRole::NonVoter => (StoredRole::NonVoter, 0),
        };
        StoredMember { uid: m.uid.0, node: m.node.0, role: role.into(), target }
    };
    StoredMembership {
        members: m.members.iter().map(member).collect(),
        outgoing: m.outgoing.iter().map(|u| u.0).collect(),
        learners_next: m.learners_next.iter().map(|u| u.0).collect(),
        auto_leave: m.auto_leave,
        index: m.index,
    }
}

pub(super) fn parse_membership(m: StoredMembership) -> Result<Membership, StoreError> {
    let member = |m: StoredMember| {
        let role = match m.role() {
            StoredRole::Voter => MemberRole::Voter,
            StoredRole::Promotable => MemberRole::Promotable { target: m.target },
            StoredRole::NonVoter => MemberRole::NonVoter,
            StoredRole::Unknown => {
                return Err(corrupt(format_args!("member {} has an unknown role", m.uid)));
            }
        };
        Ok(Member { uid: MemberUid(m.uid), node: NodeId(m.node), role })
    };
    Ok(Membership {
        members: m.members.into_iter().map(member).collect::<Result<_, _>>()?,
        outgoing: m.outgoing.into_iter().map(MemberUid).collect(),
        learners_next: m.learners_next.into_iter().map(MemberUid).collect(),
        auto_leave: m.auto_leave,
        index: m.index,
    })
}

/// What a group was created with.
pub(super) struct Founding {
    pub me: MemberUid,
    pub init: Bytes,
    pub membership: Membership,
    pub version: MachineVersion,
}

pub(super) fn parse_founding(value: &[u8]) -> Result<Founding, StoreError> {
    let stored: StoredGroup = parse_message("member record", value)?;
    Ok(Founding {
        me: MemberUid(stored.me),
        init: stored.init,
        membership: parse_membership(stored.founding.unwrap_or_default())?,
        version: version(stored.founding_version)?,
    })
}

fn version(stored: u32) -> Result<MachineVersion, StoreError> {
    u16::try_from(stored).map(MachineVersion).map_err(|_| corrupt(format_args!("machine version {stored}")))
}

/// A snapshot's description as it was stored; its live ranges are elsewhere.
pub(super) fn parse_snapshot(stored: &StoredSnapshot, live: Ranges) -> Result<SnapshotMeta, StoreError> {
    Ok(SnapshotMeta {
        index: stored.index,
        term: stored.term,
        membership: parse_membership(stored.membership.clone().unwrap_or_default())?,
        version: version(stored.version)?,
        live,
        state_len: stored.state_len,
        state_crc: stored.state_crc,
    })
}

/// Live ranges: for each, the distance of its start from the end before it and its length less one, as varints.
pub(super) fn live(set: &[RangeInclusive<u64>]) -> Vec<u8> {
    let mut out = Vec::with_capacity(set.len() * 3);
    let mut last = 0;
    for range in set {
        prost::encoding::encode_varint(range.start() - last, &mut out);
        prost::encoding::encode_varint(range.end() - range.start(), &mut out);
        last = *range.end();
    }
    out
}

pub(super) fn parse_live(bytes: &[u8]) -> Result<Ranges, StoreError> {
    let mut rest = bytes;
    let mut set = Ranges::new();
    let mut last = 0u64;
    let bad = || corrupt("live ranges cannot be decoded");
    while rest.has_remaining() {
        let gap = prost::encoding::decode_varint(&mut rest).map_err(|_| bad())?;
        let length = prost::encoding::decode_varint(&mut rest).map_err(|_| bad())?;
        let start = last.checked_add(gap).ok_or_else(bad)?;
        last = start.checked_add(length).ok_or_else(bad)?;
        set.push(start..=last);
    }
    if ranges::is_valid(&set) { Ok(set) } else { Err(bad()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn live_ranges_come_back() {
        for set in [vec![], vec![1..=1], vec![3..=9, 11..=11, 1000..=u64::MAX]] {
            assert_eq!(parse_live(&live(&set)).unwrap(), set);
        }
        assert!(parse_live(&[0x80]).is_err());
        assert!(parse_live(&[5, 1, 0, 0]).is_err());
    }

    #[test]
    fn unknown_versions_are_refused() {
        let mut bytes = hard_state(&HardState { term: 1, vote: 2, commit: 3 });
        assert_eq!(parse_hard_state(&bytes).unwrap(), HardState { term: 1, vote: 2, commit: 3 });
        bytes[0] = 2;
        let error = parse_hard_state(&bytes).unwrap_err().to_string();
        assert!(error.contains("unknown version 2"), "{error}");
        assert!(entry(Bytes::from_static(&[2, 0])).is_err());
        assert!(entry(Bytes::from_static(&[1, 9])).is_err());
        assert!(entry(Bytes::from_static(&[1])).is_err());
        assert_eq!(entry(Bytes::from_static(&[1, 0, 7])).unwrap(), (EntryKind::Commands, Bytes::from_static(&[7])));
    }
}
