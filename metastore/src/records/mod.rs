//! What the tree holds, as types: each record knows its path, its encoding, and the commands that write it.
//!
//! Reads take a [`Tree`] handle; writes give a [`Write`](crate::machine::Write) to propose. A read answers
//! `Err(Invalid)` for stored octets that this binary cannot read: never "not there".

mod binding;
mod cluster;
mod event;
mod exchange;
mod feature_flags;
mod layout;
mod maintenance;
mod node;
mod parameter;
mod permission;
mod policy;
mod queue;
mod stored;
#[cfg(test)]
mod tests;
mod topic_permission;
mod user;
mod vhost;

pub use binding::{Binding, BindingNode, DestinationKind};
pub use cluster::Cluster;
pub use event::{Delta, RecordChange, record_changes};
pub use exchange::{DeleteExchange, Exchange, ExchangeKind};
pub use feature_flags::FeatureFlags;
pub(crate) use layout::SCHEMA_WORDS;
pub use maintenance::{MaintenanceStatus, NodeMaintenance};
pub use node::Node;
pub use parameter::{GlobalParameter, Parameter};
pub use permission::Permission;
pub use policy::{ApplyTo, Definition, OperatorPolicy, Policy};
pub use queue::{Member, Queue, QueueKind, SessionOwner};
pub use stored::{CreateOrGet, Invalid, Record, Stored, Unknown};
pub use topic_permission::TopicPermission;
pub use user::{HashingAlgorithm, User};
pub use vhost::{DEFAULT_EXCHANGES, Vhost};

use crate::tree::{Changes, Tree};

/// All that lies in a vhost, the vhost included, as if one command had just created it.
pub(crate) fn vhost_content(tree: &Tree, vhost: &str) -> Changes {
    tree.changes_beneath(&layout::vhost(vhost))
}
