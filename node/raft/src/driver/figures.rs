//! What a driver's groups hold in memory and have under way, for whoever watches the node.

use std::ops::AddAssign;

use super::Driver;
use crate::machine::{Role, StateMachine};

/// Sums over the groups of a driver. Each has its bound in [`DriverConfig`](super::DriverConfig).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DriverFigures {
    /// Local members.
    pub groups: u64,
    /// Those that do not sleep.
    pub awake: u64,
    /// Those that lead.
    pub leading: u64,
    /// Those that stand for election.
    pub candidates: u64,
    /// Those that stopped: faulted, or blocked on a version.
    pub stopped: u64,
    /// Those whose log lost what it had acknowledged, and that do not vote until they have it again.
    pub amnesia: u64,
    /// Entries appended by leaders and not committed, and their bytes.
    pub uncommitted_entries: u64,
    /// See [`uncommitted_entries`](Self::uncommitted_entries).
    pub uncommitted_bytes: u64,
    /// Requests that wait to be appended.
    pub waiting_requests: u64,
    /// Bytes of applied entries kept for followers a little behind.
    pub tail_bytes: u64,
    /// Snapshot transfers under way from here, and the bytes of their states.
    pub sending: u64,
    /// See [`sending`](Self::sending).
    pub sending_bytes: u64,
    /// Snapshot transfers under way to here, and the bytes of state received so far.
    pub receiving: u64,
    /// See [`receiving`](Self::receiving).
    pub receiving_bytes: u64,
    /// Writes handed to the disk and not reported durable.
    pub writes_in_flight: u64,
}

impl AddAssign for DriverFigures {
    fn add_assign(&mut self, other: Self) {
        self.groups += other.groups;
        self.awake += other.awake;
        self.leading += other.leading;
        self.candidates += other.candidates;
        self.stopped += other.stopped;
        self.amnesia += other.amnesia;
        self.uncommitted_entries += other.uncommitted_entries;
        self.uncommitted_bytes += other.uncommitted_bytes;
        self.waiting_requests += other.waiting_requests;
        self.tail_bytes += other.tail_bytes;
        self.sending += other.sending;
        self.sending_bytes += other.sending_bytes;
        self.receiving += other.receiving;
        self.receiving_bytes += other.receiving_bytes;
        self.writes_in_flight += other.writes_in_flight;
    }
}

impl<M: StateMachine> Driver<M> {
    /// What the groups hold now. Looks at each of them.
    pub fn figures(&self) -> DriverFigures {
        let mut sum = DriverFigures { writes_in_flight: self.in_flight.len() as u64, ..DriverFigures::default() };
        for group in self.groups.iter().flatten() {
            let (sending, sending_bytes) = group.sending_figures();
            let receiving = group.receiving.as_ref().map(|r| r.bytes());
            sum += DriverFigures {
                groups: 1,
                awake: u64::from(!group.sleep.asleep),
                leading: u64::from(group.role == Role::Leader),
                candidates: u64::from(group.is_candidate()),
                stopped: u64::from(group.stop.is_some()),
                amnesia: u64::from(group.amnesia.is_some()),
                uncommitted_entries: group.uncommitted.len() as u64,
                uncommitted_bytes: group.uncommitted_bytes as u64,
                waiting_requests: group.queue.len() as u64,
                tail_bytes: group.raw.store().tail_bytes() as u64,
                sending: sending as u64,
                sending_bytes,
                receiving: u64::from(receiving.is_some()),
                receiving_bytes: receiving.unwrap_or_default() as u64,
                writes_in_flight: 0,
            };
        }
        sum
    }
}
