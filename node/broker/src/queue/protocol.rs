//! What sessions and queues say to each other. Inside a node these types travel as they are; between nodes as the
//! protobuf messages of `proto/peer/broker.proto` (see [`wire`](super::wire)).

use std::sync::Arc;

use bytes::Bytes;
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_queues::MsgIds;
pub use warren_queues::quorum::{ConsumerStatus, Traits};
use warren_raft::machine::EntryReader;

/// Everything that one session sends one queue at once: what one read of the client's socket gave it.
#[derive(Debug)]
pub struct ToQueue {
    /// The queue.
    pub group: GroupId,
    /// The session that asks and will be answered.
    pub from: SessionRef,
    /// In the session's order.
    pub items: Vec<QueueItem>,
}

/// One thing that a session asks of a queue.
#[derive(Debug)]
pub enum QueueItem {
    /// Messages with consecutive sequence numbers from `first_seq`.
    Publishes {
        /// Sequence number of the first.
        first_seq: u64,
        /// The messages.
        messages: Vec<QueuedMessage>,
    },
    /// A command of the queue machine, answered by [`QueueEvent::Replied`] with the same correlation.
    Command {
        /// Chosen by the session.
        correlation: u64,
        /// What to do.
        request: QueueRequest,
    },
    /// Asks for the queue's figures; answered without a log entry.
    Stat {
        /// Chosen by the session.
        correlation: u64,
    },
    /// Asks for the deliveries of a consumer again, from a message id on, because the session missed them. To be
    /// repeated, from behind the last id of the answer, until the answer is empty.
    Redeliver {
        /// The consumer's tag.
        tag: Bytes,
        /// The first id that the session did not get.
        from_msg_id: u64,
    },
    /// The session does not exist (any more): its node says so when a queue talks to it.
    Ended,
}

/// A command in the form that no machine version changes. Every one is safe to apply twice; `Sent` merely lets a few more
/// messages out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum QueueRequest {
    /// Subscribe, or change a subscription.
    Attach {
        /// The consumer's tag.
        tag: Bytes,
        /// Deliveries count as acknowledged once they are sent.
        no_ack: bool,
        /// Sole consumer (classic queues).
        exclusive: bool,
        /// Unanswered deliveries at most; 0 = no limit of the client's.
        prefetch: u32,
        /// Higher is served first.
        priority: i32,
        /// The client's arguments, for listings.
        arguments: Bytes,
        /// Who consumes, for listings.
        user: String,
        /// How long it may hold a message, in ms, if it says so.
        timeout_ms: Option<u64>,
        /// The same, if neither it nor the queue says so.
        default_timeout_ms: Option<u64>,
    },
    /// Take one message.
    Dequeue {
        /// Unique in the session; a repeat gets the same message again until it is answered.
        tag: Bytes,
        /// How long it may be held, in ms, if the queue does not say.
        default_timeout_ms: Option<u64>,
    },
    /// Make the session known before it publishes, to hear whether it may.
    Register,
    /// Take dead messages to their new queues from now on; answered by the member that leads, and no other.
    DlxAttach {
        /// How many may be on their way.
        prefetch: u32,
    },
    /// Dead messages have arrived.
    DlxSettle {
        /// Which.
        ids: MsgIds,
    },
    /// Answer deliveries.
    Settle {
        /// The consumer's key.
        key: Reference,
        /// The answer.
        settlement: Settlement,
        /// In the client's order.
        ids: MsgIds,
    },
    /// Deliveries to a consumer without a prefetch limit have left for the client: more may follow (classic queues).
    Sent {
        /// The consumer's key.
        key: Reference,
        /// How many.
        count: u32,
    },
    /// End a subscription; what it holds stays answerable.
    Cancel {
        /// The consumer's tag.
        tag: Bytes,
    },
    /// Drop the ready messages.
    Purge,
    /// A session ended.
    SessionGone {
        /// Which.
        session: SessionRef,
    },
}

