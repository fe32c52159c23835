//! A quorum queue's member on this node: the queue machine, and what its leader does about the machine's effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::Bytes;
use warren_proto::batch::{Batch, BatchBuilder};
use warren_proto::ids::{GroupId, MachineVersion, NodeId, Reference, SessionRef};
use warren_queues::quorum::{
    Attach, Command, Config, DeadReason, Decoder, Delivered, Effect, Effects, Encoder, Meta, Mode, Modify, Queue,
    Reply, TimerKey, stored_message,
};
use warren_queues::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef, Deliver, Origin, SessionLoss};
use warren_raft::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, Role, StateMachine};

use super::links::Links;
use super::protocol::{
    Body, ConsumerStats, DELIVERY_BYTES, Delivery, EnqueueOutcome, QueueEvent, QueueItem, QueueReply, QueueRequest,
    QueueStats, Room, Settlement, ToQueue, ToSession,
};
use crate::dead_letter::{DeadLetters, Outlet, Pins, Treatment, Worker};
use crate::session::registry::Sessions;

/// How often a leader compares what its queue believes of sessions with what is true: word of a change may have come
/// while nobody led, or been refused.
const RECHECK_MS: u64 = 1_000;
/// The same while the group sleeps.
const RESTING_RECHECK_MS: u64 = 5_000;
/// How often a leader compares its queue's configuration with what the metadata says, beside being told of changes.
const CONFIGURE_MS: u64 = 5_000;
/// How often it asks other nodes for theirs: word of a session's end can be lost with a connection.
const PING_MS: u64 = 60_000;

/// What reaches a quorum queue's member.
#[derive(Debug)]
pub enum GroupRequest {
    /// From a session.
    Session(ToQueue),
    /// A node cannot be reached any more.
    NodeDown(NodeId),
    /// A node can be reached again.
    NodeUp(NodeId),
    /// The queue's policies changed.
    Configure,
    /// Nodes have left the cluster for good.
    NodesLeft(Vec<NodeId>),
}

/// What every member on this node shares.
pub struct GroupContext {
    /// This node.
    pub me: NodeId,
    /// Sessions of this node.
    pub sessions: Arc<Sessions>,
    /// The way to sessions.
    pub links: Arc<Links>,
    /// Machine versions that this node supports.
    pub supported: RangeInclusive<MachineVersion>,
    /// Whether the metadata says that this group's queue is gone.
    pub is_deleted: Box<dyn Fn(GroupId) -> bool + Send + Sync>,
    /// The way of dead messages.
    pub dead_letters: Arc<DeadLetters>,
    /// Where groups are named whose queues are to be deleted because nobody uses them, and when that was so.
    pub unused: tokio::sync::mpsc::UnboundedSender<(GroupId, std::time::Instant)>,
    /// How the metadata says that this group's queue is configured; `None` where it does not know.
    pub configuration: Box<dyn Fn(GroupId) -> Option<Config> + Send + Sync>,
    /// Told by a group's leader of nodes with sessions at its queue that are still out of reach. If one has left the cluster,
    /// the answer is [`GroupRequest::NodesLeft`].
    pub unreachable: Box<dyn Fn(GroupId, NodeId) + Send + Sync>,
}

/// A command whose reply somebody waits for.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    position: u16,
    session: SessionRef,
    correlation: u64,
}

#[derive(Debug)]
struct AwaitedEntry {
    index: u64,
    term: u64,
    replies: Vec<Awaited>,
}

/// See the module's head.
pub struct QuorumMachine {
    context: Arc<GroupContext>,
    queue: Queue,
    fx: Effects,
    /// Added to the batch that is being collected.
    staged: Vec<Awaited>,
    staged_publishes: Vec<(SessionRef, u64)>,
    awaited: VecDeque<AwaitedEntry>,
    /// Leader: sessions with business here.
    monitored: BTreeSet<SessionRef>,
    timers: BTreeMap<TimerKey, u64>,
    /// Leader: commands that follow from what happened outside, to be appended with the next tick.
    owed: Vec<Command>,
    /// Leader: nodes whose own member delivers to their sessions.
    delivering: Vec<NodeId>,
    rechecked_at: u64,
    pinged_at: u64,
    /// Leader: when the configuration is compared next; 0 = at once.
    configure_at: u64,
    /// Leader: it could not be compared since this node has not caught up with the metadata.
    unconfigured: bool,
    /// Leader: the configuration that was appended last. The queue has it once that is applied.
    appended_config: Option<Config>,
    force_snapshot: bool,
    /// Leader: the way of dead messages that are published once.
    outlet: Outlet,
    /// Entries whose messages are still to be published.
    pins: Pins,
    /// Leader: who takes dead messages that are kept to their new queues.
    worker: Option<Worker>,
    /// Leader: when it last said that the queue is unused.
    unused_said_at: u64,
}

