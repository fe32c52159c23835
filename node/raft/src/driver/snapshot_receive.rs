//! Receiving a snapshot: the old state stays in use until the new one is complete, checked, and durable.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use raft::eraftpb::{self, MessageType};
use warren_proto::ids::MachineVersion;
use warren_proto::peer::{
    SnapshotAck, SnapshotAckStatus, SnapshotEntries, SnapshotOffer, SnapshotState, SnapshotStep, snapshot_step,
};

use super::group::Group;
use super::log::raft_snapshot;
use super::membership;
use super::output::{Event, Work, WorkDone};
use super::shared::Shared;
use super::snapshot_send::take_indexes;
use super::wire;
use crate::log_store::{Entry, SnapshotMeta, Write};
use crate::machine::StateMachine;

/// Own entries staged by one piece of work.
const RESTAGED_AT_ONCE: usize = 64;
/// Ranges of live indexes in one offer, at most.
const MOST_RANGES: usize = 16 << 20;

pub(crate) struct Receiving {
    transfer: u64,
    from: u64,
    term: u64,
    meta: SnapshotMeta,
    state: Vec<u8>,
    /// Entries received, and of those how many are staged.
    entries: u64,
    staged: u64,
    /// How many were received with each message that is being staged.
    arrived: VecDeque<u64>,
    staging: u32,
    last_seen: bool,
    /// What this member had applied when the transfer began: the leader sends the live entries above it. What is applied
    /// meanwhile changes nothing, whichever acknowledgement reaches the leader first.
    held: u64,
    /// Live entries up to `held` that still have to be staged.
    own: VecDeque<(u64, u64)>,
    /// When the sender was heard last.
    heard_tick: u64,
}

impl Receiving {
    /// Bytes of state received so far.
    pub fn bytes(&self) -> usize {
        self.state.len()
    }
}

/// Ticks after which half a snapshot is thrown away: more than the longest pause before another attempt.
const KEPT_TICKS: u64 = 600;

/// A complete snapshot on its way to the disk.
pub(crate) struct Installing {
    transfer: u64,
    from: u64,
    meta: Arc<SnapshotMeta>,
    state: Bytes,
    /// Number of the write that holds it; not known before Raft has taken the snapshot.
    pub write: u64,
    restored: bool,
}

impl<M: StateMachine> Group<M> {
    /// A step of a transfer arrived, in either direction.
    pub fn on_snapshot_step(&mut self, from: u64, term: u64, step: SnapshotStep, shared: &mut Shared) {
        let transfer = step.transfer;
        match step.step {
            Some(snapshot_step::Step::Ack(ack)) => self.on_snapshot_ack(from, transfer, &ack, shared),
            Some(snapshot_step::Step::Offer(offer)) => self.on_offer(from, term, transfer, &offer, shared),
            Some(snapshot_step::Step::State(chunk)) => self.on_state(from, transfer, &chunk, shared),
            Some(snapshot_step::Step::Entries(entries)) => self.on_entries(from, transfer, entries, shared),
            None => {}
        }
    }

    fn ack(&mut self, to: u64, transfer: u64, status: SnapshotAckStatus, shared: &mut Shared) {
        let (state, entries, applied) = match &self.receiving {
            Some(r) if r.transfer == transfer => (r.state.len() as u64, r.staged, r.held),
            _ => (0, 0, 0),
        };
        let ack = SnapshotAck { status: status.into(), state, entries, applied };
        self.send_step(to, transfer, snapshot_step::Step::Ack(ack), shared);
    }