/// What a client answers to deliveries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Settlement {
    /// Done with it.
    Ack,
    /// Back to the queue; `failed` if it counts as a failed delivery.
    Requeue {
        /// Whether the attempt failed.
        failed: bool,
    },
    /// Dead-letter or drop; `failed` as above.
    Discard {
        /// Whether the attempt failed.
        failed: bool,
    },
}

/// The answer to a [`QueueRequest`].
#[derive(Debug, Clone)]
pub enum QueueReply {
    /// Applied.
    Done,
    /// Subscribed.
    Attached {
        /// The consumer's key in later requests.
        key: Reference,
        /// The id of its next message.
        next_msg_id: u64,
    },
    /// One message.
    Got {
        /// Key of the temporary consumer that holds it.
        key: Reference,
        /// The message.
        message: Delivery,
        /// Messages ready behind it.
        ready: u64,
    },
    /// Nothing to take.
    Empty,
    /// Purged.
    Purged {
        /// Messages dropped.
        count: u64,
    },
    /// No such consumer.
    NotFound,
    /// The queue's machine version does not define it; nothing changed.
    Unsupported,
    /// There is an exclusive consumer, or the new one would not be alone.
    ExclusiveUse,
    /// The queue has a single active consumer: nothing can be taken past that.
    SingleActive,
    /// The session is known.
    Registered {
        /// Its publishes are to be refused.
        reject: bool,
    },
}

/// A message on its way to a queue: the container's head and body (spec: broker-model.md, section 8).
#[derive(Debug, Clone, Default)]
pub struct QueuedMessage {
    /// Exchange, routing keys and properties, encoded.
    pub head: Bytes,
    /// The body.
    pub body: Bytes,
    /// What quorum queues have to know of it.
    pub traits: Traits,
}

impl QueuedMessage {
    /// Bytes that it occupies in buffers and logs.
    pub fn len(&self) -> usize {
        self.head.len() + self.body.len()
    }

    /// Whether it is empty, which no message is.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// Body bytes that one [`QueueEvent::Deliver`] carries, unless its first message alone has more (spec: quorum-queues.md,
/// section 6.9).
pub const DELIVERY_BYTES: usize = 128_000;

/// Counts down the bytes that still fit. The first always does.
#[derive(Debug)]
pub struct Room {
    left: usize,
    used: bool,
}

impl Room {
    /// Room for `bytes`.
    pub fn new(bytes: usize) -> Self {
        Room { left: bytes, used: false }
    }

    /// Whether so many more fit; if so, they are in.
    pub fn take(&mut self, bytes: u32) -> bool {
        let bytes = bytes as usize;
        let fits = !self.used || bytes <= self.left;
        self.used = true;
        self.left = self.left.saturating_sub(bytes);
        fits
    }
}

/// What a queue tells a session.
#[derive(Debug)]
pub struct ToSession {
    /// The session.
    pub session: SessionRef,
    /// The queue.
    pub group: GroupId,
    /// The node that led the queue when it said so.
    pub leader: NodeId,
    /// What happened.
    pub event: QueueEvent,
}

/// How publishes ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum EnqueueOutcome {
    /// In the queue, or there already: the confirm is owed.
    Enqueued,
    /// A gap: the session resends everything that is pending.
    OutOfSequence,
    /// The queue does not know this enqueuer (any more).
    UnknownEnqueuer,
    /// The queue refuses messages.
    Rejected,
    /// No member could read it: not enqueued.
    Unsupported,
}

