//! At most once: dead messages are published and forgotten.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::mpsc;
use tokio::time::{Instant, MissedTickBehavior};
use warren_proto::ids::GroupId;
use warren_queues::quorum::{DeadLetter, DeadReason};

use super::pins::{Pinned, Pins};
use super::source::{Route, Source, queued, stored};
use super::{DeadLetters, Treatment};
use crate::queue::protocol::Delivery;
use crate::session::Session;
use crate::session::registry::{SessionEvent, Sessions};

/// How long the task waits for more before it ends.
const IDLE: Duration = Duration::from_secs(10);
/// How often its session looks at what is pending.
const TICK: Duration = Duration::from_millis(100);
/// Dead messages of a queue that wait to be published: beyond that, expiry and other work that can wait does.
const CROWDED: usize = 64 * 1024;
/// Beyond that, they are dropped: they die faster than they can be published.
const FULL: usize = 1024 * 1024;

/// What a queue's leader has for its task.
struct Post {
    reason: DeadReason,
    to: DeadLetter,
    messages: Vec<Delivery>,
    /// Until the bodies are read.
    pinned: Pinned,
    waiting: Waiting,
}

/// Counts messages that wait, until it is dropped.
struct Waiting(Arc<AtomicUsize>, usize);

impl Drop for Waiting {
    fn drop(&mut self) {
        self.0.fetch_sub(self.1, Ordering::Relaxed);
    }
}

/// A queue's way to publish dead messages. Its task runs while there are any.
#[derive(Default)]
pub(crate) struct Outlet {
    sender: Option<mpsc::UnboundedSender<Post>>,
    waiting: Arc<AtomicUsize>,
}

impl Outlet {
    /// Publishes messages of the queue that `group` runs. `indexes`: where they lie in its log, ascending or not.
    pub fn publish(
        &mut self,
        shared: &Arc<DeadLetters>,
        group: GroupId,
        reason: DeadReason,
        to: &DeadLetter,
        messages: Vec<Delivery>,
        (pins, indexes): (&Pins, Vec<u64>),
    ) {
        let count = messages.len();
        if self.waiting.load(Ordering::Relaxed) + count > FULL {
            tracing::warn!(%group, count, "dead messages are dropped: they die faster than they can be published");
            shared.count(reason, Treatment::Disabled, count as u64);
            return;
        }
        self.waiting.fetch_add(count, Ordering::Relaxed);
        let waiting = Waiting(Arc::clone(&self.waiting), count);
        let post = Post { reason, to: to.clone(), messages, pinned: pins.pin(indexes), waiting };
        let rejected = match &self.sender {
            Some(sender) => sender.send(post).err().map(|error| error.0),
            None => Some(post),
        };
        if let Some(post) = rejected {
            let (sender, receiver) = mpsc::unbounded_channel();
            let _ = sender.send(post);
            self.sender = Some(sender);
            shared.runtime.spawn(run(Arc::clone(shared), group, receiver));
        }
    }

    /// Whether so many wait that what makes more should wait as well.
    pub fn is_crowded(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) >= CROWDED
    }
}

async fn run(shared: Arc<DeadLetters>, group: GroupId, mut posts: mpsc::UnboundedReceiver<Post>) {
    let Some(broker) = shared.broker() else { return };
    let Some(mut source) = Source::new(Arc::clone(&broker), group) else { return };
    let (events, mut receiver) = Sessions::channel(broker.entry_reader());
    let mut session = Session::open(&broker, events);
    let mut tick = tokio::time::interval(TICK);
    tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let mut idle_since = Instant::now();
    let mut unused = Vec::new();
    loop {
        tokio::select! {
            post = posts.recv(), if !session.is_blocked() => match post {
                Some(post) => {
                    publish(&shared, &mut source, &mut session, post).await;
                    idle_since = Instant::now();
                }
                None => break,
            },
            event = receiver.recv() => match event {
                Some(SessionEvent::Queue(to)) => session.handle(to, &mut unused),
                Some(SessionEvent::NodeUp(node)) => session.node_up(node),
                Some(SessionEvent::Missed { .. } | SessionEvent::Close(_)) => {}
                None => break,
            },
            // It runs for as long as there are messages, and a little longer.
            _ = tick.tick() => {
                session.tick(&mut unused);
                if idle_since.elapsed() >= IDLE && !session.is_waiting() {
                    // What was sent meanwhile is still taken.
                    posts.close();
                }
            }
        }
        unused.clear();
        session.flush();
    }
    drop(session.close());
}

async fn publish(shared: &DeadLetters, source: &mut Source, session: &mut Session, post: Post) {
    let Post { reason, to, messages, pinned, waiting } = post;
    let mut messages = messages.into_iter();
    loop {
        let Some(chunk) = source.load(&mut messages).await.filter(|chunk| !chunk.is_empty()) else { break };
        for delivery in chunk {
            let rewritten = stored(&delivery).and_then(|body| source.rewritten(body, reason, &to));
            let routed = rewritten.as_ref().map(|rewritten| source.route(rewritten, reason));
            match (rewritten, routed) {
                (Some(rewritten), Some(Route::Queues { queues, .. })) => {
                    session.publish(&queues, queued(&rewritten.message, delivery.delivery_count));
                    shared.count(reason, Treatment::AtMostOnce, 1);
                }
                _ => shared.count(reason, Treatment::Disabled, 1),
            }
        }
        session.flush();
    }
    drop((pinned, waiting));
}
