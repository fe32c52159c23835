//! The queue as one would write it down first: vectors, recounted and searched every time.

use std::collections::BTreeMap;

use super::*;

#[derive(Debug, Clone, Copy)]
struct Msg {
    reference: Reference,
    size: u32,
    carried: u32,
    acquired: u32,
    failed: u32,
}

#[derive(Debug, Clone)]
pub(super) struct Con {
    pub key: ConsumerKey,
    pub id: ConsumerId,
    get: bool,
    priority: i32,
    window: usize,
    cancelled: bool,
    suspected: Option<u64>,
    next_id: u64,
    held: Vec<(u64, Msg)>,
}

#[derive(Debug, Default)]
pub(super) struct Model {
    config: Config,
    ready: Vec<Msg>,
    returns: Vec<Msg>,
    pub enqueuers: BTreeMap<SessionRef, u64>,
    pub consumers: Vec<Con>,
    service: Vec<ConsumerKey>,
    /// Outcome of the last command.
    pub delivered: Vec<(ConsumerKey, Delivered)>,
    pub dropped: u64,
}

impl Con {
    fn credit(&self) -> usize {
        if self.get || self.cancelled { 0 } else { self.window.saturating_sub(self.held.len()) }
    }

    fn able(&self) -> bool {
        self.suspected.is_none() && self.credit() > 0
    }
}

fn shown(id: u64, m: &Msg) -> Delivered {
    Delivered {
        msg_id: id,
        reference: m.reference,
        acquired_count: m.acquired,
        delivery_count: m.carried + m.failed,
        size: m.size,
        annotations: None,
    }
}

impl Model {
    pub fn apply(&mut self, meta: &Meta, command: &Command) -> Reply {
        self.delivered.clear();
        self.dropped = 0;
        let reply = self.command(meta, command);
        self.consumers.retain(|c| !(c.held.is_empty() && (c.get || c.cancelled)));
        for c in &self.consumers {
            if c.able() && !self.service.contains(&c.key) {
                self.service.push(c.key);
            }
        }
        let consumers = &self.consumers;
        self.service.retain(|key| consumers.iter().any(|c| c.key == *key && c.able()));
        self.hand_out();
        reply
    }

