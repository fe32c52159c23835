//! A delivery says whether it is the first.

use std::collections::BTreeMap;
use std::fmt;

use super::history::{Event, Operation, Value};
use super::runs::Runs;
use super::verdict::Verdict;

/// Messages that were handed out more than once and are remembered one by one, at most: those that came last.
const MOST_REMEMBERED: usize = 1 << 16;

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// It came twice for the first time.
    Unmarked(Value),
    /// It is marked as redelivered and says that it was never handed out, or the reverse.
    Disagrees {
        /// The message.
        value: Value,
        /// Whether it is marked.
        redelivered: bool,
        /// How often it says that it was handed out.
        acquired: u32,
    },
    /// It came twice and says of both that it was handed out so often before.
    SameCount {
        /// The message.
        value: Value,
        /// How often.
        acquired: u32,
    },
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Unmarked(value) => write!(f, "message {value} comes for the first time again"),
            Violation::Disagrees { value, redelivered, acquired } => {
                write!(f, "message {value} was handed out {acquired} times and is marked redelivered: {redelivered}")
            }
            Violation::SameCount { value, acquired } => {
                write!(f, "message {value} is handed out twice for the {acquired}th time")
            }
        }
    }
}

/// Checks a history as it is told.
#[derive(Debug, Clone, Default)]
pub struct Redelivery {
    /// Came for the first time.
    fresh: Runs,
    /// May come for the first time again, for there are copies of them.
    copied: Runs,
    /// By message: counts that it came with, above 0, and when it last did.
    counts: BTreeMap<Value, (u64, Vec<u32>)>,
    /// The same by time.
    recent: BTreeMap<u64, Value>,
    deliveries: u64,
    first: Option<Violation>,
}

impl Redelivery {
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
            Event::Copy { value } => {
                self.copied.insert(value);
            }
            Event::Deliver { value, redelivered, acquired, .. } => {
                self.deliveries += 1;
                if let Some(violation) = self.deliver(value, redelivered, acquired) {
                    self.first.get_or_insert(violation);
                }
            }
            _ => {}
        }
    }

    fn deliver(&mut self, value: Value, redelivered: bool, acquired: Option<u32>) -> Option<Violation> {
        if let Some(acquired) = acquired.filter(|acquired| redelivered != (*acquired > 0)) {
            return Some(Violation::Disagrees { value, redelivered, acquired });
        }
        if self.copied.contains(value) {
            return None;
        }
        if !redelivered {
            return (!self.fresh.insert(value)).then_some(Violation::Unmarked(value));
        }
        let acquired = acquired?;
        let now = self.deliveries;
        let (last, counts) = self.counts.entry(value).or_default();
        self.recent.remove(last);
        self.recent.insert(now, value);
        *last = now;
        let same = counts.contains(&acquired);
        counts.push(acquired);
        if self.counts.len() > MOST_REMEMBERED
            && let Some((_, oldest)) = self.recent.pop_first()
        {
            self.counts.remove(&oldest);
        }
        same.then_some(Violation::SameCount { value, acquired })
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
    let mut checker = Redelivery::new();
    history.into_iter().for_each(|operation| checker.observe(operation));
    checker.verdict()
}
