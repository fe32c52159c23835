//! Starting and stopping a node's broker (spec: operations.md, section 5.2).

use std::collections::HashMap;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::{Arc, OnceLock, Weak};
use std::time::{Duration, Instant};

use bytes::Bytes;
use serde::Serialize;
use tokio::sync::{broadcast, mpsc};
use tokio::task::JoinSet;
use warren_metastore::records::{self, Definition, User, Vhost};
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, Incarnation, MemberUid, NodeId};
use warren_proto::peer;
use warren_queues::quorum::{LATEST, SUPPORTED};
use warren_raft::driver::{Event, GroupSpec, MemberChange, OpenError, StopReason};
use warren_raft::log_store::{LogStore, Member, StoreError};
use warren_raft::runtime::{self, Host, HostConfig, HostHooks, PeerSink};
use warren_raft::storage::{RocksStore, StoreConfig};
use warren_raft::transport::{
    CallError, CallHandler, CallTarget, Caller, IncomingCall, Introduction, Lane, PeerEvent, Replies, Suspicion,
    Transport, TransportConfig, TransportError,
};

use crate::abandon::abandon;
use crate::access;
use crate::cluster::formation::{self, HELLO, Hello, JOIN, JoinRequest, Membership, NotTaken, Peer, REMOVED};
use crate::cluster::identity_file::{Cluster, IdentityError, NodeIdentity, random_u64};
use crate::cluster::removal::{self, ADVICE, STANDING};
use crate::cluster::{next_life, voters};
use crate::connections::Connections;
use crate::dead_letter::DeadLetters;
use crate::feature_flags::inventory::INVENTORIES;
use crate::feature_flags::{ASK, FeatureFlags, FlagsError, JOIN_TURN};
use crate::limits::USED;
use crate::metadata::visibility::{APPLIED, PATIENCE};
use crate::metadata::{MetaMachine, Metadata, WriteError};
use crate::node::{Broker, NodeConfig};
use crate::operations::forget::{self, Unreachable};
use crate::operations::members::ORDER;
use crate::operations::{maintenance, orphans, reconcile};
use crate::policy::quorum_config;
use crate::queue::classic_host::ClassicHost;
use crate::queue::group::{GroupContext, GroupRequest, QuorumMachine, refuse};
use crate::queue::links::{Links, LocalQueues};
use crate::queue::policies;
use crate::queue::protocol::ToQueue;
use crate::queue::quarantine::Quarantine;
use crate::queue::supervisor::{self, QueueChange};
use crate::session::registry::{CloseReason, Sessions};

