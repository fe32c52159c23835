//! All that lies in one vhost.

use std::sync::Arc;

use super::Map;
use super::bindings::BindingsByDestination;
use super::destinations::Destination;
use super::exchange::ExchangeView;
use super::permission::PermissionView;
use super::policies::Policies;
use super::queue_target::QueueTarget;
use super::topic_permission::TopicPermissionView;
use crate::records::{Binding, BindingNode, DestinationKind, Invalid, Permission, Stored, Vhost};
use crate::tree::Tree;

/// A vhost's exchanges, queues, bindings, permissions and policies at one point of the log.
#[derive(Clone, Default)]
pub struct VhostView {
    pub(super) record: Option<Arc<Stored<Vhost>>>,
    pub(super) exchanges: Map<Arc<str>, Arc<ExchangeView>>,
    /// By the octets of the name: the routing key of the default exchange.
    pub(super) queues: Map<Arc<[u8]>, Arc<QueueTarget>>,
    pub(super) bindings: BindingsByDestination,
    pub(super) permissions: Map<Arc<str>, Arc<PermissionView>>,
    /// By user, then by exchange: hardly anybody has one, so the first look-up ends most questions.
    pub(super) topic_permissions: Map<Arc<str>, Map<Arc<str>, Arc<TopicPermissionView>>>,
    pub(super) policies: Arc<Policies>,
}

impl VhostView {
    /// The vhost itself; present in every view that [`View::vhost`](super::View::vhost) gives.
    pub fn record(&self) -> Option<&Arc<Stored<Vhost>>> {
        self.record.as_ref()
    }

    /// A queue by name.
    pub fn queue(&self, name: &str) -> Option<&Arc<QueueTarget>> {
        self.queues.get(name.as_bytes())
    }

    /// All queues, in no order.
    pub fn queues(&self) -> impl Iterator<Item = &Arc<QueueTarget>> {
        self.queues.values()
    }

    /// Number of queues.
    pub fn queue_count(&self) -> usize {
        self.queues.len()
    }

    /// An exchange by name.
    pub fn exchange(&self, name: &str) -> Option<&Arc<ExchangeView>> {
        self.exchanges.get(name)
    }

    /// All exchanges, in no order.
    pub fn exchanges(&self) -> impl Iterator<Item = &Arc<ExchangeView>> {
        self.exchanges.values()
    }

    /// What a user may do here.
    pub fn permission(&self, user: &str) -> Option<&Arc<PermissionView>> {
        self.permissions.get(user)
    }

    /// Which topics of an exchange a user may publish to and bind from; `None`: all.
    pub fn topic_permission(&self, user: &str, exchange: &str) -> Option<&Arc<TopicPermissionView>> {
        self.topic_permissions.get(user)?.get(exchange)
    }

    /// The policies and operator policies. Another one after every change of them.
    pub fn policies(&self) -> &Arc<Policies> {
        &self.policies
    }

    /// All permissions, in no order.
    pub fn permissions(&self) -> impl Iterator<Item = &Arc<Stored<Permission>>> {
        self.permissions.values().map(|permission| permission.record())
    }

    /// The bindings to a queue or an exchange, by source, key and arguments. `tree` is the view's own.
    pub fn bindings_to(&self, tree: &Tree, kind: DestinationKind, name: &str) -> Result<Vec<Binding>, Invalid> {
        let Some(vhost) = &self.record else {
            return Ok(Vec::new());
        };
        let mut found = Vec::new();
        for (source, key) in self.bindings.of(kind, name) {
            let of = BindingNode {
                vhost: vhost.name.clone(),
                source: source.clone(),
                destination_kind: kind,
                destination: name.into(),
                key: key.clone(),
            };
            found.extend(of.list(tree)?);
        }
        Ok(found)
    }

    /// Gives the exchanges the alternate exchanges that the policies say now.
    pub(super) fn reroute_by_policies(&mut self) {
        let rerouted = |exchange: &&Arc<ExchangeView>| exchange.is_rerouted_by(&self.policies);
        let names: Vec<_> = self.exchanges().filter(rerouted).map(|exchange| exchange.record().name.clone()).collect();
        for name in names {
            if let Some(exchange) = self.exchanges.get_mut(&*name) {
                Arc::make_mut(exchange).set_policies(&self.policies);
            }
        }
    }

    /// What a binding of this vhost leads to; `None` for a queue that is not there.
    pub(super) fn destination(&self, kind: DestinationKind, name: &Arc<str>) -> Option<Destination> {
        match kind {
            DestinationKind::Queue => self.queue(name).cloned().map(Destination::Queue),
            DestinationKind::Exchange => Some(Destination::Exchange(name.clone())),
        }
    }
}
