//! Where records lie (spec: metadata-store.md, section 6), and what lies at a path.

use crate::tree::{Component, Path, Symbol};

/// Every symbol that a path of this binary's schema uses.
pub(crate) const SCHEMA_WORDS: &[&str] = &[
    ROOT,
    VHOSTS,
    USER_PERMISSIONS,
    EXCHANGES,
    BINDINGS,
    QUEUE,
    EXCHANGE,
    QUEUES,
    USERS,
    RUNTIME_PARAMS,
    NODES,
    NODE_METADATA,
    NODE_MAINTENANCE,
    FEATURE_FLAGS,
];

const ROOT: &str = "warren";
const VHOSTS: &str = "vhosts";
const USER_PERMISSIONS: &str = "user_permissions";
const EXCHANGES: &str = "exchanges";
const BINDINGS: &str = "bindings";
const QUEUE: &str = "queue";
const EXCHANGE: &str = "exchange";
const QUEUES: &str = "queues";
const USERS: &str = "users";
const RUNTIME_PARAMS: &str = "runtime_params";
const NODES: &str = "nodes";
const NODE_METADATA: &str = "node_metadata";
const NODE_MAINTENANCE: &str = "node_maintenance";
const FEATURE_FLAGS: &str = "feature_flags";

/// Components of runtime parameters that are records of their own.
const POLICY: &str = "policy";
const OPERATOR_POLICY: &str = "operator_policy";

fn word(word: &'static str) -> Component {
    Component::Symbol(Symbol::of_schema(word))
}

fn path<const N: usize>(components: [Component; N]) -> Path {
    Path::new(components.into())
}

pub(crate) fn vhosts() -> Path {
    path([word(ROOT), word(VHOSTS)])
}

pub(crate) fn vhost(name: &str) -> Path {
    path([word(ROOT), word(VHOSTS), Component::name(name)])
}

pub(crate) fn permissions(vhost: &str) -> Path {
    path([word(ROOT), word(VHOSTS), Component::name(vhost), word(USER_PERMISSIONS)])
}

pub(crate) fn permission(vhost: &str, user: &str) -> Path {
    permissions(vhost).child(Component::name(user))
}

pub(crate) fn exchanges(vhost: &str) -> Path {
    path([word(ROOT), word(VHOSTS), Component::name(vhost), word(EXCHANGES)])
}

pub(crate) fn exchange(vhost: &str, name: &str) -> Path {
    exchanges(vhost).child(Component::name(name))
}

pub(crate) fn topic_permissions(vhost: &str, exchange: &str) -> Path {
    self::exchange(vhost, exchange).child(word(USER_PERMISSIONS))
}

pub(crate) fn topic_permission(vhost: &str, exchange: &str, user: &str) -> Path {
    topic_permissions(vhost, exchange).child(Component::name(user))
}

pub(crate) fn bindings(vhost: &str, source: &str) -> Path {
    exchange(vhost, source).child(word(BINDINGS))
}

pub(crate) fn bindings_to(vhost: &str, source: &str, to_queue: bool, destination: &str) -> Path {
    let kind = if to_queue { QUEUE } else { EXCHANGE };
    bindings(vhost, source).join([word(kind), Component::name(destination)])
}

pub(crate) fn queues(vhost: &str) -> Path {
    path([word(ROOT), word(VHOSTS), Component::name(vhost), word(QUEUES)])
}

pub(crate) fn queue(vhost: &str, name: &str) -> Path {
    queues(vhost).child(Component::name(name))
}

pub(crate) fn parameters(vhost: &str) -> Path {
    path([word(ROOT), word(VHOSTS), Component::name(vhost), word(RUNTIME_PARAMS)])
}

pub(crate) fn parameter(vhost: &str, component: &str, name: &str) -> Path {
    parameters(vhost).join([Component::name(component), Component::name(name)])
}

pub(crate) fn policies(vhost: &str) -> Path {
    parameters(vhost).child(Component::name(POLICY))
}

pub(crate) fn policy(vhost: &str, name: &str) -> Path {
    policies(vhost).child(Component::name(name))
}

pub(crate) fn operator_policies(vhost: &str) -> Path {
    parameters(vhost).child(Component::name(OPERATOR_POLICY))
}

pub(crate) fn operator_policy(vhost: &str, name: &str) -> Path {
    operator_policies(vhost).child(Component::name(name))
}

/// Whether policies or operator policies lie at this component of a vhost's runtime parameters.
pub(crate) fn holds_policies(component: &Component) -> bool {
    matches!(text(component), Some(POLICY | OPERATOR_POLICY))
}