/// Exit status after a failed write or sync of a log.
pub const EXIT_LOG_WRITE_FAILED: i32 = 74;
/// Exit status after a fault inside the metadata group.
pub const EXIT_INTERNAL: i32 = 70;
/// Exit status where somebody has to do something before the node can run.
pub const EXIT_DAMAGED: i32 = 78;
const HOUSEKEEPING: Duration = Duration::from_secs(5);
/// Time between two words on what a node that starts waits for.
const LEADER_WAIT: Duration = Duration::from_secs(10);
/// Without a leader for so long, it asks whether the cluster still has it.
const DOUBT: Duration = Duration::from_secs(2);
/// How long a node that comes back and wants its member replaced waits until it is known whether it was removed.
const ADMISSION: Duration = Duration::from_secs(5);
/// How long a node that stops waits for the end of its own change of feature flags.
const FLAGS_END: Duration = Duration::from_secs(30);
/// A disk that does not answer costs the node its leaderships after `disk_stall`, and after so many times that the process
/// exits.
const STALLS_TO_EXIT: u32 = 6;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port or socket is not to be had, or the configuration contradicts itself.
    #[error(transparent)]
    Transport(#[from] TransportError),
    /// The data directory's identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A database cannot be opened or read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The Raft host did not start.
    #[error(transparent)]
    Host(#[from] runtime::StartError),
    /// The metadata group's state cannot be rebuilt.
    #[error("the metadata cannot be rebuilt: {0}")]
    Metadata(String),
    /// No metadata leader within the time allowed.
    #[error("no metadata leader within {0:?}; a majority of the metadata members must be running")]
    NoLeader(Duration),
    /// The cluster that this node is to join did not take it in.
    #[error("the cluster did not take this node in: {0}")]
    NotAdmitted(String),
    /// The cluster goes on without this node.
    #[error("{ADVICE}")]
    Removed,
    /// Its feature flags do not let it start.
    #[error(transparent)]
    Flags(#[from] FlagsError),
    /// What a new cluster starts with could not be written.
    #[error("the first virtual host and user could not be created: {0}")]
    Defaults(#[from] WriteError),
}

/// What the node is busy with, for whoever asks before it serves.
pub type Progress = Arc<dyn Fn(&str) + Send + Sync>;

impl Broker {
    /// Starts this node: opens its databases, finds or founds its cluster, and waits until the metadata can be read. Client
    /// listeners may be opened once this returns. `admin` answers calls from the start.
    pub async fn start(
        config: NodeConfig,
        admin: Arc<dyn CallHandler>,
        progress: Progress,
    ) -> Result<Arc<Broker>, StartError> {
        let me = NodeId::of_name(&config.name);
        let mut identity = NodeIdentity::load_or_create(&config.data, &config.name)?;
        check_databases(&mut identity, &config)?;
        let flags = Arc::new(open_flags(&identity, &config)?);
        let transport = Transport::start(TransportConfig {
            me,
            name: config.name.clone(),
            incarnation: identity.incarnation,
            listen: config.peer_listen,
            unix_socket: Some(config.data.join("admin.sock")),
            secret: config.secret.clone(),
            suspicion: Suspicion::default(),
            introduction: Some(Arc::clone(&flags) as Arc<dyn Introduction>),
        })?;
        flags.set_transport(&transport);
        let calls = Arc::new(Calls {
            hello: parking_lot::Mutex::new(Hello {
                name: identity.name.clone(),
                incarnation: identity.incarnation,
                cluster: identity.cluster.clone(),
                metadata_version: 0,
                begins_with: flags.could_begin_with(),
                enabled: None,
            }),
            flags: Arc::clone(&flags),
            broker: OnceLock::new(),
            admin: OnceLock::from(admin),
        });
        transport.on_call(calls.clone());

        progress("recovering");
        let sessions = Arc::new(Sessions::new(me, random_u64()));
        let links = Arc::new(Links::new(Arc::clone(&sessions), transport.clone(), tokio::runtime::Handle::current()));
        let (queue_changes, changes) = mpsc::unbounded_channel();
        let metadata = Metadata::new(sessions.incarnation(), config.metadata_timeout, queue_changes.clone());
        let (deleted, configured) = (metadata.clone(), metadata.clone());
        let (unused, unused_queues) = mpsc::unbounded_channel();
        let (nodes, unreachable) = (metadata.clone(), Arc::new(Unreachable::default()));
        let noted = Arc::clone(&unreachable);
        let groups = Arc::new(GroupContext {
            me,
            sessions: Arc::clone(&sessions),
            links: Arc::clone(&links),
            supported: *SUPPORTED.start()..=config.machine_version.min(LATEST),
            is_deleted: Box::new(move |group| !deleted.has_queue(group)),
            dead_letters: Arc::new(DeadLetters::new(tokio::runtime::Handle::current())),
            unused,
            configuration: Box::new(move |group| configured.quorum_config(group)),
            unreachable: Box::new(move |group, node| {
                if !nodes.has_node(node) {
                    noted.note(group, node);
                }
            }),
        });
        let (meta_store, queue_store) = open_stores(&config).await?;
        let quarantine = Arc::new(Quarantine::new(Arc::clone(&queue_store), config.queues_data.join("quarantine")));
        let (meta_store, queue_store) = watch_damage(meta_store, queue_store, &quarantine, queue_changes);
        let meta_host = {
            let metadata = metadata.clone();
            let mut settings = HostConfig { shards: 1, name: "meta".into(), ..host_config(&config, &sessions) };
            settings.driver.snapshot_max_entries = config.metadata_snapshot_interval;
            let hooks = hooks("metadata", true);
            Host::start(settings, meta_store.clone(), sink(&transport), hooks, move |_, _| metadata.machine())?
        };
        if let Some(unopened) = meta_host.unopened().first() {
            return Err(match &unopened.error {
                OpenError::Store(error) => StartError::Store(error.clone()),
                other => StartError::Metadata(other.to_string()),
            });
        }
        let queues = {
            let groups = Arc::clone(&groups);
            let settings =
                HostConfig { shards: shards(config.shards), name: "queue".into(), ..host_config(&config, &sessions) };
            let hooks = hooks("queues", false);
            Host::start(settings, queue_store.clone(), sink(&transport), hooks, move |_, init| {
                let arguments = FieldTable::decode_bare(init).unwrap_or_default();
                QuorumMachine::new(Arc::clone(&groups), quorum_config(&arguments, &Definition::new()))
            })?
        };
        let entries = queues.entry_reader();
        let (abandoned, left) = mpsc::unbounded_channel();
        let classic = Arc::new(ClassicHost::new(me, Arc::clone(&links), abandoned));
        metadata.connect(meta_host.clone(), Arc::clone(&links));
        let local = Local {
            me,
            links: Arc::downgrade(&links),
            queues: queues.clone(),
            classic: Arc::clone(&classic),
            meta: meta_host.clone(),
        };
        links.connect(Arc::new(local), Arc::clone(&entries));
        receive_frames(&transport, &meta_host, &queues, &links);

        progress("looking for the cluster");
        let own = Peer { name: config.name.clone(), address: config.peer_address.clone() };
        for peer in config.peers.iter().filter(|p| p.name != own.name) {
            transport.set_peer(NodeId::of_name(&peer.name), &peer.name, &peer.address);
        }
        let damaged = |u: &&runtime::Unopened| matches!(u.error, OpenError::Store(StoreError::Corrupt(_)));
        for unopened in queues.unopened().iter().filter(damaged) {
            quarantine.note_damage(unopened.record.group);
        }
        let cluster = join_or_found(&mut identity, &config, &own, &transport, &meta_host, &metadata, &flags).await?;
        if !identity.has_databases {
            identity.has_databases = true;
            identity.store(&config.data)?;
        }
        calls.hello.lock().cluster = Some(cluster.clone());
        for founder in cluster.founders.iter().filter(|f| f.name != own.name) {
            transport.set_peer(NodeId::of_name(&founder.name), &founder.name, &founder.address);
        }

        let broker = Arc::new(Broker {
            me,
            incarnation: identity.incarnation,
            sessions,
            connections: Connections::default(),
            links,
            metadata,
            flags,
            queues,
            groups,
            cluster,
            classic,
            transport: transport.clone(),
            entries,
            stores: [Arc::clone(&meta_store), Arc::clone(&queue_store)],
            quarantine,
            started: Instant::now(),
            stranger: access::stranger(),
            may_grow: Arc::default(),
            admissions: Arc::default(),
            exclusive: parking_lot::Mutex::default(),
            config,
        });
        let _ = calls.broker.set(Arc::downgrade(&broker));
        broker.groups.dead_letters.connect(Arc::downgrade(&broker));
        broker.flags.connect(&broker);
        tokio::spawn(follow_peers(Arc::downgrade(&broker), transport.events()));

        progress("waiting for a metadata leader");
        broker.wait_for_metadata().await?;
        broker.metadata.set_current();
        broker.enrol().await?;
        // A node that starts is in service.
        if broker.is_in_maintenance() {
            broker.end_maintenance().await?;
        }
        // From now on the metadata says where the others are.
        next_life::forget_contacts(&broker.config.data);
        broker.flags.end_join();
        progress("starting queues");
        let dead = broker.delete_own_dead_queues().await;
        progress("comparing feature flags");
        broker.flags.agree().await?;
        tokio::spawn(Arc::clone(&broker.flags).look_after(Arc::downgrade(&broker)));
        progress("starting queues");
        broker.compare_queues(false).await;
        tokio::spawn(supervisor::run(Arc::downgrade(&broker), changes));
        tokio::spawn(reconcile::run(Arc::downgrade(&broker)));
        tokio::spawn(policies::run(Arc::downgrade(&broker)));
        tokio::spawn(forget::run(Arc::downgrade(&broker), unreachable));
        tokio::spawn(removal::watch(Arc::downgrade(&broker)));
        tokio::spawn(maintenance::watch(Arc::downgrade(&broker)));
        tokio::spawn(voters::watch(Arc::downgrade(&broker)));
        tokio::spawn(orphans::run(Arc::downgrade(&broker), left, dead));
        tokio::spawn(delete_unused(Arc::downgrade(&broker), unused_queues));
        tokio::spawn(housekeep(Arc::downgrade(&broker), vec![meta_store, queue_store]));
        broker.metadata.show_to_others(transport, broker.config.visibility_wait);
        progress("running");
        Ok(broker)
    }

    async fn wait_for_metadata(&self) -> Result<(), StartError> {
        let deadline = Instant::now() + self.config.leader_wait;
        loop {
            let removed = async {
                tokio::time::sleep(DOUBT).await;
                if !self.was_removed().await {
                    std::future::pending::<()>().await;
                }
            };
            tokio::select! {
                fenced = self.metadata.fence(LEADER_WAIT) => if fenced.is_ok() {
                    return Ok(());
                },
                () = removed => return Err(StartError::Removed),
            }
            // No majority can be reached, and this is why.
            if let Some(why) = self.flags.incompatibility() {
                return Err(FlagsError::Incompatible(why).into());
            }
            if Instant::now() >= deadline {
                return Err(StartError::NoLeader(self.config.leader_wait));
            }
            // Founders that have left since are not waited for.
            let status = self.metadata.host().and_then(|host| host.status(GroupId::METADATA));
            let belongs = |node| status.as_ref().is_none_or(|s| s.membership.on_node(node).is_some());
            let founders = self.cluster.founders.iter().map(|f| (NodeId::of_name(&f.name), f.name.as_str()));
            let missing: Vec<&str> =
                founders.filter(|(id, _)| belongs(*id) && !self.links.is_up(*id)).map(|(_, name)| name).collect();
            tracing::info!(?missing, "waiting for a majority of the metadata members");
        }
    }

    /// Writes this node's record, and what a new cluster starts with.
    async fn enrol(&self) -> Result<(), StartError> {
        let record = records::Node {
            name: self.config.name.as_str().into(),
            id: self.me,
            incarnation: Incarnation(self.incarnation),
            address: self.config.peer_address.clone(),
            machine_version: self.config.machine_version.0,
            ..records::Node::default()
        };
        self.metadata.write(record.put()).await?;
        let tree = self.metadata.tree();
        let blank = Vhost::list(&tree).is_ok_and(|vhosts| vhosts.is_empty())
            && User::list(&tree).is_ok_and(|users| users.is_empty())
            && records::Cluster::internal_id(&tree).is_ok_and(|id| id.is_none());
        if !blank {
            return Ok(());
        }
        let id = records::Cluster::create_internal_id(&format!("{:016x}", self.cluster.id));
        let name = self.config.cluster_name.clone().unwrap_or_else(|| self.cluster.founders[0].name.clone());
        let founded = id.and(records::Cluster::set_name(&name));
        if self.config.loads_definitions {
            return match self.metadata.write(founded).await {
                Ok(_) | Err(WriteError::Refused(_)) => Ok(()),
                Err(error) => Err(error.into()),
            };
        }
        let user = User::with_password(
            &self.config.default_user,
            self.config.default_pass.as_bytes(),
            access::salt(),
            self.config.default_user_tags.clone(),
        );
        let [configure, write, read] = self.config.default_permissions.clone();
        let permission = records::Permission {
            user: self.config.default_user.as_str().into(),
            vhost: self.config.default_vhost.as_str().into(),
            configure,
            write,
            read,
            ..records::Permission::default()
        };
        // All or nothing, and only once: several nodes of a new cluster come here at the same time.
        let defaults =
            founded.and(user.create()).and(Vhost::named(&self.config.default_vhost).create(None)).and(permission.set());
        match self.metadata.write(defaults).await {
            Ok(_) | Err(WriteError::Refused(_)) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Stops the node in order: clients are told to go, leadership is handed over, databases are closed.
    pub async fn shutdown(&self) {
        if tokio::time::timeout(FLAGS_END, self.flags.controller().idle()).await.is_err() {
            tracing::warn!("the node stops in the middle of a change of feature flags: the other nodes settle it");
        }
        self.sessions.close_all(&CloseReason::Shutdown);
        let deadline = Instant::now() + Duration::from_secs(5);
        while self.sessions.connection_count() > 0 && Instant::now() < deadline {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        let (queues, metadata) = (self.queues.clone(), self.metadata.host().cloned());
        // Writes what is under way and ends the threads.
        let ended = tokio::task::spawn_blocking(move || {
            queues.shutdown();
            if let Some(metadata) = metadata {
                metadata.shutdown();
            }
        });
        if let Err(error) = ended.await {
            tracing::error!(%error, "the Raft hosts did not stop in order");
        }
        self.transport.shutdown().await;
    }
}

fn shards(configured: usize) -> usize {
    match configured {
        0 => std::thread::available_parallelism().map_or(1, usize::from).min(8),
        n => n,
    }
}

/// What both Raft hosts of a node have in common.
fn host_config(config: &NodeConfig, sessions: &Sessions) -> HostConfig {
    let mut settings = HostConfig::new(sessions.node(), sessions.incarnation());
    settings.driver.disk_stall_ms = config.disk_stall.as_millis() as u64;
    settings.stall_limit = config.disk_stall * STALLS_TO_EXIT;
    settings
}

/// Refuses to go on without a database that the node had. Where it is the metadata's alone, and others can have it, the node
/// joins the metadata group again, as a new member, and keeps what it has of queues.
fn check_databases(identity: &mut NodeIdentity, config: &NodeConfig) -> Result<(), IdentityError> {
    let [metadata, queues] = database_paths(&config.data, &config.queues_data);
    identity.check_databases(&[queues])?;
    let alone = is_alone(identity, config);
    if alone {
        return identity.check_databases(&[metadata]);
    }
    if identity.check_databases(std::slice::from_ref(&metadata)).is_err() {
        // Written before the new database exists: a crash in between leaves no member that votes as its old self.
        identity.renew_member();
        identity.store(&config.data)?;
        tracing::warn!(
            database = %metadata.display(),
            "the metadata is missing: this node joins the metadata group again as a new member; its queues' data stays"
        );
    }
    Ok(())
}

fn open_flags(identity: &NodeIdentity, config: &NodeConfig) -> Result<FeatureFlags, FlagsError> {
    let alone = is_alone(identity, config);
    let belongs = identity.cluster.is_some();
    FeatureFlags::open(&config.name, &config.data, config.machine_version.0, &config.flags, belongs, alone)
}

/// Whether the node knows of no other one that may know its cluster.
fn is_alone(identity: &NodeIdentity, config: &NodeConfig) -> bool {
    let Some(cluster) = &identity.cluster else { return true };
    known_peers(config, cluster).iter().all(|peer| peer.name == config.name)
}

/// The nodes that may know the cluster; this one may be among them.
fn known_peers(config: &NodeConfig, cluster: &Cluster) -> Vec<Peer> {
    let mut peers = config.peers.clone();
    let founders = cluster.founders.iter().map(|f| Peer { name: f.name.clone(), address: f.address.clone() });
    peers.extend(founders);
    peers.sort_by(|a, b| a.name.cmp(&b.name));
    peers.dedup_by(|a, b| a.name == b.name);
    peers
}

/// Groups with data that cannot be read are stopped and replaced. Damaged metadata ends the process.
fn watch_damage(
    metadata: Arc<RocksStore>,
    queues: Arc<RocksStore>,
    quarantine: &Arc<Quarantine>,
    changes: mpsc::UnboundedSender<QueueChange>,
) -> (Arc<dyn LogStore>, Arc<dyn LogStore>) {
    let quarantine = Arc::downgrade(quarantine);
    queues.on_damage(move |group, error| {
        // Each reader meets it: told once.
        if quarantine.upgrade().is_some_and(|quarantine| quarantine.note_damage(group)) {
            tracing::error!(%group, %error, "a group's data on this node is damaged: its member stops and is replaced");
            let _ = changes.send(QueueChange::Damaged(group));
        }
    });
    metadata.on_damage(|_, error| {
        let error = error.clone();
        abandon(EXIT_DAMAGED, move || tracing::error!(%error, "the metadata on this node is damaged: the node stops"));
    });
    (metadata, queues)
}

/// The databases of the metadata and of the queues.
pub(crate) fn database_paths(data: &Path, queues_data: &Path) -> [PathBuf; 2] {
    [data.join("metadata"), queues_data.join("queues")]
}

async fn open_stores(config: &NodeConfig) -> Result<(Arc<RocksStore>, Arc<RocksStore>), StoreError> {
    let [metadata, queues] = database_paths(&config.data, &config.queues_data);
    let opened = tokio::task::spawn_blocking(move || {
        let metadata = RocksStore::open(&metadata, StoreConfig::metadata())?;
        let queues = RocksStore::open(&queues, StoreConfig::queues())?;
        Ok::<_, StoreError>((metadata, queues))
    });
    let (metadata, queues) = opened.await.map_err(|e| StoreError::Read(e.to_string()))??;
    Ok((Arc::new(metadata), Arc::new(queues)))
}

/// What the Raft hosts report. A log that cannot be written ends the process: nothing may be acknowledged any more. So does
/// a fault of the metadata group; other groups stop alone.
fn hooks(database: &'static str, all_or_nothing: bool) -> HostHooks {
    HostHooks {
        on_event: Box::new(move |event| match event {
            Event::Stopped { group, reason } => {
                tracing::error!(%group, ?reason, "a group stopped on this node; its log is kept");
                if all_or_nothing && matches!(reason, StopReason::Faulted(_)) {
                    std::process::exit(EXIT_INTERNAL);
                }
            }
            Event::Amnesia { group, commit, last_index } => {
                tracing::error!(%group, commit, last_index, "the disk lost synced writes: the member does not vote until it has caught up");
            }
            Event::Undecodable { group, index } => {
                tracing::error!(%group, index, "an entry cannot be read; it changes nothing on any member");
            }
            Event::Role { .. } | Event::Membership { .. } | Event::Changed { .. } | Event::Read { .. } => {}
        }),
        on_fatal: Box::new(move |error| {
            log_write_failed(database, error);
        }),
    }
}

fn log_write_failed(database: &'static str, error: StoreError) -> ! {
    abandon(EXIT_LOG_WRITE_FAILED, move || {
        tracing::error!(
            database, %error,
            "the log cannot be written: the node stops, so that nothing is acknowledged that is not on disk"
        );
    })
}

fn sink(transport: &Transport) -> Arc<dyn PeerSink> {
    Arc::new(Sink(transport.clone()))
}

struct Sink(Transport);

impl PeerSink for Sink {
    fn send(&self, to: NodeId, lane: warren_raft::driver::Lane, batch: peer::RaftBatch) -> bool {
        let lane = match lane {
            warren_raft::driver::Lane::Control => Lane::Control,
            warren_raft::driver::Lane::Append => Lane::Append,
            warren_raft::driver::Lane::Bulk => Lane::Bulk,
        };
        self.0.send(to, lane, peer::Frame { kind: Some(peer::frame::Kind::Raft(batch)) }).is_ok()
    }
}

fn receive_frames(transport: &Transport, meta: &Host<MetaMachine>, queues: &Host<QuorumMachine>, links: &Arc<Links>) {
    for lane in [Lane::Control, Lane::Append, Lane::Bulk] {
        let (meta, queues) = (meta.clone(), queues.clone());
        transport.on_frame(
            lane,
            Arc::new(move |from, frame| {
                let Some(peer::frame::Kind::Raft(batch)) = frame.kind else { return };
                let (metadata, others): (Vec<_>, Vec<_>) =
                    batch.messages.into_iter().partition(|m| m.group == GroupId::METADATA.0);
                if !metadata.is_empty() {
                    meta.deliver(from, peer::RaftBatch { messages: metadata });
                }
                if !others.is_empty() {
                    queues.deliver(from, peer::RaftBatch { messages: others });
                }
            }),
        );
    }
    let links = Arc::downgrade(links);
    transport.on_frame(
        Lane::Queue,
        Arc::new(move |from, frame| {
            if let (Some(peer::frame::Kind::Broker(payload)), Some(links)) = (frame.kind, links.upgrade()) {
                links.received(from, payload);
            }
        }),
    );
}

/// The queues and the metadata member of this node, as [`Links`] reaches them.
struct Local {
    me: NodeId,
    links: Weak<Links>,
    queues: Host<QuorumMachine>,
    classic: Arc<ClassicHost>,
    meta: Host<MetaMachine>,
}

impl LocalQueues for Local {
    fn accept(&self, to: ToQueue) {
        if self.classic.contains(to.group) {
            self.classic.accept(to);
            return;
        }
        let group = to.group;
        let Err(GroupRequest::Session(to)) = self.queues.send(group, GroupRequest::Session(to)) else { return };
        let Some(links) = self.links.upgrade() else { return };
        // Not here, or its mailbox is full: in either case the session asks again.
        let busy = self.queues.has_group(group);
        refuse(&links, self.me, to, None, busy);
    }

    fn accept_metadata(&self, command: Bytes) {
        // What cannot be taken is sent again by whoever waits for it.
        let _ = self.meta.send(GroupId::METADATA, command);
    }
}

async fn join_or_found(
    identity: &mut NodeIdentity,
    config: &NodeConfig,
    own: &Peer,
    transport: &Transport,
    host: &Host<MetaMachine>,
    metadata: &Metadata,
    flags: &FeatureFlags,
) -> Result<Cluster, StartError> {
    let known = identity.cluster.clone();
    let returns = known.is_some();
    let (cluster, joined) = match known {
        Some(mut cluster) => {
            let uid = cluster.uid;
            let founder = cluster.founders.iter_mut().find(|f| f.uid == uid);
            let joined = founder.is_none();
            if let Some(founder) = founder {
                // Where it is reached may have changed since.
                founder.address = own.address.clone();
            }
            (cluster, joined)
        }
        None => match formation::find_cluster(identity, own, config, transport, flags).await? {
            Membership::Founder(cluster) => (cluster, false),
            Membership::Joined(cluster) => (cluster, true),
        },
    };
    // Written before the member exists: a node that stops here starts the same member again.
    identity.cluster = Some(cluster.clone());
    identity.store(&config.data)?;
    if !host.has_group(GroupId::METADATA) {
        if joined && returns {
            // It is in already if the node stopped right here before: then this changes nothing.
            let peers = known_peers(config, &cluster);
            let joining = formation::join_again(identity, own, &peers, cluster.uid, config.discovery, transport);
            joining.await.map_err(|not| match not {
                NotTaken::Removed => StartError::Removed,
                NotTaken::Yet(reason) => StartError::NotAdmitted(reason),
            })?;
        }
        let members = cluster
            .founders
            .iter()
            .enumerate()
            .map(|(number, founder)| Member {
                uid: MemberUid(founder.uid),
                node: NodeId::of_name(&founder.name),
                role: voters::founding_role(number),
            })
            .collect();
        let spec = GroupSpec {
            group: GroupId::METADATA,
            me: MemberUid(cluster.uid),
            members,
            version: *warren_metastore::machine::Machine::VERSIONS.end(),
            init: Bytes::new(),
            campaign: !joined && cluster.founders[0].uid == cluster.uid,
            machine: metadata.machine(),
        };
        host.create_group(spec).await.map_err(|e| StoreError::Write(e.to_string()))?;
    }
    tracing::info!(
        cluster = format!("{:016x}", cluster.id),
        founders = ?cluster.founders.iter().map(|f| f.name.as_str()).collect::<Vec<_>>(),
        joined,
        "this node belongs to a cluster"
    );
    Ok(cluster)
}

/// Answers calls of other nodes, and hands the command line's to its handler.
struct Calls {
    hello: parking_lot::Mutex<Hello>,
    flags: Arc<FeatureFlags>,
    broker: OnceLock<Weak<Broker>>,
    admin: OnceLock<Arc<dyn CallHandler>>,
}

impl CallHandler for Calls {
    fn call(&self, call: IncomingCall, replies: Replies) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            match call.method.as_str() {
                HELLO => {
                    let mut hello = self.hello.lock().clone();
                    hello.metadata_version = self.metadata_version();
                    hello.enabled = hello.cluster.is_some().then(|| self.flags.enabled());
                    answer(&hello, &replies).await;
                }
                ASK if is_peer(&call) => self.flags.answer_ask(&call.payload, &replies).await,
                INVENTORIES => self.flags.answer_inventories(&replies).await,
                JOIN_TURN if is_peer(&call) => self.flags.answer_join(&call.payload, &replies).await,
                STANDING => self.standing(&call.payload, &replies).await,
                JOIN => self.join(&call.payload, &replies).await,
                ORDER => self.order(&call.payload, &replies).await,
                APPLIED => self.applied(&call.payload, &replies).await,
                USED => self.used(&call.payload, &replies).await,
                _ => match self.admin.get() {
                    Some(admin) => admin.call(call, replies).await,
                    None => replies.fail("not_ready", "the node is starting").await,
                },
            }
        })
    }
}

/// Only nodes change other nodes' feature flags.
fn is_peer(call: &IncomingCall) -> bool {
    matches!(call.caller, Caller::Node { .. })
}

async fn answer<T: Serialize + Sync>(said: &T, replies: &Replies) {
    match serde_json::to_vec(said) {
        Ok(bytes) => drop(replies.send(bytes).await),
        Err(error) => replies.fail("internal", error.to_string()).await,
    }
}

impl Calls {
    fn metadata_version(&self) -> u16 {
        let broker = self.broker.get().and_then(Weak::upgrade);
        let status = broker.and_then(|broker| broker.metadata.host()?.status(GroupId::METADATA));
        status.map_or(0, |status| status.version.0)
    }

    async fn standing(&self, payload: &[u8], replies: &Replies) {
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return replies.fail("not_ready", "the node is starting").await;
        };
        match broker.standing(payload).await {
            Ok(standing) => answer(&standing, replies).await,
            Err(reason) => replies.fail("unknown", reason).await,
        }
    }

    async fn applied(&self, payload: &[u8], replies: &Replies) {
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return replies.fail("not_ready", "the node is starting").await;
        };
        let Ok(index) = payload.try_into().map(u64::from_be_bytes) else {
            return replies.fail("invalid", "an index has eight bytes").await;
        };
        match broker.metadata.applied_within(index, PATIENCE).await {
            Some(applied) => drop(replies.send(applied.to_be_bytes().to_vec()).await),
            None => replies.fail("not_ready", "the node is starting").await,
        }
    }

    async fn order(&self, payload: &[u8], replies: &Replies) {
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return replies.fail("not_ready", "the node is starting").await;
        };
        match broker.take_order(payload).await {
            Ok(()) => drop(replies.send("{}").await),
            Err(refused) => replies.fail(refused.word(), "the order was not carried out").await,
        }
    }

    async fn used(&self, payload: &[u8], replies: &Replies) {
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return replies.fail("not_ready", "the node is starting").await;
        };
        match broker.answer_used(payload) {
            Ok(used) => answer(&used, replies).await,
            Err(reason) => replies.fail("invalid", reason).await,
        }
    }

    async fn join(&self, payload: &[u8], replies: &Replies) {
        let request: JoinRequest = match serde_json::from_slice(payload) {
            Ok(request) => request,
            Err(error) => return replies.fail("invalid", error.to_string()).await,
        };
        let Some(broker) = self.broker.get().and_then(Weak::upgrade) else {
            return replies.fail("not_ready", "the node is starting").await;
        };
        match broker.admit(&request).await {
            Ok(()) => drop(replies.send("{}").await),
            Err(NotTaken::Removed) => replies.fail(REMOVED, NotTaken::Removed.to_string()).await,
            Err(NotTaken::Yet(reason)) => replies.fail("not_admitted", reason).await,
        }
    }
}

