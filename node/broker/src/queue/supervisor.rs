//! Keeps what runs on this node equal to what the metadata says should run here.
//!
//! Driven by changes and, because a change can be missed, by a full comparison now and then. A quorum queue's data is
//! deleted only when its queue is seen to be deleted; that the metadata lacks a queue proves nothing, and what belongs to none
//! goes into quarantine.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;
use warren_metastore::records::{Definition, Queue, QueueKind};
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, Incarnation, MachineVersion};
use warren_queues::quorum::LATEST;
use warren_raft::driver::{GroupSpec, OpenError};
use warren_raft::log_store::{Member, MemberRole};
use warren_raft::runtime::{CreateError, HostError};

use super::group::QuorumMachine;
use crate::node::Broker;
use crate::operations::reconcile::Doubts;
use crate::policy::quorum_config;

/// How often everything is compared.
const COMPARE_EVERY: Duration = Duration::from_secs(30);

/// Time in which a group whose leader stopped has another one, as a rule.
const NEXT_LEADER: Duration = Duration::from_secs(3);

/// Something that may need a queue started or ended here.
#[derive(Debug, Clone)]
pub enum QueueChange {
    /// A queue was declared.
    Created(Arc<Queue>),
    /// A queue's record changed: perhaps its members did.
    Changed(Arc<Queue>),
    /// A queue was deleted.
    Deleted(Arc<Queue>),
    /// A group has data on this node that cannot be read.
    Damaged(GroupId),
    /// Anything may have changed.
    Compare,
}

/// Runs until the broker is gone.
pub async fn run(broker: std::sync::Weak<Broker>, mut changes: mpsc::UnboundedReceiver<QueueChange>) {
    let mut compare = tokio::time::interval(COMPARE_EVERY);
    let mut tending: Option<tokio::task::JoinHandle<Doubts>> = None;
    compare.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        let change = tokio::select! {
            change = changes.recv() => match change {
                Some(change) => change,
                None => return,
            },
            _ = compare.tick() => QueueChange::Compare,
        };
        let Some(broker) = broker.upgrade() else { return };
        let mut complete = None;
        match change {
            // A replayed log names queues that came and went long ago: only what is still so counts.
            QueueChange::Created(queue) if broker.exists(queue.group) => {
                broker.start_here(&queue).await;
                broker.may_grow.notify_one();
            }
            QueueChange::Deleted(queue) if !broker.exists(queue.group) => broker.end_here(queue.group).await,
            // An older record than the one that counts now may name members that are gone, or not those that are there.
            QueueChange::Changed(queue) => {
                if let Some(queue) = broker.metadata.queue(&queue.vhost, &queue.name).filter(|q| q.group == queue.group)
                {
                    broker.follow_members(&queue).await;
                }
            }
            QueueChange::Created(_) | QueueChange::Deleted(_) => {}
            QueueChange::Damaged(group) => {
                // At once: it neither leads nor votes with what it cannot read.
                if broker.queues.close_group(group).is_err() {
                    tracing::error!(%group, "a group with damaged data is not stopped yet");
                }
                complete = Some(NEXT_LEADER);
            }
            QueueChange::Compare => {
                broker.compare_queues(changes.is_empty()).await;
                complete = Some(Duration::ZERO);
            }
        }
        if broker.quarantine.has_foreign() {
            complete = complete.or(Some(Duration::from_millis(1)));
        }
        if let Some(pause) = complete
            && tending.as_ref().is_none_or(tokio::task::JoinHandle::is_finished)
        {
            let doubts = match tending.take() {
                Some(ended) => ended.await.unwrap_or_default(),
                None => Doubts::default(),
            };
            let broker = Arc::clone(&broker);
            tending = Some(tokio::spawn(async move {
                tokio::time::sleep(pause).await;
                broker.complete_members().await;
                broker.set_foreign_aside().await;
                broker.set_unknown_aside().await;
                if pause.is_zero() { broker.repair_records(doubts).await } else { doubts }
            }));
        }
    }
}

