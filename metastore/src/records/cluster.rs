//! What the cluster knows about itself: global parameters.

use std::collections::BTreeMap;

use serde_json::Value;

use super::parameter::GlobalParameter;
use super::stored::Invalid;
use crate::machine::Write;
use crate::tree::{Condition, Tree};

const CLUSTER_NAME: &str = "cluster_name";
const CLUSTER_TAGS: &str = "cluster_tags";
const INTERNAL_CLUSTER_ID: &str = "internal_cluster_id";

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
        GlobalParameter::set(CLUSTER_NAME, name.into())
    }

    /// The id that the cluster got when it formed.
    pub fn internal_id(tree: &Tree) -> Result<Option<String>, Invalid> {
        Self::get(tree, INTERNAL_CLUSTER_ID)
    }

    /// Gives the cluster its id, once: `MismatchingNode` if it has one.
    pub fn create_internal_id(id: &str) -> Write {
        GlobalParameter::put(INTERNAL_CLUSTER_ID, id.into(), Condition::NodeExists(false))
    }

    /// What its configuration calls the cluster (`cluster_tags.*`), in order of the keys.
    pub fn tags(tree: &Tree) -> Result<BTreeMap<String, String>, Invalid> {
        let Some(stored) = GlobalParameter::get(tree, CLUSTER_TAGS)? else { return Ok(BTreeMap::new()) };
        serde_json::from_value(stored.record.value).map_err(|_| Invalid { what: "set of cluster tags" })
    }

    /// Sets the tags, in place of those before.
    pub fn set_tags(tags: &BTreeMap<String, String>) -> Write {
        let tags = tags.iter().map(|(key, value)| (key.clone(), Value::from(value.as_str())));
        GlobalParameter::set(CLUSTER_TAGS, Value::Object(tags.collect()))
    }

    fn get(tree: &Tree, key: &str) -> Result<Option<String>, Invalid> {
        Ok(GlobalParameter::get(tree, key)?.map(|stored| match stored.record.value {
            Value::String(text) => text,
            other => other.to_string(),
        }))
    }
}
