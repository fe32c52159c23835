//! The typed settings: read once at boot, then passed to whoever needs a part of them.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::value::Listen;

pub use warren_broker::LeaderLocator;
use warren_broker::MACHINE_VERSIONS;
use warren_broker::operations::reconcile::Reconciliation;

/// Everything that a node's configuration says.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Listeners for clients.
    pub listeners: Listeners,
    /// What AMQP 0.9.1 connections negotiate.
    pub amqp091: Amqp091,
    /// Limits on what clients may do.
    pub limits: Limits,
    /// What a blank node creates at its first boot.
    pub defaults: Defaults,
    /// How clients log in.
    pub auth: Auth,
    /// How a blank node finds its cluster.
    pub cluster: Cluster,
    /// The metadata group.
    pub metadata: Metadata,
    /// Queues.
    pub queues: Queues,
    /// The node's own peer and admin listener.
    pub peer: Peer,
    /// Logging.
    pub log: Log,
    /// Feature flags and deprecated features.
    pub flags: Flags,
    /// Where the queue log lies, if not in the data directory.
    pub raft_data_dir: Option<PathBuf>,
    /// A write to disk that takes longer costs the node its leaderships; six times that ends it.
    pub disk_stall: Duration,
    /// How long an orderly stop may take.
    pub shutdown_timeout: Duration,
}

/// Listeners for clients.
#[derive(Clone, Debug)]
pub struct Listeners {
    /// AMQP over TCP; `None`: not configured (the default port), empty: `none`.
    pub tcp: Option<Vec<Listen>>,
    /// Length of the accept queue.
    pub backlog: u32,
    /// Whether small packets are sent at once.
    pub nodelay: bool,
    /// Whether the kernel probes idle peers.
    pub keepalive: bool,
    /// The kernel's send buffer in bytes, if it is not to choose.
    pub sndbuf: Option<u64>,
    /// The kernel's receive buffer in bytes, if it is not to choose.
    pub recbuf: Option<u64>,
}

/// The port of AMQP over TCP.
pub const AMQP_PORT: u16 = 5672;

impl Listeners {
    /// The AMQP listeners, with the default where none was configured.
    pub fn amqp(&self) -> Vec<Listen> {
        match &self.tcp {
            Some(listeners) => listeners.clone(),
            None => vec![Listen::Tcp { ip: None, port: AMQP_PORT }],
        }
    }
}

/// What AMQP 0.9.1 connections negotiate.
#[derive(Clone, Debug)]
pub struct Amqp091 {
    /// From accepting a connection to its `connection.open`.
    pub handshake_timeout: Duration,
    /// Wait before a failed login is answered.
    pub auth_failure_delay: Duration,
    /// Heartbeat that is proposed to clients; zero: none.
    pub heartbeat: Duration,
    /// Largest frame that is proposed; zero: no limit.
    pub frame_max: u32,
    /// Largest frame before the negotiation ends.
    pub initial_frame_max: u32,
    /// Most channels of a connection; zero: no limit.
    pub channel_max: u16,
    /// Entries that are added to what clients are told of the server, or replace it.
    pub server_properties: Vec<(String, String)>,
}

/// Limits on what clients may do.
#[derive(Clone, Debug)]
pub struct Limits {
    /// Largest message body, in bytes.
    pub max_message_size: u64,
    /// Most client connections of this node.
    pub max_connections: Option<u64>,
    /// Most channels of this node.
    pub channels_of_node: Option<u64>,
    /// Most consumers of a channel.
    pub consumers_of_channel: Option<u64>,
    /// Most virtual hosts of the cluster.
    pub vhosts: Option<u64>,
    /// Most queues of the cluster.
    pub queues: Option<u64>,
    /// Most exchanges of the cluster.
    pub exchanges: Option<u64>,
}

