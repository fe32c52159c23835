//! `warren server`: the boot order, and the orderly stop (spec: operations.md, sections 5.2 and 6.3).

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use clap::Args;
use tokio::signal::unix::{Signal, SignalKind, signal};
use warren_amqp091::AnonymousLogin;
use warren_broker::cluster::formation::Peer;
use warren_broker::cluster::identity_file::{IdentityError, NodeIdentity};
use warren_broker::cluster::{dns, next_life};
use warren_broker::definitions::ImportError;
use warren_broker::feature_flags::first_start::Forced;
use warren_broker::feature_flags::{FeatureFlags, FlagSettings, FlagsError};
use warren_broker::start::StartError;
use warren_broker::{Broker, Limits, NodeConfig, Retry};
use warren_metastore::records::{Cluster, QueueKind};
use warren_proto::amqp091::{FieldTable, FieldValue, Tuning};
use warren_proto::ids::{MachineVersion, NodeId};
use warren_raft::log_store::StoreError;
use warren_raft::transport::{Introduction, Suspicion, Transport, TransportConfig};

use crate::admin::Admin;
use crate::admin::state::{NodeState, address};
use crate::app::{self, App, Wish};
use crate::boot_definitions::Definitions;
use crate::config::environment::{self, Environment};
use crate::config::settings::{Mechanism, QueueType, Settings};
use crate::config::{self, Configuration, Overrides};
use crate::data_dir::{self, DataDir, DataDirError};
use crate::exit::Exit;
use crate::listeners::{ClientListeners, ListenError, Listening, any_address};
use crate::logging::{self, LogFile};
use crate::notify;

/// Runs a node in the foreground.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Configuration file, in rabbitmq.conf syntax
    #[arg(long)]
    config: Option<PathBuf>,
    /// Folder that holds the nodes' data
    #[arg(long)]
    data_dir: Option<PathBuf>,
    /// Name of the node: name@host
    #[arg(long, short = 'n')]
    node: Option<String>,
    /// Allows long host names
    #[arg(long, short = 'l')]
    longnames: bool,
    /// Feature flags that were enabled, where their file is lost: names with commas between them
    #[arg(long, value_delimiter = ',', value_name = "NAMES")]
    recreate_feature_flags: Option<Vec<String>>,
}

/// Runs a node until it is stopped.
pub fn run(options: Options) -> Exit {
    let overrides = Overrides {
        config: options.config,
        data_dir: options.data_dir,
        node: options.node,
        long_names: options.longnames,
        recreate_flags: options.recreate_feature_flags,
    };
    let configuration = match config::load(&overrides, &Environment::new(&environment::process)) {
        Ok(configuration) => configuration,
        Err(problems) => {
            for problem in &problems {
                complain!("Configuration error: {problem}");
            }
            return Exit::Config;
        }
    };
    match Server::prepare(configuration) {
        Ok(server) => server.run(),
        Err(Refused { why, exit }) => {
            complain!("Error: {why}");
            exit
        }
    }
}

/// Why the node does not run.
struct Refused {
    why: String,
    exit: Exit,
}

impl Refused {
    fn new(exit: Exit, why: impl Into<String>) -> Self {
        Refused { why: why.into(), exit }
    }
}

impl From<DataDirError> for Refused {
    fn from(error: DataDirError) -> Self {
        let exit = match &error {
            DataDirError::Io { error, .. } => exit_of(error),
            DataDirError::InUse { .. } | DataDirError::SecretExposed(_) => Exit::Config,
        };
        Refused::new(exit, error.to_string())
    }
}

impl From<IdentityError> for Refused {
    fn from(error: IdentityError) -> Self {
        let exit = match &error {
            IdentityError::Io { error, .. } => exit_of(error),
            _ => Exit::Config,
        };
        Refused::new(exit, error.to_string())
    }
}

impl From<ListenError> for Refused {
    fn from(error: ListenError) -> Self {
        let exit = match &error {
            ListenError::Unsupported(_) => Exit::Config,
            ListenError::Unusable(..) => Exit::Unavailable,
        };
        Refused::new(exit, error.to_string())
    }
}

