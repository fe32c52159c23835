//! A shard's thread: waits, takes in everything that waits, polls the driver once, hands out what comes of it.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crossbeam_channel::{Receiver, RecvTimeoutError, Sender};
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::oneshot;
use warren_proto::ids::{GroupId, NodeId};
use warren_proto::peer::{RaftBatch, RaftMessage};

use super::registry::Registry;
use super::writer::Handed;
use super::{HostHooks, PeerSink};
use crate::driver::{
    ChangeError, Driver, DriverFigures, Event, GroupSpec, Lane, MemberChange, MemberStatus, OpenError, Output, Work,
    WorkDone,
};
use crate::machine::StateMachine;

/// Mails taken in before the driver is polled.
const MAILS_PER_ROUND: usize = 4096;

/// Ticks that a shard whose groups all sleep leaves out, at most.
const RESTING_TICKS: u32 = 50;

/// Wakes a shard whose mailbox may be empty.
pub(super) trait Waker: Send + Sync {
    fn wake(&self);
}

pub(super) enum Mail<M: StateMachine> {
    Request(GroupId, M::Request),
    Requests(GroupId, Vec<M::Request>),
    Messages(NodeId, Vec<RaftMessage>),
    Create(Box<GroupSpec<M>>, oneshot::Sender<Result<(), OpenError>>),
    Remove(GroupId, oneshot::Sender<bool>),
    Close(GroupId),
    Read(GroupId, oneshot::Sender<Option<u64>>),
    Change(GroupId, Vec<MemberChange>, oneshot::Sender<Result<(), ChangeError>>),
    Transfer(GroupId, Option<NodeId>, oneshot::Sender<Result<(), ChangeError>>),
    Members(GroupId, oneshot::Sender<Vec<MemberStatus>>),
    Snapshot(GroupId),
    Campaign(GroupId),
    Abstain(bool),
    Figures(oneshot::Sender<DriverFigures>),
    Alone(GroupId, oneshot::Sender<Result<(), ChangeError>>),
    WorkDone(GroupId, u64, WorkDone),
    /// Something changed outside the mailbox.
    Nudge,
    Stop,
}

pub(super) struct MailboxWaker<M: StateMachine> {
    pub mailbox: Sender<Mail<M>>,
    /// A nudge is in the mailbox already.
    pub nudged: Arc<AtomicBool>,
}

impl<M: StateMachine> Waker for MailboxWaker<M> {
    fn wake(&self) {
        if !self.nudged.swap(true, Ordering::AcqRel) {
            // A full mailbox is being emptied: the shard looks at everything else in the same round.
            if self.mailbox.try_send(Mail::Nudge).is_err() {
                self.nudged.store(false, Ordering::Release);
            }
        }
    }
}

/// Verdicts about nodes on their way to a shard, in order. Unlike mail they always find room: groups that sleep have
/// nothing else to learn of a dead leader by.
#[derive(Default)]
pub(super) struct Verdicts(Mutex<Vec<(NodeId, bool)>>);

impl Verdicts {
    /// Adds one. Of each node the last two are enough to tell a restart.
    pub fn push(&self, node: NodeId, up: bool) {
        let mut waiting = self.0.lock();
        let mut of_node = waiting.iter().enumerate().filter(|(_, (n, _))| *n == node).map(|(at, _)| at);
        if let (Some(oldest), Some(_)) = (of_node.next(), of_node.next()) {
            waiting.remove(oldest);
        }
        waiting.push((node, up));
    }
}

/// What a snapshot transfer asks of the store, and the shard that it is for.
pub(super) struct Bulk {
    pub shard: usize,
    pub work: Work,
}

pub(super) struct Shard<M: StateMachine> {
    pub number: usize,
    pub driver: Driver<M>,
    pub mailbox: Receiver<Mail<M>>,
    pub nudged: Arc<AtomicBool>,
    pub verdicts: Arc<Verdicts>,
    pub persisted: Arc<AtomicU64>,
    pub writer: Sender<Handed>,
    pub bulk: Sender<Bulk>,
    pub peers: Arc<dyn PeerSink>,
    pub registry: Arc<Registry>,
    pub hooks: Arc<HostHooks>,
    pub tick: Duration,
    pub waiting: Waiting,
}

