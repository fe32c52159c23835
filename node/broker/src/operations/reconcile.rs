//! What the leaders of quorum queues do about their queues' records and members without being asked (spec:
//! quorum-queues.md, section 10.1).
//!
//! The group knows who belongs to it; a queue's record says who should. They differ for as long as a change is under way,
//! and for longer where whoever made it died half way. A leader that sees the same difference several times in a row
//! ends it. Where continuous reconciliation is on, leaders also add members to queues that have too few.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use warren_metastore::records::{Node, Queue, QueueKind, Stored};
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_raft::driver::GroupStatus;
use warren_raft::log_store::{MemberRole, Membership};
use warren_raft::machine::Role;

use super::members::{AT_ONCE, MemberError, Order, Part, REMOVE_TIME};
use crate::node::Broker;
use crate::policy;

/// A member that the group has and the record has not is removed when it was seen so many times in a row.
const STRANGER: u32 = 2;
/// A member that the record has and the group has not goes when it was seen so many times in a row: it may be about to be
/// added, which takes half a minute at most.
const GHOST: u32 = 3;
/// Records that one look repairs, at most: after the death of a node that led ten thousand, the rest waits for the next.
const REPAIRS: usize = 2_000;
/// Queues that one round gives a member.
const ROUND: usize = 256;

/// Continuous membership reconciliation (`quorum_queue.continuous_membership_reconciliation`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Reconciliation {
    /// Whether it is on.
    pub enabled: bool,
    /// Members that every quorum queue is to have; a queue's own `x-quorum-target-group-size` and its policies'
    /// `target-group-size` count where they are higher.
    pub target_size: Option<usize>,
    /// Whether members on nodes that left the cluster are removed.
    pub auto_remove: bool,
    /// Time between two rounds.
    pub interval: Duration,
    /// Time from what may have changed something, such as a new node or queue, to the next round.
    pub trigger_interval: Duration,
}

impl Default for Reconciliation {
    fn default() -> Self {
        Reconciliation {
            enabled: false,
            target_size: None,
            auto_remove: false,
            interval: Duration::from_secs(3600),
            trigger_interval: Duration::from_secs(10),
        }
    }
}

/// Differences between groups and records, and how many looks in a row saw them.
#[derive(Debug, Default)]
pub(crate) struct Doubts(HashMap<(GroupId, MemberUid), u32>);

impl Doubts {
    /// Counts what a look found of a group; answers what was found often enough in a row.
    fn lasting(&mut self, before: &Doubts, group: GroupId, found: Differences) -> Differences {
        let mut often = |uid: MemberUid, limit: u32| {
            let times = before.0.get(&(group, uid)).copied().unwrap_or_default() + 1;
            self.0.insert((group, uid), times);
            times >= limit
        };
        Differences {
            strangers: found.strangers.into_iter().filter(|uid| often(*uid, STRANGER)).collect(),
            ghosts: found.ghosts.into_iter().filter(|uid| often(*uid, GHOST)).collect(),
        }
    }
}

/// What a leader finds wrong with its queue's record.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Differences {
    /// In the group, not in the record.
    strangers: Vec<MemberUid>,
    /// In the record, not in the group.
    ghosts: Vec<MemberUid>,
}

/// What differs and is nobody's work under way: where the record has another member of a node than the group, that node
/// replaces the one that it lost. `is_away`: the node belongs to the cluster and is not there to say what it has.
fn differences(record: &Queue, membership: &Membership, is_away: impl Fn(NodeId) -> bool) -> Differences {
    let in_group = |uid| membership.member(uid).is_some();
    let in_record = |uid| record.members.iter().any(|m| m.uid == uid);
    let replaced = |node| {
        let recorded = record.members.iter().find(|m| m.node == node);
        recorded.is_some_and(|m| !in_group(m.uid)) && membership.on_node(node).is_some()
    };
    let strangers = membership.members.iter().filter(|m| !in_record(m.uid) && !replaced(m.node));
    let ghosts = record.members.iter().filter(|m| !in_group(m.uid) && !replaced(m.node) && !is_away(m.node));
    Differences { strangers: strangers.map(|m| m.uid).collect(), ghosts: ghosts.map(|m| m.uid).collect() }
}

/// Runs until the broker is gone.
pub(crate) async fn run(broker: Weak<Broker>) {
    let Some((settings, may_grow)) =
        broker.upgrade().map(|b| (b.config.reconciliation.clone(), Arc::clone(&b.may_grow)))
    else {
        return;
    };
    if !settings.enabled {
        return;
    }
    let mut pause = settings.trigger_interval;
    loop {
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            () = may_grow.notified() => tokio::time::sleep(settings.trigger_interval).await,
        }
        let Some(broker) = broker.upgrade() else { return };
        pause = if broker.reconcile_members(&settings).await { settings.trigger_interval } else { settings.interval };
    }
}

