//! Messages that were never handed out: a FIFO for each priority.

use std::mem;

use warren_proto::ids::{MachineVersion, Reference};

use super::message::{Message, When};
use super::packed::PackedFifo;
use crate::quorum::version::MV2;

/// The highest priority that counts; what is above is treated like it.
pub(in crate::quorum) const MAX_PRIORITY: u8 = 31;
/// The priority of a message that has none, and of version 1's normal messages.
const NORMAL: u8 = 4;
/// The priority of version 1's high messages.
const HIGH: u8 = 9;
/// From here on, a priority counts as high.
const FIRST_HIGH: u8 = 5;
/// Version 1: of so many turns one is a normal message's, if high ones wait too.
const TURNS: u8 = 3;

#[derive(Debug)]
struct Lane {
    priority: u8,
    fifo: PackedFifo,
}

#[derive(Debug, Default)]
pub(in crate::quorum) struct Lanes {
    /// Descending by priority; only those that were ever used.
    lanes: Vec<Lane>,
    len: usize,
    /// Version 1: whose turn it is.
    turn: u8,
}

/// The lane of a message in a group at `version`.
fn lane_of(priority: Option<u8>, version: MachineVersion) -> u8 {
    let priority = priority.unwrap_or(NORMAL).min(MAX_PRIORITY);
    match version >= MV2 {
        true => priority,
        false if priority >= FIRST_HIGH => HIGH,
        false => NORMAL,
    }
}

impl Lanes {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn turn(&self) -> u8 {
        self.turn
    }

    pub fn restore_turn(&mut self, turn: u8) {
        self.turn = turn % TURNS;
    }

    /// The FIFOs that are not empty, by descending priority.
    pub fn iter(&self) -> impl Iterator<Item = (u8, &PackedFifo)> {
        self.lanes.iter().filter(|lane| lane.fifo.len() > 0).map(|lane| (lane.priority, &lane.fifo))
    }

    /// All messages, by descending priority.
    pub fn messages(&self) -> impl Iterator<Item = Message> + '_ {
        self.iter().flat_map(|(_, fifo)| fifo.iter())
    }

    /// Messages of a high priority.
    pub fn high(&self) -> u64 {
        self.iter().filter(|(priority, _)| *priority >= FIRST_HIGH).map(|(_, fifo)| fifo.len() as u64).sum()
    }

    pub fn restore(&mut self, priority: u8, fifo: PackedFifo) {
        self.len += fifo.len();
        let at = self.lanes.partition_point(|lane| lane.priority > priority);
        self.lanes.insert(at, Lane { priority, fifo });
    }

    #[allow(clippy::too_many_arguments)]
    pub fn push(
        &mut self,
        priority: Option<u8>,
        version: MachineVersion,
        reference: Reference,
        size: u32,
        carried: u32,
        expiry: When,
    ) {
        let priority = lane_of(priority, version);
        let at = self.lanes.partition_point(|lane| lane.priority > priority);
        if self.lanes.get(at).is_none_or(|lane| lane.priority != priority) {
            self.lanes.insert(at, Lane { priority, fifo: PackedFifo::default() });
        }
        self.lanes[at].fifo.push(reference, size, carried, expiry);
        self.len += 1;
    }

    /// Takes the next message: of the highest priority, or as version 1 shares turns.
    pub fn take(&mut self, version: MachineVersion) -> Option<Message> {
        let at = if version >= MV2 { self.first() } else { self.fair() }?;
        let message = self.lanes[at].fifo.pop()?;
        self.len -= 1;
        Some(message)
    }

    fn first(&self) -> Option<usize> {
        self.lanes.iter().position(|lane| lane.fifo.len() > 0)
    }

    /// Two high ones for one normal one, but no older high one behind a normal one.
    fn fair(&mut self) -> Option<usize> {
        let first = self.first()?;
        let next = (self.turn + 1) % TURNS;
        let turn = mem::replace(&mut self.turn, next);
        let high = &self.lanes[first];
        if turn + 1 < TURNS || high.priority < FIRST_HIGH {
            return Some(first);
        }
        let normal = self.lanes.iter().position(|lane| lane.priority < FIRST_HIGH && lane.fifo.len() > 0);
        Some(normal.filter(|at| self.lanes[*at].fifo.head() < high.fifo.head()).unwrap_or(first))
    }

    /// Takes the head of a lane that has expired, the highest lane first.
    pub fn take_expired(&mut self, now_ms: u64) -> Option<Message> {
        let lane = self.lanes.iter_mut().find(|lane| lane.fifo.head_expiry().is_past(now_ms))?;
        let message = lane.fifo.pop()?;
        self.len -= 1;
        Some(message)
    }

    /// When the first head expires.
    pub fn next_expiry(&self) -> Option<u64> {
        self.lanes.iter().filter_map(|lane| lane.fifo.head_expiry().get()).min()
    }
}
