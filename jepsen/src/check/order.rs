//! First deliveries keep each publisher's order.

use std::collections::BTreeMap;
use std::fmt;

use super::history::{Consumer, Event, Operation, Process, Value};
use super::runs::Runs;
use super::verdict::Verdict;

/// The priority of a message that has none.
const NO_PRIORITY: u8 = 4;
/// The highest; more counts as this.
const MOST_PRIORITY: u8 = 31;

/// A message overtook another one of its publisher and priority on the way to one consumer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The message that came late.
    pub value: Value,
    /// The number of the one before it.
    pub after: u64,
    /// The priority of both.
    pub priority: u8,
    /// Who got them.
    pub consumer: Consumer,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Violation { value, after, priority, consumer } = self;
        write!(f, "message {value} of priority {priority} comes after {after} at consumer {}", consumer.0)
    }
}

/// Checks a history as it is told.
#[derive(Debug, Clone, Default)]
pub struct Order {
    /// Messages that do not have the usual priority and were not delivered for the first time yet.
    priorities: BTreeMap<Value, u8>,
    /// Messages that exist more than once: their copies come late.
    copied: Runs,
    /// The number that came last for the first time.
    newest: BTreeMap<(Consumer, Process, u8), u64>,
    compared: u64,
    first: Option<Violation>,
}

impl Order {
    /// A checker that has seen nothing.
    pub fn new() -> Self {
        Self::default()
    }

    /// What is wrong already.
    pub fn violation(&self) -> Option<Violation> {
        self.first
    }

    /// The next operation.
    pub fn observe(&mut self, operation: &Operation) {
        match operation.event {
            Event::Publish { value, priority: Some(priority), .. } if priority != NO_PRIORITY => {
                self.priorities.insert(value, priority.min(MOST_PRIORITY));
            }
            Event::Copy { value } => {
                self.copied.insert(value);
            }
            Event::Gone { value, .. } | Event::Refuse { value } => {
                self.priorities.remove(&value);
            }
            Event::Deliver { value, consumer, redelivered: false, got: false, .. } => self.deliver(value, consumer),
            Event::End { consumer } => {
                let from = (consumer, Process(0), 0);
                let to = (consumer, Process(u64::MAX), u8::MAX);
                let ended: Vec<_> = self.newest.range(from..=to).map(|(key, _)| *key).collect();
                ended.iter().for_each(|key| {
                    self.newest.remove(key);
                });
            }
            _ => {}
        }
    }

    fn deliver(&mut self, value: Value, consumer: Consumer) {
        let priority = self.priorities.remove(&value).unwrap_or(NO_PRIORITY);
        if self.copied.contains(value) {
            return;
        }
        self.compared += 1;
        let newest = self.newest.entry((consumer, value.process, priority)).or_insert(value.counter);
        if value.counter < *newest {
            self.first.get_or_insert(Violation { value, after: *newest, priority, consumer });
        }
        *newest = value.counter.max(*newest);
    }

    /// The verdict, if the history ends here.
    pub fn verdict(&self) -> Verdict<Violation> {
        match self.first {
            Some(violation) => Verdict::Invalid(violation),
            None if self.compared == 0 => Verdict::Unknown("nothing came for the first time"),
            None => Verdict::Valid,
        }
    }
}

/// Checks a history of one queue.
pub fn check<'a>(history: impl IntoIterator<Item = &'a Operation>) -> Verdict<Violation> {
    let mut checker = Order::new();
    history.into_iter().for_each(|operation| checker.observe(operation));
    checker.verdict()
}
