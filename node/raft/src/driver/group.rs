//! One group's local member: Raft, the state it leads to, and what is on its way to the disk.

use std::collections::VecDeque;
use std::sync::Arc;

use raft::eraftpb::{self, MessageType};
use raft::{RawNode, Ready, StateRole};
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind, VersionRange};

use super::applier::{Applier, Effect};
use super::change::PendingChange;
use super::config::Sabotage;
use super::election::Election;
use super::hibernation::Sleep;
use super::log::GroupLog;
use super::output::{Event, Outgoing, StopReason};
use super::propose::CommitMark;
use super::reads::Reads;
use super::shared::Shared;
use super::snapshot_receive::{Installing, Receiving};
use super::snapshot_send::Sending;
use super::snapshot_take::Snapshots;
use super::versions::Ranges;
use super::vouch::Vouched;
use super::{membership, wire};
use crate::log_store::{HardState, Write};
use crate::machine::{GroupCx, Role, StateMachine};

/// Readies handled before other groups get their turn.
const ROUNDS: usize = 16;

pub(crate) struct Group<M: StateMachine> {
    pub id: GroupId,
    pub me: MemberUid,
    pub raw: RawNode<GroupLog>,
    pub state: Applier<M>,
    /// As the machine was last told.
    pub role: Role,
    pub leader: Option<NodeId>,
    role_term: u64,
    /// Why the group stopped here.
    pub stop: Option<StopReason>,
    /// The log lost entries up to this index that were acknowledged.
    pub amnesia: Option<u64>,
    pub vouched: Vouched,
    /// Where to answer a leader that the membership does not list yet, and a candidate.
    contact: Option<(u64, NodeId)>,
    candidate: Option<(u64, NodeId)>,

    pub queue: VecDeque<M::Request>,
    pub builder: BatchBuilder,
    /// Machine version at the end of the log, while leading.
    pub appended_version: MachineVersion,
    /// Index and bytes of entries appended and not yet committed, while leading.
    pub uncommitted: VecDeque<(u64, usize)>,
    pub uncommitted_bytes: usize,
    /// The commit index that followers were told.
    announced: u64,

    /// Readies whose writes are not durable yet, by write number.
    pending: VecDeque<PendingReady>,
    /// Messages that wait for a write.
    held: Vec<(u64, Outgoing)>,
    hard: HardState,
    /// Number of the newest write, and of the newest one that changed the term or the vote.
    last_write: u64,
    vote_write: u64,

    pub election: Election,
    pub sleep: Sleep,
    pub reads: Reads,
    pub ranges: Ranges,
    pub changes: Vec<PendingChange>,
    pub snapshots: Snapshots,
    pub sending: Vec<Sending>,
    pub receiving: Option<Receiving>,
    pub installing: Option<Installing>,
    /// A live entry was missing here when a snapshot was received.
    pub lacks_live: bool,
    /// Term and number of the newest transfer that began here, and the number of the last that was completed.
    pub offered: (u64, u64),
    pub installed: Option<u64>,
    /// When the machine's timer is due next.
    pub next_machine_tick: u64,
    /// Leader: how far the log was committed lately.
    pub commit_mark: CommitMark,
    /// The tick of the last append.
    pub last_append: u64,
    /// Made the only one of its group, which neither the log nor a snapshot says yet.
    pub alone: bool,
    /// The machine was told that the group stopped.
    pub stopped: bool,
    /// Whether the driver has it in its list of groups with work.
    pub dirty: bool,
}

struct PendingReady {
    write: u64,
    ready: u64,
    /// Last entry that the write holds.
    last: Option<(u64, u64)>,
}

impl<M: StateMachine> Group<M> {
    pub fn new(
        id: GroupId,
        me: MemberUid,
        raw: RawNode<GroupLog>,
        state: Applier<M>,
        hard: HardState,
        shared: &Shared,
    ) -> Self {
        let version = state.version;
        let applied = state.applied;
        let state_len = raw.store().snapshot_meta().map_or(0, |m| m.state_len);
        let mut group = Group {
            id,
            me,
            raw,
            state,
            role: Role::Follower,
            leader: None,
            role_term: 0,
            stop: None,
            amnesia: None,
            vouched: Vouched::default(),
            contact: None,
            candidate: None,
            queue: VecDeque::new(),
            builder: BatchBuilder::new(version),
            appended_version: version,
            uncommitted: VecDeque::new(),
            uncommitted_bytes: 0,
            announced: 0,
            pending: VecDeque::new(),
            held: Vec::new(),
            hard,
            last_write: 0,
            vote_write: 0,
            election: Election::default(),
            sleep: Sleep::default(),
            reads: Reads::new(shared.config.seed, me),
            ranges: Ranges::default(),
            changes: Vec::new(),
            snapshots: Snapshots::new(&shared.config, id, applied, state_len),
            sending: Vec::new(),
            receiving: None,
            installing: None,
            lacks_live: false,
            offered: (0, 0),
            installed: None,
            next_machine_tick: 0,
            commit_mark: CommitMark::default(),
            last_append: shared.tick,
            alone: false,
            stopped: false,
            dirty: false,
        };
        group.raw.raft.skip_bcast_commit(true);
        group.settle_election(shared);
        group
    }