    fn on_offer(&mut self, from: u64, term: u64, transfer: u64, offer: &SnapshotOffer, shared: &mut Shared) {
        if term < self.raw.raft.term || self.installing.is_some() || self.is_faulted() {
            self.ack(from, transfer, SnapshotAckStatus::SnapshotFailed, shared);
            return;
        }
        let meta = match meta_of(offer) {
            Some(meta) if meta.state_len <= shared.config.snapshot_max_state => meta,
            _ => {
                tracing::error!(group = self.id.0, "snapshot offer cannot be used");
                self.ack(from, transfer, SnapshotAckStatus::SnapshotFailed, shared);
                return;
            }
        };
        if meta.index <= self.commit() {
            // Raft tells the leader how far this member is.
            self.step_snapshot(from, term, &meta);
            self.ack(from, transfer, SnapshotAckStatus::SnapshotDone, shared);
            return;
        }
        if !self.state.supports(meta.version) {
            tracing::error!(group = self.id.0, version = meta.version.0, "snapshot is of a newer machine version");
            self.ack(from, transfer, SnapshotAckStatus::SnapshotFailed, shared);
            return;
        }
        if (term, transfer) <= self.offered {
            // It came twice, or late: its transfer goes on, or is over.
            if self.receiving.as_ref().is_some_and(|r| r.transfer == transfer) {
                self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
            }
            return;
        }
        self.offered = (term, transfer);
        if let Some(receiving) = self.receiving.as_mut().filter(|r| r.meta == meta && !self.lacks_live) {
            // The same snapshot as before: what is here stays. What was being staged may be staged twice.
            receiving.transfer = transfer;
            receiving.from = from;
            receiving.term = term;
            receiving.entries = receiving.staged;
            receiving.arrived.clear();
            receiving.staging = 0;
            receiving.last_seen = false;
            receiving.heard_tick = shared.tick;
            receiving.own = own_entries(&meta, receiving.held);
            tracing::info!(group = self.id.0, index = meta.index, "snapshot transfer goes on");
            self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
            self.restage(shared);
            return;
        }
        // What this member applied it has; the leader sends the rest. An entry that turned out to be missing makes the
        // next attempt ask for all.
        let held = if self.lacks_live { 0 } else { self.state.applied };
        let own = own_entries(&meta, held);
        self.receiving = Some(Receiving {
            transfer,
            from,
            term,
            state: Vec::with_capacity(meta.state_len.min(64 << 20) as usize),
            meta,
            entries: 0,
            staged: 0,
            arrived: VecDeque::new(),
            staging: 0,
            last_seen: false,
            held,
            own,
            heard_tick: shared.tick,
        });
        self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
        self.restage(shared);
    }

    /// The transfer in progress, if the step belongs to it. The sender of any other hears that it is over.
    fn current(&mut self, from: u64, transfer: u64, shared: &mut Shared) -> Option<&mut Receiving> {
        if self.receiving.as_ref().is_none_or(|r| r.transfer != transfer || r.from != from) {
            if self.installing.as_ref().is_none_or(|i| i.transfer != transfer) {
                let done = self.installed == Some(transfer);
                let status = if done { SnapshotAckStatus::SnapshotDone } else { SnapshotAckStatus::SnapshotFailed };
                self.ack(from, transfer, status, shared);
            }
            return None;
        }
        let receiving = self.receiving.as_mut()?;
        receiving.heard_tick = shared.tick;
        Some(receiving)
    }

    /// Forgets a transfer that nobody goes on with, or that the log has overtaken.
    pub fn tick_receiving(&mut self, shared: &Shared) {
        let commit = self.commit();
        self.receiving.take_if(|r| r.meta.index <= commit || shared.tick > r.heard_tick + KEPT_TICKS);
    }

    fn abandon(&mut self, from: u64, transfer: u64, shared: &mut Shared) {
        self.receiving = None;
        self.ack(from, transfer, SnapshotAckStatus::SnapshotFailed, shared);
    }

    fn on_state(&mut self, from: u64, transfer: u64, chunk: &SnapshotState, shared: &mut Shared) {
        let Some(receiving) = self.current(from, transfer, shared) else { return };
        let held = receiving.state.len() as u64;
        if chunk.offset > held {
            // What comes before it was lost, and will be sent again.
            return;
        }
        if chunk.offset == held {
            if held + chunk.data.len() as u64 > receiving.meta.state_len {
                self.abandon(from, transfer, shared);
                return;
            }
            receiving.state.extend_from_slice(&chunk.data);
        }
        self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
        self.complete_receiving(shared);
    }

