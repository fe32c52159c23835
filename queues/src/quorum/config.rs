//! What arguments and policies make of a queue.

/// A queue's effective configuration. Every member must start from the same one; later changes come through the log
/// ([`Command::UpdateConfig`](super::Command::UpdateConfig)).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Config {
    /// A returned message leaves the queue when its count exceeds this; `None` = never.
    pub delivery_limit: Option<u32>,
    /// How long a consumer that is cut off keeps its messages, in ms.
    pub consumer_disconnected_timeout_ms: u64,
    /// How long a consumer may hold a message, in ms, if it does not say so itself; `None` = as its node is configured.
    pub consumer_timeout_ms: Option<u64>,
    /// Messages that may wait: ready, delayed, or dead and kept for their new queue. What consumers hold does not count.
    pub max_length: Option<u64>,
    /// Bytes of their bodies.
    pub max_length_bytes: Option<u64>,
    /// What happens beyond these.
    pub overflow: Overflow,
    /// How long a message may wait, in ms.
    pub message_ttl_ms: Option<u64>,
    /// How long the queue lives without use, in ms.
    pub expires_ms: Option<u64>,
    /// Whether only one consumer is served at a time. Never changes.
    pub single_active: bool,
    /// Where messages go that leave the queue unconsumed; `None` = nowhere.
    pub dead_letter: Option<DeadLetter>,
    /// How returned messages wait before they are ready again; `None` = they do not. From version 2.
    pub delayed_retry: Option<DelayedRetry>,
}

/// What happens to a message that is one too many.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Overflow {
    /// The message that would be delivered next is dropped for it.
    #[default]
    DropHead,
    /// Publishers are told to stop; what they publish all the same is refused by their sessions.
    RejectPublish,
}

/// Where dead messages go.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeadLetter {
    /// The exchange.
    pub exchange: String,
    /// The routing key; `None` = the message's own keys.
    pub routing_key: Option<String>,
    /// How surely.
    pub strategy: DeadLetterStrategy,
}

/// How surely a dead message reaches its new queues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DeadLetterStrategy {
    /// Published once, by the leader; may be lost at a change of leader.
    #[default]
    AtMostOnce,
    /// Kept until its new queues have confirmed it. Only together with [`Overflow::RejectPublish`]; with another overflow it
    /// is [`AtMostOnce`](Self::AtMostOnce).
    AtLeastOnce,
}

/// How long returned messages wait: `min_ms`, times the number of failed deliveries, up to `max_ms`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DelayedRetry {
    /// Which returns.
    pub on: RetryOn,
    /// The shortest wait, in ms. Above 0.
    pub min_ms: u64,
    /// The longest wait, in ms. Not below `min_ms`.
    pub max_ms: u64,
}

/// Which returned messages are delayed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RetryOn {
    /// All.
    All,
    /// Those whose delivery failed.
    Failed,
    /// Those whose delivery did not fail.
    Returned,
}

impl Config {
    /// The delivery limit of a queue that does not say another.
    pub const DEFAULT_DELIVERY_LIMIT: u32 = 20;

    /// Whether dead messages are kept until their new queues have confirmed them.
    pub fn at_least_once(&self) -> bool {
        self.overflow == Overflow::RejectPublish && self.asks_for_at_least_once()
    }

    /// Whether dead messages were to be kept, and are not, since the queue does not refuse publishes.
    pub fn falls_back_to_at_most_once(&self) -> bool {
        self.overflow != Overflow::RejectPublish && self.asks_for_at_least_once()
    }

    fn asks_for_at_least_once(&self) -> bool {
        self.dead_letter.as_ref().is_some_and(|to| to.strategy == DeadLetterStrategy::AtLeastOnce)
    }
}

impl Default for Config {
    fn default() -> Self {
        Config {
            delivery_limit: Some(Self::DEFAULT_DELIVERY_LIMIT),
            consumer_disconnected_timeout_ms: 60_000,
            consumer_timeout_ms: None,
            max_length: None,
            max_length_bytes: None,
            overflow: Overflow::default(),
            message_ttl_ms: None,
            expires_ms: None,
            single_active: false,
            dead_letter: None,
            delayed_retry: None,
        }
    }
}