/// Something that happened at a queue and concerns one session.
#[derive(Debug)]
pub enum QueueEvent {
    /// Publishes `first_seq..=last_seq` were applied.
    Enqueued {
        /// First sequence number.
        first_seq: u64,
        /// Last sequence number.
        last_seq: u64,
        /// The same for all of them.
        outcome: EnqueueOutcome,
    },
    /// A command was applied.
    Replied {
        /// The session's number for it.
        correlation: u64,
        /// The answer.
        reply: QueueReply,
    },
    /// Messages were assigned to one of the session's consumers.
    Deliver {
        /// The consumer's tag.
        tag: Bytes,
        /// The consumer's key at the queue.
        key: Reference,
        /// In ascending message id.
        messages: Vec<Delivery>,
        /// It answers [`QueueItem::Redeliver`]: what is checked out from the asked id on, as far as one event goes.
        again: bool,
    },
    /// Another member leads now: resend what is pending. Publishes are not refused any more, unless that is said again.
    LeaderChanged,
    /// Whether publishes of the session are to be refused: the queue is, or was, over its limit.
    Status {
        /// Whether.
        reject: bool,
    },
    /// Messages were taken from a consumer that held them too long; late answers to them mean nothing.
    Released {
        /// The consumer's tag.
        tag: Bytes,
        /// The consumer's key at the queue.
        key: Reference,
        /// Which.
        ids: MsgIds,
        /// Whether a `basic.get` held them.
        dequeue: bool,
    },
    /// The node that was asked could not append; nothing was appended for these.
    NotLeader {
        /// The leader that it knows of.
        leader: Option<NodeId>,
        /// Commands that were refused.
        correlations: Vec<u64>,
        /// Lowest publish that was refused.
        first_seq: Option<u64>,
        /// It leads, but is not ready or is full: ask it again.
        busy: bool,
    },
    /// Asks whether the session is still there; the session itself need not answer.
    Ping,
    /// The queue is gone.
    Eol,
    /// The queue's figures.
    Stats {
        /// The session's number for the question.
        correlation: u64,
        /// The figures.
        stats: QueueStats,
    },
}

/// One message handed to a consumer.
#[derive(Debug, Clone)]
pub struct Delivery {
    /// Its number within the consumer.
    pub msg_id: u64,
    /// Times it was handed out and given back before.
    pub acquired_count: u32,
    /// Times it failed before.
    pub delivery_count: u32,
    /// The stored container.
    pub body: Body,
}

/// A stored message container, in memory or still in the log.
#[derive(Debug, Clone)]
pub enum Body {
    /// The bytes.
    Here(Bytes),
    /// To be read from this node's log.
    InLog(Reference),
    /// It is no longer stored: the message was settled meanwhile.
    Gone,
    /// This node's log has it and cannot be read: whoever is to deliver it has to get it elsewhere.
    Unreadable,
}

/// A queue's figures as its leader knows them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Messages ready for delivery.
    pub ready: u64,
    /// Messages delivered and not answered.
    pub unacknowledged: u64,
    /// Body bytes of ready messages.
    pub ready_bytes: u64,
    /// Body bytes of unacknowledged messages.
    pub unacknowledged_bytes: u64,
    /// Sessions that publish.
    pub publishers: u64,
    /// Consumers.
    pub consumers: Vec<ConsumerStats>,
    /// Dead messages that are kept until they have arrived elsewhere.
    pub dead: u64,
    /// Bytes of their bodies.
    pub dead_bytes: u64,
    /// Messages that were given back and are not ready before their time.
    pub delayed: u64,
    /// Bytes of their bodies.
    pub delayed_bytes: u64,
    /// Ready messages that were given back.
    pub returned: u64,
    /// Ready messages that were never handed out, by descending priority.
    pub by_priority: Vec<(u8, u64)>,
    /// When the first and the last delayed message get ready, ms since 1970.
    pub delayed_until: Option<(u64, u64)>,
    /// Failed deliveries after which a message leaves the queue; `None` = none.
    pub delivery_limit: Option<u32>,
}

