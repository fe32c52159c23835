//! Policies: settings that operators give queues and exchanges by their names.

use std::ops::Deref;
use std::sync::Arc;

use prost::Message;
use serde_json::{Map, Value};

use super::stored::{self, Invalid, Record, Stored, Unknown};
use super::{layout, vhost};
use crate::machine::Write;
use crate::tree::{AbortCode, Condition, Op, Path, Payload, Tree};

/// What a policy sets: values by key.
pub type Definition = Map<String, Value>;

/// What a policy is meant for.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub enum ApplyTo {
    /// Queues of all types and exchanges.
    #[default]
    All,
    /// Queues of all types.
    Queues,
    /// Classic queues.
    ClassicQueues,
    /// Quorum queues.
    QuorumQueues,
    /// Streams.
    Streams,
    /// The queues of MQTT subscriptions with QoS 0.
    Qos0Queues,
    /// Exchanges.
    Exchanges,
    /// What a newer binary stored: matches nothing here.
    Other(Arc<str>),
}

impl ApplyTo {
    /// The value of this name, as operators write it.
    pub fn from_name(name: &str) -> Self {
        match name {
            "all" => ApplyTo::All,
            "queues" => ApplyTo::Queues,
            "classic_queues" => ApplyTo::ClassicQueues,
            "quorum_queues" => ApplyTo::QuorumQueues,
            "streams" => ApplyTo::Streams,
            "qos0_queues" => ApplyTo::Qos0Queues,
            "exchanges" => ApplyTo::Exchanges,
            other => ApplyTo::Other(other.into()),
        }
    }

    /// The name, as operators write it.
    pub fn name(&self) -> &str {
        match self {
            ApplyTo::All => "all",
            ApplyTo::Queues => "queues",
            ApplyTo::ClassicQueues => "classic_queues",
            ApplyTo::QuorumQueues => "quorum_queues",
            ApplyTo::Streams => "streams",
            ApplyTo::Qos0Queues => "qos0_queues",
            ApplyTo::Exchanges => "exchanges",
            ApplyTo::Other(name) => name,
        }
    }
}

/// A policy.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Policy {
    /// The vhost.
    pub vhost: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// A regular expression on names of queues and exchanges, unanchored.
    pub pattern: String,
    /// What it is meant for.
    pub apply_to: ApplyTo,
    /// Of those that match, the highest counts.
    pub priority: i64,
    /// What it sets.
    pub definition: Definition,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

/// An operator policy: limits what policies and arguments may ask for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct OperatorPolicy(pub Policy);

impl Deref for OperatorPolicy {
    type Target = Policy;

    fn deref(&self) -> &Policy {
        &self.0
    }
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    vhost: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    pattern: String,
    #[prost(string, tag = "4")]
    apply_to: String,
    #[prost(sint64, tag = "5")]
    priority: i64,
    /// A JSON object.
    #[prost(string, tag = "6")]
    definition: String,
}

impl Policy {
    fn encode_as<R: Record>(&self) -> Payload {
        let wire = Wire {
            vhost: self.vhost.to_string(),
            name: self.name.to_string(),
            pattern: self.pattern.clone(),
            apply_to: self.apply_to.name().to_owned(),
            priority: self.priority,
            definition: Value::Object(self.definition.clone()).to_string(),
        };
        stored::encode::<R>(&wire, &self.unknown)
    }

    fn decode_as<R: Record>(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<R, Wire>(payload, 6)?;
        Ok(Policy {
            vhost: wire.vhost.into(),
            name: wire.name.into(),
            pattern: wire.pattern,
            apply_to: ApplyTo::from_name(&wire.apply_to),
            priority: wire.priority,
            definition: serde_json::from_str(&wire.definition).map_err(|_| Invalid { what: R::WHAT })?,
            unknown,
        })
    }

    /// The policy of a name.
    pub fn get(tree: &Tree, vhost: &str, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::policy(vhost, name))
    }

    /// All policies of a vhost, in order of their names.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::policies(vhost), &[])
    }

    /// Sets it, whatever was there; aborts with `NoSuchVhost`.
    pub fn set(&self) -> Write {
        put_in_vhost(&self.vhost, layout::policy(&self.vhost, &self.name), self.encode())
    }

    /// Removes it. To remove none is no error.
    pub fn clear(vhost: &str, name: &str) -> Write {
        Op::Delete(layout::policy(vhost, name).into()).into()
    }
}

impl Record for Policy {
    const KIND: u16 = 11;
    const WHAT: &'static str = "policy";

    fn encode(&self) -> Payload {
        self.encode_as::<Self>()
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        Self::decode_as::<Self>(payload)
    }
}

impl Record for OperatorPolicy {
    const KIND: u16 = 12;
    const WHAT: &'static str = "operator policy";

    fn encode(&self) -> Payload {
        self.encode_as::<Self>()
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        Policy::decode_as::<Self>(payload).map(OperatorPolicy)
    }
}

impl OperatorPolicy {
    /// The operator policy of a name.
    pub fn get(tree: &Tree, vhost: &str, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::operator_policy(vhost, name))
    }

    /// All operator policies of a vhost, in order of their names.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::operator_policies(vhost), &[])
    }

    /// Sets it, whatever was there; aborts with `NoSuchVhost`.
    pub fn set(&self) -> Write {
        put_in_vhost(&self.vhost, layout::operator_policy(&self.vhost, &self.name), self.encode())
    }

    /// Removes it. To remove none is no error.
    pub fn clear(vhost: &str, name: &str) -> Write {
        Op::Delete(layout::operator_policy(vhost, name).into()).into()
    }
}

/// Writes what lies in a vhost, if that exists.
pub(super) fn put_in_vhost(vhost: &str, path: Path, payload: Payload) -> Write {
    let put = Op::Put { path, condition: Condition::always(), payload: Some(payload), keep_while: None };
    Op::If(vhost::exists(vhost), vec![put], vec![Op::Abort(AbortCode::NoSuchVhost)]).into()
}
