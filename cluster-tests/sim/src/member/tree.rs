//! A member of the metadata group.

use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};
use warren_metastore::machine::{Machine, Meta, Reply};
use warren_metastore::projections::Projections;
use warren_metastore::tree::{MetaError, Tree};
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, MachineVersion, Reference};
use warren_raft::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, StateMachine};

use super::{Desk, Said};
use crate::message::Ask;
use crate::plan::Defect;
use crate::random::digest_many;

/// Log bytes that a command frees when it is dead, beside its own.
const RECLAIMABLE_PER_COMMAND: u64 = 64;

/// What a metadata command answered.
pub type Answer = Result<Reply, MetaError>;

/// The tree's machine on one node.
pub struct TreeMember {
    desk: Desk,
    machine: Machine,
    projections: Projections,
    reclaimable: u64,
}

impl TreeMember {
    pub(super) fn new(desk: Desk) -> Self {
        TreeMember { desk, machine: Machine::new(), projections: Projections::new(), reclaimable: 0 }
    }

    /// The tree as applied here.
    pub fn tree(&self) -> Tree {
        self.machine.tree()
    }

    pub(super) fn digest(&self) -> u64 {
        digest_many(&self.machine.snapshot())
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.machine.check_invariants()
    }

    fn check_projections(&self, index: u64) {
        if let Err(what) = self.projections.load().check_against_rebuild() {
            self.desk.wrong(|| format!("projections at {index}: {what}"));
        }
    }

    fn compare(&self, index: u64) {
        if let Err(what) = self.check() {
            self.desk.wrong(|| format!("metadata tree at {index}: {what}"));
        }
        if index.is_multiple_of(self.desk.compare_every) {
            self.check_projections(index);
            self.desk.judge.lock().state(self.desk.node, GroupId::METADATA, index, self.digest());
        }
    }
}

impl StateMachine for TreeMember {
    type Request = Ask;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        Machine::VERSIONS
    }

    fn prepare(&mut self, request: Ask, out: &mut BatchBuilder, _: &GroupCx<'_>) {
        if let Ask::Metadata(command) = request {
            let pushed = out.push(MachineVersion(1), |bytes: &mut BytesMut| bytes.extend_from_slice(&command));
            if let Err(error) = pushed {
                self.desk.wrong(|| format!("metadata command refused: {error}"));
            }
        }
    }

    fn proposed(&mut self, _: Result<(u64, u64), Refusal>, _: &GroupCx<'_>) {}

    /// The client sends it again.
    fn refuse(&mut self, _: Ask, _: Refusal, _: &GroupCx<'_>) {}

    fn apply(&mut self, entry: Applied, cx: &GroupCx<'_>) {
        self.desk.applying(cx.group, &entry);
        for (position, command) in entry.batch.iter().enumerate() {
            let meta = Meta {
                reference: Reference::new(entry.index, position as u16),
                ts_ms: entry.batch.ts_ms(),
                version: entry.version,
            };
            let outcome = self.machine.apply(meta, &command);
            self.projections.apply(&outcome.changes, self.machine.tree(), meta.reference);
            self.reclaimable += RECLAIMABLE_PER_COMMAND + command.len() as u64;
            let repeat = self.desk.defect == Defect::ForgottenRequests;
            if let Some(request) = outcome.request.filter(|_| repeat) {
                // The answer is forgotten at once, so that a repeat is carried out again.
                let mut ack = Vec::new();
                warren_metastore::machine::encode_dedup_ack(&[request], &mut ack);
                self.machine.apply(meta, &ack);
            }
            if let Some(request) = outcome.request.filter(|_| entry.live) {
                let (origin, seq, index) = (request.origin, request.seq, entry.index);
                self.desk.out.lock().push(Said::Answered { origin, seq, index, answer: outcome.reply });
            }
        }
        self.compare(entry.index);
    }

    fn role_changed(&mut self, _: &GroupCx<'_>) {}

    fn tick(&mut self, _: &mut BatchBuilder, _: &GroupCx<'_>) {}

    fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.reclaimable = 0;
        let state = self.machine.snapshot();
        match Machine::restore(&state) {
            Ok(copy) if copy.snapshot() == state => {}
            Ok(_) => self.desk.wrong(|| "a metadata snapshot restores to another state".into()),
            Err(error) => self.desk.wrong(|| format!("a metadata snapshot cannot be restored: {error}")),
        }
        MachineSnapshot { state: Bytes::from(state), live: Vec::new() }
    }

    fn restore(&mut self, state: &[u8], index: u64, _: MachineVersion, cx: &GroupCx<'_>) -> Result<(), RestoreError> {
        self.machine = Machine::restore(state).map_err(|e| RestoreError(e.to_string()))?;
        self.projections.install(self.machine.tree(), self.machine.applied());
        self.check_projections(index);
        self.reclaimable = 0;
        self.desk.judge.lock().state(self.desk.node, cx.group, index, self.digest());
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}
