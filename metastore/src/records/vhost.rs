//! Virtual hosts.

use std::sync::Arc;

use prost::Message;
use warren_proto::ids::Reference;

use super::exchange::{Exchange, ExchangeKind};
use super::layout;
use super::permission::Permission;
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Comparison, Condition, Guard, Op, Pattern, Payload, Step, Tree};

/// The exchanges that every vhost is born with: name, type, internal.
pub const DEFAULT_EXCHANGES: [(&str, ExchangeKind, bool); 7] = [
    ("", ExchangeKind::Direct, false),
    ("amq.direct", ExchangeKind::Direct, false),
    ("amq.topic", ExchangeKind::Topic, false),
    ("amq.fanout", ExchangeKind::Fanout, false),
    ("amq.match", ExchangeKind::Headers, false),
    ("amq.headers", ExchangeKind::Headers, false),
    ("amq.rabbitmq.trace", ExchangeKind::Topic, true),
];

/// A virtual host.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Vhost {
    /// Its name.
    pub name: Arc<str>,
    /// Free text.
    pub description: String,
    /// Free words.
    pub tags: Vec<String>,
    /// The queue type where a client names none.
    pub default_queue_type: Option<String>,
    /// Whether deletion is refused.
    pub protected_from_deletion: bool,
    /// Whether the firehose is on.
    pub tracing: bool,
    /// Connections at most; negative or `None` = no limit.
    pub max_connections: Option<i64>,
    /// Queues at most; negative or `None` = no limit.
    pub max_queues: Option<i64>,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    name: String,
    #[prost(string, tag = "2")]
    description: String,
    #[prost(string, repeated, tag = "3")]
    tags: Vec<String>,
    #[prost(string, optional, tag = "4")]
    default_queue_type: Option<String>,
    #[prost(bool, tag = "5")]
    protected_from_deletion: bool,
    #[prost(bool, tag = "6")]
    tracing: bool,
    #[prost(sint64, optional, tag = "7")]
    max_connections: Option<i64>,
    #[prost(sint64, optional, tag = "8")]
    max_queues: Option<i64>,
}

impl Record for Vhost {
    const KIND: u16 = 3;
    const WHAT: &'static str = "virtual host";

    fn encode(&self) -> Payload {
        let wire = Wire {
            name: self.name.to_string(),
            description: self.description.clone(),
            tags: self.tags.clone(),
            default_queue_type: self.default_queue_type.clone(),
            protected_from_deletion: self.protected_from_deletion,
            tracing: self.tracing,
            max_connections: self.max_connections,
            max_queues: self.max_queues,
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 8)?;
        Ok(Vhost {
            name: wire.name.into(),
            description: wire.description,
            tags: wire.tags,
            default_queue_type: wire.default_queue_type,
            protected_from_deletion: wire.protected_from_deletion,
            tracing: wire.tracing,
            max_connections: wire.max_connections,
            max_queues: wire.max_queues,
            unknown,
        })
    }
}

impl Vhost {
    /// A vhost with nothing but a name.
    pub fn named(name: &str) -> Self {
        Vhost { name: name.into(), ..Vhost::default() }
    }

    /// The vhost of a name.
    pub fn get(tree: &Tree, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::vhost(name))
    }

    /// All vhosts, in order of their names.
    pub fn list(tree: &Tree) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::vhosts(), &[])
    }

    /// Creates the vhost, its default exchanges and, where `creator` exists, that user's full permissions, all in
    /// one command. Read the reply with [`Record::created`].
    pub fn create(&self, creator: Option<&str>) -> Write {
        let mut ops = vec![Op::Put {
            path: layout::vhost(&self.name),
            condition: Condition::absent_or_placeholder(),
            payload: Some(self.encode()),
            keep_while: None,
        }];
        ops.extend(DEFAULT_EXCHANGES.iter().map(|(name, kind, internal)| {
            let exchange = Exchange { internal: *internal, ..Exchange::named(&self.name, name, kind.clone()) };
            exchange.put_if_absent()
        }));
        if let Some(user) = creator {
            let set = Permission::full(user, &self.name).put();
            ops.push(Op::If(super::user::exists(user), vec![set], Vec::new()));
        }
        Write::new(ops)
    }

    /// Replaces the record if it has not changed since it was read.
    pub fn update(&self, mod_revision: Reference) -> Write {
        let condition = Condition::ModRevision(Comparison::Eq, mod_revision);
        let payload = Some(self.encode());
        Op::Put { path: layout::vhost(&self.name), condition, payload, keep_while: None }.into()
    }

    /// Deletes the vhost with everything in it, if it has not changed since it was read (and was not protected then).
    pub fn delete(name: &str, mod_revision: Reference) -> Write {
        let target = Condition::All(vec![
            Condition::Is(crate::tree::Component::name(name)),
            Condition::ModRevision(Comparison::Eq, mod_revision),
        ]);
        Op::Delete(Pattern::from(layout::vhosts()).join([Step::Where(target)])).into()
    }
}

/// "The vhost exists", not merely as a placeholder.
pub(super) fn exists(name: &str) -> Guard {
    Guard::Test(layout::vhost(name), Condition::HasPayload(true))
}