impl QuorumMachine {
    /// A member that has applied nothing.
    pub fn new(context: Arc<GroupContext>, config: Config) -> Self {
        QuorumMachine {
            context,
            queue: Queue::new(config),
            fx: Effects::new(),
            staged: Vec::new(),
            staged_publishes: Vec::new(),
            awaited: VecDeque::new(),
            monitored: BTreeSet::new(),
            timers: BTreeMap::new(),
            owed: Vec::new(),
            delivering: Vec::new(),
            rechecked_at: 0,
            pinged_at: 0,
            configure_at: 0,
            unconfigured: false,
            appended_config: None,
            force_snapshot: false,
            outlet: Outlet::default(),
            pins: Pins::default(),
            worker: None,
            unused_said_at: 0,
        }
    }

    fn say(&self, session: SessionRef, cx: &GroupCx<'_>, event: QueueEvent) {
        self.context.links.to_session(ToSession { session, group: cx.group, leader: self.context.me, event });
    }

    fn append(&mut self, command: &Command, out: &mut BatchBuilder) -> Option<u16> {
        match Encoder::for_group(out.effective()).encode(command, out) {
            Ok(position) => Some(position),
            Err(error) => {
                tracing::debug!(%error, "a command was not appended");
                None
            }
        }
    }

    fn item(&mut self, from: SessionRef, item: QueueItem, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        match item {
            QueueItem::Publishes { first_seq, messages } => {
                self.staged_publishes.push((from, first_seq));
                let encoder = Encoder::for_group(out.effective());
                for (seq, message) in (first_seq..).zip(&messages) {
                    let origin = Origin { session: from, seq };
                    if let Err(error) =
                        encoder.encode_publish(origin, &message.traits, &message.head, &message.body, out)
                    {
                        // The session resends from here on.
                        tracing::debug!(%error, "a publish was not appended");
                        self.say(from, cx, not_leader(None, Vec::new(), Some(seq), true));
                        return;
                    }
                }
            }
            QueueItem::Command { correlation, request: QueueRequest::Sent { .. } } => {
                // Credit already bounds what a quorum queue has under way.
                self.say(from, cx, QueueEvent::Replied { correlation, reply: QueueReply::Done });
            }
            QueueItem::Command { correlation, request } => {
                let command = command(from, request);
                match self.append(&command, out) {
                    Some(position) => self.staged.push(Awaited { position, session: from, correlation }),
                    None => self.say(from, cx, QueueEvent::Replied { correlation, reply: QueueReply::Unsupported }),
                }
            }
            QueueItem::Stat { correlation } => {
                self.say(from, cx, QueueEvent::Stats { correlation, stats: self.stats() });
            }
            QueueItem::Redeliver { tag, from_msg_id } => self.redeliver(from, tag, from_msg_id, cx),
            QueueItem::Ended => {
                self.append(&Command::SessionDown { session: from, loss: SessionLoss::Gone }, out);
            }
        }
    }

    fn redeliver(&self, session: SessionRef, tag: Bytes, from_msg_id: u64, cx: &GroupCx<'_>) {
        let consumer = ConsumerRef::Id(ConsumerId { session, tag: tag.clone() });
        let key = self.queue.key_of(&consumer);
        let mut bodies = Bodies::new(cx, None);
        let mut room = Room::new(DELIVERY_BYTES);
        let messages =
            self.queue.held(&consumer, from_msg_id).take_while(|m| room.take(m.size)).map(|m| bodies.delivery(&m));
        let messages = messages.collect();
        let key = Reference(key.map_or(0, |k| k.0));
        self.say(session, cx, QueueEvent::Deliver { tag, key, messages, again: true });
    }

