//! How a view takes in what one command did.

use std::sync::Arc;

use super::View;
use super::exchange::ExchangeView;
use super::permission::PermissionView;
use super::policies::Policies;
use super::queue_target::QueueTarget;
use super::topic_permission::TopicPermissionView;
use super::vhost::VhostView;
use crate::records::{
    BindingNode, Delta, DestinationKind, Exchange, Queue, RecordChange, TopicPermission, Vhost, record_changes,
};
use crate::tree::{Changes, Tree};

/// The tables of arguments of the bindings of one source, destination and key.
type Tables = Vec<Arc<[u8]>>;

/// What must be looked at once more when all changes are in.
#[derive(Default)]
struct Rest {
    /// Vhosts whose whole content is read from the tree.
    reloaded: Vec<Arc<str>>,
    bindings: Vec<(BindingNode, Tables, Tables)>,
    /// Queues with a new target, whose older bindings lead to the old one.
    retargeted: Vec<(Arc<str>, Arc<str>)>,
    /// Exchanges with a new, empty routing table.
    rerouted: Vec<(Arc<str>, Arc<str>)>,
    removed_queues: Vec<(Arc<str>, Arc<str>)>,
    removed_exchanges: Vec<(Arc<str>, Arc<str>)>,
    /// Vhosts whose policies may give their exchanges other alternate exchanges.
    policed: Vec<Arc<str>>,
}

impl View {
    /// Takes in the changes that led to `tree`. Answers whether a route may have changed.
    pub(super) fn update(&mut self, changes: &Changes, tree: &Tree) -> bool {
        let mut rest = Rest::default();
        let mut routes_changed = false;
        for change in record_changes(changes) {
            routes_changed |= !matches!(
                change,
                RecordChange::User(_)
                    | RecordChange::Node(_)
                    | RecordChange::Permission(_)
                    | RecordChange::OperatorPolicy(_)
                    | RecordChange::Parameter(_)
                    | RecordChange::Maintenance(_)
                    | RecordChange::FeatureFlags(_)
            );
            self.take(change, &mut rest);
        }
        self.finish(rest, tree);
        routes_changed
    }

    /// What can be taken in at once; destinations must be known before the bindings to them, and stay until these are
    /// gone.
    fn take(&mut self, change: RecordChange, rest: &mut Rest) {
        match change {
            RecordChange::Vhost(delta) => self.take_vhost(delta, rest),
            RecordChange::User(delta) => match delta.new {
                Some(user) => drop(self.users.insert(user.name.clone(), Arc::new(user))),
                None => drop(delta.old.and_then(|user| self.users.remove(&user.name))),
            },
            RecordChange::Node(delta) => match delta.new {
                Some(node) => drop(self.nodes.insert(node.name.clone(), Arc::new(node))),
                None => drop(delta.old.and_then(|node| self.nodes.remove(&node.name))),
            },
            RecordChange::Parameter(_) | RecordChange::Maintenance(_) | RecordChange::FeatureFlags(_) => {}
            RecordChange::TopicPermission(delta) => self.take_topic_permission(delta, rest),
            RecordChange::Policy(delta) => {
                let Some((vhost, name)) = named(&delta, |policy| (policy.vhost.clone(), policy.name.clone())) else {
                    return;
                };
                self.set_policies(&vhost, rest, |policies| policies.with_policy(&name, delta.new));
            }
            RecordChange::OperatorPolicy(delta) => {
                let Some((vhost, name)) = named(&delta, |policy| (policy.vhost.clone(), policy.name.clone())) else {
                    return;
                };
                self.set_policies(&vhost, rest, |policies| policies.with_operator_policy(&name, delta.new));
            }
            RecordChange::Permission(delta) => {
                let Some(name) = delta.new.as_ref().or(delta.old.as_ref()).map(|p| p.vhost.clone()) else {
                    return;
                };
                let Some(vhost) = self.vhost_mut(&name, rest) else {
                    return;
                };
                match delta.new {
                    Some(new) => drop(vhost.permissions.insert(new.user.clone(), Arc::new(PermissionView::new(new)))),
                    None => drop(delta.old.and_then(|old| vhost.permissions.remove(&old.user))),
                }
            }
            RecordChange::Exchange(delta) => self.take_exchange(delta, rest),
            RecordChange::Queue(delta) => self.take_queue(delta, rest),
            RecordChange::Bindings { of, old, new } => {
                if !rest.reloaded.contains(&of.vhost) {
                    rest.bindings.push((of, old, new));
                }
            }
        }
    }

