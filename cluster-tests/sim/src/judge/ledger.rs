//! Where a queue's messages are, in the order of its log: each leaves in a way that the queue has said.

use std::collections::{BTreeMap, BTreeSet};

use warren_proto::ids::Reference;

/// The messages of one queue, by reference, with their identities.
#[derive(Debug, Default)]
pub struct Ledger {
    present: BTreeMap<Reference, u64>,
    /// Those of them that are dead and kept.
    dead: BTreeSet<Reference>,
}

impl Ledger {
    /// A message enters the queue.
    pub fn entered(&mut self, reference: Reference, uid: u64) {
        self.present.insert(reference, uid);
    }

    /// The identity of a message that is there.
    pub fn uid(&self, reference: Reference) -> Option<u64> {
        self.present.get(&reference).copied()
    }

    /// A message leaves the queue. Answers its identity, if it was there.
    pub fn left(&mut self, reference: Reference) -> Option<u64> {
        self.dead.remove(&reference);
        self.present.remove(&reference)
    }

    /// Removes all that are not among these. Answers their identities.
    pub fn keep_only(&mut self, here: &BTreeSet<Reference>) -> Vec<u64> {
        let vanished: Vec<_> = self.present.keys().filter(|reference| !here.contains(reference)).copied().collect();
        vanished.into_iter().filter_map(|reference| self.left(reference)).collect()
    }

    /// These are dead and kept now. Answers the identities of those that were not before.
    pub fn died(&mut self, dead: impl Iterator<Item = Reference>) -> Vec<u64> {
        let there = dead.filter(|reference| self.present.contains_key(reference));
        let new: Vec<_> = there.filter(|reference| self.dead.insert(*reference)).collect();
        new.into_iter().filter_map(|reference| self.uid(reference)).collect()
    }

    /// How many are there.
    pub fn len(&self) -> usize {
        self.present.len()
    }

    /// Whether none is there.
    pub fn is_empty(&self) -> bool {
        self.present.is_empty()
    }
}
