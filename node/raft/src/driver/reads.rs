//! Linearizable reads: a read index is asked for again until a leader confirms it, since Raft drops a request silently
//! where no leader is ready.

use std::collections::VecDeque;

use warren_proto::ids::MemberUid;

use super::config::mix;
use super::group::Group;
use super::output::Event;
use super::shared::Shared;
use crate::machine::StateMachine;

/// Reads of one group that may wait at once; more fail at once.
const MAX_WAITING: usize = 1 << 16;

pub(crate) struct Reads {
    /// Different for each member and process start: a leader takes a request for a repetition by its key.
    nonce: u64,
    next: u64,
    waiting: Vec<Waiting>,
    asked: VecDeque<Asked>,
    confirmed: Vec<(u64, Vec<Waiting>)>,
}

#[derive(Clone, Copy)]
struct Waiting {
    ctx: u64,
    since: u64,
}

struct Asked {
    key: u64,
    at: u64,
    reads: Vec<Waiting>,
}

impl Reads {
    pub fn new(seed: u64, me: MemberUid) -> Self {
        Reads {
            nonce: mix(&[seed, me.0, 0x7265_6164]),
            next: 0,
            waiting: Vec::new(),
            asked: VecDeque::new(),
            confirmed: Vec::new(),
        }
    }

    pub fn is_waiting(&self) -> bool {
        !self.waiting.is_empty()
    }

    /// Whether nobody reads.
    pub fn is_idle(&self) -> bool {
        self.waiting.is_empty() && self.asked.is_empty() && self.confirmed.is_empty()
    }

    fn key(&self, key: u64) -> Vec<u8> {
        let mut out = Vec::with_capacity(16);
        out.extend_from_slice(&self.nonce.to_le_bytes());
        out.extend_from_slice(&key.to_le_bytes());
        out
    }

    /// A leader confirmed the request with this key at `index`.
    pub fn confirmed(&mut self, index: u64, key: &[u8]) {
        let at = self.asked.iter().position(|a| self.key(a.key) == key);
        if let Some(asked) = at.and_then(|at| self.asked.remove(at)) {
            self.confirmed.push((index, asked.reads));
        }
    }
}

impl<M: StateMachine> Group<M> {
    /// Asks for a point in the log that covers everything committed before now.
    pub fn read_index(&mut self, ctx: u64, shared: &mut Shared) {
        if self.stop.is_some() || self.reads.waiting.len() >= MAX_WAITING {
            shared.events.push(Event::Read { group: self.id, ctx, index: None });
        } else {
            self.wake(shared);
            self.reads.waiting.push(Waiting { ctx, since: shared.tick });
        }
    }

    /// All reads that wait go out as one request, where somebody can answer it.
    pub fn ask_reads(&mut self) {
        if self.reads.waiting.is_empty() {
            return;
        }
        let raft = &self.raw.raft;
        let answerable =
            if self.is_raft_leader() { raft.commit_to_current_term() } else { raft.leader_id != raft::INVALID_ID };
        if !answerable {
            return;
        }
        let key = self.reads.next;
        self.reads.next += 1;
        let reads = std::mem::take(&mut self.reads.waiting);
        let at = self.raw.store().tick();
        self.reads.asked.push_back(Asked { key, at, reads });
        let ctx = self.reads.key(key);
        self.raw.read_index(ctx);
    }

    /// Answers the reads whose index is applied.
    pub fn finish_reads(&mut self, shared: &mut Shared) {
        let applied = self.state.applied;
        for (index, reads) in self.reads.confirmed.extract_if(.., |(index, _)| *index <= applied) {
            let group = self.id;
            shared.events.extend(reads.iter().map(|r| Event::Read { group, ctx: r.ctx, index: Some(index) }));
        }
    }

    /// The group stops: nobody will confirm anything.
    pub fn fail_reads(&mut self, shared: &mut Shared) {
        let group = self.id;
        let reads = &mut self.reads;
        let asked = reads.asked.drain(..).flat_map(|a| a.reads);
        let confirmed = reads.confirmed.drain(..).flat_map(|(_, r)| r);
        let all = reads.waiting.drain(..).chain(asked).chain(confirmed);
        shared.events.extend(all.map(|r| Event::Read { group, ctx: r.ctx, index: None }));
    }

    /// Repeats requests without an answer, and gives up on old ones.
    pub fn tick_reads(&mut self, shared: &mut Shared) {
        let reads = &mut self.reads;
        if reads.is_idle() {
            return;
        }
        while reads.asked.front().is_some_and(|a| a.at + shared.config.read_retry_ticks <= shared.tick) {
            if let Some(asked) = reads.asked.pop_front() {
                reads.waiting.extend(asked.reads);
            }
        }
        let group = self.id;
        let oldest = shared.tick.saturating_sub(shared.config.read_deadline_ticks);
        let waiting = reads.waiting.extract_if(.., |r| r.since < oldest);
        shared.events.extend(waiting.map(|r| Event::Read { group, ctx: r.ctx, index: None }));
        for (_, confirmed) in &mut reads.confirmed {
            let late = confirmed.extract_if(.., |r| r.since < oldest);
            shared.events.extend(late.map(|r| Event::Read { group, ctx: r.ctx, index: None }));
        }
        reads.confirmed.retain(|(_, r)| !r.is_empty());
    }
}
