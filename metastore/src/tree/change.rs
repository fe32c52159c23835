//! What one command did to the tree, node by node.

use std::collections::BTreeMap;

use warren_proto::ids::Reference;

use super::node::{NodeInfo, Payload};
use super::path::Path;

/// Why a node was deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeleteReason {
    /// The command named it or an ancestor.
    Explicit,
    /// A condition that it depended on no longer holds, or it was an empty placeholder.
    KeepWhile,
}

/// What became of one node.
#[derive(Clone, PartialEq, Debug)]
pub struct Change {
    /// The node before the command; `None` where the command created it.
    pub old: Option<NodeInfo>,
    /// The node after the command; `None` where it is gone. Its `create_revision` differs from the old one's when the
    /// command deleted the node and created it again.
    pub new: Option<NodeInfo>,
    /// Set where the node is gone.
    pub delete_reason: Option<DeleteReason>,
}

impl Change {
    /// The payload before.
    pub fn old_payload(&self) -> Option<&Payload> {
        self.old.as_ref()?.payload.as_ref()
    }

    /// The payload after.
    pub fn new_payload(&self) -> Option<&Payload> {
        self.new.as_ref()?.payload.as_ref()
    }
}

/// Every node that a command touched, in path order: written (even with an equal payload), created on the way,
/// deleted, or deleted because of a deletion.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Changes {
    pub(crate) nodes: BTreeMap<Path, Change>,
}

impl Changes {
    /// Whether nothing was touched.
    pub fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Number of nodes touched.
    pub fn len(&self) -> usize {
        self.nodes.len()
    }

    /// The nodes in path order.
    pub fn iter(&self) -> impl Iterator<Item = (&Path, &Change)> {
        self.nodes.iter()
    }

    /// What became of one node.
    pub fn get(&self, path: &Path) -> Option<&Change> {
        self.nodes.get(path)
    }

    /// Takes in a later command's changes: as if both had been one command.
    pub fn merge(&mut self, later: Changes) {
        for (path, change) in later.nodes {
            match self.nodes.entry(path) {
                std::collections::btree_map::Entry::Vacant(at) => {
                    at.insert(change);
                }
                std::collections::btree_map::Entry::Occupied(mut at) => {
                    if at.get().old.is_none() && change.new.is_none() {
                        at.remove();
                    } else {
                        at.get_mut().new = change.new;
                        at.get_mut().delete_reason = change.delete_reason;
                    }
                }
            }
        }
    }

    /// The nodes created, or deleted and created again, by the command at `reference`.
    pub fn created(&self, reference: Reference) -> impl Iterator<Item = &Path> {
        let new_at = move |c: &Change| c.new.as_ref().is_some_and(|n| n.properties.create_revision == reference);
        self.nodes.iter().filter(move |(_, change)| new_at(change)).map(|(path, _)| path)
    }
}
