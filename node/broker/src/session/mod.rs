//! Sessions: what one AMQP channel (or its like in another protocol) is to the queues.
//!
//! A session lives inside its connection's task. Publishing, acknowledging and consuming only gather work; `flush` sends
//! each queue what it got since the last flush as one request. What queues answer arrives through the connection's
//! [`EventReceiver`](registry::EventReceiver) and is given to [`Session::handle`].

pub mod confirms;
pub mod queue_client;
pub mod registry;
pub mod unacked;
pub mod window;

use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use rustc_hash::FxHashMap;
use slab::Slab;
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::QueueKind;
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_queues::MsgIds;

use crate::error::BrokerError;
use crate::feature_flags::Feature;
use crate::node::Broker;
use crate::queue::protocol::{
    Body, Delivery, EnqueueOutcome, QueueEvent, QueueItem, QueueReply, QueueRequest, QueuedMessage, Settlement,
    ToQueue, ToSession,
};
use confirms::{Confirms, Resolved};
use queue_client::{ConsumerHandle, QueueClient};
use registry::{EventSender, SessionEvent, Sessions};
use unacked::{Unacked, UnackedDeliveries, UnknownTag};
use window::SharedWindow;

/// How long an ended session goes on resending what its queues have not applied.
const LINGER: Duration = Duration::from_secs(60);
/// How often an ended session looks at what is pending.
const LINGER_TICK: Duration = Duration::from_millis(100);

/// Something that a session has for its client.
#[derive(Debug)]
pub enum Output {
    /// A message for a consumer.
    Deliver(Delivered),
    /// A consumer ended because its queue is gone.
    Cancelled {
        /// The consumer's tag.
        tag: Bytes,
    },
    /// Messages were held too long and are the queue's again. Their consumer ended.
    TimedOut {
        /// The consumer's tag; `None` if a `basic.get` held one.
        tag: Option<Bytes>,
        /// The queue.
        queue: Arc<QueueTarget>,
        /// How many.
        count: u64,
    },
}

/// A message for the client.
#[derive(Debug)]
pub struct Delivered {
    /// The consumer's tag; empty for `basic.get`.
    pub tag: Bytes,
    /// To be named in the answer.
    pub delivery_tag: u64,
    /// Whether it was handed out before.
    pub redelivered: bool,
    /// Times it was handed out before, as quorum queues count; 0 for others.
    pub acquired_count: u32,
    /// Times it failed before, as quorum queues count; 0 for others.
    pub delivery_count: u32,
    /// The stored container.
    pub container: Bytes,
}

/// What a client asks of `basic.consume` and its likes.
#[derive(Debug, Clone)]
pub struct ConsumerSpec {
    /// Unique in the session.
    pub tag: Bytes,
    /// Deliveries count as acknowledged when they are sent.
    pub no_ack: bool,
    /// Sole consumer of a classic queue.
    pub exclusive: bool,
    /// Unanswered deliveries at most; 0 = no limit of the client's.
    pub prefetch: u16,
    /// Higher is served first.
    pub priority: i32,
    /// The client's arguments as it sent them, for listings.
    pub arguments: Bytes,
    /// Who consumes, for listings.
    pub user: String,
    /// How long it may hold a message, in ms, if it says so; quorum queues only.
    pub timeout_ms: Option<u64>,
}

#[derive(Debug)]
struct SessionConsumer {
    group: GroupId,
    handle: ConsumerHandle,
    no_ack: bool,
    /// A classic queue's consumer without a prefetch limit: the queue waits to hear what was sent.
    reports_sent: bool,
    /// Deliveries that the client has not answered. A cancelled consumer is forgotten once there are none.
    unanswered: usize,
    /// The next message id that is expected.
    next_msg_id: u64,
    /// A gap was seen: only an answer to `Redeliver` is taken.
    resync: bool,
    cancelled: bool,
    /// Its deliveries count against a limit of the whole session.
    shares_window: bool,
}

/// See the module's head.
pub struct Session {
    broker: Arc<Broker>,
    me: SessionRef,
    events: EventSender,
    clients: FxHashMap<GroupId, QueueClient>,
    dirty: Vec<GroupId>,
    confirms: Option<Confirms>,
    unacked: UnackedDeliveries,
    consumers: Slab<SessionConsumer>,
    by_tag: FxHashMap<Bytes, u32>,
    window: SharedWindow,
    next_correlation: u64,
    outbox: Vec<(NodeId, ToQueue)>,
}