    fn stats(&self) -> QueueStats {
        let overview = self.queue.overview();
        QueueStats {
            ready: overview.ready,
            unacknowledged: overview.unacked,
            ready_bytes: overview.bytes_ready,
            unacknowledged_bytes: overview.bytes_unacked,
            publishers: overview.publishers,
            dead: overview.dead,
            dead_bytes: overview.bytes_dead,
            delayed: overview.delayed,
            delayed_bytes: overview.bytes - overview.bytes_ready - overview.bytes_unacked,
            returned: overview.ready_returned,
            by_priority: self.queue.ready_by_priority().collect(),
            delayed_until: self.queue.delayed_until(),
            delivery_limit: self.queue.config().delivery_limit,
            consumers: self
                .queue
                .consumers()
                .map(|c| ConsumerStats {
                    tag: c.id.tag.clone(),
                    session: c.id.session,
                    ack_required: c.meta.ack,
                    prefetch: match c.mode {
                        Mode::SimplePrefetch(n) => n,
                        Mode::Credited { .. } => 0,
                    },
                    status: c.status,
                    priority: c.priority,
                    user: String::from_utf8_lossy(&c.meta.username).into_owned(),
                })
                .collect(),
        }
    }

    /// Carries out what the machine asked for. Each member delivers to the sessions of its own node; all else, also
    /// deliveries to nodes without a member that keeps up, is the leader's.
    fn perform(&mut self, batch: Option<(u64, &Batch)>, cx: &GroupCx<'_>) {
        let leads = cx.role == Role::Leader;
        let mut fx = std::mem::take(&mut self.fx);
        let mut bodies = Bodies::new(cx, batch);
        let mut spent = Vec::new();
        for effect in fx.drain() {
            match effect {
                Effect::Deliver(deliver) => {
                    let node = deliver.session.node;
                    if node == self.context.me || (leads && !self.delivering.contains(&node)) {
                        self.deliver(&deliver, &mut bodies, cx);
                    }
                    spent.push(deliver.messages);
                }
                Effect::ForceSnapshot => self.force_snapshot = true,
                _ if !leads => {}
                Effect::Monitor(session) => self.monitor(session),
                Effect::Demonitor(session) => {
                    self.monitored.remove(&session);
                }
                // Of an entry, these were said before the publishes were confirmed that made the queue full.
                Effect::LeaderChange(_) | Effect::QueueStatus { .. } if batch.is_some() => {}
                Effect::LeaderChange(session) => self.say(session, cx, QueueEvent::LeaderChanged),
                Effect::QueueStatus { session, reject } => self.say(session, cx, QueueEvent::Status { reject }),
                Effect::Released { session, tag, key, ids, dequeue } => {
                    self.say(session, cx, QueueEvent::Released { tag, key: Reference(key.0), ids, dequeue });
                }
                // Clients that grant credit, or hear of turns, come by AMQP 1.0.
                Effect::CreditReply(_) | Effect::ConsumerActive { .. } => {}
                Effect::DeadLetter { reason, messages } => self.publish_dead(reason, &messages, &mut bodies, cx),
                Effect::DlxDeliver { session, messages } => self.hand_to_worker(session, &messages, &mut bodies),
                Effect::DlxWorker(needed) => self.set_worker(needed, cx),
                Effect::Kept { reason, count } => self.count_dead(reason, Treatment::AtLeastOnce, count),
                Effect::Timer { key, at_ms: Some(at) } => {
                    self.timers.insert(key, at);
                }
                Effect::Timer { key, at_ms: None } => {
                    self.timers.remove(&key);
                }
                Effect::Dropped { reason, count } => self.count_dead(reason, Treatment::Disabled, count),
            }
        }
        for messages in spent {
            fx.recycle(messages);
        }
        self.fx = fx;
    }

    /// Sends deliveries on, in events of a bounded size.
    fn deliver(&self, deliver: &Deliver<Delivered>, bodies: &mut Bodies<'_>, cx: &GroupCx<'_>) {
        bodies.lean = self.context.links.is_crowded(deliver.session.node);
        // The one to be asked for what is missed. Without one, the next will speak up.
        let leader = cx.leader.unwrap_or(self.context.me);
        let mut rest = deliver.messages.as_slice();
        while !rest.is_empty() {
            let mut room = Room::new(DELIVERY_BYTES);
            let fits = rest.iter().take_while(|m| room.take(m.size)).count();
            let (now, later) = rest.split_at(fits);
            let messages = now.iter().map(|m| bodies.delivery(m)).collect();
            let (tag, key) = (deliver.tag.clone(), Reference(deliver.key.0));
            let event = QueueEvent::Deliver { tag, key, messages, again: false };
            self.context.links.to_session(ToSession { session: deliver.session, group: cx.group, leader, event });
            rest = later;
        }
    }

