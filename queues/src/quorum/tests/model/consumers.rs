//! Consumers and what they hold.

use super::*;

impl Con {
    pub(super) fn new(key: ConsumerKey, id: &ConsumerId, mode: Mode) -> Self {
        let delivery_count = match mode {
            Mode::SimplePrefetch(_) => 0,
            Mode::Credited { initial_delivery_count } => initial_delivery_count,
        };
        Con {
            key,
            id: id.clone(),
            get: false,
            priority: 0,
            mode,
            base: Base::Up,
            waiting: false,
            suspected: None,
            timeout: None,
            timed_out: BTreeSet::new(),
            next_id: 0,
            held: Vec::new(),
            granted: 0,
            delivery_count,
        }
    }

    fn held_ids(&self) -> Vec<u64> {
        self.held.iter().map(|held| held.id).collect()
    }

    /// Messages that it may be given.
    pub(super) fn credit(&self) -> u32 {
        match (self.attached(), self.mode) {
            (false, _) => 0,
            (true, Mode::SimplePrefetch(n)) => {
                let n = if n == 0 { 2000 } else { n };
                n.saturating_sub(self.held.len() as u32)
            }
            (true, Mode::Credited { .. }) => self.granted,
        }
    }

    pub fn attached(&self) -> bool {
        !self.get && self.base != Base::Cancelled
    }

    /// Base is up and no overlay lies over it.
    pub(super) fn is_up(&self) -> bool {
        self.attached() && self.base == Base::Up && self.clear()
    }

    pub(super) fn clear(&self) -> bool {
        self.suspected.is_none() && self.timed_out.is_empty()
    }

    fn able(&self) -> bool {
        self.is_up() && !self.waiting && self.credit() > 0
    }
}

impl Model {
    pub(super) fn find(&mut self, consumer: &ConsumerRef) -> Option<&mut Con> {
        let key = self.look_up(consumer)?.key;
        self.consumers.iter_mut().find(|c| c.key == key)
    }

    pub fn held_by(&self, consumer: &ConsumerRef) -> Vec<u64> {
        self.look_up(consumer).map(Con::held_ids).unwrap_or_default()
    }

    pub fn delivery_count(&self, consumer: &ConsumerRef) -> u32 {
        self.look_up(consumer).map_or(0, |c| c.delivery_count)
    }

    fn look_up(&self, consumer: &ConsumerRef) -> Option<&Con> {
        self.consumers.iter().find(|c| match consumer {
            ConsumerRef::Key(key) => c.key == *key,
            ConsumerRef::Id(id) => c.id == *id,
        })
    }

    pub(super) fn by_key(&mut self, key: ConsumerKey) -> &mut Con {
        self.find(&key.into()).expect("a consumer")
    }

    /// Removes those that are done with, and makes the service queue hold those that may be given something.
    pub(super) fn settle_down(&mut self) {
        let done = |c: &Con| c.held.is_empty() && (c.get || c.base == Base::Cancelled);
        if self.consumers.iter().any(done) {
            self.consumers.retain(|c| !done(c));
            self.last_active = Some(self.now);
        }
        for c in self.consumers.iter().filter(|c| c.able()) {
            if !self.service.contains(&c.key) {
                self.service.push(c.key);
            }
        }
        let consumers = &self.consumers;
        self.service.retain(|key| consumers.iter().any(|c| c.key == *key && c.able()));
    }

    pub(super) fn hand_out(&mut self) {
        while self.ready_count() > 0 && !self.service.is_empty() {
            let priority = |key: &ConsumerKey| self.consumers.iter().find(|c| c.key == *key).unwrap().priority;
            let highest = self.service.iter().map(priority).max().unwrap();
            let at = self.service.iter().position(|key| priority(key) == highest).unwrap();
            let key = self.service.remove(at);
            let msg = self.next().unwrap();
            let (now, mv2) = (self.now, self.mv2());
            let c = self.by_key(key);
            let delivered = c.take(msg, now, mv2);
            let able = c.able();
            self.out.delivered.push((key, delivered));
            if able {
                self.service.push(key);
            }
            self.expire();
        }
    }

