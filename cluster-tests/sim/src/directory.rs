//! Who belongs to which group, as a metadata store would know it, and members that are to come or to go. Members' ids
//! are never used twice.

use std::collections::BTreeMap;

use warren_proto::ids::{GroupId, MemberUid};
use warren_raft::driver::MemberChange;
use warren_raft::log_store::{Member, MemberRole, Membership};

use crate::plan::{GroupPlan, member_uid, node_id};

/// What is to become of a member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wish {
    Stay,
    Join,
    Leave,
}

#[derive(Debug, Clone)]
struct Seat {
    uid: MemberUid,
    wish: Wish,
    /// Former members of the node that went with its disk, and that the group may still count.
    lost: Vec<MemberUid>,
    /// The membership in which it was first seen as a voter: older ones do not know it.
    since: u64,
}

/// See the module's head.
#[derive(Default)]
pub(crate) struct Directory {
    seats: BTreeMap<(GroupId, usize), Seat>,
    changed: u64,
}

impl Directory {
    /// The founding members of all groups.
    pub fn new(groups: &[GroupPlan], nodes: usize) -> Self {
        let mut seats = BTreeMap::new();
        for group in groups {
            for node in 0..nodes {
                if let Some(member) = group.members.iter().find(|m| m.node == node_id(node)) {
                    let seat = Seat { uid: member.uid, wish: Wish::Stay, lost: Vec::new(), since: 0 };
                    seats.insert((group.group, node), seat);
                }
            }
        }
        Directory { seats, changed: 0 }
    }

    /// The member that a node should have.
    pub fn uid(&self, group: GroupId, node: usize) -> Option<MemberUid> {
        self.seats.get(&(group, node)).map(|seat| seat.uid)
    }

    /// Nodes that have, or will have or had until now, a member of the group.
    pub fn nodes(&self, group: GroupId) -> Vec<usize> {
        self.of(group).map(|(node, _)| node).collect()
    }

    /// The group's members, as whoever joins on a node is told: who takes the place of a lost member is one of them, and
    /// knows that it has no vote yet.
    pub fn members(&self, group: GroupId, joining: usize) -> Vec<Member> {
        let here = self.of(group).filter(|(_, seat)| seat.wish != Wish::Join || !seat.lost.is_empty());
        let member = |(node, seat): (usize, &Seat)| {
            let new = node == joining && seat.wish == Wish::Join;
            let role = if new { MemberRole::Promotable { target: u64::MAX } } else { MemberRole::Voter };
            Member { uid: seat.uid, node: node_id(node), role }
        };
        here.map(member).collect()
    }

    /// Whether the node may lose its disk: fewer than half of the group's members are lost at once or impaired otherwise,
    /// and no operator changes them.
    pub fn may_lose(&self, group: GroupId, node: usize, impaired: usize) -> bool {
        let seats = self.of(group).count();
        let lost = self.of(group).filter(|(other, seat)| *other != node && !seat.lost.is_empty()).count();
        !self.has_plans(group) && lost + impaired < seats.saturating_sub(1) / 2
    }

    /// Whether an operator changes the members.
    pub fn has_plans(&self, group: GroupId) -> bool {
        let planned = |seat: &Seat| seat.wish == Wish::Leave || (seat.wish == Wish::Join && seat.lost.is_empty());
        self.of(group).any(|(_, seat)| planned(seat))
    }

    /// Whether members are lost and not replaced.
    pub fn has_lost(&self, group: GroupId) -> bool {
        self.of(group).any(|(_, seat)| !seat.lost.is_empty())
    }

    /// A node's member is gone with its disk: another one takes its place.
    pub fn lose(&mut self, group: GroupId, node: usize, number: u64) {
        let Some(seat) = self.seats.get_mut(&(group, node)) else { return };
        let lost = std::mem::replace(&mut seat.uid, member_uid(group, number));
        seat.lost.push(lost);
        (seat.wish, seat.since) = (Wish::Join, u64::MAX);
    }

