//! Bindings.

use std::sync::Arc;

use warren_proto::amqp091::{TableError, TableRef};

use super::exchange::present;
use super::layout::{self, Place};
use super::stored::Invalid;
use crate::machine::Write;
use crate::tree::{AbortCode, Component, Guard, Node, Op, Path, Payload, Tree, Watch, set_elements};

/// The payload kind of the set of bindings that differ in their arguments only.
pub(crate) const KIND: u16 = 1;

/// What a binding leads to.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum DestinationKind {
    /// A queue.
    Queue,
    /// Another exchange.
    Exchange,
}

/// A binding; all of it is its identity.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Binding {
    /// The vhost of both ends.
    pub vhost: Arc<str>,
    /// The exchange that it leads from.
    pub source: Arc<str>,
    /// What it leads to.
    pub destination_kind: DestinationKind,
    /// The name of what it leads to.
    pub destination: Arc<str>,
    /// The binding key.
    pub key: Arc<[u8]>,
    /// Its arguments: an AMQP 0.9.1 field table without its length. Fields sorted by name when made by
    /// [`Binding::new`], so that equal arguments have equal octets.
    pub arguments: Arc<[u8]>,
}

/// All bindings of one source, destination and key: they differ in their arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BindingNode {
    /// The vhost of both ends.
    pub vhost: Arc<str>,
    /// The exchange that they lead from.
    pub source: Arc<str>,
    /// What they lead to.
    pub destination_kind: DestinationKind,
    /// The name of what they lead to.
    pub destination: Arc<str>,
    /// The binding key.
    pub key: Arc<[u8]>,
}

impl BindingNode {
    /// The binding of these arguments.
    pub fn with_arguments(&self, arguments: Arc<[u8]>) -> Binding {
        Binding {
            vhost: self.vhost.clone(),
            source: self.source.clone(),
            destination_kind: self.destination_kind,
            destination: self.destination.clone(),
            key: self.key.clone(),
            arguments,
        }
    }

    /// The bindings, by arguments.
    pub(crate) fn list(&self, tree: &Tree) -> Result<Vec<Binding>, Invalid> {
        match tree.node(&self.path()).and_then(Node::payload) {
            Some(payload) => Ok(arguments(payload)?.into_iter().map(|table| self.with_arguments(table)).collect()),
            None => Ok(Vec::new()),
        }
    }

    /// Their argument tables; none where they cannot be read.
    pub(crate) fn arguments(&self, tree: &Tree) -> Vec<Arc<[u8]>> {
        let payload = tree.node(&self.path()).and_then(Node::payload);
        payload.and_then(|payload| arguments(payload).ok()).unwrap_or_default()
    }

    fn path(&self) -> Path {
        let to_queue = self.destination_kind == DestinationKind::Queue;
        let key = Component::Name(self.key.clone());
        layout::bindings_to(&self.vhost, &self.source, to_queue, &self.destination).child(key)
    }

    pub(crate) fn of_place(place: Place<'_>) -> Option<Self> {
        let Place::Binding { vhost, source, to_queue, destination, key } = place else {
            return None;
        };
        Some(BindingNode {
            vhost: vhost.into(),
            source: source.into(),
            destination_kind: if to_queue { DestinationKind::Queue } else { DestinationKind::Exchange },
            destination: destination.into(),
            key: key.into(),
        })
    }
}

/// The argument tables of a node's bindings.
pub(crate) fn arguments(payload: &Payload) -> Result<Vec<Arc<[u8]>>, Invalid> {
    let invalid = Invalid { what: "binding" };
    if payload.kind != KIND {
        return Err(invalid);
    }
    let elements = set_elements(payload).map_err(|_| invalid)?;
    Ok(elements.into_iter().map(Arc::from).collect())
}

impl Binding {
    /// A binding with its arguments in canonical order. Fails for a table that cannot be read.
    pub fn new(of: &BindingNode, arguments: &[u8]) -> Result<Self, TableError> {
        Ok(of.with_arguments(sorted(arguments)?))
    }

    /// Source, destination and key.
    pub fn node(&self) -> BindingNode {
        BindingNode {
            vhost: self.vhost.clone(),
            source: self.source.clone(),
            destination_kind: self.destination_kind,
            destination: self.destination.clone(),
            key: self.key.clone(),
        }
    }