impl Broker {
    /// Makes a node a member of the metadata group, in place of whatever member it had before.
    async fn admit(&self, request: &JoinRequest) -> Result<(), NotTaken> {
        let yet = |reason: &str| NotTaken::Yet(reason.to_owned());
        let host = self.metadata.host().ok_or_else(|| yet("the node is starting"))?;
        if self.metadata.leader() != Some(self.me) {
            let leader = self.metadata.leader().ok_or_else(|| yet("the metadata group has no leader"))?;
            let payload = serde_json::to_vec(request).map_err(|e| yet(&e.to_string()))?;
            let asked = async {
                let target = CallTarget::Node(leader);
                let time = Duration::from_secs(20);
                self.transport.call(target, JOIN, Bytes::from(payload), time).await?.one().await
            };
            return asked.await.map(|_| ()).map_err(|error| match error {
                CallError::Failed { code, .. } if code == REMOVED => NotTaken::Removed,
                error => yet(&error.to_string()),
            });
        }
        let node = NodeId::of_name(&request.name);
        let status = host.status(GroupId::METADATA).ok_or_else(|| yet("the node is starting"))?;
        if status.membership.members.iter().any(|m| m.uid == MemberUid(request.uid)) {
            return Ok(());
        }
        if request.returns {
            self.metadata.fence(ADMISSION).await.map_err(|e| yet(&e.to_string()))?;
            let life = Incarnation(request.incarnation);
            if !self.metadata.nodes().iter().any(|n| n.id == node && n.incarnation == life) {
                return Err(NotTaken::Removed);
            }
        }
        self.transport.set_peer(node, &request.name, &request.address);
        let old = status.membership.members.iter().filter(|m| m.node == node).map(|m| m.uid);
        let mut change: Vec<MemberChange> = old.map(MemberChange::Remove).collect();
        if !change.is_empty() {
            tracing::info!(name = request.name, "the node comes back without its data: its old member is replaced");
        }
        let role = voters::joining_role(&status.membership, |m| m.node == node);
        change.push(MemberChange::Add(Member { uid: MemberUid(request.uid), node, role }));
        host.change_members(GroupId::METADATA, change).await.map_err(|e| yet(&e.to_string()))
    }
}

