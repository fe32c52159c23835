//! The way between sessions and queues, on this node and across nodes.
//!
//! For each peer one task forwards what is for it, in order: it reads bodies that are still in the log, packs everything
//! that waits into one frame, and waits when the lane is full. Where that makes much wait, bodies are left in the log until
//! their turn comes. What waits for an unreachable peer is dropped: a session resends what is pending and asks for missed
//! deliveries once the peer is back.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use prost::Message;
use tokio::sync::mpsc;
use warren_proto::ids::NodeId;
use warren_proto::peer;
use warren_raft::machine::EntryReader;
use warren_raft::transport::{Lane, Transport};

use super::protocol::{QueueItem, ToQueue, ToSession};
use super::wire;
use crate::session::registry::Sessions;

/// Bytes of one frame after which a new one is begun.
const FRAME_BYTES: usize = 2 << 20;
/// Messages that one wake-up of a forwarder takes.
const DRAIN: usize = 1024;
/// Body bytes of deliveries that wait for one peer in memory, about; of others the bodies stay in the log.
const CROWDED: usize = 16 << 20;

enum Outgoing {
    ToQueue(ToQueue),
    ToSession(ToSession),
    Metadata(Bytes),
}

/// Where requests for queues of this node go.
pub trait LocalQueues: Send + Sync + 'static {
    /// Hands a request to the queue on this node. What cannot be taken is answered with `NotLeader`.
    fn accept(&self, to: ToQueue);
    /// Hands an encoded metadata command to the metadata group's member on this node.
    fn accept_metadata(&self, command: Bytes);
}

/// Sends requests to queues and events to sessions, wherever they are.
pub struct Links {
    me: NodeId,
    sessions: Arc<Sessions>,
    entries: OnceLock<Arc<dyn EntryReader>>,
    transport: Transport,
    runtime: tokio::runtime::Handle,
    local: OnceLock<Arc<dyn LocalQueues>>,
    forwarders: Mutex<HashMap<NodeId, Forwarder>>,
}

struct Forwarder {
    sender: mpsc::UnboundedSender<Outgoing>,
    /// Body bytes of deliveries that wait.
    waiting: Arc<AtomicUsize>,
}

impl Links {
    /// Links of this node; call [`connect`](Self::connect) before the first use.
    pub fn new(sessions: Arc<Sessions>, transport: Transport, runtime: tokio::runtime::Handle) -> Self {
        Links {
            me: sessions.node(),
            sessions,
            entries: OnceLock::new(),
            transport,
            runtime,
            local: OnceLock::new(),
            forwarders: Mutex::default(),
        }
    }

    /// Names the queues of this node and the reader of its log. The first call counts.
    pub fn connect(&self, local: Arc<dyn LocalQueues>, entries: Arc<dyn EntryReader>) {
        let _ = self.entries.set(entries);
        let _ = self.local.set(local);
    }

    /// Whether a peer can be reached now. This node always can.
    pub fn is_up(&self, node: NodeId) -> bool {
        node == self.me || self.transport.is_up(node)
    }

    /// Whether so much waits for a peer that deliveries to it should leave their bodies in the log.
    pub fn is_crowded(&self, node: NodeId) -> bool {
        node != self.me
            && self.forwarders.lock().get(&node).is_some_and(|f| f.waiting.load(Ordering::Relaxed) >= CROWDED)
    }

    /// Body bytes of deliveries that wait for each peer.
    pub fn waiting(&self) -> Vec<(NodeId, usize)> {
        self.forwarders.lock().iter().map(|(node, f)| (*node, f.waiting.load(Ordering::Relaxed))).collect()
    }

    /// Sends a request to a queue's member on `node`.
    pub fn to_queue(&self, node: NodeId, to: ToQueue) {
        if node == self.me {
            if let Some(local) = self.local.get() {
                local.accept(to);
            }
        } else {
            self.forward(node, Outgoing::ToQueue(to));
        }
    }

    /// Sends an event to a session. Never blocks.
    pub fn to_session(&self, to: ToSession) {
        if to.session.node == self.me {
            self.sessions.dispatch(to);
        } else {
            self.forward(to.session.node, Outgoing::ToSession(to));
        }
    }

    /// Sends a metadata command to the metadata group's member on `node`.
    pub fn to_metadata(&self, node: NodeId, command: Bytes) {
        if node == self.me {
            if let Some(local) = self.local.get() {
                local.accept_metadata(command);
            }
        } else {
            self.forward(node, Outgoing::Metadata(command));
        }
    }

