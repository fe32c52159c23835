//! The nodes of the cluster.

use std::sync::Arc;

use prost::Message;
use warren_proto::ids::{Incarnation, NodeId, Reference};

use super::layout;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Comparison, Component, Condition, Guard, Op, Payload, Tree};

/// A node that belongs to the cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Node {
    /// `name@host`.
    pub name: Arc<str>,
    /// The number of that name.
    pub id: NodeId,
    /// The life of its data directory.
    pub incarnation: Incarnation,
    /// Where peers reach it: `host:port`.
    pub address: String,
    /// The newest machine version of quorum queues that its binary supports; 0 where it did not say.
    pub machine_version: u16,
    /// What its configuration calls it (`node_tags.*`), as `key=value`.
    pub tags: Vec<String>,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(fixed64, tag = "2")]
    id: u64,
    #[prost(fixed64, tag = "3")]
    incarnation: u64,
    #[prost(string, tag = "4")]
    address: String,
    #[prost(uint32, tag = "5")]
    machine_version: u32,
    #[prost(string, repeated, tag = "6")]
    tags: Vec<String>,
}

impl Record for Node {
    const KIND: u16 = 9;
    const WHAT: &'static str = "node";

    fn encode(&self) -> Payload {
        let wire = Wire {
            name: self.name.to_string(),
            id: self.id.0,
            incarnation: self.incarnation.0,
            address: self.address.clone(),
            machine_version: self.machine_version.into(),
            tags: self.tags.clone(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 6)?;
        Ok(Node {
            name: wire.name.into(),
            id: NodeId(wire.id),
            incarnation: Incarnation(wire.incarnation),
            address: wire.address,
            machine_version: u16::try_from(wire.machine_version).map_err(|_| Invalid { what: Self::WHAT })?,
            tags: wire.tags,
            unknown,
        })
    }
}

impl Node {
    /// The node of a name.
    pub fn get(tree: &Tree, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::node(name))
    }

    /// All nodes, in order of their names.
    pub fn list(tree: &Tree) -> Result<Vec<Stored<Self>>, Invalid> {
        let below = layout::node("").last().cloned();
        stored::list(tree, &layout::nodes(), below.as_slice())
    }

    /// Writes the node's record, whatever was there.
    pub fn put(&self) -> Write {
        let path = layout::node(&self.name);
        let payload = Some(self.encode());
        Op::Put { path, condition: Condition::always(), payload, keep_while: None }.into()
    }

    /// Removes the node's record with everything kept about it.
    pub fn delete(name: &str) -> Write {
        Op::Delete(layout::nodes().child(Component::name(name)).into()).into()
    }

    /// [`delete`](Self::delete) if the record has not changed since it was read: a node that came back meanwhile stays.
    pub fn delete_unchanged(name: &str, mod_revision: Reference) -> Write {
        let unchanged = Guard::Test(layout::node(name), Condition::ModRevision(Comparison::Eq, mod_revision));
        Op::If(unchanged, vec![Op::Delete(layout::nodes().child(Component::name(name)).into())], Vec::new()).into()
    }
}
