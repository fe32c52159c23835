//! Sending a snapshot to a follower that is behind the log: metadata, then the state in chunks, then the live entries
//! that the follower does not have, on the bulk lane, with a window of unacknowledged messages, which are sent again when
//! nothing moves.
//!
//! Each attempt ends in exactly one report to Raft: finished, or failed and retried after a growing pause. The next
//! attempt with the same snapshot goes on where the follower says that it is.

use std::collections::VecDeque;
use std::sync::Arc;

use bytes::Bytes;
use raft::SnapshotStatus;
use warren_proto::ids::NodeId;
use warren_proto::peer::{
    RaftMessage, RaftMessageKind, SnapshotAck, SnapshotAckStatus, SnapshotEntries, SnapshotOffer, SnapshotState,
    SnapshotStep, snapshot_step,
};

use super::config::Sabotage;
use super::group::Group;
use super::membership;
use super::output::{Work, WorkDone, live_len};
use super::shared::Shared;
use super::wire;
use crate::log_store::{Entry, SnapshotMeta};
use crate::machine::StateMachine;

/// Pause after a failed transfer, in ticks; doubles with each further failure up to [`MOST_PAUSE`].
const FIRST_PAUSE: u64 = 10;
const MOST_PAUSE: u64 = 300;
/// Entries asked of the store at once, at most.
const MOST_LOADED: usize = 512;

pub(crate) struct Sending {
    pub transfer: u64,
    pub uid: u64,
    meta: Arc<SnapshotMeta>,
    state: Option<Bytes>,
    state_sent: u64,
    /// Live indexes still to be read: those the follower lacks.
    left: VecDeque<(u64, u64)>,
    /// Entries read and not sent.
    ready: VecDeque<Entry>,
    entries_total: u64,
    entries_sent: u64,
    last_sent: bool,
    loading: bool,
    /// How many entries to read at once: follows their size.
    load_count: usize,
    window: VecDeque<Unacknowledged>,
    /// When anything was heard of the follower, and when the window last moved or was sent again.
    progress_tick: u64,
    moved_tick: u64,
}

/// A message on its way, and the state bytes and entries that the follower holds once it has it.
struct Unacknowledged {
    state: u64,
    entries: u64,
    step: snapshot_step::Step,
}

impl<M: StateMachine> Group<M> {
    /// Raft wants this member to have the snapshot at `index`.
    pub fn start_sending(&mut self, uid: u64, index: u64, shared: &mut Shared) {
        let meta = self.raw.store().snapshot_meta().filter(|m| m.index == index).cloned();
        let Some(meta) = meta else {
            self.raw.report_snapshot(uid, SnapshotStatus::Failure);
            return;
        };
        self.sending.retain(|s| s.uid != uid);
        // A state larger than all of it goes beside a few small ones.
        let most = shared.config.max_transfer_bytes;
        let room = most.saturating_sub(shared.sending_bytes);
        let crowded = shared.sending >= shared.config.max_transfers || meta.state_len.min(most / 2) > room;
        if crowded {
            // Others are first. The pauses differ, so that not all come again in one tick.
            let pause = FIRST_PAUSE / 2 + (self.id.0 ^ uid) % FIRST_PAUSE;
            self.raw.mut_store().hold_off(uid, pause);
            self.raw.report_snapshot(uid, SnapshotStatus::Failure);
            return;
        }
        shared.sending += 1;
        shared.sending_bytes += meta.state_len;
        shared.transfers += 1;
        let transfer = shared.transfers;
        let offer = SnapshotOffer {
            index: meta.index,
            term: meta.term,
            membership: Some(membership::to_wire(&meta.membership)),
            version: meta.version.0.into(),
            live: meta.live.iter().flat_map(|r| [*r.start(), *r.end()]).collect(),
            state_len: meta.state_len,
            state_crc: meta.state_crc,
        };
        self.sending.push(Sending {
            transfer,
            uid,
            meta,
            state: None,
            state_sent: 0,
            left: VecDeque::new(),
            ready: VecDeque::new(),
            entries_total: 0,
            entries_sent: 0,
            last_sent: false,
            loading: false,
            load_count: 16,
            window: VecDeque::new(),
            progress_tick: shared.tick,
            moved_tick: shared.tick,
        });
        self.send_windowed(self.sending.len() - 1, snapshot_step::Step::Offer(offer), shared);
    }

    /// Transfers under way from here, and the bytes of their states.
    pub fn sending_figures(&self) -> (usize, u64) {
        (self.sending.len(), self.sending.iter().map(|s| s.meta.state_len).sum())
    }

