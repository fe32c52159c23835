//! What happened, as clients saw it.
//!
//! The mapping from a client library to these events decides what a checker can find. A publish without
//! [`Confirm`](Event::Confirm) or [`Refuse`](Event::Refuse) is open: it may have happened or not. A delivery counts when
//! it reaches the client.

use std::fmt;

/// Who acts: a connection or session. One whose operation ended without an answer is replaced by another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Process(pub u64);

/// A queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Queue(pub u64);

/// A consumer: a subscription of a session, under one name in the whole history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Consumer(pub u64);

/// A message's identity: who published it, and which of that publisher's messages it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Value {
    /// The publisher.
    pub process: Process,
    /// Counts up from message to message.
    pub counter: u64,
}

impl Value {
    /// A publisher's message of this number.
    pub fn new(process: u64, counter: u64) -> Self {
        Value { process: Process(process), counter }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.process.0, self.counter)
    }
}

/// One line of a history.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Operation {
    /// When, in ns since the run began.
    pub at_ns: u64,
    /// Who.
    pub process: Process,
    /// At which queue.
    pub queue: Queue,
    /// What.
    pub event: Event,
}

/// What happened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A message is published; what became of it is not known yet.
    Publish {
        /// The message.
        value: Value,
        /// Its priority, if it has one.
        priority: Option<u8>,
        /// Whether it may disappear unseen: it has a time to live, or its queue drops what is too much, and nothing tells
        /// which messages those are.
        may_expire: bool,
    },
    /// The publish certainly happened.
    Confirm {
        /// The message.
        value: Value,
    },
    /// The publish certainly did not happen: refused for a limit, returned as unroutable.
    Refuse {
        /// The message.
        value: Value,
    },
    /// A publish of a session that the queue had been told is gone arrived late: one more copy of a message that may have
    /// been there before.
    Copy {
        /// The message.
        value: Value,
    },
    /// A message reaches a consumer.
    Deliver {
        /// The message.
        value: Value,
        /// The consumer.
        consumer: Consumer,
        /// Whether it is marked as redelivered.
        redelivered: bool,
        /// How often it was handed out before, where it says so.
        acquired: Option<u32>,
        /// Whether the consumer asked for one message, so that answers may overtake each other.
        got: bool,
    },
    /// A consumer is done with a message.
    Settle {
        /// The message.
        value: Value,
        /// The consumer.
        consumer: Consumer,
        /// Whether the queue has said that it knows.
        proven: bool,
    },
    /// A consumer gives a message back: it is to be delivered again.
    Return {
        /// The message.
        value: Value,
        /// The consumer.
        consumer: Consumer,
    },
    /// A consumer rejects a message for good.
    Reject {
        /// The message.
        value: Value,
        /// The consumer.
        consumer: Consumer,
    },
    /// A message left the queue unconsumed, as the queue is configured to have it.
    Gone {
        /// The message.
        value: Value,
        /// Why.
        reason: Reason,
    },
    /// A consumer of a single active queue is told that it is the active one now.
    Activate {
        /// The consumer.
        consumer: Consumer,
    },
    /// A consumer of a single active queue is told that it is not any more.
    Deactivate {
        /// The consumer.
        consumer: Consumer,
    },
    /// A consumer held a message too long: it makes way, and may still answer what it holds.
    TimedOut {
        /// The consumer.
        consumer: Consumer,
    },
    /// A consumer is cancelled, or its session is gone.
    End {
        /// The consumer.
        consumer: Consumer,
    },
    /// A fault begins, or goes on.
    Fault,
}

/// Why a message left unconsumed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Reason {
    /// It waited too long.
    Expired,
    /// The queue was over its limit.
    MaxLen,
    /// It was returned once too often.
    DeliveryLimit,
    /// It was rejected.
    Rejected,
    /// The queue was purged.
    Purged,
}