    fn command(&mut self, meta: &Meta, command: &Command) -> Reply {
        let v2 = meta.version >= MV2;
        match command {
            Command::RegisterEnqueuer { session } => {
                Reply::Registered { next_seq: *self.enqueuers.entry(*session).or_insert(1) }
            }
            Command::Enqueue(e) => {
                if let Some(o) = e.origin {
                    match self.enqueuers.get(&o.session).copied() {
                        None if o.seq != 1 => return Reply::UnknownEnqueuer,
                        Some(next) if o.seq < next => return Reply::Ok,
                        Some(next) if o.seq > next => return Reply::OutOfSequence { expected: next },
                        _ => self.enqueuers.insert(o.session, o.seq + 1),
                    };
                }
                let size = e.message.body_size();
                let carried = e.delivery_count;
                self.ready.push(Msg { reference: meta.reference, size, carried, acquired: 0, failed: 0 });
                Reply::Ok
            }
            Command::Attach(a) => {
                let Mode::SimplePrefetch(n) = a.mode else { unimplemented!() };
                let window = if n == 0 { 2000 } else { n as usize };
                if !self.consumers.iter().any(|c| c.id == a.consumer) {
                    self.consumers.push(Con {
                        key: meta.reference.into(),
                        id: a.consumer.clone(),
                        get: false,
                        priority: a.priority,
                        window,
                        cancelled: false,
                        suspected: None,
                        next_id: 0,
                        held: Vec::new(),
                    });
                }
                let c = self.consumers.iter_mut().find(|c| c.id == a.consumer).unwrap();
                if c.priority != a.priority {
                    self.service.retain(|key| *key != c.key);
                }
                (c.get, c.window, c.priority, c.cancelled, c.suspected) = (false, window, a.priority, false, None);
                Reply::Attached {
                    key: c.key,
                    next_msg_id: c.next_id,
                    credit: c.credit() as u32,
                    delivery_count: 0,
                    num_checked_out: c.held.len(),
                    active: true,
                }
            }
            Command::Dequeue { consumer, settled, .. } => {
                let ready = (self.ready.len() + self.returns.len()) as u64;
                if let Some(c) = self.consumers.iter().find(|c| c.id == *consumer) {
                    return if c.get {
                        Reply::Got { key: c.key, message: shown(c.held[0].0, &c.held[0].1), ready }
                    } else {
                        Reply::IdInUse
                    };
                }
                let Some(m) = self.next() else { return Reply::Empty };
                let key = meta.reference.into();
                if !settled {
                    self.consumers.push(Con {
                        key,
                        id: consumer.clone(),
                        get: true,
                        priority: 0,
                        window: 1,
                        cancelled: false,
                        suspected: None,
                        next_id: 1,
                        held: vec![(0, m)],
                    });
                }
                Reply::Got { key, message: shown(0, &m), ready: ready - 1 }
            }
            Command::Settle { consumer, ids } => {
                self.answered(consumer, ids);
                Reply::Ok
            }
            Command::Discard { consumer, ids } => {
                self.dropped += self.answered(consumer, ids).len() as u64;
                Reply::Ok
            }
            Command::Return { consumer, ids, failed } => {
                for m in self.answered(consumer, ids) {
                    self.give_back(meta, m, *failed && v2);
                }
                Reply::Ok
            }
            Command::Cancel { consumer } => match self.find(consumer) {
                Some(c) => {
                    c.cancelled = true;
                    Reply::Cancelled { key: c.key, num_checked_out: c.held.len() }
                }
                None => Reply::NotFound,
            },
            Command::Remove { consumer } => match self.find(consumer).map(|c| c.key) {
                Some(key) => {
                    let num_checked_out = self.drop_consumer(meta, key, false);
                    Reply::Cancelled { key, num_checked_out }
                }
                None => Reply::NotFound,
            },
            Command::Purge => {
                let count = (self.ready.len() + self.returns.len()) as u64;
                self.ready.clear();
                self.returns.clear();
                Reply::Purged { count }
            }
            Command::SessionDown { session, loss: SessionLoss::Gone } => {
                self.gone(meta, |s| s == *session);
                Reply::Ok
            }
            Command::SessionDown { session, loss: SessionLoss::NoConnection } => {
                for i in 0..self.consumers.len() {
                    let c = &mut self.consumers[i];
                    let lost = if v2 { c.id.session == *session } else { c.id.session.node == session.node };
                    if lost && c.suspected.is_none() {
                        c.suspected = Some(meta.ts_ms);
                        if !v2 {
                            for (_, m) in std::mem::take(&mut c.held) {
                                self.give_back(meta, m, true);
                            }
                        }
                    }
                }
                Reply::Ok
            }
            Command::NodeUp { node } => {
                self.consumers.iter_mut().filter(|c| c.id.session.node == *node).for_each(|c| c.suspected = None);
                Reply::Ok
            }
            Command::PurgeNodes { nodes } => {
                let mut sessions: Vec<_> = self.consumers.iter().map(|c| c.id.session).collect();
                sessions.extend(self.enqueuers.keys().copied());
                sessions.sort();
                sessions.dedup();
                for node in nodes {
                    for lost in sessions.iter().filter(|s| s.node == *node) {
                        self.gone(meta, |s| s == *lost);
                    }
                }
                Reply::Ok
            }
            Command::UpdateConfig(config) => {
                self.config = config.clone();
                Reply::Ok
            }
            Command::Timeout(TimerKey::ConsumerDisconnected(key)) => {
                let timeout = self.config.consumer_disconnected_timeout_ms;
                let due = |c: &&mut Con| c.key == *key && c.suspected.is_some_and(|at| at + timeout <= meta.ts_ms);
                if let Some(c) = self.consumers.iter_mut().find(due) {
                    for (_, m) in std::mem::take(&mut c.held) {
                        self.give_back(meta, m, false);
                    }
                }
                Reply::Ok
            }
            Command::Continue => Reply::Ok,
            _ => unimplemented!(),
        }
    }

    pub fn messages(&self) -> Vec<Reference> {
        let mut all: Vec<_> = self.ready.iter().chain(&self.returns).map(|m| m.reference).collect();
        all.extend(self.consumers.iter().flat_map(|c| c.held.iter().map(|h| h.1.reference)));
        all.sort();
        all
    }

