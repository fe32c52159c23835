//! Nodes of the tree and what they carry.

use std::sync::Arc;

use warren_proto::ids::Reference;

use super::keep_while::KeepWhile;
use super::ordered_map::OrderedMap;
use super::path::Component;

/// Octets in a payload, at most.
pub const MAX_PAYLOAD: usize = 1 << 20;

/// What a node holds: a kind and schema that say which record it is, and that record's canonical encoding.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Payload {
    /// The kind of record.
    pub kind: u16,
    /// The version of that kind's encoding.
    pub schema: u16,
    /// The encoding; two payloads are equal when their octets are.
    pub bytes: Arc<[u8]>,
}

/// Versions and revisions of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Properties {
    /// Starts at 1, one more for each command that changed the payload.
    pub payload_version: u64,
    /// Starts at 1, one more for each command that added or removed a direct child.
    pub child_list_version: u64,
    /// Direct children.
    pub child_list_length: u64,
    /// The command that created this incarnation.
    pub create_revision: Reference,
    /// The last command that changed the payload.
    pub mod_revision: Reference,
}

/// A node as a command or a query reports it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct NodeInfo {
    /// The payload, if it has one.
    pub payload: Option<Payload>,
    /// Versions and revisions.
    pub properties: Properties,
}

/// Why a node stays when what it depends on goes.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) enum Keep {
    /// It stays until it is deleted.
    #[default]
    Always,
    /// It was created on the way to a descendant: it goes with its last child, unless it was given a payload.
    Placeholder,
    /// It goes when one of these no longer holds.
    While(Arc<KeepWhile>),
}

/// One node. Shared between versions of the tree; changed only through a copy.
#[derive(Clone, Debug)]
pub struct Node {
    pub(crate) payload: Option<Payload>,
    pub(crate) children: OrderedMap<Component, Arc<Node>>,
    pub(crate) payload_version: u64,
    pub(crate) child_list_version: u64,
    pub(crate) create_revision: Reference,
    pub(crate) mod_revision: Reference,
    pub(crate) keep: Keep,
}

impl Node {
    pub(crate) fn new(created: Reference, keep: Keep) -> Self {
        Node {
            payload: None,
            children: OrderedMap::default(),
            payload_version: 1,
            child_list_version: 1,
            create_revision: created,
            mod_revision: created,
            keep,
        }
    }

    /// The payload, if there is one.
    pub fn payload(&self) -> Option<&Payload> {
        self.payload.as_ref()
    }

    /// Direct children in component order.
    pub fn children(&self) -> impl Iterator<Item = (&Component, &Node)> {
        self.children.iter().map(|(component, node)| (component, &**node))
    }

    /// A direct child.
    pub fn child(&self, component: &Component) -> Option<&Node> {
        self.children.get(component).map(|node| &**node)
    }

    /// Versions and revisions.
    pub fn properties(&self) -> Properties {
        Properties {
            payload_version: self.payload_version,
            child_list_version: self.child_list_version,
            child_list_length: self.children.len() as u64,
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
        }
    }

    /// Payload and properties together.
    pub fn info(&self) -> NodeInfo {
        NodeInfo { payload: self.payload.clone(), properties: self.properties() }
    }

    pub(crate) fn is_empty_placeholder(&self) -> bool {
        self.keep == Keep::Placeholder && self.payload.is_none() && self.children.is_empty()
    }
}
