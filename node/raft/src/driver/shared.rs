//! What the groups of a driver share while one of them works.

use std::sync::Arc;

use rustc_hash::FxHashSet;
use warren_proto::ids::{GroupId, NodeId};

use super::config::DriverConfig;
use super::entry_cache::EntryCache;
use super::output::{Event, Outgoing, Work};
use crate::log_store::{LogStore, Write};

pub(crate) struct Shared {
    pub config: DriverConfig,
    pub store: Arc<dyn LogStore>,
    pub cache: Arc<EntryCache>,
    /// Wall clock of this round.
    pub now_ms: u64,
    /// Ticks since the driver began.
    pub tick: u64,
    /// The disk has not finished a write for too long.
    pub stalled: bool,
    /// Highest number of a durable write.
    pub persisted: u64,
    /// Number that the writes gathered now will have.
    pub number: u64,
    pub writes: Vec<Write>,
    /// Groups with something in `writes`.
    pub writers: Vec<GroupId>,
    pub messages: Vec<Outgoing>,
    pub work: Vec<Work>,
    pub events: Vec<Event>,
    /// Bytes of applied entries that a group keeps, for now.
    pub tail_keep: usize,
    /// The last transfer number given out.
    pub transfers: u64,
    /// Nodes that are down, by the last verdict.
    pub down: FxHashSet<NodeId>,
    /// Bytes of snapshots that may still be sent in this tick.
    pub transfer_budget: u64,
    /// Snapshot transfers under way, and the bytes of their states: counted in each tick, and as they begin.
    pub sending: usize,
    pub sending_bytes: u64,
    /// Elections that may still begin in this tick.
    pub elections: usize,
    /// The node leaves leading to others while one of them can.
    pub abstains: bool,
}

impl Shared {
    /// Bytes of a snapshot are sent.
    pub fn spend(&mut self, bytes: usize) {
        self.transfer_budget = self.transfer_budget.saturating_sub(bytes as u64);
    }

    /// Adds a change to this round's write and answers its number.
    pub fn write(&mut self, group: GroupId, write: Write) -> u64 {
        if self.writers.last() != Some(&group) {
            self.writers.push(group);
        }
        self.writes.push(write);
        self.number
    }
}
