//! What must hold, whatever happens. The judge sees every node, every disk and every client at once.

mod queue_book;
mod raft_book;

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::Mutex;
use warren_proto::ids::{GroupId, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};
use warren_raft::driver::GroupStatus;

pub use queue_book::QueueBook;
use raft_book::RaftBook;

use crate::disk::SimDisk;

/// The judge, as members of all nodes hold it.
pub type SharedJudge = Arc<Mutex<Judge>>;

/// A node's disk and its name.
pub type Disks = Vec<(NodeId, Arc<SimDisk>)>;

/// Keeps the books of one run.
#[derive(Default)]
pub struct Judge {
    wrong: Option<String>,
    disks: Disks,
    groups: BTreeMap<GroupId, RaftBook>,
    queues: BTreeMap<GroupId, QueueBook>,
    /// Whether promises are compared with the disk when they leave. Without, only what follows from a broken one shows.
    promises: bool,
}

impl Judge {
    /// A judge over these disks.
    pub fn new(disks: Disks, promises: bool) -> Self {
        Judge { disks, promises, ..Judge::default() }
    }

    /// Something that must not be. The first one counts.
    pub fn wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// What was wrong first, if anything.
    pub fn verdict(&self) -> Option<&str> {
        self.wrong.as_deref()
    }

    fn check(&mut self, group: GroupId, result: Result<(), String>) {
        if let Err(what) = result {
            self.wrong(|| format!("group {group}: {what}"));
        }
    }

    fn group(&mut self, group: GroupId) -> &mut RaftBook {
        self.groups.entry(group).or_default()
    }

    /// The book of a queue.
    pub fn queue(&mut self, group: GroupId) -> &mut QueueBook {
        self.queues.entry(group).or_default()
    }

    /// The books of all queues.
    pub fn queues(&self) -> impl Iterator<Item = (GroupId, &QueueBook)> {
        self.queues.iter().map(|(group, book)| (*group, book))
    }

    /// A member is about to apply an entry with commands. Answers whether it is the first to do so.
    pub fn applying(&mut self, node: NodeId, group: GroupId, index: u64, term: u64, commands: u64) -> bool {
        let (first, result) = self.group(group).applying(node, index, term, commands);
        self.check(group, result);
        first
    }

    /// A member's replicated state at an index.
    pub fn state(&mut self, node: NodeId, group: GroupId, index: u64, digest: u64) {
        let result = self.group(group).state(node, index, digest);
        self.check(group, result);
    }

    /// A member as it is after its turn.
    pub fn status(&mut self, node: usize, life: u64, status: &GroupStatus) {
        let disks = std::mem::take(&mut self.disks);
        let result = self.group(status.group).status(&disks, node, life, status);
        self.disks = disks;
        self.check(status.group, result);
    }

    /// A message leaves a node.
    pub fn sent(&mut self, from: usize, message: &RaftMessage) {
        let group = GroupId(message.group);
        let result = self.group(group).vote_sent(message);
        self.check(group, result);
        if self.promises {
            let result = self.promise(from, message);
            self.check(group, result);
        }
    }

    /// What a message promises is durable where it comes from.
    fn promise(&self, from: usize, message: &RaftMessage) -> Result<(), String> {
        let group = GroupId(message.group);
        let Some((node, disk)) = self.disks.get(from) else { return Ok(()) };
        match message.kind() {
            RaftMessageKind::RaftVote => {
                let hard = disk.hard_state(group).unwrap_or_default();
                let kept = hard.term > message.term || (hard.term, hard.vote) == (message.term, message.from_uid);
                if !kept {
                    return Err(format!("node {node} stands in term {} and its disk says {hard:?}", message.term));
                }
            }
            RaftMessageKind::RaftVoteResponse if !message.reject => {
                let hard = disk.hard_state(group).unwrap_or_default();
                let kept = hard.term > message.term || (hard.term, hard.vote) == (message.term, message.to_uid);
                if !kept {
                    return Err(format!("node {node} votes in term {} and its disk says {hard:?}", message.term));
                }
            }
            RaftMessageKind::RaftAppendResponse if !message.reject => {
                let last = disk.last_index(group);
                if last < message.index {
                    return Err(format!("node {node} has {} and its disk ends at {last}", message.index));
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A client was told that an operation of this group is done, which was applied at this index.
    pub fn acknowledged(&mut self, group: GroupId, index: u64) {
        let disks = std::mem::take(&mut self.disks);
        let book = self.group(group);
        book.acknowledged = book.acknowledged.max(index);
        let result = book.durable(group, &disks, index);
        self.disks = disks;
        self.check(group, result);
    }

    /// A publish was confirmed to its publisher.
    pub fn confirmed(&mut self, group: GroupId, uid: u64) {
        match self.queue(group).confirmed(uid) {
            Ok(index) => self.acknowledged(group, index),
            Err(what) => self.check(group, Err(what)),
        }
    }

    /// The highest index of which a client knows that it was applied.
    pub fn acknowledged_index(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |book| book.acknowledged)
    }

    /// The highest index that any member knew to be committed.
    pub fn committed(&self, group: GroupId) -> u64 {
        self.groups.get(&group).map_or(0, |book| book.committed)
    }
}
