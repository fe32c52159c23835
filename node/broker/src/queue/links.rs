//! The way between sessions and queues, on this node and across nodes.
//!
//! For each peer one task forwards what is for it, in order: it reads bodies that are still in the log, packs everything
//! that waits into one frame, and waits when the lane is full. What waits for an unreachable peer is dropped: a session
//! resends what is pending and asks for missed deliveries once the peer is back.

use std::collections::HashMap;
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
    forwarders: Mutex<HashMap<NodeId, mpsc::UnboundedSender<Outgoing>>>,
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
        let sender = forwarders.entry(node).or_insert_with(|| {
            let (sender, receiver) = mpsc::unbounded_channel();
            self.runtime.spawn(forward(node, receiver, self.transport.clone(), Arc::clone(entries)));
            sender
        });
        let _ = sender.send(outgoing);
    }
}

async fn forward(
    node: NodeId,
    mut waiting: mpsc::UnboundedReceiver<Outgoing>,
    transport: Transport,
    entries: Arc<dyn EntryReader>,
) {
    let mut drained = Vec::with_capacity(DRAIN);
    loop {
        drained.clear();
        if waiting.recv_many(&mut drained, DRAIN).await == 0 {
            return;
        }
        if !transport.is_up(node) {
            continue;
        }
        let needs_disk = drained.iter().any(|o| matches!(o, Outgoing::ToSession(to) if to.event.needs_bodies()));
        if needs_disk {
            let mut taken = std::mem::take(&mut drained);
            let reader = Arc::clone(&entries);
            let loaded = tokio::task::spawn_blocking(move || {
                for outgoing in &mut taken {
                    if let Outgoing::ToSession(to) = outgoing {
                        to.event.load(to.group, &reader);
                    }
                }
                taken
            })
            .await;
            match loaded {
                Ok(taken) => drained = taken,
                Err(_) => continue,
            }
        }
        let mut frame = peer::BrokerFrame::default();
        let mut bytes = 0;
        for outgoing in drained.drain(..) {
            let message = encode(outgoing);
            bytes += message.encoded_len();
            frame.messages.push(message);
            if bytes >= FRAME_BYTES {
                send(node, std::mem::take(&mut frame), &transport).await;
                bytes = 0;
            }
        }
        if !frame.messages.is_empty() {
            send(node, frame, &transport).await;
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

async fn send(node: NodeId, frame: peer::BrokerFrame, transport: &Transport) {
    let payload = Bytes::from(frame.encode_to_vec());
    let mut frame = peer::Frame { kind: Some(peer::frame::Kind::Broker(payload)) };
    loop {
        match transport.send(node, Lane::Queue, frame) {
            Ok(()) => return,
            Err(_) if !transport.is_up(node) => return,
            Err(back) => {
                frame = back;
                tokio::time::sleep(Duration::from_millis(2)).await;
            }
        }
    }
}