/// What a blank node creates at its first boot.
#[derive(Clone, Debug)]
pub struct Defaults {
    /// The user's name.
    pub user: String,
    /// The user's password.
    pub pass: String,
    /// The virtual host.
    pub vhost: String,
    /// The user's permissions: configure, write, read.
    pub permissions: [String; 3],
    /// The user's tags.
    pub tags: Vec<String>,
}

/// How clients log in.
#[derive(Clone, Debug)]
pub struct Auth {
    /// Users who may log in from loopback addresses only.
    pub loopback_users: Vec<String>,
    /// The user of anonymous logins and its password; `None`: no anonymous logins.
    pub anonymous: Option<(String, String)>,
    /// SASL mechanisms, the preferred one first.
    pub mechanisms: Vec<Mechanism>,
}

/// A SASL mechanism.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mechanism {
    /// User and password.
    Plain,
    /// The same, as AMQP 0.9.1's table.
    AmqPlain,
    /// The anonymous user.
    Anonymous,
}

impl Mechanism {
    /// The name on the wire.
    pub fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::AmqPlain => "AMQPLAIN",
            Mechanism::Anonymous => "ANONYMOUS",
        }
    }
}

/// A node that discovery names: `name@host`, with a peer port where it is not the default.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Seed {
    /// The node's name.
    pub node: NodeName,
    /// Its peer port.
    pub port: u16,
}

/// How a blank node finds its cluster.
#[derive(Clone, Debug)]
pub struct Cluster {
    /// The nodes of `classic_config`, in the order of their keys.
    pub seeds: Vec<Seed>,
    /// Attempts to join a cluster that is there before giving up; `None`: for ever.
    pub retry_limit: Option<u64>,
    /// Wait between two attempts.
    pub retry_interval: Duration,
    /// The cluster's name, if configured.
    pub name: Option<String>,
    /// How many nodes the cluster is meant to have.
    pub target_size_hint: u64,
}

/// The metadata group.
#[derive(Clone, Debug)]
pub struct Metadata {
    /// How long a command may take.
    pub timeout: Duration,
    /// Commands between two snapshots.
    pub snapshot_interval: u64,
    /// How long a booting node waits for a leader.
    pub leader_wait_timeout: Duration,
}

/// The queue type of a declare without `x-queue-type`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QueueType {
    /// Not replicated.
    Classic,
    /// Replicated by Raft.
    Quorum,
}

/// Queues.
#[derive(Clone, Debug)]
pub struct Queues {
    /// The type of a declare that names none.
    pub default_type: QueueType,
    /// Members of a new quorum queue.
    pub initial_cluster_size: u64,
    /// Commands that a queue client sends ahead of their confirmation.
    pub commands_soft_limit: u64,
    /// How long a quorum queue's consumer may hold a message, where neither it nor the queue says so.
    pub consumer_timeout: Duration,
    /// Dead messages of one queue that may be on their way to queues that confirm them.
    pub dead_letter_prefetch: u64,
    /// Pause before such a message that was refused, or had no queue to go to, is tried again.
    pub dead_letter_retry: Duration,
    /// Where a new queue's leader is placed.
    pub leader_locator: LeaderLocator,
    /// The newest machine version that this node's members of quorum queues support.
    pub machine_version: u16,
    /// Whether and how queues get the members that they lack.
    pub reconciliation: Reconciliation,
}

/// Feature flags and deprecated features.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    /// What a new cluster begins with; `None`: all stable flags.
    pub forced: Option<String>,
    /// Which deprecated features are permitted, where that was said.
    pub permits: std::collections::BTreeMap<String, bool>,
    /// A file that defines more flags.
    pub test_definitions: Option<PathBuf>,
    /// The product version that other nodes are told, unless it is this binary's.
    pub test_product_version: Option<String>,
}

/// The node's own peer and admin listener.
#[derive(Clone, Debug)]
pub struct Peer {
    /// The address to bind; `None`: all.
    pub ip: Option<IpAddr>,
    /// The port to bind.
    pub port: u16,
}

/// The default port of the peer and admin listener.
pub const PEER_PORT: u16 = 25672;

