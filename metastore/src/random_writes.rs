//! Random writes of every kind of record, for tests.

use std::sync::Arc;

use proptest::prelude::*;
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, Incarnation, MemberUid, NodeId, Reference};

use crate::machine::{Machine, Meta, Outcome, Write};
use crate::records::{
    Binding, BindingNode, DeleteExchange, DestinationKind, Exchange, ExchangeKind, Member, Node, OperatorPolicy,
    Permission, Policy, Queue, QueueKind, TopicPermission, User, Vhost,
};

/// Keys that exercise words, wildcards and their edges.
pub(crate) const KEYS: [&str; 14] =
    ["", "a", "b", "a.b", "a..b", ".", "*", "#", "a.*", "a.#", "#.a", "*.b", "#.a.#", "a*"];

/// One write; names are numbers.
#[derive(Clone, Debug)]
pub(crate) enum Act {
    CreateVhost(u8),
    DeleteVhost(u8),
    DeclareExchange {
        vhost: u8,
        name: u8,
        auto_delete: bool,
        alternate: Option<u8>,
    },
    DeleteExchange {
        vhost: u8,
        name: u8,
        if_unused: bool,
    },
    DeclareQueue {
        vhost: u8,
        name: u8,
    },
    ChangeMembers {
        vhost: u8,
        name: u8,
        members: u8,
    },
    DeleteQueue {
        vhost: u8,
        name: u8,
    },
    /// In one command.
    ReplaceQueue {
        vhost: u8,
        name: u8,
    },
    Bind(Bind),
    Unbind(Bind),
    PutUser(u8),
    DeleteUser(u8),
    SetPermission {
        vhost: u8,
        user: u8,
        read: u8,
    },
    SetTopicPermission {
        vhost: u8,
        user: u8,
        exchange: u8,
    },
    SetPolicy {
        vhost: u8,
        name: u8,
        /// Of exchanges whose names contain it.
        exchange: u8,
        alternate: Option<u8>,
    },
    ClearPolicy {
        vhost: u8,
        name: u8,
    },
    SetOperatorPolicy {
        vhost: u8,
        name: u8,
    },
    PutNode(u8),
    DeleteNode(u8),
}

#[derive(Clone, Debug)]
pub(crate) struct Bind {
    vhost: u8,
    source: u8,
    to_queue: bool,
    destination: u8,
    key: usize,
    arguments: u8,
}

pub(crate) fn act() -> impl Strategy<Value = Act> {
    let bind = || {
        (0u8..2, 0u8..5, prop::bool::weighted(0.8), 0u8..4, 0..KEYS.len(), 0u8..4).prop_map(
            |(vhost, source, to_queue, destination, key, arguments)| Bind {
                vhost,
                source,
                to_queue,
                destination,
                key,
                arguments,
            },
        )
    };
    let place = || (0u8..2, 0u8..4);
    prop_oneof![
        3 => (0u8..2).prop_map(Act::CreateVhost),
        1 => (0u8..2).prop_map(Act::DeleteVhost),
        6 => (0u8..2, 0u8..5, prop::bool::ANY, prop::option::of(0u8..5)).prop_map(
            |(vhost, name, auto_delete, alternate)| Act::DeclareExchange { vhost, name, auto_delete, alternate }
        ),
        1 => (0u8..2, 0u8..5, prop::bool::ANY).prop_map(
            |(vhost, name, if_unused)| Act::DeleteExchange { vhost, name, if_unused }
        ),
        6 => place().prop_map(|(vhost, name)| Act::DeclareQueue { vhost, name }),
        2 => (place(), 0u8..4).prop_map(|((vhost, name), members)| Act::ChangeMembers { vhost, name, members }),
        1 => place().prop_map(|(vhost, name)| Act::DeleteQueue { vhost, name }),
        1 => place().prop_map(|(vhost, name)| Act::ReplaceQueue { vhost, name }),
        14 => bind().prop_map(Act::Bind),
        4 => bind().prop_map(Act::Unbind),
        2 => (0u8..3).prop_map(Act::PutUser),
        1 => (0u8..3).prop_map(Act::DeleteUser),
        2 => (0u8..2, 0u8..3, 0u8..3).prop_map(|(vhost, user, read)| Act::SetPermission { vhost, user, read }),
        1 => (0u8..2, 0u8..3, 0u8..5).prop_map(
            |(vhost, user, exchange)| Act::SetTopicPermission { vhost, user, exchange }
        ),
        3 => (0u8..2, 0u8..3, 0u8..5, prop::option::of(0u8..5)).prop_map(
            |(vhost, name, exchange, alternate)| Act::SetPolicy { vhost, name, exchange, alternate }
        ),
        1 => (0u8..2, 0u8..3).prop_map(|(vhost, name)| Act::ClearPolicy { vhost, name }),
        1 => (0u8..2, 0u8..3).prop_map(|(vhost, name)| Act::SetOperatorPolicy { vhost, name }),
        1 => (0u8..2).prop_map(Act::PutNode),
        1 => (0u8..2).prop_map(Act::DeleteNode),
    ]
}

