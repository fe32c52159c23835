//! The queue as one would write it down first: vectors and maps, recounted and searched every time. It is written from the
//! specification and shares no code with the machine but the types of commands, answers and effects.

mod consumers;
mod messages;
mod shown;
mod single_active;

use std::collections::{BTreeMap, BTreeSet};

use shown::shown;

use super::*;

#[derive(Debug, Clone)]
pub(super) struct Msg {
    reference: Reference,
    size: u32,
    carried: u32,
    acquired: u32,
    failed: u32,
    expiry: Option<u64>,
    annotations: BTreeMap<Bytes, Bytes>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Base {
    Up,
    Quiescing,
    Cancelled,
}

#[derive(Debug, Clone)]
struct Held {
    id: u64,
    deadline: Option<u64>,
    msg: Msg,
}

#[derive(Debug, Clone)]
pub(super) struct Con {
    pub key: ConsumerKey,
    pub id: ConsumerId,
    get: bool,
    priority: i32,
    mode: Mode,
    base: Base,
    waiting: bool,
    suspected: Option<u64>,
    timeout: Option<u64>,
    timed_out: BTreeSet<u64>,
    next_id: u64,
    held: Vec<Held>,
    granted: u32,
    delivery_count: u32,
}

#[derive(Debug, Clone, Copy)]
struct Enq {
    next_seq: u64,
    blocked: bool,
}

#[derive(Debug, Clone)]
struct Worker {
    session: SessionRef,
    prefetch: usize,
    held: Vec<(u64, DeadReason, Msg)>,
}

/// Where a message went that died.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Fate {
    Dropped,
    Published(Delivered),
    Kept,
}

/// What came of one command.
#[derive(Debug, Default, PartialEq)]
pub(super) struct Outcome {
    /// By consumer, ascending; each consumer's in order.
    pub delivered: Vec<(ConsumerKey, Delivered)>,
    pub dead: Vec<(DeadReason, Fate)>,
    pub credits: Vec<CreditReply>,
    pub status: Vec<(SessionRef, bool)>,
    pub released: Vec<(ConsumerKey, Vec<u64>, bool)>,
    pub to_worker: Vec<(SessionRef, DeadReason, Delivered)>,
    pub worker_wanted: Option<bool>,
    pub snapshot: bool,
}

#[derive(Debug)]
pub(super) struct Model {
    config: Config,
    /// Never handed out, in the order of arrival, with their priorities.
    ready: Vec<(u8, Msg)>,
    turn: u8,
    returns: Vec<Msg>,
    delayed: Vec<(u64, Msg)>,
    discards: Vec<(DeadReason, Msg)>,
    worker: Option<Worker>,
    next_dead_id: u64,
    enqueuers: BTreeMap<SessionRef, Enq>,
    /// In the order in which they were attached.
    pub consumers: Vec<Con>,
    service: Vec<ConsumerKey>,
    last_active: Option<u64>,
    now: u64,
    version: MachineVersion,
    pub out: Outcome,
}

impl Model {
    pub fn new(config: Config) -> Self {
        Model {
            config,
            ready: Vec::new(),
            turn: 0,
            returns: Vec::new(),
            delayed: Vec::new(),
            discards: Vec::new(),
            worker: None,
            next_dead_id: 0,
            enqueuers: BTreeMap::new(),
            consumers: Vec::new(),
            service: Vec::new(),
            last_active: None,
            now: 0,
            version: MV1,
            out: Outcome::default(),
        }
    }

    pub fn apply(&mut self, meta: &Meta, command: &Command) -> Reply {
        self.out = Outcome::default();
        (self.now, self.version) = (meta.ts_ms, meta.version);
        self.last_active.get_or_insert(meta.ts_ms);
        let reply = self.command(meta.reference, command);
        self.settle_down();
        self.pass_time();
        self.activate();
        self.settle_down();
        self.hand_out();
        if let Command::Credit { consumer, drain, .. } = command {
            self.credit_reply(consumer, *drain);
        }
        self.settle_down();
        self.feed_worker();
        self.limits();
        self.out.delivered.sort_by_key(|(key, d)| (*key, d.msg_id));
        reply
    }

    fn mv2(&self) -> bool {
        self.version >= MV2
    }