    fn count_dead(&self, reason: DeadReason, treatment: Treatment, count: u64) {
        self.context.dead_letters.count(reason, treatment, count);
    }

    /// Has dead messages published where the configuration says.
    fn publish_dead(&mut self, reason: DeadReason, messages: &[Delivered], bodies: &mut Bodies<'_>, cx: &GroupCx<'_>) {
        let Some(to) = &self.queue.config().dead_letter else {
            self.count_dead(reason, Treatment::Disabled, messages.len() as u64);
            return;
        };
        let indexes = messages.iter().map(|m| m.reference.index()).collect();
        // Read when its turn comes: much can die at once.
        let lean = std::mem::replace(&mut bodies.lean, true);
        let messages = messages.iter().map(|m| bodies.delivery(m)).collect();
        bodies.lean = lean;
        let shared = &self.context.dead_letters;
        self.outlet.publish(shared, cx.group, reason, to, messages, (&self.pins, indexes));
    }

    fn hand_to_worker(&self, session: SessionRef, messages: &[(DeadReason, Delivered)], bodies: &mut Bodies<'_>) {
        if let (Some(worker), Some(to)) = (&self.worker, &self.queue.config().dead_letter) {
            let messages = messages.iter().map(|(reason, m)| (*reason, bodies.delivery(m))).collect();
            worker.deliver(session, to.clone(), messages);
        }
    }

    fn set_worker(&mut self, needed: bool, cx: &GroupCx<'_>) {
        self.worker = needed.then(|| Worker::start(&self.context.dead_letters, cx.group));
    }

    /// Leader: starts a worker where one is needed and has ended.
    fn keep_worker(&mut self, cx: &GroupCx<'_>) {
        if self.queue.config().at_least_once() && !self.worker.as_ref().is_some_and(Worker::is_alive) {
            self.set_worker(true, cx);
        }
    }

    /// Leader: has the queue deleted if nobody has used it for long enough.
    fn expire(&mut self, cx: &GroupCx<'_>) {
        let due = self.queue.expires_at().is_some_and(|at| at <= cx.now_ms);
        if due && cx.now_ms.saturating_sub(self.unused_said_at) >= RESTING_RECHECK_MS {
            self.unused_said_at = cx.now_ms;
            if self.queue.overview().last_active_ms == 0 {
                // Nothing was ever asked of it: its time begins with any command.
                self.owed.push(Command::Continue);
                return;
            }
            let _ = self.context.unused.send((cx.group, std::time::Instant::now()));
        }
    }

    /// A session has business here. If it is known to be lost already, nobody will report it later.
    fn monitor(&mut self, session: SessionRef) {
        self.monitored.insert(session);
        if let Some(loss) = self.loss_of(session) {
            self.owed.push(Command::SessionDown { session, loss });
        }
    }

    /// What the queue has to be told, because it believes otherwise of sessions.
    fn corrections(&self, cx: &GroupCx<'_>) -> Vec<Command> {
        let mut commands = Vec::new();
        let (mut back, mut away) = (None, None);
        for (session, suspected) in self.queue.sessions() {
            match self.loss_of(session) {
                Some(SessionLoss::NoConnection) if suspected && away == Some(session.node) => {}
                Some(SessionLoss::NoConnection) if suspected => {
                    away = Some(session.node);
                    (self.context.unreachable)(cx.group, session.node);
                }
                Some(loss) => commands.push(Command::SessionDown { session, loss }),
                // Of a node once: its sessions come one after another.
                None if suspected && back != Some(session.node) => {
                    back = Some(session.node);
                    commands.push(Command::NodeUp { node: session.node });
                }
                None => {}
            }
        }
        commands
    }

    /// Appends the configuration that the queue should have, unless it has it.
    fn configure(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        let wanted = (self.context.configuration)(cx.group);
        self.unconfigured = wanted.is_none();
        self.configure_at = cx.now_ms + if self.unconfigured { RECHECK_MS } else { CONFIGURE_MS };
        let Some(wanted) = wanted else { return };
        if wanted == *self.appended_config.as_ref().unwrap_or(self.queue.config()) {
            return;
        }
        tracing::debug!(group = %cx.group, ?wanted, "the queue gets another configuration");
        if self.append(&Command::UpdateConfig(wanted.clone()), out).is_some() {
            self.appended_config = Some(wanted);
        }
    }