/// Who waits for which event.
#[derive(Default)]
pub(super) struct Waiting {
    next: u64,
    reads: FxHashMap<u64, oneshot::Sender<Option<u64>>>,
    changes: FxHashMap<u64, oneshot::Sender<Result<(), ChangeError>>>,
}

/// The wall clock in ms.
pub(super) fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_millis() as u64)
}

impl<M: StateMachine> Shard<M> {
    /// Runs until told to stop, or until every handle is gone.
    pub fn run(mut self) {
        let mut out = Output::default();
        let mut batches = Outbox::default();
        let mut persisted = 0;
        let mut next_tick = Instant::now() + self.tick;
        let (mut more, mut rested) = (true, false);
        loop {
            let first = if more {
                self.mailbox.try_recv().ok()
            } else {
                match self.mailbox.recv_deadline(next_tick) {
                    Ok(mail) => Some(mail),
                    Err(RecvTimeoutError::Timeout) => None,
                    Err(RecvTimeoutError::Disconnected) => break,
                }
            };
            self.driver.set_clock(now_ms());
            if !self.take_in(first) {
                break;
            }
            let durable = self.persisted.load(Ordering::Acquire);
            if durable > persisted {
                persisted = durable;
                self.driver.persisted(durable);
            }
            self.take_verdicts();
            let now = Instant::now();
            let ticks = now >= next_tick;
            if ticks {
                self.driver.tick(now_ms());
                next_tick += self.tick;
                if next_tick < now {
                    // The thread was held up: time that passed unseen is not caught up, others may have been held up too.
                    next_tick = now + self.tick;
                }
            }
            more = self.driver.poll(&mut out);
            self.hand_out(&mut out, &mut batches);
            let rests = !more && self.driver.is_quiet();
            let latest = now + if rests { self.rest() } else { self.tick };
            next_tick = if rests && (ticks || !rested) { latest } else { next_tick.min(latest) };
            rested = rests;
        }
        self.driver.prepare_to_stop();
        self.driver.poll(&mut out);
        self.hand_out(&mut out, &mut batches);
        self.driver.stop_all();
        self.registry.close_all(self.number);
    }

    /// Time until the next tick while all groups sleep: until a machine's timer, in whole ticks, or a while.
    fn rest(&self) -> Duration {
        let timer = self.driver.next_timer_ms().map(|at| Duration::from_millis(at.saturating_sub(now_ms())));
        timer.unwrap_or(Duration::MAX).clamp(self.tick, self.tick * RESTING_TICKS)
    }

    fn take_verdicts(&mut self) {
        let verdicts = std::mem::take(&mut *self.verdicts.0.lock());
        for (node, up) in verdicts {
            if up {
                self.driver.peer_up(node);
            } else {
                self.driver.peer_down(node);
            }
        }
    }

    /// Takes in what waits; false = stop.
    fn take_in(&mut self, first: Option<Mail<M>>) -> bool {
        let Some(first) = first else { return true };
        if !self.deliver(first) {
            return false;
        }
        for _ in 1..MAILS_PER_ROUND {
            let Ok(mail) = self.mailbox.try_recv() else { break };
            if !self.deliver(mail) {
                return false;
            }
        }
        true
    }

