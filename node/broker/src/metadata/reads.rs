//! Records as this node knows them now. None of these waits for anybody.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use warren_metastore::projections::{Applied, QueueTarget};
use warren_metastore::records::{Exchange, Node, Queue, QueueKind, Stored, User, Vhost};
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, NodeId};
use warren_queues::quorum::Config;

use super::Metadata;
use crate::policy;

impl Metadata {
    /// A user.
    pub fn user(&self, name: &str) -> Option<Arc<Stored<User>>> {
        self.projections().peek().user(name).cloned()
    }

    /// A virtual host.
    pub fn vhost(&self, name: &str) -> Option<Arc<Stored<Vhost>>> {
        self.projections().peek().vhost(name).and_then(|v| v.record().cloned())
    }

    /// An exchange.
    pub fn exchange(&self, vhost: &str, name: &str) -> Option<Arc<Stored<Exchange>>> {
        self.projections().peek().exchange(vhost, name).map(|e| Arc::clone(e.record()))
    }

    /// A queue.
    pub fn queue(&self, vhost: &str, name: &str) -> Option<Arc<Stored<Queue>>> {
        self.queue_target(vhost, name).map(|target| target.record())
    }

    /// What publishing and consuming need to know of a queue.
    pub fn queue_target(&self, vhost: &str, name: &str) -> Option<Arc<QueueTarget>> {
        self.projections().peek().queue(vhost, name).cloned()
    }

    /// The queue that a group runs.
    pub fn queue_of_group(&self, group: GroupId) -> Option<Arc<Stored<Queue>>> {
        self.projections().peek().queue_of_group(group).map(|target| target.record())
    }

    /// Whether the group's queue exists.
    pub fn has_queue(&self, group: GroupId) -> bool {
        self.projections().peek().queue_of_group(group).is_some()
    }

    /// The policies that apply to a queue of this name and type, whether there is one or not.
    pub fn queue_policies(&self, vhost: &str, name: &str, kind: QueueKind) -> Applied {
        let view = self.projections().peek();
        view.vhost(vhost).map(|vhost| vhost.policies().of_queue(name, kind)).unwrap_or_default()
    }

    /// The policies that apply to an exchange.
    pub fn exchange_policies(&self, vhost: &str, name: &str) -> Applied {
        let view = self.projections().peek();
        view.vhost(vhost).map(|vhost| vhost.policies().of_exchange(name)).unwrap_or_default()
    }

    /// What a quorum queue's arguments and policies make together now; `None` where the queue is gone, or where this node
    /// may know old policies only.
    pub fn quorum_config(&self, group: GroupId) -> Option<Config> {
        if !self.shared.current.load(Ordering::Acquire) {
            return None;
        }
        let queue = self.queue_of_group(group)?;
        let arguments = FieldTable::decode_bare(&queue.arguments).unwrap_or_default();
        let policies = self.queue_policies(&queue.vhost, &queue.name, queue.kind);
        Some(policy::quorum_config(&arguments, &policy::merged(&policies)))
    }

    /// All queues of all vhosts, in no order.
    pub fn queues(&self) -> Vec<Arc<Stored<Queue>>> {
        self.projections().load().queues().map(|target| target.record()).collect()
    }

    /// Whether a node belongs to the cluster.
    pub fn has_node(&self, id: NodeId) -> bool {
        self.projections().peek().nodes().any(|node| node.id == id)
    }

    /// All nodes of the cluster, in order of their names.
    pub fn nodes(&self) -> Vec<Arc<Stored<Node>>> {
        let mut nodes: Vec<_> = self.projections().load().nodes().cloned().collect();
        nodes.sort_by(|a, b| a.name.cmp(&b.name));
        nodes
    }
}