impl Broker {
    /// Starts what this node has to run of a queue, unless it runs.
    pub(crate) async fn start_here(&self, queue: &Queue) {
        match queue.kind {
            QueueKind::Classic if queue.home == self.me => self.classic.start(queue.group),
            QueueKind::Classic => {}
            QueueKind::Quorum => self.start_member(queue).await,
        }
    }

    /// Ends this node's member where the queue has none here any more, and starts what is missing. Where the queue has
    /// another member here, this node was away when its own was replaced: what it has is set aside first.
    async fn follow_members(&self, queue: &Queue) {
        let own = queue.members.iter().find(|m| m.node == self.me).map(|m| m.uid);
        let local = self.queues.status(queue.group).map(|s| s.me);
        if queue.kind == QueueKind::Quorum && local.is_some() && local != own {
            if own.is_some() {
                tracing::warn!(queue = %queue.name, vhost = %queue.vhost, "this node's member was replaced by another one");
                if let Err(error) = self.queues.close_group(queue.group) {
                    tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "the old member is not stopped yet");
                }
                self.quarantine.note_foreign(queue.group);
                return;
            }
            tracing::info!(queue = %queue.name, vhost = %queue.vhost, "this node's member was removed from the queue");
            self.end_here(queue.group).await;
        }
        self.start_here(queue).await;
    }

    async fn start_member(&self, queue: &Queue) {
        let Some(me) = queue.members.iter().find(|m| m.node == self.me) else { return };
        if self.queues.has_group(queue.group) {
            return;
        }
        if me.node_incarnation != Incarnation(self.incarnation) {
            // This node's data was wiped since: a member that starts empty under the old uid could vote for a log that
            // it has lost.
            tracing::debug!(queue = %queue.name, vhost = %queue.vhost, "this node's member is lost with its old data");
            return;
        }
        let (me, joined) = (me.uid, me.joined);
        // Founders begin with the same list, without those that joined later. A member that joins knows that it has no
        // vote yet; for the rest, the log and the leader's snapshot correct what it believes.
        let begins = |m: &&warren_metastore::records::Member| joined || !m.joined;
        let role =
            |uid| if joined && uid == me { MemberRole::Promotable { target: u64::MAX } } else { MemberRole::Voter };
        let members = queue.members.iter().filter(begins);
        let members = members.map(|m| Member { uid: m.uid, node: m.node, role: role(m.uid) }).collect();
        let spec = GroupSpec {
            group: queue.group,
            me,
            members,
            version: match queue.machine_version {
                0 => LATEST,
                version => MachineVersion(version),
            },
            init: bytes::Bytes::copy_from_slice(&queue.arguments),
            campaign: queue.home == self.me && !joined,
            machine: self.quorum_machine(&queue.arguments),
        };
        if let Err(error) = self.queues.create_group(spec).await
            && !matches!(error, CreateError::Open(OpenError::Exists))
        {
            tracing::error!(queue = %queue.name, vhost = %queue.vhost, %error, "a queue's member could not be started");
        }
    }

    /// Every member begins with what the arguments say: policies come and go, and reach the members through the log.
    fn quorum_machine(&self, arguments: &[u8]) -> QuorumMachine {
        let arguments = FieldTable::decode_bare(arguments).unwrap_or_default();
        QuorumMachine::new(Arc::clone(&self.groups), quorum_config(&arguments, &Definition::new()))
    }

    async fn end_here(&self, group: GroupId) {
        self.classic.stop(group);
        match self.queues.remove_group(group).await {
            Ok(()) | Err(HostError::NoSuchGroup) => {}
            Err(error) => tracing::warn!(%group, %error, "a deleted queue's data could not be removed yet"),
        }
    }

    fn exists(&self, group: GroupId) -> bool {
        self.metadata.has_queue(group)
    }

    /// Compares what runs here with the metadata. `settled`: no changes wait to be followed.
    pub(crate) async fn compare_queues(&self, settled: bool) {
        for queue in self.metadata.queues() {
            self.follow_members(&queue).await;
        }
        for group in self.classic.groups().into_iter().filter(|group| !self.exists(*group)) {
            self.classic.stop(group);
        }
        self.quarantine_unknown(settled).await;
    }
}