    fn on_entries(&mut self, from: u64, transfer: u64, step: SnapshotEntries, shared: &mut Shared) {
        let group = self.id;
        let Some(receiving) = self.current(from, transfer, shared) else { return };
        if step.offset > receiving.entries {
            return;
        }
        if step.offset < receiving.entries {
            self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
            return;
        }
        let entries: Option<Vec<Entry>> = step.entries.into_iter().map(wire::entry_from_wire).collect();
        let index = receiving.meta.index;
        match entries {
            Some(entries) if entries.iter().all(|e| e.index <= index) => {
                receiving.entries += entries.len() as u64;
                receiving.last_seen = step.last;
                if entries.is_empty() {
                    self.complete_receiving(shared);
                } else {
                    receiving.staging += 1;
                    receiving.arrived.push_back(receiving.entries);
                    shared.work.push(Work::Stage { group, transfer, snapshot_index: index, entries });
                }
            }
            _ => self.abandon(from, transfer, shared),
        }
    }

    /// Entries of a transfer are staged, or could not be.
    pub fn staged(&mut self, transfer: u64, done: &WorkDone, shared: &mut Shared) {
        let Some(receiving) = self.receiving.as_mut().filter(|r| r.transfer == transfer) else { return };
        let from = receiving.from;
        match done {
            WorkDone::Staged => {
                receiving.staging -= 1;
                receiving.staged = receiving.arrived.pop_front().unwrap_or(receiving.entries);
                self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
                self.complete_receiving(shared);
            }
            WorkDone::Restaged(true) => {
                receiving.staging -= 1;
                self.ack(from, transfer, SnapshotAckStatus::SnapshotContinue, shared);
                self.restage(shared);
                self.complete_receiving(shared);
            }
            WorkDone::Restaged(false) => {
                tracing::error!(group = self.id.0, "a live entry is missing here; all are asked for");
                self.lacks_live = true;
                self.abandon(from, transfer, shared);
            }
            WorkDone::Failed(error) => {
                tracing::error!(group = self.id.0, error, "cannot stage entries of a snapshot");
                self.abandon(from, transfer, shared);
            }
            WorkDone::State(_) | WorkDone::Entries(_) => {}
        }
    }

    /// Stages the next of this member's own live entries: the new snapshot's log holds what was staged for it.
    fn restage(&mut self, shared: &mut Shared) {
        let group = self.id;
        let Some(receiving) = &mut self.receiving else { return };
        let indexes = take_indexes(&mut receiving.own, RESTAGED_AT_ONCE);
        if !indexes.is_empty() {
            receiving.staging += 1;
            let (transfer, snapshot_index) = (receiving.transfer, receiving.meta.index);
            shared.work.push(Work::Restage { group, transfer, snapshot_index, indexes });
        }
    }

    /// Hands a complete snapshot to Raft.
    fn complete_receiving(&mut self, shared: &mut Shared) {
        let complete = |r: &Receiving| {
            r.last_seen
                && r.own.is_empty()
                && r.staging == 0
                && r.staged == r.entries
                && r.state.len() as u64 == r.meta.state_len
        };
        if !self.receiving.as_ref().is_some_and(complete) {
            return;
        }
        let Some(received) = self.receiving.take() else { return };
        let (from, transfer) = (received.from, received.transfer);
        if crc32c::crc32c(&received.state) != received.meta.state_crc {
            tracing::error!(group = self.id.0, "snapshot state does not match its checksum");
            self.ack(from, transfer, SnapshotAckStatus::SnapshotFailed, shared);
            return;
        }
        self.step_snapshot(from, received.term, &received.meta);
        if self.raw.snap().is_some_and(|s| s.get_metadata().index == received.meta.index) {
            self.installing = Some(Installing {
                transfer,
                from,
                meta: Arc::new(received.meta),
                state: received.state.into(),
                write: u64::MAX,
                restored: false,
            });
        } else {
            // The log reached it meanwhile, or another leader is in charge.
            self.installed = Some(transfer);
            self.ack(from, transfer, SnapshotAckStatus::SnapshotDone, shared);
        }
    }

