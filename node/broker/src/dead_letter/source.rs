//! The queue that messages died in, and the way from there to their next queues.

use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use rustc_hash::FxHashSet;
use warren_metastore::projections::{HeaderLookup, QueueTarget, Routed};
use warren_proto::ids::GroupId;
use warren_proto::message::Message;
use warren_queues::quorum::{DeadLetter, DeadReason, Traits};

use super::deaths::{Rewritten, rewrite};
use crate::node::Broker;
use crate::queue::protocol::{Body, Delivery, QueuedMessage, load_bodies};

/// Body bytes that are read at a time.
const CHUNK_BYTES: usize = 1 << 20;
/// Messages that are read at a time.
const CHUNK: usize = 256;
/// Cycles that are remembered as told.
const MAX_TOLD: usize = 1024;

pub(super) struct Source {
    pub broker: Arc<Broker>,
    pub group: GroupId,
    vhost: Arc<str>,
    pub name: Arc<str>,
    told: FxHashSet<Arc<str>>,
}

/// Where a dead message goes.
pub(super) enum Route {
    /// There is no such exchange.
    NoExchange,
    /// To these queues, without those that it would only come back to; `cycles`: there were such.
    Queues { queues: Routed, cycles: bool },
}

impl Source {
    /// `None` if the queue is gone.
    pub fn new(broker: Arc<Broker>, group: GroupId) -> Option<Self> {
        let record = broker.metadata().queue_of_group(group)?;
        let (vhost, name) = (record.vhost.clone(), record.name.clone());
        Some(Source { broker, group, vhost, name, told: FxHashSet::default() })
    }

    /// Reads the bodies of the first of `messages`, as many as are to be in memory at a time. `None` if that went wrong.
    pub async fn load(&self, messages: &mut impl Iterator<Item = Delivery>) -> Option<Vec<Delivery>> {
        let mut bytes = 0;
        let mut chunk = Vec::new();
        while chunk.len() < CHUNK && bytes < CHUNK_BYTES {
            let Some(message) = messages.next() else { break };
            bytes += message.body.len();
            chunk.push(message);
        }
        if chunk.iter().any(|message| message.body.in_log().is_some()) {
            let (entries, group) = (self.broker.entry_reader(), self.group);
            let loading = tokio::task::spawn_blocking(move || {
                load_bodies(group, &mut chunk, &entries);
                chunk
            });
            chunk = loading.await.ok()?;
        }
        Some(chunk)
    }

    /// The dead message in its new form. `None`, and a line in the log, if it cannot be read.
    pub fn rewritten(&self, body: Bytes, reason: DeadReason, to: &DeadLetter) -> Option<Rewritten> {
        let now_ms = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64);
        let message = Message::parse(body).ok();
        let rewritten = message.and_then(|message| rewrite(&message, &self.name, reason, to, now_ms));
        if rewritten.is_none() {
            tracing::error!(queue = %self.name, vhost = %self.vhost, "a dead message cannot be read and goes nowhere");
        }
        rewritten
    }

    /// Where it goes now.
    pub fn route(&mut self, rewritten: &Rewritten, reason: DeadReason) -> Route {
        let message = &rewritten.message;
        let mut queues = Routed::new();
        {
            let view = self.broker.metadata().projections().peek();
            let Some(vhost) = view.vhost(&self.vhost) else { return Route::NoExchange };
            if !message.exchange().is_empty() && vhost.exchange(message.exchange()).is_none() {
                return Route::NoExchange;
            }
            let keys: Vec<&[u8]> = rewritten.keys.iter().map(|key| &key[..]).collect();
            let headers = message.headers();
            let headers = headers.as_ref().map(|table| table as &dyn HeaderLookup);
            vhost.route_into(message.exchange(), &keys, headers, &mut queues);
        }
        let all = queues.len();
        if reason != DeadReason::Rejected {
            queues.retain(|queue| {
                let cycle = rewritten.is_cycle(&queue.name);
                if cycle && self.told.len() < MAX_TOLD && self.told.insert(Arc::clone(&queue.name)) {
                    tracing::warn!(
                        queue = %self.name,
                        vhost = %self.vhost,
                        target = %queue.name,
                        "a message has gone round from queue to queue without being rejected: it is dropped, and so are \
                         others that do the same"
                    );
                }
                !cycle
            });
        }
        Route::Queues { cycles: queues.len() < all, queues }
    }
}

/// The dead message as it goes to a queue. `failed`: deliveries that failed before.
pub(super) fn queued(message: &Message, failed: u32) -> QueuedMessage {
    let traits = Traits { delivery_count: failed, priority: message.priority(), ttl_ms: None };
    QueuedMessage { head: message.head().clone(), body: message.body().clone(), traits }
}

/// The body of a loaded message; `None` if it is no longer stored.
pub(super) fn stored(delivery: &Delivery) -> Option<Bytes> {
    match &delivery.body {
        Body::Here(container) => Some(container.clone()),
        Body::InLog(_) | Body::Gone | Body::Unreadable => None,
    }
}

/// Whether two targets are the same queue.
pub(super) fn same(a: &QueueTarget, b: &QueueTarget) -> bool {
    a.group == b.group
}