impl Session {
    /// A session whose events go to `events`.
    pub fn open(broker: &Arc<Broker>, events: EventSender) -> Self {
        Session {
            broker: Arc::clone(broker),
            me: broker.sessions().register(events.clone()),
            events,
            clients: FxHashMap::default(),
            dirty: Vec::new(),
            confirms: None,
            unacked: UnackedDeliveries::default(),
            consumers: Slab::new(),
            by_tag: FxHashMap::default(),
            window: SharedWindow::default(),
            next_correlation: 1,
            outbox: Vec::new(),
        }
    }

    /// Its identity at queues.
    pub fn id(&self) -> SessionRef {
        self.me
    }

    /// Whether an event for `session` is this session's.
    pub fn owns(&self, session: SessionRef) -> bool {
        session == self.me || self.clients.values().any(|c| c.enqueuer == session)
    }

    /// From now on publishes are confirmed. Repeatable.
    pub fn select_confirms(&mut self) {
        self.confirms.get_or_insert_with(Confirms::default);
    }

    /// Whether publishes are confirmed.
    pub fn confirms_selected(&self) -> bool {
        self.confirms.is_some()
    }

    /// Gives a message to the queues that it was routed to. The confirm tag, if confirms are selected.
    pub fn publish(&mut self, targets: &[Arc<QueueTarget>], message: QueuedMessage) -> Option<u64> {
        let confirm = self.confirms.as_mut().map(|c| c.publish(targets.len() as u32));
        let Some((last, others)) = targets.split_last() else { return confirm };
        for target in others {
            self.publish_to(target, message.clone(), confirm);
        }
        self.publish_to(last, message, confirm);
        confirm
    }

    fn publish_to(&mut self, target: &Arc<QueueTarget>, message: QueuedMessage, confirm: Option<u64>) {
        let client = Self::client(&self.broker, &mut self.clients, &mut self.dirty, self.me, target);
        if !client.gone && !client.takes_publishes() {
            if let (Some(confirms), Some(tag)) = (self.confirms.as_mut(), confirm) {
                confirms.rejected(tag);
            }
        } else if !client.gone {
            client.publish(message, confirm);
        } else if let (Some(confirms), Some(tag)) = (self.confirms.as_mut(), confirm) {
            confirms.accepted(tag);
        }
    }