    fn step_snapshot(&mut self, from: u64, term: u64, meta: &SnapshotMeta) {
        let mut message = eraftpb::Message::default();
        message.set_msg_type(MessageType::MsgSnapshot);
        message.from = from;
        message.to = self.me.0;
        message.term = term;
        message.set_snapshot(raft_snapshot(meta));
        // Raft ignores a snapshot that it cannot use.
        let _ = self.raw.step(message);
    }

    /// Raft hands the snapshot over to be written.
    pub fn begin_install(&mut self, shared: &mut Shared) {
        let Some(installing) = &mut self.installing else {
            debug_assert!(false, "a snapshot without a transfer");
            return;
        };
        let meta = installing.meta.clone();
        shared.write(self.id, Write::Install(self.id, (*meta).clone(), installing.state.clone()));
        installing.write = shared.write(self.id, Write::Membership(self.id, meta.membership.clone()));
        self.raw.mut_store().install(meta);
    }

    /// The snapshot is durable: it becomes the state.
    pub fn finish_install(&mut self, shared: &mut Shared) {
        let Some(installing) = &mut self.installing else { return };
        installing.restored = true;
        let (meta, state) = (installing.meta.clone(), std::mem::take(&mut installing.state));
        let cx = self.cx(shared);
        if let Err(error) = self.state.machine.restore(&state, meta.index, meta.version, &cx) {
            self.fault(error.to_string(), shared);
            return;
        }
        self.state.membership = meta.membership.clone();
        self.state.version = meta.version;
        self.state.applied = meta.index;
        self.state.applied_term = meta.term;
        self.lacks_live = false;
        self.snapshot_replaced(meta.index, meta.state_len, shared);
        shared.events.push(Event::Membership { group: self.id, membership: meta.membership.clone() });
        tracing::info!(group = self.id.0, index = meta.index, "snapshot installed");
    }

    /// After Raft knows that the snapshot is durable.
    pub fn acknowledge_install(&mut self, shared: &mut Shared) {
        if let Some(done) = self.installing.take_if(|i| i.restored) {
            self.raw.advance_apply_to(done.meta.index);
            self.covered_to(done.meta.index);
            self.installed = Some(done.transfer);
            self.ack(done.from, done.transfer, SnapshotAckStatus::SnapshotDone, shared);
            self.finish_reads(shared);
        }
    }
}

/// Live entries of a snapshot that a member which applied up to `held` has itself.
fn own_entries(meta: &SnapshotMeta, held: u64) -> VecDeque<(u64, u64)> {
    meta.live.iter().filter(|r| *r.start() <= held).map(|r| (*r.start(), (*r.end()).min(held))).collect()
}

fn meta_of(offer: &SnapshotOffer) -> Option<SnapshotMeta> {
    if !offer.live.len().is_multiple_of(2) || offer.live.len() / 2 > MOST_RANGES || offer.index == 0 {
        return None;
    }
    let live: Vec<_> = offer.live.chunks_exact(2).map(|r| r[0]..=r[1]).collect();
    let ordered = live.iter().all(|r| r.start() <= r.end() && *r.end() <= offer.index)
        && live.windows(2).all(|w| w[0].end() < w[1].start());
    ordered.then_some(())?;
    Some(SnapshotMeta {
        index: offer.index,
        term: offer.term,
        membership: membership::from_wire(offer.membership.as_ref()?)?,
        version: MachineVersion(u16::try_from(offer.version).ok()?),
        live,
        state_len: offer.state_len,
        state_crc: offer.state_crc,
    })
}
