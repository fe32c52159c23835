//! Taking a node that has ended for good out of the cluster (spec: operations.md, section 2.1; quorum-queues.md, section
//! 10.1; metadata-store.md, section 10).
//!
//! The order is what makes a repetition finish an interrupted attempt: first its members leave the quorum queues, which is
//! the caller's part, since it may be long; then the queues that lived on it alone go; then its member of the metadata
//! group; its record goes last. Whatever is left of a node shows that it has to be done again.
//!
//! Sessions of the node's clients at quorum queues are purged by the queues' leaders, once they see that its record is gone.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::time::Instant;
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{Node, NodeMaintenance, Queue, QueueKind, Stored};
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::driver::{ChangeError, MemberChange};

use super::members::AT_ONCE;
use crate::cluster::formation::{self, NoHello, Peer};
use crate::error::BrokerError;
use crate::metadata::WriteError;
use crate::node::Broker;
use crate::queue::group::GroupRequest;

/// Pause before the metadata group is asked again to change its members, and between two looks at a node.
const PAUSE: Duration = Duration::from_millis(200);
/// Longer than the last sign of life of a process that has ended counts.
const LAST_SIGNS: Duration = Duration::from_secs(3);
/// Questions about nodes that cannot be reached are gathered for so long.
const GATHER: Duration = Duration::from_secs(1);
/// How long it may take to be sure that a node has left.
const SURE: Duration = Duration::from_secs(10);

/// Why a node was not taken out of the cluster, or not altogether.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ForgetError {
    /// The cluster has no such node, and nothing of one.
    #[error("not_a_cluster_node: the node selected is not in the cluster")]
    NotMember,
    /// It has to end first.
    #[error(
        "failed_to_remove_node, rabbit_still_running: Warren on node {0} must be stopped with 'warren ctl -n {0} shutdown' before \
         it can be removed"
    )]
    StillRunning(String),
    /// A cluster needs a voter.
    #[error("the metadata store's last voting member cannot be removed")]
    LastVoter,
    /// A majority has to know what is done.
    #[error(
        "the metadata store timed out; it may have lost its majority, without which no node can be removed: nothing was \
         changed"
    )]
    NoMajority,
    /// It was begun, and is finished by doing it again.
    #[error("the node is not removed altogether ({0}): run the command again")]
    Unfinished(String),
}

impl Broker {
    /// Quorum queues with a member on a node.
    pub fn queues_with_member(&self, node: NodeId) -> Vec<Arc<QueueTarget>> {
        let view = self.metadata.projections().load();
        let has = |target: &&Arc<QueueTarget>| {
            target.kind == QueueKind::Quorum && target.members().iter().any(|member| member.node == node)
        };
        view.queues().filter(has).cloned().collect()
    }

    /// Queues that live on a node alone, or belong to a connection of it.
    fn queues_alone_on(&self, node: NodeId) -> Vec<Arc<Stored<Queue>>> {
        let alone = |queue: &Queue| match queue.exclusive_owner {
            Some(owner) if owner.node == node => true,
            _ => queue.kind == QueueKind::Classic && queue.home == node,
        };
        self.metadata.queues().into_iter().filter(|queue| alone(queue)).collect()
    }

    fn record_of(&self, node: NodeId) -> Option<Arc<Stored<Node>>> {
        self.metadata.nodes().into_iter().find(|known| known.id == node)
    }

    /// The changes that take a node out of the metadata group.
    fn metadata_removals(&self, node: NodeId) -> Vec<MemberChange> {
        let status = self.metadata.host().and_then(|host| host.status(GroupId::METADATA));
        let members = status.map(|status| status.membership.members).unwrap_or_default();
        members.iter().filter(|member| member.node == node).map(|member| MemberChange::Remove(member.uid)).collect()
    }

    /// Whether a node is neither part of the cluster nor there, as far as this node knows.
    pub(crate) fn has_left(&self, node: NodeId) -> bool {
        !self.metadata.has_node(node) && self.metadata_removals(node).is_empty() && !self.links.is_up(node)
    }

    /// Whether the node's process answers, even where it is still starting, or gives signs of life.
    async fn answers(&self, name: &str) -> bool {
        let node = NodeId::of_name(name);
        let address = match self.record_of(node) {
            Some(record) => Some(record.address.clone()),
            None => self.transport.peers().into_iter().find(|(known, ..)| *known == node).map(|(.., address)| address),
        };
        let answered = match address {
            Some(address) => {
                let told = formation::ask(&Peer { name: name.to_owned(), address }, &self.transport).await;
                !matches!(told, Err(NoHello::Unknown))
            }
            None => false,
        };
        answered || self.gives_signs_of_life(node).await
    }

    /// Whether another node still gives signs of life to this one. The last ones of a process that has just ended count for
    /// a moment: that is waited for.
    pub async fn gives_signs_of_life(&self, node: NodeId) -> bool {
        let deadline = Instant::now() + LAST_SIGNS;
        while self.links.is_up(node) {
            if Instant::now() >= deadline {
                return true;
            }
            tokio::time::sleep(PAUSE).await;
        }
        false
    }

    /// Whether a node may be taken out: something of it is left, and it does not run. What this node knows is as new as
    /// the metadata's leader's then. Changes nothing.
    pub async fn check_forgettable(&self, name: &str) -> Result<(), ForgetError> {
        self.metadata.fence(self.config.metadata_timeout).await.map_err(|_| ForgetError::NoMajority)?;
        let node = NodeId::of_name(name);
        let known = self.metadata.has_node(node)
            || !self.metadata_removals(node).is_empty()
            || !self.queues_with_member(node).is_empty()
            || !self.queues_alone_on(node).is_empty();
        if !known {
            return Err(ForgetError::NotMember);
        }
        if self.answers(name).await {
            return Err(ForgetError::StillRunning(name.to_owned()));
        }
        Ok(())
    }

