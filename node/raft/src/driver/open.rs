//! Bringing groups into a driver, new or from disk, and taking them out.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb;
use raft::{RaftState, RawNode, ReadOnlyOption};
use warren_proto::ids::{GroupId, MachineVersion, MemberUid};

use super::applier::{Applier, Effect};
use super::group::Group;
use super::log::GroupLog;
use super::output::{Event, StopReason};
use super::shared::Shared;
use super::{Driver, panic_text};
use crate::log_store::{GroupRecord, HardState, LogStore, Member, Membership, SnapshotMeta, StoreError, Write};
use crate::machine::{GroupCx, Role, StateMachine};

/// Bytes of entries replayed per read.
const REPLAY_BYTES: u64 = 8 << 20;

/// A new local member of a group.
pub struct GroupSpec<M> {
    /// The group.
    pub group: GroupId,
    /// This member.
    pub me: MemberUid,
    /// The members the group is created with: the same list for every founding member. A member that joins later is
    /// given that list, or the newest one known; the log or a snapshot corrects it.
    pub members: Vec<Member>,
    /// The machine version the group is created with.
    pub version: MachineVersion,
    /// Whatever the machine needs to be made again after a restart; opaque.
    pub init: Bytes,
    /// The machine.
    pub machine: M,
    /// Stands for election at once: for one of the founding members.
    pub campaign: bool,
}

/// Why a group was not opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// It exists here.
    #[error("the group exists on this node")]
    Exists,
    /// A member id of zero, or no members.
    #[error("the group's members are not valid")]
    BadMembers,
    /// The store could not be read, or what it holds does not decode.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The machine refused its snapshot, or panicked during replay.
    #[error("the group's state cannot be rebuilt: {0}")]
    Machine(String),
}

impl<M: StateMachine> Driver<M> {
    /// Creates a local member. It takes part once its record is durable.
    pub fn create_group(&mut self, spec: GroupSpec<M>) -> Result<(), OpenError> {
        if self.index.contains_key(&spec.group) || self.unopened.contains(&spec.group) {
            return Err(OpenError::Exists);
        }
        if spec.me.0 == 0 || spec.members.iter().any(|m| m.uid.0 == 0) || spec.members.is_empty() {
            return Err(OpenError::BadMembers);
        }
        let founding = Membership::founding(spec.members);
        let record = GroupRecord {
            group: spec.group,
            me: spec.me,
            init: spec.init,
            founding: founding.clone(),
            founding_version: spec.version,
            hard_state: HardState::default(),
            membership: founding.clone(),
            snapshot: None,
            last_index: 0,
        };
        let state = Applier {
            machine: spec.machine,
            membership: founding,
            version: spec.version,
            applied: 0,
            applied_term: 0,
            last_ts: 0,
        };
        self.shared.write(spec.group, Write::Create(record));
        self.open(spec.group, spec.me, state, HardState::default(), None, (0, 0))?;
        let campaign = spec.campaign;
        for (from, message) in self.early.take(spec.group) {
            self.step(from, message);
        }
        self.with(spec.group, |group, shared| {
            let version = group.state.version;
            if !group.state.supports(version) {
                group.stop_on_version(version, shared);
            } else if campaign {
                group.campaign(shared);
            }
        });
        Ok(())
    }

    /// Opens a member from disk: restores its snapshot and replays what is known to be committed, without effects.
    /// Reads the store, so it takes as long as that does. On an error the data stays as it is, and its group cannot be
    /// created, only removed.
    pub fn recover(&mut self, record: GroupRecord, machine: M) -> Result<(), OpenError> {
        if self.index.contains_key(&record.group) {
            return Err(OpenError::Exists);
        }
        let group = record.group;
        let recovered = self.try_recover(record, machine);
        if recovered.is_err() {
            self.unopened.insert(group);
        }
        recovered
    }

