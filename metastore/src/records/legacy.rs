//! Where RabbitMQ's older, table-based store keeps each record (spec: migration.md, parts A1 and B6): the table, and the
//! key in it, as a term. The migration reads and writes by these.

use std::sync::Arc;

use warren_proto::amqp091::TableRef;

use super::{
    Binding, DestinationKind, Exchange, GlobalParameter, NodeMaintenance, OperatorPolicy, Parameter, Permission,
    Policy, Queue, TopicPermission, User, Vhost,
};

/// A table of that store. Those of queues, exchanges and bindings have a part on disk with the durable ones, and one in
/// memory with all.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LegacyTable {
    /// `rabbit_vhost`
    Vhost,
    /// `rabbit_user`
    User,
    /// `rabbit_user_permission`
    UserPermission,
    /// `rabbit_topic_permission`
    TopicPermission,
    /// `rabbit_runtime_parameters`
    RuntimeParameters,
    /// `rabbit_durable_queue`
    DurableQueue,
    /// `rabbit_queue`
    Queue,
    /// `rabbit_durable_exchange`
    DurableExchange,
    /// `rabbit_exchange`
    Exchange,
    /// `rabbit_durable_route`
    DurableRoute,
    /// `rabbit_route`
    Route,
    /// `rabbit_node_maintenance_states`
    NodeMaintenanceStates,
}

impl LegacyTable {
    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            LegacyTable::Vhost => "rabbit_vhost",
            LegacyTable::User => "rabbit_user",
            LegacyTable::UserPermission => "rabbit_user_permission",
            LegacyTable::TopicPermission => "rabbit_topic_permission",
            LegacyTable::RuntimeParameters => "rabbit_runtime_parameters",
            LegacyTable::DurableQueue => "rabbit_durable_queue",
            LegacyTable::Queue => "rabbit_queue",
            LegacyTable::DurableExchange => "rabbit_durable_exchange",
            LegacyTable::Exchange => "rabbit_exchange",
            LegacyTable::DurableRoute => "rabbit_durable_route",
            LegacyTable::Route => "rabbit_route",
            LegacyTable::NodeMaintenanceStates => "rabbit_node_maintenance_states",
        }
    }
}

/// A key of that store: an Erlang term.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum LegacyKey {
    /// An atom.
    Atom(Arc<str>),
    /// A binary.
    Binary(Arc<[u8]>),
    /// A tuple.
    Tuple(Vec<LegacyKey>),
    /// A binding's arguments: a field table without its length, sorted by name, as RabbitMQ sorts them.
    Arguments(Arc<[u8]>),
}

impl LegacyKey {
    fn atom(word: &str) -> Self {
        LegacyKey::Atom(word.into())
    }

    fn text(text: &str) -> Self {
        LegacyKey::Binary(text.as_bytes().into())
    }

    /// `#resource{}`: the name of something in a vhost.
    fn resource(vhost: &str, kind: &str, name: &str) -> Self {
        LegacyKey::Tuple(vec![Self::atom("resource"), Self::text(vhost), Self::atom(kind), Self::text(name)])
    }

    /// `#user_vhost{}`
    fn user_vhost(user: &str, vhost: &str) -> Self {
        LegacyKey::Tuple(vec![Self::atom("user_vhost"), Self::text(user), Self::text(vhost)])
    }

    fn parameter(vhost: &str, component: &str, name: &str) -> Self {
        LegacyKey::Tuple(vec![Self::text(vhost), Self::text(component), Self::text(name)])
    }
}

/// A record that the older store had.
pub trait Legacy {
    /// The table, and the key in it.
    fn legacy(&self) -> (LegacyTable, LegacyKey);
}

impl Legacy for Vhost {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::Vhost, LegacyKey::text(&self.name))
    }
}

impl Legacy for User {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::User, LegacyKey::text(&self.name))
    }
}

impl Legacy for Permission {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::UserPermission, LegacyKey::user_vhost(&self.user, &self.vhost))
    }
}

impl Legacy for TopicPermission {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        let user_vhost = LegacyKey::user_vhost(&self.user, &self.vhost);
        let key = vec![LegacyKey::atom("topic_permission_key"), user_vhost, LegacyKey::text(&self.exchange)];
        (LegacyTable::TopicPermission, LegacyKey::Tuple(key))
    }
}

impl Legacy for Policy {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::RuntimeParameters, LegacyKey::parameter(&self.vhost, "policy", &self.name))
    }
}

impl Legacy for OperatorPolicy {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::RuntimeParameters, LegacyKey::parameter(&self.vhost, "operator_policy", &self.name))
    }
}

impl Legacy for Parameter {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::RuntimeParameters, LegacyKey::parameter(&self.vhost, &self.component, &self.name))
    }
}

impl GlobalParameter {
    /// [`Legacy::legacy`] of the parameter of a name, which the record itself does not carry.
    pub fn legacy(name: &str) -> (LegacyTable, LegacyKey) {
        (LegacyTable::RuntimeParameters, LegacyKey::atom(name))
    }
}

impl Legacy for Exchange {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        let table = if self.durable { LegacyTable::DurableExchange } else { LegacyTable::Exchange };
        (table, LegacyKey::resource(&self.vhost, "exchange", &self.name))
    }
}

impl Legacy for Queue {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        let table = if self.durable { LegacyTable::DurableQueue } else { LegacyTable::Queue };
        (table, LegacyKey::resource(&self.vhost, "queue", &self.name))
    }
}

impl Binding {
    /// [`Legacy::legacy`]; a binding is durable when both of its ends are.
    pub fn legacy(&self, durable: bool) -> (LegacyTable, LegacyKey) {
        let kind = match self.destination_kind {
            DestinationKind::Queue => "queue",
            DestinationKind::Exchange => "exchange",
        };
        let sorted = TableRef::new(&self.arguments).to_table().map(|table| table.sorted().to_bytes()[..].into());
        let key = vec![
            LegacyKey::atom("binding"),
            LegacyKey::resource(&self.vhost, "exchange", &self.source),
            LegacyKey::Binary(self.key.clone()),
            LegacyKey::resource(&self.vhost, kind, &self.destination),
            LegacyKey::Arguments(sorted.unwrap_or_else(|_| self.arguments.clone())),
        ];
        (if durable { LegacyTable::DurableRoute } else { LegacyTable::Route }, LegacyKey::Tuple(key))
    }
}

impl Legacy for NodeMaintenance {
    fn legacy(&self) -> (LegacyTable, LegacyKey) {
        (LegacyTable::NodeMaintenanceStates, LegacyKey::Atom(self.node.clone()))
    }
}
