//! Raft's messages and entries in Warren's own types, and back.

use bytes::Bytes;
use raft::eraftpb::{self, EntryType, MessageType};
use warren_proto::ids::GroupId;
use warren_proto::peer::{RaftEntry, RaftEntryKind, RaftMessage, RaftMessageKind};

use super::output::Lane;
use crate::log_store::{Entry, EntryKind};

/// In a Raft entry's context: marks data that is a machine version. Membership entries carry Warren's own encoding in
/// the context instead.
const VERSION_MARK: &[u8] = b"v";

pub(crate) fn entry_from_raft(e: &eraftpb::Entry) -> Entry {
    let (kind, data) = match e.get_entry_type() {
        EntryType::EntryNormal if e.context.is_empty() => (EntryKind::Commands, e.data.clone()),
        EntryType::EntryNormal => (EntryKind::Version, e.data.clone()),
        EntryType::EntryConfChange | EntryType::EntryConfChangeV2 => (EntryKind::Membership, e.context.clone()),
    };
    Entry { index: e.index, term: e.term, kind, data }
}

pub(crate) fn entry_to_raft(e: Entry) -> eraftpb::Entry {
    let mut out = eraftpb::Entry { index: e.index, term: e.term, ..eraftpb::Entry::default() };
    match e.kind {
        EntryKind::Commands => out.data = e.data,
        EntryKind::Version => {
            out.data = e.data;
            out.context = Bytes::from_static(VERSION_MARK);
        }
        EntryKind::Membership => {
            out.set_entry_type(EntryType::EntryConfChangeV2);
            out.context = e.data;
        }
    }
    out
}

pub(crate) fn entry_to_wire(e: Entry) -> RaftEntry {
    let kind = match e.kind {
        EntryKind::Commands => RaftEntryKind::RaftEntryCommands,
        EntryKind::Membership => RaftEntryKind::RaftEntryMembership,
        EntryKind::Version => RaftEntryKind::RaftEntryVersion,
    };
    RaftEntry { index: e.index, term: e.term, kind: kind.into(), data: e.data }
}

pub(crate) fn entry_from_wire(e: RaftEntry) -> Option<Entry> {
    let kind = match RaftEntryKind::try_from(e.kind).ok()? {
        RaftEntryKind::RaftEntryCommands => EntryKind::Commands,
        RaftEntryKind::RaftEntryMembership => EntryKind::Membership,
        RaftEntryKind::RaftEntryVersion => EntryKind::Version,
    };
    Some(Entry { index: e.index, term: e.term, kind, data: e.data })
}

fn kind_to_wire(t: MessageType) -> Option<RaftMessageKind> {
    Some(match t {
        MessageType::MsgAppend => RaftMessageKind::RaftAppend,
        MessageType::MsgAppendResponse => RaftMessageKind::RaftAppendResponse,
        MessageType::MsgRequestVote => RaftMessageKind::RaftVote,
        MessageType::MsgRequestVoteResponse => RaftMessageKind::RaftVoteResponse,
        MessageType::MsgRequestPreVote => RaftMessageKind::RaftPreVote,
        MessageType::MsgRequestPreVoteResponse => RaftMessageKind::RaftPreVoteResponse,
        MessageType::MsgHeartbeat => RaftMessageKind::RaftHeartbeat,
        MessageType::MsgHeartbeatResponse => RaftMessageKind::RaftHeartbeatResponse,
        MessageType::MsgTimeoutNow => RaftMessageKind::RaftTimeoutNow,
        MessageType::MsgReadIndex => RaftMessageKind::RaftReadIndex,
        MessageType::MsgReadIndexResp => RaftMessageKind::RaftReadIndexResponse,
        // A snapshot goes by transfer; local messages and forwarded proposals never leave.
        MessageType::MsgSnapshot
        | MessageType::MsgHup
        | MessageType::MsgBeat
        | MessageType::MsgPropose
        | MessageType::MsgUnreachable
        | MessageType::MsgSnapStatus
        | MessageType::MsgCheckQuorum
        | MessageType::MsgTransferLeader => return None,
    })
}

