//! Which nodes are in maintenance.

use std::sync::Arc;

use prost::Message;

use super::layout;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Condition, Op, Payload, Tree};

/// What an operator asked of a node.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum MaintenanceStatus {
    /// It serves clients. A node without a record is regular too.
    #[default]
    Regular,
    /// It is giving up its clients and what it leads.
    Draining,
    /// It has given them up, and takes no new ones.
    Drained,
    /// One that a newer binary stored. Treat it as drained: it is certainly not regular.
    Other(u32),
}

impl MaintenanceStatus {
    /// The word that RabbitMQ has for it.
    pub fn as_str(self) -> &'static str {
        match self {
            MaintenanceStatus::Regular => "regular",
            MaintenanceStatus::Draining => "draining",
            MaintenanceStatus::Drained => "drained",
            MaintenanceStatus::Other(_) => "unknown",
        }
    }

    /// The state of a word.
    pub fn from_word(word: &str) -> Option<Self> {
        match word {
            "regular" => Some(MaintenanceStatus::Regular),
            "draining" => Some(MaintenanceStatus::Draining),
            "drained" => Some(MaintenanceStatus::Drained),
            _ => None,
        }
    }

    fn number(self) -> u32 {
        match self {
            MaintenanceStatus::Regular => 0,
            MaintenanceStatus::Draining => 1,
            MaintenanceStatus::Drained => 2,
            MaintenanceStatus::Other(number) => number,
        }
    }

    fn from_number(number: u32) -> Self {
        match number {
            0 => MaintenanceStatus::Regular,
            1 => MaintenanceStatus::Draining,
            2 => MaintenanceStatus::Drained,
            other => MaintenanceStatus::Other(other),
        }
    }
}

/// The maintenance state of a node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct NodeMaintenance {
    /// `name@host`.
    pub node: Arc<str>,
    /// Its state.
    pub status: MaintenanceStatus,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    node: String,
    /// 0 regular, 1 draining, 2 drained.
    #[prost(uint32, tag = "2")]
    status: u32,
}

impl Record for NodeMaintenance {
    const KIND: u16 = 14;
    const WHAT: &'static str = "maintenance state";

    fn encode(&self) -> Payload {
        let wire = Wire { node: self.node.to_string(), status: self.status.number() };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 2)?;
        Ok(NodeMaintenance { node: wire.node.into(), status: MaintenanceStatus::from_number(wire.status), unknown })
    }
}

impl NodeMaintenance {
    /// A node in a state.
    pub fn new(node: &str, status: MaintenanceStatus) -> Self {
        NodeMaintenance { node: node.into(), status, unknown: Unknown::default() }
    }

    /// The record of a node, which may never have had one.
    pub fn get(tree: &Tree, node: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::maintenance(node))
    }

    /// The state of a node; regular where nothing is stored.
    pub fn status(tree: &Tree, node: &str) -> Result<MaintenanceStatus, Invalid> {
        Ok(Self::get(tree, node)?.map(|stored| stored.status).unwrap_or_default())
    }

    /// All records, in order of the nodes' names.
    pub fn list(tree: &Tree) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::maintenance_states(), &[])
    }

    /// Writes the record, whatever was there.
    pub fn put(&self) -> Write {
        let path = layout::maintenance(&self.node);
        let payload = Some(self.encode());
        Op::Put { path, condition: Condition::always(), payload, keep_while: None }.into()
    }

    /// Removes the record: the node is regular then. To remove none is no error.
    pub fn delete(node: &str) -> Write {
        Op::Delete(layout::maintenance(node).into()).into()
    }
}