/// A disk that is full may have room again when the node is started the next time; other errors need somebody.
fn exit_of(error: &io::Error) -> Exit {
    match error.kind() {
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::Io,
        _ => Exit::Config,
    }
}

impl From<StartError> for Refused {
    fn from(error: StartError) -> Self {
        let exit = match &error {
            StartError::Transport(_) => Exit::Unavailable,
            StartError::Identity(IdentityError::Io { error, .. }) => exit_of(error),
            StartError::Identity(_) => Exit::Config,
            // Starting again does not help; somebody has to do what the text says.
            StartError::Store(StoreError::Corrupt(_) | StoreError::Newer(_)) => Exit::Config,
            StartError::Host(warren_raft::runtime::StartError::Store(StoreError::Corrupt(_))) => Exit::Config,
            StartError::Store(_) => Exit::Io,
            StartError::Removed => Exit::Config,
            StartError::Flags(FlagsError::Incompatible(_) | FlagsError::Sync(_)) => Exit::Unavailable,
            StartError::Flags(_) => Exit::Config,
            StartError::NoLeader(_) | StartError::NotAdmitted(_) | StartError::Defaults(_) => Exit::Timeout,
            StartError::Host(_) | StartError::Metadata(_) => Exit::Software,
        };
        Refused::new(exit, error.to_string())
    }
}

/// A node whose data directory is locked and whose log is open.
struct Server {
    configuration: Configuration,
    data: DataDir,
    secret: String,
    log_file: Option<LogFile>,
}

impl Server {
    fn prepare(configuration: Configuration) -> Result<Self, Refused> {
        let (dir, node) = (&configuration.data_dir, &configuration.node);
        let data = DataDir::open(dir, node, configuration.pid_file.as_deref())?;
        let log_file = logging::start(&configuration.settings.log, &dir.join("log"), node.as_str())
            .map_err(|error| Refused::new(exit_of(&error), format!("the log file cannot be opened: {error}")))?;
        for warning in &configuration.warnings {
            tracing::warn!(origin = %warning.origin, "{}", warning.text);
        }
        let secret = data_dir::secret(dir, configuration.secret.as_deref())?;
        Ok(Server { configuration, data, secret, log_file })
    }

    fn run(self) -> Exit {
        raise_file_limit();
        let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_name("warren").build();
        let runtime = match runtime {
            Ok(runtime) => runtime,
            Err(error) => {
                tracing::error!(%error, "the runtime could not be started");
                return Exit::Software;
            }
        };
        let outcome = runtime.block_on(self.serve());
        // Tasks that ignore the stop do not hold the process.
        runtime.shutdown_timeout(Duration::from_millis(500));
        let exit = match outcome {
            Ok(Wish::End) => Exit::Ok,
            Ok(Wish::Again(app)) => {
                let error = app::start_again(app);
                tracing::error!(%error, "the process could not start its program again");
                Exit::Software
            }
            Err(Refused { why, exit }) => {
                tracing::error!("{why}");
                exit
            }
        };
        self.data.close();
        exit
    }

