//! The classic queues whose home is this node: plain machines in memory, run by whoever brings a request.
//!
//! Their messages do not survive a restart of the node; durable ones keep their place in the metadata and come back
//! empty.

use std::collections::BTreeSet;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use parking_lot::{Mutex, RwLock};
use rustc_hash::FxHashMap;
use tokio::sync::mpsc;
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_queues::classic::{Attach, Command, Delivered, Effect, Effects, Queue, Reply};
use warren_queues::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef, Origin, StoredMessage};

use super::group::refuse;
use super::links::Links;
use super::protocol::{
    Body, ConsumerStats, ConsumerStatus, DELIVERY_BYTES, Delivery, EnqueueOutcome, QueueEvent, QueueItem, QueueReply,
    QueueRequest, QueueStats, Room, Settlement, ToQueue, ToSession,
};
use crate::metadata::now_ms;

struct Hosted {
    queue: Queue,
    fx: Effects,
    /// Sessions with business here.
    sessions: BTreeSet<SessionRef>,
}

/// See the module's head.
pub struct ClassicHost {
    me: NodeId,
    links: Arc<Links>,
    queues: RwLock<FxHashMap<GroupId, Arc<Mutex<Hosted>>>>,
    /// Queues whose last consumer left, for the broker to look at.
    abandoned: mpsc::UnboundedSender<GroupId>,
}

impl ClassicHost {
    /// No queues yet. Queues that lost their last consumer are named to `abandoned`.
    pub fn new(me: NodeId, links: Arc<Links>, abandoned: mpsc::UnboundedSender<GroupId>) -> Self {
        ClassicHost { me, links, queues: RwLock::default(), abandoned }
    }

    /// Starts an empty queue, unless it runs.
    pub fn start(&self, group: GroupId) {
        self.queues.write().entry(group).or_insert_with(|| Arc::new(Mutex::new(Hosted::new())));
    }

    /// Ends a queue and tells its sessions.
    pub fn stop(&self, group: GroupId) {
        let Some(hosted) = self.queues.write().remove(&group) else { return };
        let hosted = hosted.lock();
        for session in &hosted.sessions {
            self.say(*session, group, QueueEvent::Eol);
        }
    }

    /// Groups that run here.
    pub fn groups(&self) -> Vec<GroupId> {
        self.queues.read().keys().copied().collect()
    }

    /// Whether a queue runs here.
    pub fn contains(&self, group: GroupId) -> bool {
        self.queues.read().contains_key(&group)
    }

    /// A queue's figures.
    pub fn stats(&self, group: GroupId) -> Option<QueueStats> {
        let hosted = self.queues.read().get(&group).cloned()?;
        let hosted = hosted.lock();
        Some(stats(&hosted.queue))
    }

    /// Carries out a session's request. What its effects say goes out before this returns, so a session hears of its
    /// requests in order.
    pub fn accept(&self, to: ToQueue) {
        let Some(hosted) = self.queues.read().get(&to.group).cloned() else {
            refuse(&self.links, self.me, to, None, false);
            return;
        };
        let hosted = &mut *hosted.lock();
        let mut taken: Option<(u64, u64)> = None;
        for item in to.items {
            match item {
                QueueItem::Publishes { first_seq, messages } => {
                    let mut last = first_seq;
                    for (seq, message) in (first_seq..).zip(messages) {
                        last = seq;
                        // A copy of its own: the slices would keep whole socket buffers in memory.
                        let mut container = BytesMut::with_capacity(message.len());
                        container.extend_from_slice(&message.head);
                        container.extend_from_slice(&message.body);
                        let Some(message) = StoredMessage::new(message.head.len() as u32, container.freeze()) else {
                            continue;
                        };
                        let origin = Some(Origin { session: to.from, seq });
                        let _ = hosted.apply(Command::Enqueue { origin, message });
                    }
                    taken = Some((taken.map_or(first_seq, |t| t.0), last));
                }
                QueueItem::Command { correlation, request } => {
                    let reply = reply(hosted.apply(command(to.from, request)));
                    self.say(to.from, to.group, QueueEvent::Replied { correlation, reply });
                }
                QueueItem::Stat { correlation } => {
                    let stats = stats(&hosted.queue);
                    self.say(to.from, to.group, QueueEvent::Stats { correlation, stats });
                }
                QueueItem::Redeliver { tag, from_msg_id } => {
                    let consumer = ConsumerRef::Id(ConsumerId { session: to.from, tag: tag.clone() });
                    let key =
                        hosted.queue.consumers().find(|c| c.id.session == to.from && c.id.tag == tag).map(|c| c.key);
                    let mut room = Room::new(DELIVERY_BYTES);
                    let held = hosted.queue.held(&consumer, from_msg_id).map(delivery);
                    let messages = held.take_while(|m| room.take(m.body.len() as u32)).collect();
                    let key = Reference(key.map_or(0, |k| k.0));
                    self.say(to.from, to.group, QueueEvent::Deliver { tag, key, messages, again: true });
                }
                QueueItem::Ended => {
                    let _ = hosted.apply(Command::SessionDown { session: to.from });
                }
            }
        }
        if let Some((first_seq, last_seq)) = taken {
            let outcome = EnqueueOutcome::Enqueued;
            self.say(to.from, to.group, QueueEvent::Enqueued { first_seq, last_seq, outcome });
        }
        self.perform(to.group, hosted);
    }

    /// A node cannot be reached any more: its sessions give back what they hold.
    pub fn node_down(&self, node: NodeId) {
        let all: Vec<(GroupId, Arc<Mutex<Hosted>>)> =
            self.queues.read().iter().map(|(group, hosted)| (*group, Arc::clone(hosted))).collect();
        for (group, hosted) in all {
            let hosted = &mut *hosted.lock();
            if !hosted.sessions.iter().any(|s| s.node == node) {
                continue;
            }
            let _ = hosted.apply(Command::NodeDown { node });
            self.perform(group, hosted);
        }
    }

