//! What arrives from other members: who may say what, and the shapes in which Raft would break.

use raft::eraftpb::MessageType;
use rustc_hash::FxHashMap;
use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};

use super::group::Group;
use super::output::StopReason;
use super::shared::Shared;
use super::vouch::Vouched;
use super::{Driver, wire};
use crate::machine::StateMachine;

impl<M: StateMachine> Driver<M> {
    /// A message from a member on `from`.
    pub fn step(&mut self, from: NodeId, message: RaftMessage) {
        let group = GroupId(message.group);
        if self.index.contains_key(&group) {
            self.with(group, |g, shared| g.receive(from, message, shared));
        } else {
            self.early.keep(self.shared.tick, from, message);
        }
    }
}

impl<M: StateMachine> Group<M> {
    fn receive(&mut self, from: NodeId, mut message: RaftMessage, shared: &mut Shared) {
        if self.is_faulted() || !self.admits(from, &message) {
            tracing::debug!(group = self.id.0, from = from.0, kind = message.kind, "raft message dropped");
            return;
        }
        let uid = message.from_uid;
        let kind = message.kind();
        if matches!(kind, RaftMessageKind::RaftAppend | RaftMessageKind::RaftHeartbeat | RaftMessageKind::RaftSnapshot)
        {
            self.heard_from_leader(uid, from);
        }
        if matches!(kind, RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote) {
            self.heard_from_candidate(uid, from);
        }
        if let Some(range) = message.supported {
            self.note_range(uid, range);
        }
        if matches!(
            kind,
            RaftMessageKind::RaftHibernate | RaftMessageKind::RaftHibernateResponse | RaftMessageKind::RaftWake
        ) {
            self.on_sleep_message(&message, shared);
            return;
        }
        self.wake_for(&message, shared);
        if kind == RaftMessageKind::RaftSnapshot {
            let term = message.term;
            if let Some(step) = message.snapshot.take() {
                self.on_snapshot_step(uid, term, step, shared);
            }
            self.settle_election(shared);
            return;
        }
        let Some(mut message) = wire::message_from_wire(message) else {
            tracing::warn!(group = self.id.0, from = from.0, "malformed raft message dropped");
            return;
        };
        match message.get_msg_type() {
            MessageType::MsgHeartbeat => self.doubt_commit(&mut message, shared),
            MessageType::MsgHeartbeatResponse if message.reject => self.member_doubts(&message, shared),
            MessageType::MsgAppendResponse if message.reject && self.is_stale_rejection(&message) => return,
            _ => {}
        }
        let acknowledges = message.get_msg_type() == MessageType::MsgAppendResponse;
        let appends = Vouched::by(&message);
        // Raft refuses what does not fit its state; nothing follows from it.
        let _ = self.raw.step(message);
        self.settle_election(shared);
        self.vouch(appends);
        if acknowledges {
            self.maybe_promote();
        }
    }

    /// Group, member and node must match what this member knows; the votes and answers of who is no member do not count.
    fn admits(&self, from: NodeId, message: &RaftMessage) -> bool {
        if message.to_uid != self.me.0 || message.from_uid == self.me.0 || message.from_uid == 0 {
            return false;
        }
        let member = self.state.membership.member(MemberUid(message.from_uid));
        if member.is_some_and(|m| m.node != from) {
            return false;
        }
        let blocked = matches!(self.stop, Some(StopReason::BlockedOnVersion(_)));
        match message.kind() {
            // A leader may have joined after everything that this member knows; its term decides.
            RaftMessageKind::RaftAppend | RaftMessageKind::RaftHeartbeat | RaftMessageKind::RaftSnapshot => true,
            RaftMessageKind::RaftTimeoutNow => member.is_some() && !blocked && self.amnesia.is_none(),
            // So may a candidate have, and this member's vote may be the one that it lacks; its log decides. The removed
            // and the unknown do not push a leader aside, though.
            RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote => {
                let able = message.supported.is_some_and(|range| self.may_lead(range));
                let polite = member.is_some() || message.context.is_empty();
                polite && able && self.amnesia.is_none()
            }
            RaftMessageKind::RaftAppendResponse
            | RaftMessageKind::RaftVoteResponse
            | RaftMessageKind::RaftPreVoteResponse
            | RaftMessageKind::RaftHeartbeatResponse
            | RaftMessageKind::RaftReadIndex
            | RaftMessageKind::RaftReadIndexResponse
            | RaftMessageKind::RaftHibernate
            | RaftMessageKind::RaftHibernateResponse
            | RaftMessageKind::RaftWake => member.is_some(),
            RaftMessageKind::RaftUnspecified => false,
        }
    }