    pub fn is_faulted(&self) -> bool {
        matches!(self.stop, Some(StopReason::Faulted(_)))
    }

    pub fn is_raft_leader(&self) -> bool {
        self.raw.raft.state == StateRole::Leader
    }

    pub fn is_candidate(&self) -> bool {
        matches!(self.raw.raft.state, StateRole::Candidate | StateRole::PreCandidate)
    }

    /// Whether anything that was handed to the disk is not reported durable yet.
    pub fn waits_for_disk(&self) -> bool {
        !self.pending.is_empty() || !self.held.is_empty()
    }

    pub fn last_index(&self) -> u64 {
        self.raw.raft.raft_log.last_index()
    }

    pub fn commit(&self) -> u64 {
        self.raw.raft.raft_log.committed
    }

    pub fn cx<'a>(&self, shared: &'a Shared) -> GroupCx<'a> {
        GroupCx {
            group: self.id,
            role: self.role,
            term: self.raw.raft.term,
            leader: self.leader,
            now_ms: shared.now_ms,
            entries: &*shared.cache,
        }
    }

    /// The node of a member, or of the leader or candidate that wrote to us.
    pub fn node_of(&self, uid: u64) -> Option<NodeId> {
        match self.state.membership.member(MemberUid(uid)) {
            Some(member) => Some(member.node),
            None => [self.contact, self.candidate].into_iter().flatten().find(|(u, _)| *u == uid).map(|(_, node)| node),
        }
    }

    /// Works until nothing is left to do; answers whether it stopped early to let others have their turn.
    pub fn run(&mut self, shared: &mut Shared) -> bool {
        for _ in 0..ROUNDS {
            if self.is_faulted() {
                return false;
            }
            self.update_role(shared);
            self.settle_alone(shared);
            self.propose_waiting(shared);
            self.ask_reads();
            self.announce_commit();
            if !self.raw.has_ready() {
                self.settle_election(shared);
                return false;
            }
            self.handle_ready(shared);
            self.settle_election(shared);
        }
        true
    }

    /// Tells followers of a commit that nothing else is about to tell them of: with entries still on their way, the
    /// next append carries it.
    fn announce_commit(&mut self) {
        if !self.is_raft_leader() {
            return;
        }
        let committed = self.commit();
        while self.uncommitted.front().is_some_and(|(index, _)| *index <= committed) {
            if let Some((_, bytes)) = self.uncommitted.pop_front() {
                self.uncommitted_bytes -= bytes;
            }
        }
        if committed > self.announced && committed == self.last_index() {
            self.announced = committed;
            self.raw.raft.bcast_append();
        }
    }

    fn handle_ready(&mut self, shared: &mut Shared) {
        let mut ready = self.raw.ready();
        let leads = self.is_raft_leader();
        let wrote = self.gather_writes(&mut ready, shared);
        for state in ready.take_read_states() {
            self.reads.confirmed(state.index, &state.request_ctx);
        }
        for message in ready.take_messages().into_iter().chain(ready.take_persisted_messages()) {
            self.dispatch(message, leads, shared);
        }
        let committed = ready.take_committed_entries();
        let number = ready.number();
        self.raw.advance_append_async(ready);
        match (wrote, self.pending.back_mut()) {
            (Some(last), Some(back)) if back.write == shared.number => {
                back.ready = number;
                back.last = last.or(back.last);
            }
            (Some(last), _) => self.pending.push_back(PendingReady { write: shared.number, ready: number, last }),
            // Nothing of it needs the disk: it counts as durable with what was before it.
            (None, Some(back)) => back.ready = number,
            (None, None) => self.raw.on_persist_ready(number),
        }
        if shared.config.sabotage == Sabotage::CountUnsynced {
            self.raw.on_persist_ready(number);
        }
        self.apply_committed(committed, shared);
        self.finish_reads(shared);
        debug_assert!(self.raw.raft.prs().iter().all(|(_, p)| p.next_idx > p.matched));
    }

    /// Turns a ready's state into writes. `Some` if there are any, with the last entry that they hold.
    fn gather_writes(&mut self, ready: &mut Ready, shared: &mut Shared) -> Option<Option<(u64, u64)>> {
        let mut wrote = false;
        if !ready.snapshot().is_empty() {
            self.begin_install(shared);
            wrote = true;
        }
        let entries = ready.take_entries();
        let last = entries.last().map(|e| (e.index, e.term));
        if last.is_some() {
            let stored = entries.iter().map(wire::entry_from_raft).collect();
            shared.write(self.id, Write::Append(self.id, stored));
            self.raw.mut_store().append(&entries);
            self.last_append = shared.tick;
            self.wake(shared);
            wrote = true;
        }
        let raft = &self.raw.raft;
        let hard = HardState { term: raft.term, vote: raft.vote, commit: self.commit_to_remember() };
        let voted = (hard.term, hard.vote) != (self.hard.term, self.hard.vote);
        // A commit index alone is not worth a sync: a restarted member learns it again.
        if voted || (wrote && hard != self.hard) {
            self.hard = hard;
            let number = shared.write(self.id, Write::HardState(self.id, hard));
            if voted {
                self.vote_write = number;
            }
            wrote = true;
        }
        if wrote {
            self.last_write = shared.number;
        }
        wrote.then_some(last)
    }

    /// Writes a commit index beyond the log, beside the term and the vote that are written already.
    pub fn remember_commit(&mut self, shared: &mut Shared) {
        self.hard.commit = self.commit_to_remember();
        self.last_write = shared.write(self.id, Write::HardState(self.id, self.hard));
    }

    /// Sends a message, now or when what it promises is durable.
    fn dispatch(&mut self, message: eraftpb::Message, leads: bool, shared: &mut Shared) {
        let kind = message.get_msg_type();
        if kind == MessageType::MsgSnapshot {
            self.start_sending(message.to, message.get_snapshot().get_metadata().index, shared);
            return;
        }
        let promises_nothing = matches!(
            kind,
            MessageType::MsgAppend
                | MessageType::MsgHeartbeat
                | MessageType::MsgTimeoutNow
                | MessageType::MsgReadIndexResp
        );
        // A leader's entries may travel while they are written here; but not before its own vote in this term is.
        let after = if leads && promises_nothing { self.vote_write } else { self.last_write };
        let to = message.to;
        let Some(mut message) = wire::message_to_wire(self.id, message) else { return };
        if kind == MessageType::MsgHeartbeatResponse {
            self.vouch_or_doubt(&mut message);
        }
        self.send(to, message, after, shared);
    }

    /// Sends a message to a member once write `after` is durable.
    pub fn send(&mut self, to: u64, mut message: RaftMessage, after: u64, shared: &mut Shared) {
        let Some(node) = self.node_of(to) else { return };
        let kind = message.kind();
        match kind {
            RaftMessageKind::RaftVote
            | RaftMessageKind::RaftPreVote
            | RaftMessageKind::RaftVoteResponse
            | RaftMessageKind::RaftPreVoteResponse
            | RaftMessageKind::RaftAppendResponse
            | RaftMessageKind::RaftHeartbeatResponse => {
                let supported = self.state.supported();
                message.supported =
                    Some(VersionRange { min: supported.start().0.into(), max: supported.end().0.into() });
            }
            _ => {}
        }
        let out = Outgoing { to: node, lane: wire::lane(kind), message };
        if after > shared.persisted && !shared.config.sabotage.lets_pass(kind) {
            self.held.push((after, out));
        } else {
            shared.messages.push(out);
        }
    }

    /// Writes up to `number` are durable.
    pub fn persisted(&mut self, number: u64, shared: &mut Shared) {
        if self.is_faulted() {
            return;
        }
        if self.installing.as_ref().is_some_and(|i| i.write <= number) {
            self.finish_install(shared);
            if self.is_faulted() {
                return;
            }
        }
        let mut ready = None;
        while self.pending.front().is_some_and(|p| p.write <= number) {
            if let Some(p) = self.pending.pop_front() {
                if let Some((index, term)) = p.last {
                    self.raw.mut_store().persisted(index, term);
                }
                ready = Some(p.ready);
            }
        }
        if let Some(ready) = ready {
            self.raw.on_persist_ready(ready);
        }
        self.finish_snapshot(number);
        self.acknowledge_install(shared);
        if !self.held.is_empty() {
            shared.messages.extend(self.held.extract_if(.., |(after, _)| *after <= number).map(|(_, out)| out));
        }
        self.settle_election(shared);
    }

    fn apply_committed(&mut self, entries: Vec<eraftpb::Entry>, shared: &mut Shared) {
        if entries.is_empty() || self.stop.is_some() {
            return;
        }
        self.update_role(shared);
        for entry in &entries {
            self.apply_entry(entry, shared);
            if self.stop.is_some() {
                break;
            }
        }
        let applied = self.state.applied;
        self.raw.advance_apply_to(applied);
        self.update_role(shared);
        self.maybe_snapshot(false, shared);
        self.raw.mut_store().trim(applied, shared.tail_keep);
    }

    fn apply_entry(&mut self, entry: &eraftpb::Entry, shared: &mut Shared) {
        let (index, term) = (entry.index, entry.term);
        self.count_applied(entry.data.len());
        let cx = self.cx(shared);
        let (id, cache) = (self.id, &shared.cache);
        let effect = self.state.apply(wire::entry_from_raft(entry), true, &cx, |batch, size| {
            cache.insert(id, index, batch.clone(), size);
        });
        match effect {
            Effect::Nothing => {}
            Effect::Undecodable => shared.events.push(Event::Undecodable { group: self.id, index }),
            Effect::Blocked(version) => self.block(version, shared),
            Effect::IgnoredChange => self.change_applied(index, term, shared),
            Effect::Members(change) => {
                match self.raw.apply_conf_change(&membership::conf_change(&change)) {
                    Ok(_) => {}
                    Err(error) => {
                        self.fault(format!("membership change at {index} refused: {error}"), shared);
                        return;
                    }
                }
                let membership = self.state.membership.clone();
                shared.write(self.id, Write::Membership(self.id, membership.clone()));
                shared.events.push(Event::Membership { group: self.id, membership });
                self.change_applied(index, term, shared);
                self.leave_if_removed();
            }
        }
    }

    /// A leader that removed itself stops leading once that is applied.
    fn leave_if_removed(&mut self) {
        let votes = self.state.membership.voters().any(|m| m.uid == self.me)
            || self.state.membership.outgoing.contains(&self.me);
        if self.is_raft_leader() && !votes {
            self.raw.raft.bcast_append();
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
    }

    /// Tells the machine what it is now, if that changed.
    pub fn update_role(&mut self, shared: &mut Shared) {
        let raft = &self.raw.raft;
        let term = raft.term;
        let role = match raft.state {
            StateRole::Leader if self.state.applied_term == term => Role::Leader,
            StateRole::Leader => Role::Elected,
            StateRole::Follower | StateRole::Candidate | StateRole::PreCandidate => Role::Follower,
        };
        let leader_uid = raft.leader_id;
        let leader = if leader_uid == raft::INVALID_ID { None } else { self.node_of(leader_uid) };
        let led_term = if role == Role::Follower { 0 } else { term };
        if (role, leader, led_term) == (self.role, self.leader, self.role_term) {
            return;
        }
        let led_before = self.role != Role::Follower;
        let new_term = led_term != self.role_term;
        (self.role, self.leader, self.role_term) = (role, leader, led_term);
        if led_before && new_term {
            self.lost_leadership(shared);
        }
        if role != Role::Follower && new_term {
            self.ranges.clear();
            self.announced = 0;
        }
        if role == Role::Leader {
            self.appended_version = self.state.version;
            self.builder = BatchBuilder::new(self.appended_version);
            self.next_machine_tick = shared.now_ms;
        }
        if self.stop.is_none() {
            let cx = self.cx(shared);
            self.state.machine.role_changed(&cx);
        }
        shared.events.push(Event::Role { group: self.id, term, role, leader });
    }

    fn lost_leadership(&mut self, shared: &mut Shared) {
        self.refuse_waiting(shared);
        self.uncommitted.clear();
        self.uncommitted_bytes = 0;
        self.sending.clear();
        self.changes_lost(shared);
        if self.raw.raft.leader_id == raft::INVALID_ID {
            self.rouse_all(shared);
        }
    }

    /// The group stops here and keeps its log.
    pub fn fault(&mut self, reason: String, shared: &mut Shared) {
        self.stop = Some(StopReason::Faulted(reason.clone()));
        self.role = Role::Follower;
        self.held.clear();
        self.sending.clear();
        self.receiving = None;
        self.uncommitted.clear();
        self.changes_lost(shared);
        self.fail_reads(shared);
        shared.events.push(Event::Stopped { group: self.id, reason: StopReason::Faulted(reason) });
    }

    fn block(&mut self, version: MachineVersion, shared: &mut Shared) {
        if self.is_raft_leader() {
            let term = self.raw.raft.term;
            self.raw.raft.become_follower(term, raft::INVALID_ID);
        }
        self.stop_on_version(version, shared);
    }

    /// A leader's word came from this node.
    pub fn heard_from_leader(&mut self, uid: u64, node: NodeId) {
        self.contact = Some((uid, node));
    }

    /// A candidate's request came from this node.
    pub fn heard_from_candidate(&mut self, uid: u64, node: NodeId) {
        self.candidate = Some((uid, node));
    }

    pub fn snapshot_index(&self) -> u64 {
        self.raw.store().snapshot_meta().map_or(0, |m: &Arc<_>| m.index)
    }
}