    fn deliver(&mut self, mail: Mail<M>) -> bool {
        match mail {
            Mail::Request(group, request) => {
                self.driver.requests(group, [request]);
            }
            Mail::Requests(group, requests) => {
                self.driver.requests(group, requests);
            }
            Mail::Messages(from, messages) => {
                for message in messages {
                    self.driver.step(from, message);
                }
            }
            Mail::Create(spec, answer) => {
                let group = spec.group;
                let created = self.driver.create_group(*spec);
                if created.is_ok()
                    && let Some(status) = self.driver.status(group)
                {
                    self.registry.insert(&status, self.number);
                }
                let _ = answer.send(created);
            }
            Mail::Remove(group, answer) => {
                let removed = self.driver.remove_group(group);
                self.registry.remove(group);
                let _ = answer.send(removed);
            }
            Mail::Close(group) => {
                self.driver.close_group(group);
                self.registry.remove(group);
            }
            Mail::Read(group, answer) => {
                let ctx = self.waiting.number();
                self.waiting.reads.insert(ctx, answer);
                self.driver.read_index(group, ctx);
            }
            Mail::Change(group, change, answer) => {
                let token = self.waiting.number();
                self.waiting.changes.insert(token, answer);
                self.driver.change_members(group, token, change);
            }
            Mail::Transfer(group, to, answer) => {
                let _ = answer.send(self.driver.transfer_leader(group, to));
            }
            Mail::Members(group, answer) => {
                let _ = answer.send(self.driver.members(group));
            }
            Mail::Snapshot(group) => self.driver.force_snapshot(group),
            Mail::Figures(answer) => {
                let _ = answer.send(self.driver.figures());
            }
            Mail::Alone(group, answer) => {
                // The asker may have gone away.
                let _ = answer.send(self.driver.make_alone(group));
            }
            Mail::Campaign(group) => self.driver.campaign(group),
            Mail::Abstain(abstains) => self.driver.set_abstains(abstains),
            Mail::WorkDone(group, transfer, done) => self.driver.work_done(group, transfer, done),
            Mail::Nudge => self.nudged.store(false, Ordering::Release),
            Mail::Stop => return false,
        }
        true
    }

    fn hand_out(&mut self, out: &mut Output, batches: &mut Outbox) {
        // First to the disk, then to the network: both then work at the same time.
        if let Some(batch) = out.write.take() {
            // The writer is gone only when the host is: then nothing is acknowledged any more either.
            let _ = self.writer.send(Handed { shard: self.number, batch });
        }
        for message in out.messages.drain(..) {
            batches.add(message.to, message.lane, message.message);
        }
        let driver = &mut self.driver;
        batches.send(&*self.peers, |node| driver.peer_lost(node));
        for work in out.work.drain(..) {
            if let Err(refused) = self.bulk.try_send(Bulk { shard: self.number, work }) {
                let (group, transfer) = whose(&refused.into_inner().work);
                self.driver.work_done(group, transfer, WorkDone::Failed("too many snapshot transfers".into()));
            }
        }
        for group in out.touched.drain(..) {
            if let Some(published) = self.registry.get(group)
                && let Some(status) = self.driver.status(group)
            {
                published.publish(&status);
            }
        }
        for event in out.events.drain(..) {
            match event {
                Event::Read { ctx, index, .. } => {
                    if let Some(answer) = self.waiting.reads.remove(&ctx) {
                        let _ = answer.send(index);
                    }
                }
                Event::Changed { token, outcome, .. } => {
                    if let Some(answer) = self.waiting.changes.remove(&token) {
                        let _ = answer.send(outcome);
                    }
                }
                other => (self.hooks.on_event)(other),
            }
        }
    }
}

impl Waiting {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

/// The group and the transfer that a piece of work is for.
pub(crate) fn whose(work: &Work) -> (GroupId, u64) {
    match work {
        Work::LoadState { group, transfer }
        | Work::LoadEntries { group, transfer, .. }
        | Work::Stage { group, transfer, .. }
        | Work::Restage { group, transfer, .. } => (*group, *transfer),
    }
}

/// Messages of one round, by node and lane.
#[derive(Default)]
struct Outbox(Vec<(NodeId, Lane, Vec<RaftMessage>)>);

impl Outbox {
    fn add(&mut self, to: NodeId, lane: Lane, message: RaftMessage) {
        // A handful of peers and three lanes: a scan is shorter than a hash.
        match self.0.iter_mut().find(|(n, l, _)| (*n, *l) == (to, lane)) {
            Some((.., messages)) => messages.push(message),
            None => self.0.push((to, lane, vec![message])),
        }
    }

    fn send(&mut self, peers: &dyn PeerSink, mut lost: impl FnMut(NodeId)) {
        for (to, lane, messages) in self.0.drain(..) {
            if !peers.send(to, lane, RaftBatch { messages }) && lane == Lane::Append {
                lost(to);
            }
        }
    }
}
