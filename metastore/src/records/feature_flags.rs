//! The feature flags that the cluster has enabled, as its nodes see it.

use std::collections::BTreeSet;

use prost::Message;
use warren_proto::ids::Reference;

use super::layout;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Comparison, Condition, Op, Payload, Tree};

/// The enabled feature flags by name. One record a cluster.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct FeatureFlags {
    /// Names, those that this binary does not know included.
    pub enabled: BTreeSet<String>,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, repeated, tag = "1")]
    enabled: Vec<String>,
}

impl Record for FeatureFlags {
    const KIND: u16 = 15;
    const WHAT: &'static str = "set of feature flags";

    fn encode(&self) -> Payload {
        stored::encode::<Self>(&Wire { enabled: self.enabled.iter().cloned().collect() }, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 1)?;
        Ok(FeatureFlags { enabled: wire.enabled.into_iter().collect(), unknown })
    }
}

impl FeatureFlags {
    /// The record; `None` where no flag was ever noted.
    pub fn get(tree: &Tree) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::feature_flags())
    }

    /// The names of the enabled flags, in order.
    pub fn list(tree: &Tree) -> Result<Vec<String>, Invalid> {
        Ok(Self::get(tree)?.map(|stored| stored.record.enabled.into_iter().collect()).unwrap_or_default())
    }

    /// Writes the record, whatever was there.
    pub fn put(&self) -> Write {
        self.write(Condition::always())
    }

    /// Writes the first record; `MismatchingNode` where there is one.
    pub fn create(&self) -> Write {
        self.write(Condition::absent_or_placeholder())
    }

    /// Replaces the record if it has not changed since it was read.
    pub fn update(&self, mod_revision: Reference) -> Write {
        self.write(Condition::ModRevision(Comparison::Eq, mod_revision))
    }

    fn write(&self, condition: Condition) -> Write {
        let (path, payload) = (layout::feature_flags(), Some(self.encode()));
        Op::Put { path, condition, payload, keep_while: None }.into()
    }

    /// Removes the record. To remove none is no error.
    pub fn delete() -> Write {
        Op::Delete(layout::feature_flags().into()).into()
    }
}
