//! What the cluster knows about itself: global parameters.

use prost::Message;

use super::layout;
use super::stored::{self, Invalid, Record, Unknown};
use crate::machine::Write;
use crate::tree::{Condition, Op, Payload, Tree};

const CLUSTER_NAME: &str = "cluster_name";
const INTERNAL_CLUSTER_ID: &str = "internal_cluster_id";

/// A global parameter whose value is a text.
#[derive(Clone, PartialEq, Debug, Default)]
struct TextParameter {
    value: String,
    unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    text: String,
}

impl Record for TextParameter {
    const KIND: u16 = 10;
    const WHAT: &'static str = "global parameter";

    fn encode(&self) -> Payload {
        stored::encode::<Self>(&Wire { text: self.value.clone() }, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 1)?;
        Ok(TextParameter { value: wire.text, unknown })
    }
}

/// The cluster's own parameters.
#[derive(Clone, Copy, Debug)]
pub struct Cluster;

impl Cluster {
    /// The name that operators gave it.
    pub fn name(tree: &Tree) -> Result<Option<String>, Invalid> {
        Self::get(tree, CLUSTER_NAME)
    }

    /// Sets the name.
    pub fn set_name(name: &str) -> Write {
        Self::put(CLUSTER_NAME, name, Condition::always())
    }

    /// The id that the cluster got when it formed.
    pub fn internal_id(tree: &Tree) -> Result<Option<String>, Invalid> {
        Self::get(tree, INTERNAL_CLUSTER_ID)
    }

    /// Gives the cluster its id, once: `MismatchingNode` if it has one.
    pub fn create_internal_id(id: &str) -> Write {
        Self::put(INTERNAL_CLUSTER_ID, id, Condition::NodeExists(false))
    }

    fn get(tree: &Tree, key: &str) -> Result<Option<String>, Invalid> {
        let stored = stored::get::<TextParameter>(tree, &layout::global_parameter(key))?;
        Ok(stored.map(|stored| stored.record.value))
    }

    fn put(key: &str, value: &str, condition: Condition) -> Write {
        let parameter = TextParameter { value: value.to_owned(), unknown: Unknown::default() };
        let payload = Some(parameter.encode());
        Op::Put { path: layout::global_parameter(key), condition, payload, keep_while: None }.into()
    }
}