    /// Whether this very binding exists.
    pub fn exists(&self, tree: &Tree) -> Result<bool, Invalid> {
        match tree.node(&self.path()).and_then(Node::payload) {
            Some(payload) => Ok(arguments(payload)?.contains(&self.arguments)),
            None => Ok(false),
        }
    }

    /// All bindings from an exchange, by destination, key and arguments.
    pub fn list_from(tree: &Tree, vhost: &str, source: &str) -> Result<Vec<Binding>, Invalid> {
        let mut found = Vec::new();
        collect(tree, &layout::bindings(vhost, source), &mut found)?;
        Ok(found)
    }

    /// All bindings of a vhost, by source, destination, key and arguments.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Binding>, Invalid> {
        let mut found = Vec::new();
        collect(tree, &layout::exchanges(vhost), &mut found)?;
        Ok(found)
    }

    /// The bindings between an exchange and a destination, by key and arguments.
    pub fn list_between(
        tree: &Tree,
        vhost: &str,
        source: &str,
        kind: DestinationKind,
        destination: &str,
    ) -> Result<Vec<Binding>, Invalid> {
        let mut found = Vec::new();
        let path = layout::bindings_to(vhost, source, kind == DestinationKind::Queue, destination);
        collect(tree, &path, &mut found)?;
        Ok(found)
    }

    /// Adds the binding; aborts with `NoSuchExchange`, `NoSuchDestination` or `NoSuchSourceAndDestination`. The reply
    /// says whether it is new ([`Reply::changed`](crate::machine::Reply::changed)).
    pub fn put(&self) -> Write {
        let abort = |code| vec![Op::Abort(code)];
        let add = vec![Op::SetAdd {
            path: self.path(),
            kind: KIND,
            schema: 1,
            element: self.arguments.clone(),
            keep_while: Some(vec![Watch::exists(self.destination_path())]),
        }];
        let (source, destination) = (present(self.source_path()), present(self.destination_path()));
        Op::If(
            source,
            vec![Op::If(destination.clone(), add, abort(AbortCode::NoSuchDestination))],
            vec![Op::If(destination, abort(AbortCode::NoSuchExchange), abort(AbortCode::NoSuchSourceAndDestination))],
        )
        .into()
    }

    /// Removes the binding; its source goes too if it is auto-delete and this was its last. To remove none is no
    /// error.
    pub fn delete(&self) -> Write {
        let both = Guard::All(vec![present(self.source_path()), present(self.destination_path())]);
        let element = self.arguments.clone();
        let remove = Op::SetRemove { path: self.path(), kind: KIND, element, delete_if_empty: true };
        Op::If(both, vec![remove], Vec::new()).into()
    }

    fn path(&self) -> Path {
        self.node().path()
    }

    fn source_path(&self) -> Path {
        layout::exchange(&self.vhost, &self.source)
    }

    fn destination_path(&self) -> Path {
        match self.destination_kind {
            DestinationKind::Queue => layout::queue(&self.vhost, &self.destination),
            DestinationKind::Exchange => layout::exchange(&self.vhost, &self.destination),
        }
    }
}

/// The table with its fields in order of their names: the order is no part of a binding's identity.
fn sorted(arguments: &[u8]) -> Result<Arc<[u8]>, TableError> {
    Ok(TableRef::new(arguments).to_table()?.sorted().to_bytes()[..].into())
}

/// Every binding beneath a path.
fn collect(tree: &Tree, path: &Path, found: &mut Vec<Binding>) -> Result<(), Invalid> {
    fn walk(at: &mut Vec<Component>, node: &Node, found: &mut Vec<Binding>) -> Result<(), Invalid> {
        if let Some(payload) = node.payload()
            && let Some(of) = Place::of(at).and_then(BindingNode::of_place)
        {
            found.extend(arguments(payload)?.into_iter().map(|arguments| of.with_arguments(arguments)));
        }
        for (component, child) in node.children() {
            at.push(component.clone());
            walk(at, child, found)?;
            at.pop();
        }
        Ok(())
    }
    match tree.node(path) {
        Some(node) => walk(&mut path.components().to_vec(), node, found),
        None => Ok(()),
    }
}
