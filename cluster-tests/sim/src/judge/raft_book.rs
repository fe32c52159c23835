//! What is known of one Raft group: who led, who voted for whom, what was committed and what it led to.

use std::collections::{BTreeMap, VecDeque};

use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};
use warren_raft::driver::GroupStatus;
use warren_raft::log_store::{LogStore, Member, MemberRole, Membership};
use warren_raft::machine::Role;

use super::Disks;
use crate::disk::Held;
use crate::random::mix;

/// The book of one group.
#[derive(Default)]
pub(super) struct RaftBook {
    /// By term.
    leaders: BTreeMap<u64, NodeId>,
    /// By member and term.
    votes: BTreeMap<(MemberUid, u64), MemberUid>,
    /// Term of each committed entry, by index.
    terms: Vec<Option<u64>>,
    /// Digest of each applied entry with commands, by index.
    entries: Vec<Option<u64>>,
    /// Digest of the state at an index.
    states: BTreeMap<u64, (NodeId, u64)>,
    /// Highest index applied anywhere.
    applied: u64,
    /// Highest index known committed anywhere.
    pub committed: u64,
    /// Up to here commits were found durable.
    durable: u64,
    /// Highest index that a client knows to be applied.
    pub acknowledged: u64,
    /// Each node's member as last seen.
    seen: BTreeMap<usize, Seen>,
    /// The newest memberships, ascending.
    memberships: VecDeque<Membership>,
}

/// Memberships kept: a leader commits with the one before a change, and is seen with the one after it.
const MEMBERSHIPS: usize = 2;

#[derive(Default, Clone, Copy)]
struct Seen {
    life: u64,
    member: MemberUid,
    term: u64,
    commit: u64,
    applied: u64,
    /// Up to here the disk was compared with what is committed.
    compared: u64,
}

/// Notes a value at an index, or compares it with the one that is there.
fn agree(known: &mut Vec<Option<u64>>, index: u64, value: u64) -> Result<(), u64> {
    let at = index as usize;
    if known.len() <= at {
        known.resize(at + 1, None);
    }
    match known[at] {
        Some(other) if other != value => Err(other),
        _ => {
            known[at] = Some(value);
            Ok(())
        }
    }
}

impl RaftBook {
    pub fn applying(&mut self, node: NodeId, index: u64, term: u64, commands: u64) -> (bool, Result<(), String>) {
        let first = index > self.applied;
        self.applied = self.applied.max(index);
        let result = agree(&mut self.terms, index, term)
            .map_err(|other| format!("node {node} applies {index} of term {term}, others of term {other}"))
            .and_then(|()| {
                agree(&mut self.entries, index, mix(&[term, commands]))
                    .map_err(|_| format!("node {node} applies another entry {index}"))
            });
        (first, result)
    }

    pub fn state(&mut self, node: NodeId, index: u64, digest: u64) -> Result<(), String> {
        let (other, known) = *self.states.entry(index).or_insert((node, digest));
        if known == digest {
            Ok(())
        } else {
            Err(format!("at {index} node {node} has state {digest:016x}, node {other} had {known:016x}"))
        }
    }

    /// See [`Judge::newest_membership`](super::Judge::newest_membership).
    pub fn newest_membership(&self) -> Option<u64> {
        self.memberships.back().filter(|m| m.outgoing.is_empty()).map(|m| m.index)
    }

    /// A vote, asked for or given, is the only one of its member in its term.
    pub fn vote_sent(&mut self, message: &RaftMessage) -> Result<(), String> {
        let candidate = match message.kind() {
            RaftMessageKind::RaftVote => message.from_uid,
            RaftMessageKind::RaftVoteResponse if !message.reject => message.to_uid,
            _ => return Ok(()),
        };
        let member = MemberUid(message.from_uid);
        let other = *self.votes.entry((member, message.term)).or_insert(MemberUid(candidate));
        if other.0 == candidate {
            Ok(())
        } else {
            Err(format!("member {member} votes for {candidate} in term {}, and did for {other}", message.term))
        }
    }

    pub fn status(&mut self, node: usize, life: u64, me: NodeId, status: &GroupStatus) -> Result<(), String> {
        if let Some(reason) = &status.stopped {
            return Err(format!("stopped on node {node}: {reason:?}"));
        }
        if status.role != Role::Follower {
            let other = *self.leaders.entry(status.term).or_insert(me);
            if other != me {
                return Err(format!("nodes {me} and {other} both lead term {}", status.term));
            }
        }
        // A leader of the newest term has whatever was committed before.
        let newest = self.leaders.keys().next_back() == Some(&status.term);
        if status.role != Role::Follower && newest && status.last_index < self.committed {
            return Err(format!(
                "node {node} leads term {} with a log up to {}, {} is committed",
                status.term, status.last_index, self.committed
            ));
        }
        let mut seen = self.seen.get(&node).copied().filter(|seen| seen.member == status.me).unwrap_or_default();
        if seen.life == life {
            let then = (seen.term, seen.commit, seen.applied);
            if status.term < seen.term || status.commit < seen.commit || status.applied < seen.applied {
                return Err(format!("node {node} fell behind itself: (term, commit, applied) was {then:?}"));
            }
        }
        if status.applied > status.commit {
            return Err(format!("node {node} applied {} of {} committed", status.applied, status.commit));
        }
        if status.commit > self.committed {
            self.committed = status.commit;
        }
        if self.memberships.back().is_none_or(|newest| newest.index < status.membership.index) {
            self.memberships.push_back(status.membership.clone());
            while self.memberships.len() > MEMBERSHIPS {
                self.memberships.pop_front();
            }
        }
        (seen.life, seen.member) = (life, status.me);
        (seen.term, seen.commit, seen.applied) = (status.term, status.commit, status.applied);
        self.seen.insert(node, seen);
        Ok(())
    }