/// Carries what the transport learns about peers to whoever needs it, and what the metadata says about their addresses to
/// the transport.
async fn follow_peers(broker: Weak<Broker>, mut events: broadcast::Receiver<PeerEvent>) {
    let Some(mut applied) = broker.upgrade().map(|b| b.metadata.applied()) else { return };
    let mut addresses: HashMap<NodeId, String> = HashMap::new();
    // Nodes whose records went, once it is sure that they did.
    let mut left = JoinSet::new();
    loop {
        tokio::select! {
            Some(Ok(node)) = left.join_next() => {
                let Some(broker) = broker.upgrade() else { return };
                if let Some(node) = node && broker.has_left(node) {
                    broker.transport.remove_peer(node);
                }
            }
            event = events.recv() => {
                let Some(broker) = broker.upgrade() else { return };
                match event {
                    Ok(event) => broker.peer_event(event),
                    // Some were missed: take every peer for new.
                    Err(broadcast::error::RecvError::Lagged(_)) => {
                        for (node, ..) in broker.transport.peers() {
                            let event = if broker.transport.is_up(node) { PeerEvent::Up(node, 0) } else { PeerEvent::Down(node) };
                            broker.peer_event(event);
                        }
                    }
                    Err(broadcast::error::RecvError::Closed) => return,
                }
            }
            changed = applied.changed() => {
                if changed.is_err() {
                    return;
                }
                let Some(broker) = broker.upgrade() else { return };
                let nodes = broker.metadata.nodes();
                for (node, _) in addresses.extract_if(|id, _| !nodes.iter().any(|n| n.id == *id)) {
                    // A replayed log names nodes that left and came back long ago. Whoever is cut off then may be the only
                    // one to send the rest.
                    let metadata = broker.metadata.clone();
                    let sure = async move { metadata.fence(LEADER_WAIT).await.is_ok().then_some(node) };
                    left.spawn(sure);
                }
                for node in nodes {
                    if node.id != broker.me && addresses.get(&node.id) != Some(&node.address) {
                        broker.transport.set_peer(node.id, &node.name, &node.address);
                        addresses.insert(node.id, node.address.clone());
                    }
                }
            }
        }
    }
}

