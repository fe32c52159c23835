//! Messages: how they come, in what order they go, and how they die.

use super::*;

impl Model {
    pub fn expected_seq(&self, session: SessionRef) -> u64 {
        self.enqueuers.get(&session).map_or(1, |enq| enq.next_seq)
    }

    pub(super) fn enqueue(&mut self, reference: Reference, enqueue: &Enqueue) -> Reply {
        if let Some(Origin { session, seq }) = enqueue.origin {
            match self.enqueuers.get(&session).map(|enq| enq.next_seq) {
                None if seq != 1 => return Reply::UnknownEnqueuer,
                Some(next) if seq < next => return Reply::Ok,
                Some(next) if seq > next => return Reply::OutOfSequence { expected: next },
                _ => self.enqueuers.entry(session).or_insert(Enq { next_seq: 1, blocked: false }).next_seq += 1,
            }
        }
        let ttl = [enqueue.ttl_ms, self.config.message_ttl_ms].into_iter().flatten().min();
        let msg = Msg {
            reference,
            size: enqueue.message.body_size(),
            carried: enqueue.delivery_count,
            acquired: 0,
            failed: 0,
            expiry: ttl.map(|ttl| self.now + if ttl == 0 { 1 } else { ttl }),
            annotations: BTreeMap::new(),
        };
        let priority = match (self.mv2(), enqueue.priority) {
            (true, priority) => priority.unwrap_or(4).min(31),
            (false, Some(5..)) => 9,
            (false, _) => 4,
        };
        self.ready.push((priority, msg));
        Reply::Ok
    }

    pub(super) fn ready_count(&self) -> u64 {
        (self.ready.len() + self.returns.len()) as u64
    }

    /// The next message for a consumer, or the one that is dropped for a new one.
    pub(super) fn next(&mut self) -> Option<Msg> {
        if !self.returns.is_empty() {
            return Some(self.returns.remove(0));
        }
        let highest = self.ready.iter().map(|(priority, _)| *priority).max()?;
        let mut at = self.ready.iter().position(|(priority, _)| *priority == highest)?;
        if !self.mv2() {
            let normal = self.ready.iter().position(|(priority, _)| *priority < 5);
            // The list is in the order of arrival: the one further to the front is older.
            if let Some(normal) = normal.filter(|normal| self.turn == 2 && *normal < at) {
                at = normal;
            }
            self.turn = (self.turn + 1) % 3;
        }
        Some(self.ready.remove(at).1)
    }

    fn expired(&self, msg: &Msg) -> bool {
        msg.expiry.is_some_and(|at| at <= self.now)
    }

    pub(super) fn pass_time(&mut self) {
        while let Some(at) = self.first_delayed().filter(|at| self.delayed[*at].0 <= self.now) {
            self.wake(at);
        }
        self.expire();
    }

    /// Makes a delayed message ready, or lets it die. Whether it is ready.
    fn wake(&mut self, at: usize) -> bool {
        let (_, msg) = self.delayed.remove(at);
        if self.expired(&msg) {
            self.bury(DeadReason::Expired, msg);
            return false;
        }
        self.returns.push(msg);
        true
    }

    fn first_delayed(&self) -> Option<usize> {
        (0..self.delayed.len()).min_by_key(|at| (self.delayed[*at].0, self.delayed[*at].1.reference))
    }

    pub(super) fn retry_now(&mut self, count: Option<u64>) -> Reply {
        let mut moved = 0;
        while let Some(at) = self.first_delayed().filter(|_| count.is_none_or(|count| moved < count)) {
            moved += u64::from(self.wake(at));
        }
        Reply::Retried { count: moved }
    }

    pub(super) fn expire(&mut self) {
        while self.returns.first().is_some_and(|msg| self.expired(msg)) {
            let msg = self.returns.remove(0);
            self.bury(DeadReason::Expired, msg);
        }
        for lane in (0..32).rev() {
            while let Some(at) = self.ready.iter().position(|(priority, _)| *priority == lane)
                && self.expired(&self.ready[at].1)
            {
                let (_, msg) = self.ready.remove(at);
                self.bury(DeadReason::Expired, msg);
            }
        }
    }

    /// When time has something to do next.
    pub fn next_due(&self) -> Option<u64> {
        let heads = (0..32).filter_map(|lane| self.ready.iter().find(|(priority, _)| *priority == lane));
        let heads = heads.map(|(_, msg)| msg).chain(self.returns.first());
        heads.filter_map(|msg| msg.expiry).chain(self.delayed.iter().map(|(at, _)| *at)).min()
    }

    pub(super) fn give_back(&mut self, mut msg: Msg, failed: bool, deliver_at: Option<u64>) {
        msg.acquired += 1;
        msg.failed += u32::from(failed);
        let count = if self.mv2() { msg.failed } else { msg.acquired };
        if self.config.delivery_limit.is_some_and(|limit| count > limit) {
            return self.bury(DeadReason::DeliveryLimit, msg);
        }
        let ready_at = match (deliver_at, &self.config.delayed_retry) {
            (Some(at), _) => at,
            (None, Some(retry)) if self.mv2() => {
                let applies = match retry.on {
                    RetryOn::All => true,
                    RetryOn::Failed => failed,
                    RetryOn::Returned => !failed,
                };
                let delay = (retry.min_ms * u64::from(msg.failed.max(1))).min(retry.max_ms);
                if applies { self.now + delay } else { self.now }
            }
            (None, _) => self.now,
        };
        if ready_at > self.now {
            self.delayed.push((ready_at, msg));
        } else {
            self.returns.push(msg);
        }
    }

