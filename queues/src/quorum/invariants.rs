//! What must hold after every command.

use std::collections::BTreeMap;

use warren_proto::ids::Reference;

use super::consumer::{Base, Kind};
use super::messages::{Message, When};
use super::state::Queue;
use crate::consumers::Seated;

impl Queue {
    /// Recounts everything. For tests and simulation: it takes time in proportion to the messages in the queue.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_counters()?;
        self.check_counts()?;
        self.check_single_place()?;
        self.check_consumers()?;
        self.check_single_active()?;
        self.check_sessions()
    }

    /// Every message that is in the queue, wherever it is there. For tests and simulation, like all here.
    pub fn references(&self) -> impl Iterator<Item = Reference> {
        self.messages.lanes().messages().map(|m| m.reference).chain(self.scattered().map(|m| m.reference))
    }

    /// Those of them that are dead and kept.
    pub fn dead_references(&self) -> impl Iterator<Item = Reference> {
        self.dlx.iter().map(|(_, m)| m.reference)
    }

    /// Messages and bytes equal the sums over the containers.
    fn check_counters(&self) -> Result<(), String> {
        let sum = |messages: &mut dyn Iterator<Item = Message>| {
            messages.fold((0u64, 0u64), |(n, bytes), m| (n + 1, bytes + u64::from(m.size)))
        };
        let all_ready = || self.messages.lanes().messages().chain(self.messages.returns().iter().cloned());
        let ready = sum(&mut all_ready());
        let delayed = sum(&mut self.messages.delayed().values().cloned());
        let held = sum(&mut self.held_by_consumers().cloned());
        let dead = sum(&mut self.dlx.iter().map(|(_, m)| m.clone()));
        let totals = self.messages.totals();
        same("ready messages", self.messages.ready(), ready.0)?;
        same("ready bytes", totals.ready_bytes, ready.1)?;
        same("waiting messages", self.messages.waiting(), ready.0 + delayed.0)?;
        same("delayed bytes", totals.delayed_bytes, delayed.1)?;
        same("held messages", totals.held, held.0)?;
        same("held bytes", totals.held_bytes, held.1)?;
        same("dead messages", self.dlx.len(), dead.0)?;
        same("dead bytes", self.dlx.bytes(), dead.1)?;
        let expiring = all_ready().filter(|m| m.expiry != When::NEVER).count() as u64;
        same("messages that expire", self.messages.expiring(), expiring)?;
        if dead.0 > 0 && !self.config.at_least_once() {
            return Err(format!("{} dead messages are kept", dead.0));
        }
        Ok(())
    }

    fn held_by_consumers(&self) -> impl Iterator<Item = &Message> {
        self.consumers.iter().flat_map(|c| c.held.iter().map(|(_, m)| m))
    }

    /// Messages outside the lanes.
    fn scattered(&self) -> impl Iterator<Item = &Message> {
        let dead = self.dlx.iter().map(|(_, m)| m);
        self.messages
            .returns()
            .iter()
            .chain(self.messages.delayed().values())
            .chain(self.held_by_consumers())
            .chain(dead)
    }

    /// No more deliveries of a message failed than there were; only what is held has a deadline, and the timers go off in
    /// time.
    fn check_counts(&self) -> Result<(), String> {
        if let Some(message) = self.scattered().find(|m| m.delivery_count > m.acquired_count) {
            return Err(format!("counts of a message: {message:?}"));
        }
        let waiting = self.messages.returns().iter().chain(self.messages.delayed().values());
        if let Some(message) = waiting.chain(self.dlx.iter().map(|(_, m)| m)).find(|m| m.deadline != When::NEVER) {
            return Err(format!("nobody holds it, but it must be answered: {message:?}"));
        }
        let late = |due: Option<u64>, armed: Option<u64>| due.is_some_and(|due| armed.is_none_or(|armed| armed > due));
        if late(self.messages.next_due(), self.armed_expiry) || late(self.next_deadline(), self.armed_deadline) {
            return Err(format!("timers go off late: {:?}, {:?}", self.armed_expiry, self.armed_deadline));
        }
        Ok(())
    }

    /// A message is in one place, and was enqueued before now.
    fn check_single_place(&self) -> Result<(), String> {
        let mut places: Vec<_> = self.scattered().map(|m| m.reference).collect();
        let mut newest = places.iter().copied().max().unwrap_or_default();
        places.sort_unstable();
        // Most queues have one lane, which is in order by itself: only what lies beside it has to be sorted.
        let one_lane = self.messages.lanes().iter().count() <= 1;
        for (_, lane) in self.messages.lanes().iter() {
            let mut last = Reference::default();
            for reference in lane.iter().map(|m| m.reference) {
                if reference <= last {
                    return Err(format!("ready message {reference:?} comes after {last:?}"));
                }
                last = reference;
                if one_lane && !places.is_empty() && places.binary_search(&reference).is_ok() {
                    return Err(format!("message {reference:?} is ready and not"));
                }
            }
            newest = newest.max(last);
        }
        if !one_lane {
            places.extend(self.messages.lanes().messages().map(|m| m.reference));
            places.sort_unstable();
        }
        if let Some(twice) = places.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("message {:?} is in two places", twice[0]));
        }
        if newest > self.applied { Err(format!("message {newest:?} is newer than {:?}", self.applied)) } else { Ok(()) }
    }

    /// One consumer of a single active queue is served at most; in other queues none waits or makes way.
    fn check_single_active(&self) -> Result<(), String> {
        let served = self.consumers.iter().filter(|c| c.attached() && !c.waiting);
        if !self.config.single_active {
            return match self.consumers.iter().find(|c| c.waiting || c.base == Base::Quiescing) {
                Some(c) => Err(format!("consumer {:?} waits for a turn in a queue that has none", c.seat.key)),
                None => Ok(()),
            };
        }
        let active: Vec<_> = served.filter(|c| c.base == Base::Up && c.clear()).map(|c| c.seat.key).collect();
        if active.len() > 1 { Err(format!("several consumers are active: {active:?}")) } else { Ok(()) }
    }

    /// Ids ascend below the next one; credit and names are consistent; the service queue holds those that are able.
    fn check_consumers(&self) -> Result<(), String> {
        same("consumer names", self.consumers.names(), self.consumers.len())?;
        let mut in_service = BTreeMap::new();
        for (priority, key) in self.consumers.service().iter() {
            if in_service.insert(key, priority).is_some() {
                return Err(format!("consumer {key:?} is twice in the service queue"));
            }
        }
        for c in self.consumers.iter() {
            let ids: Vec<_> = c.held.iter().map(|(id, _)| id).collect();
            if !ids.is_sorted_by(|a, b| a < b) || ids.last().is_some_and(|last| *last >= c.held.next_id()) {
                return Err(format!("ids of consumer {:?}: {ids:?}, next {}", c.seat.key, c.held.next_id()));
            }
            if c.seat.key.0 > self.applied.0 {
                return Err(format!("consumer {:?} is newer than {:?}", c.seat.key, self.applied));
            }
            if c.finished() {
                return Err(format!("consumer {:?} has no reason to stay", c.seat.key));
            }
            if c.timed_out.last().is_some_and(|last| *last >= c.held.next_id())
                || c.held.iter().any(|(id, _)| c.timed_out.contains(&id))
                || (!c.attached() && (c.waiting || !c.timed_out.is_empty()))
            {
                return Err(format!("timed out messages of consumer {:?}: {:?}", c.seat.key, c.timed_out));
            }
            if c.kind == Kind::Dequeue && c.held.len() != 1 {
                return Err(format!("dequeue {:?} holds {} messages", c.seat.key, c.held.len()));
            }
            let expected = c.able().then_some(c.seat.priority);
            same("service queue entry", in_service.remove(&c.seat.key), expected)?;
            same("service flag", c.seat.in_service(), expected.is_some())?;
        }
        if !in_service.is_empty() {
            return Err(format!("unknown consumers in the service queue: {in_service:?}"));
        }
        Ok(())
    }

    /// Sessions are known exactly while they have an enqueuer or consumers.
    fn check_sessions(&self) -> Result<(), String> {
        let mut consumers = BTreeMap::<_, u32>::new();
        for c in self.consumers.iter() {
            *consumers.entry(c.seat.id.session).or_default() += 1;
        }
        if !self.sessions.check_blocked() {
            return Err("the number of blocked enqueuers".to_owned());
        }
        for (session, state) in self.sessions.iter() {
            same("consumers of a session", state.consumers, consumers.remove(session).unwrap_or(0))?;
            if state.consumers == 0 && state.enqueuer.is_none() {
                return Err(format!("session {session:?} has no reason to be known"));
            }
        }
        match consumers.first_key_value() {
            Some((session, _)) => Err(format!("session {session:?} is not known")),
            None => Ok(()),
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, counted: T, expected: T) -> Result<(), String> {
    if counted == expected { Ok(()) } else { Err(format!("{what}: {counted:?}, expected {expected:?}")) }
}
