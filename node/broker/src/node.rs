//! The broker of one node: what all frontends share.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{QueueKind, User};
use warren_proto::ids::{MachineVersion, NodeId, SessionRef};
use warren_queues::quorum::Overflow;
use warren_raft::driver::GroupStatus;
use warren_raft::log_store::{LogStore, MemberRole, StoreFigures};
use warren_raft::machine::EntryReader;
use warren_raft::runtime::Host;

use crate::cluster::formation::Peer;
use crate::cluster::identity_file::Cluster;
use crate::connections::Connections;
use crate::error::BrokerError;
use crate::feature_flags::{FeatureFlags, FlagSettings};
use crate::metadata::Metadata;
use crate::operations::reconcile::Reconciliation;
use crate::queue::classic_host::ClassicHost;
use crate::queue::group::{GroupContext, QuorumMachine};
use crate::queue::links::Links;
use crate::queue::protocol::{QueueEvent, QueueItem, QueueReply, QueueRequest, QueueStats, ToQueue, ToSession};
use crate::queue::quarantine::Quarantine;
use crate::session::registry::Sessions;

/// How long an operation waits for a queue that has no leader.
pub const QUEUE_TIMEOUT: Duration = Duration::from_secs(15);
/// How long one attempt waits for its answer before it is made again.
const ATTEMPT: Duration = Duration::from_secs(2);
/// Pause before a node that does not lead is asked again.
const PAUSE: Duration = Duration::from_millis(30);

/// Where a new quorum queue's leader is placed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LeaderLocator {
    /// On the node that the client is connected to.
    ClientLocal,
    /// On the running node that leads the fewest queues.
    Balanced,
}

/// Limits on what clients may create; `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Limits {
    /// Virtual hosts of the cluster (`vhost_max`).
    pub vhosts: Option<usize>,
    /// Queues of the cluster (`cluster_queue_limit`).
    pub queues: Option<usize>,
    /// Exchanges of the cluster, those that every virtual host has included (`cluster_exchange_limit`).
    pub exchanges: Option<usize>,
}

/// How often something is tried again, and when.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// Attempts that may fail one after the other; `None` is no limit.
    pub limit: Option<u64>,
    /// Pause after a failed attempt.
    pub pause: Duration,
}

/// What a node needs to know to start, read once from the configuration.
#[derive(Debug, Clone)]
pub struct NodeConfig {
    /// `name@host`.
    pub name: String,
    /// `<data_dir>/<node name>`; exists, and is locked by the caller.
    pub data: PathBuf,
    /// Where the databases of queue groups live; `data` if not moved (`raft.data_dir`).
    pub queues_data: PathBuf,
    /// Where the peer port listens.
    pub peer_listen: SocketAddr,
    /// `host:port` under which other nodes reach it.
    pub peer_address: String,
    /// The cluster's shared secret.
    pub secret: Bytes,
    /// The nodes of the cluster as configured, this one included; empty = a cluster of one.
    pub peers: Vec<Peer>,
    /// Name of the cluster, if configured.
    pub cluster_name: Option<String>,
    /// Bound of every metadata write.
    pub metadata_timeout: Duration,
    /// How long to wait for a metadata leader at boot.
    pub leader_wait: Duration,
    /// Commands of the metadata group between two snapshots.
    pub metadata_snapshot_interval: u64,
    /// A write to disk that takes longer costs the node its leaderships; six times that ends the process.
    pub disk_stall: Duration,
    /// How a blank node repeats what did not work when it looked for its cluster.
    pub discovery: Retry,
    /// Where a new quorum queue's leader is placed unless its arguments say otherwise.
    pub leader_locator: LeaderLocator,
    /// Limits on what clients may create.
    pub limits: Limits,
    /// The newest machine version of quorum queues that this node supports.
    pub machine_version: MachineVersion,
    /// Feature flags and deprecated features.
    pub flags: FlagSettings,
    /// Whether and how quorum queues get the members that they lack.
    pub reconciliation: Reconciliation,
    /// How long a quorum queue's consumer may hold a message, in ms, where neither it nor the queue says so.
    pub consumer_timeout_ms: Option<u64>,
    /// Dead messages of one queue that may be on their way to queues that confirm them.
    pub dead_letter_prefetch: u32,
    /// Pause before such a message that was refused, or had no queue to go to, is tried again.
    pub dead_letter_retry: Duration,
    /// Members of a new quorum queue.
    pub quorum_size: u32,
    /// Queue type where neither the client nor the vhost names one.
    pub default_queue_type: QueueKind,
    /// Created on first boot.
    pub default_vhost: String,
    /// Created on first boot.
    pub default_user: String,
    /// Its password.
    pub default_pass: String,
    /// Its tags.
    pub default_user_tags: Vec<String>,
    /// Its permissions: configure, write, read.
    pub default_permissions: [String; 3],
    /// Users who may log in from loopback addresses only.
    pub loopback_users: Vec<String>,
    /// Raft shards for queue groups; 0 = one per core, at most 8.
    pub shards: usize,
    /// Connections of this node at most.
    pub max_connections: Option<usize>,
}