    pub fn sessions(&self) -> Vec<SessionRef> {
        let mut all: Vec<_> = self.consumers.iter().map(|c| c.id.session).collect();
        all.extend(self.enqueuers.keys());
        all.sort();
        all.dedup();
        all
    }

    pub fn overview(&self, last_active_ms: u64) -> Overview {
        let ready: Vec<_> = self.ready.iter().chain(&self.returns).collect();
        let held: Vec<_> = self.consumers.iter().flat_map(|c| c.held.iter().map(|h| h.1)).collect();
        let bytes_ready = ready.iter().map(|m| u64::from(m.size)).sum();
        let bytes_unacked = held.iter().map(|m| u64::from(m.size)).sum();
        Overview {
            messages: (ready.len() + held.len()) as u64,
            ready: ready.len() as u64,
            ready_returned: self.returns.len() as u64,
            unacked: held.len() as u64,
            bytes: bytes_ready + bytes_unacked,
            bytes_ready,
            bytes_unacked,
            ready_high: 0,
            delayed: 0,
            dead: 0,
            bytes_dead: 0,
            consumers: self.consumers.iter().filter(|c| !c.get && !c.cancelled && c.suspected.is_none()).count() as u64,
            publishers: self.enqueuers.len() as u64,
            last_active_ms,
        }
    }

    fn next(&mut self) -> Option<Msg> {
        let from = if self.returns.is_empty() { &mut self.ready } else { &mut self.returns };
        (!from.is_empty()).then(|| from.remove(0))
    }

    fn hand_out(&mut self) {
        while self.ready.len() + self.returns.len() > 0 && !self.service.is_empty() {
            let priority = |key: &ConsumerKey| self.consumers.iter().find(|c| c.key == *key).unwrap().priority;
            let highest = self.service.iter().map(priority).max().unwrap();
            let at = self.service.iter().position(|key| priority(key) == highest).unwrap();
            let key = self.service.remove(at);
            let m = self.next().unwrap();
            let c = self.consumers.iter_mut().find(|c| c.key == key).unwrap();
            self.delivered.push((key, shown(c.next_id, &m)));
            c.held.push((c.next_id, m));
            c.next_id += 1;
            if c.able() {
                self.service.push(key);
            }
        }
    }

    fn find(&mut self, consumer: &ConsumerRef) -> Option<&mut Con> {
        self.consumers.iter_mut().find(|c| match consumer {
            ConsumerRef::Key(key) => c.key == *key,
            ConsumerRef::Id(id) => c.id == *id,
        })
    }

    fn answered(&mut self, consumer: &ConsumerRef, ids: &MsgIds) -> Vec<Msg> {
        let Some(c) = self.find(consumer) else { return Vec::new() };
        let mut taken = Vec::new();
        for run in ids.runs() {
            for id in run.start..run.start.saturating_add(run.count.min(1000)) {
                if let Some(at) = c.held.iter().position(|h| h.0 == id) {
                    taken.push(c.held.remove(at).1);
                }
            }
        }
        taken
    }

    fn give_back(&mut self, meta: &Meta, mut m: Msg, failed: bool) {
        m.acquired += 1;
        m.failed += u32::from(failed);
        let count = if meta.version >= MV2 { m.failed } else { m.acquired };
        if self.config.delivery_limit.is_some_and(|limit| count > limit) {
            self.dropped += 1;
        } else {
            self.returns.push(m);
        }
    }

    fn drop_consumer(&mut self, meta: &Meta, key: ConsumerKey, failed: bool) -> usize {
        let at = self.consumers.iter().position(|c| c.key == key).unwrap();
        let c = self.consumers.remove(at);
        self.service.retain(|k| *k != key);
        let held = c.held.len();
        for (_, m) in c.held {
            self.give_back(meta, m, failed);
        }
        held
    }

    fn gone(&mut self, meta: &Meta, lost: impl Fn(SessionRef) -> bool) {
        let keys: Vec<_> = self.consumers.iter().filter(|c| lost(c.id.session)).map(|c| c.key).collect();
        for key in keys {
            self.drop_consumer(meta, key, true);
        }
        self.enqueuers.retain(|session, _| !lost(*session));
    }
}