/// One consumer of a queue.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerStats {
    /// Its tag.
    pub tag: Bytes,
    /// Its session.
    pub session: SessionRef,
    /// Whether deliveries must be acknowledged.
    pub ack_required: bool,
    /// Its prefetch; 0 = unlimited.
    pub prefetch: u32,
    /// Whether the queue gives it messages, and why not.
    pub status: ConsumerStatus,
    /// Its priority.
    pub priority: i32,
    /// Who consumes.
    pub user: String,
}

/// Fetches the bodies that a delivery left in the log. Blocks on disk reads.
pub fn load_bodies(group: GroupId, messages: &mut [Delivery], entries: &Arc<dyn EntryReader>) {
    let mut bodies: Vec<&mut Body> = messages.iter_mut().map(|m| &mut m.body).collect();
    load(group, &mut bodies, entries);
}

fn load(group: GroupId, bodies: &mut [&mut Body], entries: &Arc<dyn EntryReader>) {
    let mut indexes: Vec<u64> = bodies.iter().filter_map(|b| b.in_log()).map(Reference::index).collect();
    indexes.sort_unstable();
    indexes.dedup();
    if indexes.is_empty() {
        return;
    }
    let batches = match entries.read(group, &indexes) {
        Ok(batches) => batches,
        Err(error) => {
            tracing::error!(%group, %error, "message bodies could not be read");
            bodies.iter_mut().filter(|body| body.in_log().is_some()).for_each(|body| **body = Body::Unreadable);
            return;
        }
    };
    for body in bodies {
        let Some(reference) = body.in_log() else { continue };
        let batch = indexes
            .binary_search(&reference.index())
            .ok()
            .and_then(|at| batches.get(at))
            .and_then(|batch| batch.as_ref());
        let container = batch
            .and_then(|batch| batch.get(usize::from(reference.position())))
            .and_then(|command| warren_queues::quorum::stored_message(&command));
        **body = container.map_or(Body::Gone, |message| Body::Here(message.into_container()));
    }
}

impl Body {
    /// Bytes that it keeps in memory.
    pub fn len(&self) -> usize {
        match self {
            Body::Here(container) => container.len(),
            Body::InLog(_) | Body::Gone | Body::Unreadable => 0,
        }
    }

    /// Whether it keeps none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Where it is in the log, if it is only there.
    pub fn in_log(&self) -> Option<Reference> {
        match self {
            Body::InLog(reference) => Some(*reference),
            Body::Here(_) | Body::Gone | Body::Unreadable => None,
        }
    }
}

impl QueueEvent {
    /// Bytes of message bodies that it keeps in memory.
    pub fn body_bytes(&self) -> usize {
        match self {
            QueueEvent::Deliver { messages, .. } => messages.iter().map(|m| m.body.len()).sum(),
            _ => 0,
        }
    }

    /// Whether a body has to be read before a client can have it.
    pub fn needs_bodies(&self) -> bool {
        match self {
            QueueEvent::Deliver { messages, .. } => messages.iter().any(|m| m.body.in_log().is_some()),
            QueueEvent::Replied { reply: QueueReply::Got { message, .. }, .. } => message.body.in_log().is_some(),
            _ => false,
        }
    }

    /// Whether a body could not be read: what is to go to another node must not go like this.
    pub fn is_unreadable(&self) -> bool {
        let unreadable = |message: &Delivery| matches!(message.body, Body::Unreadable);
        match self {
            QueueEvent::Deliver { messages, .. } => messages.iter().any(unreadable),
            QueueEvent::Replied { reply: QueueReply::Got { message, .. }, .. } => unreadable(message),
            _ => false,
        }
    }

    /// Reads the bodies that are missing. Blocks on disk reads.
    pub fn load(&mut self, group: GroupId, entries: &Arc<dyn EntryReader>) {
        match self {
            QueueEvent::Deliver { messages, .. } => load_bodies(group, messages, entries),
            QueueEvent::Replied { reply: QueueReply::Got { message, .. }, .. } => {
                load(group, &mut [&mut message.body], entries);
            }
            _ => {}
        }
    }
}