    pub(super) fn attach(&mut self, reference: Reference, attach: &Attach) -> Reply {
        let timeout = attach.timeout_ms.or(self.config.consumer_timeout_ms).or(attach.default_timeout_ms);
        let (single_active, active) = (self.config.single_active, self.active());
        if !self.consumers.iter().any(|c| c.id == attach.consumer) {
            let mut c = Con::new(reference.into(), &attach.consumer, attach.mode);
            c.waiting = single_active;
            c.priority = attach.priority;
            self.consumers.push(c);
        }
        let c = self.find(&attach.consumer.clone().into()).unwrap();
        if !c.attached() {
            c.waiting = single_active && active.is_some();
            (c.get, c.base) = (false, Base::Up);
        }
        if c.mode != attach.mode {
            c.delivery_count = Con::new(c.key, &attach.consumer, attach.mode).delivery_count;
        }
        (c.mode, c.granted, c.timeout, c.suspected) = (attach.mode, 0, timeout, None);
        c.timed_out.clear();
        let (key, old) = (c.key, std::mem::replace(&mut c.priority, attach.priority));
        if old != attach.priority {
            self.service.retain(|in_service| *in_service != key);
        }
        self.activate();
        let c = self.by_key(key);
        Reply::Attached {
            key,
            next_msg_id: c.next_id,
            credit: c.credit(),
            delivery_count: c.delivery_count,
            num_checked_out: c.held.len(),
            active: !c.waiting,
        }
    }

    pub(super) fn dequeue(
        &mut self,
        reference: Reference,
        id: &ConsumerId,
        settled: bool,
        default_timeout: Option<u64>,
    ) -> Reply {
        self.last_active = Some(self.now);
        if self.config.single_active {
            return Reply::SingleActive;
        }
        self.pass_time();
        if let Some(c) = self.consumers.iter().find(|c| c.id == *id) {
            return match c.held.first() {
                Some(held) if c.get => {
                    Reply::Got { key: c.key, message: shown(held.id, &held.msg), ready: self.ready_count() }
                }
                _ => Reply::IdInUse,
            };
        }
        let Some(msg) = self.next() else { return Reply::Empty };
        let (key, mut message) = (ConsumerKey::from(reference), shown(0, &msg));
        if !settled {
            let mut c = Con::new(key, id, Mode::SimplePrefetch(1));
            (c.get, c.timeout) = (true, self.config.consumer_timeout_ms.or(default_timeout));
            message = c.take(msg, self.now, self.mv2());
            self.consumers.push(c);
        }
        Reply::Got { key, message, ready: self.ready_count() }
    }

    pub(super) fn cancel(&mut self, consumer: &ConsumerRef) -> Reply {
        let Some(c) = self.find(consumer) else { return Reply::NotFound };
        (c.base, c.waiting, c.granted) = (Base::Cancelled, false, 0);
        c.timed_out.clear();
        Reply::Cancelled { key: c.key, num_checked_out: c.held.len() }
    }

    /// Takes what the ids name, in their order.
    pub(super) fn answered(&mut self, consumer: &ConsumerRef, ids: &MsgIds) -> Vec<Msg> {
        let Some(c) = self.find(consumer) else { return Vec::new() };
        let mut taken = Vec::new();
        for id in listed(ids) {
            c.timed_out.remove(&id);
            if let Some(at) = c.held.iter().position(|held| held.id == id) {
                taken.push(c.held.remove(at).msg);
            }
        }
        taken
    }

    fn return_all(&mut self, key: ConsumerKey, failed: bool) -> usize {
        let held = std::mem::take(&mut self.by_key(key).held);
        let count = held.len();
        held.into_iter().for_each(|held| self.give_back(held.msg, failed, None));
        count
    }

    pub(super) fn drop_consumer(&mut self, key: ConsumerKey, failed: bool) -> usize {
        let count = self.return_all(key, failed);
        self.consumers.retain(|c| c.key != key);
        self.last_active = Some(self.now);
        count
    }

    pub(super) fn gone(&mut self, session: SessionRef) {
        let keys: Vec<_> = self.consumers.iter().filter(|c| c.id.session == session).map(|c| c.key).collect();
        keys.into_iter().for_each(|key| {
            self.drop_consumer(key, true);
        });
        self.enqueuers.remove(&session);
        self.last_active = Some(self.now);
    }

