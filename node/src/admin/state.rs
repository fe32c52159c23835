//! What a node knows of itself from its first moment: how far its start is, and the broker once there is one.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;
use warren_broker::Broker;
use warren_broker::cluster::formation::Peer;
use warren_broker::cluster::identity_file::NodeIdentity;
use warren_broker::feature_flags::FeatureFlags;
use warren_raft::transport::Transport;

use super::protocol::{Code, Refusal};
use crate::app::{App, Wish};
use crate::config::Configuration;
use crate::data_dir;
use crate::listeners::{ClientListeners, Listening};

/// One node's state as operators see it.
pub struct NodeState {
    /// What it was started with.
    pub configuration: Configuration,
    /// When.
    pub started: Instant,
    /// The log files.
    pub log_files: Vec<String>,
    /// Whether the app was started.
    pub app: App,
    /// Who it was when its process began.
    pub identity: NodeIdentity,
    /// The feature flags that it would have without its data.
    pub blank_flags: Arc<FeatureFlags>,
    phase: Mutex<String>,
    broker: OnceLock<Arc<Broker>>,
    /// The way to other nodes while there is no broker.
    transport: OnceLock<Transport>,
    ready: AtomicBool,
    listeners: Mutex<Vec<Listening>>,
    clients: OnceLock<Arc<ClientListeners>>,
    wish: Mutex<Option<Wish>>,
    wished: Notify,
}

impl NodeState {
    /// A node that starts now.
    pub fn new(
        configuration: Configuration,
        log_files: Vec<String>,
        app: App,
        identity: NodeIdentity,
        blank_flags: Arc<FeatureFlags>,
    ) -> Self {
        NodeState {
            configuration,
            started: Instant::now(),
            log_files,
            app,
            identity,
            blank_flags,
            phase: Mutex::new("starting".to_owned()),
            broker: OnceLock::new(),
            transport: OnceLock::new(),
            ready: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            clients: OnceLock::new(),
            wish: Mutex::new(None),
            wished: Notify::new(),
        }
    }

    /// Says what the node is busy with.
    pub fn set_phase(&self, phase: &str) {
        *self.phase.lock() = phase.to_owned();
    }

    /// What the node is busy with.
    pub fn phase(&self) -> String {
        self.phase.lock().clone()
    }

    /// The broker is there.
    pub fn set_broker(&self, broker: Arc<Broker>) {
        let _ = self.broker.set(broker);
    }

    /// The broker, once the node is up.
    pub fn broker(&self) -> Result<&Arc<Broker>, Refusal> {
        self.broker.get().ok_or_else(|| {
            let node = &self.configuration.node;
            match self.app {
                App::Started => Refusal::new(Code::Unavailable, format!("node {node} is not up yet: {}", self.phase())),
                App::Stopped => {
                    let text = format!("this command needs the app of node {node} to run: start it with start_app");
                    Refusal::new(Code::WrongState, text)
                }
            }
        })
    }

    /// The app is stopped, and this is the way to other nodes.
    pub fn set_transport(&self, transport: Transport) {
        let _ = self.transport.set(transport);
    }

    /// The way to other nodes, in whatever state the app is.
    pub fn transport(&self) -> Result<Transport, Refusal> {
        match self.transport.get() {
            Some(transport) => Ok(transport.clone()),
            None => Ok(self.broker()?.transport().clone()),
        }
    }

    /// This node as others are told of it.
    pub fn own(&self) -> Peer {
        let (node, port) = (&self.configuration.node, self.configuration.settings.peer.port);
        Peer { name: node.to_string(), address: address(node.host(), port) }
    }

    /// The node's folder.
    pub fn data(&self) -> PathBuf {
        data_dir::node_dir(&self.configuration.data_dir, &self.configuration.node)
    }

    /// A listener was opened.
    pub fn add_listener(&self, listener: Listening) {
        self.listeners.lock().push(listener);
    }

    /// The listeners for clients are there.
    pub fn set_clients(&self, clients: Arc<ClientListeners>) {
        let _ = self.clients.set(clients);
    }

    /// The listeners for clients, once the node is up.
    pub fn clients(&self) -> Result<&Arc<ClientListeners>, Refusal> {
        self.broker()?;
        let starting = || Refusal::new(Code::Unavailable, "the node has no client listeners yet");
        self.clients.get().ok_or_else(starting)
    }

    /// The open listeners.
    pub fn listeners(&self) -> Vec<Listening> {
        let mut open = self.listeners.lock().clone();
        open.extend(self.clients.get().map(|clients| clients.listening()).unwrap_or_default());
        open
    }

    /// Clients can connect, or cannot any more.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Whether clients can connect.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Asks the process to end, or to begin anew.
    pub fn wish(&self, wish: Wish) {
        *self.wish.lock() = Some(wish);
        self.wished.notify_one();
    }

    /// Waits until somebody asked for something.
    pub async fn wished(&self) -> Wish {
        loop {
            if let Some(wish) = *self.wish.lock() {
                return wish;
            }
            self.wished.notified().await;
        }
    }
}

/// `host:port`.
pub fn address(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}
