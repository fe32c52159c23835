//! Following the tree's changes from a point on: what changed, in the log's order, kept for a while.
//!
//! [`History`] is fed with each command's [`Changes`]. A [`Subscription`] is a pattern and a place in the log; it asks the
//! history for what came after, and is told [`Compacted`] where that is not there any more: then it reads the tree anew
//! and goes on from there. Nothing here waits: whoever applies commands also wakes those who follow.

use std::collections::VecDeque;
use std::sync::Arc;

use warren_proto::ids::Reference;

use crate::tree::{Change, Changes, Path, Pattern};

/// Nodes whose changes are kept, at most.
const MAX_KEPT_NODES: usize = 65_536;
/// Octets of payloads in these, at most.
const MAX_KEPT_OCTETS: usize = 16 << 20;

/// What was asked for is not kept any more.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("compacted: changes up to revision {0:?} are not known any more")]
pub struct Compacted(pub Reference);

/// One change of one node.
#[derive(Clone, PartialEq, Debug)]
pub struct Event {
    /// The command.
    pub revision: Reference,
    /// The node.
    pub path: Path,
    /// What became of it.
    pub change: Change,
}

/// What one command did.
#[derive(Clone, Debug)]
struct Entry {
    revision: Reference,
    changes: Arc<Changes>,
    octets: usize,
}

/// Recent changes of the tree.
#[derive(Clone, Debug, Default)]
pub struct History {
    /// In order.
    entries: VecDeque<Entry>,
    /// The last command of which nothing is kept.
    floor: Reference,
    newest: Reference,
    nodes: usize,
    octets: usize,
}

impl History {
    /// One that begins after this command.
    pub fn after(revision: Reference) -> Self {
        History { floor: revision, newest: revision, ..History::default() }
    }

    /// Takes in what a command did; commands come in the log's order. The oldest go when there are too many.
    pub fn push(&mut self, revision: Reference, changes: Changes) {
        debug_assert!(revision > self.newest || self.newest == Reference(0), "commands come in order");
        self.newest = revision;
        if changes.is_empty() {
            return;
        }
        let octets = changes.iter().map(|(_, change)| octets(change)).sum();
        self.nodes += changes.len();
        self.octets += octets;
        self.entries.push_back(Entry { revision, changes: Arc::new(changes), octets });
        while self.nodes > MAX_KEPT_NODES || self.octets > MAX_KEPT_OCTETS {
            let Some(oldest) = self.entries.pop_front() else { return };
            self.nodes -= oldest.changes.len();
            self.octets -= oldest.octets;
            self.floor = oldest.revision;
        }
    }

    /// Forgets everything: the tree was replaced by that of a snapshot whose last command this is.
    pub fn replace(&mut self, revision: Reference) {
        *self = History::after(revision);
    }

    /// The last command taken in.
    pub fn newest(&self) -> Reference {
        self.newest
    }

    /// Follows what matches the pattern, beginning after a command. Its names count, other conditions do not: of a node
    /// that is gone nothing else is left.
    pub fn watch(&self, pattern: Pattern, from_revision: Reference) -> Result<Subscription, Compacted> {
        if from_revision < self.floor {
            return Err(Compacted(self.floor));
        }
        Ok(Subscription { pattern, seen: from_revision })
    }
}

fn octets(change: &Change) -> usize {
    [change.old_payload(), change.new_payload()].into_iter().flatten().map(|payload| payload.bytes.len()).sum()
}

/// A follower of some of the tree.
#[derive(Clone, Debug)]
pub struct Subscription {
    pattern: Pattern,
    seen: Reference,
}

impl Subscription {
    /// The last command that it has seen.
    pub fn seen(&self) -> Reference {
        self.seen
    }

    /// What happened since, at most so many events; all events of a command come together, so that there may be more of
    /// the last one. None where there is nothing new.
    pub fn next(&mut self, history: &History, at_most: usize) -> Result<Vec<Event>, Compacted> {
        if self.seen < history.floor {
            return Err(Compacted(history.floor));
        }
        let mut events = Vec::new();
        let first = history.entries.partition_point(|entry| entry.revision <= self.seen);
        for entry in history.entries.range(first..) {
            if events.len() >= at_most {
                return Ok(events);
            }
            let matching = entry.changes.iter().filter(|(path, _)| self.pattern.admits(path.components()));
            events.extend(matching.map(|(path, change)| Event {
                revision: entry.revision,
                path: path.clone(),
                change: change.clone(),
            }));
            self.seen = entry.revision;
        }
        self.seen = self.seen.max(history.newest);
        Ok(events)
    }
}

