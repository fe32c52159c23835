//! What must hold after every command.

use std::collections::BTreeMap;

use warren_proto::ids::Reference;

use super::consumer::Kind;
use super::messages::Message;
use super::state::Queue;
use crate::consumers::Seated;

impl Queue {
    /// Recounts everything. For tests and simulation: it takes time in proportion to the messages in the queue.
    pub fn check_invariants(&self) -> Result<(), String> {
        self.check_counters()?;
        self.check_counts()?;
        self.check_single_place()?;
        self.check_consumers()?;
        self.check_sessions()
    }

    /// Messages and bytes equal the sums over the containers.
    fn check_counters(&self) -> Result<(), String> {
        let sum = |messages: &mut dyn Iterator<Item = Message>| {
            messages.fold((0u64, 0u64), |(n, bytes), m| (n + 1, bytes + u64::from(m.size)))
        };
        let ready = sum(&mut self.messages.lane().iter().chain(self.messages.returns().iter().copied()));
        let held = sum(&mut self.consumers.iter().flat_map(|c| c.held.iter().map(|(_, m)| *m)));
        let totals = self.messages.totals();
        same("ready messages", self.messages.ready(), ready.0)?;
        same("ready bytes", totals.ready_bytes, ready.1)?;
        same("held messages", totals.held, held.0)?;
        same("held bytes", totals.held_bytes, held.1)
    }

    /// No more deliveries of a message failed than there were.
    fn check_counts(&self) -> Result<(), String> {
        let held = self.consumers.iter().flat_map(|c| c.held.iter().map(|(_, m)| m));
        match self.messages.returns().iter().chain(held).find(|m| m.delivery_count > m.acquired_count) {
            Some(message) => Err(format!("counts of a message: {message:?}")),
            None => Ok(()),
        }
    }

    /// A message is in one place, and was enqueued before now.
    fn check_single_place(&self) -> Result<(), String> {
        let mut scattered: Vec<_> = self.messages.returns().iter().map(|m| m.reference).collect();
        scattered.extend(self.consumers.iter().flat_map(|c| c.held.iter().map(|(_, m)| m.reference)));
        scattered.sort_unstable();
        if let Some(twice) = scattered.windows(2).find(|pair| pair[0] == pair[1]) {
            return Err(format!("message {:?} is in two places", twice[0]));
        }
        let mut rest = scattered.iter().copied().peekable();
        let mut last = Reference::default();
        for reference in self.messages.lane().iter().map(|m| m.reference) {
            if reference <= last {
                return Err(format!("ready message {reference:?} comes after {last:?}"));
            }
            last = reference;
            while rest.next_if(|r| *r < reference).is_some() {}
            if rest.peek() == Some(&reference) {
                return Err(format!("message {reference:?} is ready and not"));
            }
        }
        let newest = last.max(scattered.last().copied().unwrap_or_default());
        if newest > self.applied { Err(format!("message {newest:?} is newer than {:?}", self.applied)) } else { Ok(()) }
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