    /// The vhost, to change; `None` where all of it is read from the tree anyway.
    fn vhost_mut(&mut self, name: &Arc<str>, rest: &Rest) -> Option<&mut VhostView> {
        if rest.reloaded.contains(name) {
            return None;
        }
        if !self.vhosts.contains_key(&**name) {
            self.vhosts.insert(name.clone(), Arc::default());
        }
        self.vhosts.get_mut(&**name).map(Arc::make_mut)
    }

    fn set_policies(&mut self, name: &Arc<str>, rest: &mut Rest, change: impl FnOnce(&Policies) -> Policies) {
        let Some(vhost) = self.vhost_mut(name, rest) else { return };
        let policies = Arc::new(change(&vhost.policies));
        if policies.route() || vhost.policies.route() {
            rest.policed.push(name.clone());
        }
        vhost.policies = policies;
    }

    fn take_vhost(&mut self, delta: Delta<Vhost>, rest: &mut Rest) {
        let removed = delta.removed().map(|old| old.name.clone());
        if let Some(name) = removed {
            // Everything in it went too, and is not worth removing piece by piece.
            if let Some(gone) = self.vhosts.remove(&name) {
                gone.queues().for_each(|queue| drop(self.groups.remove(&queue.group)));
            }
            rest.reloaded.push(name);
        } else if let Some(new) = delta.new
            && let Some(vhost) = self.vhost_mut(&new.name.clone(), rest)
        {
            vhost.record = Some(Arc::new(new));
        }
    }

    fn take_exchange(&mut self, delta: Delta<Exchange>, rest: &mut Rest) {
        let Some(either) = delta.new.as_ref().or(delta.old.as_ref()) else {
            return;
        };
        let (vhost_name, name) = (either.vhost.clone(), either.name.clone());
        let Some(vhost) = self.vhost_mut(&vhost_name, rest) else {
            return;
        };
        let Some(new) = delta.new else {
            rest.removed_exchanges.push((vhost_name, name));
            return;
        };
        let policies = Arc::clone(&vhost.policies);
        let same = |old: &Arc<ExchangeView>| {
            old.record().create_revision == new.create_revision && old.record().kind == new.kind
        };
        match vhost.exchanges.get_mut(&*name) {
            Some(view) if same(view) => Arc::make_mut(view).set_record(Arc::new(new), &policies),
            Some(view) => {
                *view = Arc::new(ExchangeView::new(Arc::new(new), &policies));
                rest.rerouted.push((vhost_name, name));
            }
            None => drop(vhost.exchanges.insert(name, Arc::new(ExchangeView::new(Arc::new(new), &policies)))),
        }
    }

    fn take_topic_permission(&mut self, delta: Delta<TopicPermission>, rest: &Rest) {
        let Some(either) = delta.new.as_ref().or(delta.old.as_ref()) else { return };
        let (user, exchange) = (either.user.clone(), either.exchange.clone());
        let Some(vhost) = self.vhost_mut(&either.vhost.clone(), rest) else { return };
        let mut of_user = vhost.topic_permissions.get(&user).cloned().unwrap_or_default();
        match delta.new {
            Some(new) => drop(of_user.insert(exchange, Arc::new(TopicPermissionView::new(new)))),
            None => drop(of_user.remove(&exchange)),
        }
        match of_user.is_empty() {
            true => drop(vhost.topic_permissions.remove(&user)),
            false => drop(vhost.topic_permissions.insert(user, of_user)),
        }
    }

