//! What must hold, whatever happens. The judge sees every node, every disk and every client at once.

mod departures;
mod ledger;
mod queue_book;
mod raft_book;
mod register_book;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};
use warren_raft::driver::GroupStatus;
use warren_raft::log_store::{HardState, LogStore};

pub use departures::Departures;
pub use queue_book::{Enqueued, QueueBook};
use raft_book::RaftBook;
pub use register_book::RegisterBook;

use crate::disk::{Forgetting, Held, SimDisk};
use crate::queues::QueuePlan;

/// The judge, as members of all nodes hold it.
pub type SharedJudge = Arc<Mutex<Judge>>;

/// A node's disk and its name.
pub type Disks = Vec<(NodeId, Arc<SimDisk>)>;

/// What a member's disk has forgotten.
#[derive(Debug, Clone, Copy, Default)]
struct Gap {
    /// A committed index beyond what is left, where the member knows of one.
    known: Option<u64>,
    /// The end of the log before it was forgotten.
    end: u64,
    /// The term in which it found out: a vote of that term may have been on its way to the disk.
    found_in: u64,
}

/// Keeps the books of one run.
#[derive(Default)]
pub struct Judge {
    wrong: Option<String>,
    disks: Disks,
    groups: BTreeMap<GroupId, RaftBook>,
    queues: BTreeMap<GroupId, QueueBook>,
    registers: RegisterBook,
    /// Members whose disks have forgotten something, and up to where those that found out know that they have.
    forgetful: BTreeMap<MemberUid, Gap>,
    /// Members that are gone with their disks.
    lost: BTreeSet<MemberUid>,
    /// Whether it compares what nodes do with their disks and queues at once; see [`Watch`](crate::run::Watch).
    looks_inside: bool,
}

impl Judge {
    /// A judge over these disks, which looks at them or only at what comes of it all.
    pub fn new(disks: Disks, looks_inside: bool) -> Self {
        Judge { disks, looks_inside, ..Judge::default() }
    }

    /// Something that must not be. The first one counts.
    pub fn wrong(&mut self, what: impl FnOnce() -> String) {
        if self.wrong.is_none() {
            self.wrong = Some(what());
        }
    }

    /// What clients saw of the shared registers.
    pub fn registers(&mut self) -> &mut RegisterBook {
        &mut self.registers
    }

