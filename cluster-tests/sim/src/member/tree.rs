//! A member of the metadata group.

use std::collections::BTreeSet;
use std::ops::RangeInclusive;

use bytes::{Bytes, BytesMut};
use warren_metastore::machine::{Machine, Meta, Reply};
use warren_metastore::projections::{Projections, View};
use warren_metastore::records::{Binding, Queue, Vhost};
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
    /// The read models, fed as a broker feeds them.
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

    fn compare(&self, index: u64) {
        if let Err(what) = self.check() {
            self.desk.wrong(|| format!("metadata tree at {index}: {what}"));
        }
        if let Err(what) = compare_views(&self.projections.load(), &self.machine.tree()) {
            self.desk.wrong(|| format!("metadata read models at {index}: {what}"));
        }
        if index.is_multiple_of(self.desk.compare_every) {
            self.desk.judge.lock().state(self.desk.node, GroupId::METADATA, index, self.digest());
        }
    }
}

/// The read models say what the tree says: the same virtual hosts, queues and routes.
fn compare_views(view: &View, tree: &Tree) -> Result<(), String> {
    let vhosts = Vhost::list(tree).map_err(|e| e.to_string())?;
    if view.vhosts().count() != vhosts.len() {
        return Err(format!("{} virtual hosts, the tree has {}", view.vhosts().count(), vhosts.len()));
    }
    let mut queues = 0;
    for vhost in vhosts {
        let stored = Queue::list(tree, &vhost.name).map_err(|e| e.to_string())?;
        queues += stored.len();
        for queue in &stored {
            let known =
                view.queue(&vhost.name, &queue.name).ok_or_else(|| format!("queue {} is missing", queue.name))?;
            if known.group != queue.group || view.queue_of_group(queue.group).is_none() {
                return Err(format!("queue {} is {known:?}", queue.name));
            }
        }
        let bindings = Binding::list(tree, &vhost.name).map_err(|e| e.to_string())?;
        let keys: BTreeSet<&[u8]> = bindings.iter().map(|binding| &*binding.key).collect();
        for key in keys {
            let bound = bindings.iter().filter(|binding| &*binding.key == key);
            let expected: BTreeSet<&str> = bound.map(|binding| &*binding.destination).collect();
            let routed = view.route(&vhost.name, "amq.direct", &[key], None);
            let routed: BTreeSet<&str> = routed.iter().map(|queue| &*queue.name).collect();
            if routed != expected {
                return Err(format!("{key:?} goes to {routed:?}, bound are {expected:?}"));
            }
        }
        if !view.route(&vhost.name, "amq.direct", &[b"unbound"], None).is_empty() {
            return Err("a key that nothing is bound with goes somewhere".to_owned());
        }
    }
    match view.queues().count() {
        known if known == queues => Ok(()),
        known => Err(format!("{known} queues, the tree has {queues}")),
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
        if let Err(what) = compare_views(&self.projections.load(), &self.machine.tree()) {
            self.desk.wrong(|| format!("metadata read models after a snapshot of {index}: {what}"));
        }
        self.reclaimable = 0;
        self.desk.judge.lock().state(self.desk.node, cx.group, index, self.digest());
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}
