//! Dead letters of quorum queues: what left its queue unconsumed is published where the queue's configuration says (spec:
//! quorum-queues.md, section 8).
//!
//! The queue's leader asks for it; bodies are read, and messages rewritten and routed, by a task of the queue's own, so that
//! no target that is slow or gone holds up the queue or another one's dead letters. [`once`] publishes and forgets;
//! [`worker`] publishes with confirms, and the queue keeps a message until all of its targets have confirmed it.

mod deaths;
mod once;
mod pins;
mod source;
mod worker;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};

use warren_queues::quorum::DeadReason;

use crate::node::Broker;

pub(crate) use once::Outlet;
pub(crate) use pins::Pins;
pub(crate) use worker::Worker;

/// How a dead message is treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Treatment {
    /// It goes nowhere: nothing is configured, or the exchange does not exist.
    Disabled,
    /// It is published once.
    AtMostOnce,
    /// It is kept until its targets have confirmed it.
    AtLeastOnce,
}

impl Treatment {
    /// All, in the order of the counters.
    pub const ALL: [Treatment; 3] = [Treatment::Disabled, Treatment::AtMostOnce, Treatment::AtLeastOnce];

    /// As metrics name it.
    pub fn name(self) -> &'static str {
        match self {
            Treatment::Disabled => "disabled",
            Treatment::AtMostOnce => "at_most_once",
            Treatment::AtLeastOnce => "at_least_once",
        }
    }
}

/// The reasons for which messages die, in the order of the counters.
pub const REASONS: [DeadReason; 4] =
    [DeadReason::Rejected, DeadReason::DeliveryLimit, DeadReason::Expired, DeadReason::MaxLen];

/// What the queues of this node share for their dead letters.
pub struct DeadLetters {
    runtime: tokio::runtime::Handle,
    broker: OnceLock<Weak<Broker>>,
    counts: [[AtomicU64; 3]; 4],
    confirmed: AtomicU64,
}

impl DeadLetters {
    /// For a node whose broker is [named](Self::connect) later. Tasks run on `runtime`.
    pub fn new(runtime: tokio::runtime::Handle) -> Self {
        DeadLetters { runtime, broker: OnceLock::new(), counts: Default::default(), confirmed: AtomicU64::new(0) }
    }

    /// Names the broker. The first call counts.
    pub fn connect(&self, broker: Weak<Broker>) {
        let _ = self.broker.set(broker);
    }

    fn broker(&self) -> Option<Arc<Broker>> {
        self.broker.get()?.upgrade()
    }

    /// Counts messages that died.
    pub fn count(&self, reason: DeadReason, treatment: Treatment, count: u64) {
        self.counts[reason as usize][treatment as usize].fetch_add(count, Ordering::Relaxed);
    }

    /// Messages that died in queues led by this node since it started, by reason and treatment.
    pub fn counts(&self) -> impl Iterator<Item = (DeadReason, Treatment, u64)> + '_ {
        REASONS.into_iter().flat_map(move |reason| {
            Treatment::ALL.into_iter().map(move |treatment| {
                (reason, treatment, self.counts[reason as usize][treatment as usize].load(Ordering::Relaxed))
            })
        })
    }

    /// Messages that are kept until their targets confirm them, and were confirmed.
    pub fn confirmed(&self) -> u64 {
        self.confirmed.load(Ordering::Relaxed)
    }
}
