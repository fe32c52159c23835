//! Who belongs to a group: Warren's own encoding of membership changes, and what each makes of a membership.

use prost::Message as _;
use raft::eraftpb::{ConfChangeSingle, ConfChangeTransition, ConfChangeType, ConfChangeV2, ConfState};
use warren_proto::ids::{MemberUid, NodeId};
use warren_proto::peer::{
    RaftMember, RaftMemberOp, RaftMemberRole, RaftMembership, RaftMembershipChange, raft_member_op,
};

use super::output::MemberChange;
use crate::log_store::{Member, MemberRole, Membership};

impl Membership {
    /// The membership of a new group.
    pub fn founding(members: Vec<Member>) -> Self {
        Membership { members, ..Membership::default() }
    }

    /// The member with this uid.
    pub fn member(&self, uid: MemberUid) -> Option<&Member> {
        self.members.iter().find(|m| m.uid == uid)
    }

    /// The member that lives on this node.
    pub fn on_node(&self, node: NodeId) -> Option<&Member> {
        self.members.iter().find(|m| m.node == node)
    }

    /// The voters of the incoming, or only, half.
    pub fn voters(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|m| m.role == MemberRole::Voter)
    }

    /// Whether a joint change is in progress.
    pub fn is_joint(&self) -> bool {
        !self.outgoing.is_empty()
    }

    /// What `change`, committed at `index`, makes of this membership; `None` where it is not allowed, which every member
    /// decides alike and then ignores the entry.
    pub fn changed(&self, change: &[MemberChange], index: u64) -> Option<Membership> {
        let mut next = self.clone();
        next.index = index;
        if change.is_empty() {
            if !self.is_joint() {
                return None;
            }
            let (outgoing, learners) = (&self.outgoing, &self.learners_next);
            next.members
                .retain(|m| m.role == MemberRole::Voter || !outgoing.contains(&m.uid) || learners.contains(&m.uid));
            next.outgoing.clear();
            next.learners_next.clear();
            next.auto_leave = false;
            return Some(next);
        }
        if self.is_joint() {
            return None;
        }
        let joint = change.len() > 1;
        if joint {
            next.outgoing = self.voters().map(|m| m.uid).collect();
            next.auto_leave = true;
        }
        for op in change {
            next.apply_op(op, joint)?;
        }
        let has_voter = next.voters().next().is_some();
        has_voter.then_some(next)
    }

    fn apply_op(&mut self, op: &MemberChange, joint: bool) -> Option<()> {
        match *op {
            MemberChange::Add(member) => {
                let demoted = joint && member.role != MemberRole::Voter && self.outgoing.contains(&member.uid);
                match self.members.iter_mut().find(|m| m.uid == member.uid) {
                    Some(m) => *m = member,
                    None => self.members.push(member),
                }
                if demoted {
                    self.learners_next.push(member.uid);
                }
            }
            MemberChange::Remove(uid) => {
                let at = self.members.iter().position(|m| m.uid == uid)?;
                if joint && self.outgoing.contains(&uid) {
                    // Votes in the outgoing half until the change ends.
                    self.members[at].role = MemberRole::NonVoter;
                } else {
                    self.members.remove(at);
                }
            }
            MemberChange::Promote(uid) => {
                self.members.iter_mut().find(|m| m.uid == uid)?.role = MemberRole::Voter;
            }
        }
        Some(())
    }

    pub(crate) fn conf_state(&self) -> ConfState {
        let mut cs = ConfState::default();
        cs.set_voters(self.voters().map(|m| m.uid.0).collect());
        cs.set_learners(
            self.members
                .iter()
                .filter(|m| m.role != MemberRole::Voter && !self.outgoing.contains(&m.uid))
                .map(|m| m.uid.0)
                .collect(),
        );
        cs.set_voters_outgoing(self.outgoing.iter().map(|u| u.0).collect());
        cs.set_learners_next(self.learners_next.iter().map(|u| u.0).collect());
        cs.auto_leave = self.auto_leave;
        cs
    }
}

/// The change in Raft's terms.
pub(crate) fn conf_change(change: &[MemberChange]) -> ConfChangeV2 {
    let mut cc = ConfChangeV2::default();
    let changes: Vec<ConfChangeSingle> = change
        .iter()
        .map(|op| {
            let (uid, ty) = match op {
                MemberChange::Add(m) if m.role == MemberRole::Voter => (m.uid, ConfChangeType::AddNode),
                MemberChange::Add(m) => (m.uid, ConfChangeType::AddLearnerNode),
                MemberChange::Remove(uid) => (*uid, ConfChangeType::RemoveNode),
                MemberChange::Promote(uid) => (*uid, ConfChangeType::AddNode),
            };
            let mut single = ConfChangeSingle { node_id: uid.0, ..ConfChangeSingle::default() };
            single.set_change_type(ty);
            single
        })
        .collect();
    if changes.len() > 1 {
        cc.set_transition(ConfChangeTransition::Implicit);
    }
    cc.set_changes(changes.into());
    cc
}