    /// Serves until it is told to end, or to begin anew.
    async fn serve(&self) -> Result<Wish, Refused> {
        let mut signals = Signals::new()?;
        let mut hangup = listen(SignalKind::hangup())?;
        let settings = &self.configuration.settings;
        let log_files = self.log_file.iter().map(|file| file.path().display().to_string()).collect();
        // Read before there is anything that a mistake in them could leave behind.
        let definitions = Definitions::read(&settings.definitions)
            .map_err(|why| Refused::new(Exit::Config, format!("definitions cannot be imported: {why}")))?;
        let mut node_config = self.node_config();
        next_life::begin(&node_config.data, &node_config.queues_data)?;
        let identity = NodeIdentity::load_or_create(&node_config.data, &node_config.name)?;
        // What the node would have without its data: all that a node whose app is stopped says.
        let blank_flags = FeatureFlags::open(
            &node_config.name,
            &node_config.data,
            node_config.machine_version.0,
            &node_config.flags,
            false,
            true,
        );
        let blank_flags = Arc::new(blank_flags.map_err(StartError::from)?);
        let app = App::of_process();
        let state = Arc::new(NodeState::new(self.configuration.clone(), log_files, app, identity, blank_flags));
        tracing::info!(
            node = %self.configuration.node,
            version = env!("CARGO_PKG_VERSION"),
            data = %self.data.node.display(),
            "starting"
        );
        state.add_listener(Listening {
            interface: node_config.peer_listen.ip().to_string(),
            port: node_config.peer_listen.port(),
            protocol: "clustering",
            purpose: "inter-node and CLI tool communication",
        });
        if state.app == App::Stopped {
            return self.serve_operators(&state, node_config, &mut signals, &mut hangup).await;
        }
        for contact in next_life::contacts(&node_config.data) {
            if !node_config.peers.iter().any(|peer| peer.name == contact.name) {
                node_config.peers.push(contact);
            }
        }
        let progress = {
            let state = Arc::clone(&state);
            Arc::new(move |phase: &str| {
                state.set_phase(phase);
                notify::tell(&format!("STATUS={phase}"));
            })
        };
        let found = tokio::select! {
            found = self.discover(&state) => found?,
            () = signals.stop() => return Ok(Wish::End),
            wish = state.wished() => return Ok(wish),
        };
        node_config.peers.extend(found);
        let broker = tokio::select! {
            started = Broker::start(node_config, Arc::new(Admin(Arc::clone(&state))), progress) => started?,
            () = signals.stop() => {
                tracing::info!("stopped before the start was complete");
                return Ok(Wish::End);
            }
            wish = state.wished() => return Ok(wish),
        };
        state.set_broker(Arc::clone(&broker));
        let result = match self.import(definitions, &state, &broker, &mut signals).await {
            Ok(None) => self.serve_clients(&state, &broker, &mut signals, &mut hangup).await,
            Ok(Some(wish)) => Ok(wish),
            Err(refused) => Err(refused),
        };
        if !matches!(result, Ok(Wish::Again(_))) {
            notify::tell("STOPPING=1");
        }
        state.set_ready(false);
        state.set_phase("stopping");
        tokio::select! {
            stopped = tokio::time::timeout(settings.shutdown_timeout, broker.shutdown()) => match stopped {
                Ok(()) => tracing::info!("stopped"),
                Err(_) => tracing::warn!("the orderly stop took too long and was cut short"),
            },
            () = signals.stop() => {
                tracing::warn!("told again: stopping at once");
                return result.map(|_| Wish::End);
            }
        }
        result
    }

    /// The nodes that a blank node finds by DNS, if it is to. What cannot be looked up is tried again, so that a node never
    /// forms a cluster of its own since its resolver did not answer.
    async fn discover(&self, state: &NodeState) -> Result<Vec<Peer>, Refused> {
        let cluster = &self.configuration.settings.cluster;
        let Some(hostname) = cluster.dns.as_ref().filter(|_| state.identity.cluster.is_none()) else {
            return Ok(Vec::new());
        };
        let own = state.own();
        let mut failed = 0_u64;
        loop {
            match dns::discover(hostname, &own.name, self.configuration.settings.peer.port).await {
                Ok(mut found) => {
                    tracing::info!(nodes = ?found.iter().map(|peer| &peer.name).collect::<Vec<_>>(), "found by DNS");
                    found.retain(|peer| peer.name != own.name);
                    found.push(own);
                    return Ok(found);
                }
                Err(error) if cluster.retry_limit.is_some_and(|limit| failed >= limit) => {
                    return Err(Refused::new(Exit::Timeout, format!("peer discovery failed: {error}")));
                }
                Err(error) => tracing::warn!(error, "peer discovery failed: it is tried again"),
            }
            failed += 1;
            tokio::time::sleep(cluster.retry_interval).await;
        }
    }

    /// Imports definitions, unless the node is told to stop meanwhile: then it answers what for.
    async fn import(
        &self,
        definitions: Option<Definitions>,
        state: &NodeState,
        broker: &Arc<Broker>,
        signals: &mut Signals,
    ) -> Result<Option<Wish>, Refused> {
        let Some(definitions) = definitions else { return Ok(None) };
        state.set_phase("importing definitions");
        notify::tell("STATUS=importing definitions");
        let imported = tokio::select! {
            imported = definitions.import(broker, self.configuration.settings.definitions.skip_if_unchanged) => imported,
            () = signals.stop() => return Ok(Some(Wish::End)),
            wish = state.wished() => return Ok(Some(wish)),
        };
        let exit = |error: &ImportError| if error.timed_out { Exit::Timeout } else { Exit::Config };
        imported.map_err(|error| Refused::new(exit(&error), format!("definitions cannot be imported: {error}")))?;
        Ok(None)
    }

