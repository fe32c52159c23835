//! At least once: the queue keeps a dead message until every queue that it was routed to has confirmed it.
//!
//! One worker per queue, on its leader's node. It attaches itself by a command in the queue's log, gets messages as far as
//! its prefetch goes, and says which have arrived. A new leader's worker gets all again that the old one had.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use rustc_hash::{FxHashMap, FxHashSet};
use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use warren_metastore::projections::{QueueTarget, Routed};
use warren_proto::ids::{GroupId, SessionRef};
use warren_queues::MsgIds;
use warren_queues::quorum::{DeadLetter, DeadReason};

use super::DeadLetters;
use super::deaths::Rewritten;
use super::source::{Route, Source, queued, same, stored};
use crate::node::Broker;
use crate::queue::protocol::{Delivery, QueueEvent, QueueItem, QueueReply, QueueRequest, ToQueue, ToSession};
use crate::session::Session;
use crate::session::registry::{SessionEvent, Sessions};

/// How often the worker looks at what is pending.
const TICK: Duration = Duration::from_millis(100);
/// Its own commands have correlations from here on, so that they are not taken for its session's.
const OWN: u64 = 1 << 62;
/// A command to the queue is repeated when it is not answered for this long.
const REPEAT: Duration = Duration::from_secs(5);

/// What a queue's leader tells its worker.
enum Post {
    /// Messages for the worker of that session.
    Deliver { session: SessionRef, to: DeadLetter, messages: Vec<(DeadReason, Delivery)> },
}

/// The leader's end of its worker, which ends with it.
pub(crate) struct Worker(mpsc::UnboundedSender<Post>);

impl Worker {
    /// Starts a worker for the queue that `group` runs.
    pub fn start(shared: &Arc<DeadLetters>, group: GroupId) -> Self {
        let (sender, receiver) = mpsc::unbounded_channel();
        shared.runtime.spawn(run(Arc::clone(shared), group, receiver));
        Worker(sender)
    }

    /// Whether it still runs.
    pub fn is_alive(&self) -> bool {
        !self.0.is_closed()
    }

    /// Hands it what the queue gave to `session`.
    pub fn deliver(&self, session: SessionRef, to: DeadLetter, messages: Vec<(DeadReason, Delivery)>) {
        let _ = self.0.send(Post::Deliver { session, to, messages });
    }
}

/// A message on its way.
struct Dead {
    reason: DeadReason,
    rewritten: Rewritten,
    failed: u32,
    /// Who has confirmed it.
    confirmed: Vec<Arc<QueueTarget>>,
    /// Who has been sent it and has not answered.
    sent: Vec<Arc<QueueTarget>>,
    /// When it was last tried.
    tried: Instant,
}

/// See the module's head.
struct State {
    shared: Arc<DeadLetters>,
    source: Source,
    session: Session,
    messages: BTreeMap<u64, Dead>,
    /// Message id and target of each publish that is not confirmed.
    publishes: FxHashMap<u64, (u64, Arc<QueueTarget>)>,
    arrived: MsgIds,
    next_correlation: u64,
    /// The command to the queue that is not answered, and when it was sent.
    asked: Option<(u64, QueueRequest, Instant)>,
    /// Of the view in which routes were last looked for.
    generation: u64,
}