    /// The session's client of a queue, which is then flushed by the next [`flush`](Self::flush).
    fn client<'a>(
        broker: &Broker,
        clients: &'a mut FxHashMap<GroupId, QueueClient>,
        dirty: &mut Vec<GroupId>,
        me: SessionRef,
        target: &Arc<QueueTarget>,
    ) -> &'a mut QueueClient {
        if dirty.last() != Some(&target.group) && !dirty.contains(&target.group) {
            dirty.push(target.group);
        }
        clients.entry(target.group).or_insert_with(|| {
            QueueClient::new(Arc::clone(target), me, broker.may_refuse_publishes(target), Instant::now())
        })
    }

    /// Sends every queue what was gathered for it.
    pub fn flush(&mut self) {
        if self.dirty.is_empty() {
            return;
        }
        let now = Instant::now();
        let broker = &self.broker;
        let next_correlation = &mut self.next_correlation;
        for group in self.dirty.drain(..) {
            if let Some(client) = self.clients.get_mut(&group) {
                client.flush(
                    now,
                    &mut |target, member| broker.find_leader(target, member),
                    &mut || {
                        *next_correlation += 1;
                        *next_correlation
                    },
                    &mut self.outbox,
                );
            }
        }
        self.send();
    }

    fn send(&mut self) {
        for (node, to) in self.outbox.drain(..) {
            self.broker.links().to_queue(node, to);
        }
    }

    /// Whether the connection should stop reading publishes: some queue has not answered enough.
    pub fn is_blocked(&self) -> bool {
        self.clients.values().any(QueueClient::is_blocked)
    }

    /// Publishes that were resolved since the last call; `None` if none was.
    pub fn take_confirms(&mut self) -> Option<Resolved> {
        self.confirms.as_mut().filter(|c| c.has_resolved()).map(Confirms::take)
    }

    /// Publishes whose confirm is owed.
    pub fn unconfirmed(&self) -> usize {
        self.confirms.as_ref().map_or(0, Confirms::unresolved)
    }

    /// Deliveries that the client has not answered.
    pub fn unacknowledged(&self) -> usize {
        self.unacked.len()
    }

    /// Consumers that were not cancelled.
    pub fn consumer_count(&self) -> usize {
        self.by_tag.len()
    }

    /// Whether the tag is in use.
    pub fn has_consumer(&self, tag: &[u8]) -> bool {
        self.by_tag.contains_key(tag)
    }

    /// The tags of consumers that were not cancelled, with their queues.
    pub fn consumed(&self) -> impl Iterator<Item = (&Bytes, &Arc<QueueTarget>)> {
        self.by_tag.iter().filter_map(|(tag, number)| {
            let client = self.clients.get(&self.consumers[*number as usize].group)?;
            Some((tag, &client.target))
        })
    }

    /// Answers deliveries; see [`UnackedDeliveries::settle`]. Sent by the next flush.
    pub fn settle(&mut self, delivery_tag: u64, multiple: bool, settlement: Settlement) -> Result<(), UnknownTag> {
        let (clients, dirty, consumers) = (&mut self.clients, &mut self.dirty, &mut self.consumers);
        let window = &mut self.window;
        let settled = self.unacked.settle(delivery_tag, multiple, |delivery| {
            settle_one(clients, dirty, consumers, window, delivery, settlement);
        });
        self.serve_waiting();
        settled
    }

    /// Limits the unanswered deliveries of all its consumers of classic queues together; 0 = no limit. Whether the
    /// deprecated feature that this is was permitted: if not, nothing changes.
    pub fn limit_all(&mut self, limit: u16) -> bool {
        if self.broker.feature_flags().permits(Feature::GlobalQos).is_err() {
            return false;
        }
        self.window.set_limit(limit);
        self.serve_waiting();
        self.send();
        true
    }

    /// Asks for what consumers were not given while the session held as much as it may.
    fn serve_waiting(&mut self) {
        for _ in 0..self.window.room() {
            let Some(number) = self.window.next_waiting() else { return };
            let Some(consumer) = self.consumers.get(number as usize).filter(|c| !c.cancelled && c.resync) else {
                continue;
            };
            if let Some(leader) = self.clients.get(&consumer.group).and_then(QueueClient::leader) {
                let tag = consumer.handle.tag.clone();
                self.outbox.push((leader, redeliver(consumer.group, self.me, tag, consumer.next_msg_id)));
            }
        }
    }

    /// Takes the next delivery tag for a message that needs no answer and came from no queue.
    pub fn deliver_settled(&mut self) -> u64 {
        self.unacked.deliver(None)
    }

    /// Gives every unanswered delivery back to its queue (`basic.recover`).
    pub fn recover(&mut self) {
        let _ = self.settle(0, true, Settlement::Requeue { failed: false });
    }

    /// Subscribes to a queue. Deliveries follow through [`handle`](Self::handle).
    pub async fn consume(&mut self, target: &Arc<QueueTarget>, spec: ConsumerSpec) -> Result<(), BrokerError> {
        let limit = self.window.limit();
        if limit > 0 && target.kind != QueueKind::Classic {
            return Err(BrokerError::NotImplemented(format!(
                "queue '{}' in vhost '{}' does not support global qos",
                target.name, target.vhost
            )));
        }
        // No consumer may hold more than all together.
        let prefetch = if limit > 0 && (spec.prefetch == 0 || spec.prefetch > limit) { limit } else { spec.prefetch };
        if let Some(client) = self.clients.get_mut(&target.group) {
            client.keep(&spec.tag);
        }
        self.flush();
        let number = self.consumers.insert(SessionConsumer {
            group: target.group,
            handle: ConsumerHandle { tag: spec.tag.clone(), key: Reference::default() },
            no_ack: spec.no_ack,
            reports_sent: target.kind == QueueKind::Classic && prefetch == 0 && !spec.no_ack,
            unanswered: 0,
            next_msg_id: 0,
            resync: false,
            cancelled: false,
            shares_window: target.kind == QueueKind::Classic && !spec.no_ack,
        }) as u32;
        self.by_tag.insert(spec.tag.clone(), number);
        let _ = Self::client(&self.broker, &mut self.clients, &mut self.dirty, self.me, target);
        let request = QueueRequest::Attach {
            tag: spec.tag.clone(),
            no_ack: spec.no_ack,
            exclusive: spec.exclusive,
            prefetch: u32::from(prefetch),
            priority: spec.priority,
            arguments: spec.arguments,
            user: spec.user,
            timeout_ms: spec.timeout_ms,
            default_timeout_ms: self.broker.config().consumer_timeout_ms,
        };
        let failure = match self.broker.call_queue(self.me, target, request).await {
            Ok(QueueReply::Attached { key, next_msg_id }) => {
                // The answer may be the one to a second attempt, and what was delivered since the first waits in the
                // connection's events. Ids go on only for a subscription that was cancelled and still holds messages.
                let before = self.consumers.iter().find(|(_, c)| c.group == target.group && c.handle.key == key);
                let known = before.map_or(0, |(_, before)| before.next_msg_id);
                let consumer = &mut self.consumers[number as usize];
                consumer.handle.key = key;
                consumer.next_msg_id = next_msg_id.min(known);
                return Ok(());
            }
            Ok(QueueReply::ExclusiveUse) => BrokerError::AccessRefused(format!(
                "queue '{}' in vhost '{}' in exclusive use",
                target.name, target.vhost
            )),
            Ok(other) => unexpected(&other),
            Err(error) => error,
        };
        self.by_tag.remove(&spec.tag);
        self.consumers.remove(number as usize);
        Err(failure)
    }

    /// Ends a subscription at its queue; what it delivered stays answerable. Unknown tags are fine. Deliveries that the
    /// queue made before are still on their way: take them with [`handle`](Self::handle), then call
    /// [`cancelled`](Self::cancelled).
    pub async fn cancel(&mut self, tag: &[u8]) -> Result<(), BrokerError> {
        let Some(&number) = self.by_tag.get(tag) else { return Ok(()) };
        self.flush();
        let consumer = &self.consumers[number as usize];
        let (group, tag) = (consumer.group, consumer.handle.tag.clone());
        match self.clients.get(&group).filter(|c| !c.gone) {
            Some(client) => {
                let target = Arc::clone(&client.target);
                self.broker.call_queue(self.me, &target, QueueRequest::Cancel { tag }).await.map(|_| ())
            }
            None => Ok(()),
        }
    }

    /// Forgets a consumer that was [cancelled](Self::cancel): what still comes for it goes back to its queue.
    pub fn cancelled(&mut self, tag: &[u8]) {
        let Some(number) = self.by_tag.remove(tag) else { return };
        let consumer = &mut self.consumers[number as usize];
        consumer.cancelled = true;
        if consumer.resync
            && let Some(leader) = self.clients.get(&consumer.group).and_then(QueueClient::leader)
        {
            // What it missed is still assigned to it.
            let tag = consumer.handle.tag.clone();
            self.outbox.push((leader, redeliver(consumer.group, self.me, tag, consumer.next_msg_id)));
        }
        if consumer.unanswered == 0 {
            self.consumers.remove(number as usize);
        }
        self.send();
    }

    /// Takes one message (`basic.get`). With it, how many are ready behind it.
    pub async fn get(
        &mut self,
        target: &Arc<QueueTarget>,
        no_ack: bool,
    ) -> Result<Option<(Delivered, u64)>, BrokerError> {
        self.flush();
        self.next_correlation += 1;
        // A tag of its own for each get, so that asking again after a leader change gives the same message.
        let tag = Bytes::from(format!("\0get-{}", self.next_correlation));
        let default_timeout_ms = self.broker.config().consumer_timeout_ms;
        let request = QueueRequest::Dequeue { tag: tag.clone(), default_timeout_ms };
        let (key, message, ready) = match self.broker.call_queue(self.me, target, request).await? {
            QueueReply::Got { key, message, ready } => (key, message, ready),
            QueueReply::Empty => return Ok(None),
            QueueReply::SingleActive => {
                return Err(BrokerError::ResourceLocked(format!(
                    "cannot obtain access to locked queue '{}' in vhost '{}'. basic.get operations are not supported by \
                     quorum queues with single active consumer",
                    target.name, target.vhost
                )));
            }
            other => return Err(unexpected(&other)),
        };
        let Body::Here(container) = message.body else {
            return Err(BrokerError::Internal("the message could not be read".into()));
        };
        let client = Self::client(&self.broker, &mut self.clients, &mut self.dirty, self.me, target);
        if no_ack {
            // Answered here and not by the queue, which may be asked twice.
            client.settle(&ConsumerHandle { tag: tag.clone(), key }, Settlement::Ack, message.msg_id);
        }
        let delivery = (!no_ack).then(|| {
            let consumer = self.consumers.insert(SessionConsumer {
                group: target.group,
                handle: ConsumerHandle { tag, key },
                no_ack: false,
                reports_sent: false,
                unanswered: 1,
                next_msg_id: message.msg_id + 1,
                resync: false,
                cancelled: true,
                shares_window: false,
            });
            Unacked { group: target.group, consumer: consumer as u32, msg_id: message.msg_id }
        });
        let delivered = Delivered {
            tag: Bytes::new(),
            delivery_tag: self.unacked.deliver(delivery),
            redelivered: message.acquired_count > 0,
            acquired_count: counted(target.kind, message.acquired_count),
            delivery_count: counted(target.kind, message.delivery_count),
            container,
        };
        Ok(Some((delivered, ready)))
    }

    /// Takes what a queue said. What it means for the client goes to `out`; confirms wait in
    /// [`take_confirms`](Self::take_confirms).
    pub fn handle(&mut self, to: ToSession, out: &mut Vec<Output>) {
        let now = Instant::now();
        let group = to.group;
        let leader = to.leader;
        match to.event {
            QueueEvent::Deliver { tag, key, messages, again } => {
                self.deliver(group, leader, tag, key, messages, again, out)
            }
            QueueEvent::Enqueued { first_seq, last_seq, outcome } => {
                self.enqueued(to.session, group, leader, (first_seq, last_seq), outcome, now);
            }
            QueueEvent::Replied { correlation, reply } => {
                if let Some(client) = self.clients.get_mut(&group) {
                    client.replied(correlation, leader, now);
                    let confirms = &mut self.confirms;
                    if let QueueReply::Registered { reject } = reply
                        && client.registered(correlation, reject, &mut |tag, taken| resolve(confirms, tag, taken))
                        && !self.dirty.contains(&group)
                    {
                        self.dirty.push(group);
                    }
                }
                if let QueueReply::Got { key, message, .. } = reply {
                    self.got_in_vain(group, key, &message);
                }
            }
            QueueEvent::Status { reject } => {
                if let Some(client) = self.clients.get_mut(&group) {
                    client.set_rejecting(reject);
                }
            }
            QueueEvent::Released { tag, key, ids, dequeue } => {
                self.released(group, ConsumerHandle { tag, key }, &ids, dequeue, out);
            }
            QueueEvent::LeaderChanged => {
                if let Some(client) = self.clients.get_mut(&group) {
                    client.set_rejecting(false);
                }
                self.resend(group, Some(leader), now);
                self.ask_again(group, leader);
            }
            QueueEvent::NotLeader { leader: hint, first_seq, busy, .. } => {
                let moved = self
                    .clients
                    .get_mut(&group)
                    .is_some_and(|client| client.refused(hint, leader, busy, first_seq, now));
                if moved {
                    self.resend(group, hint, now);
                }
            }
            QueueEvent::Eol => self.queue_gone(group, out),
            QueueEvent::Stats { .. } | QueueEvent::Ping => {}
        }
        self.send();
    }

    fn enqueued(
        &mut self,
        enqueuer: SessionRef,
        group: GroupId,
        leader: NodeId,
        (first, last): (u64, u64),
        outcome: EnqueueOutcome,
        now: Instant,
    ) {
        let Some(client) = self.clients.get_mut(&group) else { return };
        if client.enqueuer != enqueuer {
            return;
        }
        let confirms = &mut self.confirms;
        let again = client.enqueued(first, last, outcome, leader, now, &mut |tag, taken| resolve(confirms, tag, taken));
        if again && outcome == EnqueueOutcome::UnknownEnqueuer {
            let renewed = self.broker.sessions().register(self.events.clone());
            client.renew(renewed);
            if !self.dirty.contains(&group) {
                self.dirty.push(group);
            }
        }
        if again {
            self.resend(group, Some(leader), now);
        }
    }

    #[allow(clippy::too_many_arguments)]
    fn deliver(
        &mut self,
        group: GroupId,
        leader: NodeId,
        tag: Bytes,
        key: Reference,
        messages: Vec<Delivery>,
        again: bool,
        out: &mut Vec<Output>,
    ) {
        let consumers = &self.consumers;
        let known = self.by_tag.get(&tag).copied().filter(|number| consumers[*number as usize].group == group);
        let Some(number) = known else {
            self.unwanted(group, leader, ConsumerHandle { tag, key }, &messages, again);
            return;
        };
        let consumer = &mut self.consumers[number as usize];
        if consumer.resync && !again {
            return;
        }
        if messages.is_empty() {
            // The last answer of those that were asked for.
            consumer.resync &= !again;
            return;
        }
        consumer.handle.key = key;
        let Some(client) = self.clients.get_mut(&group) else { return };
        client.heard_from(leader);
        let mut settled = false;
        let mut sent = 0;
        let (mut unreadable, mut waits) = (false, false);
        for message in messages {
            if message.msg_id < consumer.next_msg_id {
                continue;
            }
            if message.msg_id > consumer.next_msg_id && !again {
                consumer.resync = true;
                let from_msg_id = consumer.next_msg_id;
                self.outbox.push((leader, redeliver(group, self.me, tag.clone(), from_msg_id)));
                break;
            }
            if matches!(message.body, Body::Unreadable) {
                // This node's member is about to go; the leader, or the next one, has the message.
                consumer.resync = true;
                self.outbox.push((leader, redeliver(group, self.me, tag.clone(), message.msg_id)));
                unreadable = true;
                break;
            }
            if consumer.shares_window && self.window.is_full() {
                // It stays assigned to the consumer, and is asked for once there is room.
                consumer.resync = true;
                self.window.wait(number);
                waits = true;
                break;
            }
            consumer.next_msg_id = message.msg_id + 1;
            sent += 1;
            let Body::Here(container) = message.body else {
                // Settled elsewhere meanwhile; there is nothing to show.
                continue;
            };
            let delivery_tag = if consumer.no_ack {
                client.settle(&consumer.handle, Settlement::Ack, message.msg_id);
                settled = true;
                self.unacked.deliver(None)
            } else {
                consumer.unanswered += 1;
                if consumer.shares_window {
                    self.window.taken();
                }
                self.unacked.deliver(Some(Unacked { group, consumer: number, msg_id: message.msg_id }))
            };
            out.push(Output::Deliver(Delivered {
                tag: tag.clone(),
                delivery_tag,
                redelivered: message.acquired_count > 0,
                acquired_count: counted(client.target.kind, message.acquired_count),
                delivery_count: counted(client.target.kind, message.delivery_count),
                container,
            }));
        }
        if again && sent > 0 && !unreadable && !waits {
            // One event does not hold everything.
            consumer.resync = true;
            self.outbox.push((leader, redeliver(group, self.me, tag.clone(), consumer.next_msg_id)));
        }
        if consumer.reports_sent && sent > 0 {
            self.next_correlation += 1;
            client.command(self.next_correlation, QueueRequest::Sent { key, count: sent });
            settled = true;
        }
        if settled && !self.dirty.contains(&group) {
            self.dirty.push(group);
        }
    }

    /// Deliveries to a consumer that the session forgot: what the client has not seen goes back.
    fn unwanted(&mut self, group: GroupId, leader: NodeId, handle: ConsumerHandle, messages: &[Delivery], again: bool) {
        let Some(client) = self.clients.get_mut(&group) else { return };
        let Some(last) = messages.last() else { return };
        let consumer = self.consumers.iter_mut().find(|(_, c)| c.group == group && c.handle == handle);
        let next = consumer.map(|(_, consumer)| {
            let next = consumer.next_msg_id;
            consumer.next_msg_id = next.max(last.msg_id + 1);
            next
        });
        for message in messages.iter().filter(|m| next.is_none_or(|next| m.msg_id >= next)) {
            client.settle(&handle, Settlement::Requeue { failed: false }, message.msg_id);
        }
        if again {
            self.outbox.push((leader, redeliver(group, self.me, handle.tag, last.msg_id + 1)));
        } else if !client.is_cancelling(&handle.tag) {
            // A late copy of its attach came after its cancel.
            self.next_correlation += 1;
            client.command(self.next_correlation, QueueRequest::Cancel { tag: handle.tag });
        }
        if !self.dirty.contains(&group) {
            self.dirty.push(group);
        }
    }

    /// An answer to `basic.get` that came late or twice: unless the client has its message, that goes back.
    fn got_in_vain(&mut self, group: GroupId, key: Reference, message: &Delivery) {
        let has_it = self.consumers.iter().any(|(_, c)| c.group == group && c.handle.key == key);
        let Some(client) = self.clients.get_mut(&group).filter(|_| !has_it) else { return };
        let handle = ConsumerHandle { tag: Bytes::new(), key };
        client.settle(&handle, Settlement::Requeue { failed: false }, message.msg_id);
        if !self.dirty.contains(&group) {
            self.dirty.push(group);
        }
    }

    /// Deliveries of a queue were dropped before they reached the session.
    pub fn missed(&mut self, group: GroupId) {
        if let Some(leader) = self.clients.get(&group).and_then(QueueClient::leader) {
            self.ask_again(group, leader);
            self.send();
        }
    }

    /// Asks a new or regained leader for what its predecessor may have sent in vain.
    fn ask_again(&mut self, group: GroupId, leader: NodeId) {
        for (_, consumer) in self.consumers.iter_mut().filter(|(_, c)| c.group == group && !c.cancelled) {
            consumer.resync = true;
            let tag = consumer.handle.tag.clone();
            self.outbox.push((leader, redeliver(group, self.me, tag, consumer.next_msg_id)));
        }
    }

    fn resend(&mut self, group: GroupId, leader: Option<NodeId>, now: Instant) {
        let broker = &self.broker;
        let Some(client) = self.clients.get_mut(&group) else { return };
        if client.gone {
            return;
        }
        let leader = leader.or_else(|| client.find_leader(&mut |target, member| broker.find_leader(target, member)));
        match leader {
            Some(leader) => client.resend(leader, now, &mut self.outbox),
            None => client.retry_later(now),
        }
    }

    /// The queue took back what a consumer held too long. It ends here and at the queue; late answers mean nothing.
    fn released(&mut self, group: GroupId, handle: ConsumerHandle, ids: &MsgIds, dequeue: bool, out: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&group) else { return };
        let count = ids.runs().iter().map(|run| run.count).sum();
        let queue = Arc::clone(&client.target);
        if dequeue {
            out.push(Output::TimedOut { tag: None, queue, count });
            return;
        }
        // Said again by the next leader; the tag may belong to another consumer by then.
        let same = |number: &u32| {
            let consumer = &self.consumers[*number as usize];
            consumer.group == group && consumer.handle == handle
        };
        let Some(number) = self.by_tag.get(&handle.tag).copied().filter(same) else { return };
        self.next_correlation += 1;
        client.command(self.next_correlation, QueueRequest::Cancel { tag: handle.tag.clone() });
        if !self.dirty.contains(&group) {
            self.dirty.push(group);
        }
        self.by_tag.remove(&handle.tag);
        let consumer = &mut self.consumers[number as usize];
        consumer.cancelled = true;
        if consumer.unanswered == 0 {
            self.consumers.remove(number as usize);
        }
        out.push(Output::TimedOut { tag: Some(handle.tag), queue, count });
    }

    fn queue_gone(&mut self, group: GroupId, out: &mut Vec<Output>) {
        let Some(client) = self.clients.get_mut(&group) else { return };
        let confirms = &mut self.confirms;
        client.end(&mut |tag, taken| resolve(confirms, tag, taken));
        for (_, consumer) in self.consumers.iter_mut().filter(|(_, c)| c.group == group && !c.cancelled) {
            consumer.cancelled = true;
            self.by_tag.remove(&consumer.handle.tag);
            out.push(Output::Cancelled { tag: consumer.handle.tag.clone() });
        }
        self.forget_gone(group);
    }

    /// Forgets a queue that is gone, unless the client still has deliveries of it: a channel may outlive any number of
    /// queues.
    fn forget_gone(&mut self, group: GroupId) {
        if self.consumers.iter().any(|(_, consumer)| consumer.group == group && consumer.unanswered > 0) {
            return;
        }
        self.consumers.retain(|_, consumer| consumer.group != group);
        if let Some(client) = self.clients.remove(&group)
            && client.enqueuer != self.me
        {
            self.broker.sessions().unregister(client.enqueuer);
        }
    }

    /// A node is reachable again.
    pub fn node_up(&mut self, node: NodeId) {
        let now = Instant::now();
        let groups: Vec<GroupId> =
            self.clients.iter().filter(|(_, c)| c.leader() == Some(node)).map(|(g, _)| *g).collect();
        for group in groups {
            self.recheck(group, now);
            if self.clients.get(&group).is_some_and(|c| !c.is_idle()) {
                self.resend(group, Some(node), now);
            }
            self.ask_again(group, node);
        }
        self.send();
    }

    /// Asks a queue again whether it takes publishes.
    fn recheck(&mut self, group: GroupId, now: Instant) {
        if let Some(client) = self.clients.get_mut(&group) {
            self.next_correlation += 1;
            client.recheck(self.next_correlation, now);
            if !self.dirty.contains(&group) {
                self.dirty.push(group);
            }
        }
    }

    /// To be called a few times a second while [`needs_tick`](Self::needs_tick). What it means for the client goes to
    /// `out`, as in [`handle`](Self::handle).
    pub fn tick(&mut self, out: &mut Vec<Output>) {
        let now = Instant::now();
        // The queue may have said that it is gone while nobody could hear it.
        let gone: Vec<GroupId> = self
            .clients
            .iter()
            .filter(|(group, client)| !client.gone && !self.broker.metadata().has_queue(**group))
            .map(|(group, _)| *group)
            .collect();
        for group in gone {
            self.queue_gone(group, out);
        }
        let doubtful = self.clients.iter().filter(|(_, client)| client.doubts_refusal(now)).map(|(group, _)| *group);
        for group in doubtful.collect::<Vec<_>>() {
            self.recheck(group, now);
        }
        let mut again = Vec::new();
        for (group, client) in &mut self.clients {
            let confirms = &mut self.confirms;
            if client.tick(now, &mut |tag, taken| resolve(confirms, tag, taken)) {
                again.push(*group);
            }
        }
        for group in again {
            let leader = self.clients.get(&group).and_then(QueueClient::leader);
            self.resend(group, leader.filter(|l| self.broker.links().is_up(*l)), now);
        }
        self.send();
    }

    /// Whether something waits for an answer.
    pub fn is_waiting(&self) -> bool {
        self.clients.values().any(|c| !c.is_idle())
    }

    /// Whether something waits for an answer, or for messages.
    pub fn needs_tick(&self) -> bool {
        !self.by_tag.is_empty() || self.clients.values().any(|c| !c.is_idle() || c.is_rejecting())
    }

    /// Ends the session: what it published is still brought to its queues, then its consumers end and their unanswered
    /// deliveries go back. The receiver hears when all of that is applied; whoever waits should do so for a bounded time.
    pub fn close(mut self) -> tokio::sync::oneshot::Receiver<()> {
        self.tick(&mut Vec::new());
        self.flush();
        let (done, closed) = tokio::sync::oneshot::channel();
        if self.clients.values().all(|c| c.gone) {
            self.broker.sessions().unregister(self.me);
            let _ = done.send(());
            return closed;
        }
        let (events, mut receiver) = Sessions::channel(self.broker.entry_reader());
        for session in self.identities() {
            self.broker.sessions().reroute(session, events.clone());
        }
        // Answers that were on their way to the connection are lost to the session: ask again soon.
        let now = Instant::now();
        for client in self.clients.values_mut() {
            client.hurry(now);
        }
        tokio::spawn(async move {
            let deadline = tokio::time::Instant::now() + LINGER;
            let mut ended = false;
            let mut tick = tokio::time::interval(LINGER_TICK);
            let mut discard = Vec::new();
            loop {
                if !ended && self.clients.values().all(|c| c.gone || c.is_idle()) {
                    ended = true;
                    self.end_at_queues();
                }
                if ended && self.clients.values().all(|c| c.gone || c.is_idle()) {
                    break;
                }
                tokio::select! {
                    event = receiver.recv() => match event {
                        Some(SessionEvent::Queue(to)) => self.handle(to, &mut discard),
                        Some(SessionEvent::NodeUp(node)) => self.node_up(node),
                        Some(SessionEvent::Missed { group, .. }) => self.missed(group),
                        Some(SessionEvent::Close(_)) => {}
                        None => break,
                    },
                    _ = tick.tick() => self.tick(&mut discard),
                    () = tokio::time::sleep_until(deadline) => break,
                }
                discard.clear();
                self.flush();
            }
            for session in self.identities() {
                self.broker.sessions().unregister(session);
            }
            let _ = done.send(());
        });
        closed
    }

    fn identities(&self) -> Vec<SessionRef> {
        let mut all = vec![self.me];
        all.extend(self.clients.values().map(|c| c.enqueuer).filter(|e| *e != self.me));
        all
    }

    fn end_at_queues(&mut self) {
        self.by_tag.clear();
        for (group, client) in self.clients.iter_mut().filter(|(_, c)| !c.gone) {
            for session in [Some(self.me), Some(client.enqueuer).filter(|e| *e != self.me)].into_iter().flatten() {
                self.next_correlation += 1;
                client.command(self.next_correlation, QueueRequest::SessionGone { session });
            }
            self.dirty.push(*group);
        }
        self.flush();
    }
}