/// The data of a membership entry.
pub(crate) fn encode_change(change: &[MemberChange]) -> Vec<u8> {
    let ops = change
        .iter()
        .map(|op| {
            let op = match op {
                MemberChange::Add(m) => raft_member_op::Op::Add(member_to_wire(m)),
                MemberChange::Remove(uid) => raft_member_op::Op::Remove(uid.0),
                MemberChange::Promote(uid) => raft_member_op::Op::Promote(uid.0),
            };
            RaftMemberOp { op: Some(op) }
        })
        .collect();
    RaftMembershipChange { ops }.encode_to_vec()
}

/// Reads a membership entry; `None` for bytes that are none.
pub(crate) fn decode_change(data: &[u8]) -> Option<Vec<MemberChange>> {
    let change = RaftMembershipChange::decode(data).ok()?;
    change
        .ops
        .iter()
        .map(|op| match op.op.as_ref()? {
            raft_member_op::Op::Add(m) => Some(MemberChange::Add(member_from_wire(m)?)),
            raft_member_op::Op::Remove(uid) => Some(MemberChange::Remove(MemberUid(*uid))),
            raft_member_op::Op::Promote(uid) => Some(MemberChange::Promote(MemberUid(*uid))),
        })
        .collect()
}

fn member_to_wire(m: &Member) -> RaftMember {
    let (role, target) = match m.role {
        MemberRole::Voter => (RaftMemberRole::RaftMemberVoter, 0),
        MemberRole::Promotable { target } => (RaftMemberRole::RaftMemberPromotable, target),
        MemberRole::NonVoter => (RaftMemberRole::RaftMemberNonVoter, 0),
    };
    RaftMember { uid: m.uid.0, node: m.node.0, role: role.into(), target }
}

fn member_from_wire(m: &RaftMember) -> Option<Member> {
    if m.uid == 0 {
        return None;
    }
    let role = match RaftMemberRole::try_from(m.role).ok()? {
        RaftMemberRole::RaftMemberVoter => MemberRole::Voter,
        RaftMemberRole::RaftMemberPromotable => MemberRole::Promotable { target: m.target },
        RaftMemberRole::RaftMemberNonVoter => MemberRole::NonVoter,
    };
    Some(Member { uid: MemberUid(m.uid), node: NodeId(m.node), role })
}

pub(crate) fn to_wire(m: &Membership) -> RaftMembership {
    RaftMembership {
        members: m.members.iter().map(member_to_wire).collect(),
        outgoing: m.outgoing.iter().map(|u| u.0).collect(),
        learners_next: m.learners_next.iter().map(|u| u.0).collect(),
        auto_leave: m.auto_leave,
        index: m.index,
    }
}

pub(crate) fn from_wire(m: &RaftMembership) -> Option<Membership> {
    Some(Membership {
        members: m.members.iter().map(member_from_wire).collect::<Option<_>>()?,
        outgoing: m.outgoing.iter().map(|u| MemberUid(*u)).collect(),
        learners_next: m.learners_next.iter().map(|u| MemberUid(*u)).collect(),
        auto_leave: m.auto_leave,
        index: m.index,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(uid: u64, role: MemberRole) -> Member {
        Member { uid: MemberUid(uid), node: NodeId(uid + 100), role }
    }

    fn three() -> Membership {
        Membership::founding((1..=3).map(|u| member(u, MemberRole::Voter)).collect())
    }

    #[test]
    fn a_change_reads_back_as_it_was_written() {
        let change = vec![
            MemberChange::Add(member(4, MemberRole::Promotable { target: 77 })),
            MemberChange::Remove(MemberUid(1)),
            MemberChange::Promote(MemberUid(9)),
        ];
        assert_eq!(decode_change(&encode_change(&change)), Some(change));
        assert_eq!(decode_change(&[]), Some(vec![]));
        assert_eq!(decode_change(&[0xff]), None);
    }

    #[test]
    fn a_replacement_is_joint_until_it_is_left() {
        let change = [MemberChange::Add(member(4, MemberRole::Voter)), MemberChange::Remove(MemberUid(1))];
        let joint = three().changed(&change, 9).expect("allowed");
        let cs = joint.conf_state();
        assert_eq!(cs.get_voters(), [2, 3, 4]);
        assert_eq!(cs.get_voters_outgoing(), [1, 2, 3]);
        assert!(cs.get_learners().is_empty() && cs.auto_leave);
        assert_eq!(joint.changed(&change, 10), None, "one change at a time");
        let after = joint.changed(&[], 10).expect("leaves");
        assert_eq!(after.members.iter().map(|m| m.uid.0).collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!after.is_joint());
    }

    #[test]
    fn the_last_voter_stays() {
        let one = Membership::founding(vec![member(1, MemberRole::Voter)]);
        assert_eq!(one.changed(&[MemberChange::Remove(MemberUid(1))], 5), None);
    }

    #[test]
    fn a_membership_survives_the_wire() {
        let mut m = three();
        m.members.push(member(4, MemberRole::Promotable { target: 5 }));
        m.outgoing = vec![MemberUid(1)];
        m.auto_leave = true;
        m.index = 12;
        assert_eq!(from_wire(&to_wire(&m)), Some(m));
    }
}