impl Broker {
    fn is_away(&self, node: NodeId) -> bool {
        !self.links.is_up(node) && self.metadata.nodes().iter().any(|n| n.id == node)
    }

    fn led_here(&self) -> impl Iterator<Item = (Arc<Stored<Queue>>, GroupStatus)> {
        let queues = self.metadata.queues().into_iter().filter(|q| q.kind == QueueKind::Quorum);
        queues.filter_map(|queue| {
            let status = self.queues.status(queue.group)?;
            (status.role == Role::Leader && !status.membership.is_joint()).then_some((queue, status))
        })
    }

    /// Compares the records of queues that are led here with their groups; answers what is left to be seen again.
    pub(crate) async fn repair_records(&self, before: Doubts) -> Doubts {
        let mut now = Doubts::default();
        let mut work = Vec::new();
        for (queue, status) in self.led_here() {
            let found = differences(&queue, &status.membership, |node| self.is_away(node));
            let lasting = now.lasting(&before, queue.group, found);
            if lasting != Differences::default() || queue.leader != Some(self.me) {
                work.push((queue, lasting.strangers, lasting.ghosts));
            }
        }
        // What this node knows of the metadata may be old: whoever cannot be sure repairs nothing.
        let doubtful = work.iter().any(|(_, strangers, ghosts)| !strangers.is_empty() || !ghosts.is_empty());
        if doubtful && self.metadata.fence(REMOVE_TIME).await.is_err() {
            return now;
        }
        stream::iter(work.into_iter().take(REPAIRS))
            .for_each_concurrent(AT_ONCE, |(queue, strangers, ghosts)| async move {
                if let Err(error) = self.repair_record(&queue, &strangers, &ghosts).await {
                    tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "the queue's record is not repaired yet");
                }
            })
            .await;
        now
    }

    async fn repair_record(
        &self,
        queue: &Queue,
        strangers: &[MemberUid],
        ghosts: &[MemberUid],
    ) -> Result<(), MemberError> {
        let Some(target) = self.metadata.queue_target(&queue.vhost, &queue.name) else { return Ok(()) };
        if target.group != queue.group {
            return Ok(());
        }
        let listed = target.members();
        for uid in strangers.iter().filter(|uid| !listed.iter().any(|m| m.uid == **uid)) {
            tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %uid, "the queue's record lacks a member: it is removed from the group");
            self.order(&target, Order::Remove { uid: uid.0 }, REMOVE_TIME).await?;
        }
        if !ghosts.is_empty() {
            tracing::warn!(queue = %queue.name, vhost = %queue.vhost, ?ghosts, "the group lacks members of the queue's record: they are removed from it");
        }
        self.write_record(&target, |record| {
            // Whoever does not lead any more knows an old membership, and is not the leader.
            let Some(status) = self.queues.status(queue.group).filter(|s| s.role == Role::Leader) else { return };
            record.members.retain(|m| !ghosts.contains(&m.uid) || status.membership.member(m.uid).is_some());
            record.leader = Some(self.me);
        })
        .await
    }

    /// One round: every queue that is led here and has too few members gets one more, where there is a node for it.
    /// Answers whether another round may find more to do.
    async fn reconcile_members(&self, settings: &Reconciliation) -> bool {
        let nodes = self.metadata.nodes();
        let mut loads = self.members_by_node();
        let (mut tried, mut changed) = (0, false);
        for (queue, status) in self.led_here().collect::<Vec<_>>() {
            let in_record = |uid| queue.members.iter().any(|m| m.uid == uid);
            let settled = status.membership.members.iter().all(|m| m.role == MemberRole::Voter && in_record(m.uid))
                && queue.members.len() == status.membership.members.len();
            if !settled {
                continue;
            }
            if tried >= ROUND {
                return true;
            }
            let gone = queue.members.iter().find(|m| !nodes.iter().any(|n| n.id == m.node));
            let outcome = if let Some(gone) = gone.filter(|_| settings.auto_remove && queue.members.len() > 1) {
                self.remove_for_good(&queue, gone.uid).await
            } else if let Some(node) = self.node_to_grow_to(&queue, status.version, settings, &loads) {
                *loads.entry(node.id).or_default() += 1;
                self.grow(&queue, &node.name).await
            } else {
                continue;
            };
            tried += 1;
            match outcome {
                Ok(()) => {
                    changed = true;
                    tracing::info!(queue = %queue.name, vhost = %queue.vhost, "the queue's members were reconciled");
                }
                Err(error) => {
                    tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "the queue's members are not reconciled yet");
                }
            }
        }
        changed
    }

    async fn grow(&self, queue: &Queue, name: &str) -> Result<(), MemberError> {
        let target = self.metadata.queue_target(&queue.vhost, &queue.name).ok_or(MemberError::NotFound)?;
        self.add_member(&target, name, Part::Promotable).await
    }

    async fn remove_for_good(&self, queue: &Queue, uid: MemberUid) -> Result<(), MemberError> {
        let target = self.metadata.queue_target(&queue.vhost, &queue.name).ok_or(MemberError::NotFound)?;
        self.remove_member(&target, uid).await
    }

    /// The running node that a queue with too few members is to have its next one on: the one with the fewest. A queue
    /// with an odd number of members gets one more only where there is a node for a second.
    fn node_to_grow_to(
        &self,
        queue: &Queue,
        version: MachineVersion,
        settings: &Reconciliation,
        loads: &HashMap<NodeId, usize>,
    ) -> Option<Arc<Stored<Node>>> {
        let arguments = FieldTable::decode_bare(&queue.arguments).unwrap_or_default();
        let policies = policy::merged(&self.metadata.queue_policies(&queue.vhost, &queue.name, queue.kind));
        let target = settings.target_size.max(policy::target_group_size(&arguments, &policies))?;
        let size = queue.members.len();
        if size >= target {
            return None;
        }
        let has = |node: NodeId| queue.members.iter().any(|m| m.node == node);
        let (nodes, away) = (self.metadata.nodes(), self.nodes_in_maintenance());
        let free: Vec<_> = nodes
            .iter()
            .filter(|n| {
                !has(n.id) && self.links.is_up(n.id) && !away.contains(&n.id) && self.knows_version(n.id, version)
            })
            .collect();
        if size % 2 == 1 && free.len() < 2 {
            return None;
        }
        free.into_iter().min_by_key(|n| loads.get(&n.id).copied().unwrap_or_default()).cloned()
    }

    /// How many members of quorum queues each node has.
    pub(super) fn members_by_node(&self) -> HashMap<NodeId, usize> {
        let mut loads: HashMap<NodeId, usize> = HashMap::new();
        for target in self.metadata.projections().load().queues() {
            target.with_members(|member| *loads.entry(member.node).or_default() += 1);
        }
        loads
    }
}

