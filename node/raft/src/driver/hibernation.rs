//! Groups without work sleep: no ticks, no heartbeats, nothing to send (spec: quorum-queues.md, section 10.2).
//!
//! A leader whose members all have everything asks them to sleep, and sleeps when all whose nodes are up have agreed. A
//! sleeper is woken by any message that tells it something, by an append of its own, and by the verdict that a node is
//! down or up where that concerns it. Who wakes without the leader's word tells the leader, so that nobody waits for
//! heartbeats of one that sleeps. Sleeping promises nothing: it only stops the clock by which a silent leader is found
//! out, and leaves that to the verdicts about nodes.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use raft::StateRole;
use warren_proto::ids::{MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind};

use super::Driver;
use super::config::Sabotage;
use super::group::Group;
use super::shared::Shared;
use crate::log_store::MemberRole;
use crate::machine::{Role, StateMachine};

/// Whether a member sleeps, and what its group is about to do about it.
#[derive(Default)]
pub(crate) struct Sleep {
    pub asleep: bool,
    /// Whether the driver ticks it.
    pub listed: bool,
    /// When the driver looks at its machine's timer, while it sleeps.
    pub timer_ms: Option<u64>,
    /// Tick of what last kept it awake.
    active_at: u64,
    asked: Option<Question>,
}

/// A leader's question, and who agreed.
struct Question {
    commit: u64,
    at: u64,
    agreed: Vec<MemberUid>,
}

/// Ticks after which the members that did not agree are asked again.
const ASK_AGAIN_TICKS: u64 = 10;

impl<M: StateMachine> Group<M> {
    /// Something happened: the member is awake, and a leader sees to it that all are.
    pub fn wake(&mut self, shared: &Shared) {
        self.sleep.active_at = shared.tick;
        self.sleep.asked = None;
        if !std::mem::replace(&mut self.sleep.asleep, false) {
            return;
        }
        self.raw.mut_store().set_tick(shared.tick);
        // The time that it slept is nobody's silence.
        self.raw.raft.election_elapsed = 0;
        self.settle_election(shared);
        if self.is_raft_leader() {
            self.raw.ping();
        }
    }

    /// A message arrived while the member slept.
    pub fn wake_for(&mut self, message: &RaftMessage, shared: &mut Shared) {
        if !self.sleep.asleep || self.tells_nothing(message) {
            return;
        }
        self.wake(shared);
        self.rouse_leader(message.from_uid, shared);
    }

    /// A leader's heartbeat to a member that has everything, or the answer to one.
    fn tells_nothing(&self, message: &RaftMessage) -> bool {
        let raft = &self.raw.raft;
        message.term == raft.term
            && match message.kind() {
                RaftMessageKind::RaftHeartbeat => {
                    raft.leader_id == message.from_uid && message.commit <= raft.raft_log.committed
                }
                RaftMessageKind::RaftHeartbeatResponse => self.is_raft_leader() && !message.reject,
                _ => false,
            }
    }

    /// The leader, unless it said so itself, hears that this member is awake and waits for its word.
    fn rouse_leader(&mut self, told_by: u64, shared: &mut Shared) {
        let leader = self.raw.raft.leader_id;
        if leader != raft::INVALID_ID && leader != told_by && leader != self.me.0 {
            self.send_plain(leader, RaftMessageKind::RaftWake, shared);
        }
    }

    /// Nobody leads any more, as far as this member knows: whoever sleeps is to find that out.
    pub fn rouse_all(&mut self, shared: &mut Shared) {
        let others: Vec<u64> =
            self.state.membership.members.iter().map(|m| m.uid.0).filter(|u| *u != self.me.0).collect();
        for uid in others {
            self.send_plain(uid, RaftMessageKind::RaftWake, shared);
        }
    }

    fn send_plain(&mut self, to: u64, kind: RaftMessageKind, shared: &mut Shared) {
        let raft = &self.raw.raft;
        let message = RaftMessage {
            group: self.id.0,
            from_uid: self.me.0,
            to_uid: to,
            kind: kind.into(),
            term: raft.term,
            commit: raft.raft_log.committed,
            ..RaftMessage::default()
        };
        self.send(to, message, 0, shared);
    }

    /// A message about sleeping.
    pub fn on_sleep_message(&mut self, message: &RaftMessage, shared: &mut Shared) {
        match message.kind() {
            RaftMessageKind::RaftHibernate => self.asked_to_sleep(message, shared),
            RaftMessageKind::RaftHibernateResponse => self.agreed(message, shared),
            RaftMessageKind::RaftWake if self.sleep.asleep => {
                self.wake(shared);
                self.rouse_leader(message.from_uid, shared);
            }
            RaftMessageKind::RaftWake if self.is_raft_leader() => self.raw.ping(),
            _ => {}
        }
    }