async fn run(shared: Arc<DeadLetters>, group: GroupId, mut posts: mpsc::UnboundedReceiver<Post>) {
    let Some(broker) = shared.broker() else { return };
    let Some(source) = Source::new(Arc::clone(&broker), group) else { return };
    let (events, mut receiver) = Sessions::channel(broker.entry_reader());
    let mut session = Session::open(&broker, events);
    session.select_confirms();
    let mut state = State {
        shared,
        source,
        session,
        messages: BTreeMap::new(),
        publishes: FxHashMap::default(),
        arrived: MsgIds::new(),
        next_correlation: OWN,
        asked: None,
        generation: 0,
    };
    state.ask(QueueRequest::DlxAttach { prefetch: broker.config().dead_letter_prefetch });
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut unused = Vec::new();
    loop {
        tokio::select! {
            post = posts.recv() => match post {
                Some(Post::Deliver { session, to, messages }) => {
                    if !state.take(session, &to, messages).await {
                        // The next one gets them again.
                        break;
                    }
                }
                None => break,
            },
            event = receiver.recv() => match event {
                Some(SessionEvent::Queue(to)) if to.group == group && is_own(&to) => {
                    if !state.answered(&to.event) {
                        break;
                    }
                }
                Some(SessionEvent::Queue(to)) => state.session.handle(to, &mut unused),
                Some(SessionEvent::NodeUp(node)) => state.session.node_up(node),
                Some(SessionEvent::Missed { .. } | SessionEvent::Close(_)) => {}
                None => break,
            },
            // A queue whose messages do not die costs nothing.
            _ = tick.tick(), if state.is_at_work() => {
                state.session.tick(&mut unused);
                state.retry();
            }
        }
        unused.clear();
        state.session.flush();
        state.resolve();
    }
    // Not closed in order: what is pending is the next worker's.
}

/// Whether an event answers a command of the worker's own.
fn is_own(to: &ToSession) -> bool {
    match &to.event {
        QueueEvent::Replied { correlation, .. } => *correlation >= OWN,
        QueueEvent::NotLeader { correlations, .. } => correlations.iter().any(|correlation| *correlation >= OWN),
        _ => false,
    }
}

impl State {
    /// Whether anything is on its way, or waits for its time.
    fn is_at_work(&self) -> bool {
        !self.messages.is_empty() || self.asked.is_some() || self.session.is_waiting()
    }

    fn broker(&self) -> &Broker {
        &self.source.broker
    }

    /// Sends the queue's member on this node a command.
    fn ask(&mut self, request: QueueRequest) {
        self.next_correlation += 1;
        let correlation = self.next_correlation;
        self.asked = Some((correlation, request.clone(), Instant::now()));
        let items = vec![QueueItem::Command { correlation, request }];
        let to = ToQueue { group: self.source.group, from: self.session.id(), items };
        let (me, broker) = (self.broker().me(), self.broker());
        broker.links().to_queue(me, to);
    }

    /// The queue answered. False if there is no work for this worker any more.
    fn answered(&mut self, event: &QueueEvent) -> bool {
        let current = self.asked.as_ref().map(|(correlation, ..)| *correlation);
        match event {
            QueueEvent::Replied { correlation, reply } => {
                if Some(*correlation) == current {
                    self.asked = None;
                }
                !matches!(reply, QueueReply::NotFound | QueueReply::Unsupported)
            }
            // Another leader has a worker of its own.
            QueueEvent::NotLeader { busy, .. } => *busy,
            _ => true,
        }
    }

    /// Takes what the queue handed out. False if it cannot be read here now.
    async fn take(&mut self, session: SessionRef, to: &DeadLetter, messages: Vec<(DeadReason, Delivery)>) -> bool {
        if session != self.session.id() {
            return true;
        }
        let reasons: Vec<DeadReason> = messages.iter().map(|(reason, _)| *reason).collect();
        let mut reasons = reasons.into_iter();
        let mut messages = messages.into_iter().map(|(_, message)| message);
        loop {
            let Some(chunk) = self.source.load(&mut messages).await else { return false };
            if chunk.is_empty() {
                return true;
            }
            for (delivery, reason) in chunk.into_iter().zip(reasons.by_ref()) {
                let Some(body) = stored(&delivery) else {
                    tracing::warn!(queue = %self.source.name, "a dead message cannot be read now; it is tried again");
                    return false;
                };
                let Some(rewritten) = self.source.rewritten(body, reason, to) else {
                    // Said in the log; no worker will ever be able to read it.
                    self.arrived.push(delivery.msg_id);
                    continue;
                };
                let dead = Dead {
                    reason,
                    rewritten,
                    failed: delivery.delivery_count,
                    confirmed: Vec::new(),
                    sent: Vec::new(),
                    tried: Instant::now(),
                };
                self.messages.insert(delivery.msg_id, dead);
                self.publish(delivery.msg_id);
            }
        }
    }

