//! What a group looks like from outside.

use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};

use super::Driver;
use super::output::StopReason;
use crate::log_store::{MemberRole, Membership};
use crate::machine::{Role, StateMachine};

/// A group's local member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GroupStatus {
    /// The group.
    pub group: GroupId,
    /// The local member.
    pub me: MemberUid,
    /// Its role.
    pub role: Role,
    /// Its term.
    pub term: u64,
    /// The leader's node, if known.
    pub leader: Option<NodeId>,
    /// Highest index known committed.
    pub commit: u64,
    /// Highest index applied.
    pub applied: u64,
    /// Last index of the log.
    pub last_index: u64,
    /// Highest index durable here.
    pub last_written: u64,
    /// Index of the newest snapshot.
    pub snapshot_index: u64,
    /// The effective machine version.
    pub version: MachineVersion,
    /// The versions that this binary supports: lowest and highest.
    pub supported: (MachineVersion, MachineVersion),
    /// The membership.
    pub membership: Membership,
    /// Whether it sleeps: its group has nothing to do.
    pub asleep: bool,
    /// The disk lost entries up to this index that the member had acknowledged: it neither votes nor stands.
    pub amnesia: Option<u64>,
    /// Why it is stopped, if it is.
    pub stopped: Option<StopReason>,
}

/// What the leader knows of another member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberStatus {
    /// The member.
    pub uid: MemberUid,
    /// Where it lives.
    pub node: NodeId,
    /// Its part.
    pub role: MemberRole,
    /// Highest index it is known to have.
    pub matched: u64,
    /// Whether it answered lately.
    pub active: bool,
    /// Versions it supports, if it said so in this term.
    pub supported: Option<(u16, u16)>,
}

impl<M: StateMachine> Driver<M> {
    /// The groups here.
    pub fn groups(&self) -> impl Iterator<Item = GroupId> + '_ {
        self.groups.iter().flatten().map(|g| g.id)
    }

    /// A group's status.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        let group = self.groups.get(*self.index.get(&group)?)?.as_ref()?;
        let log = group.raw.store();
        let supported = group.state.supported();
        Some(GroupStatus {
            group: group.id,
            me: group.me,
            role: group.role,
            term: group.raw.raft.term,
            leader: group.leader,
            commit: group.raw.raft.raft_log.committed,
            applied: group.state.applied,
            last_index: log.last(),
            last_written: log.written(),
            snapshot_index: group.snapshot_index(),
            version: group.state.version,
            supported: (*supported.start(), *supported.end()),
            membership: group.state.membership.clone(),
            asleep: group.sleep.asleep,
            amnesia: group.amnesia,
            stopped: group.stop.clone(),
        })
    }

    /// What a leader knows of its group's members; empty elsewhere.
    pub fn members(&self, group: GroupId) -> Vec<MemberStatus> {
        let group = self.index.get(&group).and_then(|slot| self.groups.get(*slot)?.as_ref());
        let Some(group) = group.filter(|g| g.is_raft_leader()) else { return Vec::new() };
        let raft = &group.raw.raft;
        group
            .state
            .membership
            .members
            .iter()
            .map(|m| {
                let progress = raft.prs().get(m.uid.0);
                let mine = m.uid == group.me;
                MemberStatus {
                    uid: m.uid,
                    node: m.node,
                    role: m.role,
                    matched: progress.map_or(0, |p| p.matched),
                    active: mine || progress.is_some_and(|p| p.recent_active),
                    supported: if mine {
                        let own = group.state.supported();
                        Some((own.start().0, own.end().0))
                    } else {
                        group.ranges.of(m.uid)
                    },
                }
            })
            .collect()
    }

    /// Reads a machine. For tests and the simulation.
    pub fn machine(&self, group: GroupId) -> Option<&M> {
        let group = self.groups.get(*self.index.get(&group)?)?.as_ref()?;
        Some(&group.state.machine)
    }
}