    fn perform(&self, group: GroupId, hosted: &mut Hosted) {
        let mut fx = std::mem::take(&mut hosted.fx);
        for effect in fx.drain() {
            match effect {
                Effect::Deliver(deliver) => {
                    let mut rest = deliver.messages.into_iter().map(delivery).peekable();
                    while rest.peek().is_some() {
                        let mut room = Room::new(DELIVERY_BYTES);
                        let fits = std::iter::from_fn(|| rest.next_if(|m| room.take(m.body.len() as u32)));
                        let messages = fits.collect();
                        let (tag, key) = (deliver.tag.clone(), Reference(deliver.key.0));
                        self.say(deliver.session, group, QueueEvent::Deliver { tag, key, messages, again: false });
                    }
                }
                Effect::Monitor(session) => {
                    hosted.sessions.insert(session);
                }
                Effect::Demonitor(session) => {
                    hosted.sessions.remove(&session);
                }
                Effect::Rejected { .. } => {}
                Effect::LastConsumerGone => {
                    let _ = self.abandoned.send(group);
                }
            }
        }
        hosted.fx = fx;
    }

    fn say(&self, session: SessionRef, group: GroupId, event: QueueEvent) {
        self.links.to_session(ToSession { session, group, leader: self.me, event });
    }
}

impl Hosted {
    fn new() -> Self {
        Hosted { queue: Queue::new(now_ms()), fx: Effects::new(), sessions: BTreeSet::new() }
    }

    fn apply(&mut self, command: Command) -> Reply {
        let reply = self.queue.apply(now_ms(), command, &mut self.fx);
        while self.queue.work_owed() {
            let _ = self.queue.apply(now_ms(), Command::Continue, &mut self.fx);
        }
        reply
    }
}

fn command(from: SessionRef, request: QueueRequest) -> Command {
    match request {
        QueueRequest::Attach { tag, no_ack, exclusive, prefetch, priority, arguments, user, .. } => {
            Command::Attach(Box::new(Attach {
                consumer: ConsumerId { session: from, tag },
                exclusive,
                prefetch,
                priority,
                meta: ConsumerMeta { ack: !no_ack, args: arguments, username: Bytes::from(user) },
            }))
        }
        QueueRequest::Dequeue { tag, .. } => {
            Command::Dequeue { consumer: ConsumerId { session: from, tag }, settled: false }
        }
        QueueRequest::Settle { key, settlement, ids } => {
            let consumer = ConsumerRef::Key(ConsumerKey(key.0));
            match settlement {
                Settlement::Ack => Command::Settle { consumer, ids },
                Settlement::Requeue { failed } => Command::Return { consumer, ids, failed },
                Settlement::Discard { .. } => Command::Discard { consumer, ids },
            }
        }
        QueueRequest::Sent { key, count } => Command::Sent { consumer: ConsumerRef::Key(ConsumerKey(key.0)), count },
        QueueRequest::Cancel { tag } => {
            Command::Cancel { consumer: ConsumerRef::Id(ConsumerId { session: from, tag }) }
        }
        QueueRequest::Purge => Command::Purge,
        QueueRequest::SessionGone { session } => Command::SessionDown { session },
        QueueRequest::Register => Command::RegisterEnqueuer { session: from },
        // Only quorum queues keep dead messages, and nobody asks others for them.
        QueueRequest::DlxAttach { .. } | QueueRequest::DlxSettle { .. } => Command::Continue,
    }
}

fn reply(reply: Reply) -> QueueReply {
    match reply {
        Reply::Attached { key, next_msg_id, .. } => QueueReply::Attached { key: Reference(key.0), next_msg_id },
        Reply::Got { key, message, ready } => {
            QueueReply::Got { key: Reference(key.0), message: delivery(message), ready }
        }
        Reply::Empty => QueueReply::Empty,
        Reply::Purged { count } => QueueReply::Purged { count },
        Reply::NotFound => QueueReply::NotFound,
        Reply::ExclusiveUse => QueueReply::ExclusiveUse,
        Reply::Registered { blocked, .. } => QueueReply::Registered { reject: blocked },
        Reply::SingleActive => QueueReply::SingleActive,
        Reply::Ok | Reply::Cancelled { .. } | Reply::Retried { .. } => QueueReply::Done,
        Reply::Unsupported
        | Reply::AlreadyApplied
        | Reply::IdInUse
        | Reply::OutOfSequence { .. }
        | Reply::UnknownEnqueuer => QueueReply::Unsupported,
    }
}

fn delivery(message: Delivered) -> Delivery {
    Delivery {
        msg_id: message.msg_id,
        acquired_count: u32::from(message.redelivered),
        delivery_count: message.delivery_count,
        body: Body::Here(message.message.into_container()),
    }
}

fn stats(queue: &Queue) -> QueueStats {
    let overview = queue.overview();
    QueueStats {
        ready: overview.ready,
        unacknowledged: overview.unacked,
        ready_bytes: overview.bytes_ready,
        unacknowledged_bytes: overview.bytes_unacked,
        publishers: overview.publishers,
        consumers: queue
            .consumers()
            .map(|c| ConsumerStats {
                tag: c.id.tag.clone(),
                session: c.id.session,
                ack_required: c.meta.ack,
                prefetch: c.prefetch,
                status: ConsumerStatus::Up,
                priority: c.priority,
                user: String::from_utf8_lossy(&c.meta.username).into_owned(),
            })
            .collect(),
        ..QueueStats::default()
    }
}
