//! The state as bytes: equal states give equal bytes.
//!
//! Layout, little-endian: magic `WMT1`; machine version `u16`, the newest that a command was applied in; last applied reference `u64`; node count `u64`; the
//! nodes in path order, the root first; dedup count `u64`; the dedups in order of their ids; SHA-256 of all before it.
//! A node: depth `u8`; its last component (not for the root); flags `u8` (1 has a payload, 2 placeholder, 4 keep-while);
//! payload kind `u16`, schema `u16`, length varint, octets; payload version and child list version, varints; create and
//! mod revision `u64`; length varint and prost encoding of the keep-while conditions. A dedup: origin `u64`, seq `u64`,
//! deadline `u64`, length varint and prost encoding of the reply.

use std::sync::Arc;

use bytes::{Buf, BufMut};
use prost::Message;
use prost::encoding::{decode_varint, encode_varint};
use sha2::{Digest, Sha256};
use warren_proto::ids::{MachineVersion, Reference};

use super::dedup::{Dedups, MAX_DEDUPS, Remembered};
use super::{Machine, Reply, RequestId, decode, encode, wire};
use crate::tree::{Component, Keep, MAX_DEPTH, MAX_PAYLOAD, Node, Payload, Tree};

const MAGIC: &[u8; 4] = b"WMT1";
const CHECKSUM: usize = 32;

const HAS_PAYLOAD: u8 = 1;
const PLACEHOLDER: u8 = 2;
const KEEP_WHILE: u8 = 4;

/// Stored state that cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum RestoreError {
    /// Not a snapshot, or of a format that this binary does not know.
    #[error("not a metadata snapshot of a known format")]
    Format,
    /// Written by a machine version that this binary cannot apply.
    #[error("metadata snapshot of machine version {0}")]
    Version(MachineVersion),
    /// Its checksum is wrong.
    #[error("metadata snapshot is damaged: its checksum is wrong")]
    Checksum,
    /// Its checksum is right, but its content cannot be read.
    #[error("metadata snapshot has invalid content")]
    Content,
    /// It can be read, but no commands lead to such a state.
    #[error("metadata snapshot is unsound: {0}")]
    Unsound(String),
}

impl Machine {
    /// The whole state.
    pub fn snapshot(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.put_slice(MAGIC);
        // Members with older binaries must be able to read it as long as the group's version says so.
        out.put_u16_le(self.version.0);
        out.put_u64_le(self.applied.0);
        out.put_u64_le(self.tree.count());
        put_node(0, None, self.tree.root(), &mut out);
        out.put_u64_le(self.dedups.len() as u64);
        for (id, remembered) in self.dedups.iter() {
            put_dedup(id, remembered, &mut out);
        }
        let checksum = Sha256::digest(&out);
        out.put_slice(&checksum);
        out
    }

    /// The machine whose snapshot this is. A state that breaks an invariant is refused, whatever its checksum: it would
    /// be served, changed and passed on.
    pub fn restore(bytes: &[u8]) -> Result<Self, RestoreError> {
        let Some((body, checksum)) = bytes.split_last_chunk::<CHECKSUM>() else {
            return Err(RestoreError::Format);
        };
        if !body.starts_with(MAGIC) {
            return Err(RestoreError::Format);
        }
        if Sha256::digest(body)[..] != checksum[..] {
            return Err(RestoreError::Checksum);
        }
        let mut input = &body[MAGIC.len()..];
        let version = MachineVersion(input.try_get_u16_le().map_err(|_| RestoreError::Content)?);
        if !Self::VERSIONS.contains(&version) {
            return Err(RestoreError::Version(version));
        }
        let machine = Machine { version, ..content(input).ok_or(RestoreError::Content)? };
        machine.tree.check_nodes(machine.applied).map_err(RestoreError::Unsound)?;
        Ok(machine)
    }

    /// A digest of the whole state: equal on members that applied the same log.
    pub fn digest(&self) -> [u8; 32] {
        Sha256::digest(self.snapshot()).into()
    }
}

fn content(mut input: &[u8]) -> Option<Machine> {
    let applied = Reference(input.try_get_u64_le().ok()?);
    let nodes = input.try_get_u64_le().ok()?;
    let tree = Tree::from_root(take_tree(&mut input, nodes)?);
    let mut dedups = Dedups::default();
    let count = input.try_get_u64_le().ok().filter(|count| *count <= MAX_DEDUPS as u64)?;
    let mut last = None;
    for _ in 0..count {
        let (id, remembered) = take_dedup(&mut input)?;
        if last >= Some(id) {
            return None;
        }
        last = Some(id);
        dedups.insert(id, remembered);
    }
    input.is_empty().then_some(Machine { tree, dedups, applied, ..Machine::default() })
}