    pub(super) fn reject(&mut self, mut msg: Msg, failed: bool) {
        msg.acquired += 1;
        msg.failed += u32::from(failed);
        self.bury(DeadReason::Rejected, msg);
    }

    pub(super) fn bury(&mut self, reason: DeadReason, msg: Msg) {
        let fate = match &self.config.dead_letter {
            None => Fate::Dropped,
            Some(_) if self.config.at_least_once() => {
                self.discards.push((reason, msg));
                Fate::Kept
            }
            Some(_) => Fate::Published(shown(0, &msg)),
        };
        self.out.dead.push((reason, fate));
    }

    pub(super) fn purge(&mut self) -> Reply {
        self.out.snapshot = true;
        let mut count = self.ready_count();
        self.ready.clear();
        self.returns.clear();
        if self.mv2() {
            count += (self.delayed.len() + self.dead_count()) as u64;
            self.delayed.clear();
            self.discards.clear();
            self.worker.iter_mut().for_each(|worker| worker.held.clear());
        }
        Reply::Purged { count }
    }

    pub(super) fn update_config(&mut self, config: &Config) {
        let (was, single_active) = (self.config.at_least_once(), self.config.single_active);
        self.config = Config { single_active, ..config.clone() };
        let is = self.config.at_least_once();
        if was && !is {
            self.discards.clear();
            self.worker = None;
        }
        if was != is {
            self.out.worker_wanted = Some(is);
        }
    }

    pub(super) fn dead_count(&self) -> usize {
        self.discards.len() + self.worker.as_ref().map_or(0, |worker| worker.held.len())
    }

    pub fn worker(&self) -> Option<(SessionRef, Vec<u64>)> {
        self.worker.as_ref().map(|worker| (worker.session, worker.held.iter().map(|held| held.0).collect()))
    }

    pub(super) fn attach_worker(&mut self, session: SessionRef, prefetch: u32) -> Reply {
        if !self.config.at_least_once() {
            return Reply::NotFound;
        }
        if let Some(old) = self.worker.take() {
            let mut all: Vec<_> = old.held.into_iter().map(|(_, reason, msg)| (reason, msg)).collect();
            all.append(&mut self.discards);
            self.discards = all;
        }
        self.worker = Some(Worker { session, prefetch: prefetch.max(1) as usize, held: Vec::new() });
        Reply::Ok
    }

    pub(super) fn settle_worker(&mut self, session: SessionRef, ids: &MsgIds) {
        let ids = listed(ids);
        if let Some(worker) = self.worker.as_mut().filter(|worker| worker.session == session) {
            worker.held.retain(|(id, ..)| !ids.contains(id));
        }
    }

    pub(super) fn feed_worker(&mut self) {
        let Some(worker) = &mut self.worker else { return };
        while worker.held.len() < worker.prefetch && !self.discards.is_empty() {
            let (reason, msg) = self.discards.remove(0);
            self.out.to_worker.push((worker.session, reason, shown(self.next_dead_id, &msg)));
            worker.held.push((self.next_dead_id, reason, msg));
            self.next_dead_id += 1;
        }
    }

    /// Whether messages and bytes that nobody holds are at most the limits, times `tenths` / 10, rounded down.
    pub(super) fn within(&self, tenths: u64) -> bool {
        let dead = self.discards.iter().map(|(_, msg)| msg);
        let dead = dead.chain(self.worker.iter().flat_map(|worker| worker.held.iter().map(|(.., msg)| msg)));
        let waiting = self.ready.iter().map(|(_, msg)| msg).chain(&self.returns);
        let all: Vec<_> = waiting.chain(self.delayed.iter().map(|(_, msg)| msg)).chain(dead).collect();
        let bytes = all.iter().map(|msg| u64::from(msg.size)).sum::<u64>();
        self.config.max_length.is_none_or(|limit| all.len() as u64 <= limit * tenths / 10)
            && self.config.max_length_bytes.is_none_or(|limit| bytes <= limit * tenths / 10)
    }

    pub(super) fn limits(&mut self) {
        let rejects = self.config.overflow == Overflow::RejectPublish;
        while !rejects && !self.within(10) {
            let msg = match self.next() {
                Some(msg) => msg,
                None => match self.first_delayed() {
                    Some(at) => self.delayed.remove(at).1,
                    None => break,
                },
            };
            self.bury(DeadReason::MaxLen, msg);
            self.expire();
        }
        let blocked = match (rejects, self.within(10), self.within(8)) {
            (true, false, _) => true,
            (true, true, false) => return,
            (false, ..) | (true, true, true) => false,
        };
        for (session, enq) in self.enqueuers.iter_mut().filter(|(_, enq)| enq.blocked != blocked) {
            enq.blocked = blocked;
            self.out.status.push((*session, blocked));
        }
    }
}
