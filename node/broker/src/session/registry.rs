//! Which sessions live on this node, and how what queues say reaches them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot};
use warren_proto::ids::{NodeId, SessionRef};
use warren_raft::machine::EntryReader;

use crate::queue::protocol::{QueueEvent, ToSession};

/// Something that a connection has to hand to one of its sessions, or to all.
#[derive(Debug)]
pub enum SessionEvent {
    /// A queue said something to one session.
    Queue(ToSession),
    /// A node is reachable again: what was sent to it before may be lost.
    NodeUp(NodeId),
    /// The broker wants the connection closed.
    Close(CloseReason),
}

/// Why the broker ends a connection.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CloseReason {
    /// The node stops.
    Shutdown,
    /// An operator said so.
    Operator(String),
    /// The connection's vhost was deleted.
    VhostDeleted(String),
}

/// Where a connection's events go. Unbounded as a channel, bounded in content: deliveries by consumers' credit, replies by
/// the sessions' pending limits, one signal per node and per close.
pub type EventSender = mpsc::UnboundedSender<SessionEvent>;

/// A connection's events, with message bodies already read.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::UnboundedReceiver<SessionEvent>,
    entries: EntriesHandle,
    loading: Option<tokio::task::JoinHandle<SessionEvent>>,
}

struct EntriesHandle(Arc<dyn EntryReader>);

impl std::fmt::Debug for EntriesHandle {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("EntryReader")
    }
}

impl EventReceiver {
    /// The next event; `None` once every sender is gone. Cancel safe.
    pub async fn recv(&mut self) -> Option<SessionEvent> {
        loop {
            if let Some(loading) = self.loading.as_mut() {
                let loaded = loading.await;
                self.loading = None;
                match loaded {
                    Ok(event) => return Some(event),
                    // A panic while reading: the session's gap detection asks for the deliveries again.
                    Err(_) => continue,
                }
            }
            let event = self.events.recv().await?;
            match self.prepared(event) {
                Some(event) => return Some(event),
                None => continue,
            }
        }
    }

    /// The next event if one waits and needs no disk read.
    pub fn try_recv(&mut self) -> Option<SessionEvent> {
        if self.loading.is_some() {
            return None;
        }
        let event = self.events.try_recv().ok()?;
        self.prepared(event)
    }

    fn prepared(&mut self, event: SessionEvent) -> Option<SessionEvent> {
        match event {
            SessionEvent::Queue(mut to) if to.event.needs_bodies() => {
                let entries = Arc::clone(&self.entries.0);
                self.loading = Some(tokio::task::spawn_blocking(move || {
                    to.event.load(to.group, &entries);
                    SessionEvent::Queue(to)
                }));
                None
            }
            event => Some(event),
        }
    }
}

/// Correlations at or above this belong to [`Sessions::call`]s, those below to a session's own pipelined commands.
const CALL: u64 = 1 << 63;
const SHARDS: usize = 16;

/// All sessions of this process.
pub struct Sessions {
    me: NodeId,
    incarnation: u64,
    next_session: AtomicU64,
    next_call: AtomicU64,
    shards: [Mutex<FxHashMap<u64, EventSender>>; SHARDS],
    connections: Mutex<HashMap<u64, EventSender>>,
    calls: Mutex<FxHashMap<u64, oneshot::Sender<ToSession>>>,
}

impl Sessions {
    /// An empty registry for this process.
    pub fn new(me: NodeId, incarnation: u64) -> Self {
        Sessions {
            me,
            incarnation,
            next_session: AtomicU64::new(1),
            next_call: AtomicU64::new(CALL),
            shards: std::array::from_fn(|_| Mutex::default()),
            connections: Mutex::default(),
            calls: Mutex::default(),
        }
    }

    /// This process's start, part of every session's identity.
    pub fn incarnation(&self) -> u64 {
        self.incarnation
    }

    /// This node.
    pub fn node(&self) -> NodeId {
        self.me
    }

    /// The two ends of a connection's event channel.
    pub fn channel(entries: Arc<dyn EntryReader>) -> (EventSender, EventReceiver) {
        let (sender, events) = mpsc::unbounded_channel();
        (sender, EventReceiver { events, entries: EntriesHandle(entries), loading: None })
    }

