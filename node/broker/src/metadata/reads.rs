//! Records as this node knows them now. None of these waits for anybody.

use std::sync::Arc;

use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{Exchange, Node, Queue, Stored, User, Vhost};
use warren_proto::ids::{GroupId, NodeId};

use super::Metadata;

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
