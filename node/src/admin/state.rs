//! What a node knows of itself from its first moment: how far its start is, and the broker once there is one.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Instant;

use parking_lot::Mutex;
use tokio::sync::Notify;
use warren_broker::Broker;

use super::protocol::{Code, Refusal};
use crate::config::Configuration;

/// A socket that the node listens on.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The address, without its port.
    pub interface: String,
    /// The port.
    pub port: u16,
    /// `amqp`, `clustering`.
    pub protocol: &'static str,
    /// For people.
    pub purpose: &'static str,
}

/// One node's state as operators see it.
pub struct NodeState {
    /// What it was started with.
    pub configuration: Configuration,
    /// When.
    pub started: Instant,
    /// The log files.
    pub log_files: Vec<String>,
    phase: Mutex<String>,
    broker: OnceLock<Arc<Broker>>,
    ready: AtomicBool,
    listeners: Mutex<Vec<Listening>>,
    stop: Notify,
}

impl NodeState {
    /// A node that starts now.
    pub fn new(configuration: Configuration, log_files: Vec<String>) -> Self {
        NodeState {
            configuration,
            started: Instant::now(),
            log_files,
            phase: Mutex::new("starting".to_owned()),
            broker: OnceLock::new(),
            ready: AtomicBool::new(false),
            listeners: Mutex::new(Vec::new()),
            stop: Notify::new(),
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
            Refusal::new(Code::Unavailable, format!("node {node} is not up yet: {}", self.phase()))
        })
    }

    /// A listener was opened.
    pub fn add_listener(&self, listener: Listening) {
        self.listeners.lock().push(listener);
    }

    /// The open listeners.
    pub fn listeners(&self) -> Vec<Listening> {
        self.listeners.lock().clone()
    }

    /// Clients can connect, or cannot any more.
    pub fn set_ready(&self, ready: bool) {
        self.ready.store(ready, Ordering::Release);
    }

    /// Whether clients can connect.
    pub fn is_ready(&self) -> bool {
        self.ready.load(Ordering::Acquire)
    }

    /// Asks the node to stop.
    pub fn request_stop(&self) {
        self.stop.notify_one();
    }

    /// Waits until somebody asked the node to stop.
    pub async fn stop_requested(&self) {
        self.stop.notified().await;
    }
}