    pub(super) fn cut_off(&mut self, session: SessionRef) {
        self.last_active = Some(self.now);
        let mv2 = self.mv2();
        let lost = |c: &&Con| if mv2 { c.id.session == session } else { c.id.session.node == session.node };
        let lost: Vec<_> =
            self.consumers.iter().filter(lost).filter(|c| c.suspected.is_none()).map(|c| c.key).collect();
        for key in lost {
            self.by_key(key).suspected = Some(self.now);
            if !mv2 {
                self.return_all(key, true);
                self.make_way(key);
            }
        }
    }

    /// When a consumer that is cut off has been so for too long, if that matters.
    pub fn disconnected_at(&self, c: &Con) -> Option<u64> {
        let matters = !c.held.is_empty() || (self.config.single_active && c.attached() && !c.waiting);
        c.suspected.filter(|_| matters).map(|since| since + self.config.consumer_disconnected_timeout_ms)
    }

    pub(super) fn disconnected(&mut self, key: ConsumerKey) {
        let Some(c) = self.consumers.iter().find(|c| c.key == key) else { return };
        if self.disconnected_at(c).is_some_and(|at| at <= self.now) {
            self.return_all(key, false);
            self.make_way(key);
        }
    }

    pub fn next_deadline(&self) -> Option<u64> {
        self.consumers.iter().flat_map(|c| &c.held).filter_map(|held| held.deadline).min()
    }

    pub(super) fn deadlines(&mut self) {
        for at in 0..self.consumers.len() {
            let (now, single_active) = (self.now, self.config.single_active);
            let c = &mut self.consumers[at];
            let late = |held: &Held| held.deadline.is_some_and(|at| at <= now);
            let (overdue, rest): (Vec<_>, Vec<_>) = std::mem::take(&mut c.held).into_iter().partition(late);
            c.held = rest;
            if overdue.is_empty() {
                continue;
            }
            let ids: Vec<_> = overdue.iter().map(|held| held.id).collect();
            if c.attached() {
                c.timed_out.extend(&ids);
                if single_active && c.held.is_empty() {
                    (c.waiting, c.base) = (true, Base::Up);
                }
            }
            self.out.released.push((c.key, ids, c.get));
            overdue.into_iter().for_each(|held| self.give_back(held.msg, false, None));
        }
    }

    pub(super) fn credit(&mut self, consumer: &ConsumerRef, credit: u32, seen: u32) {
        if let Some(c) = self.find(consumer).filter(|c| c.attached() && matches!(c.mode, Mode::Credited { .. })) {
            let on_its_way = i64::from(c.delivery_count.wrapping_sub(seen) as i32);
            c.granted = (i64::from(credit) - on_its_way).clamp(0, i64::from(u32::MAX)) as u32;
        }
    }

    pub(super) fn credit_reply(&mut self, consumer: &ConsumerRef, drain: bool) {
        let ready = self.ready_count();
        let Some(c) = self.find(consumer).filter(|c| c.attached() && matches!(c.mode, Mode::Credited { .. })) else {
            return;
        };
        if drain {
            c.delivery_count = c.delivery_count.wrapping_add(std::mem::take(&mut c.granted));
        }
        let reply = CreditReply {
            session: c.id.session,
            tag: c.id.tag.clone(),
            key: c.key,
            delivery_count: c.delivery_count,
            credit: c.granted,
            available: if c.waiting { 0 } else { ready },
            drain,
            active: !c.waiting,
        };
        self.out.credits.push(reply);
    }
}

impl Con {
    fn take(&mut self, msg: Msg, now: u64, mv2: bool) -> Delivered {
        let (id, deadline) = (self.next_id, self.timeout.filter(|_| mv2).map(|timeout| (now + timeout).max(1)));
        let delivered = shown(id, &msg);
        self.next_id += 1;
        self.held.push(Held { id, deadline, msg });
        if let Mode::Credited { .. } = self.mode {
            self.granted -= 1;
            self.delivery_count = self.delivery_count.wrapping_add(1);
        }
        delivered
    }
}
