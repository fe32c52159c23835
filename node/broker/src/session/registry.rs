//! Which sessions live on this node, and how what queues say reaches them.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::{mpsc, oneshot};
use warren_proto::ids::{GroupId, NodeId, SessionRef};
use warren_raft::machine::EntryReader;

use crate::queue::protocol::{QueueEvent, ToSession};

/// Something that a connection has to hand to one of its sessions, or to all.
#[derive(Debug)]
pub enum SessionEvent {
    /// A queue said something to one session.
    Queue(ToSession),
    /// Deliveries of a queue to a session were dropped, because more waited than may: to be asked for again.
    Missed {
        /// The session.
        session: SessionRef,
        /// The queue.
        group: GroupId,
    },
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

/// Body bytes of deliveries that wait for one connection. What comes then is dropped and asked for again, when half of
/// them have been taken: a client that does not read costs no more than this, however many messages its prefetch allows.
const INBOX_BYTES: usize = 8 << 20;

/// Where a connection's events go. Unbounded as a channel, bounded in content: the bodies of deliveries by
/// `INBOX_BYTES`, their number by consumers' credit, replies by the sessions' pending limits, one signal per node and
/// per close.
#[derive(Clone, Debug)]
pub struct EventSender {
    events: mpsc::UnboundedSender<SessionEvent>,
    inbox: Arc<Mutex<Inbox>>,
}

/// What waits for one connection.
#[derive(Debug, Default)]
struct Inbox {
    /// Body bytes of deliveries.
    bytes: usize,
    /// Whose deliveries were dropped since the last `Missed`.
    missed: FxHashSet<(SessionRef, GroupId)>,
}

impl EventSender {
    /// Adds an event. False if the receiver is gone.
    pub fn send(&self, event: SessionEvent) -> bool {
        if let SessionEvent::Queue(to) = &event {
            let bytes = to.event.body_bytes();
            if bytes > 0 && !self.inbox.lock().admit(bytes, to.session, to.group) {
                return true;
            }
        }
        self.events.send(event).is_ok()
    }
}

impl Inbox {
    fn admit(&mut self, bytes: usize, session: SessionRef, group: GroupId) -> bool {
        // What is behind a gap is of no use either.
        if self.bytes >= INBOX_BYTES || self.missed.contains(&(session, group)) {
            self.missed.insert((session, group));
            return false;
        }
        self.bytes += bytes;
        true
    }

    /// Body bytes were taken: who has to ask again.
    fn release(&mut self, bytes: usize) -> FxHashSet<(SessionRef, GroupId)> {
        self.bytes = self.bytes.saturating_sub(bytes);
        if self.bytes > INBOX_BYTES / 2 { FxHashSet::default() } else { std::mem::take(&mut self.missed) }
    }
}

/// A connection's events, with message bodies already read.
#[derive(Debug)]
pub struct EventReceiver {
    events: mpsc::UnboundedReceiver<SessionEvent>,
    sender: mpsc::WeakUnboundedSender<SessionEvent>,
    inbox: Arc<Mutex<Inbox>>,
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
        if let SessionEvent::Queue(to) = &event {
            let bytes = to.event.body_bytes();
            if bytes > 0 {
                self.taken(bytes);
            }
        }
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

