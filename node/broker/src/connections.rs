//! The client connections of this node.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use bytes::Bytes;
use parking_lot::Mutex;
use warren_proto::ids::SessionRef;

use crate::metadata::now_ms;

/// What is known of a connection once it is open.
#[derive(Debug, Clone)]
pub struct ConnectionInfo {
    /// User name.
    pub user: String,
    /// Virtual host.
    pub vhost: String,
    /// `AMQP 0-9-1` and so on.
    pub protocol: &'static str,
    /// The client's end.
    pub peer: SocketAddr,
    /// This node's end.
    pub local: SocketAddr,
    /// `connection_name` of the client's properties, if given.
    pub client_name: Option<String>,
    /// The client's properties, as an encoded field table.
    pub client_properties: Bytes,
    /// Negotiated channels; 0 = no limit.
    pub channel_max: u16,
    /// Negotiated frame size; 0 = no limit.
    pub frame_max: u32,
    /// Negotiated heartbeat in seconds; 0 = none.
    pub heartbeat: u16,
    /// SASL mechanism used.
    pub auth_mechanism: String,
}

/// How a channel stands.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ChannelFigures {
    /// Whether its publishes are confirmed.
    pub confirm: bool,
    /// Consumers.
    pub consumers: u32,
    /// Deliveries that the client has not answered.
    pub unacknowledged: u32,
    /// Publishes that are not confirmed yet.
    pub unconfirmed: u32,
    /// Prefetch of the next consumer; 0 = no limit.
    pub prefetch: u16,
}

/// An open channel of a connection.
#[derive(Debug)]
pub struct Channel {
    /// Its number on the connection.
    pub number: u16,
    /// Its session.
    pub session: SessionRef,
    figures: Mutex<ChannelFigures>,
}

impl Channel {
    /// How it stands, a moment ago.
    pub fn figures(&self) -> ChannelFigures {
        *self.figures.lock()
    }

    /// To be kept true by the frontend.
    pub fn set_figures(&self, figures: ChannelFigures) {
        *self.figures.lock() = figures;
    }
}

/// A connection of this node.
#[derive(Debug)]
pub struct Connection {
    /// Unique in this process.
    pub id: u64,
    /// What is known of it.
    pub info: ConnectionInfo,
    /// When it was opened, ms since 1970.
    pub connected_at: u64,
    channels: Mutex<BTreeMap<u16, Arc<Channel>>>,
    blocked: AtomicU32,
}

impl Connection {
    /// Channels open now, by number.
    pub fn channels(&self) -> Vec<Arc<Channel>> {
        self.channels.lock().values().cloned().collect()
    }

    /// How many those are.
    pub fn channel_count(&self) -> usize {
        self.channels.lock().len()
    }

    /// Adds a channel.
    pub fn open_channel(&self, number: u16, session: SessionRef) -> Arc<Channel> {
        let channel = Arc::new(Channel { number, session, figures: Mutex::default() });
        self.channels.lock().insert(number, Arc::clone(&channel));
        channel
    }

    /// Forgets a channel.
    pub fn close_channel(&self, number: u16) {
        self.channels.lock().remove(&number);
    }

    /// Whether publishes are held back now.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::Relaxed) != 0
    }

    /// To be kept true by the frontend.
    pub fn set_blocked(&self, blocked: bool) {
        self.blocked.store(u32::from(blocked), Ordering::Relaxed);
    }

    /// `peer -> local`, as RabbitMQ names a connection.
    pub fn name(&self) -> String {
        format!("{} -> {}", self.info.peer, self.info.local)
    }
}

/// See the module's head.
#[derive(Debug, Default)]
pub struct Connections {
    next: AtomicU64,
    open: Mutex<BTreeMap<u64, Arc<Connection>>>,
}

impl Connections {
    /// Adds a connection.
    pub fn add(&self, info: ConnectionInfo) -> Arc<Connection> {
        let id = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        let connection = Arc::new(Connection {
            id,
            info,
            connected_at: now_ms(),
            channels: Mutex::default(),
            blocked: AtomicU32::new(0),
        });
        self.open.lock().insert(id, Arc::clone(&connection));
        connection
    }

    /// Forgets a connection.
    pub fn remove(&self, id: u64) {
        self.open.lock().remove(&id);
    }

    /// All connections, oldest first.
    pub fn list(&self) -> Vec<Arc<Connection>> {
        self.open.lock().values().cloned().collect()
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.open.lock().len()
    }

    /// Channels open on all of them.
    pub fn channel_count(&self) -> usize {
        self.open.lock().values().map(|connection| connection.channel_count()).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Whether it has not ended.
    pub fn contains(&self, id: u64) -> bool {
        self.open.lock().contains_key(&id)
    }
}