#[cfg(test)]
mod tests {
    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::random_writes::{Act, Log, act};

    fn pattern(text: &str) -> Pattern {
        Pattern::parse(text, &Pattern::new(Vec::new())).unwrap()
    }

    #[test]
    fn who_asks_for_what_is_gone_is_told_so_and_where_to_go_on() {
        let mut log = Log::default();
        let mut history = History::default();
        let mut early = history.watch(pattern("/**"), Reference(0)).unwrap();
        let step = |log: &mut Log, history: &mut History, act: Act| {
            let outcome = log.act(&act).unwrap();
            history.push(log.machine.applied(), outcome.changes);
            log.machine.applied()
        };
        let first = step(&mut log, &mut history, Act::CreateVhost(0));
        let mut late = history.watch(pattern("/:warren/:users/*"), first).unwrap();
        let second = step(&mut log, &mut history, Act::PutUser(0));
        let events = late.next(&history, 10).unwrap();
        assert_eq!(events.len(), 1);
        assert_eq!((events[0].revision, events[0].path.to_string()), (second, "/:warren/:users/u0".to_owned()));
        assert_eq!(late.next(&history, 10), Ok(vec![]));
        // A command's events come together.
        assert!(early.next(&history, 1).unwrap().len() > 1);
        assert_eq!(early.seen(), first);
        history.replace(second);
        assert_eq!(early.next(&history, 1), Err(Compacted(second)));
        assert!(history.watch(pattern("/*"), first).is_err());
        assert_eq!(late.next(&history, 1), Ok(vec![]));
    }

    #[test]
    fn what_is_kept_is_bounded_and_the_oldest_goes_first() {
        let mut log = Log::default();
        let mut history = History::default();
        let mut first = None;
        while history.floor == Reference(0) {
            let act = if log.index.is_multiple_of(2) { Act::CreateVhost(0) } else { Act::DeleteVhost(0) };
            let outcome = log.act(&act).unwrap();
            history.push(log.machine.applied(), outcome.changes);
            first.get_or_insert(log.machine.applied());
            assert!(history.nodes <= MAX_KEPT_NODES && history.octets <= MAX_KEPT_OCTETS);
        }
        assert_eq!(Some(history.floor), first);
        assert!(history.nodes + 20 > MAX_KEPT_NODES);
    }

    proptest! {
        #[test]
        fn the_events_add_up_to_the_difference_of_the_trees(acts in vec(act(), 1..40), from in 0usize..40) {
            let mut log = Log::default();
            let mut history = History::default();
            let mut follower = None;
            for (i, act) in acts.iter().enumerate() {
                if i == from {
                    let subscription = history.watch(pattern("/**"), log.machine.applied()).unwrap();
                    follower = Some((subscription, log.machine.tree()));
                }
                if let Some(outcome) = log.act(act) {
                    history.push(log.machine.applied(), outcome.changes);
                }
            }
            if let Some((mut subscription, old)) = follower {
                let mut content: std::collections::BTreeMap<Path, _> = old
                    .get_many(&pattern("/**"))
                    .into_iter()
                    .map(|(path, node)| (path, node.payload))
                    .collect();
                loop {
                    let events = subscription.next(&history, 3).unwrap();
                    if events.is_empty() && subscription.seen() == history.newest() {
                        break;
                    }
                    for event in events {
                        prop_assert_eq!(event.change.old.is_some(), content.contains_key(&event.path));
                        match event.change.new {
                            Some(node) => drop(content.insert(event.path, node.payload)),
                            None => drop(content.remove(&event.path)),
                        }
                    }
                }
                let now: std::collections::BTreeMap<Path, _> = log
                    .machine
                    .tree()
                    .get_many(&pattern("/**"))
                    .into_iter()
                    .map(|(path, node)| (path, node.payload))
                    .collect();
                prop_assert_eq!(content, now);
            }
        }
    }
}