    /// Behind what waits already, those who missed deliveries are told.
    fn taken(&self, bytes: usize) {
        let missed = self.inbox.lock().release(bytes);
        if missed.is_empty() {
            return;
        }
        let Some(sender) = self.sender.upgrade() else { return };
        for (session, group) in missed {
            let _ = sender.send(SessionEvent::Missed { session, group });
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
        let inbox = Arc::<Mutex<Inbox>>::default();
        let receiver = EventReceiver {
            events,
            sender: sender.downgrade(),
            inbox: Arc::clone(&inbox),
            entries: EntriesHandle(entries),
            loading: None,
        };
        (EventSender { events: sender, inbox }, receiver)
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
        self.connections.lock().get(&connection).is_some_and(|c| c.send(SessionEvent::Close(reason)))
    }

    /// Asks every connection to close.
    pub fn close_all(&self, reason: &CloseReason) {
        for connection in self.connections.lock().values() {
            connection.send(SessionEvent::Close(reason.clone()));
        }
    }

    /// Number of connections that have not ended.
    pub fn connection_count(&self) -> usize {
        self.connections.lock().len()
    }

    /// Tells every connection that a node is back.
    pub fn node_up(&self, node: NodeId) {
        for connection in self.connections.lock().values() {
            connection.send(SessionEvent::NodeUp(node));
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
                // An answer that nobody waits for (any more) is the session's to look at: it may bring a message.
                if let Some(to) = self.finish(correlation, to) {
                    self.forward(to);
                }
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

    /// Hands an answer to whoever waits for it, or back.
    fn finish(&self, correlation: u64, to: ToSession) -> Option<ToSession> {
        match self.calls.lock().remove(&correlation) {
            Some(waiting) => waiting.send(to).err(),
            None => Some(to),
        }
    }

    fn forward(&self, to: ToSession) {
        if let Some(sender) = self.shard(to.session.id).lock().get(&to.session.id) {
            sender.send(SessionEvent::Queue(to));
        }
    }

    fn shard(&self, id: u64) -> &Mutex<FxHashMap<u64, EventSender>> {
        &self.shards[id as usize % SHARDS]
    }
}

/// A log that holds nothing.
#[cfg(test)]
pub(crate) struct NoLog;

#[cfg(test)]
impl EntryReader for NoLog {
    fn cached(&self, _: GroupId, _: u64) -> Option<warren_proto::batch::Batch> {
        None
    }

    fn read(
        &self,
        _: GroupId,
        _: &[u64],
    ) -> Result<Vec<Option<warren_proto::batch::Batch>>, warren_raft::machine::ReadError> {
        Ok(Vec::new())
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use warren_proto::ids::Reference;

    use super::*;
    use crate::queue::protocol::{Body, Delivery};

    const SESSION: SessionRef = SessionRef { node: NodeId(1), incarnation: 1, id: 1 };
    const GROUP: GroupId = GroupId(7);

    fn delivery(msg_id: u64, bytes: usize) -> SessionEvent {
        let body = Body::Here(Bytes::from(vec![0; bytes]));
        let messages = vec![Delivery { msg_id, acquired_count: 0, delivery_count: 0, body }];
        let event = QueueEvent::Deliver { tag: Bytes::new(), key: Reference(1), messages, again: false };
        SessionEvent::Queue(ToSession { session: SESSION, group: GROUP, leader: NodeId(1), event })
    }

    fn id_of(event: SessionEvent) -> Option<u64> {
        match event {
            SessionEvent::Queue(ToSession { event: QueueEvent::Deliver { messages, .. }, .. }) => {
                messages.first().map(|m| m.msg_id)
            }
            _ => None,
        }
    }

    #[test]
    fn deliveries_that_nobody_takes_are_dropped_and_reported_behind_those_that_wait() {
        let (sender, mut receiver) = Sessions::channel(Arc::new(NoLog));
        let quarter = INBOX_BYTES / 4;
        for msg_id in 0..10 {
            assert!(sender.send(delivery(msg_id, quarter)));
        }
        assert_eq!((0..2).map(|_| receiver.try_recv().and_then(id_of)).collect::<Vec<_>>(), [Some(0), Some(1)]);
        assert_eq!((0..2).map(|_| receiver.try_recv().and_then(id_of)).collect::<Vec<_>>(), [Some(2), Some(3)]);
        let told: Vec<SessionEvent> = std::iter::from_fn(|| receiver.try_recv()).collect();
        let missed = |event: &SessionEvent| matches!(event, SessionEvent::Missed { session, group } if (*session, *group) == (SESSION, GROUP));
        assert_eq!(told.iter().filter(|event| missed(event)).count(), 1);
        assert!(sender.send(delivery(4, quarter)));
        assert_eq!(receiver.try_recv().and_then(id_of), Some(4));
    }

    #[test]
    fn one_message_of_any_size_is_let_through() {
        let (sender, mut receiver) = Sessions::channel(Arc::new(NoLog));
        assert!(sender.send(delivery(0, INBOX_BYTES * 3)));
        assert_eq!(receiver.try_recv().and_then(id_of), Some(0));
        assert!(sender.send(delivery(1, 1)));
        assert_eq!(receiver.try_recv().and_then(id_of), Some(1));
    }
}