#[cfg(test)]
mod tests {
    use warren_metastore::records;
    use warren_proto::ids::Incarnation;
    use warren_raft::log_store::Member;

    use super::*;

    fn found(strangers: &[u64], ghosts: &[u64]) -> Differences {
        let uids = |numbers: &[u64]| numbers.iter().copied().map(MemberUid).collect();
        Differences { strangers: uids(strangers), ghosts: uids(ghosts) }
    }

    /// What each of some looks in a row acts upon.
    fn looks(seen: &[Differences]) -> Vec<Differences> {
        let mut before = Doubts::default();
        let mut acted = Vec::new();
        for look in seen {
            let mut now = Doubts::default();
            acted.push(now.lasting(&before, GroupId(1), look.clone()));
            before = now;
        }
        acted
    }

    #[test]
    fn a_difference_has_to_last_before_it_is_ended() {
        let none = || found(&[], &[]);
        assert_eq!(looks(&[found(&[1], &[]), found(&[1], &[])]), [none(), found(&[1], &[])]);
        // A member that is being added is in the record first.
        assert_eq!(looks(&[found(&[], &[2]), found(&[], &[2]), none()]), [none(), none(), none()]);
        assert_eq!(looks(&[found(&[], &[2]), found(&[], &[2]), found(&[], &[2])])[2], found(&[], &[2]));
        // Only looks in a row count, and each member for itself.
        assert_eq!(looks(&[found(&[1], &[]), none(), found(&[1], &[])])[2], none());
        assert_eq!(looks(&[found(&[1], &[]), found(&[3], &[])])[1], none());
    }

    #[test]
    fn a_member_that_its_node_replaces_is_no_difference() {
        let recorded = |uid, node| records::Member {
            uid: MemberUid(uid),
            node: NodeId(node),
            node_incarnation: Incarnation(1),
            joined: true,
        };
        let member = |uid, node| Member { uid: MemberUid(uid), node: NodeId(node), role: MemberRole::Voter };
        let members = vec![recorded(1, 1), recorded(22, 2), recorded(4, 4), recorded(5, 5)];
        let record = Queue { members, ..Queue::default() };
        let group = Membership::founding(vec![member(1, 1), member(2, 2), member(3, 3)]);
        // Node 2 replaces its member, 3 has one too many, 4 was removed, 5 is away and may be joining.
        assert_eq!(differences(&record, &group, |node| node == NodeId(5)), found(&[3], &[4]));
    }
}
