//! What is known of one Raft group: who led, who voted for whom, what was committed and what it led to.

use std::collections::BTreeMap;

use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};
use warren_raft::driver::GroupStatus;
use warren_raft::log_store::{LogStore, MemberRole, Membership};
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
    /// Highest index that a client knows to be applied.
    pub acknowledged: u64,
    /// Each node's member as last seen.
    seen: BTreeMap<usize, Seen>,
    membership: Membership,
}

#[derive(Default, Clone, Copy)]
struct Seen {
    life: u64,
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

    pub fn status(&mut self, disks: &Disks, node: usize, life: u64, status: &GroupStatus) -> Result<(), String> {
        if let Some(reason) = &status.stopped {
            return Err(format!("stopped on node {node}: {reason:?}"));
        }
        if status.role != Role::Follower {
            let me = disks[node].0;
            let other = *self.leaders.entry(status.term).or_insert(me);
            if other != me {
                return Err(format!("nodes {me} and {other} both lead term {}", status.term));
            }
        }
        let mut seen = self.seen.get(&node).copied().unwrap_or_default();
        if seen.life == life {
            let then = (seen.term, seen.commit, seen.applied);
            if status.term < seen.term || status.commit < seen.commit || status.applied < seen.applied {
                return Err(format!("node {node} fell behind itself: (term, commit, applied) was {then:?}"));
            }
        }
        let durable = disks[node].1.hard_state(status.group).unwrap_or_default();
        if status.term < durable.term {
            return Err(format!("node {node} is in term {}, its disk says {durable:?}", status.term));
        }
        if status.applied > status.commit {
            return Err(format!("node {node} applied {} of {} committed", status.applied, status.commit));
        }
        if status.commit > self.committed {
            self.committed = status.commit;
            self.membership = status.membership.clone();
            self.durable(status.group, disks, status.commit)?;
        }
        let until = status.commit.min(status.last_written);
        for index in seen.compared.max(status.snapshot_index) + 1..=until {
            let term = disks[node].1.term(status.group, index).map_err(|e| e.to_string())?;
            if let Some(term) = term {
                agree(&mut self.terms, index, term)
                    .map_err(|other| format!("node {node} holds {index} of term {term}, others of term {other}"))?;
            }
        }
        seen.compared = seen.compared.max(until);
        seen.life = life;
        (seen.term, seen.commit, seen.applied) = (status.term, status.commit, status.applied);
        self.seen.insert(node, seen);
        Ok(())
    }

    /// A committed entry is on the disks of a majority.
    pub fn durable(&self, group: GroupId, disks: &Disks, index: u64) -> Result<(), String> {
        let membership = &self.membership;
        if !membership.outgoing.is_empty() || index == 0 {
            return Ok(());
        }
        let voters = membership.members.iter().filter(|m| m.role == MemberRole::Voter);
        let (mut count, mut covered) = (0, 0);
        let mut terms = BTreeMap::<u64, usize>::new();
        for voter in voters {
            count += 1;
            let Some((_, disk)) = disks.iter().find(|(node, _)| *node == voter.node) else { continue };
            match disk.held(group, index) {
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
}