    /// Every call on shared registers took effect at one moment.
    pub fn check_registers(&mut self) {
        if let Err(what) = self.registers.check() {
            self.wrong(|| what);
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

    /// The first member applied a publish.
    pub fn enqueued(&mut self, group: GroupId, uid: u64, enqueued: &Enqueued<'_>) {
        let result = self.queue(group).enqueued(uid, enqueued);
        if self.looks_inside {
            self.check(group, result);
        }
    }

    /// Opens the book of a queue.
    pub fn open_queue(&mut self, group: GroupId, plan: &QueuePlan) {
        self.queues.insert(group, QueueBook::new(group, plan));
    }

    /// The book of a queue.
    pub fn queue(&mut self, group: GroupId) -> &mut QueueBook {
        self.queues.entry(group).or_insert_with(|| QueueBook::new(group, &QueuePlan::default()))
    }

    /// Something that a client sees of a queue, which must be as the book says.
    pub fn seen(&mut self, group: GroupId, f: impl FnOnce(&mut QueueBook) -> Result<(), String>) {
        let result = f(self.queue(group));
        self.check(group, result);
    }

    /// The queues are empty and nobody holds anything.
    pub fn check_drained(&mut self) {
        let looks_inside = self.looks_inside;
        let checked: Vec<_> = self
            .queues
            .iter()
            .map(|(group, book)| {
                let target = book.dead_letters_to.and_then(|target| self.queues.get(&target));
                let result = book.check_drained(looks_inside);
                (*group, result.and_then(|()| target.map_or(Ok(()), |target| book.check_dead_letters(target))))
            })
            .collect();
        checked.into_iter().for_each(|(group, result)| self.check(group, result));
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
        let looks = self.looks_inside;
        let book = self.group(status.group);
        let result = book.status(node, life, disks[node].0, status);
        let result = result.and_then(|()| if looks { book.compare_disks(&disks, node, status) } else { Ok(()) });
        self.disks = disks;
        self.check(status.group, result);
    }

    /// A member is gone with its disk: it is not to take part again.
    pub fn lost(&mut self, member: MemberUid) {
        self.lost.insert(member);
    }

    /// A node that lies dead has a disk that forgets up to `most` of the writes that it said were synced: so many that
    /// honest disks have all that is lost with them. Answers how many.
    pub fn forget(&mut self, node: usize, most: usize) -> usize {
        let disks = std::mem::take(&mut self.disks);
        let bears = |count: &usize| disks[node].1.forgetting(*count).iter().all(|lost| self.bears_loss(&disks, lost));
        let count = (1..=most).take_while(bears).last().unwrap_or(0);
        let lost = disks[node].1.forgetting(count);
        let result = if count > 0 { disks[node].1.forget(count) } else { Ok(()) };
        if let Err(error) = result {
            self.wrong(|| format!("node {node} wrote what no store can take: {error}"));
        }
        for lost in lost {
            let gap = self.forgetful.entry(lost.member).or_default();
            gap.end = gap.end.max(lost.last.0);
        }
        self.disks = disks;
        count
    }

    /// Whether a node's member lacks something that its disk has forgotten.
    pub fn lacks(&self, node: usize, group: GroupId, member: MemberUid) -> bool {
        let written = self.disks.get(node).map_or(0, |(_, disk)| disk.written(group, member));
        self.forgetful.get(&member).is_some_and(|gap| written < gap.end.max(gap.known.unwrap_or(0)))
    }

    /// A node died: who had found out that entries are lost remembers it, if that is written.
    pub fn died(&mut self, node: usize) {
        let records = self.disks.get(node).map(|(_, disk)| disk.groups().unwrap_or_default());
        for record in records.unwrap_or_default() {
            if let Some(gap) = self.forgetful.get_mut(&record.me) {
                gap.known = gap.known.filter(|known| record.hard_state.commit >= *known);
            }
        }
    }

    /// Whether a majority without this member has whatever the member acknowledged, and backs its votes.
    fn bears_loss(&self, disks: &Disks, lost: &Forgetting) -> bool {
        let Some(book) = self.groups.get(&lost.group) else { return false };
        let holds = |node: NodeId, uid: MemberUid| {
            let Some((_, disk)) = disks.iter().find(|(id, _)| *id == node) else { return false };
            let (index, term) = lost.last;
            let held = disk.held_now(lost.group, uid, index);
            let backs = |vote: &HardState| {
                let own = disk.hard_state(lost.group, uid);
                own.term > vote.term || (own.term, own.vote) == (vote.term, vote.vote)
            };
            (held == Held::Covered || held == Held::Entry(term)) && lost.votes.iter().all(backs)
        };
        book.without(lost.member, &holds)
    }

    /// A member found out that its log is shorter than what is committed.
    pub fn found_loss(&mut self, node: usize, group: GroupId, member: MemberUid, commit: u64, term: u64) {
        match self.forgetful.get_mut(&member) {
            Some(gap) => (gap.known, gap.found_in) = (Some(commit), term),
            None => self.wrong(|| format!("node {node} lost entries up to {commit} of group {group}")),
        }
    }

    /// Who knows that entries are lost neither votes nor stands before they are there again.
    fn abstains(&mut self, from: usize, message: &RaftMessage) -> Result<(), String> {
        let member = MemberUid(message.from_uid);
        let Some(Gap { known: Some(lost), found_in, .. }) = self.forgetful.get(&member) else { return Ok(()) };
        let grants = match message.kind() {
            RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote => true,
            RaftMessageKind::RaftVoteResponse => !message.reject && message.term != *found_in,
            RaftMessageKind::RaftPreVoteResponse => !message.reject,
            _ => false,
        };
        let written = self.disks.get(from).map_or(0, |(_, disk)| disk.written(GroupId(message.group), member));
        if grants && written < *lost {
            return Err(format!("member {member} knows that it lost entries up to {lost}, has {written}, and votes"));
        }
        Ok(())
    }

    /// The index of the newest membership that any member knew to be committed, unless a change is under way.
    pub fn newest_membership(&self, group: GroupId) -> Option<u64> {
        self.groups.get(&group)?.newest_membership()
    }

    /// A message leaves a node.
    pub fn sent(&mut self, from: usize, message: &RaftMessage) {
        let group = GroupId(message.group);
        let result = self.group(group).vote_sent(message);
        self.check(group, result);
        // Who passes a late read on to the leader lets it speak for whoever asked.
        let passed_on = message.kind() == RaftMessageKind::RaftReadIndex;
        if self.looks_inside && !passed_on && self.lost.contains(&MemberUid(message.from_uid)) {
            let (member, kind) = (message.from_uid, message.kind());
            self.wrong(|| format!("group {group}: member {member} is lost with its disk and says {kind:?}"));
        }
        if self.looks_inside {
            let result = self.promise(from, message).and_then(|()| self.abstains(from, message));
            self.check(group, result);
        }
    }

    /// What a message promises is durable where it comes from.
    fn promise(&self, from: usize, message: &RaftMessage) -> Result<(), String> {
        let group = GroupId(message.group);
        let Some((node, disk)) = self.disks.get(from) else { return Ok(()) };
        match message.kind() {
            RaftMessageKind::RaftVote => {
                let hard = disk.hard_state(group, MemberUid(message.from_uid));
                let kept = hard.term > message.term || (hard.term, hard.vote) == (message.term, message.from_uid);
                if !kept {
                    return Err(format!("node {node} stands in term {} and its disk says {hard:?}", message.term));
                }
            }
            RaftMessageKind::RaftVoteResponse if !message.reject => {
                let hard = disk.hard_state(group, MemberUid(message.from_uid));
                let kept = hard.term > message.term || (hard.term, hard.vote) == (message.term, message.to_uid);
                if !kept {
                    return Err(format!("node {node} votes in term {} and its disk says {hard:?}", message.term));
                }
            }
            RaftMessageKind::RaftAppendResponse if !message.reject => {
                let last = disk.written(group, MemberUid(message.from_uid));
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
        let book = self.group(group);
        book.acknowledged = book.acknowledged.max(index);
        if !self.looks_inside {
            return;
        }
        let disks = std::mem::take(&mut self.disks);
        let result = self.group(group).still_durable(group, &disks, index);
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