/// See the module's head.
pub struct Broker {
    pub(crate) config: NodeConfig,
    pub(crate) me: NodeId,
    pub(crate) incarnation: u64,
    pub(crate) sessions: Arc<Sessions>,
    pub(crate) connections: Connections,
    pub(crate) links: Arc<Links>,
    pub(crate) metadata: Metadata,
    pub(crate) flags: Arc<FeatureFlags>,
    pub(crate) queues: Host<QuorumMachine>,
    pub(crate) groups: Arc<GroupContext>,
    pub(crate) cluster: Cluster,
    pub(crate) classic: Arc<ClassicHost>,
    pub(crate) transport: warren_raft::transport::Transport,
    pub(crate) entries: Arc<dyn EntryReader>,
    /// Of the metadata and of the queues.
    pub(crate) stores: [Arc<dyn LogStore>; 2],
    pub(crate) quarantine: Arc<Quarantine>,
    pub(crate) started: Instant,
    pub(crate) stranger: User,
    /// Something happened that may let a queue have a member that it lacks.
    pub(crate) may_grow: Arc<tokio::sync::Notify>,
    /// Exclusive queues by the connection of this node that owns them.
    pub(crate) exclusive: parking_lot::Mutex<HashMap<u64, Vec<Arc<QueueTarget>>>>,
}

impl Broker {
    /// This node.
    pub fn me(&self) -> NodeId {
        self.me
    }

    /// `name@host` of this node.
    pub fn name(&self) -> &str {
        &self.config.name
    }

    /// The configuration it was started with.
    pub fn config(&self) -> &NodeConfig {
        &self.config
    }

    /// When it was started.
    pub fn started(&self) -> Instant {
        self.started
    }

    /// Sessions of this node.
    pub fn sessions(&self) -> &Sessions {
        &self.sessions
    }

    /// Connections of this node.
    pub fn connections(&self) -> &Connections {
        &self.connections
    }

    /// The way to queues and sessions.
    pub fn links(&self) -> &Links {
        &self.links
    }

    /// What becomes of dead messages.
    pub fn dead_letters(&self) -> &crate::dead_letter::DeadLetters {
        &self.groups.dead_letters
    }

    /// Whether a queue may refuse what is published to it, because it has a limit.
    pub(crate) fn may_refuse_publishes(&self, target: &QueueTarget) -> bool {
        target.kind == QueueKind::Quorum
            && self
                .metadata
                .quorum_config(target.group)
                .is_some_and(|config| config.overflow == Overflow::RejectPublish)
    }

    /// Feature flags and deprecated features.
    pub fn feature_flags(&self) -> &Arc<FeatureFlags> {
        &self.flags
    }

    /// The metadata tree.
    pub fn metadata(&self) -> &Metadata {
        &self.metadata
    }

    /// The Raft host of quorum queues.
    pub fn queues(&self) -> &Host<QuorumMachine> {
        &self.queues
    }

    /// The classic queues whose home is this node.
    pub fn classic(&self) -> &ClassicHost {
        &self.classic
    }

    /// The peer transport.
    pub fn transport(&self) -> &warren_raft::transport::Transport {
        &self.transport
    }

    /// Reads message bodies of quorum queues from this node's log.
    pub fn entry_reader(&self) -> Arc<dyn EntryReader> {
        Arc::clone(&self.entries)
    }

    /// What the databases of the metadata and of the queues take.
    pub async fn store_figures(&self) -> [StoreFigures; 2] {
        let stores = self.stores.clone();
        let asked = tokio::task::spawn_blocking(move || stores.map(|store| store.figures()));
        asked.await.unwrap_or_default()
    }

    /// The node to ask about a queue: its leader as this node knows it, else its members in turn.
    pub fn find_leader(&self, target: &QueueTarget, member: &mut usize) -> Option<NodeId> {
        if target.kind == QueueKind::Classic {
            return Some(target.home).filter(|home| self.links.is_up(*home));
        }
        if let Some(leader) = self.queues.leader(target.group) {
            return Some(leader);
        }
        let votes = |s: GroupStatus| s.membership.member(s.me).is_some_and(|m| m.role == MemberRole::Voter);
        if self.queues.status(target.group).is_some_and(votes) {
            // A voter of this node would know a leader if there were one that this node can reach. One that has just
            // joined may not have heard of it yet.
            return None;
        }
        let members = target.members();
        let up = |node: NodeId| node != self.me && self.links.is_up(node);
        // First where its leader was when it last looked, then one after the other.
        if *member == 0 {
            *member = 1;
            if let Some(leader) = target.record().leader.filter(|node| up(*node)) {
                return Some(leader);
            }
        }
        for _ in 0..members.len() {
            let node = members[*member % members.len()].node;
            *member = member.wrapping_add(1).max(1);
            if up(node) {
                return Some(node);
            }
        }
        None
    }