    /// How many changes were finished.
    pub fn changed(&self) -> u64 {
        self.changed
    }

    /// Whether anything is to change.
    pub fn is_open(&self, group: GroupId) -> bool {
        self.of(group).any(|(_, seat)| seat.wish != Wish::Stay)
    }

    fn of(&self, group: GroupId) -> impl Iterator<Item = (usize, &Seat)> {
        self.seats.range((group, 0)..=(group, usize::MAX)).map(|((_, node), seat)| (*node, seat))
    }

    /// A new member is to join on a node that has none.
    pub fn join(&mut self, group: GroupId, node: usize, number: u64) {
        let seat = Seat { uid: member_uid(group, number), wish: Wish::Join, lost: Vec::new(), since: u64::MAX };
        self.seats.insert((group, node), seat);
    }

    /// A node's member is to leave.
    pub fn leave(&mut self, group: GroupId, node: usize) {
        if let Some(seat) = self.seats.get_mut(&(group, node)) {
            seat.wish = Wish::Leave;
        }
    }

    /// What is fulfilled in a committed membership is done with.
    pub fn settle(&mut self, group: GroupId, membership: &Membership) {
        if !membership.outgoing.is_empty() {
            return;
        }
        let mut gone = Vec::new();
        for ((_, node), seat) in self.seats.range_mut((group, 0)..=(group, usize::MAX)) {
            let member = membership.members.iter().find(|m| m.uid == seat.uid);
            match seat.wish {
                Wish::Join if member.is_some_and(|m| m.role == MemberRole::Voter) => {
                    (seat.wish, seat.since) = (Wish::Stay, membership.index);
                    seat.lost.clear();
                    self.changed += 1;
                }
                Wish::Leave if member.is_none() && membership.index > seat.since => gone.push(*node),
                Wish::Stay | Wish::Join | Wish::Leave => {}
            }
        }
        for node in gone {
            self.seats.remove(&(group, node));
            self.changed += 1;
        }
    }

    /// The change that leads from a membership to what is wanted.
    pub fn wanted(&self, group: GroupId, membership: &Membership) -> Vec<MemberChange> {
        let known = |uid| membership.members.iter().any(|m| m.uid == uid);
        if let Some((node, seat)) = self.of(group).find(|(_, seat)| !seat.lost.is_empty() && !known(seat.uid)) {
            return replacement(group, node, seat, membership);
        }
        let joins: Vec<_> = self.of(group).filter(|(_, seat)| seat.wish == Wish::Join && !known(seat.uid)).collect();
        let leaves: Vec<_> = self.of(group).filter(|(_, seat)| seat.wish == Wish::Leave && known(seat.uid)).collect();
        // A replacement is one joint change, in which the new member votes at once.
        let joint = !leaves.is_empty();
        let role = if joint { MemberRole::Voter } else { MemberRole::Promotable { target: 0 } };
        let joins = joins
            .into_iter()
            .map(|(node, seat)| MemberChange::Add(Member { uid: seat.uid, node: node_id(node), role }));
        joins.chain(leaves.into_iter().map(|(_, seat)| MemberChange::Remove(seat.uid))).collect()
    }
}

/// A lost member is replaced by one that votes when it has caught up: in one change in a queue's group; the metadata group
/// removes the old one first.
fn replacement(group: GroupId, node: usize, seat: &Seat, membership: &Membership) -> Vec<MemberChange> {
    let old = seat.lost.iter().filter(|lost| membership.member(**lost).is_some());
    let mut change: Vec<_> = old.map(|lost| MemberChange::Remove(*lost)).collect();
    if group != GroupId::METADATA || change.is_empty() {
        let role = MemberRole::Promotable { target: 0 };
        change.push(MemberChange::Add(Member { uid: seat.uid, node: node_id(node), role }));
    }
    change
}