fn settle_one(
    clients: &mut FxHashMap<GroupId, QueueClient>,
    dirty: &mut Vec<GroupId>,
    consumers: &mut Slab<SessionConsumer>,
    window: &mut SharedWindow,
    delivery: Unacked,
    settlement: Settlement,
) {
    let Some(consumer) = consumers.get_mut(delivery.consumer as usize) else { return };
    consumer.unanswered -= 1;
    if consumer.shares_window {
        window.answered();
    }
    if let Some(client) = clients.get_mut(&delivery.group).filter(|c| !c.gone) {
        client.settle(&consumer.handle, settlement, delivery.msg_id);
        if dirty.last() != Some(&delivery.group) && !dirty.contains(&delivery.group) {
            dirty.push(delivery.group);
        }
    }
    if consumer.cancelled && consumer.unanswered == 0 {
        consumers.remove(delivery.consumer as usize);
    }
}

fn unexpected(reply: &QueueReply) -> BrokerError {
    BrokerError::Internal(format!("the queue answered {reply:?}"))
}

/// Only quorum queues show counts to clients.
fn counted(kind: QueueKind, count: u32) -> u32 {
    match kind {
        QueueKind::Quorum => count,
        QueueKind::Classic => 0,
    }
}

fn redeliver(group: GroupId, from: SessionRef, tag: Bytes, from_msg_id: u64) -> ToQueue {
    ToQueue { group, from, items: vec![QueueItem::Redeliver { tag, from_msg_id }] }
}

fn resolve(confirms: &mut Option<Confirms>, tag: u64, taken: bool) {
    if let Some(confirms) = confirms {
        if taken {
            confirms.accepted(tag);
        } else {
            confirms.rejected(tag);
        }
    }
}

impl Drop for Session {
    fn drop(&mut self) {
        for session in self.identities() {
            self.broker.sessions().unregister(session);
        }
    }
}
