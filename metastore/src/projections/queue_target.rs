//! Queues as publishers see them.

use std::fmt;
use std::sync::Arc;

use arc_swap::ArcSwap;
use warren_proto::ids::{GroupId, NodeId, Reference};

use crate::records::{Member, Queue, QueueKind, Stored};

/// One incarnation of a queue. What can change while it lives (its members) is behind [`record`](Self::record), so
/// that a change of members touches no routing table.
pub struct QueueTarget {
    /// The vhost.
    pub vhost: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// What runs it.
    pub kind: QueueKind,
    /// Its identity; the Raft group of a quorum queue.
    pub group: GroupId,
    /// The node of a classic queue.
    pub home: NodeId,
    /// Whether it survives its node's restart.
    pub durable: bool,
    /// The command that created it.
    pub create_revision: Reference,
    record: ArcSwap<Stored<Queue>>,
}

impl QueueTarget {
    pub(super) fn new(record: Arc<Stored<Queue>>) -> Self {
        QueueTarget {
            vhost: record.vhost.clone(),
            name: record.name.clone(),
            kind: record.kind,
            group: record.group,
            home: record.home,
            durable: record.durable,
            create_revision: record.create_revision,
            record: ArcSwap::new(record),
        }
    }

    /// The newest record, whichever view this target came from.
    pub fn record(&self) -> Arc<Stored<Queue>> {
        self.record.load_full()
    }

    /// The newest list of members.
    pub fn members(&self) -> Vec<Member> {
        self.record.load().members.clone()
    }

    /// Looks at each of the newest list of members.
    pub fn with_members(&self, look: impl FnMut(&Member)) {
        self.record.load().members.iter().for_each(look);
    }

    /// Takes in a new record of the same queue; false where it needs a new target.
    pub(super) fn update(&self, record: &Arc<Stored<Queue>>) -> bool {
        let same = self.create_revision == record.create_revision
            && (self.kind, self.group, self.home) == (record.kind, record.group, record.home)
            && self.durable == record.durable;
        if same {
            self.record.store(record.clone());
        }
        same
    }
}

impl fmt::Debug for QueueTarget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{} ({}, group {})", self.vhost, self.name, self.kind.name(), self.group)
    }
}