pub(crate) fn users() -> Path {
    path([word(ROOT), word(USERS)])
}

pub(crate) fn user(name: &str) -> Path {
    users().child(Component::name(name))
}

pub(crate) fn global_parameters() -> Path {
    path([word(ROOT), word(RUNTIME_PARAMS)])
}

pub(crate) fn global_parameter(key: &str) -> Path {
    global_parameters().child(Component::name(key))
}

pub(crate) fn nodes() -> Path {
    path([word(ROOT), word(NODES)])
}

pub(crate) fn node(name: &str) -> Path {
    path([word(ROOT), word(NODES), Component::name(name), word(NODE_METADATA)])
}

pub(crate) fn maintenance_states() -> Path {
    path([word(ROOT), word(NODE_MAINTENANCE)])
}

pub(crate) fn maintenance(node: &str) -> Path {
    maintenance_states().child(Component::name(node))
}

pub(crate) fn feature_flags() -> Path {
    path([word(ROOT), word(FEATURE_FLAGS)])
}

/// What lies at a path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place<'a> {
    Vhost(&'a str),
    Permission { vhost: &'a str, user: &'a str },
    Exchange { vhost: &'a str, name: &'a str },
    TopicPermission { vhost: &'a str, exchange: &'a str, user: &'a str },
    Binding { vhost: &'a str, source: &'a str, to_queue: bool, destination: &'a str, key: &'a [u8] },
    Queue { vhost: &'a str, name: &'a str },
    Policy { vhost: &'a str, name: &'a str },
    OperatorPolicy { vhost: &'a str, name: &'a str },
    Parameter { vhost: &'a str, component: &'a str, name: &'a str },
    User(&'a str),
    GlobalParameter(&'a str),
    Node(&'a str),
    Maintenance(&'a str),
    FeatureFlags,
}

impl<'a> Place<'a> {
    /// `None` for places that hold no record: placeholders, and what a newer schema keeps there.
    pub(crate) fn of(path: &'a [Component]) -> Option<Self> {
        use Component::{Name, Symbol};
        let (root, path) = path.split_first()?;
        if root.as_symbol() != Some(ROOT) {
            return None;
        }
        Some(match path {
            [only] if only.as_symbol() == Some(FEATURE_FLAGS) => Place::FeatureFlags,
            [Symbol(_), Name(_)] | [Symbol(_), Name(_), Symbol(_)] => match (path[0].as_symbol()?, path.len()) {
                (VHOSTS, 2) => Place::Vhost(text(&path[1])?),
                (USERS, 2) => Place::User(text(&path[1])?),
                (RUNTIME_PARAMS, 2) => Place::GlobalParameter(text(&path[1])?),
                (NODE_MAINTENANCE, 2) => Place::Maintenance(text(&path[1])?),
                (NODES, 3) if path[2].as_symbol() == Some(NODE_METADATA) => Place::Node(text(&path[1])?),
                _ => return None,
            },
            [vhosts, vhost, rest @ ..] if vhosts.as_symbol() == Some(VHOSTS) => Self::in_vhost(text(vhost)?, rest)?,
            _ => return None,
        })
    }

    fn in_vhost(vhost: &'a str, path: &'a [Component]) -> Option<Self> {
        let (collection, name, rest) = match path {
            [collection, name, rest @ ..] => (collection.as_symbol()?, text(name)?, rest),
            _ => return None,
        };
        Some(match (collection, rest) {
            (USER_PERMISSIONS, []) => Place::Permission { vhost, user: name },
            (QUEUES, []) => Place::Queue { vhost, name },
            (EXCHANGES, []) => Place::Exchange { vhost, name },
            (RUNTIME_PARAMS, [below]) => match (name, text(below)?) {
                (POLICY, name) => Place::Policy { vhost, name },
                (OPERATOR_POLICY, name) => Place::OperatorPolicy { vhost, name },
                (component, name) => Place::Parameter { vhost, component, name },
            },
            (EXCHANGES, [below, user]) if below.as_symbol() == Some(USER_PERMISSIONS) => {
                Place::TopicPermission { vhost, exchange: name, user: text(user)? }
            }
            (EXCHANGES, [below, kind, destination, key]) if below.as_symbol() == Some(BINDINGS) => {
                let to_queue = match kind.as_symbol()? {
                    QUEUE => true,
                    EXCHANGE => false,
                    _ => return None,
                };
                Place::Binding { vhost, source: name, to_queue, destination: text(destination)?, key: key.as_name()? }
            }
            _ => return None,
        })
    }
}

fn text(component: &Component) -> Option<&str> {
    std::str::from_utf8(component.as_name()?).ok()
}
