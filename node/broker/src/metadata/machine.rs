//! The metadata tree as a replicated state machine of this node.

use std::ops::RangeInclusive;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use warren_metastore::machine::{Machine, Meta, encode_drop_dedups};
use warren_metastore::records::{Delta, Queue, RecordChange, record_changes};
use warren_metastore::tree::Changes;
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{MachineVersion, Reference};
use warren_raft::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, Role, StateMachine};

use super::Shared;
use crate::queue::supervisor::QueueChange;

/// Commands between snapshots (`metadata_store.khepri.snapshot_interval`), as reclaimable bytes.
const RECLAIMABLE_PER_COMMAND: u64 = 512;
/// Replies that are remembered after their deadline are dropped this often.
const DROP_DEDUPS_EVERY_MS: u64 = 10_000;
/// How many of them one command drops.
const DROP_DEDUPS_AT_ONCE: usize = 10_000;

/// See the module's head.
pub struct MetaMachine {
    machine: Machine,
    shared: Arc<Shared>,
    reclaimable: u64,
    dedups_dropped_at: u64,
}

impl MetaMachine {
    pub(super) fn new(shared: Arc<Shared>) -> Self {
        MetaMachine { machine: Machine::new(), shared, reclaimable: 0, dedups_dropped_at: 0 }
    }

    /// Names what others have to follow.
    fn note_changes(&self, changes: &Changes) {
        let mut policies = false;
        for change in record_changes(changes) {
            match change {
                RecordChange::Queue(delta) => self.note_queue(&delta),
                RecordChange::Policy(_) | RecordChange::OperatorPolicy(_) | RecordChange::Vhost(_) => policies = true,
                _ => {}
            }
        }
        if policies {
            self.shared.policies.send_replace(());
        }
    }

    fn note_queue(&self, delta: &Delta<Queue>) {
        if let Some(old) = delta.removed() {
            let _ = self.shared.queue_changes.send(QueueChange::Deleted(Arc::new(old.record.clone())));
        }
        if let Some(new) = delta.changed() {
            let _ = self.shared.queue_changes.send(QueueChange::Changed(Arc::new(new.record.clone())));
        }
        if let Some(new) = delta.created() {
            let _ = self.shared.queue_changes.send(QueueChange::Created(Arc::new(new.record.clone())));
        }
    }

    fn publish(&self, index: u64) {
        self.shared.applied.send_replace(index);
    }
}

impl StateMachine for MetaMachine {
    type Request = Bytes;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        Machine::VERSIONS
    }

    fn prepare(&mut self, request: Bytes, out: &mut BatchBuilder, _cx: &GroupCx<'_>) {
        if let Err(error) = out.push(MachineVersion(1), |bytes: &mut BytesMut| bytes.extend_from_slice(&request)) {
            tracing::error!(%error, "a metadata command was refused");
        }
    }

    fn proposed(&mut self, _outcome: Result<(u64, u64), Refusal>, _cx: &GroupCx<'_>) {}

    /// The proposer sends it again, to whoever leads then.
    fn refuse(&mut self, _request: Bytes, _why: Refusal, _cx: &GroupCx<'_>) {}

    fn apply(&mut self, entry: Applied, _cx: &GroupCx<'_>) {
        let mut finished = Vec::new();
        for (position, command) in entry.batch.iter().enumerate() {
            let meta = Meta {
                reference: Reference::new(entry.index, position as u16),
                ts_ms: entry.batch.ts_ms(),
                version: entry.version,
            };
            let outcome = self.machine.apply(meta, &command);
            self.reclaimable += RECLAIMABLE_PER_COMMAND + command.len() as u64;
            self.shared.projections.apply(&outcome.changes, self.machine.tree(), meta.reference);
            self.note_changes(&outcome.changes);
            if let Some(request) = outcome.request.filter(|r| r.origin == self.shared.origin) {
                finished.push((request.seq, outcome.reply));
            }
        }
        self.publish(entry.index);
        let mut pending = self.shared.pending.lock();
        for (seq, reply) in finished {
            if let Some(waiting) = pending.remove(&seq) {
                let _ = waiting.send(reply);
            }
        }
    }

    fn role_changed(&mut self, cx: &GroupCx<'_>) {
        if cx.role == Role::Leader {
            tracing::info!(term = cx.term, "this node leads the metadata group");
        }
    }

    fn tick(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        if cx.now_ms.saturating_sub(self.dedups_dropped_at) < DROP_DEDUPS_EVERY_MS {
            return;
        }
        self.dedups_dropped_at = cx.now_ms;
        let expired = self.machine.expired_dedups(cx.now_ms, DROP_DEDUPS_AT_ONCE);
        if !expired.is_empty() {
            let _ = out.push(MachineVersion(1), |bytes: &mut BytesMut| encode_drop_dedups(&expired, bytes));
        }
    }

    fn wake_at(&self) -> Option<u64> {
        (self.machine.dedup_count() > 0).then_some(self.dedups_dropped_at + DROP_DEDUPS_EVERY_MS)
    }

    fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.reclaimable = 0;
        MachineSnapshot { state: Bytes::from(self.machine.snapshot()), live: Vec::new() }
    }

    fn restore(
        &mut self,
        state: &[u8],
        index: u64,
        _version: MachineVersion,
        _cx: &GroupCx<'_>,
    ) -> Result<(), RestoreError> {
        let old = self.machine.tree();
        self.machine = Machine::restore(state).map_err(|e| RestoreError(e.to_string()))?;
        self.reclaimable = 0;
        let changes = self.machine.tree().changes_since(&old);
        self.shared.projections.install(self.machine.tree(), self.machine.applied());
        self.note_changes(&changes);
        self.publish(index);
        Ok(())
    }

    fn stopped(&mut self, _cx: &GroupCx<'_>) {
        self.shared.pending.lock().clear();
    }
}
