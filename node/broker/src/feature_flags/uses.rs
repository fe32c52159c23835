//! What the broker knows that flags depend on: whether deprecated features are in use, and how far quorum queues are.

use warren_metastore::records::QueueKind;
use warren_proto::ids::NodeId;

use super::catalogue::features;
use super::member::Behind;
use crate::node::Broker;

impl Broker {
    /// Whether a deprecated feature is in use, where that can be told.
    pub(crate) fn uses_feature(&self, feature: &str) -> bool {
        match feature {
            features::TRANSIENT_NONEXCL_QUEUES => {
                self.metadata.queues().iter().any(|queue| !queue.durable && queue.exclusive_owner.is_none())
            }
            _ => false,
        }
    }

    /// Quorum queues with a member here, and nodes, that are below a machine version.
    pub(crate) fn below_machine_version(&self, version: u16) -> Behind {
        let nodes = self.metadata.nodes();
        let name =
            |node: NodeId| nodes.iter().find(|n| n.id == node).map_or_else(|| node.to_string(), |n| n.name.to_string());
        let mut behind = Behind {
            nodes: nodes.iter().filter(|n| n.machine_version < version).map(|n| n.name.to_string()).collect(),
            ..Behind::default()
        };
        for queue in self.metadata.queues().into_iter().filter(|queue| queue.kind == QueueKind::Quorum) {
            let Some(status) = self.queues.status(queue.group).filter(|status| status.version.0 < version) else {
                continue;
            };
            let holds = |node: NodeId| match nodes.iter().find(|n| n.id == node) {
                _ if node == self.me => status.supported.1.0 < version,
                // One that is down cannot say that it supports it.
                Some(known) => known.machine_version < version || !self.links.is_up(node),
                None => true,
            };
            let holders = queue.members.iter().map(|m| m.node).filter(|node| holds(*node)).map(name).collect();
            behind.queues.insert(format!("queue '{}' in vhost '{}'", queue.name, queue.vhost), holders);
        }
        behind
    }
}
