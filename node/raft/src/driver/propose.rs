//! Requests on their way into the log: everything that waits becomes as few entries as the limits allow.

use raft::eraftpb::{self, MessageType};
use warren_proto::batch::MAX_COMMANDS;
use warren_proto::ids::{MemberUid, NodeId};

use super::group::Group;
use super::output::StopReason;
use super::shared::Shared;
use crate::machine::{Refusal, Role, StateMachine};

/// Commands that one request may encode to, at most: a batch is closed with this much room left.
const MAX_COMMANDS_PER_REQUEST: usize = 64;

impl<M: StateMachine> Group<M> {
    /// Takes requests in, or refuses them.
    pub fn enqueue(&mut self, requests: impl Iterator<Item = M::Request>, shared: &mut Shared) {
        if let Some(why) = self.refusal() {
            for request in requests {
                self.refuse(request, why, shared);
            }
            return;
        }
        let limit = shared.config.max_queued_requests;
        for request in requests {
            if self.queue.len() < limit {
                self.queue.push_back(request);
            } else {
                self.refuse(request, Refusal::Busy, shared);
            }
        }
    }

    fn refusal(&self) -> Option<Refusal> {
        match (&self.stop, self.role) {
            (Some(StopReason::Faulted(_) | StopReason::BlockedOnVersion(_)), _) => Some(Refusal::Stopped),
            (None, Role::Follower) => Some(Refusal::NotLeader(self.leader)),
            // Waits for the first entry of the term: a moment.
            (None, Role::Elected | Role::Leader) => None,
        }
    }

    fn refuse(&mut self, request: M::Request, why: Refusal, shared: &Shared) {
        let cx = self.cx(shared);
        self.state.machine.refuse(request, why, &cx);
    }

    /// Gives back whatever waits.
    pub fn refuse_waiting(&mut self, shared: &Shared) {
        let why = self.refusal().unwrap_or(Refusal::NotLeader(self.leader));
        for request in std::mem::take(&mut self.queue) {
            self.refuse(request, why, shared);
        }
    }

    /// A ready leader appends what waits, as far as the limits on uncommitted entries allow.
    pub fn propose_waiting(&mut self, shared: &mut Shared) {
        if self.queue.is_empty() || self.role != Role::Leader || self.raw.raft.lead_transferee.is_some() {
            return;
        }
        let cx = self.cx(shared);
        while !self.queue.is_empty() && self.has_room(shared) {
            while !self.batch_is_full() {
                let Some(request) = self.queue.pop_front() else { break };
                self.state.machine.prepare(request, &mut self.builder, &cx);
            }
            self.propose_batch(shared);
        }
        if self.queue.is_empty() && self.queue.capacity() > 4096 {
            self.queue.shrink_to(64);
        }
    }

    fn has_room(&self, shared: &Shared) -> bool {
        (self.uncommitted.len() as u64) < shared.config.max_uncommitted_entries
            && (self.uncommitted_bytes as u64) < shared.config.max_uncommitted_bytes
    }

    fn batch_is_full(&self) -> bool {
        self.builder.is_full() || self.builder.len() + MAX_COMMANDS_PER_REQUEST > MAX_COMMANDS
    }

    /// Appends the batch gathered so far, if there is anything in it.
    pub fn propose_batch(&mut self, shared: &Shared) {
        if self.builder.is_empty() {
            return;
        }
        self.state.last_ts = self.state.last_ts.max(shared.now_ms);
        let data = self.builder.finish(self.state.last_ts);
        let entry = eraftpb::Entry { data, ..eraftpb::Entry::default() };
        let outcome = self.propose_entry(entry).ok_or(Refusal::Busy);
        let cx = self.cx(shared);
        self.state.machine.proposed(outcome, &cx);
    }

    /// Appends one entry; its index and term, or `None` where Raft would not take it.
    pub fn propose_entry(&mut self, entry: eraftpb::Entry) -> Option<(u64, u64)> {
        let (index, term) = (self.last_index() + 1, self.raw.raft.term);
        let bytes = entry.data.len();
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgPropose);
        message.from = self.me.0;
        message.set_entries(vec![entry].into());
        self.raw.step(message).ok()?;
        debug_assert_eq!(self.last_index(), index);
        self.uncommitted.push_back((index, bytes));
        self.uncommitted_bytes += bytes;
        Some((index, term))
    }

    /// The machine's own timer.
    pub fn tick_machine(&mut self, shared: &mut Shared) {
        if self.role != Role::Leader || self.stop.is_some() || self.raw.raft.lead_transferee.is_some() {
            return;
        }
        let due = shared.now_ms >= self.next_machine_tick
            || self.state.machine.wake_at().is_some_and(|at| shared.now_ms >= at);
        if due {
            self.next_machine_tick = shared.now_ms + MACHINE_TICK_MS;
            let current = self.keeping_up(shared);
            let cx = self.cx(shared);
            self.state.machine.followers(&current, &cx);
            self.state.machine.tick(&mut self.builder, &cx);
            self.propose_batch(shared);
        }
    }
}

impl<M: StateMachine> Group<M> {
    /// Nodes whose voters hold everything that was committed [`KEEPING_UP_MS`] ago, or since the last time that was
    /// asked if that was longer ago. None at the beginning of a term.
    fn keeping_up(&mut self, shared: &Shared) -> Vec<NodeId> {
        let mark = self.commit_mark;
        if mark.term != self.raw.raft.term || shared.now_ms >= mark.at_ms + KEEPING_UP_MS {
            let next = CommitMark {
                term: self.raw.raft.term,
                at_ms: shared.now_ms,
                commit: self.raw.raft.raft_log.committed,
                before: if mark.term == self.raw.raft.term { mark.commit } else { u64::MAX },
            };
            self.commit_mark = next;
        }
        let needed = self.commit_mark.before;
        let raft = &self.raw.raft;
        let holds = |uid: MemberUid| raft.prs().get(uid.0).is_some_and(|p| p.matched >= needed);
        let voters = self.state.membership.voters();
        voters.filter(|m| m.uid != self.me && holds(m.uid)).map(|m| m.node).collect()
    }
}

/// Where the log was committed to lately, to tell followers that keep up from those that do not.
#[derive(Debug, Clone, Copy, Default)]
pub struct CommitMark {
    term: u64,
    at_ms: u64,
    /// Committed then.
    commit: u64,
    /// Committed at the mark before, in the same term.
    before: u64,
}

/// What a follower may lag behind (spec: quorum-queues.md, section 6.9).
const KEEPING_UP_MS: u64 = 1000;
/// How often a leader's machine is ticked when it asks for nothing sooner.
const MACHINE_TICK_MS: u64 = 1000;