/// The form of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    /// For people.
    Plain,
    /// One JSON object a line.
    Json,
}

/// How much is logged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LogLevel {
    /// Everything.
    Debug,
    /// What an operator wants to see in normal times.
    Info,
    /// What may need attention.
    Warning,
    /// What went wrong.
    Error,
    /// Nothing.
    None,
}

/// One place that log lines go to.
#[derive(Clone, Debug)]
pub struct LogOutput {
    /// Whether it is used.
    pub enabled: bool,
    /// The least level written there.
    pub level: LogLevel,
    /// The form of the lines.
    pub format: LogFormat,
}

/// Logging.
#[derive(Clone, Debug)]
pub struct Log {
    /// Standard output.
    pub console: LogOutput,
    /// The log file.
    pub file: LogOutput,
    /// The log file's folder.
    pub dir: Option<PathBuf>,
    /// The log file's name in that folder; `None`: `<node>.log`.
    pub file_name: Option<String>,
    /// Levels of single categories (`connection`, `queue`, ...), which override the outputs' levels.
    pub categories: Vec<(String, LogLevel)>,
}

impl Settings {
    /// Where a node, whose folder is `own`, keeps its databases of queues.
    pub fn queues_dir(&self, node: &NodeName, own: &Path) -> PathBuf {
        self.raft_data_dir.as_ref().map_or_else(|| own.to_owned(), |dir| dir.join(node.as_str()))
    }
}

impl Default for Settings {
    fn default() -> Self {
        let output = |enabled| LogOutput { enabled, level: LogLevel::Info, format: LogFormat::Plain };
        Settings {
            listeners: Listeners {
                tcp: None,
                backlog: 128,
                nodelay: true,
                keepalive: false,
                sndbuf: None,
                recbuf: None,
            },
            amqp091: Amqp091 {
                handshake_timeout: Duration::from_secs(10),
                auth_failure_delay: Duration::from_secs(3),
                heartbeat: Duration::from_secs(60),
                frame_max: 131_072,
                initial_frame_max: 8192,
                channel_max: 2047,
                server_properties: Vec::new(),
            },
            limits: Limits {
                max_message_size: 16 << 20,
                max_connections: None,
                channels_of_node: None,
                consumers_of_channel: None,
                vhosts: None,
                queues: None,
                exchanges: None,
            },
            defaults: Defaults {
                user: "guest".to_owned(),
                pass: "guest".to_owned(),
                vhost: "/".to_owned(),
                permissions: [".*".to_owned(), ".*".to_owned(), ".*".to_owned()],
                tags: vec!["administrator".to_owned()],
            },
            auth: Auth {
                loopback_users: vec!["guest".to_owned()],
                anonymous: Some(("guest".to_owned(), "guest".to_owned())),
                mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain, Mechanism::Anonymous],
            },
            cluster: Cluster {
                seeds: Vec::new(),
                retry_limit: Some(30),
                retry_interval: Duration::from_secs(1),
                name: None,
                target_size_hint: 1,
            },
            metadata: Metadata {
                timeout: Duration::from_secs(30),
                snapshot_interval: 50_000,
                leader_wait_timeout: Duration::from_secs(300),
            },
            queues: Queues {
                default_type: QueueType::Classic,
                initial_cluster_size: 3,
                consumer_timeout: Duration::from_secs(30 * 60),
                dead_letter_prefetch: 32,
                dead_letter_retry: Duration::from_secs(180),
                commands_soft_limit: 32,
                leader_locator: LeaderLocator::ClientLocal,
                machine_version: MACHINE_VERSIONS.end().0,
                reconciliation: Reconciliation::default(),
            },
            peer: Peer { ip: None, port: PEER_PORT },
            log: Log { console: output(true), file: output(false), dir: None, file_name: None, categories: Vec::new() },
            flags: Flags::default(),
            raft_data_dir: None,
            disk_stall: Duration::from_secs(10),
            shutdown_timeout: Duration::from_secs(60),
        }
    }
}

pub use super::node_name::NodeName;
