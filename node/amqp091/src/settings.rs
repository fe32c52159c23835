//! What the configuration file says about AMQP 0-9-1, read once at boot.

use std::time::Duration;

use warren_proto::amqp091::{FieldTable, Tuning};

pub use crate::connection::handshake::Mechanism;

/// Settings of every AMQP 0-9-1 connection of the node.
#[derive(Debug, Clone)]
pub struct Settings {
    /// What `connection.tune` offers (`channel_max`, `frame_max`, `heartbeat`).
    pub tuning: Tuning,
    /// The largest frame until tuning is over (`initial_frame_max`).
    pub initial_frame_max: u32,
    /// Time from accepting a socket to `connection.open-ok` (`handshake_timeout`).
    pub handshake_timeout: Duration,
    /// The largest body that is taken (`max_message_size`).
    pub max_message_size: u64,
    /// Consumers on one channel (`consumer_max_per_channel`); `None` is no limit.
    pub consumer_max_per_channel: Option<u32>,
    /// Connections of this node (`max_connections`); `None` is no limit.
    pub max_connections: Option<usize>,
    /// Wait before a failed login ends (`auth_failure_delay`), so that guessing is slow.
    pub auth_failure_delay: Duration,
    /// Channels of all connections of this node (`channel_max_per_node`); `None` is no limit.
    pub channel_max_per_node: Option<usize>,
    /// The ways to log in that are offered, the preferred one first (`auth_mechanisms`).
    pub mechanisms: Vec<Mechanism>,
    /// Whom an ANONYMOUS login becomes (`anonymous_login_user`, `anonymous_login_pass`); `None`: nobody.
    pub anonymous: Option<AnonymousLogin>,
    /// Entries that are added to the server properties or replace them (`server_properties.KEY`).
    pub server_properties: FieldTable,
    /// The name of the cluster, as clients are told it.
    pub cluster_name: String,
}

/// The user that stands for anonymous clients.
#[derive(Clone)]
pub struct AnonymousLogin {
    /// Its name.
    pub user: String,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for AnonymousLogin {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("AnonymousLogin").field("user", &self.user).finish_non_exhaustive()
    }
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            tuning: Tuning::DEFAULT,
            initial_frame_max: warren_proto::amqp091::FRAME_MIN_SIZE,
            handshake_timeout: Duration::from_secs(10),
            max_message_size: 16 << 20,
            consumer_max_per_channel: None,
            max_connections: None,
            auth_failure_delay: Duration::from_secs(3),
            channel_max_per_node: None,
            mechanisms: vec![Mechanism::Plain, Mechanism::AmqPlain, Mechanism::Anonymous],
            anonymous: None,
            server_properties: FieldTable::new(),
            cluster_name: String::new(),
        }
    }
}

/// TCP options of a listener (`tcp_listen_options.*`).
#[derive(Debug, Clone)]
pub struct TcpOptions {
    /// Connections that wait to be accepted.
    pub backlog: u32,
    /// Whether small segments go out at once.
    pub nodelay: bool,
    /// Whether the kernel probes idle peers.
    pub keepalive: bool,
    /// Kernel's send buffer in bytes, if it is not to choose.
    pub sndbuf: Option<usize>,
    /// Kernel's receive buffer in bytes, if it is not to choose.
    pub recbuf: Option<usize>,
}

impl Default for TcpOptions {
    fn default() -> Self {
        TcpOptions { backlog: 128, nodelay: true, keepalive: false, sndbuf: None, recbuf: None }
    }
}