    fn try_recover(&mut self, record: GroupRecord, machine: M) -> Result<(), OpenError> {
        let (store, cache) = (self.shared.store.clone(), self.shared.cache.clone());
        let cx = GroupCx {
            group: record.group,
            role: Role::Follower,
            term: record.hard_state.term,
            leader: None,
            now_ms: self.shared.now_ms,
            entries: &*cache,
        };
        let rebuilt = catch_unwind(AssertUnwindSafe(|| rebuild(&*store, &record, machine, &cx)));
        let rebuilt = rebuilt.map_err(|panic| OpenError::Machine(panic_text(&*panic)))??;
        let Rebuilt { mut state, commit, replayed, blocked } = rebuilt;
        // What differs from what the log says is that the member was made the only one of its group.
        let alone = record.membership.index >= state.membership.index && record.membership != state.membership;
        if alone {
            state.membership = record.membership;
        }
        let known = record.hard_state.commit;
        let hard = HardState { commit, ..record.hard_state };
        let snapshot = record.snapshot.map(Arc::new);
        let last = record.last_index;
        let last_term = match &snapshot {
            Some(s) if s.index == last => s.term,
            _ if last == 0 => 0,
            _ => store.term(record.group, last)?.ok_or_else(|| missing(record.group, last))?,
        };
        self.open(record.group, record.me, state, hard, snapshot, (last, last_term))?;
        self.with(record.group, |group, shared| {
            group.count_applied(replayed);
            group.alone = alone;
            if let Some(version) = blocked {
                group.stop_on_version(version, shared);
            }
            if known > last {
                group.lost_entries(known, shared);
            }
        });
        Ok(())
    }

    fn open(
        &mut self,
        id: GroupId,
        me: MemberUid,
        state: Applier<M>,
        hard: HardState,
        snapshot: Option<Arc<SnapshotMeta>>,
        last: (u64, u64),
    ) -> Result<(), OpenError> {
        let shared = &self.shared;
        let raft_hard = eraftpb::HardState {
            term: hard.term,
            vote: hard.vote,
            commit: hard.commit,
            ..eraftpb::HardState::default()
        };
        let initial = RaftState::new(raft_hard, state.membership.conf_state());
        let log = GroupLog::new(id, shared.store.clone(), initial, snapshot, last.0, last.1);
        let config = raft::Config {
            id: me.0,
            election_tick: shared.config.election_ticks,
            heartbeat_tick: shared.config.heartbeat_ticks,
            applied: state.applied,
            max_size_per_msg: shared.config.max_append_bytes,
            max_inflight_msgs: shared.config.max_inflight_messages,
            check_quorum: true,
            pre_vote: true,
            read_only_option: ReadOnlyOption::Safe,
            batch_append: true,
            max_committed_size_per_ready: shared.config.max_apply_bytes,
            ..raft::Config::default()
        };
        let logger = slog::Logger::root(slog::Discard, slog::o!());
        let raw = catch_unwind(AssertUnwindSafe(|| RawNode::new(&config, log, &logger)))
            .map_err(|panic| OpenError::Machine(panic_text(&*panic)))?
            .map_err(|e| OpenError::Machine(e.to_string()))?;
        let group = Box::new(Group::new(id, me, raw, state, hard, shared));
        let slot = match self.free.pop() {
            Some(slot) => {
                self.groups[slot] = Some(group);
                slot
            }
            None => {
                self.groups.push(Some(group));
                self.groups.len() - 1
            }
        };
        self.index.insert(id, slot);
        self.mark(slot);
        Ok(())
    }

    /// Takes a group out and deletes its data. False: no such group.
    pub fn remove_group(&mut self, group: GroupId) -> bool {
        if !self.unopened.remove(&group) && !self.take_out(group) {
            return false;
        }
        self.shared.write(group, Write::Delete(group));
        true
    }

    /// Takes a group out and keeps its data, which is not to be used: the group cannot be created here until it is
    /// removed. False: no such group.
    pub fn close_group(&mut self, group: GroupId) -> bool {
        self.with(group, |group, shared| {
            if group.is_raft_leader() {
                // Followers that sleep would trust it for ever.
                group.rouse_all(shared);
            }
        });
        self.take_out(group) && self.unopened.insert(group)
    }

    fn take_out(&mut self, group: GroupId) -> bool {
        let Some(slot) = self.index.get(&group).copied() else { return false };
        self.guarded(slot, |g, shared| g.stop_machine(shared));
        self.index.remove(&group);
        self.groups[slot] = None;
        // Another group may get the slot before the next tick, and would be ticked twice.
        self.awake.retain(|awake| *awake != slot);
        self.free.push(slot);
        self.shared.cache.remove(group);
        true
    }

