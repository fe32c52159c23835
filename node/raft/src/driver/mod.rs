//! The deterministic half of the Raft host: the groups of one shard, without threads, clocks or sockets.
//!
//! A [`Driver`] is told what happens (requests, messages, ticks, writes that became durable) and, when
//! [polled](Driver::poll), says what is to be done ([`Output`]). Messages whose promise depends on a write stay inside
//! until that write is reported [durable](Driver::persisted). The same inputs and seed give the same outputs.

mod alone;
mod applier;
mod change;
mod config;
mod election;
mod entry_cache;
mod figures;
mod group;
mod hibernation;
mod log;
pub mod mem_store;
mod membership;
mod open;
mod output;
mod propose;
mod reads;
mod receive;
mod shared;
mod snapshot_receive;
mod snapshot_send;
mod snapshot_take;
mod status;
#[cfg(test)]
mod tests;
mod versions;
mod vouch;
mod wire;

use std::collections::VecDeque;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustc_hash::{FxHashMap, FxHashSet};
use warren_proto::ids::{GroupId, NodeId};

pub use alone::make_alone;
pub use config::{DriverConfig, Sabotage};
pub use entry_cache::{EntryCache, shard_of};
pub use figures::DriverFigures;
#[cfg(any(test, fuzzing))]
pub(crate) use membership::{decode_change, encode_change};
pub use open::{GroupSpec, OpenError};
pub use output::{ChangeError, Event, Lane, MemberChange, Outgoing, Output, StopReason, Work, WorkDone, WriteBatch};
pub use status::{GroupStatus, MemberStatus};

use crate::log_store::{LogStore, Write};
use crate::machine::StateMachine;
use group::Group;
use hibernation::Timers;
use receive::EarlyMail;
use shared::Shared;

/// The groups of one shard, with their machines.
pub struct Driver<M: StateMachine> {
    shared: Shared,
    groups: Vec<Option<Box<Group<M>>>>,
    index: FxHashMap<GroupId, usize>,
    free: Vec<usize>,
    /// Groups with work, in the order in which they got it.
    dirty: VecDeque<usize>,
    /// Groups that are ticked: those that do not sleep, and a few that just fell asleep.
    awake: Vec<usize>,
    timers: Timers,
    /// Writes that are not durable: number, when it was handed out, whose.
    in_flight: VecDeque<(u64, u64, Vec<GroupId>)>,
    early: EarlyMail,
    /// Groups whose data could not be opened and stays as it is.
    unopened: FxHashSet<GroupId>,
}

impl<M: StateMachine> Driver<M> {
    /// A driver without groups.
    pub fn new(config: DriverConfig, store: Arc<dyn LogStore>, cache: Arc<EntryCache>) -> Self {
        let tail_keep = config.tail_bytes;
        // Work for a transfer may end after another one has begun, from another node or another life of this one: their
        // numbers differ.
        let transfers = config::mix(&[config.seed, config.node.0, 0x7472_616e]) >> 1;
        Driver {
            shared: Shared {
                config,
                store,
                cache,
                now_ms: 0,
                tick: 0,
                stalled: false,
                persisted: 0,
                number: 1,
                writes: Vec::new(),
                writers: Vec::new(),
                messages: Vec::new(),
                work: Vec::new(),
                events: Vec::new(),
                tail_keep,
                transfers,
                down: FxHashSet::default(),
                elections: 0,
                abstains: false,
                transfer_budget: 0,
                sending: 0,
                sending_bytes: 0,
            },
            groups: Vec::new(),
            index: FxHashMap::default(),
            free: Vec::new(),
            dirty: VecDeque::new(),
            awake: Vec::new(),
            timers: Timers::default(),
            in_flight: VecDeque::new(),
            early: EarlyMail::default(),
            unopened: FxHashSet::default(),
        }
    }

    /// Sets the wall clock for what follows.
    pub fn set_clock(&mut self, now_ms: u64) {
        self.shared.now_ms = now_ms;
    }

    /// Runs `f` on a group and marks it as having work. A panic stops that group alone. `None`: no such group, or it
    /// panicked.
    fn with<R>(&mut self, group: GroupId, f: impl FnOnce(&mut Group<M>, &mut Shared) -> R) -> Option<R> {
        let slot = *self.index.get(&group)?;
        let result = self.guarded(slot, f);
        self.mark(slot);
        result
    }

    fn guarded<R>(&mut self, slot: usize, f: impl FnOnce(&mut Group<M>, &mut Shared) -> R) -> Option<R> {
        let group = self.groups.get_mut(slot)?.as_mut()?;
        let shared = &mut self.shared;
        match catch_unwind(AssertUnwindSafe(|| f(group, shared))) {
            Ok(result) => Some(result),
            Err(panic) => {
                let reason = panic_text(&*panic);
                tracing::error!(group = group.id.0, applied = group.state.applied, reason, "group stopped");
                group.fault(reason, shared);
                // Whoever waits is told, as far as the machine still can.
                if catch_unwind(AssertUnwindSafe(|| group.stop_machine(shared))).is_err() {
                    tracing::error!(group = group.id.0, "the stopped machine cannot answer who waits");
                }
                None
            }
        }
    }