fn put_node(depth: u8, component: Option<&Component>, node: &Node, out: &mut Vec<u8>) {
    out.put_u8(depth);
    if let Some(component) = component {
        component.encode(out);
    }
    let keep = match &node.keep {
        Keep::Always => 0,
        Keep::Placeholder => PLACEHOLDER,
        Keep::While(_) => KEEP_WHILE,
    };
    out.put_u8(keep | if node.payload.is_some() { HAS_PAYLOAD } else { 0 });
    if let Some(payload) = &node.payload {
        out.put_u16_le(payload.kind);
        out.put_u16_le(payload.schema);
        put_bytes(&payload.bytes, out);
    }
    encode_varint(node.payload_version, out);
    encode_varint(node.child_list_version, out);
    out.put_u64_le(node.create_revision.0);
    out.put_u64_le(node.mod_revision.0);
    if let Keep::While(keep) = &node.keep {
        put_bytes(&encode::keep_while(keep).encode_to_vec(), out);
    }
    for (component, child) in node.children() {
        put_node(depth + 1, Some(component), child, out);
    }
}

/// Rebuilds the tree from its nodes in path order: `path` holds the chain from the root to the node read last.
fn take_tree(input: &mut &[u8], count: u64) -> Option<Node> {
    let mut path: Vec<(Option<Component>, Node)> = Vec::new();
    for _ in 0..count {
        let depth = usize::from(input.try_get_u8().ok()?);
        if depth > path.len() || depth > MAX_DEPTH || (depth == 0) != path.is_empty() {
            return None;
        }
        let mut sibling = None;
        while path.len() > depth {
            sibling = Some(attach_last(&mut path)?);
        }
        let component = if depth == 0 { None } else { Some(Component::decode(input)?) };
        if depth > 0 && sibling >= component {
            return None;
        }
        path.push((component, take_node(input)?));
    }
    while path.len() > 1 {
        attach_last(&mut path)?;
    }
    path.pop().map(|(_, root)| root)
}

/// Hangs the node read last under its parent. Answers its name.
fn attach_last(path: &mut Vec<(Option<Component>, Node)>) -> Option<Component> {
    let (component, node) = path.pop()?;
    let (_, parent) = path.last_mut()?;
    parent.children.insert(component.clone()?, Arc::new(node));
    component
}

fn take_node(input: &mut &[u8]) -> Option<Node> {
    let flags = input.try_get_u8().ok()?;
    let payload = if flags & HAS_PAYLOAD != 0 {
        let kind = input.try_get_u16_le().ok()?;
        let schema = input.try_get_u16_le().ok()?;
        let bytes = take_bytes(input).filter(|bytes| bytes.len() <= MAX_PAYLOAD)?;
        Some(Payload { kind, schema, bytes: bytes.into() })
    } else {
        None
    };
    let payload_version = decode_varint(input).ok()?;
    let child_list_version = decode_varint(input).ok()?;
    let create_revision = Reference(input.try_get_u64_le().ok()?);
    let mod_revision = Reference(input.try_get_u64_le().ok()?);
    let keep = match flags & !HAS_PAYLOAD {
        0 => Keep::Always,
        PLACEHOLDER => Keep::Placeholder,
        KEEP_WHILE => {
            let stored = wire::KeepWhile::decode(take_bytes(input)?).ok()?;
            Keep::While(Arc::new(decode::keep_while(stored)?))
        }
        _ => return None,
    };
    let mut node = Node::new(create_revision, keep);
    node.payload = payload;
    node.payload_version = payload_version;
    node.child_list_version = child_list_version;
    node.mod_revision = mod_revision;
    Some(node)
}

fn put_dedup(id: &RequestId, remembered: &Remembered, out: &mut Vec<u8>) {
    out.put_u64_le(id.origin);
    out.put_u64_le(id.seq);
    out.put_u64_le(remembered.deadline_ms);
    let reply = remembered.reply.as_ref().map(|reply| reply.results.clone()).map_err(Clone::clone);
    put_bytes(&encode::reply(&reply).encode_to_vec(), out);
}

fn take_dedup(input: &mut &[u8]) -> Option<(RequestId, Remembered)> {
    let origin = input.try_get_u64_le().ok()?;
    let seq = input.try_get_u64_le().ok()?;
    let deadline_ms = input.try_get_u64_le().ok()?;
    let stored = wire::Reply::decode(take_bytes(input)?).ok()?;
    let reply = decode::reply(stored)?.map(|results| Reply { results });
    Some((RequestId { origin, seq }, Remembered { deadline_ms, reply }))
}

fn put_bytes(bytes: &[u8], out: &mut Vec<u8>) {
    encode_varint(bytes.len() as u64, out);
    out.put_slice(bytes);
}

fn take_bytes<'a>(input: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = usize::try_from(decode_varint(input).ok()?).ok()?;
    let (bytes, rest) = input.split_at_checked(len)?;
    *input = rest;
    Some(bytes)
}