impl Broker {
    fn peer_event(&self, event: PeerEvent) {
        let meta = self.metadata.host();
        match event {
            PeerEvent::Up(node, _) => {
                tracing::info!(%node, "peer is up");
                self.flags.peer_up();
                if let Some(host) = meta {
                    host.peer_up(node);
                }
                self.queues.peer_up(node);
                self.tell_groups(|| GroupRequest::NodeUp(node));
                self.sessions.node_up(node);
                self.may_grow.notify_one();
            }
            PeerEvent::Down(node) => {
                tracing::warn!(%node, "peer is down");
                self.flags.peer_down(node);
                if let Some(host) = meta {
                    host.peer_down(node);
                }
                self.queues.peer_down(node);
                self.tell_groups(|| GroupRequest::NodeDown(node));
                self.classic.node_down(node);
            }
            PeerEvent::Gap(node, Lane::Queue) => self.sessions.node_up(node),
            PeerEvent::Gap(..) => {}
        }
    }

    fn tell_groups(&self, request: impl Fn() -> GroupRequest) {
        for group in self.queues.groups() {
            let _ = self.queues.send(group, request());
        }
    }
}

/// How long it counts that a queue was unused.
const UNUSED_FOR: Duration = Duration::from_secs(2);

/// Deletes queues that nobody has used for as long as they are to live without.
async fn delete_unused(broker: Weak<Broker>, mut unused: mpsc::UnboundedReceiver<(GroupId, Instant)>) {
    while let Some((group, noted)) = unused.recv().await {
        let Some(broker) = broker.upgrade() else { return };
        if noted.elapsed() > UNUSED_FOR {
            // Somebody may use it by now. If not, its leader says so again.
            continue;
        }
        let Some(queue) = broker.metadata.queue_of_group(group) else { continue };
        match broker.delete_queue(&queue).await {
            Ok(()) => {
                tracing::info!(queue = %queue.name, vhost = %queue.vhost, "a queue was deleted because it was not used");
            }
            // Its leader says so again.
            Err(error) => {
                tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "an unused queue was not deleted yet");
            }
        }
    }
}

async fn housekeep(broker: Weak<Broker>, stores: Vec<Arc<dyn LogStore>>) {
    let mut tick = tokio::time::interval(HOUSEKEEPING);
    loop {
        tick.tick().await;
        if broker.upgrade().is_none() {
            return;
        }
        let stores = stores.clone();
        let done = tokio::task::spawn_blocking(move || {
            for (database, store) in ["metadata", "queues"].into_iter().zip(&stores) {
                match store.maintain() {
                    Ok(()) => {}
                    Err(error @ StoreError::Write(_)) => log_write_failed(database, error),
                    Err(error) => tracing::error!(database, %error, "log maintenance failed"),
                }
            }
        });
        if done.await.is_err() {
            return;
        }
    }
}
