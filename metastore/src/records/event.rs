//! What one command did, in terms of records.

use std::sync::Arc;

use super::binding::{self, BindingNode};
use super::layout::Place;
use super::stored::{Record, Stored};
use super::{
    Exchange, FeatureFlags, Node, NodeMaintenance, OperatorPolicy, Parameter, Permission, Policy, Queue,
    TopicPermission, User, Vhost,
};
use crate::tree::{Change, Changes};

/// A record before and after a command; at least one is there.
#[derive(Clone, PartialEq, Debug)]
pub struct Delta<T> {
    /// Before; `None` = created.
    pub old: Option<Stored<T>>,
    /// After; `None` = deleted. Another `create_revision` than before means deleted and created again.
    pub new: Option<Stored<T>>,
}

impl<T> Delta<T> {
    /// The old record, if this incarnation of it is gone.
    pub fn removed(&self) -> Option<&Stored<T>> {
        let old = self.old.as_ref()?;
        match &self.new {
            Some(new) if new.create_revision == old.create_revision => None,
            _ => Some(old),
        }
    }

    /// The record after a change of its content.
    pub fn changed(&self) -> Option<&Stored<T>> {
        match (&self.old, &self.new) {
            (Some(old), Some(new)) if new.create_revision == old.create_revision => Some(new),
            _ => None,
        }
    }

    /// The new record, if this incarnation of it is new.
    pub fn created(&self) -> Option<&Stored<T>> {
        let new = self.new.as_ref()?;
        match &self.old {
            Some(old) if new.create_revision == old.create_revision => None,
            _ => Some(new),
        }
    }
}

/// What became of one record.
#[derive(Clone, PartialEq, Debug)]
pub enum RecordChange {
    /// A vhost.
    Vhost(Delta<Vhost>),
    /// A user.
    User(Delta<User>),
    /// A user's permission in a vhost.
    Permission(Delta<Permission>),
    /// A user's topic permission.
    TopicPermission(Delta<TopicPermission>),
    /// An exchange.
    Exchange(Delta<Exchange>),
    /// A queue.
    Queue(Delta<Queue>),
    /// The bindings of one source, destination and key: their argument tables before and after.
    Bindings {
        /// Which.
        of: BindingNode,
        /// Argument tables before.
        old: Vec<Arc<[u8]>>,
        /// Argument tables after.
        new: Vec<Arc<[u8]>>,
    },
    /// A policy.
    Policy(Delta<Policy>),
    /// An operator policy.
    OperatorPolicy(Delta<OperatorPolicy>),
    /// Another runtime parameter.
    Parameter(Delta<Parameter>),
    /// A node.
    Node(Delta<Node>),
    /// The maintenance state of a node.
    Maintenance(Delta<NodeMaintenance>),
    /// The enabled feature flags.
    FeatureFlags(Delta<FeatureFlags>),
}

/// The records that changed, in path order: a vhost before its permissions, exchanges and queues, an exchange before its
/// bindings, and the bindings before the queues of the vhost. Written but equal records are left out, as are those that
/// this binary cannot read.
pub fn record_changes(changes: &Changes) -> impl Iterator<Item = RecordChange> {
    changes.iter().filter_map(|(path, change)| record_change(Place::of(path.components())?, change))
}

fn record_change(place: Place<'_>, change: &Change) -> Option<RecordChange> {
    match place {
        Place::Vhost(_) => delta(change).map(RecordChange::Vhost),
        Place::User(_) => delta(change).map(RecordChange::User),
        Place::Permission { .. } => delta(change).map(RecordChange::Permission),
        Place::TopicPermission { .. } => delta(change).map(RecordChange::TopicPermission),
        Place::Exchange { .. } => delta(change).map(RecordChange::Exchange),
        Place::Queue { .. } => delta(change).map(RecordChange::Queue),
        Place::Policy { .. } => delta(change).map(RecordChange::Policy),
        Place::OperatorPolicy { .. } => delta(change).map(RecordChange::OperatorPolicy),
        Place::Parameter { .. } => delta(change).map(RecordChange::Parameter),
        Place::Node(_) => delta(change).map(RecordChange::Node),
        Place::Maintenance(_) => delta(change).map(RecordChange::Maintenance),
        Place::FeatureFlags => delta(change).map(RecordChange::FeatureFlags),
        Place::GlobalParameter(_) => None,
        Place::Binding { .. } => {
            let tables = |payload| binding::arguments(payload).unwrap_or_default();
            let old = change.old_payload().map(tables).unwrap_or_default();
            let new = change.new_payload().map(tables).unwrap_or_default();
            (old != new).then_some(RecordChange::Bindings { of: BindingNode::of_place(place)?, old, new })
        }
    }
}

fn delta<R: Record>(change: &Change) -> Option<Delta<R>> {
    let record = |node: Option<&crate::tree::NodeInfo>| node.and_then(|node| R::of_node(node).ok().flatten());
    let (old, new) = (record(change.old.as_ref()), record(change.new.as_ref()));
    if old.is_none() && new.is_none() {
        return None;
    }
    let written = |stored: &Option<Stored<R>>| stored.as_ref().map(|s| (s.create_revision, s.mod_revision));
    (written(&old) != written(&new)).then_some(Delta { old, new })
}