    /// Deletes what lived on the node alone, takes it out of the metadata group, and removes its record. To be called on the
    /// metadata's leader, once no quorum queue has a member on the node; answers how many queues were deleted.
    pub async fn forget_node(&self, name: &str) -> Result<usize, ForgetError> {
        let node = NodeId::of_name(name);
        let record = self.record_of(node);
        let deleted = self.delete_queues_alone_on(node).await?;
        // One that came back meanwhile keeps its place.
        if self.answers(name).await {
            return Err(ForgetError::StillRunning(name.to_owned()));
        }
        self.metadata.write(NodeMaintenance::delete(name)).await.map_err(unfinished)?;
        self.leave_metadata_group(node).await?;
        if let Some(record) = record {
            let write = Node::delete_unchanged(&record.name, record.mod_revision);
            self.metadata.write(write).await.map_err(unfinished)?;
            if self.metadata.has_node(node) {
                return Err(ForgetError::StillRunning(name.to_owned()));
            }
        }
        tracing::info!(node = name, queues = deleted, "the node was removed from the cluster");
        // Declared on it while it was on its way out.
        Ok(deleted + self.delete_queues_alone_on(node).await?)
    }

    async fn delete_queues_alone_on(&self, node: NodeId) -> Result<usize, ForgetError> {
        let queues = self.queues_alone_on(node);
        let count = queues.len();
        let outcomes: Vec<Result<(), BrokerError>> = stream::iter(queues)
            .map(|queue| async move { self.delete_queue(&queue).await })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        match outcomes.into_iter().find_map(Result::err) {
            Some(error) => Err(ForgetError::Unfinished(error.to_string())),
            None => Ok(count),
        }
    }

    async fn leave_metadata_group(&self, node: NodeId) -> Result<(), ForgetError> {
        let deadline = Instant::now() + self.config.metadata_timeout;
        let mut why = "the metadata store timed out".to_owned();
        loop {
            let removals = self.metadata_removals(node);
            let Some(host) = self.metadata.host().filter(|_| !removals.is_empty()) else { return Ok(()) };
            match tokio::time::timeout_at(deadline, host.change_members(GroupId::METADATA, removals)).await {
                Ok(Ok(()) | Err(ChangeError::NoSuchMember)) => continue,
                Ok(Err(ChangeError::LastVoter)) => return Err(ForgetError::LastVoter),
                Ok(Err(error)) => why = error.to_string(),
                Err(_) => return Err(ForgetError::Unfinished(why)),
            }
            if Instant::now() >= deadline {
                return Err(ForgetError::Unfinished(why));
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}

fn unfinished(error: WriteError) -> ForgetError {
    ForgetError::Unfinished(error.to_string())
}

/// Nodes that cannot be reached and are no part of the cluster as this node knows it, with the groups whose leaders want to
/// know whether they have left it.
#[derive(Debug, Default)]
pub(crate) struct Unreachable {
    noted: Mutex<BTreeSet<(GroupId, NodeId)>>,
    waiting: Notify,
}

impl Unreachable {
    /// A group's leader asks about a node.
    pub fn note(&self, group: GroupId, node: NodeId) {
        if self.noted.lock().insert((group, node)) {
            self.waiting.notify_one();
        }
    }

    /// The questions by node.
    fn take(&self) -> BTreeMap<NodeId, Vec<GroupId>> {
        let mut by_node: BTreeMap<NodeId, Vec<GroupId>> = BTreeMap::new();
        for (group, node) in std::mem::take(&mut *self.noted.lock()) {
            by_node.entry(node).or_default().push(group);
        }
        by_node
    }
}

/// Answers the leaders of quorum queues that ask about nodes. Runs until the broker is gone.
pub(crate) async fn run(broker: Weak<Broker>, unreachable: Arc<Unreachable>) {
    loop {
        unreachable.waiting.notified().await;
        tokio::time::sleep(GATHER).await;
        let Some(broker) = broker.upgrade() else { return };
        broker.tell_of_left_nodes(unreachable.take()).await;
    }
}

impl Broker {
    /// A node that has just joined may be missing from what this node knows: whoever cannot be sure says nothing, and is
    /// asked again.
    async fn tell_of_left_nodes(&self, questions: BTreeMap<NodeId, Vec<GroupId>>) {
        if self.metadata.fence(SURE).await.is_err() {
            return;
        }
        for (node, groups) in questions.into_iter().filter(|(node, _)| self.has_left(*node)) {
            tracing::info!(%node, queues = groups.len(), "sessions of a node that has left the cluster are ended");
            for group in groups {
                // A member that is busy asks again.
                let _ = self.queues.send(group, GroupRequest::NodesLeft(vec![node]));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn questions_about_a_node_are_gathered_and_each_is_answered_once() {
        let unreachable = Unreachable::default();
        for (group, node) in [(1, 7), (2, 7), (1, 7), (1, 8)] {
            unreachable.note(GroupId(group), NodeId(node));
        }
        let asked: Vec<_> = unreachable.take().into_iter().collect();
        assert_eq!(asked, [(NodeId(7), vec![GroupId(1), GroupId(2)]), (NodeId(8), vec![GroupId(1)])]);
        assert!(unreachable.take().is_empty());
    }
}
