//! A queue with a single active consumer serves one at a time.
//!
//! A history with [`Activate`](Event::Activate) in it is held to these notices: nobody is told before the other one made
//! way, and only the active one is served. Without notices, whoever holds messages counts as the active one until it ends,
//! times out or has answered all; during faults, and for some time after, two may hold messages, for nobody can take
//! back what a client that is cut off already has: that time is only measured.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::history::{Consumer, Event, Operation, Value};
use super::verdict::Verdict;

/// Time after a fault during which what it did may still be seen, in ns.
pub const AFTERMATH_NS: u64 = 10_000_000_000;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// A consumer is told that it is active while another one is.
    TwoActive {
        /// Who was.
        active: Consumer,
        /// Who is as well.
        also: Consumer,
    },
    /// A consumer that is not active, or has ended, gets a message.
    Served {
        /// The consumer.
        consumer: Consumer,
        /// The message.
        value: Value,
    },
    /// Two consumers hold messages, and no fault explains it.
    TwoHolders {
        /// Who held some.
        holder: Consumer,
        /// Who got one.
        also: Consumer,
        /// The message.
        value: Value,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::TwoActive { active, also } => {
                write!(f, "consumer {} becomes active beside {}", also.0, active.0)
            }
            Violation::Served { consumer, value } => {
                write!(f, "consumer {} is not active and gets message {value}", consumer.0)
            }
            Violation::TwoHolders { holder, also, value } => {
                write!(f, "consumer {} gets message {value} while {} holds others", also.0, holder.0)
            }
        }
    }
}

/// Checks a history as it is told.
#[derive(Debug, Clone, Default)]
pub struct SingleActive {
    /// Told to be active, and not otherwise since.
    active: BTreeSet<Consumer>,
    /// Whether the history has notices.
    noticed: bool,
    /// Held messages too long while they were active: served again when all is answered, if nobody else took over.
    late: BTreeSet<Consumer>,
    /// Told that it is over: ended, or not active any more.
    dismissed: BTreeSet<Consumer>,
    /// What those hold that have not made way.
    holds: BTreeMap<Consumer, BTreeSet<Value>>,
    fault_ns: Option<u64>,
    /// Since when two hold messages.
    overlap_ns: Option<u64>,
    overlapped_ns: u64,
    deliveries: u64,
    first: Option<Violation>,
}

impl SingleActive {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is wrong already.
    pub fn violation(&self) -> Option<Violation> {
        self.first
    }

    /// How long two consumers held messages because of faults, in ns.
    pub fn overlapped_ns(&self) -> u64 {
        self.overlapped_ns
    }

    /// The next operation.
    pub fn observe(&mut self, operation: &Operation) {
        let at = operation.at_ns;
        match operation.event {
            Event::Fault => self.fault_ns = Some(at),
            Event::Activate { consumer } => self.activate(consumer),
            Event::Deactivate { consumer } | Event::End { consumer } => {
                self.makes_way(consumer);
                self.late.remove(&consumer);
                self.dismissed.insert(consumer);
            }
            Event::TimedOut { consumer } => {
                if self.active.contains(&consumer) {
                    self.late.insert(consumer);
                }
                self.makes_way(consumer);
            }
            Event::Deliver { value, consumer, .. } => self.deliver(at, value, consumer),
            Event::Settle { value, consumer, .. }
            | Event::Return { value, consumer }
            | Event::Reject { value, consumer } => {
                if let Some(held) = self.holds.get_mut(&consumer) {
                    held.remove(&value);
                    if held.is_empty() {
                        self.holds.remove(&consumer);
                    }
                }
            }
            Event::Publish { .. }
            | Event::Confirm { .. }
            | Event::Refuse { .. }
            | Event::Copy { .. }
            | Event::Gone { .. } => {}
        }
        if self.holds.len() < 2
            && let Some(since) = self.overlap_ns.take()
        {
            self.overlapped_ns += at.saturating_sub(since);
        }
    }

    fn activate(&mut self, consumer: Consumer) {
        self.noticed = true;
        self.dismissed.remove(&consumer);
        self.late.remove(&consumer);
        if let Some(active) = self.active.iter().find(|active| **active != consumer) {
            self.first.get_or_insert(Violation::TwoActive { active: *active, also: consumer });
        }
        self.active.insert(consumer);
    }

    fn makes_way(&mut self, consumer: Consumer) {
        self.active.remove(&consumer);
        self.holds.remove(&consumer);
    }

    fn deliver(&mut self, at: u64, value: Value, consumer: Consumer) {
        self.deliveries += 1;
        if self.active.is_empty() && self.late.remove(&consumer) {
            self.active.insert(consumer);
        }
        if self.dismissed.contains(&consumer) || (self.noticed && !self.active.contains(&consumer)) {
            self.first.get_or_insert(Violation::Served { consumer, value });
            return;
        }
        let holder = self.holds.keys().find(|holder| **holder != consumer).copied();
        self.holds.entry(consumer).or_default().insert(value);
        let Some(holder) = holder else { return };
        let explained = self.fault_ns.is_some_and(|fault| at < fault.saturating_add(AFTERMATH_NS));
        if explained {
            self.overlap_ns.get_or_insert(at);
        } else if !self.noticed {
            self.first.get_or_insert(Violation::TwoHolders { holder, also: consumer, value });
        }
    }

    /// The verdict, if the history ends here.
    pub fn verdict(&self) -> Verdict<Violation> {
        match self.first {
            Some(violation) => Verdict::Invalid(violation),
            None if self.deliveries == 0 => Verdict::Unknown("nothing was delivered"),
            None => Verdict::Valid,
        }
    }
}

/// Checks a history of one queue.
pub fn check<'a>(history: impl IntoIterator<Item = &'a Operation>) -> Verdict<Violation> {
    let mut checker = SingleActive::new();
    history.into_iter().for_each(|operation| checker.observe(operation));
    checker.verdict()
}
