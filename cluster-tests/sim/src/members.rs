//! Groups whose members change: what an operator asks for, and what the nodes and the leader do about it.

use bytes::Bytes;
use warren_proto::ids::{GroupId, MachineVersion};
use warren_raft::driver::GroupSpec;

use crate::member::Member;
use crate::plan::Defect;
use crate::world::{Happening, World};

/// Members that the metadata group keeps.
const LEAST_METADATA: usize = 3;
/// Time after which each node has looked around.
const NOTICED_US: u64 = 500_000;
/// Longest pause after that until a node without its disk is back.
const DEAD_US: u64 = 2_000_000;
/// Pause between two looks at what is to change.
const PAUSE_US: u64 = 400_000;

impl World {
    /// A queue's group is to get a member more, or one fewer, or another one.
    pub(crate) fn wish_members(&mut self) {
        let group = self.faults.index(self.plan.groups.len());
        let group = self.plan.groups[group].group;
        if group == GroupId::METADATA || self.directory.is_open(group) || self.impaired(group, None) > 0 {
            return;
        }
        let here = self.directory.nodes(group);
        // A group may be of a machine version that an old process does not know.
        let free = |node: &usize| !here.contains(node) && !self.is_old(*node);
        let free: Vec<usize> = (0..self.nodes.len()).filter(free).collect();
        let joins = !free.is_empty() && (here.len() < 3 || self.faults.chance(600));
        let leaves = here.len() > 2 && (!joins || self.faults.chance(400));
        if joins {
            let node = free[self.faults.index(free.len())];
            self.next_member += 1;
            self.directory.join(group, node, self.next_member);
        }
        if leaves {
            let node = here[self.faults.index(here.len())];
            self.directory.leave(group, node);
        }
    }

    /// The metadata group is to get a member more or one fewer; the tree's clients on a node without one go elsewhere.
    pub(crate) fn wish_metadata_members(&mut self) {
        let group = GroupId::METADATA;
        if self.directory.is_open(group) || self.impaired(group, None) > 0 {
            return;
        }
        let here = self.directory.nodes(group);
        let free: Vec<usize> = (0..self.nodes.len()).filter(|node| !here.contains(node)).collect();
        if !free.is_empty() && (here.len() <= LEAST_METADATA || self.faults.chance(500)) {
            let node = self.faults.pick(&free);
            self.next_member += 1;
            self.directory.join(group, node, self.next_member);
        } else if here.len() > LEAST_METADATA {
            let node = self.faults.pick(&here);
            self.directory.leave(group, node);
        }
    }

    /// A node dies and loses its disk, if every group can bear that: this node, or the next one that may.
    pub(crate) fn wipe_some(&mut self, from: usize) {
        let count = self.nodes.len();
        let Some(node) = (from..from + count).map(|n| n % count).find(|n| self.may_lose_disk(*n)) else { return };
        self.journal.note(self.now_us, &[24, node as u64], || format!("node {node} loses its disk"));
        self.wipes += 1;
        if self.plan.groups.iter().any(|g| g.queue.idles) {
            // A queue with idle times has a group that sleeps. Sleepers whose leader lost its disk wake when its node is
            // noticed to be down, and not before.
            self.crash(node);
            let noticed = self.plan.down_after_ms * 1000 + NOTICED_US;
            let dead = noticed + self.faults.below(DEAD_US);
            self.away_until_us[node] = self.now_us + dead;
            self.after(dead, Happening::Restart { node });
        } else {
            self.kill(node);
        }
        for group in self.plan.groups.iter().map(|g| g.group).collect::<Vec<_>>() {
            let old = self.directory.uid(group, node);
            if self.plan.defect != Defect::OldSelf {
                self.next_member += 1;
                self.directory.lose(group, node, self.next_member);
            }
            if let Some(old) = old {
                self.judge.lock().lost(old);
            }
        }
        self.nodes[node].disk.wipe();
    }

    /// A group bears the loss while fewer than half of its members are lost or lack what their disks forgot. The one after a replacement has to wait
    /// until all others know of that: who does not may still need the lost member's vote.
    fn may_lose_disk(&self, node: usize) -> bool {
        self.plan.groups.iter().map(|g| g.group).all(|group| {
            let here = self.directory.nodes(group);
            if !here.contains(&node) {
                return true;
            }
            let newest = self.judge.lock().newest_membership(group);
            let knows = |other: &usize| self.nodes[*other].disk.membership(group) == newest;
            let settled = self.directory.has_lost(group) || here.iter().filter(|n| **n != node).all(knows);
            let impaired = self.impaired(group, Some(node));
            self.directory.may_lose(group, node, impaired) && settled
        })
    }

    /// How many members, but for one node's, lack something that their disks have forgotten.
    fn impaired(&self, group: GroupId, but: Option<usize>) -> usize {
        let lacks = |node: &usize| {
            let uid = self.directory.uid(group, *node);
            Some(*node) != but && uid.is_some_and(|uid| self.judge.lock().lacks(*node, group, uid))
        };
        self.directory.nodes(group).iter().filter(|node| lacks(node)).count()
    }

    /// Brings every group closer to what is wanted, and looks again later.
    pub(crate) fn tend_members(&mut self) {
        self.after(PAUSE_US, Happening::Tend);
        for group in self.plan.groups.iter().map(|g| g.group).collect::<Vec<_>>() {
            let leader = self.leader(group);
            if let Some((_, status)) = &leader {
                self.directory.settle(group, &status.membership);
            }
            // A member that was counted in before its node had it may be the one that is missing for a leader.
            for node in 0..self.nodes.len() {
                self.seat_member(node, group);
            }
            let Some((leader, status)) = leader else { continue };
            let change = self.directory.wanted(group, &status.membership);
            let forgotten = self.plan.defect == Defect::LostForEver && self.directory.has_lost(group);
            if change.is_empty() || forgotten {
                continue;
            }
            self.journal
                .note(self.now_us, &[22, group.0, leader as u64], || format!("group {group} is to change: {change:?}"));
            if let Some(driver) = self.nodes[leader].driver() {
                // Refused while another change is under way.
                driver.change_members(group, 0, change);
            }
            self.settle(leader);
        }
    }

    /// A node has the member that the directory says, and no other.
    fn seat_member(&mut self, node: usize, group: GroupId) {
        let wanted = self.directory.uid(group, node);
        let present = self.status(node, group).map(|s| s.me);
        if wanted == present || !self.nodes[node].is_up() {
            return;
        }
        self.journal.note(self.now_us, &[23, group.0, node as u64], || {
            format!("node {node} has member {present:?} of group {group}, wanted is {wanted:?}")
        });
        if present.is_some()
            && let Some(driver) = self.nodes[node].driver()
        {
            driver.remove_group(group);
        }
        if let Some(me) = wanted
            && let Some(desk) = self.desk(node, me)
        {
            let Some(plan) = self.plan.groups.iter().find(|g| g.group == group) else { return };
            // Who joins the metadata group is told of its founders: there is nobody else to say who its members are.
            let members = match group {
                GroupId::METADATA => plan.members.clone(),
                _ => self.directory.members(group, node),
            };
            let spec = GroupSpec {
                group,
                me,
                members,
                version: MachineVersion(plan.version),
                init: Bytes::new(),
                machine: Member::new(group, &self.plan.queue(group), desk),
                campaign: false,
            };
            if let Some(driver) = self.nodes[node].driver()
                && let Err(error) = driver.create_group(spec)
            {
                self.wrong(|| format!("node {node} cannot create its member of group {group}: {error}"));
            }
        }
        self.settle(node);
    }
}