    /// What a member says is what the disks say.
    pub fn compare_disks(&mut self, disks: &Disks, node: usize, status: &GroupStatus) -> Result<(), String> {
        let disk = &disks[node].1;
        let durable = disk.hard_state(status.group, status.me);
        if status.term < durable.term {
            return Err(format!("node {node} is in term {}, its disk says {durable:?}", status.term));
        }
        if status.commit > self.durable {
            self.durable = status.commit;
            self.durable(status.group, disks, status.commit)?;
        }
        let compared = self.seen.get(&node).map_or(0, |seen| seen.compared);
        let until = status.commit.min(status.last_written).min(disk.written(status.group, status.me));
        for index in compared.max(status.snapshot_index) + 1..=until {
            let term = disk.term(status.group, index).map_err(|e| e.to_string())?;
            if let Some(term) = term {
                agree(&mut self.terms, index, term)
                    .map_err(|other| format!("node {node} holds {index} of term {term}, others of term {other}"))?;
            }
        }
        if let Some(seen) = self.seen.get_mut(&node) {
            seen.compared = compared.max(until);
        }
        Ok(())
    }

    /// What a client was told is still on the disks of a majority. Where members have left with what they had, only the
    /// moment of the commit tells.
    pub fn still_durable(&self, group: GroupId, disks: &Disks, index: u64) -> Result<(), String> {
        if self.memberships.len() > 1 { Ok(()) } else { self.durable(group, disks, index) }
    }

    /// Whether in each of the newest memberships, and in both halves of a change, this is true of a majority without one
    /// member.
    pub fn without(&self, member: MemberUid, is_true: &dyn Fn(NodeId, MemberUid) -> bool) -> bool {
        let majority = |half: &mut dyn Iterator<Item = &Member>| {
            let (mut count, mut yes) = (0, 0);
            for voter in half {
                count += 1;
                yes += usize::from(voter.uid != member && is_true(voter.node, voter.uid));
            }
            count == 0 || yes * 2 > count
        };
        !self.memberships.is_empty()
            && self.memberships.iter().all(|membership| {
                let mut outgoing = membership.members.iter().filter(|m| membership.outgoing.contains(&m.uid));
                majority(&mut membership.voters()) && majority(&mut outgoing)
            })
    }

    /// A committed entry is on the disks of a majority.
    fn durable(&self, group: GroupId, disks: &Disks, index: u64) -> Result<(), String> {
        if index == 0 {
            return Ok(());
        }
        let mut result = Ok(());
        for membership in self.memberships.iter().rev() {
            result = durable_on(membership, group, disks, index);
            if result.is_ok() {
                return Ok(());
            }
        }
        result
    }
}

/// An entry is on the disks of a majority of these members; during a change, of both halves.
fn durable_on(membership: &Membership, group: GroupId, disks: &Disks, index: u64) -> Result<(), String> {
    let incoming = membership.members.iter().filter(|m| m.role == MemberRole::Voter);
    let outgoing = membership.members.iter().filter(|m| membership.outgoing.contains(&m.uid));
    majority_has(incoming, group, disks, index)?;
    if membership.outgoing.is_empty() { Ok(()) } else { majority_has(outgoing, group, disks, index) }
}

fn majority_has<'a>(
    voters: impl Iterator<Item = &'a Member>,
    group: GroupId,
    disks: &Disks,
    index: u64,
) -> Result<(), String> {
    let (mut count, mut covered) = (0, 0);
    let mut terms = BTreeMap::<u64, usize>::new();
    for voter in voters {
        count += 1;
        let Some((_, disk)) = disks.iter().find(|(node, _)| *node == voter.node) else { continue };
        match disk.held(group, voter.uid, index) {
            Held::Covered => covered += 1,
            Held::Entry(term) => *terms.entry(term).or_default() += 1,
            Held::Missing => {}
        }
    }
    let most = covered + terms.values().max().copied().unwrap_or(0);
    if most * 2 > count {
        Ok(())
    } else {
        Err(format!("{index} is committed and durable on {most} of {count} members only"))
    }
}