    pub fn send_step(&mut self, to: u64, transfer: u64, step: snapshot_step::Step, shared: &mut Shared) {
        let message = RaftMessage {
            group: self.id.0,
            from_uid: self.me.0,
            to_uid: to,
            kind: RaftMessageKind::RaftSnapshot.into(),
            term: self.raw.raft.term,
            snapshot: Some(SnapshotStep { transfer, step: Some(step) }),
            ..RaftMessage::default()
        };
        self.send(to, message, 0, shared);
    }

    /// The follower says how far it is.
    pub fn on_snapshot_ack(&mut self, from: u64, transfer: u64, ack: &SnapshotAck, shared: &mut Shared) {
        let Some(at) = self.sending.iter().position(|s| s.transfer == transfer && s.uid == from) else { return };
        match ack.status() {
            SnapshotAckStatus::SnapshotDone => {
                self.sending.remove(at);
                self.raw.mut_store().forgive(from);
                self.raw.report_snapshot(from, SnapshotStatus::Finish);
                tracing::info!(group = self.id.0, member = from, "snapshot sent");
            }
            SnapshotAckStatus::SnapshotFailed => self.fail_sending(at),
            SnapshotAckStatus::SnapshotContinue => {
                let send = &mut self.sending[at];
                send.progress_tick = shared.tick;
                while send.window.front().is_some_and(|w| w.state <= ack.state && w.entries <= ack.entries) {
                    send.window.pop_front();
                    send.moved_tick = shared.tick;
                }
                if send.state.is_none() && !send.loading {
                    send.loading = true;
                    send.left = missing(&send.meta, ack.applied);
                    send.entries_total = send.left.iter().map(|(a, b)| b - a + 1).sum();
                    send.resume(ack);
                    shared.work.push(Work::LoadState { group: self.id, transfer });
                }
                self.pump(at, shared);
            }
        }
    }

    /// The store answered a read for a transfer. Answers whether it was for one of these.
    pub fn loaded(&mut self, transfer: u64, done: &mut WorkDone, shared: &mut Shared) -> bool {
        let Some(at) = self.sending.iter().position(|s| s.transfer == transfer) else { return false };
        let send = &mut self.sending[at];
        send.loading = false;
        send.progress_tick = shared.tick;
        let usable = match std::mem::replace(done, WorkDone::Staged) {
            WorkDone::State(Some((meta, state))) if meta.index == send.meta.index => {
                send.state = Some(state);
                true
            }
            WorkDone::Entries(entries) => {
                let bytes: usize = entries.iter().flatten().map(|e| e.data.len()).sum();
                let per_entry = (bytes / entries.len().max(1)).max(1);
                send.load_count = (shared.config.snapshot_chunk_bytes / per_entry).clamp(1, MOST_LOADED);
                let complete = entries.iter().all(Option::is_some);
                send.ready.extend(entries.into_iter().flatten());
                complete
            }
            WorkDone::State(_) | WorkDone::Staged | WorkDone::Restaged(_) | WorkDone::Failed(_) => false,
        };
        if usable {
            self.pump(at, shared);
        } else {
            self.fail_sending(at);
        }
        true
    }

    /// Sends what the window has room for.
    fn pump(&mut self, at: usize, shared: &mut Shared) {
        let chunk = shared.config.snapshot_chunk_bytes.max(1);
        loop {
            let send = &mut self.sending[at];
            let Some(state) = &send.state else { return };
            if send.window.len() >= shared.config.snapshot_window || send.last_sent {
                return;
            }
            if shared.transfer_budget == 0 {
                // Goes on with the next tick; it is not the follower's silence.
                send.progress_tick = shared.tick;
                return;
            }
            let transfer = send.transfer;
            let step = if send.state_sent < state.len() as u64 {
                let from = send.state_sent as usize;
                let to = (from + chunk).min(state.len());
                let data = state.slice(from..to);
                shared.spend(data.len());
                send.state_sent = to as u64;
                snapshot_step::Step::State(SnapshotState { offset: from as u64, data })
            } else {
                let Some(entries) = send.next_entries(chunk) else {
                    if !send.loading {
                        send.loading = true;
                        let indexes = send.next_indexes();
                        shared.work.push(Work::LoadEntries { group: self.id, transfer, indexes });
                    }
                    return;
                };
                shared.spend(entries.entries.iter().map(|e| e.data.len()).sum());
                snapshot_step::Step::Entries(entries)
            };
            self.send_windowed(at, step, shared);
        }
    }