    /// Of nodes that have left the cluster, those that the queue has sessions of. One that can be reached is back, or was
    /// cut off and does not know yet.
    fn left(&self, nodes: Vec<NodeId>) -> Vec<NodeId> {
        let has_sessions = |node: &NodeId| self.queue.sessions().any(|(session, _)| session.node == *node);
        nodes.into_iter().filter(|node| !self.context.links.is_up(*node) && has_sessions(node)).collect()
    }

    fn loss_of(&self, session: SessionRef) -> Option<SessionLoss> {
        if session.node == self.context.me {
            return (!self.context.sessions.contains(session)).then_some(SessionLoss::Gone);
        }
        (!self.context.links.is_up(session.node)).then_some(SessionLoss::NoConnection)
    }

    fn answer(&mut self, awaited: Awaited, reply: Reply, bodies: &mut Bodies<'_>, cx: &GroupCx<'_>) {
        let reply = match reply {
            Reply::Ok | Reply::Cancelled { .. } | Reply::Retried { .. } => QueueReply::Done,
            Reply::Registered { blocked, .. } => QueueReply::Registered { reject: blocked },
            Reply::SingleActive => QueueReply::SingleActive,
            Reply::Attached { key, next_msg_id, .. } => QueueReply::Attached { key: Reference(key.0), next_msg_id },
            Reply::Got { key, message, ready } => {
                QueueReply::Got { key: Reference(key.0), message: bodies.delivery(&message), ready }
            }
            Reply::Empty => QueueReply::Empty,
            Reply::Purged { count } => QueueReply::Purged { count },
            Reply::NotFound => QueueReply::NotFound,
            Reply::ExclusiveUse => QueueReply::ExclusiveUse,
            Reply::Unsupported
            | Reply::AlreadyApplied
            | Reply::IdInUse
            | Reply::OutOfSequence { .. }
            | Reply::UnknownEnqueuer => QueueReply::Unsupported,
        };
        self.say(awaited.session, cx, QueueEvent::Replied { correlation: awaited.correlation, reply });
    }
}

fn not_leader(leader: Option<NodeId>, correlations: Vec<u64>, first_seq: Option<u64>, busy: bool) -> QueueEvent {
    QueueEvent::NotLeader { leader, correlations, first_seq, busy }
}

fn command(from: SessionRef, request: QueueRequest) -> Command {
    match request {
        QueueRequest::Attach {
            tag,
            no_ack,
            exclusive: _,
            prefetch,
            priority,
            arguments,
            user,
            timeout_ms,
            default_timeout_ms,
        } => Command::Attach(Box::new(Attach {
            consumer: ConsumerId { session: from, tag },
            mode: Mode::SimplePrefetch(if no_ack { 0 } else { prefetch }),
            priority,
            timeout_ms,
            default_timeout_ms,
            meta: ConsumerMeta { ack: !no_ack, args: arguments, username: user.into() },
        })),
        QueueRequest::Dequeue { tag, default_timeout_ms } => {
            Command::Dequeue { consumer: ConsumerId { session: from, tag }, settled: false, default_timeout_ms }
        }
        QueueRequest::Register => Command::RegisterEnqueuer { session: from },
        QueueRequest::DlxAttach { prefetch } => Command::DlxAttach { session: from, prefetch },
        QueueRequest::DlxSettle { ids } => Command::DlxSettle { session: from, ids },
        QueueRequest::Settle { key, settlement, ids } => {
            let consumer = ConsumerRef::Key(ConsumerKey(key.0));
            match settlement {
                Settlement::Ack => Command::Settle { consumer, ids },
                Settlement::Requeue { failed } => Command::Return { consumer, ids, failed },
                Settlement::Discard { failed: true } => Command::Discard { consumer, ids },
                Settlement::Discard { failed: false } => Command::Modify(Box::new(Modify {
                    consumer,
                    ids,
                    failed: false,
                    undeliverable_here: true,
                    deliver_at_ms: None,
                    annotations: Vec::new(),
                })),
            }
        }
        QueueRequest::Cancel { tag } => {
            Command::Cancel { consumer: ConsumerRef::Id(ConsumerId { session: from, tag }) }
        }
        QueueRequest::Purge => Command::Purge,
        QueueRequest::Sent { .. } => Command::Continue,
        QueueRequest::SessionGone { session } => Command::SessionDown { session, loss: SessionLoss::Gone },
    }
}

/// Finds the bodies of deliveries: in the entry that is being applied, in recent entries, or left to be read.
struct Bodies<'a> {
    cx: &'a GroupCx<'a>,
    recent: Option<(u64, Batch)>,
    /// Leave every body in the log: where it would go, too much waits already.
    lean: bool,
}

