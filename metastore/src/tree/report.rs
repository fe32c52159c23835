//! What a command answers about the nodes that it touched, if asked: the old payload, the new versions, and why a node
//! went.

use super::change::{Changes, DeleteReason};
use super::error::MetaError;
use super::node::{NodeInfo, Payload, Properties};
use super::path::Path;
use super::transaction::{MAX_ANSWERED, MAX_VISITED};

/// What is to be answered about each node (`props_to_return`, `return_indirect_deletes`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Report {
    /// The payload before the command.
    pub payload: bool,
    /// The payload's version.
    pub payload_version: bool,
    /// The child list's version and length.
    pub child_list: bool,
    /// The revisions of creation and of the last change.
    pub revisions: bool,
    /// Also nodes that went because of others.
    pub indirect_deletes: bool,
}

impl Default for Report {
    fn default() -> Self {
        Report { payload: true, payload_version: true, child_list: false, revisions: false, indirect_deletes: true }
    }
}

/// One node that a command touched. What was not asked for is absent, or zero; of a node that the command created there
/// is nothing but its path.
#[derive(Clone, PartialEq, Debug)]
pub struct Touched {
    /// The node.
    pub path: Path,
    /// Its old payload, and its new versions: the old ones where it is gone.
    pub node: Option<NodeInfo>,
    /// Set where it is gone.
    pub delete_reason: Option<DeleteReason>,
}

impl Report {
    /// The answer about what a command did.
    pub(crate) fn of(&self, changes: &Changes) -> Result<Vec<Touched>, MetaError> {
        let mut octets = 0;
        let mut touched = Vec::new();
        for (path, change) in changes.iter() {
            if change.delete_reason == Some(DeleteReason::KeepWhile) && !self.indirect_deletes {
                continue;
            }
            let node = change.old.as_ref().map(|old| NodeInfo {
                payload: old.payload.clone().filter(|_| self.payload),
                properties: self.properties(change.new.as_ref().unwrap_or(old).properties),
            });
            octets += node.as_ref().and_then(|node| node.payload.as_ref()).map_or(0, size);
            if octets > MAX_ANSWERED || touched.len() >= MAX_VISITED {
                return Err(MetaError::TxnTooLarge);
            }
            touched.push(Touched { path: path.clone(), node, delete_reason: change.delete_reason });
        }
        Ok(touched)
    }

    fn properties(&self, all: Properties) -> Properties {
        let mut asked = Properties::default();
        if self.payload_version {
            asked.payload_version = all.payload_version;
        }
        if self.child_list {
            (asked.child_list_version, asked.child_list_length) = (all.child_list_version, all.child_list_length);
        }
        if self.revisions {
            (asked.create_revision, asked.mod_revision) = (all.create_revision, all.mod_revision);
        }
        asked
    }
}

fn size(payload: &Payload) -> usize {
    payload.bytes.len()
}
