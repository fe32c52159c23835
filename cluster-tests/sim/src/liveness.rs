//! How soon every group serves again when the faults are over.

use std::collections::BTreeSet;

use warren_proto::ids::GroupId;

use crate::plan::Plan;
use crate::run::Unrest;
use crate::world::{TICK_US, World};

/// Elections that may come to nothing one after the other: split votes, and candidates that lack what is committed.
const ELECTIONS: u64 = 2;
/// Ticks after which the driver looks again at sleepers under a leader that is gone.
const RECHECK_TICKS: u64 = 50;
/// Messages one after the other from a candidacy to a leader's first committed entry.
const STEPS: u64 = 6;
/// How much slower a slow disk is; what it began before the faults were over takes its time.
pub(crate) const SLOW_DISK: u64 = 10;

impl Plan {
    /// Time within which every group that has a majority must serve: a dead leader is noticed, sleepers are woken at the
    /// latest when verdicts are compared again, a few elections of the longest timeout come to nothing, and one
    /// succeeds, with its messages and the disk's syncs.
    pub fn serves_within_us(&self) -> u64 {
        let noticed = self.down_after_ms * 1000 + RECHECK_TICKS * TICK_US;
        let election = 2 * self.driver.election_ticks as u64 * TICK_US;
        let append = self.driver.max_append_bytes / self.network.bytes_per_us.max(1);
        let message = self.network.least_us + self.network.jitter_us + append;
        let sync = 2 * (self.disk.least_us + self.disk.jitter_us);
        noticed + (ELECTIONS + 1) * (election + STEPS * (message + sync)) + SLOW_DISK * sync
    }
}

/// Which groups served since the faults were over.
#[derive(Debug, Default)]
pub(crate) struct Service {
    began_us: u64,
    seen: BTreeSet<GroupId>,
    /// The longest time that any group took.
    pub slowest_us: u64,
}

impl World {
    /// Every group must serve within the bound from now.
    pub(crate) fn expect_service(&mut self) {
        self.service.began_us = self.now_us;
        self.service.seen.clear();
    }

    /// Notes which groups serve; it is wrong if one takes too long. Answers one that does not yet.
    pub(crate) fn look_for_service(&mut self) -> Option<Unrest> {
        let groups: Vec<GroupId> = self.plan.groups.iter().map(|g| g.group).collect();
        let took = self.now_us - self.service.began_us;
        let mut waits = None;
        for group in groups {
            if self.service.seen.contains(&group) {
                continue;
            }
            if self.serves(group) {
                self.service.seen.insert(group);
                self.service.slowest_us = self.service.slowest_us.max(took);
                continue;
            }
            let bound = self.plan.serves_within_us();
            if took > bound {
                let statuses = self.statuses(group);
                self.wrong(|| format!("group {group} does not serve within {} ms: {statuses:#?}", bound / 1000));
            }
            waits = Some(Unrest::Service(group));
        }
        waits
    }

    /// Whether a leader has committed in its term, and a majority of voters that are up follow it.
    fn serves(&self, group: GroupId) -> bool {
        let Some((leader, status)) = self.leader(group) else { return false };
        let id = self.nodes[leader].id;
        let follows = |node: usize| {
            let member = self.status(node, group)?;
            let here = member.stopped.is_none() && member.term == status.term && member.leader == Some(id);
            here.then_some(member.me)
        };
        let following: Vec<_> = (0..self.nodes.len()).filter_map(follows).collect();
        let outgoing = &status.membership.outgoing;
        let voters: Vec<_> = status.membership.voters().map(|m| m.uid).collect();
        [&voters, outgoing].into_iter().all(|half| {
            let count = half.iter().filter(|uid| following.contains(uid)).count();
            half.is_empty() || count * 2 > half.len()
        })
    }
}