    /// Before an orderly stop: has groups that would replay much take a snapshot. [`poll`](Self::poll) hands out the writes.
    pub fn prepare_to_stop(&mut self) {
        self.each(|group, shared| {
            if !group.is_faulted() {
                group.snapshot_to_stop(shared);
            }
            false
        });
    }

    /// Tells every machine that its group stops here, for an orderly shutdown.
    pub fn stop_all(&mut self) {
        for slot in 0..self.groups.len() {
            self.guarded(slot, |g, shared| g.stop_machine(shared));
        }
    }
}

impl<M: StateMachine> Group<M> {
    pub fn stop_on_version(&mut self, version: MachineVersion, shared: &mut Shared) {
        self.stop = Some(StopReason::BlockedOnVersion(version.0));
        let reason = StopReason::BlockedOnVersion(version.0);
        shared.events.push(Event::Stopped { group: self.id, reason });
        self.stop_machine(shared);
    }

    /// Tells the machine, once, that the group is over here, and gives back what waits.
    pub fn stop_machine(&mut self, shared: &mut Shared) {
        if std::mem::replace(&mut self.stopped, true) {
            return;
        }
        self.role = Role::Follower;
        self.leader = None;
        self.changes_lost(shared);
        self.fail_reads(shared);
        self.refuse_waiting(shared);
        let cx = self.cx(shared);
        self.state.machine.stopped(&cx);
    }
}

struct Rebuilt<M> {
    state: Applier<M>,
    commit: u64,
    /// Bytes of entries that were replayed.
    replayed: usize,
    /// The version at which replay stopped, if this binary does not support it.
    blocked: Option<MachineVersion>,
}

fn rebuild<M: StateMachine>(
    store: &dyn LogStore,
    record: &GroupRecord,
    machine: M,
    cx: &GroupCx<'_>,
) -> Result<Rebuilt<M>, OpenError> {
    let group = record.group;
    let mut state = Applier {
        machine,
        membership: record.founding.clone(),
        version: record.founding_version,
        applied: 0,
        applied_term: 0,
        last_ts: 0,
    };
    if let Some(meta) = &record.snapshot {
        state.membership = meta.membership.clone();
        state.version = meta.version;
        state.applied = meta.index;
        state.applied_term = meta.term;
    }
    // A commit index is not synced for its own sake; an applied membership and a snapshot prove what was committed.
    let floor = state.applied;
    let commit = record.hard_state.commit.max(floor).max(record.membership.index).min(record.last_index.max(floor));
    if !state.supports(state.version) {
        let blocked = Some(state.version);
        return Ok(Rebuilt { state, commit, replayed: 0, blocked });
    }
    if let Some(meta) = &record.snapshot {
        let (stored, bytes) = store.snapshot(group)?.ok_or_else(|| missing(group, meta.index))?;
        if stored.index != meta.index || crc32c::crc32c(&bytes) != meta.state_crc {
            return Err(StoreError::Corrupt(format!(
                "snapshot {} of group {group} does not match its checksum; remove this member and add it anew",
                meta.index
            ))
            .into());
        }
        let restored = state.machine.restore(&bytes, meta.index, meta.version, cx);
        restored.map_err(|e| OpenError::Machine(e.to_string()))?;
    }
    let mut replayed = 0;
    let blocked = replay(store, group, &mut state, commit, &mut replayed, cx)?;
    Ok(Rebuilt { state, commit, replayed, blocked })
}

fn replay<M: StateMachine>(
    store: &dyn LogStore,
    group: GroupId,
    state: &mut Applier<M>,
    commit: u64,
    replayed: &mut usize,
    cx: &GroupCx<'_>,
) -> Result<Option<MachineVersion>, OpenError> {
    while state.applied < commit {
        let entries = store.entries(group, state.applied + 1, commit + 1, REPLAY_BYTES)?;
        if entries.is_empty() {
            return Err(missing(group, state.applied + 1).into());
        }
        for entry in entries {
            if entry.index != state.applied + 1 {
                return Err(missing(group, state.applied + 1).into());
            }
            *replayed += entry.data.len();
            if let Effect::Blocked(version) = state.apply(entry, false, cx, |_, _| {}) {
                return Ok(Some(version));
            }
        }
    }
    Ok(None)
}

fn missing(group: GroupId, index: u64) -> StoreError {
    StoreError::Corrupt(format!("group {group} lacks index {index}; remove this member and add it anew"))
}