pub(crate) fn vhost_name(n: u8) -> String {
    format!("v{n}")
}

fn policy(vhost: u8, name: u8) -> Policy {
    let (vhost, name) = (vhost_name(vhost).into(), format!("p{name}").into());
    Policy { vhost, name, definition: [("max-length".to_owned(), 5.into())].into_iter().collect(), ..Policy::default() }
}

/// Its number decides an exchange's type.
pub(crate) fn exchange_name(n: u8) -> String {
    format!("x{n}")
}

fn kind(n: u8) -> ExchangeKind {
    match n {
        0 => ExchangeKind::Direct,
        1 => ExchangeKind::Fanout,
        2 | 3 => ExchangeKind::Topic,
        _ => ExchangeKind::Headers,
    }
}

pub(crate) fn arguments(n: u8) -> Arc<[u8]> {
    let table = match n {
        0 => FieldTable::new(),
        1 => FieldTable::new().with("colour", "red"),
        2 => FieldTable::new().with("x-match", "any").with("colour", "red").with("n", 1i64),
        _ => FieldTable::new().with("n", 1i64).with("colour", "blue"),
    };
    table.to_bytes()[..].into()
}

/// A machine with the log's position.
#[derive(Clone, Default)]
pub(crate) struct Log {
    pub machine: Machine,
    pub index: u64,
}

impl Log {
    pub(crate) fn meta(&mut self) -> Meta {
        self.index += 1;
        Meta { reference: Reference::new(self.index, 0), ts_ms: 1000 * self.index, version: *Machine::VERSIONS.end() }
    }

    pub(crate) fn write(&mut self, write: &Write) -> Outcome {
        let meta = self.meta();
        self.machine.apply(meta, &write.to_bytes(None))
    }

    /// Does the act; `None` where it makes no sense now.
    pub(crate) fn act(&mut self, act: &Act) -> Option<Outcome> {
        let write = self.compile(act)?;
        Some(self.write(&write))
    }

    pub(crate) fn queue(&self, vhost: u8, name: u8) -> Queue {
        Queue {
            vhost: vhost_name(vhost).into(),
            name: format!("q{name}").into(),
            kind: if name.is_multiple_of(2) { QueueKind::Quorum } else { QueueKind::Classic },
            durable: true,
            group: GroupId(1000 + self.index),
            ..Queue::default()
        }
    }

