//! What an entry of a queue's log did to messages: each that is gone must be gone in a way that the queue has said.

use std::collections::BTreeSet;

use warren_jepsen::check::history::Reason;
use warren_proto::ids::{GroupId, Reference};
use warren_queues::quorum::{DeadReason, Queue};

use super::Judge;
use super::queue_book::reason;

/// What the queue said of messages that left, in one entry.
#[derive(Debug, Default)]
pub struct Departures {
    /// Settled by whoever held them.
    pub settled: Vec<Reference>,
    /// Died, and are published elsewhere once.
    pub dead_letters: Vec<(DeadReason, Reference)>,
    /// Died, were kept, and have arrived elsewhere, as the worker says.
    pub arrived: Vec<Reference>,
    /// Dropped, and why.
    pub dropped: u64,
    /// Why the last of those were dropped.
    pub dropped_for: Option<DeadReason>,
    /// Purged.
    pub purged: u64,
    /// Whether some died and are kept.
    pub kept: bool,
    /// Dead ones that the worker was handed: a later command of the entry may have purged them.
    pub handed: Vec<Reference>,
}

impl Judge {
    /// The first member applied an entry that made messages leave, or die.
    pub fn departed(&mut self, group: GroupId, queue: &Queue, departures: &Departures) {
        let result = self.book_departures(group, queue, departures);
        if self.looks_inside {
            self.check(group, result);
        }
    }

    fn book_departures(&mut self, group: GroupId, queue: &Queue, departures: &Departures) -> Result<(), String> {
        let Departures { settled, dead_letters, arrived, dropped, dropped_for, purged, kept, handed } = departures;
        let target = self.queue(group).dead_letters_to;
        let mut result = Ok(());
        // An entry's commands come one after the other; what one kept the next may purge, or settle.
        if *kept || !handed.is_empty() {
            let new = self.queue(group).ledger.died(queue.dead_references().chain(handed.iter().copied()));
            for uid in new {
                self.queue(group).owes(uid);
                self.queue(group).gone(uid, Reason::Rejected)?;
                if let Some(target) = target {
                    self.queue(target).published(uid, None)?;
                }
            }
        }
        for reference in settled {
            self.queue(group).ledger.left(*reference);
        }
        for (why, reference) in dead_letters {
            let Some(uid) = self.queue(group).ledger.left(*reference) else {
                result = Err(format!("message {reference:?} died and was not there"));
                continue;
            };
            self.queue(group).gone(uid, reason(*why))?;
            if let Some(target) = target {
                self.queue(target).published(uid, None)?;
            }
        }
        for reference in arrived {
            let Some(uid) = self.queue(group).ledger.left(*reference) else { continue };
            let there = target.is_some_and(|target| self.queue(target).has_enqueued(uid));
            if !there {
                result = Err(format!("dead message {uid:x} is said to have arrived and has not"));
            }
        }
        if *dropped + *purged == 0 {
            return result;
        }
        let here: BTreeSet<Reference> = queue.references().collect();
        let vanished = self.queue(group).ledger.keep_only(&here);
        if vanished.len() as u64 != *dropped + *purged {
            let vanished = vanished.len();
            result = Err(format!("{vanished} messages left, {dropped} were dropped and {purged} purged"));
        }
        let why = dropped_for.map_or(Reason::Purged, reason);
        for uid in vanished {
            self.queue(group).owes_not(uid);
            self.queue(group).gone(uid, why)?;
        }
        result
    }
}