    /// raft 0.7.0 believes a rejection that comes late and then probes at or below what the member is known to have
    /// (tikv/raft-rs #557). Such a rejection says nothing new.
    fn is_stale_rejection(&mut self, message: &raft::eraftpb::Message) -> bool {
        if message.term != self.raw.raft.term || message.request_snapshot != raft::INVALID_INDEX {
            return false;
        }
        let Some(progress) = self.raw.raft.mut_prs().get_mut(message.from) else { return false };
        let stale = message.index <= progress.matched || message.reject_hint < progress.matched;
        if stale {
            progress.recent_active = true;
        }
        stale
    }

    /// Messages to a node get lost: what was sent to its members is not taken for received.
    pub fn peer_unreachable(&mut self, node: NodeId) -> bool {
        if !self.is_raft_leader() || self.is_faulted() {
            return false;
        }
        let lost = self.members_on(node);
        for uid in &lost {
            self.raw.report_unreachable(uid.0);
        }
        !lost.is_empty()
    }

    fn members_on(&self, node: NodeId) -> Vec<MemberUid> {
        self.state.membership.members.iter().filter(|m| m.node == node).map(|m| m.uid).collect()
    }

    /// A node answers again.
    pub fn peer_reachable(&mut self, node: NodeId) {
        for uid in self.members_on(node) {
            self.raw.mut_store().forgive(uid.0);
        }
        self.raw.ping();
    }

    /// One tick; answers whether there is anything to do then. `look_deeper` now and then, for what needs no haste.
    pub fn tick(&mut self, look_deeper: bool, shared: &mut Shared) -> bool {
        if self.is_faulted() {
            return false;
        }
        self.raw.mut_store().set_tick(shared.tick);
        self.tick_raft(shared);
        self.tick_reads(shared);
        self.tick_machine(shared);
        self.tick_sending(shared);
        self.tick_receiving(shared);
        if look_deeper {
            self.maybe_promote();
            self.maybe_raise_version();
            self.maybe_snapshot(false, shared);
            if !self.is_busy(shared.tick) {
                let applied = self.state.applied;
                self.raw.mut_store().trim(applied, 0);
            }
        }
        self.tick_sleep(shared);
        self.sleep.asleep || self.raw.has_ready() || self.has_waiting()
    }

    /// Whether anything was appended lately.
    pub fn is_busy(&self, tick: u64) -> bool {
        tick - self.last_append <= IDLE_TICKS
    }

    fn has_waiting(&self) -> bool {
        !self.queue.is_empty() || self.reads.is_waiting()
    }
}

/// Ticks without an append after which a group's log is no longer kept in memory.
const IDLE_TICKS: u64 = 50;

/// Requests for votes in groups that this node does not have yet: its creation may be a moment behind another's.
#[derive(Default)]
pub(crate) struct EarlyMail(FxHashMap<GroupId, (u64, Vec<(NodeId, RaftMessage)>)>);

/// Bounds of the early mail: groups, messages for each, and ticks.
const EARLY_GROUPS: usize = 1024;
const EARLY_MESSAGES: usize = 8;
const EARLY_TICKS: u64 = 50;

impl EarlyMail {
    fn keep(&mut self, tick: u64, from: NodeId, message: RaftMessage) {
        if !matches!(message.kind(), RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote) {
            return;
        }
        let group = GroupId(message.group);
        if self.0.len() >= EARLY_GROUPS && !self.0.contains_key(&group) {
            return;
        }
        let (at, kept) = self.0.entry(group).or_default();
        *at = tick;
        kept.retain(|(_, m)| (m.from_uid, m.kind) != (message.from_uid, message.kind));
        if kept.len() < EARLY_MESSAGES {
            kept.push((from, message));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn take(&mut self, group: GroupId) -> Vec<(NodeId, RaftMessage)> {
        self.0.remove(&group).map(|(_, kept)| kept).unwrap_or_default()
    }

    pub fn expire(&mut self, tick: u64) {
        if !self.0.is_empty() {
            self.0.retain(|_, (at, _)| *at + EARLY_TICKS >= tick);
        }
    }
}