fn kind_from_wire(k: RaftMessageKind) -> Option<MessageType> {
    Some(match k {
        RaftMessageKind::RaftAppend => MessageType::MsgAppend,
        RaftMessageKind::RaftAppendResponse => MessageType::MsgAppendResponse,
        RaftMessageKind::RaftVote => MessageType::MsgRequestVote,
        RaftMessageKind::RaftVoteResponse => MessageType::MsgRequestVoteResponse,
        RaftMessageKind::RaftPreVote => MessageType::MsgRequestPreVote,
        RaftMessageKind::RaftPreVoteResponse => MessageType::MsgRequestPreVoteResponse,
        RaftMessageKind::RaftHeartbeat => MessageType::MsgHeartbeat,
        RaftMessageKind::RaftHeartbeatResponse => MessageType::MsgHeartbeatResponse,
        RaftMessageKind::RaftTimeoutNow => MessageType::MsgTimeoutNow,
        RaftMessageKind::RaftReadIndex => MessageType::MsgReadIndex,
        RaftMessageKind::RaftReadIndexResponse => MessageType::MsgReadIndexResp,
        RaftMessageKind::RaftSnapshot
        | RaftMessageKind::RaftHibernate
        | RaftMessageKind::RaftHibernateResponse
        | RaftMessageKind::RaftWake
        | RaftMessageKind::RaftUnspecified => return None,
    })
}

/// The lane of a message.
pub(crate) fn lane(kind: RaftMessageKind) -> Lane {
    match kind {
        // Behind the entries that the sleepers must have.
        RaftMessageKind::RaftAppend | RaftMessageKind::RaftHibernate => Lane::Append,
        RaftMessageKind::RaftSnapshot => Lane::Bulk,
        RaftMessageKind::RaftUnspecified
        | RaftMessageKind::RaftAppendResponse
        | RaftMessageKind::RaftVote
        | RaftMessageKind::RaftVoteResponse
        | RaftMessageKind::RaftPreVote
        | RaftMessageKind::RaftPreVoteResponse
        | RaftMessageKind::RaftHeartbeat
        | RaftMessageKind::RaftHeartbeatResponse
        | RaftMessageKind::RaftTimeoutNow
        | RaftMessageKind::RaftReadIndex
        | RaftMessageKind::RaftReadIndexResponse
        | RaftMessageKind::RaftHibernateResponse
        | RaftMessageKind::RaftWake => Lane::Control,
    }
}

/// A message as it leaves; `None` for one that is for this member alone.
pub(crate) fn message_to_wire(group: GroupId, mut m: eraftpb::Message) -> Option<RaftMessage> {
    let kind = kind_to_wire(m.get_msg_type())?;
    let entries = m.take_entries().iter().map(|e| entry_to_wire(entry_from_raft(e))).collect();
    Some(RaftMessage {
        group: group.0,
        from_uid: m.from,
        to_uid: m.to,
        kind: kind.into(),
        term: m.term,
        log_term: m.log_term,
        index: m.index,
        commit: m.commit,
        commit_term: m.commit_term,
        reject: m.reject,
        reject_hint: m.reject_hint,
        context: m.take_context(),
        entries,
        supported: None,
        snapshot: None,
        effective_version: 0,
    })
}

/// A message as Raft takes it; `None` where it is none that a member may send.
pub(crate) fn message_from_wire(m: RaftMessage) -> Option<eraftpb::Message> {
    let kind = kind_from_wire(RaftMessageKind::try_from(m.kind).ok()?)?;
    // Raft takes a message without a term for one of its own; only a forwarded read request has none.
    if (m.term == 0) != (kind == MessageType::MsgReadIndex) || m.from_uid == 0 {
        return None;
    }
    let mut out = eraftpb::Message::default();
    out.set_msg_type(kind);
    out.from = m.from_uid;
    out.to = m.to_uid;
    out.term = m.term;
    out.log_term = m.log_term;
    out.index = m.index;
    out.commit = m.commit;
    out.commit_term = m.commit_term;
    out.reject = m.reject;
    out.reject_hint = m.reject_hint;
    out.context = m.context;
    let mut entries = Vec::with_capacity(m.entries.len());
    for e in m.entries {
        entries.push(entry_to_raft(entry_from_wire(e)?));
    }
    match kind {
        // Raft trusts these shapes; what comes from outside is checked here.
        MessageType::MsgAppend => {
            let first = m.index.saturating_add(1);
            let consecutive = entries.iter().zip(first..).all(|(e, i)| e.index == i);
            if !consecutive {
                return None;
            }
        }
        MessageType::MsgReadIndex | MessageType::MsgReadIndexResp if entries.len() != 1 => return None,
        _ => {}
    }
    out.set_entries(entries.into());
    Some(out)
}