    /// A frame of broker traffic from a peer.
    pub fn received(&self, from: NodeId, frame: Bytes) {
        let frame = match peer::BrokerFrame::decode(frame) {
            Ok(frame) => frame,
            Err(error) => {
                tracing::warn!(%from, %error, "dropped a frame that does not decode");
                return;
            }
        };
        let Some(local) = self.local.get() else { return };
        for message in frame.messages {
            use peer::broker_message::Kind;
            let result = match message.kind {
                Some(Kind::ToQueue(to)) => wire::decode_to_queue(to).map(|to| local.accept(to)),
                Some(Kind::ToSession(to)) => wire::decode_to_session(to).map(|to| self.arrived(from, to)),
                Some(Kind::MetadataCommand(command)) => {
                    local.accept_metadata(command);
                    Ok(())
                }
                // Something that a newer peer knows.
                None => Ok(()),
            };
            if let Err(error) = result {
                tracing::warn!(%from, %error, "dropped a message that does not decode");
            }
        }
    }

    /// An event for a session of this node. A session that is gone is reported back, so that no queue keeps consumers
    /// or deliveries for one, whatever was lost on the way before.
    fn arrived(&self, from: NodeId, to: ToSession) {
        if self.sessions.contains(to.session) {
            self.sessions.dispatch(to);
        } else {
            self.to_queue(from, ToQueue { group: to.group, from: to.session, items: vec![QueueItem::Ended] });
        }
    }

    fn forward(&self, node: NodeId, outgoing: Outgoing) {
        let Some(entries) = self.entries.get() else { return };
        let mut forwarders = self.forwarders.lock();
        let forwarder = forwarders.entry(node).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            let waiting = Arc::default();
            let out = Outlet { node, transport: self.transport.clone(), frame: peer::BrokerFrame::default(), bytes: 0 };
            self.runtime.spawn(forward(receiver, Arc::clone(&waiting), out, Arc::clone(entries)));
            Forwarder { sender, waiting }
        });
        forwarder.waiting.fetch_add(outgoing.body_bytes(), Ordering::Relaxed);
        let _ = forwarder.sender.send(outgoing);
    }
}

impl Outgoing {
    fn body_bytes(&self) -> usize {
        match self {
            Outgoing::ToSession(to) => to.event.body_bytes(),
            Outgoing::ToQueue(_) | Outgoing::Metadata(_) => 0,
        }
    }
}

async fn forward(
    mut waiting: mpsc::UnboundedReceiver<Outgoing>,
    bytes_waiting: Arc<AtomicUsize>,
    mut out: Outlet,
    entries: Arc<dyn EntryReader>,
) {
    let mut drained = Vec::with_capacity(DRAIN);
    loop {
        drained.clear();
        if waiting.recv_many(&mut drained, DRAIN).await == 0 {
            return;
        }
        for outgoing in drained.drain(..) {
            let bytes = outgoing.body_bytes();
            if out.transport.is_up(out.node)
                && let Some(outgoing) = loaded(outgoing, &entries).await
            {
                out.add(encode(outgoing)).await;
            }
            bytes_waiting.fetch_sub(bytes, Ordering::Relaxed);
        }
        out.flush().await;
    }
}

/// The same with the bodies that it left in the log. `None` if they could not be read: the session asks again.
async fn loaded(outgoing: Outgoing, entries: &Arc<dyn EntryReader>) -> Option<Outgoing> {
    match outgoing {
        Outgoing::ToSession(mut to) if to.event.needs_bodies() => {
            let entries = Arc::clone(entries);
            let loading = tokio::task::spawn_blocking(move || {
                to.event.load(to.group, &entries);
                to
            });
            loading.await.ok().filter(|to| !to.event.is_unreadable()).map(Outgoing::ToSession)
        }
        other => Some(other),
    }
}

/// The frame that is being filled for a peer.
struct Outlet {
    node: NodeId,
    transport: Transport,
    frame: peer::BrokerFrame,
    bytes: usize,
}

impl Outlet {
    async fn add(&mut self, message: peer::BrokerMessage) {
        self.bytes += message.encoded_len();
        self.frame.messages.push(message);
        if self.bytes >= FRAME_BYTES {
            self.flush().await;
        }
    }

    async fn flush(&mut self) {
        if self.frame.messages.is_empty() {
            return;
        }
        self.bytes = 0;
        let payload = Bytes::from(std::mem::take(&mut self.frame).encode_to_vec());
        let mut frame = peer::Frame { kind: Some(peer::frame::Kind::Broker(payload)) };
        loop {
            match self.transport.send(self.node, Lane::Queue, frame) {
                Ok(()) => return,
                Err(_) if !self.transport.is_up(self.node) => return,
                Err(back) => {
                    frame = back;
                    tokio::time::sleep(Duration::from_millis(2)).await;
                }
            }
        }
    }
}

fn encode(outgoing: Outgoing) -> peer::BrokerMessage {
    use peer::broker_message::Kind;
    let kind = match outgoing {
        Outgoing::ToQueue(to) => Kind::ToQueue(wire::encode_to_queue(to)),
        Outgoing::ToSession(to) => Kind::ToSession(wire::encode_to_session(to)),
        Outgoing::Metadata(command) => Kind::MetadataCommand(command),
    };
    peer::BrokerMessage { kind: Some(kind) }
}