impl<'a> Bodies<'a> {
    fn new(cx: &'a GroupCx<'a>, batch: Option<(u64, &Batch)>) -> Self {
        Bodies { cx, recent: batch.map(|(index, batch)| (index, batch.clone())), lean: false }
    }

    fn delivery(&mut self, message: &Delivered) -> Delivery {
        Delivery {
            msg_id: message.msg_id,
            acquired_count: message.acquired_count,
            delivery_count: message.delivery_count,
            body: self.body(message.reference),
        }
    }

    fn body(&mut self, reference: Reference) -> Body {
        if self.lean {
            return Body::InLog(reference);
        }
        if self.recent.as_ref().is_none_or(|(index, _)| *index != reference.index()) {
            let Some(batch) = self.cx.entries.cached(self.cx.group, reference.index()) else {
                return Body::InLog(reference);
            };
            self.recent = Some((reference.index(), batch));
        }
        let command = self.recent.as_ref().and_then(|(_, batch)| batch.get(usize::from(reference.position())));
        match command.as_ref().and_then(stored_message) {
            Some(message) => Body::Here(message.into_container()),
            None => Body::Gone,
        }
    }
}

/// Joins the outcomes of publishes of one session into runs.
#[derive(Default)]
struct Confirms {
    runs: Vec<(SessionRef, u64, u64, EnqueueOutcome)>,
}

impl Confirms {
    fn add(&mut self, origin: Origin, reply: &Reply) {
        let outcome = match reply {
            Reply::Ok => EnqueueOutcome::Enqueued,
            Reply::OutOfSequence { .. } => EnqueueOutcome::OutOfSequence,
            Reply::UnknownEnqueuer => EnqueueOutcome::UnknownEnqueuer,
            _ => EnqueueOutcome::Unsupported,
        };
        if let Some((session, _, last, same)) = self.runs.last_mut()
            && *session == origin.session
            && *last + 1 == origin.seq
            && *same == outcome
        {
            *last = origin.seq;
            return;
        }
        self.runs.push((origin.session, origin.seq, origin.seq, outcome));
    }
}