    /// Makes a session that gets its events through `sender`.
    pub fn register(&self, sender: EventSender) -> SessionRef {
        let id = self.next_session.fetch_add(1, Ordering::Relaxed);
        self.shard(id).lock().insert(id, sender);
        SessionRef { node: self.me, incarnation: self.incarnation, id }
    }

    /// Sends a session's events elsewhere from now on.
    pub fn reroute(&self, session: SessionRef, sender: EventSender) {
        self.shard(session.id).lock().insert(session.id, sender);
    }

    /// Forgets a session; events for it are dropped from now on.
    pub fn unregister(&self, session: SessionRef) {
        self.shard(session.id).lock().remove(&session.id);
    }

    /// Whether a session of this process is still there. Session 0 stands for the node itself and always is.
    pub fn contains(&self, session: SessionRef) -> bool {
        session.node == self.me
            && session.incarnation == self.incarnation
            && (session.id == 0 || self.shard(session.id).lock().contains_key(&session.id))
    }

    /// Adds a connection to those that hear node and close events.
    pub fn connect(&self, connection: u64, sender: EventSender) {
        self.connections.lock().insert(connection, sender);
    }

    /// The connection ended.
    pub fn disconnect(&self, connection: u64) {
        self.connections.lock().remove(&connection);
    }

    /// Asks one connection to close. False if there is none of that id.
    pub fn close_connection(&self, connection: u64, reason: CloseReason) -> bool {
        self.connections.lock().get(&connection).is_some_and(|c| c.send(SessionEvent::Close(reason)).is_ok())
    }

    /// Asks every connection to close.
    pub fn close_all(&self, reason: &CloseReason) {
        for connection in self.connections.lock().values() {
            let _ = connection.send(SessionEvent::Close(reason.clone()));
        }
    }

    /// Number of connections that have not ended.
    pub fn connection_count(&self) -> usize {
        self.connections.lock().len()
    }

    /// Tells every connection that a node is back.
    pub fn node_up(&self, node: NodeId) {
        for connection in self.connections.lock().values() {
            let _ = connection.send(SessionEvent::NodeUp(node));
        }
    }

    /// Starts waiting for a reply: its correlation, and where it arrives.
    pub fn call(&self) -> (u64, oneshot::Receiver<ToSession>) {
        let correlation = self.next_call.fetch_add(1, Ordering::Relaxed);
        let (sender, receiver) = oneshot::channel();
        let mut calls = self.calls.lock();
        // Calls that timed out left their sender behind.
        if calls.len() > 64 && calls.len().is_power_of_two() {
            calls.retain(|_, sender| !sender.is_closed());
        }
        calls.insert(correlation, sender);
        (correlation, receiver)
    }

    /// Hands an event to its session on this node. Unknown sessions are ignored: they ended.
    pub fn dispatch(&self, to: ToSession) {
        if to.session.incarnation != self.incarnation {
            return;
        }
        match &to.event {
            QueueEvent::Replied { correlation, .. } | QueueEvent::Stats { correlation, .. } if *correlation >= CALL => {
                let correlation = *correlation;
                self.finish(correlation, to);
            }
            QueueEvent::NotLeader { correlations, leader, busy, .. } if correlations.iter().any(|c| *c >= CALL) => {
                for correlation in correlations.iter().filter(|c| **c >= CALL) {
                    let event = QueueEvent::NotLeader {
                        leader: *leader,
                        correlations: vec![*correlation],
                        first_seq: None,
                        busy: *busy,
                    };
                    self.finish(
                        *correlation,
                        ToSession { session: to.session, group: to.group, leader: to.leader, event },
                    );
                }
                self.forward(to);
            }
            _ => self.forward(to),
        }
    }

    fn finish(&self, correlation: u64, to: ToSession) {
        if let Some(waiting) = self.calls.lock().remove(&correlation) {
            let _ = waiting.send(to);
        }
    }

    fn forward(&self, to: ToSession) {
        if let Some(sender) = self.shard(to.session.id).lock().get(&to.session.id) {
            let _ = sender.send(SessionEvent::Queue(to));
        }
    }

    fn shard(&self, id: u64) -> &Mutex<FxHashMap<u64, EventSender>> {
        &self.shards[id as usize % SHARDS]
    }
}