    /// Sends a message and keeps it until the follower has it.
    fn send_windowed(&mut self, at: usize, step: snapshot_step::Step, shared: &mut Shared) {
        let send = &mut self.sending[at];
        let (uid, transfer) = (send.uid, send.transfer);
        send.moved_tick = shared.tick;
        let (state, entries) = (send.state_sent, send.entries_sent);
        send.window.push_back(Unacknowledged { state, entries, step: step.clone() });
        self.send_step(uid, transfer, step, shared);
    }

    fn fail_sending(&mut self, at: usize) {
        let send = self.sending.remove(at);
        tracing::warn!(group = self.id.0, member = send.uid, "snapshot transfer failed");
        self.raw.mut_store().back_off(send.uid, FIRST_PAUSE, MOST_PAUSE);
        self.raw.report_snapshot(send.uid, SnapshotStatus::Failure);
    }

    /// Ends transfers to a node that is down: another begins when it is back.
    pub fn stop_sending(&mut self, node: NodeId) {
        let there = |s: &Sending, group: &Self| group.node_of(s.uid) == Some(node);
        while let Some(at) = self.sending.iter().position(|s| there(s, self)) {
            self.fail_sending(at);
        }
    }

    /// Sends again what may be lost, and ends transfers that make no progress.
    pub fn tick_sending(&mut self, shared: &mut Shared) {
        if shared.config.sabotage == Sabotage::OneSnapshot {
            return;
        }
        let stall = shared.config.snapshot_stall_ticks;
        while let Some(at) = self.sending.iter().position(|s| s.progress_tick + stall < shared.tick) {
            self.fail_sending(at);
        }
        for at in 0..self.sending.len() {
            self.pump(at, shared);
            let send = &mut self.sending[at];
            if send.window.is_empty() || shared.tick < send.moved_tick + RESEND_TICKS {
                continue;
            }
            send.moved_tick = shared.tick;
            let (uid, transfer) = (send.uid, send.transfer);
            let again: Vec<_> = send.window.iter().map(|w| w.step.clone()).collect();
            for step in again {
                self.send_step(uid, transfer, step, shared);
            }
        }
    }
}

/// Ticks without an acknowledgement after which what is on its way is sent again.
const RESEND_TICKS: u64 = 5;

impl Sending {
    /// The follower has some of it from an earlier attempt.
    fn resume(&mut self, ack: &SnapshotAck) {
        self.state_sent = ack.state.min(self.meta.state_len);
        self.entries_sent = ack.entries.min(self.entries_total);
        let mut skip = self.entries_sent;
        while let Some((first, last)) = self.left.front_mut().filter(|_| skip > 0) {
            let count = *last - *first + 1;
            if count <= skip {
                skip -= count;
                self.left.pop_front();
            } else {
                *first += skip;
                skip = 0;
            }
        }
    }

    /// The next message of entries; `None` while they have to be read first.
    fn next_entries(&mut self, chunk: usize) -> Option<SnapshotEntries> {
        let offset = self.entries_sent;
        if offset < self.entries_total && self.ready.is_empty() {
            return None;
        }
        let mut bytes = 0;
        let mut entries = Vec::new();
        while let Some(e) = self.ready.front() {
            bytes += e.data.len();
            if bytes > chunk && !entries.is_empty() {
                break;
            }
            entries.extend(self.ready.pop_front().map(wire::entry_to_wire));
        }
        self.entries_sent += entries.len() as u64;
        let last = self.entries_sent == self.entries_total;
        self.last_sent = last;
        Some(SnapshotEntries { offset, entries, last })
    }

    fn next_indexes(&mut self) -> Vec<u64> {
        take_indexes(&mut self.left, self.load_count)
    }
}

/// Takes up to `most` indexes from ranges.
pub(crate) fn take_indexes(ranges: &mut VecDeque<(u64, u64)>, most: usize) -> Vec<u64> {
    let mut out = Vec::new();
    while out.len() < most {
        let Some((first, last)) = ranges.front_mut() else { break };
        out.push(*first);
        if first == last {
            ranges.pop_front();
        } else {
            *first += 1;
        }
    }
    out
}

/// Live indexes above what the follower has applied.
fn missing(meta: &SnapshotMeta, applied: u64) -> VecDeque<(u64, u64)> {
    let above: VecDeque<(u64, u64)> =
        meta.live.iter().filter(|r| *r.end() > applied).map(|r| ((*r.start()).max(applied + 1), *r.end())).collect();
    debug_assert!(above.iter().map(|(a, b)| b - a + 1).sum::<u64>() <= live_len(&meta.live));
    above
}