    /// Publishes a message to those of its queues that have not confirmed it and have not been asked to.
    fn publish(&mut self, msg_id: u64) {
        let Some(dead) = self.messages.get_mut(&msg_id) else { return };
        dead.tried = Instant::now();
        let Route::Queues { queues, cycles } = self.source.route(&dead.rewritten, dead.reason) else { return };
        let has = |known: &[Arc<QueueTarget>], queue: &QueueTarget| known.iter().any(|other| same(other, queue));
        let due: Routed = queues.iter().filter(|q| !has(&dead.confirmed, q) && !has(&dead.sent, q)).cloned().collect();
        if due.is_empty() && dead.sent.is_empty() && (cycles || !dead.confirmed.is_empty()) {
            // All that are left have it, or would only send it round.
            self.messages.remove(&msg_id);
            self.arrived.push(msg_id);
            return;
        }
        for queue in due {
            let message = queued(&dead.rewritten.message, dead.failed);
            dead.sent.push(Arc::clone(&queue));
            if let Some(tag) = self.session.publish(std::slice::from_ref(&queue), message) {
                self.publishes.insert(tag, (msg_id, queue));
            }
        }
    }

    /// Takes the confirms that have come, and tells the queue what has arrived.
    fn resolve(&mut self) {
        if let Some(resolved) = self.session.take_confirms() {
            let (acks, nacks) = (resolved.acks.into_iter().map(|tag| (tag, true)), resolved.nacks.into_iter());
            for (tag, taken) in acks.chain(nacks.map(|tag| (tag, false))) {
                self.confirmed(tag, taken);
            }
        }
        if self.asked.is_none() && !self.arrived.is_empty() {
            let ids = std::mem::take(&mut self.arrived);
            self.ask(QueueRequest::DlxSettle { ids });
        }
    }

    fn confirmed(&mut self, tag: u64, taken: bool) {
        let Some((msg_id, queue)) = self.publishes.remove(&tag) else { return };
        let Some(dead) = self.messages.get_mut(&msg_id) else { return };
        dead.sent.retain(|other| !same(other, &queue));
        // To publishers, a queue that is deleted counts as one that has taken everything. Nothing has arrived there.
        let deleted = !self.source.broker.metadata().has_queue(queue.group);
        if taken && !deleted {
            dead.confirmed.push(queue);
        }
        if dead.confirmed.is_empty() {
            // Tried again when its time has come.
            return;
        }
        if dead.sent.is_empty() {
            let confirmed: FxHashSet<GroupId> = dead.confirmed.iter().map(|queue| queue.group).collect();
            let left = match self.source.route(&dead.rewritten, dead.reason) {
                Route::Queues { queues, .. } => queues.iter().any(|queue| !confirmed.contains(&queue.group)),
                Route::NoExchange => false,
            };
            if !left {
                self.messages.remove(&msg_id);
                self.arrived.push(msg_id);
                self.shared.confirmed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            }
        }
    }

    /// Tries those again that nobody took: after a while, and those without any queue when the topology has changed.
    fn retry(&mut self) {
        let generation = self.broker().metadata().projections().generation();
        let changed = std::mem::replace(&mut self.generation, generation) != generation;
        let pause = self.broker().config().dead_letter_retry;
        let due: Vec<u64> = self
            .messages
            .iter()
            .filter(|(_, dead)| dead.sent.is_empty())
            .filter(|(_, dead)| dead.tried.elapsed() >= pause || (changed && dead.confirmed.is_empty()))
            .map(|(id, _)| *id)
            .collect();
        for msg_id in due {
            self.publish(msg_id);
        }
        if let Some((_, request, at)) = &self.asked
            && at.elapsed() >= REPEAT
        {
            let request = request.clone();
            self.ask(request);
        }
    }
}
