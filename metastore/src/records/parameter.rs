//! Runtime parameters: settings that operators change while nodes run.

use std::sync::Arc;

use prost::Message;
use serde_json::Value;

use super::layout;
use super::policy::put_in_vhost;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Condition, Node, Op, Payload, Tree};

/// A runtime parameter of a vhost. Policies are records of their own.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Parameter {
    /// The vhost.
    pub vhost: Arc<str>,
    /// The part of the broker that it is for.
    pub component: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The value.
    pub value: Value,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    vhost: String,
    #[prost(string, tag = "2")]
    component: String,
    #[prost(string, tag = "3")]
    name: String,
    /// JSON.
    #[prost(string, tag = "4")]
    value: String,
}

impl Record for Parameter {
    const KIND: u16 = 13;
    const WHAT: &'static str = "runtime parameter";

    fn encode(&self) -> Payload {
        let wire = Wire {
            vhost: self.vhost.to_string(),
            component: self.component.to_string(),
            name: self.name.to_string(),
            value: self.value.to_string(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 4)?;
        Ok(Parameter {
            vhost: wire.vhost.into(),
            component: wire.component.into(),
            name: wire.name.into(),
            value: serde_json::from_str(&wire.value).map_err(|_| Invalid { what: Self::WHAT })?,
            unknown,
        })
    }
}

impl Parameter {
    /// The parameter of a component and name.
    pub fn get(tree: &Tree, vhost: &str, component: &str, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::parameter(vhost, component, name))
    }

    /// All parameters of a vhost, in order of their components and names; no policies.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        let Some(all) = tree.node(&layout::parameters(vhost)) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (component, _) in all.children().filter(|(component, _)| !layout::holds_policies(component)) {
            found.extend(stored::list(tree, &layout::parameters(vhost).child(component.clone()), &[])?);
        }
        Ok(found)
    }

    /// Sets it, whatever was there; aborts with `NoSuchVhost`.
    pub fn set(&self) -> Write {
        put_in_vhost(&self.vhost, layout::parameter(&self.vhost, &self.component, &self.name), self.encode())
    }

    /// Removes it. To remove none is no error.
    pub fn clear(vhost: &str, component: &str, name: &str) -> Write {
        Op::Delete(layout::parameter(vhost, component, name).into()).into()
    }
}

/// The value of a global parameter: of the cluster rather than of a vhost.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct GlobalParameter {
    /// The value.
    pub value: Value,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct GlobalWire {
    /// A value that is a text.
    #[prost(string, tag = "1")]
    text: String,
    /// Any other value, as JSON; empty for a text.
    #[prost(string, tag = "2")]
    value: String,
}

impl Record for GlobalParameter {
    const KIND: u16 = 10;
    const WHAT: &'static str = "global parameter";

    fn encode(&self) -> Payload {
        let wire = match &self.value {
            Value::String(text) => GlobalWire { text: text.clone(), value: String::new() },
            value => GlobalWire { text: String::new(), value: value.to_string() },
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, GlobalWire>(payload, 2)?;
        let value = match wire.value.as_str() {
            "" => Value::String(wire.text),
            value => serde_json::from_str(value).map_err(|_| Invalid { what: Self::WHAT })?,
        };
        Ok(GlobalParameter { value, unknown })
    }
}

impl GlobalParameter {
    /// The parameter of a name.
    pub fn get(tree: &Tree, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::global_parameter(name))
    }

    /// All global parameters with their names, in order of these.
    pub fn list(tree: &Tree) -> Result<Vec<(String, Stored<Self>)>, Invalid> {
        let mut found = Vec::new();
        for (component, child) in tree.node(&layout::global_parameters()).into_iter().flat_map(Node::children) {
            let name = component.as_name().and_then(|name| std::str::from_utf8(name).ok());
            if let (Some(name), Some(stored)) = (name, Self::of_node(&child.info())?) {
                found.push((name.to_owned(), stored));
            }
        }
        Ok(found)
    }

    /// Sets it, whatever was there.
    pub fn set(name: &str, value: Value) -> Write {
        Self::put(name, value, Condition::always())
    }

    pub(super) fn put(name: &str, value: Value, condition: Condition) -> Write {
        let parameter = GlobalParameter { value, unknown: Unknown::default() };
        let payload = Some(parameter.encode());
        Op::Put { path: layout::global_parameter(name), condition, payload, keep_while: None }.into()
    }

    /// Removes it. To remove none is no error.
    pub fn clear(name: &str) -> Write {
        Op::Delete(layout::global_parameter(name).into()).into()
    }
}