    fn mark(&mut self, slot: usize) {
        if let Some(group) = self.groups.get_mut(slot).and_then(Option::as_mut)
            && !group.dirty
        {
            group.dirty = true;
            self.dirty.push_back(slot);
        }
    }

    /// Requests for a group. What cannot be appended goes back through the machine's
    /// [`refuse`](StateMachine::refuse); false = no such group, and the requests are dropped.
    pub fn requests(&mut self, group: GroupId, requests: impl IntoIterator<Item = M::Request>) -> bool {
        let requests = requests.into_iter();
        self.with(group, |g, shared| g.enqueue(requests, shared)).is_some()
    }

    /// One tick of Raft's clock, at wall clock `now_ms`.
    pub fn tick(&mut self, now_ms: u64) {
        self.shared.now_ms = now_ms;
        self.shared.tick += 1;
        let oldest = self.in_flight.front().map_or(now_ms, |(_, at, _)| *at);
        let stalled = now_ms.saturating_sub(oldest) > self.shared.config.disk_stall_ms;
        if stalled != self.shared.stalled {
            tracing::error!(stalled, "log writes make no progress");
            self.shared.stalled = stalled;
        }
        if stalled {
            // A sleeper's followers would trust it for ever.
            self.each(|group, shared| {
                let leads = group.is_raft_leader() && group.sleep.asleep;
                if leads {
                    group.wake(shared);
                }
                leads
            });
        }
        let tick = self.shared.tick;
        self.early.expire(tick);
        if tick.is_multiple_of(10) {
            self.share_tails();
        }
        if tick.is_multiple_of(RECHECK_TICKS) {
            self.tick_misled();
        }
        self.tick_timers();
        self.budget_elections();
        self.budget_transfers();
        let mut awake = std::mem::take(&mut self.awake);
        awake.retain(|slot| {
            let slot = *slot;
            let look_deeper = (tick + slot as u64).is_multiple_of(10);
            let Some(group) = self.groups.get_mut(slot).and_then(Option::as_mut) else { return false };
            if group.sleep.asleep || group.is_faulted() {
                group.sleep.listed = false;
                return false;
            }
            let work = self.guarded(slot, |group, shared| group.tick(look_deeper, shared));
            if work != Some(false) {
                self.mark(slot);
            }
            true
        });
        self.awake = awake;
    }

    /// Few elections at once are soon over; thousands at once time out together, and again.
    fn budget_elections(&mut self) {
        let held = self.awake.iter().filter_map(|slot| self.groups.get(*slot)?.as_ref());
        let held = held.filter(|g| g.is_candidate()).count();
        self.shared.elections = self.shared.config.max_elections.saturating_sub(held);
    }

    /// Snapshot transfers share what a tick may send, and the memory for their states.
    fn budget_transfers(&mut self) {
        self.shared.transfer_budget = self.shared.config.snapshot_tick_bytes.max(1);
        let awake = self.awake.iter().filter_map(|slot| self.groups.get(*slot)?.as_ref());
        let (count, bytes) = awake.fold((0, 0), |(count, bytes), g| {
            let (more, state) = g.sending_figures();
            (count + more, bytes + state)
        });
        (self.shared.sending, self.shared.sending_bytes) = (count, bytes);
    }

    /// Divides the memory for applied entries among the groups that are busy.
    fn share_tails(&mut self) {
        let tick = self.shared.tick;
        let busy = self.groups.iter().flatten().filter(|g| g.is_busy(tick)).count();
        let config = &self.shared.config;
        self.shared.tail_keep = (config.tails_bytes / busy.max(1)).min(config.tail_bytes);
    }

    /// Writes up to `number` are durable.
    pub fn persisted(&mut self, number: u64) {
        self.shared.persisted = self.shared.persisted.max(number);
        while self.in_flight.front().is_some_and(|(n, ..)| *n <= number) {
            let Some((n, _, groups)) = self.in_flight.pop_front() else { break };
            for group in groups {
                self.with(group, |g, shared| g.persisted(n, shared));
            }
        }
    }

    /// Asks for an index that covers everything committed in the group before now: answered by [`Event::Read`] once it
    /// is applied here. Works on any member.
    pub fn read_index(&mut self, group: GroupId, ctx: u64) {
        if self.with(group, |g, shared| g.read_index(ctx, shared)).is_none() {
            self.shared.events.push(Event::Read { group, ctx, index: None });
        }
    }

    /// Makes the local member the only one of its group, which has lost its majority for good.
    pub fn make_alone(&mut self, group: GroupId) -> Result<(), ChangeError> {
        self.with(group, |g, shared| g.make_alone(shared)).unwrap_or(Err(ChangeError::NoSuchGroup))
    }

