//! What the groups of a simulated node run: queues and the metadata tree, with their effects turned into messages.

mod dead_letters;
mod queue;
mod tree;
mod witness;

use std::ops::RangeInclusive;
use std::sync::Arc;

use parking_lot::Mutex;
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_raft::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, StateMachine};

pub use queue::QueueMember;
pub use tree::{Answer, TreeMember};

use crate::disk::SimDisk;
use crate::judge::SharedJudge;
use crate::message::{Ask, ToSession};
use crate::plan::Defect;
use crate::queues::QueuePlan;
use crate::random::{digest_many, mix};

/// What a member says to the rest of the world, collected until the node's turn is over.
#[derive(Debug)]
pub enum Said {
    /// To a session, here or elsewhere.
    ToSession(ToSession),
    /// To whoever leads another queue's group.
    ToLeader(GroupId, Ask),
    /// To a node's member of another queue's group.
    ToMember(NodeId, GroupId, Ask),
    /// To whoever waits on this node: a metadata command of this origin and number was applied, with this answer.
    Answered {
        /// The client.
        origin: u64,
        /// Its request.
        seq: u64,
        /// The log index.
        index: u64,
        /// The answer.
        answer: Answer,
    },
}

/// What a member has from its node's process.
#[derive(Clone)]
pub struct Desk {
    /// The node.
    pub node: NodeId,
    /// The member.
    pub me: MemberUid,
    /// Its disk, for checks.
    pub disk: Arc<SimDisk>,
    /// What is said.
    pub out: Arc<Mutex<Vec<Said>>>,
    /// Nodes that cannot be reached from here, as far as is known.
    pub down: Arc<Mutex<Vec<NodeId>>>,
    /// Who watches.
    pub judge: SharedJudge,
    /// The highest queue machine version that this process supports.
    pub max_version: u16,
    /// Applied states are compared at multiples of this index.
    pub compare_every: u64,
    /// What is wrong on purpose.
    pub defect: Defect,
}

impl Desk {
    /// Reports what must not be.
    pub fn wrong(&self, what: impl FnOnce() -> String) {
        self.judge.lock().wrong(what);
    }

    /// Tells the judge of an entry that is about to be applied; answers whether it is the first member to do so.
    fn applying(&self, group: GroupId, entry: &Applied) -> bool {
        let commands = entry.batch.iter().fold(entry.batch.ts_ms(), |h, c| mix(&[h, digest_many(&c)]));
        self.judge.lock().applying(self.node, group, entry.index, entry.term, commands)
    }
}

/// A member of either kind of group.
pub enum Member {
    /// Of a queue.
    Queue(Box<QueueMember>),
    /// Of the metadata tree.
    Tree(Box<TreeMember>),
}

impl Member {
    /// A member that has applied nothing.
    pub fn new(group: GroupId, plan: &QueuePlan, desk: Desk) -> Self {
        if group == GroupId::METADATA {
            Member::Tree(Box::new(TreeMember::new(desk)))
        } else {
            Member::Queue(Box::new(QueueMember::new(group, plan, desk)))
        }
    }

    /// The queue, if it is one.
    pub fn queue(&self) -> Option<&QueueMember> {
        match self {
            Member::Queue(queue) => Some(queue),
            Member::Tree(_) => None,
        }
    }

    /// The tree, if it is one.
    pub fn tree(&self) -> Option<&TreeMember> {
        match self {
            Member::Tree(tree) => Some(tree),
            Member::Queue(_) => None,
        }
    }

    /// A digest of the replicated state.
    pub fn digest(&self) -> u64 {
        match self {
            Member::Queue(queue) => queue.digest(),
            Member::Tree(tree) => tree.digest(),
        }
    }

    /// What must hold in the replicated state.
    pub fn check(&self) -> Result<(), String> {
        match self {
            Member::Queue(queue) => queue.check(),
            Member::Tree(tree) => tree.check(),
        }
    }
}

macro_rules! each {
    ($self:ident, $member:ident => $call:expr) => {
        match $self {
            Member::Queue($member) => $call,
            Member::Tree($member) => $call,
        }
    };
}

impl StateMachine for Member {
    type Request = Ask;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        each!(self, m => m.supported())
    }

    fn prepare(&mut self, request: Ask, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        each!(self, m => m.prepare(request, out, cx));
    }

    fn proposed(&mut self, outcome: Result<(u64, u64), Refusal>, cx: &GroupCx<'_>) {
        each!(self, m => m.proposed(outcome, cx));
    }

    fn refuse(&mut self, request: Ask, why: Refusal, cx: &GroupCx<'_>) {
        each!(self, m => m.refuse(request, why, cx));
    }

    fn apply(&mut self, entry: Applied, cx: &GroupCx<'_>) {
        each!(self, m => m.apply(entry, cx));
    }

    fn role_changed(&mut self, cx: &GroupCx<'_>) {
        each!(self, m => m.role_changed(cx));
    }

    fn tick(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        each!(self, m => m.tick(out, cx));
    }

    fn followers(&mut self, keeping_up: &[NodeId], cx: &GroupCx<'_>) {
        each!(self, m => m.followers(keeping_up, cx));
    }

    fn wake_at(&self) -> Option<u64> {
        each!(self, m => m.wake_at())
    }

    fn reclaimable_bytes(&self) -> u64 {
        each!(self, m => m.reclaimable_bytes())
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        each!(self, m => m.snapshot())
    }

    fn restore(
        &mut self,
        state: &[u8],
        index: u64,
        version: MachineVersion,
        cx: &GroupCx<'_>,
    ) -> Result<(), RestoreError> {
        each!(self, m => m.restore(state, index, version, cx))
    }

    fn stopped(&mut self, cx: &GroupCx<'_>) {
        each!(self, m => m.stopped(cx));
    }
}