    /// The leader of a queue, if this node knows it.
    pub fn leader_of(&self, target: &QueueTarget) -> Option<NodeId> {
        match target.kind {
            QueueKind::Classic => Some(target.home),
            QueueKind::Quorum => self.queues.leader(target.group),
        }
    }

    /// Has a queue apply a request, asking again until its leader has answered or [`QUEUE_TIMEOUT`] has passed.
    pub async fn call_queue(
        &self,
        from: SessionRef,
        target: &QueueTarget,
        request: QueueRequest,
    ) -> Result<QueueReply, BrokerError> {
        let deadline = tokio::time::Instant::now() + QUEUE_TIMEOUT;
        let mut answer;
        loop {
            answer = self
                .ask_queue(from, target, QUEUE_TIMEOUT, |correlation| QueueItem::Command {
                    correlation,
                    request: request.clone(),
                })
                .await?;
            if answer.event.needs_bodies() {
                let (entries, group) = (self.entry_reader(), target.group);
                let loading = tokio::task::spawn_blocking(move || {
                    answer.event.load(group, &entries);
                    answer
                });
                answer = loading.await.map_err(|e| BrokerError::Internal(e.to_string()))?;
            }
            // Another member leads in a moment, and answers the same.
            if !answer.event.is_unreadable() || tokio::time::Instant::now() >= deadline {
                break;
            }
            tokio::time::sleep(PAUSE).await;
        }
        match answer.event {
            QueueEvent::Replied { reply, .. } => match reply {
                QueueReply::Unsupported => Err(BrokerError::Internal(format!(
                    "queue '{}' in vhost '{}' has a member that does not support this yet",
                    target.name, target.vhost
                ))),
                reply => Ok(reply),
            },
            other => Err(BrokerError::Internal(format!("the queue answered {other:?}"))),
        }
    }

    /// A queue's figures from its leader.
    pub async fn queue_stats(&self, target: &QueueTarget, timeout: Duration) -> Result<QueueStats, BrokerError> {
        let from = SessionRef { node: self.me, incarnation: self.sessions.incarnation(), id: 0 };
        let answer = self.ask_queue(from, target, timeout, |correlation| QueueItem::Stat { correlation }).await?;
        match answer.event {
            QueueEvent::Stats { stats, .. } => Ok(stats),
            other => Err(BrokerError::Internal(format!("the queue answered {other:?}"))),
        }
    }

    /// The leader that answers for a queue.
    pub(crate) async fn answering_leader(&self, target: &QueueTarget, timeout: Duration) -> Option<NodeId> {
        let answer =
            self.ask_queue(self.nobody(), target, timeout, |correlation| QueueItem::Stat { correlation }).await;
        answer.ok().map(|answer| answer.leader)
    }

    async fn ask_queue(
        &self,
        from: SessionRef,
        target: &QueueTarget,
        timeout: Duration,
        item: impl Fn(u64) -> QueueItem,
    ) -> Result<ToSession, BrokerError> {
        let deadline = tokio::time::Instant::now() + timeout;
        let mut hint = None;
        let mut member = 0;
        loop {
            if self.metadata.projections().peek().queue_of_group(target.group).is_none() {
                return Err(crate::error::no_queue(&target.vhost, &target.name));
            }
            if let Some(leader) = hint.take().or_else(|| self.find_leader(target, &mut member)) {
                let (correlation, answer) = self.sessions.call();
                self.links.to_queue(leader, ToQueue { group: target.group, from, items: vec![item(correlation)] });
                let until = (tokio::time::Instant::now() + ATTEMPT).min(deadline);
                match tokio::time::timeout_at(until, answer).await {
                    Ok(Ok(ToSession { event: QueueEvent::NotLeader { leader: other, busy, .. }, .. })) => {
                        hint = other.filter(|node| !busy && *node != leader);
                    }
                    Ok(Ok(answer)) => return Ok(answer),
                    Ok(Err(_)) | Err(_) => {}
                }
            } else if target.kind == QueueKind::Classic {
                return Err(BrokerError::NotFound(format!(
                    "home node of durable queue '{}' in vhost '{}' is down or inaccessible",
                    target.name, target.vhost
                )));
            }
            if tokio::time::Instant::now() >= deadline {
                return Err(BrokerError::Timeout(format!(
                    "queue '{}' in vhost '{}' has no leader: the operation timed out",
                    target.name, target.vhost
                )));
            }
            if hint.is_none() {
                tokio::time::sleep(PAUSE).await;
            }
        }
    }

    /// The cluster as it was formed.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
}
