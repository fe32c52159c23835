//! What goes in comes out.

use std::collections::BTreeMap;
use std::fmt;

use super::history::{Event, Operation, Value};
use super::runs::Runs;
use super::verdict::Verdict;

/// What shows that a message was not lost.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Until {
    /// That it reached a consumer.
    #[default]
    Delivered,
    /// That a consumer settled or rejected it: for histories at whose end the queue is empty.
    Answered,
}

/// Where a lost message lies among those of its publisher that were delivered.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Loss {
    /// Before the first.
    Prefix,
    /// Between two: no slow reader explains that.
    Middle,
    /// Behind the last, or none was delivered.
    Postfix,
}

/// What is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Violation {
    /// Confirmed, and not found.
    Lost {
        /// The first such message.
        value: Value,
        /// Where it lies.
        loss: Loss,
        /// How many there are.
        count: u64,
    },
    /// Delivered, and nobody published it.
    Unexpected(Value),
    /// Delivered, although the publish was refused.
    Aborted(Value),
    /// Confirmed, and refused.
    Contradicted(Value),
    /// Confirmed, and never published.
    Invented(Value),
    /// Delivered after its settle was proven.
    AfterSettle(Value),
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Violation::Lost { value, loss, count } => {
                write!(f, "{count} confirmed messages are lost, the first is {value} ({loss:?})")
            }
            Violation::Unexpected(value) => write!(f, "message {value} is delivered and was never published"),
            Violation::Aborted(value) => write!(f, "message {value} is delivered and was refused"),
            Violation::Contradicted(value) => write!(f, "message {value} is confirmed and was refused"),
            Violation::Invented(value) => write!(f, "message {value} is confirmed and was never published"),
            Violation::AfterSettle(value) => write!(f, "message {value} is delivered again after a proven settle"),
        }
    }
}

/// How many messages came to what.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Publishes begun.
    pub attempts: u64,
    /// Publishes confirmed.
    pub confirmed: u64,
    /// Messages that were delivered at least once.
    pub delivered: u64,
    /// Messages that were settled or rejected at least once.
    pub answered: u64,
    /// Deliveries of messages that had been delivered before.
    pub duplicated: u64,
    /// Delivered, though their publish was never confirmed.
    pub recovered: u64,
    /// Messages that left as the queue is configured to have it, or may have.
    pub excused: u64,
}

/// What is not done with yet.
#[derive(Debug, Clone, Copy, Default)]
struct Open {
    confirmed: bool,
    delivered: bool,
    answered: bool,
    excused: bool,
    proven: bool,
    copies: bool,
}

/// Checks a history as it is told: of messages that are done with only runs of numbers are kept.
#[derive(Debug, Clone, Default)]
pub struct TotalQueue {
    until: Until,
    open: BTreeMap<Value, Open>,
    refused: Runs,
    /// Confirmed, delivered and answered or gone: nothing can be lost of these.
    done: Runs,
    /// Of those, settled for good.
    proven: Runs,
    delivered: Runs,
    counts: Counts,
    first: Option<Violation>,
}

impl TotalQueue {
    /// A checker that has seen nothing.
    pub fn new(until: Until) -> Self {
        TotalQueue { until, ..TotalQueue::default() }
    }

    /// How many messages came to what, so far.
    pub fn counts(&self) -> Counts {
        self.counts
    }

    /// What is wrong already, whatever follows.
    pub fn violation(&self) -> Option<Violation> {
        self.first
    }

    fn wrong(&mut self, violation: Violation) {
        self.first.get_or_insert(violation);
    }

    /// The next operation.
    pub fn observe(&mut self, operation: &Operation) {
        match operation.event {
            Event::Publish { value, may_expire, .. } => {
                self.counts.attempts += 1;
                if !self.done.contains(value) {
                    self.open.entry(value).or_default();
                }
                if may_expire {
                    self.excuse(value);
                }
            }
            Event::Confirm { value } => self.confirm(value),
            Event::Refuse { value } => {
                let known = self.open.remove(&value);
                if known.is_some_and(|open| open.confirmed) || self.done.contains(value) {
                    self.wrong(Violation::Contradicted(value));
                } else if known.is_some_and(|open| open.delivered) {
                    self.wrong(Violation::Aborted(value));
                }
                self.refused.insert(value);
            }
            Event::Copy { value } => {
                if let Some(open) = self.open.get_mut(&value) {
                    open.copies = true;
                } else if self.done.contains(value) {
                    // Whatever comes of the copy is explained by it.
                    self.open.insert(value, Open { confirmed: true, copies: true, excused: true, ..Open::default() });
                }
            }
            Event::Deliver { value, .. } => self.deliver(value),
            Event::Settle { value, proven, .. } => self.answer(value, proven),
            Event::Reject { value, .. } => self.answer(value, false),
            Event::Gone { value, .. } => self.excuse(value),
            Event::Return { .. }
            | Event::Activate { .. }
            | Event::Deactivate { .. }
            | Event::TimedOut { .. }
            | Event::End { .. }
            | Event::Fault => {}
        }
    }