    fn asked_to_sleep(&mut self, message: &RaftMessage, shared: &mut Shared) {
        let raft = &self.raw.raft;
        let of_leader = raft.state == StateRole::Follower
            && message.term == raft.term
            && message.from_uid == raft.leader_id
            && self.node_of(message.from_uid).is_some_and(|node| !shared.down.contains(&node));
        // No answer is a no: the leader asks again.
        if of_leader && self.has_nothing_to_do() && message.commit == self.last_index() {
            self.fall_asleep();
            self.send_plain(message.from_uid, RaftMessageKind::RaftHibernateResponse, shared);
        }
    }

    fn agreed(&mut self, message: &RaftMessage, shared: &mut Shared) {
        if message.term != self.raw.raft.term {
            return;
        }
        if let Some(question) = self.sleep.asked.as_mut().filter(|q| q.commit == message.commit) {
            let uid = MemberUid(message.from_uid);
            if !question.agreed.contains(&uid) {
                question.agreed.push(uid);
            }
            self.sleep_if_agreed(shared);
        }
    }

    /// Everything that the log holds is durable, committed and applied here, and nobody waits for anything.
    fn has_nothing_to_do(&self) -> bool {
        let log = &self.raw.raft.raft_log;
        let last = log.last_index();
        self.stop.is_none()
            && self.amnesia.is_none()
            && !self.alone
            && (log.committed, log.persisted, self.state.applied) == (last, last, last)
            && self.queue.is_empty()
            && self.reads.is_idle()
            && self.changes.is_empty()
            && self.sending.is_empty()
            && self.receiving.is_none()
            && self.installing.is_none()
            && !self.snapshots.is_writing()
            && !self.waits_for_disk()
            && !self.raw.raft.has_pending_conf()
            && !self.state.membership.is_joint()
            && !self.raw.has_ready()
    }

    /// Sends a group that has nothing to do to sleep. One of the things that a tick sees to.
    pub fn tick_sleep(&mut self, shared: &mut Shared) {
        if shared.config.hibernate_ticks == 0 || self.sleep.asleep {
            return;
        }
        if self.is_raft_leader() {
            self.ask_to_sleep(shared);
        } else if self.cannot_elect(shared) {
            self.fall_asleep();
        }
    }

    fn ask_to_sleep(&mut self, shared: &mut Shared) {
        if !self.may_sleep(shared) {
            self.sleep.asked = None;
            return;
        }
        let commit = self.last_index();
        let waits = |q: &Question| q.commit == commit && shared.tick < q.at + ASK_AGAIN_TICKS;
        if !self.sleep.asked.as_ref().is_some_and(waits) {
            self.sleep.asked = Some(Question { commit, at: shared.tick, agreed: Vec::new() });
            for uid in self.others_up(shared) {
                self.send_plain(uid.0, RaftMessageKind::RaftHibernate, shared);
            }
        }
        self.sleep_if_agreed(shared);
    }

    /// The other members, without those whose nodes are down: these are seen to when they are back.
    fn others_up(&self, shared: &Shared) -> Vec<MemberUid> {
        let others =
            self.state.membership.members.iter().filter(|m| m.uid != self.me && !shared.down.contains(&m.node));
        others.map(|m| m.uid).collect()
    }

    fn may_sleep(&self, shared: &Shared) -> bool {
        let raft = &self.raw.raft;
        let quiet = self.role == Role::Leader
            && shared.tick >= self.sleep.active_at + shared.config.hibernate_ticks
            && raft.lead_transferee.is_none()
            && self.uncommitted.is_empty()
            && !shared.stalled
            && self.has_nothing_to_do();
        let members = &self.state.membership.members;
        let settled = |uid: MemberUid, role: MemberRole| {
            let has_all = raft.prs().get(uid.0).is_some_and(|p| p.matched == self.last_index());
            // A learner that is to vote, and a version to be raised, come first.
            has_all && !matches!(role, MemberRole::Promotable { .. }) && self.ranges.of(uid).is_some()
        };
        quiet
            && self.has_quorum_up(shared)
            && self.version_to_raise().is_none()
            && members.iter().all(|m| m.uid == self.me || shared.down.contains(&m.node) || settled(m.uid, m.role))
    }

    fn has_quorum_up(&self, shared: &Shared) -> bool {
        let voters = self.state.membership.voters().count();
        let up = self.state.membership.voters().filter(|m| m.uid == self.me || !shared.down.contains(&m.node)).count();
        up > voters / 2
    }