    /// Opens the client listeners, and closes them when the node is told to stop.
    async fn serve_clients(
        &self,
        state: &NodeState,
        broker: &Arc<Broker>,
        signals: &mut Signals,
        hangup: &mut Signal,
    ) -> Result<Wish, Refused> {
        let settings = &self.configuration.settings;
        let amqp091 = amqp091_settings(settings, broker);
        let listeners = Arc::new(ClientListeners::new(&settings.listeners, amqp091, Arc::clone(broker)));
        listeners.open().await?;
        state.set_clients(Arc::clone(&listeners));
        state.set_ready(true);
        notify::tell("READY=1\nSTATUS=running");
        tracing::info!(node = %self.configuration.node, "started");
        let wish = loop {
            tokio::select! {
                () = signals.stop() => break Wish::End,
                wish = state.wished() => break wish,
                _ = hangup.recv() => self.reopen_log(),
            }
        };
        tracing::info!("stopping");
        listeners.close().await;
        Ok(wish)
    }

    /// The app is stopped: answers operators, and takes no part in the cluster. It dials no peer, so that others hear no sign
    /// of life.
    async fn serve_operators(
        &self,
        state: &Arc<NodeState>,
        config: NodeConfig,
        signals: &mut Signals,
        hangup: &mut Signal,
    ) -> Result<Wish, Refused> {
        state.set_phase("its app is stopped");
        let transport = Transport::start(TransportConfig {
            me: NodeId::of_name(&config.name),
            name: config.name.clone(),
            incarnation: state.identity.incarnation,
            listen: config.peer_listen,
            unix_socket: Some(config.data.join("admin.sock")),
            secret: config.secret.clone(),
            suspicion: Suspicion::default(),
            introduction: Some(Arc::clone(&state.blank_flags) as Arc<dyn Introduction>),
        })
        .map_err(StartError::from)?;
        state.set_transport(transport.clone());
        transport.on_call(Arc::new(Admin(Arc::clone(state))));
        notify::tell("READY=1\nSTATUS=its app is stopped");
        tracing::info!(node = %self.configuration.node, "the node's app is stopped: it waits for operators");
        let wish = loop {
            tokio::select! {
                () = signals.stop() => break Wish::End,
                wish = state.wished() => break wish,
                _ = hangup.recv() => self.reopen_log(),
            }
        };
        transport.shutdown().await;
        Ok(wish)
    }

    fn reopen_log(&self) {
        if let Some(file) = &self.log_file
            && let Err(error) = file.reopen()
        {
            tracing::error!(%error, "the log file could not be opened again");
        }
    }