    fn command(&mut self, reference: Reference, command: &Command) -> Reply {
        match command {
            Command::RegisterEnqueuer { session } => {
                let refuses = self.config.overflow == Overflow::RejectPublish && !self.within(10);
                let enq = self.enqueuers.entry(*session).or_insert(Enq { next_seq: 1, blocked: false });
                enq.blocked |= refuses;
                let Enq { next_seq, blocked } = *enq;
                if blocked {
                    self.out.status.push((*session, true));
                }
                Reply::Registered { next_seq, blocked }
            }
            Command::Enqueue(enqueue) => self.enqueue(reference, enqueue),
            Command::Attach(attach) => self.attach(reference, attach),
            Command::Dequeue { consumer, settled, default_timeout_ms } => {
                self.dequeue(reference, consumer, *settled, *default_timeout_ms)
            }
            Command::Settle { consumer, ids } => {
                self.answered(consumer, ids);
                Reply::Ok
            }
            Command::Return { consumer, ids, failed } => {
                // Version 1 counts a reject with requeue as a nack.
                let failed = *failed && self.mv2();
                for msg in self.answered(consumer, ids) {
                    self.give_back(msg, failed, None);
                }
                Reply::Ok
            }
            Command::Discard { consumer, ids } => {
                for msg in self.answered(consumer, ids) {
                    self.reject(msg, true);
                }
                Reply::Ok
            }
            Command::Modify(modify) => {
                for mut msg in self.answered(&modify.consumer, &modify.ids) {
                    msg.annotations.extend(modify.annotations.iter().cloned());
                    match modify.undeliverable_here {
                        true => self.reject(msg, modify.failed),
                        false => self.give_back(msg, modify.failed, modify.deliver_at_ms.filter(|_| self.mv2())),
                    }
                }
                Reply::Ok
            }
            Command::Credit { consumer, credit, delivery_count, .. } => {
                self.credit(consumer, *credit, *delivery_count);
                Reply::Ok
            }
            Command::Cancel { consumer } => self.cancel(consumer),
            Command::Remove { consumer } => match self.find(consumer).map(|c| c.key) {
                Some(key) => Reply::Cancelled { key, num_checked_out: self.drop_consumer(key, false) },
                None => Reply::NotFound,
            },
            Command::Purge => self.purge(),
            Command::SessionDown { session, loss: SessionLoss::Gone } => {
                self.gone(*session);
                Reply::Ok
            }
            Command::SessionDown { session, loss: SessionLoss::NoConnection } => {
                self.cut_off(*session);
                Reply::Ok
            }
            Command::NodeUp { node } => {
                self.consumers.iter_mut().filter(|c| c.id.session.node == *node).for_each(|c| c.suspected = None);
                // Its sessions are told anew what they are to know.
                let blocked = self.enqueuers.iter().filter(|(session, enq)| session.node == *node && enq.blocked);
                self.out.status.extend(blocked.map(|(session, _)| (*session, true)));
                let late = self.consumers.iter().filter(|c| c.id.session.node == *node && !c.timed_out.is_empty());
                self.out.released.extend(late.map(|c| (c.key, c.timed_out.iter().copied().collect(), false)));
                Reply::Ok
            }
            Command::PurgeNodes { nodes } => {
                for node in nodes {
                    self.sessions().into_iter().filter(|s| s.node == *node).for_each(|s| self.gone(s));
                }
                Reply::Ok
            }
            Command::UpdateConfig(config) => {
                self.update_config(config);
                Reply::Ok
            }
            Command::Timeout(TimerKey::ConsumerDisconnected(key)) => {
                self.disconnected(*key);
                Reply::Ok
            }
            Command::Timeout(TimerKey::ConsumerDeadlines) => {
                self.deadlines();
                Reply::Ok
            }
            Command::Timeout(TimerKey::ExpireMessages) | Command::Continue => Reply::Ok,
            Command::DlxAttach { session, prefetch } => self.attach_worker(*session, *prefetch),
            Command::DlxSettle { session, ids } => {
                self.settle_worker(*session, ids);
                Reply::Ok
            }
            Command::DelayedRetryNow { count } => self.retry_now(*count),
        }
    }
}

/// The ids of some runs in order, each run cut off where no test has ids any more.
fn listed(ids: &MsgIds) -> Vec<u64> {
    ids.runs().iter().flat_map(|run| run.start..run.start.saturating_add(run.count.min(2000))).collect()
}