    fn sleep_if_agreed(&mut self, shared: &Shared) {
        let Some(question) = &self.sleep.asked else { return };
        let agreed = question.commit == self.last_index()
            && self.others_up(shared).iter().all(|uid| question.agreed.contains(uid))
            && self.may_sleep(shared);
        if agreed {
            self.fall_asleep();
        }
    }

    /// Without a leader, and with too many nodes down to elect one: only a verdict or a message can change that.
    fn cannot_elect(&self, shared: &Shared) -> bool {
        self.stop.is_none()
            && self.raw.raft.leader_id == raft::INVALID_ID
            && !self.state.membership.is_joint()
            && self.installing.is_none()
            && self.reads.is_idle()
            && !self.waits_for_disk()
            && !self.has_quorum_up(shared)
    }

    fn fall_asleep(&mut self) {
        self.sleep.asleep = true;
        self.sleep.asked = None;
        let applied = self.state.applied;
        self.raw.mut_store().trim(applied, 0);
        self.queue.shrink_to_fit();
        self.uncommitted.shrink_to_fit();
    }

    /// The verdict about a node changed. Answers whether that concerns this member.
    pub fn node_changed(&mut self, node: NodeId, up: bool, shared: &mut Shared) -> bool {
        let deaf = shared.config.sabotage == Sabotage::DeafSleepers && self.sleep.asleep;
        if deaf || self.is_faulted() || self.state.membership.on_node(node).is_none() {
            return false;
        }
        if self.is_raft_leader() {
            self.wake(shared);
            if up {
                self.peer_reachable(node);
            } else {
                self.peer_unreachable(node);
                self.stop_sending(node);
            }
            return true;
        }
        let leader = self.raw.raft.leader_id;
        if leader == raft::INVALID_ID {
            if up {
                self.wake(shared);
                self.hasten(shared);
            }
            return up;
        }
        let led = !up && self.node_of(leader) == Some(node);
        if led {
            self.wake(shared);
            self.hasten(shared);
        }
        led
    }

    /// A follower sleeps although its leader's node is down: the verdict is looked at again now and then.
    fn is_misled(&self, shared: &Shared) -> Option<NodeId> {
        if !self.sleep.asleep || self.is_raft_leader() {
            return None;
        }
        self.node_of(self.raw.raft.leader_id).filter(|node| shared.down.contains(node))
    }
}

/// When sleeping leaders' machines want to be looked at: wall clock in ms and slot.
#[derive(Default)]
pub(crate) struct Timers(BinaryHeap<Reverse<(u64, usize)>>);

impl<M: StateMachine> Driver<M> {
    /// Whether nothing here waits for the clock of Raft: all groups sleep, and no write is under way.
    pub fn is_quiet(&self) -> bool {
        self.awake.is_empty() && self.in_flight.is_empty() && self.early.is_empty() && self.dirty.is_empty()
    }

    /// Wall clock in ms at which a sleeping group's machine is due.
    pub fn next_timer_ms(&self) -> Option<u64> {
        self.timers.0.peek().map(|Reverse((at, _))| *at)
    }

    /// Puts a group among those that are ticked, if it is awake, or notes its machine's timer.
    pub(super) fn place(&mut self, slot: usize) {
        let Some(group) = self.groups.get_mut(slot).and_then(Option::as_mut) else { return };
        if !group.sleep.asleep {
            if !group.sleep.listed && !group.is_faulted() {
                group.sleep.listed = true;
                self.awake.push(slot);
            }
        } else if group.role == Role::Leader
            && let Some(at) = group.state.machine.wake_at()
            && group.sleep.timer_ms.is_none_or(|known| at < known)
        {
            group.sleep.timer_ms = Some(at);
            self.timers.0.push(Reverse((at, slot)));
        }
    }

    /// Lets machines of sleeping groups do what is due.
    pub(super) fn tick_timers(&mut self) {
        let now = self.shared.now_ms;
        while let Some(Reverse((at, slot))) = self.timers.0.peek().copied().filter(|Reverse((at, _))| *at <= now) {
            self.timers.0.pop();
            let due = self.groups.get_mut(slot).and_then(Option::as_mut).filter(|g| g.sleep.timer_ms == Some(at));
            let Some(group) = due else { continue };
            group.sleep.timer_ms = None;
            if group.sleep.asleep {
                self.guarded(slot, |group, shared| group.tick_machine(shared));
                self.mark(slot);
            }
        }
    }

    /// Wakes who sleeps under a leader whose node is down.
    pub(super) fn tick_misled(&mut self) {
        for slot in 0..self.groups.len() {
            let misled = self.groups[slot].as_ref().and_then(|g| g.is_misled(&self.shared));
            if let Some(node) = misled {
                self.guarded(slot, |group, shared| group.node_changed(node, false, shared));
                self.mark(slot);
            }
        }
    }
}
