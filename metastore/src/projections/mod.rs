//! Read models of the tree, for the hot paths: routing, permission checks, queue look-ups.
//!
//! [`Projections`] is fed with each command's [`Changes`] before the command is answered, and gives any thread the
//! newest [`View`] without a lock. A view never changes, so a caller may route a whole batch against one. What changes
//! is path-copied: one binding costs O(log n), whatever else the broker holds.

mod bindings;
mod description;
mod destinations;
mod direct;
mod exchange;
mod fanout;
mod headers;
mod load;
mod permission;
mod policies;
mod queue_target;
mod router;
#[cfg(test)]
mod tests;
mod topic;
mod topic_permission;
mod update;
mod vhost;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use arc_swap::ArcSwap;
use warren_proto::ids::{GroupId, Reference};

pub use destinations::Destination;
pub use exchange::ExchangeView;
pub use headers::HeaderLookup;
pub use permission::{Access, PermissionView, ResourcePattern};
pub use policies::{Applied, Policies};
pub use queue_target::QueueTarget;
pub use router::Routed;
pub use topic::{MAX_HASH_WORDS, hash_words};
pub use topic_permission::TopicPermissionView;
pub use vhost::VhostView;

use crate::records::{Node, Stored, User, Vhost};
use crate::tree::{Changes, Tree};

/// A persistent hash map. Its hasher is seeded at random: keys come from clients.
pub(crate) type Map<K, V> = imbl::GenericHashMap<K, V, foldhash::fast::RandomState, imbl::shared_ptr::DefaultSharedPtr>;

/// The read models at one point of the log.
#[derive(Clone, Default)]
pub struct View {
    tree: Tree,
    applied: Reference,
    generation: u64,
    vhosts: Map<Arc<str>, Arc<VhostView>>,
    users: Map<Arc<str>, Arc<Stored<User>>>,
    nodes: Map<Arc<str>, Arc<Stored<Node>>>,
    groups: Map<GroupId, Arc<QueueTarget>>,
}

impl View {
    /// The tree that this view was made from.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The last command that it reflects.
    pub fn applied(&self) -> Reference {
        self.applied
    }

    /// Rises whenever a route may have changed: a route found in a view is good as long as
    /// [`Projections::generation`] says the same.
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// All that lies in a vhost.
    pub fn vhost(&self, name: &str) -> Option<&Arc<VhostView>> {
        self.vhosts.get(name).filter(|vhost| vhost.record().is_some())
    }

    /// The records of all vhosts, in no order.
    pub fn vhosts(&self) -> impl Iterator<Item = &Arc<Stored<Vhost>>> {
        self.vhosts.values().filter_map(|vhost| vhost.record())
    }

    /// A user.
    pub fn user(&self, name: &str) -> Option<&Arc<Stored<User>>> {
        self.users.get(name)
    }

    /// All users, in no order.
    pub fn users(&self) -> impl Iterator<Item = &Arc<Stored<User>>> {
        self.users.values()
    }

    /// All nodes of the cluster, in no order.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Stored<Node>>> {
        self.nodes.values()
    }

    /// A queue by name.
    pub fn queue(&self, vhost: &str, name: &str) -> Option<&Arc<QueueTarget>> {
        self.vhost(vhost)?.queue(name)
    }

    /// A queue by the group that runs it.
    pub fn queue_of_group(&self, group: GroupId) -> Option<&Arc<QueueTarget>> {
        self.groups.get(&group)
    }

    /// Every queue of every vhost, in no order: for level-triggered supervision.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<QueueTarget>> {
        self.groups.values()
    }

    /// Number of queues of all vhosts.
    pub fn queue_count(&self) -> usize {
        self.groups.len()
    }

    /// An exchange by name.
    pub fn exchange(&self, vhost: &str, name: &str) -> Option<&Arc<ExchangeView>> {
        self.vhost(vhost)?.exchange(name)
    }

    /// What a user may do in a vhost.
    pub fn permission(&self, vhost: &str, user: &str) -> Option<&Arc<PermissionView>> {
        self.vhost(vhost)?.permission(user)
    }

    /// The queues that a message reaches, each once. A missing vhost or exchange routes nowhere: look it up before
    /// where that is an error.
    pub fn route(
        &self,
        vhost: &str,
        exchange: &str,
        routing_keys: &[&[u8]],
        headers: Option<&dyn HeaderLookup>,
    ) -> Routed {
        let mut routed = Routed::new();
        if let Some(vhost) = self.vhost(vhost) {
            vhost.route_into(exchange, routing_keys, headers, &mut routed);
        }
        routed
    }
}

/// The newest view. One writer (the thread that applies the metadata log), any number of readers.
#[derive(Default)]
pub struct Projections {
    view: ArcSwap<View>,
    generation: AtomicU64,
}

impl Projections {
    /// Of an empty tree.
    pub fn new() -> Self {
        Self::default()
    }

    /// The newest view: keep it for one batch of work, not for longer.
    pub fn load(&self) -> Arc<View> {
        self.view.load_full()
    }

    /// The newest view, cheaper than [`load`](Self::load) where it is held only for a moment.
    pub fn peek(&self) -> arc_swap::Guard<Arc<View>> {
        self.view.load()
    }

    /// The newest view's [`View::generation`], without loading it.
    pub fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Takes in one command, or several merged: `tree` is the tree after it. To be called before the command is
    /// answered, in log order.
    pub fn apply(&self, changes: &Changes, tree: Tree, applied: Reference) {
        let mut view = View::clone(&self.view.load());
        if view.update(changes, &tree) {
            view.generation += 1;
        }
        self.store(view, tree, applied);
    }

    /// Replaces the tree, as after a snapshot was installed: readers keep the old view until the new one is complete.
    pub fn install(&self, tree: Tree, applied: Reference) {
        let mut view = View::clone(&self.view.load());
        view.update(&tree.changes_since(&view.tree), &tree);
        view.generation += 1;
        self.store(view, tree, applied);
    }

    fn store(&self, mut view: View, tree: Tree, applied: Reference) {
        (view.tree, view.applied) = (tree, applied);
        let generation = view.generation;
        self.view.store(Arc::new(view));
        self.generation.store(generation, Ordering::Release);
    }
}