    fn node_config(&self) -> NodeConfig {
        let Configuration { node, settings, .. } = &self.configuration;
        let peers = settings
            .cluster
            .seeds
            .iter()
            .map(|seed| Peer { name: seed.node.to_string(), address: address(seed.node.host(), seed.port) });
        let queues_data = settings.queues_dir(node, &self.data.node);
        NodeConfig {
            name: node.to_string(),
            data: self.data.node.clone(),
            queues_data,
            peer_listen: SocketAddr::new(settings.peer.ip.unwrap_or_else(any_address), settings.peer.port),
            peer_address: address(node.host(), settings.peer.port),
            secret: Bytes::copy_from_slice(self.secret.as_bytes()),
            peers: peers.collect(),
            cluster_name: settings.cluster.name.clone(),
            metadata_timeout: settings.metadata.timeout,
            leader_wait: settings.metadata.leader_wait_timeout,
            visibility_wait: settings.metadata.visibility_wait,
            voter_replacement: settings.metadata.voter_replacement,
            metadata_snapshot_interval: settings.metadata.snapshot_interval,
            disk_stall: settings.disk_stall,
            discovery: Retry { limit: settings.cluster.retry_limit, pause: settings.cluster.retry_interval },
            leader_locator: settings.queues.leader_locator,
            limits: Limits {
                vhosts: count(settings.limits.vhosts),
                queues: count(settings.limits.queues),
                exchanges: count(settings.limits.exchanges),
            },
            machine_version: MachineVersion(settings.queues.machine_version),
            flags: FlagSettings {
                // Checked when it was read.
                forced: settings.flags.forced.as_deref().and_then(|text| Forced::parse(text).ok()).unwrap_or_default(),
                permits: settings.flags.permits.clone(),
                definitions: settings.flags.test_definitions.clone(),
                version: settings.flags.test_product_version.clone(),
                recreate: self.configuration.recreate_flags.clone(),
            },
            reconciliation: settings.queues.reconciliation.clone(),
            consumer_timeout_ms: u64::try_from(settings.queues.consumer_timeout.as_millis()).ok(),
            dead_letter_prefetch: u32::try_from(settings.queues.dead_letter_prefetch).unwrap_or(u32::MAX),
            dead_letter_retry: settings.queues.dead_letter_retry,
            quorum_size: u32::try_from(settings.queues.initial_cluster_size).unwrap_or(u32::MAX),
            default_queue_type: match settings.queues.default_type {
                QueueType::Classic => QueueKind::Classic,
                QueueType::Quorum => QueueKind::Quorum,
            },
            loads_definitions: !settings.definitions.paths.is_empty(),
            target_cluster_size: usize::try_from(settings.cluster.target_size_hint).unwrap_or(usize::MAX),
            default_vhost: settings.defaults.vhost.clone(),
            default_user: settings.defaults.user.clone(),
            default_pass: settings.defaults.pass.clone(),
            default_user_tags: settings.defaults.tags.clone(),
            default_permissions: settings.defaults.permissions.clone(),
            loopback_users: settings.auth.loopback_users.clone(),
            shards: 0,
            max_connections: count(settings.limits.max_connections),
        }
    }
}

/// A limit as a number of things in memory.
fn count(limit: Option<u64>) -> Option<usize> {
    limit.map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

fn amqp091_settings(settings: &Settings, broker: &Broker) -> warren_amqp091::Settings {
    let mechanisms = settings.auth.mechanisms.iter().map(|mechanism| match mechanism {
        Mechanism::Plain => warren_amqp091::Mechanism::Plain,
        Mechanism::AmqPlain => warren_amqp091::Mechanism::AmqPlain,
        Mechanism::Anonymous => warren_amqp091::Mechanism::Anonymous,
    });
    let mut server_properties = FieldTable::new();
    for (name, value) in &settings.amqp091.server_properties {
        server_properties.set(name, FieldValue::text(value));
    }
    let cluster_name = Cluster::name(&broker.metadata().tree()).ok().flatten().unwrap_or_default();
    warren_amqp091::Settings {
        tuning: Tuning {
            channel_max: settings.amqp091.channel_max,
            frame_max: settings.amqp091.frame_max,
            heartbeat: u16::try_from(settings.amqp091.heartbeat.as_secs()).unwrap_or(u16::MAX),
        },
        initial_frame_max: settings.amqp091.initial_frame_max,
        handshake_timeout: settings.amqp091.handshake_timeout,
        max_message_size: settings.limits.max_message_size,
        consumer_max_per_channel: settings
            .limits
            .consumers_of_channel
            .map(|most| u32::try_from(most).unwrap_or(u32::MAX)),
        max_connections: count(settings.limits.max_connections),
        auth_failure_delay: settings.amqp091.auth_failure_delay,
        channel_max_per_node: count(settings.limits.channels_of_node),
        mechanisms: mechanisms.collect(),
        anonymous: settings.auth.anonymous.clone().map(|(user, password)| AnonymousLogin { user, password }),
        server_properties,
        cluster_name,
    }
}

/// Each connection and each database file needs a descriptor.
fn raise_file_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
}

/// The signals that end a node.
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> Result<Self, Refused> {
        Ok(Signals { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    async fn stop(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

fn listen(kind: SignalKind) -> Result<Signal, Refused> {
    signal(kind).map_err(|error| Refused::new(Exit::Software, format!("signals cannot be awaited: {error}")))
}