impl StateMachine for QuorumMachine {
    type Request = GroupRequest;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        self.context.supported.clone()
    }

    fn prepare(&mut self, request: GroupRequest, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        if self.configure_at == 0 {
            // What a new leader is asked first finds the queue as its policies want it: so does a new queue's first message.
            self.configure(out, cx);
        }
        match request {
            GroupRequest::Session(to) => {
                for item in to.items {
                    self.item(to.from, item, out, cx);
                }
            }
            GroupRequest::NodeDown(node) => {
                let lost: Vec<SessionRef> = self.monitored.iter().filter(|s| s.node == node).copied().collect();
                for session in lost {
                    self.append(&Command::SessionDown { session, loss: SessionLoss::NoConnection }, out);
                }
            }
            GroupRequest::NodeUp(node) => {
                if self.monitored.iter().any(|s| s.node == node) {
                    // Its effects tell the node's sessions, and the node says which of them are gone.
                    self.append(&Command::NodeUp { node }, out);
                }
            }
            GroupRequest::Configure => self.configure(out, cx),
            GroupRequest::NodesLeft(nodes) => {
                let nodes = self.left(nodes);
                if !nodes.is_empty() {
                    self.append(&Command::PurgeNodes { nodes }, out);
                }
            }
        }
    }

    fn proposed(&mut self, outcome: Result<(u64, u64), Refusal>, cx: &GroupCx<'_>) {
        match outcome {
            Ok((index, term)) => {
                if !self.staged.is_empty() {
                    let replies = std::mem::take(&mut self.staged);
                    self.awaited.push_back(AwaitedEntry { index, term, replies });
                }
                self.staged_publishes.clear();
            }
            Err(why) => {
                self.appended_config = None;
                let (leader, busy) = refusal(why);
                for awaited in std::mem::take(&mut self.staged) {
                    self.say(awaited.session, cx, not_leader(leader, vec![awaited.correlation], None, busy));
                }
                for (session, first_seq) in std::mem::take(&mut self.staged_publishes) {
                    self.say(session, cx, not_leader(leader, Vec::new(), Some(first_seq), busy));
                }
            }
        }
    }

    fn refuse(&mut self, request: GroupRequest, why: Refusal, _cx: &GroupCx<'_>) {
        let GroupRequest::Session(to) = request else { return };
        let (leader, busy) = refusal(why);
        refuse(&self.context.links, self.context.me, to, leader, busy);
    }

    fn apply(&mut self, entry: Applied, cx: &GroupCx<'_>) {
        let speaks = entry.live && cx.role == Role::Leader;
        while self.awaited.front().is_some_and(|a| a.index < entry.index) {
            self.awaited.pop_front();
        }
        let awaited = self
            .awaited
            .pop_front_if(|a| a.index == entry.index && a.term == entry.term)
            .map_or_else(Vec::new, |a| a.replies);
        let mut awaited = awaited.into_iter().peekable();
        let mut bodies = Bodies::new(cx, Some((entry.index, &entry.batch)));
        let mut confirms = Confirms::default();
        // What a worker has in hand is not true any more: the next one gets what there is.
        let mut stale_worker = false;
        let mut decoder = Decoder::new(entry.version);
        for (position, bytes) in entry.batch.iter().enumerate() {
            let meta = Meta {
                reference: Reference::new(entry.index, position as u16),
                term: entry.term,
                ts_ms: entry.batch.ts_ms(),
                version: entry.version,
            };
            let mut origin = None;
            let reply = match decoder.decode(bytes) {
                Ok(command) => {
                    stale_worker |= match &command {
                        Command::Purge => true,
                        Command::UpdateConfig(config) => config.dead_letter != self.queue.config().dead_letter,
                        _ => false,
                    };
                    if let Command::Enqueue(enqueue) = &command {
                        origin = enqueue.origin;
                    }
                    self.queue.apply(&meta, command, &mut self.fx)
                }
                Err(error) => {
                    tracing::error!(group = %cx.group, reference = ?meta.reference, %error, "a command cannot be read; it changes nothing");
                    Reply::Unsupported
                }
            };
            if !speaks {
                continue;
            }
            if let Some(origin) = origin {
                confirms.add(origin, &reply);
            } else if let Some(waiting) = awaited.next_if(|a| usize::from(a.position) == position) {
                self.answer(waiting, reply, &mut bodies, cx);
            }
        }
        if speaks {
            for effect in self.fx.iter() {
                match effect {
                    Effect::LeaderChange(session) => self.say(*session, cx, QueueEvent::LeaderChanged),
                    Effect::QueueStatus { session, reject } => {
                        self.say(*session, cx, QueueEvent::Status { reject: *reject });
                    }
                    _ => {}
                }
            }
        }
        for (session, first_seq, last_seq, outcome) in confirms.runs {
            self.say(session, cx, QueueEvent::Enqueued { first_seq, last_seq, outcome });
        }
        if entry.live {
            if stale_worker && speaks && self.worker.is_some() {
                self.set_worker(self.queue.config().at_least_once(), cx);
            }
            self.perform(Some((entry.index, &entry.batch)), cx);
            if speaks && self.queue.work_owed() && !self.owed.contains(&Command::Continue) {
                self.owed.push(Command::Continue);
            }
        } else {
            self.fx.clear();
        }
    }

    fn role_changed(&mut self, cx: &GroupCx<'_>) {
        if cx.role == Role::Leader {
            self.monitored.clear();
            self.timers.clear();
            self.owed.clear();
            self.delivering.clear();
            self.fx.clear();
            (self.configure_at, self.appended_config) = (0, None);
            self.queue.become_leader(&mut self.fx);
            self.perform(None, cx);
        } else if cx.role == Role::Follower {
            for entry in std::mem::take(&mut self.awaited) {
                for awaited in entry.replies {
                    self.say(awaited.session, cx, not_leader(cx.leader, vec![awaited.correlation], None, false));
                }
            }
            self.monitored.clear();
            self.timers.clear();
            self.owed.clear();
            self.worker = None;
        }
    }

    fn followers(&mut self, keeping_up: &[NodeId], cx: &GroupCx<'_>) {
        let before = std::mem::replace(&mut self.delivering, keeping_up.to_vec());
        for node in before.into_iter().filter(|node| !keeping_up.contains(node)) {
            // What its member did not come to hand out. Sessions drop what they have.
            self.queue.redeliver(node, &mut self.fx);
        }
        self.perform(None, cx);
    }

    fn tick(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        for command in std::mem::take(&mut self.owed) {
            self.append(&command, out);
        }
        // What expires now only makes more dead letters; it cannot be delivered any more in any case.
        let waits = |key: &TimerKey| *key == TimerKey::ExpireMessages && self.outlet.is_crowded();
        let due = self.timers.iter().filter(|(key, at)| **at <= cx.now_ms && !waits(key)).map(|(key, _)| *key);
        let due: Vec<TimerKey> = due.collect();
        for key in due {
            self.timers.remove(&key);
            self.append(&Command::Timeout(key), out);
        }
        if cx.now_ms.saturating_sub(self.rechecked_at) >= RECHECK_MS {
            self.rechecked_at = cx.now_ms;
            for command in self.corrections(cx) {
                self.append(&command, out);
            }
            self.keep_worker(cx);
        }
        self.expire(cx);
        if cx.now_ms >= self.configure_at {
            self.configure(out, cx);
        }
        if cx.now_ms.saturating_sub(self.pinged_at) >= PING_MS {
            self.pinged_at = cx.now_ms;
            for session in self.monitored.iter().filter(|s| s.node != self.context.me) {
                self.say(*session, cx, QueueEvent::Ping);
            }
        }
    }

    fn wake_at(&self) -> Option<u64> {
        if !self.owed.is_empty() || self.configure_at == 0 {
            return Some(0);
        }
        let lost_worker = self.worker.as_ref().is_some_and(|worker| !worker.is_alive());
        let at_work = self.queue.sessions().next().is_some() || lost_worker;
        let recheck = at_work.then_some(self.rechecked_at + RESTING_RECHECK_MS);
        let unused = self.queue.expires_at().map(|at| at.max(self.unused_said_at + RESTING_RECHECK_MS));
        let configure = self.unconfigured.then_some(self.configure_at);
        let expiry = self.outlet.is_crowded().then_some(self.rechecked_at + RECHECK_MS);
        let timers = self.timers.iter().map(|(key, at)| match (key, expiry) {
            (TimerKey::ExpireMessages, Some(later)) => later.max(*at),
            _ => *at,
        });
        timers.min().into_iter().chain(recheck).chain(unused).chain(configure).min()
    }

    fn reclaimable_bytes(&self) -> u64 {
        if self.force_snapshot { u64::MAX } else { self.queue.reclaimable_bytes() }
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.force_snapshot = false;
        self.queue.reset_reclaimable_bytes();
        let live = self.pins.add_to(self.queue.live());
        MachineSnapshot { state: Bytes::from(self.queue.encode_state()), live }
    }

    fn restore(
        &mut self,
        state: &[u8],
        _index: u64,
        _version: MachineVersion,
        cx: &GroupCx<'_>,
    ) -> Result<(), RestoreError> {
        self.queue = Queue::decode_state(state).map_err(|e| RestoreError(e.to_string()))?;
        self.fx.clear();
        // Handed out between the last entry applied here and the snapshot.
        self.queue.redeliver(self.context.me, &mut self.fx);
        self.perform(None, cx);
        Ok(())
    }

    fn stopped(&mut self, cx: &GroupCx<'_>) {
        if !(self.context.is_deleted)(cx.group) {
            return;
        }
        self.fx.clear();
        self.queue.become_leader(&mut self.fx);
        let mut fx = std::mem::take(&mut self.fx);
        for effect in fx.drain() {
            if let Effect::Monitor(session) = effect
                && (cx.role == Role::Leader || session.node == self.context.me)
            {
                self.say(session, cx, QueueEvent::Eol);
            }
        }
    }
}

fn refusal(why: Refusal) -> (Option<NodeId>, bool) {
    match why {
        Refusal::NotLeader(leader) => (leader, false),
        Refusal::Busy => (None, true),
        Refusal::Stopped => (None, false),
    }
}

/// Tells a session that its request was not taken.
pub fn refuse(links: &Links, me: NodeId, to: ToQueue, leader: Option<NodeId>, busy: bool) {
    let mut correlations = Vec::new();
    let mut lowest: Option<u64> = None;
    for item in &to.items {
        match item {
            QueueItem::Publishes { first_seq, .. } => lowest = Some(lowest.unwrap_or(*first_seq).min(*first_seq)),
            QueueItem::Command { correlation, .. } | QueueItem::Stat { correlation } => correlations.push(*correlation),
            // Asked again by whoever needs it.
            QueueItem::Redeliver { .. } | QueueItem::Ended => {}
        }
    }
    if !correlations.is_empty() || lowest.is_some() {
        let event = not_leader(leader, correlations, lowest, busy);
        links.to_session(ToSession { session: to.from, group: to.group, leader: me, event });
    }
}

#[cfg(test)]
mod tests;