    fn confirm(&mut self, value: Value) {
        if self.done.contains(value) {
            return;
        }
        if self.refused.contains(value) {
            return self.wrong(Violation::Contradicted(value));
        }
        match self.open.get_mut(&value) {
            None => return self.wrong(Violation::Invented(value)),
            Some(open) if open.confirmed => return,
            Some(open) => open.confirmed = true,
        }
        self.counts.confirmed += 1;
        self.retire(value);
    }

    fn deliver(&mut self, value: Value) {
        if self.delivered.insert(value) {
            self.counts.delivered += 1;
        } else {
            self.counts.duplicated += 1;
        }
        match self.open.get_mut(&value) {
            Some(open) => {
                open.delivered = true;
                if open.proven && !open.copies {
                    self.wrong(Violation::AfterSettle(value));
                }
            }
            None if self.done.contains(value) => {
                if self.proven.contains(value) {
                    self.wrong(Violation::AfterSettle(value));
                }
            }
            None if self.refused.contains(value) => self.wrong(Violation::Aborted(value)),
            None => self.wrong(Violation::Unexpected(value)),
        }
        self.retire(value);
    }

    fn answer(&mut self, value: Value, proven: bool) {
        if self.done.contains(value) && proven {
            self.proven.insert(value);
        }
        let Some(open) = self.open.get_mut(&value) else { return };
        self.counts.answered += u64::from(!open.answered);
        open.answered = true;
        open.proven |= proven;
        self.retire(value);
    }

    fn excuse(&mut self, value: Value) {
        let Some(open) = self.open.get_mut(&value) else { return };
        self.counts.excused += u64::from(!open.excused);
        open.excused = true;
        self.retire(value);
    }

    fn found(&self, open: &Open) -> bool {
        open.excused
            || match self.until {
                Until::Delivered => open.delivered,
                Until::Answered => open.answered,
            }
    }

    /// Forgets what cannot be lost any more. Messages with copies stay: what explains their deliveries must be known.
    fn retire(&mut self, value: Value) {
        let Some(open) = self.open.get(&value) else { return };
        if open.confirmed && self.found(open) && !open.copies {
            if open.proven {
                self.proven.insert(value);
            }
            self.done.insert(value);
            self.open.remove(&value);
        }
    }

    /// The verdict, if the history ends here.
    pub fn verdict(&self) -> Verdict<Violation> {
        if let Some(violation) = self.first {
            return Verdict::Invalid(violation);
        }
        let lost = || self.open.iter().filter(|(_, open)| open.confirmed && !self.found(open)).map(|(value, _)| *value);
        // One in the middle says most.
        let example = lost().find(|value| self.place(*value) == Loss::Middle).or_else(|| lost().next());
        if let Some(value) = example {
            return Verdict::Invalid(Violation::Lost { value, loss: self.place(value), count: lost().count() as u64 });
        }
        match self.counts {
            Counts { confirmed: 0, .. } => Verdict::Unknown("no publish was confirmed"),
            Counts { delivered: 0, excused: 0, .. } => Verdict::Unknown("nothing was drained"),
            _ => Verdict::Valid,
        }
    }

    fn place(&self, value: Value) -> Loss {
        match self.delivered.ends(value.process) {
            Some((first, _)) if value.counter < first => Loss::Prefix,
            Some((_, last)) if value.counter < last => Loss::Middle,
            _ => Loss::Postfix,
        }
    }

    /// Counts at the end: messages that were delivered though nobody was told that they are in the queue.
    pub fn final_counts(&self) -> Counts {
        let recovered = self.open.values().filter(|open| open.delivered && !open.confirmed).count() as u64;
        Counts { recovered, ..self.counts }
    }

    /// Messages that are not done with: what the checker's memory grows with.
    pub fn open(&self) -> usize {
        self.open.len()
    }
}

/// Checks a history of one queue.
pub fn check<'a>(history: impl IntoIterator<Item = &'a Operation>, until: Until) -> Verdict<Violation> {
    let mut checker = TotalQueue::new(until);
    history.into_iter().for_each(|operation| checker.observe(operation));
    checker.verdict()
}
