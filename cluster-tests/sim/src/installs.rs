//! Snapshots on their way: how far each has come, and faults that strike at a chosen step.

use std::collections::BTreeMap;

use warren_proto::ids::{GroupId, NodeId};
use warren_proto::peer::{RaftMessage, snapshot_step};
use warren_raft::driver::{Work, WriteBatch};
use warren_raft::log_store::Write;

use crate::random::Random;
use crate::world::{Happening, World};

/// How long after the switch a crash still counts as one of this step.
const AFTER_US: u64 = 50_000;

/// A step of an install, after which it may be cut.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Step {
    /// The receiver has the offer.
    Offered,
    /// A part of the state or of the entries has arrived.
    Arrived,
    /// Entries are staged.
    Staged,
    /// The switch is handed to the disk.
    Switching,
    /// The switch is durable.
    Switched,
}

/// All steps, in order.
pub const STEPS: [Step; 5] = [Step::Offered, Step::Arrived, Step::Staged, Step::Switching, Step::Switched];

/// See the module's head.
pub(crate) struct Installs {
    random: Random,
    /// By receiver and group: the sender, the last step and its time.
    under_way: BTreeMap<(usize, GroupId), (usize, Step, u64)>,
    /// By node: writes with a switch, of which group.
    switches: BTreeMap<usize, Vec<(u64, GroupId)>>,
    /// Crashes of the receiver, by the step that was the last before.
    pub cut: [u64; STEPS.len()],
}

impl Installs {
    pub fn new(seed: u64) -> Self {
        let random = Random::part(seed, "installs");
        Installs { random, under_way: BTreeMap::new(), switches: BTreeMap::new(), cut: [0; STEPS.len()] }
    }
}

impl World {
    /// A receiver has made a step; a fault may follow at once.
    fn install_step(&mut self, node: usize, group: GroupId, from: Option<usize>, step: Step) {
        let known = self.installs.under_way.get(&(node, group)).map(|(from, ..)| *from);
        let Some(from) = from.or(known) else { return };
        self.installs.under_way.insert((node, group), (from, step, self.now_us));
        let strikes = self.plan.faults.install_cuts;
        if self.finishing || strikes == 0 || !self.installs.random.chance(strikes) {
            return;
        }
        self.journal.note(self.now_us, &[26, node as u64, group.0, step as u64], || {
            format!("the install of group {group} from {from} to {node} is cut after {step:?}")
        });
        match self.installs.random.below(4) {
            0 | 1 => self.after(0, Happening::Strike { node }),
            2 => self.after(0, Happening::Strike { node: from }),
            _ => self.cut(vec![(from, node), (node, from)]),
        }
    }

    /// A receiver has taken a message of a transfer.
    pub(crate) fn install_arrived(&mut self, node: usize, from: NodeId, message: &InstallMessage) {
        let from = self.index_of(from);
        self.install_step(node, message.group, from, message.step);
    }

    /// A piece of store access for a transfer is done.
    pub(crate) fn install_worked(&mut self, node: usize, staged: Option<GroupId>) {
        if let Some(group) = staged {
            self.install_step(node, group, None, Step::Staged);
        }
    }

    /// A write is handed to the disk.
    pub(crate) fn install_submitted(&mut self, node: usize, batch: &WriteBatch) {
        let installs = batch.writes.iter().filter_map(|write| match write {
            Write::Install(group, ..) => Some(*group),
            _ => None,
        });
        for group in installs.collect::<Vec<_>>() {
            self.installs.switches.entry(node).or_default().push((batch.number, group));
            self.install_step(node, group, None, Step::Switching);
        }
    }

    /// Writes up to this one are durable.
    pub(crate) fn install_synced(&mut self, node: usize, number: u64) {
        let Some(switches) = self.installs.switches.get_mut(&node) else { return };
        let done: Vec<_> = switches.extract_if(.., |(write, _)| *write <= number).collect();
        for (_, group) in done {
            self.install_step(node, group, None, Step::Switched);
        }
    }

    /// A node died: what it was receiving is cut.
    pub(crate) fn installs_cut(&mut self, node: usize) {
        self.installs.switches.remove(&node);
        let now = self.now_us;
        let cut = self.installs.under_way.extract_if(.., |(receiver, _), _| *receiver == node);
        let steps: Vec<_> = cut.map(|(_, (_, step, at))| (step, at)).collect();
        for (step, at) in steps {
            if step != Step::Switched || at + AFTER_US >= now {
                self.installs.cut[step as usize] += 1;
            }
        }
    }
}

/// What a message tells of a transfer to its receiver.
pub(crate) struct InstallMessage {
    group: GroupId,
    step: Step,
}

impl InstallMessage {
    /// A part of a transfer; acknowledgements go the other way.
    pub fn of(message: &RaftMessage) -> Option<Self> {
        let step = match message.snapshot.as_ref()?.step.as_ref()? {
            snapshot_step::Step::Offer(_) => Step::Offered,
            snapshot_step::Step::State(_) | snapshot_step::Step::Entries(_) => Step::Arrived,
            snapshot_step::Step::Ack(_) => return None,
        };
        Some(InstallMessage { group: GroupId(message.group), step })
    }
}

/// The group of which this work stages entries.
pub(crate) fn stages(work: &Work) -> Option<GroupId> {
    match work {
        Work::Stage { group, .. } | Work::Restage { group, .. } => Some(*group),
        Work::LoadState { .. } | Work::LoadEntries { .. } => None,
    }
}
