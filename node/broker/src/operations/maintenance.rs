//! Maintenance: a node gives up what it leads, so that it can be stopped without anybody noticing (spec: operations.md,
//! section 6.4).
//!
//! The mark is a record in the metadata, which every node sees. The node itself keeps to it for as long as it is there: what
//! comes to lead here all the same, since nobody else could at that moment, is handed over when somebody can.

use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{MaintenanceStatus, NodeMaintenance, QueueKind};
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::log_store::MemberRole;
use warren_raft::machine::Role;

use super::members::TRANSFER_TIME;
use crate::metadata::WriteError;
use crate::node::Broker;

/// Leaders on the move at once.
const TRANSFERS_AT_ONCE: usize = 8;
/// Time between two looks at what a node in maintenance leads.
const LOOK: Duration = Duration::from_secs(5);

/// What became of the leaders of a node.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct HandedOver {
    /// Queues whose leader is on another node now.
    pub moved: usize,
    /// Those that are still led here.
    pub kept: usize,
}

impl Broker {
    /// Nodes that an operator has taken out of service, as far as this node knows.
    pub fn nodes_in_maintenance(&self) -> Vec<NodeId> {
        let marked = NodeMaintenance::list(&self.metadata.tree()).unwrap_or_default();
        // A state that only newer binaries know is not that of a node in service.
        let marked = marked.iter().filter(|m| m.status != MaintenanceStatus::Regular);
        marked.map(|m| NodeId::of_name(&m.node)).collect()
    }

    /// Whether this node is out of service.
    pub fn is_in_maintenance(&self) -> bool {
        self.nodes_in_maintenance().contains(&self.me)
    }

    /// Running nodes other than this one that may take over what it leads.
    fn successors(&self) -> Vec<NodeId> {
        let (nodes, away) = (self.metadata.nodes(), self.nodes_in_maintenance());
        let others = nodes.iter().map(|n| n.id).filter(|id| *id != self.me);
        others.filter(|id| self.links.is_up(*id) && !away.contains(id)).collect()
    }

    /// Marks this node as being in maintenance, in the metadata. From then on it gets no new leaders.
    pub async fn begin_maintenance(&self) -> Result<(), WriteError> {
        self.metadata.write(NodeMaintenance::new(&self.config.name, MaintenanceStatus::Draining).put()).await?;
        self.leave_leading_to_others(true);
        Ok(())
    }

    /// Takes this node back into service.
    pub async fn end_maintenance(&self) -> Result<(), WriteError> {
        self.metadata.write(NodeMaintenance::delete(&self.config.name)).await?;
        self.leave_leading_to_others(false);
        Ok(())
    }

    fn leave_leading_to_others(&self, leave: bool) {
        let metadata = self.metadata.host().map_or(Ok(()), |host| host.set_abstains(leave));
        if let Err(error) = metadata.and(self.queues.set_abstains(leave)) {
            tracing::warn!(leave, %error, "groups of this node were not all told whether to stand for election");
        }
    }

    /// Hands what this node leads to nodes that are in service: the metadata first, then quorum queues. What has nobody to
    /// go to stays.
    pub async fn hand_over(self: &Arc<Self>) -> HandedOver {
        self.hand_over_metadata().await;
        let led = self.led_queues();
        let outcomes: Vec<bool> = stream::iter(led)
            .map(|target| {
                let broker = Arc::clone(self);
                async move { broker.hand_over_queue(&target).await }
            })
            .buffer_unordered(TRANSFERS_AT_ONCE)
            .collect()
            .await;
        let moved = outcomes.iter().filter(|moved| **moved).count();
        HandedOver { moved, kept: outcomes.len() - moved }
    }

    fn led_queues(&self) -> Vec<Arc<QueueTarget>> {
        let view = self.metadata.projections().load();
        let led = |t: &&Arc<QueueTarget>| {
            t.kind == QueueKind::Quorum && self.queues.role(t.group).is_some_and(|role| role != Role::Follower)
        };
        view.queues().filter(led).cloned().collect()
    }

    async fn hand_over_metadata(&self) {
        let Some(host) = self.metadata.host() else { return };
        if host.role(GroupId::METADATA).is_none_or(|role| role == Role::Follower) {
            return;
        }
        let Some(status) = host.status(GroupId::METADATA) else { return };
        let votes = |node: &NodeId| status.membership.on_node(*node).is_some_and(|m| m.role == MemberRole::Voter);
        for node in self.successors().into_iter().filter(votes) {
            match host.transfer_leadership(GroupId::METADATA, Some(node), TRANSFER_TIME).await {
                Ok(()) => return,
                Err(error) => {
                    tracing::warn!(%node, %error, "the metadata's leadership was not handed over to this node")
                }
            }
        }
    }

    /// Whether another node leads the queue now. Voters that have most of the log are asked first.
    async fn hand_over_queue(&self, target: &QueueTarget) -> bool {
        let successors = self.successors();
        let members = self.queues.members(target.group).await.unwrap_or_default();
        let mut able: Vec<_> =
            members.into_iter().filter(|m| m.role == MemberRole::Voter && successors.contains(&m.node)).collect();
        able.sort_by_key(|m| std::cmp::Reverse(m.matched));
        for member in able {
            let to = Some(member.node);
            match self.queues.transfer_leadership(target.group, to, TRANSFER_TIME).await {
                Ok(()) => return true,
                Err(error) => {
                    tracing::warn!(queue = %target.name, vhost = %target.vhost, node = %member.node, %error, "the queue's leadership was not handed over to this node");
                }
            }
        }
        self.queues.role(target.group) == Some(Role::Follower)
    }
}

/// Keeps a node in maintenance from leading. Runs until the broker is gone.
pub(crate) async fn watch(broker: Weak<Broker>) {
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(broker) = broker.upgrade() else { return };
        if broker.is_in_maintenance() {
            broker.leave_leading_to_others(true);
            broker.hand_over().await;
        }
    }
}