    fn take_queue(&mut self, delta: Delta<Queue>, rest: &mut Rest) {
        let Some(either) = delta.new.as_ref().or(delta.old.as_ref()) else {
            return;
        };
        let (vhost_name, name) = (either.vhost.clone(), either.name.clone());
        let Some(vhost) = self.vhost_mut(&vhost_name, rest) else {
            return;
        };
        let Some(new) = delta.new else {
            rest.removed_queues.push((vhost_name, name));
            return;
        };
        let new = Arc::new(new);
        let old = vhost.queue(&name).cloned();
        if old.as_ref().is_some_and(|old| old.update(&new)) {
            return;
        }
        let target = Arc::new(QueueTarget::new(new));
        vhost.queues.insert(name.as_bytes().into(), target.clone());
        if let Some(old) = old {
            self.groups.remove(&old.group);
            rest.retargeted.push((vhost_name, name));
        }
        self.groups.insert(target.group, target);
    }

    fn finish(&mut self, rest: Rest, tree: &Tree) {
        for (of, old, new) in &rest.bindings {
            self.bind(of, old, new);
        }
        for (vhost, source) in rest.rerouted {
            self.reload_routes(&vhost, &source, tree);
        }
        for (vhost, queue) in rest.retargeted {
            self.retarget(&vhost, &queue, tree);
        }
        for (vhost_name, name) in rest.removed_exchanges {
            if let Some(vhost) = self.vhosts.get_mut(&*vhost_name).map(Arc::make_mut) {
                vhost.exchanges.remove(&*name);
            }
        }
        for (vhost_name, name) in rest.removed_queues {
            if let Some(vhost) = self.vhosts.get_mut(&*vhost_name).map(Arc::make_mut)
                && let Some(queue) = vhost.queues.remove(name.as_bytes())
            {
                self.groups.remove(&queue.group);
            }
        }
        for vhost in rest.policed {
            if let Some(vhost) = self.vhosts.get_mut(&*vhost).map(Arc::make_mut) {
                vhost.reroute_by_policies();
            }
        }
        for vhost in rest.reloaded {
            self.load_vhost(&vhost, tree);
        }
    }

    fn bind(&mut self, of: &BindingNode, old: &[Arc<[u8]>], new: &[Arc<[u8]>]) {
        let Some(vhost) = self.vhosts.get_mut(&*of.vhost).map(Arc::make_mut) else {
            return;
        };
        let origin = (of.source.clone(), of.key.clone());
        if new.is_empty() {
            vhost.bindings.remove(of.destination_kind, &of.destination, &origin);
        } else {
            vhost.bindings.insert(of.destination_kind, &of.destination, origin);
        }
        let Some(destination) = vhost.destination(of.destination_kind, &of.destination) else {
            return;
        };
        if let Some(exchange) = vhost.exchanges.get_mut(&*of.source) {
            Arc::make_mut(exchange).bind(&of.key, destination, old, new);
        }
    }

    /// Leads every binding to a queue to its new target.
    fn retarget(&mut self, vhost_name: &Arc<str>, queue: &Arc<str>, tree: &Tree) {
        let Some(vhost) = self.vhosts.get(&**vhost_name) else {
            return;
        };
        let origins: Vec<_> = vhost.bindings.of(DestinationKind::Queue, queue).cloned().collect();
        for (source, key) in origins {
            let of = BindingNode {
                vhost: vhost_name.clone(),
                source,
                destination_kind: DestinationKind::Queue,
                destination: queue.clone(),
                key,
            };
            let arguments = of.arguments(tree);
            self.bind(&of, &arguments, &arguments);
        }
    }
}

/// What a record is called, whether it is there before or after.
fn named<T, R>(delta: &Delta<T>, name: impl Fn(&T) -> R) -> Option<R> {
    delta.new.as_ref().or(delta.old.as_ref()).map(|stored| name(&stored.record))
}