    /// The act as a write; `None` where it makes no sense now.
    pub(crate) fn compile(&self, act: &Act) -> Option<Write> {
        let tree = self.machine.tree();
        let stored = |vhost: &u8, name: &u8| Queue::get(&tree, &vhost_name(*vhost), &format!("q{name}")).unwrap();
        let bind = |bind: &Bind| {
            let (destination_kind, destination) = if bind.to_queue {
                (DestinationKind::Queue, format!("q{}", bind.destination))
            } else {
                (DestinationKind::Exchange, exchange_name(bind.destination))
            };
            let of = BindingNode {
                vhost: vhost_name(bind.vhost).into(),
                source: exchange_name(bind.source).into(),
                destination_kind,
                destination: destination.into(),
                key: KEYS[bind.key].as_bytes().into(),
            };
            Binding::new(&of, &arguments(bind.arguments)).unwrap()
        };
        Some(match act {
            Act::CreateVhost(n) => Vhost::named(&vhost_name(*n)).create(Some("u0")),
            Act::DeleteVhost(n) => {
                let vhost = Vhost::get(&tree, &vhost_name(*n)).unwrap()?;
                Vhost::delete(&vhost.name, vhost.mod_revision)
            }
            Act::DeclareExchange { vhost, name, auto_delete, alternate } => {
                let table = match alternate {
                    Some(n) => FieldTable::new().with("alternate-exchange", exchange_name(*n)),
                    None => FieldTable::new(),
                };
                let exchange = Exchange::named(&vhost_name(*vhost), &exchange_name(*name), kind(*name));
                let arguments = table.to_bytes()[..].into();
                Exchange { auto_delete: *auto_delete, arguments, ..exchange }.create_or_get()
            }
            Act::DeleteExchange { vhost, name, if_unused } => {
                let mode = if *if_unused { DeleteExchange::IfUnused } else { DeleteExchange::Always };
                Exchange::delete(&vhost_name(*vhost), &exchange_name(*name), mode)
            }
            Act::DeclareQueue { vhost, name } => self.queue(*vhost, *name).create_or_get(),
            Act::ChangeMembers { vhost, name, members } => {
                let old = stored(vhost, name)?;
                let member = |n: u8| Member {
                    uid: MemberUid(u64::from(n) + 1),
                    node: NodeId(u64::from(n)),
                    node_incarnation: Incarnation(7),
                    joined: n % 2 == 1,
                };
                Queue { members: (0..*members).map(member).collect(), ..old.record }.update(old.mod_revision)
            }
            Act::DeleteQueue { vhost, name } => {
                let old = stored(vhost, name)?;
                Queue::delete(&old.vhost, &old.name, old.create_revision)
            }
            Act::ReplaceQueue { vhost, name } => {
                let old = stored(vhost, name)?;
                let bindings = Binding::list(&tree, &old.vhost).unwrap();
                let mut write = Queue::delete(&old.vhost, &old.name, old.create_revision)
                    .and(self.queue(*vhost, *name).create_or_get());
                // Some of the bindings come back, equal to those that fell.
                for binding in bindings.iter().filter(|b| b.destination == old.name).step_by(2) {
                    write = write.and(binding.put());
                }
                write
            }
            Act::Bind(of) => bind(of).put(),
            Act::Unbind(of) => bind(of).delete(),
            Act::PutUser(n) => User::with_password(&format!("u{n}"), b"secret", [1, 2, 3, *n], vec![]).create(),
            Act::DeleteUser(n) => User::delete(&format!("u{n}")),
            Act::SetPermission { vhost, user, read } => {
                let permission = Permission::full(&format!("u{user}"), &vhost_name(*vhost));
                Permission { read: format!("q{read}"), ..permission }.set()
            }
            Act::SetTopicPermission { vhost, user, exchange } => TopicPermission {
                user: format!("u{user}").into(),
                vhost: vhost_name(*vhost).into(),
                exchange: exchange_name(*exchange).into(),
                ..TopicPermission::default()
            }
            .set(),
            Act::SetPolicy { vhost, name, exchange, alternate } => {
                let of = alternate.map(|n| ("alternate-exchange".to_owned(), exchange_name(n).into()));
                let policy = policy(*vhost, *name);
                Policy { pattern: format!("[{exchange}4]"), definition: of.into_iter().collect(), ..policy }.set()
            }
            Act::ClearPolicy { vhost, name } => Policy::clear(&vhost_name(*vhost), &format!("p{name}")),
            Act::SetOperatorPolicy { vhost, name } => OperatorPolicy(policy(*vhost, *name)).set(),
            Act::PutNode(n) => {
                Node { name: format!("n{n}@host").into(), id: NodeId(u64::from(*n)), ..Node::default() }.put()
            }
            Act::DeleteNode(n) => Node::delete(&format!("n{n}@host")),
        })
    }
}
