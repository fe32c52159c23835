//! Changes of members and of leadership, as the leader makes them.

use raft::eraftpb::EntryType;
use raft::{ProgressState, StateRole};
use warren_proto::ids::{MemberUid, NodeId};

use super::group::Group;
use super::membership::{conf_change, encode_change};
use super::output::{ChangeError, Event, MemberChange};
use super::shared::Shared;
use crate::log_store::MemberRole;
use crate::machine::{Role, StateMachine};

/// A change in the log whose asker waits.
pub(crate) struct PendingChange {
    token: u64,
    index: u64,
    term: u64,
}

impl<M: StateMachine> Group<M> {
    /// Appends a change of members; its end is an [`Event::Changed`] with `token`.
    pub fn change_members(&mut self, token: u64, change: Vec<MemberChange>, shared: &mut Shared) {
        let outcome = self.try_change(change);
        match outcome {
            Ok((index, term)) => self.changes.push(PendingChange { token, index, term }),
            Err(error) => {
                shared.events.push(Event::Changed { group: self.id, token, outcome: Err(error) });
            }
        }
    }

    fn try_change(&mut self, mut change: Vec<MemberChange>) -> Result<(u64, u64), ChangeError> {
        if self.stop.is_some() {
            return Err(ChangeError::NoSuchGroup);
        }
        match self.role {
            Role::Follower => return Err(ChangeError::NotLeader(self.leader)),
            Role::Elected => return Err(ChangeError::NotPermitted),
            Role::Leader => {}
        }
        let raft = &self.raw.raft;
        let membership = &self.state.membership;
        if self.alone {
            return Err(ChangeError::NotPermitted);
        }
        if raft.has_pending_conf() || membership.is_joint() || raft.lead_transferee.is_some() || change.is_empty() {
            return Err(ChangeError::NotPermitted);
        }
        let index = self.last_index() + 1;
        for op in &mut change {
            match op {
                MemberChange::Add(member) => {
                    if let MemberRole::Promotable { target } = &mut member.role {
                        *target = index;
                    }
                }
                MemberChange::Remove(uid) | MemberChange::Promote(uid) => {
                    membership.member(*uid).ok_or(ChangeError::NoSuchMember)?;
                }
            }
        }
        membership.changed(&change, index).ok_or(ChangeError::LastVoter)?;
        self.append_change(&change).ok_or(ChangeError::NotPermitted)
    }

    fn append_change(&mut self, change: &[MemberChange]) -> Option<(u64, u64)> {
        let (index, term) = (self.last_index() + 1, self.raw.raft.term);
        self.raw.propose_conf_change(encode_change(change), conf_change(change)).ok()?;
        // Raft turns a change that it does not permit into an empty entry.
        let appended = self.raw.raft.raft_log.unstable_entries().last()?;
        (appended.index == index && appended.get_entry_type() == EntryType::EntryConfChangeV2).then_some((index, term))
    }

    /// The membership entry at `index` was applied.
    pub fn change_applied(&mut self, index: u64, term: u64, shared: &mut Shared) {
        let (group, joint) = (self.id, self.state.membership.is_joint());
        for change in self.changes.extract_if(.., |c| c.index <= index && !joint) {
            let ours = change.index < index || change.term == term;
            let outcome = if ours { Ok(()) } else { Err(ChangeError::Unknown) };
            shared.events.push(Event::Changed { group, token: change.token, outcome });
        }
        self.maybe_raise_version();
    }

    /// Leadership is gone with changes unapplied.
    pub fn changes_lost(&mut self, shared: &mut Shared) {
        let group = self.id;
        shared.events.extend(self.changes.drain(..).map(|c| Event::Changed {
            group,
            token: c.token,
            outcome: Err(ChangeError::Unknown),
        }));
    }

    /// Makes a learner that has caught up a voter. Looked at after append replies, snapshot installs and on ticks.
    pub fn maybe_promote(&mut self) {
        if self.role != Role::Leader || self.stop.is_some() {
            return;
        }
        let raft = &self.raw.raft;
        if raft.has_pending_conf() || self.state.membership.is_joint() || raft.lead_transferee.is_some() {
            return;
        }
        let version = self.appended_version.0;
        let ready = self.state.membership.members.iter().find(|m| {
            let MemberRole::Promotable { target } = m.role else { return false };
            let caught_up = raft.prs().get(m.uid.0).is_some_and(|p| p.matched >= target);
            let able = self.ranges.of(m.uid).is_some_and(|(min, max)| (min..=max).contains(&version));
            caught_up && able
        });
        if let Some(uid) = ready.map(|m| m.uid) {
            self.append_change(&[MemberChange::Promote(uid)]);
        }
    }

    /// Hands leadership to the voter on `node`.
    pub fn transfer_leader(&mut self, node: NodeId) -> Result<(), ChangeError> {
        if self.stop.is_some() {
            return Err(ChangeError::NoSuchGroup);
        }
        if self.raw.raft.state != StateRole::Leader {
            return Err(ChangeError::NotLeader(self.leader));
        }
        let uid = self.voter_on(node).ok_or(ChangeError::NoSuchMember)?;
        if uid != self.me {
            self.raw.transfer_leader(uid.0);
        }
        Ok(())
    }

    /// Hands leadership to the voter that has most of the log, on a node other than this one.
    pub fn step_down(&mut self) -> Result<(), ChangeError> {
        if !self.is_raft_leader() {
            return Err(ChangeError::NotLeader(self.leader));
        }
        let prs = self.raw.raft.prs();
        let best = self
            .state
            .membership
            .voters()
            .filter(|m| m.uid != self.me)
            .filter_map(|m| Some((prs.get(m.uid.0)?, m)))
            .filter(|(p, _)| p.recent_active && p.state == ProgressState::Replicate)
            .max_by_key(|(p, m)| (p.matched, m.uid))
            .map(|(_, m)| m.uid)
            .ok_or(ChangeError::NoSuchMember)?;
        self.raw.transfer_leader(best.0);
        Ok(())
    }

    fn voter_on(&self, node: NodeId) -> Option<MemberUid> {
        self.state.membership.voters().find(|m| m.node == node).map(|m| m.uid)
    }
}
