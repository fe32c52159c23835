//! Requests on their way into the log: everything that waits becomes as few entries as the limits allow.

use raft::eraftpb::{self, MessageType};
use warren_proto::batch::MAX_COMMANDS;

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
            let cx = self.cx(shared);
            self.state.machine.tick(&mut self.builder, &cx);
            self.propose_batch(shared);
        }
    }
}

/// How often a leader's machine is ticked when it asks for nothing sooner.
const MACHINE_TICK_MS: u64 = 1000;
