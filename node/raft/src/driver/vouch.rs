//! What a member can vouch for: disks that forget what they said was synced.
//!
//! A leader remembers what a member acknowledged, also across a restart of the member. Where the disk kept its word, the
//! member has it. Where it did not, the member's log is shorter, or ends in entries that had been overwritten; Raft would
//! panic over the first, and take the second for committed. So a member believes a heartbeat's commit index only as far
//! as it has, in this process, matched its log with that leader's. Beyond that it says so in its response, and the
//! leader, which then counts nothing as this member's any more, compares the logs anew. An honest member does so once
//! after a restart within its leader's term.
//!
//! A commit index beyond the end of the log proves that entries are lost: *amnesia*. Until a leader's log or snapshot has
//! covered the gap, such a member neither votes nor stands, also after another restart.

use raft::ProgressState;
use raft::eraftpb::{self, MessageType};
use warren_proto::peer::RaftMessage;

use super::config::Sabotage;
use super::group::Group;
use super::output::Event;
use super::shared::Shared;
use crate::machine::StateMachine;

/// How far this process has matched its log with a leader's.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Vouched {
    /// The leader's term.
    term: u64,
    index: u64,
    /// The leader takes it for more than this.
    doubted: bool,
}

/// The end of what an append brings: the leader's term, index and term of the last entry.
pub(crate) type Brought = (u64, u64, u64);

impl Vouched {
    /// What a message brings, if it is an append.
    pub fn by(message: &eraftpb::Message) -> Option<Brought> {
        let last = message.entries.last().map_or((message.index, message.log_term), |e| (e.index, e.term));
        (message.get_msg_type() == MessageType::MsgAppend).then_some((message.term, last.0, last.1))
    }

    fn in_term(self, term: u64) -> u64 {
        if self.term == term { self.index } else { 0 }
    }
}

impl<M: StateMachine> Group<M> {
    /// An append was handed to Raft: if the log holds all of it, it is matched so far.
    pub fn vouch(&mut self, brought: Option<Brought>) {
        let Some((term, index, entry_term)) = brought else { return };
        let raft = &self.raw.raft;
        if raft.term != term || !raft.raft_log.match_term(index, entry_term) {
            return;
        }
        if self.vouched.term != term {
            self.vouched = Vouched { term, ..Vouched::default() };
        }
        if index >= self.vouched.index {
            self.vouched.index = index;
            self.vouched.doubted = false;
        }
        self.covered_to(index);
    }

    /// The leader's log or snapshot covers what was lost up to this index.
    pub fn covered_to(&mut self, index: u64) {
        if let Some(lost) = self.amnesia.take_if(|lost| *lost <= index) {
            tracing::info!(group = self.id.0, lost, "what the disk had lost is here again");
        }
    }

    /// Takes from a heartbeat's commit index what this member cannot vouch for.
    pub fn doubt_commit(&mut self, message: &mut eraftpb::Message, shared: &mut Shared) {
        if shared.config.sabotage == Sabotage::BlindTrust {
            return;
        }
        if message.commit > self.last_index() {
            self.lost_entries(message.commit, shared);
        }
        let vouched = self.vouched.in_term(message.term).max(self.commit());
        self.vouched.doubted = message.commit > vouched;
        message.commit = message.commit.min(vouched);
    }

    /// A heartbeat's response says whether the leader's commit index is believed.
    pub fn vouch_or_doubt(&self, response: &mut RaftMessage) {
        if self.vouched.doubted {
            response.reject = true;
            response.reject_hint = self.last_index();
        }
    }

    /// A member cannot vouch for what it acknowledged: its log is compared anew, and until then it has nothing.
    pub fn member_doubts(&mut self, response: &eraftpb::Message, shared: &Shared) {
        let deaf = shared.config.sabotage == Sabotage::DeafToDoubt;
        if deaf || !self.is_raft_leader() || response.term != self.raw.raft.term {
            return;
        }
        self.wake(shared);
        let end = response.reject_hint.min(self.last_index());
        let Some(progress) = self.raw.raft.mut_prs().get_mut(response.from) else { return };
        progress.matched = 0;
        // A snapshot on its way covers the member better than entries would.
        if progress.state != ProgressState::Snapshot {
            progress.become_probe();
            progress.next_idx = end + 1;
        }
    }

    /// The log ends before something that this member once acknowledged.
    pub fn lost_entries(&mut self, commit: u64, shared: &mut Shared) {
        if self.amnesia.is_some_and(|known| known >= commit) {
            return;
        }
        let last_index = self.last_index();
        tracing::error!(group = self.id.0, commit, last_index, "the disk lost acknowledged entries");
        shared.events.push(Event::Amnesia { group: self.id, commit, last_index });
        if shared.config.sabotage != Sabotage::VotingAmnesiac {
            self.amnesia = Some(commit);
            self.remember_commit(shared);
        }
    }

    /// The commit index to be written: one that the log does not reach lets a restarted member know what it lost.
    pub fn commit_to_remember(&self) -> u64 {
        self.commit().max(self.amnesia.unwrap_or(0))
    }
}
