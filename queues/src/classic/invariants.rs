//! What must hold after every command.

use std::collections::BTreeSet;

use super::state::Queue;
use crate::consumers::Seated;

impl Queue {
    /// Recounts everything. For tests: it takes time in proportion to the messages in the queue.
    pub fn check_invariants(&self) -> Result<(), String> {
        let ready_bytes = self.messages.iter().map(|m| u64::from(m.body_size())).sum();
        let held = || self.consumers.iter().flat_map(|c| c.held.iter().map(|(_, taken)| taken));
        let totals = self.messages.totals();
        same("ready messages", self.messages.ready(), self.messages.iter().count() as u64)?;
        same("ready bytes", totals.ready_bytes, ready_bytes)?;
        same("held messages", totals.held, held().count() as u64)?;
        same("held bytes", totals.held_bytes, held().map(|t| u64::from(t.message.body_size())).sum())?;
        let positions: BTreeSet<_> = held().map(|taken| taken.position).collect();
        same("positions", positions.len() as u64, totals.held)?;

        let attached: Vec<_> = self.consumers.iter().filter(|c| c.attached()).collect();
        same("attached consumers", self.attached, attached.len() as u64)?;
        if attached.len() > 1 && attached.iter().any(|c| c.exclusive) {
            return Err("an exclusive consumer is not alone".to_owned());
        }
        let mut in_service: Vec<_> = self.consumers.service().iter().collect();
        in_service.sort_unstable();
        let mut able: Vec<_> =
            self.consumers.iter().filter(|c| c.able()).map(|c| (c.seat.priority, c.seat.key)).collect();
        able.sort_unstable();
        same("service queue", in_service, able)?;
        match self.consumers.iter().find(|c| c.finished()) {
            Some(consumer) => Err(format!("consumer {:?} has no reason to stay", consumer.seat.key)),
            None => Ok(()),
        }
    }
}

fn same<T: PartialEq + std::fmt::Debug>(what: &str, counted: T, expected: T) -> Result<(), String> {
    if counted == expected { Ok(()) } else { Err(format!("{what}: {counted:?}, expected {expected:?}")) }
}
