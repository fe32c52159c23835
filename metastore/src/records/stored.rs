//! How records become payloads and come back.

use std::ops::Deref;

use bytes::Buf;
use prost::Message;
use prost::encoding::{DecodeContext, decode_key, skip_field};
use warren_proto::ids::Reference;

use crate::machine::Reply;
use crate::tree::{Component, MetaError, Node, NodeInfo, Path, Payload, Tree};

/// Stored octets are not a record that this binary can read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the stored {what} cannot be read")]
pub struct Invalid {
    /// What kind of record it should be.
    pub what: &'static str,
}

/// A record as it lies in the tree.
#[derive(Clone, PartialEq, Debug)]
pub struct Stored<T> {
    /// The record.
    pub record: T,
    /// The command that created it: another incarnation of the same name has another one.
    pub create_revision: Reference,
    /// The command that last changed it: what a guarded update compares.
    pub mod_revision: Reference,
}

impl<T> Deref for Stored<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.record
    }
}

/// Fields that a newer binary wrote: kept as they are when this one writes the record again.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Unknown(Vec<u8>);

/// The answer to "create, or tell me what is there".
#[derive(Clone, PartialEq, Debug)]
pub enum CreateOrGet<T> {
    /// It was created as asked.
    Created,
    /// It was there already; this is what is stored.
    Exists(Stored<T>),
}

/// A type that the tree holds.
pub trait Record: Sized {
    /// The payload kind; never reused.
    const KIND: u16;
    /// In errors.
    const WHAT: &'static str;

    /// The payload: canonical, so that equal records have equal payloads.
    fn encode(&self) -> Payload;

    /// The record of a payload.
    fn decode(payload: &Payload) -> Result<Self, Invalid>;

    /// The record of a node; `None` where the node has no payload.
    fn of_node(node: &NodeInfo) -> Result<Option<Stored<Self>>, Invalid> {
        let Some(payload) = &node.payload else {
            return Ok(None);
        };
        Ok(Some(Stored {
            record: Self::decode(payload)?,
            create_revision: node.properties.create_revision,
            mod_revision: node.properties.mod_revision,
        }))
    }

    /// Reads the reply to a `create_or_get`.
    fn created(reply: Result<Reply, MetaError>) -> Result<CreateOrGet<Self>, MetaError> {
        match reply {
            Ok(_) => Ok(CreateOrGet::Created),
            Err(MetaError::MismatchingNode { path, node }) => match Self::of_node(&node) {
                Ok(Some(stored)) => Ok(CreateOrGet::Exists(stored)),
                Ok(None) | Err(_) => Err(MetaError::MismatchingNode { path, node }),
            },
            Err(other) => Err(other),
        }
    }
}

pub(super) fn get<R: Record>(tree: &Tree, path: &Path) -> Result<Option<Stored<R>>, Invalid> {
    match tree.node(path) {
        Some(node) => R::of_node(&node.info()),
        None => Ok(None),
    }
}

/// The records of a node's direct children; `below` leads from the child to the record.
pub(super) fn list<R: Record>(tree: &Tree, path: &Path, below: &[Component]) -> Result<Vec<Stored<R>>, Invalid> {
    let Some(parent) = tree.node(path) else {
        return Ok(Vec::new());
    };
    let mut records = Vec::new();
    for (_, child) in parent.children() {
        let node: Option<&Node> = below.iter().try_fold(child, |node, component| node.child(component));
        if let Some(node) = node {
            records.extend(R::of_node(&node.info())?);
        }
    }
    Ok(records)
}

/// A payload of a record's known fields and those that it keeps for others.
pub(super) fn encode<R: Record>(known: &impl Message, unknown: &Unknown) -> Payload {
    let mut bytes = known.encode_to_vec();
    bytes.extend_from_slice(&unknown.0);
    Payload { kind: R::KIND, schema: 1, bytes: bytes.into() }
}

/// The fields numbered 1 to `last_known`, and the others as they are.
pub(super) fn decode<R: Record, M: Message + Default>(
    payload: &Payload,
    last_known: u32,
) -> Result<(M, Unknown), Invalid> {
    let invalid = Invalid { what: R::WHAT };
    if payload.kind != R::KIND || payload.schema != 1 {
        return Err(invalid);
    }
    let known = M::decode(&payload.bytes[..]).map_err(|_| invalid.clone())?;
    let mut unknown = Vec::new();
    let mut rest = &payload.bytes[..];
    while rest.has_remaining() {
        let start = rest;
        let (tag, wire_type) = decode_key(&mut rest).map_err(|_| invalid.clone())?;
        skip_field(wire_type, tag, &mut rest, DecodeContext::default()).map_err(|_| invalid.clone())?;
        if tag > last_known {
            unknown.extend_from_slice(&start[..start.len() - rest.len()]);
        }
    }
    Ok((known, Unknown(unknown)))
}
