//! A group whose majority is lost for good, brought back by one member alone. Nothing that this member does not have is in
//! the group afterwards, and everything in its log counts as committed.

use raft::eraftpb::ConfChangeV2;
use warren_proto::ids::{MemberUid, NodeId};

use super::group::Group;
use super::membership::conf_change;
use super::output::{ChangeError, Event, MemberChange};
use super::shared::Shared;
use crate::log_store::{GroupRecord, HardState, Member, MemberRole, Membership, Write};
use crate::machine::{Role, StateMachine};

/// The membership of a group whose log ends at `last_index` and of which only `uid` is left.
fn only(uid: MemberUid, node: NodeId, last_index: u64) -> Membership {
    let members = vec![Member { uid, node, role: MemberRole::Voter }];
    Membership { members, index: last_index, ..Membership::default() }
}

/// What makes a member that is not running the only one of its group; nothing where it is.
pub fn make_alone(record: &GroupRecord, node: NodeId) -> Vec<Write> {
    let next = only(record.me, node, record.last_index);
    if record.membership.members == next.members && !record.membership.is_joint() {
        return Vec::new();
    }
    let hard = HardState { commit: record.hard_state.commit.min(record.last_index), ..record.hard_state };
    vec![Write::Membership(record.group, next), Write::HardState(record.group, hard)]
}

impl<M: StateMachine> Group<M> {
    /// What made this member the only one is not in the log: whoever joined and replayed it would count the members that
    /// are lost. So the leader takes a snapshot first, which has the new membership, and gives nobody the log before it.
    pub fn settle_alone(&mut self, shared: &mut Shared) {
        if !self.alone || self.role != Role::Leader {
            return;
        }
        if self.snapshot_index() > self.state.membership.index {
            let applied = self.state.applied;
            self.raw.mut_store().trim(applied, 0);
            self.alone = false;
        } else {
            self.maybe_snapshot(true, shared);
        }
    }

    /// Makes this member the only one of its group, and has it lead. Refused where the group has a leader.
    pub fn make_alone(&mut self, shared: &mut Shared) -> Result<(), ChangeError> {
        if self.stop.is_some() {
            return Err(ChangeError::NoSuchGroup);
        }
        let led = self.raw.raft.leader_id != raft::INVALID_ID;
        if led || self.is_raft_leader() || self.installing.is_some() {
            return Err(ChangeError::NotPermitted);
        }
        let next = only(self.me, shared.config.node, self.last_index());
        let others = self.state.membership.members.iter().filter(|m| m.uid != self.me);
        let mut change: Vec<MemberChange> = others.map(|m| MemberChange::Remove(m.uid)).collect();
        if !change.is_empty() {
            change.extend(next.members.iter().copied().map(MemberChange::Add));
            // An empty change leaves a joint configuration, one that is under way as well as this one.
            let mut steps = vec![conf_change(&change), ConfChangeV2::default()];
            if self.state.membership.is_joint() {
                steps.insert(0, ConfChangeV2::default());
            }
            for step in steps {
                if self.raw.apply_conf_change(&step).is_err() {
                    self.fault("the membership cannot be replaced".to_owned(), shared);
                    return Err(ChangeError::NoSuchGroup);
                }
            }
        }
        tracing::warn!(group = self.id.0, last_index = next.index, "this member is made the only one of its group");
        self.alone = true;
        self.state.membership = next.clone();
        // There is nobody left from whom it could have what its disk lost.
        if self.amnesia.take().is_some() {
            self.remember_commit(shared);
        }
        self.receiving = None;
        shared.write(self.id, Write::Membership(self.id, next.clone()));
        shared.events.push(Event::Membership { group: self.id, membership: next });
        self.wake(shared);
        self.campaign(shared);
        Ok(())
    }
}