    /// Changes members; one change is simple, several at once go through a joint configuration. Answered by
    /// [`Event::Changed`] with `token`.
    pub fn change_members(&mut self, group: GroupId, token: u64, change: Vec<MemberChange>) {
        let asked = self.with(group, |g, shared| {
            g.wake(shared);
            g.change_members(token, change, shared);
        });
        if asked.is_none() {
            let outcome = Err(ChangeError::NoSuchGroup);
            self.shared.events.push(Event::Changed { group, token, outcome });
        }
    }

    /// Starts handing leadership to the voter on `to`, or with `None` to the most advanced other voter.
    pub fn transfer_leader(&mut self, group: GroupId, to: Option<NodeId>) -> Result<(), ChangeError> {
        self.with(group, |g, shared| {
            g.wake(shared);
            match to {
                Some(node) => g.transfer_leader(node),
                None => g.step_down(),
            }
        })
        .unwrap_or(Err(ChangeError::NoSuchGroup))
    }

    /// Stands for election in the group at once.
    pub fn campaign(&mut self, group: GroupId) {
        self.with(group, |g, shared| g.campaign(shared));
    }

    /// From now on this node's members leave it to others to lead, while one of those can; or no longer.
    pub fn set_abstains(&mut self, abstains: bool) {
        self.shared.abstains = abstains;
    }

    /// Takes a snapshot now, whatever it frees.
    pub fn force_snapshot(&mut self, group: GroupId) {
        self.with(group, |g, shared| g.maybe_snapshot(true, shared));
    }

    /// The verdict is that a node is down: groups that it led elect another leader soon.
    pub fn peer_down(&mut self, node: NodeId) {
        self.shared.down.insert(node);
        self.each(|group, shared| group.node_changed(node, false, shared));
    }

    /// A node can be reached again: leaders go on with its members at once.
    pub fn peer_up(&mut self, node: NodeId) {
        self.shared.down.remove(&node);
        self.each(|group, shared| group.node_changed(node, true, shared));
    }

    /// Messages to a node were dropped: leaders find out anew what its members have.
    pub fn peer_lost(&mut self, node: NodeId) {
        self.each(|group, _| group.peer_unreachable(node));
    }

    /// Does something to every group; `f` answers whether that gave the group work.
    fn each(&mut self, mut f: impl FnMut(&mut Group<M>, &mut Shared) -> bool) {
        for slot in 0..self.groups.len() {
            if self.guarded(slot, &mut f) != Some(false) {
                self.mark(slot);
            }
        }
    }

    /// Store access for a snapshot transfer was done.
    pub fn work_done(&mut self, group: GroupId, transfer: u64, mut done: WorkDone) {
        self.with(group, |g, shared| {
            if !g.loaded(transfer, &mut done, shared) {
                g.staged(transfer, &done, shared);
            }
        });
    }

    /// Whether anything waits for [`poll`](Self::poll).
    pub fn has_work(&self) -> bool {
        !self.dirty.is_empty() || !self.shared.events.is_empty() || !self.shared.writes.is_empty()
    }

    /// Lets groups work and collects what is to be done. Answers whether there is more to do at once.
    pub fn poll(&mut self, out: &mut Output) -> bool {
        out.clear();
        for _ in 0..self.dirty.len() {
            let Some(slot) = self.dirty.pop_front() else { break };
            let Some(group) = self.groups.get_mut(slot).and_then(Option::as_mut) else { continue };
            group.dirty = false;
            out.touched.push(group.id);
            let unfinished = self.guarded(slot, |group, shared| {
                let unfinished = group.run(shared);
                group.snapshot_if_wanted(shared);
                unfinished
            });
            if unfinished == Some(true) {
                self.mark(slot);
            }
            self.place(slot);
        }
        let shared = &mut self.shared;
        std::mem::swap(&mut out.messages, &mut shared.messages);
        std::mem::swap(&mut out.work, &mut shared.work);
        std::mem::swap(&mut out.events, &mut shared.events);
        if !shared.writes.is_empty() {
            let number = shared.number;
            shared.number += 1;
            let writes: Vec<Write> = std::mem::take(&mut shared.writes);
            let mut writers = std::mem::take(&mut shared.writers);
            writers.sort_unstable();
            writers.dedup();
            self.in_flight.push_back((number, shared.now_ms, writers));
            out.write = Some(WriteBatch { number, writes });
        }
        !self.dirty.is_empty()
    }
}

/// Ticks between two looks at who sleeps under a leader whose node is down.
const RECHECK_TICKS: u64 = 50;

fn panic_text(panic: &(dyn std::any::Any + Send)) -> String {
    match (panic.downcast_ref::<&str>(), panic.downcast_ref::<String>()) {
        (Some(text), _) => (*text).to_owned(),
        (_, Some(text)) => text.clone(),
        (None, None) => "panic".to_owned(),
    }
}
