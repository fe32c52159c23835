//! Exchanges.

use std::sync::Arc;

use prost::Message;
use warren_proto::ids::Reference;

use super::stored::{self, Invalid, Record, Stored, Unknown};
use super::{layout, vhost};
use crate::machine::{Reply, Write};
use crate::tree::{AbortCode, Comparison, Condition, Guard, Op, OpResult, Path, Payload, Tree, Watch};

/// How an exchange routes.
#[derive(Clone, PartialEq, Eq, Debug, Default, Hash)]
pub enum ExchangeKind {
    /// Binding key equals routing key.
    #[default]
    Direct,
    /// Every binding.
    Fanout,
    /// Binding keys with `*` and `#`.
    Topic,
    /// Binding arguments against message headers.
    Headers,
    /// A type of a newer binary: routes nowhere here.
    Other(Arc<str>),
}

impl ExchangeKind {
    /// The type of this name, as clients write it.
    pub fn from_name(name: &str) -> Self {
        match name {
            "direct" => ExchangeKind::Direct,
            "fanout" => ExchangeKind::Fanout,
            "topic" => ExchangeKind::Topic,
            "headers" => ExchangeKind::Headers,
            other => ExchangeKind::Other(other.into()),
        }
    }

    /// The name, as clients write it.
    pub fn name(&self) -> &str {
        match self {
            ExchangeKind::Direct => "direct",
            ExchangeKind::Fanout => "fanout",
            ExchangeKind::Topic => "topic",
            ExchangeKind::Headers => "headers",
            ExchangeKind::Other(name) => name,
        }
    }
}

/// An exchange.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Exchange {
    /// The vhost.
    pub vhost: Arc<str>,
    /// The name; empty for the default exchange.
    pub name: Arc<str>,
    /// How it routes.
    pub kind: ExchangeKind,
    /// Compared and listed; all metadata is durable.
    pub durable: bool,
    /// Whether it goes with its last outgoing binding.
    pub auto_delete: bool,
    /// Whether clients may not publish to it.
    pub internal: bool,
    /// Its arguments: an AMQP 0.9.1 field table without its length.
    pub arguments: Arc<[u8]>,
    /// The user who created it; empty for the broker itself.
    pub user: Arc<str>,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    vhost: String,
    #[prost(string, tag = "2")]
    name: String,
    #[prost(string, tag = "3")]
    kind: String,
    #[prost(bool, tag = "4")]
    durable: bool,
    #[prost(bool, tag = "5")]
    auto_delete: bool,
    #[prost(bool, tag = "6")]
    internal: bool,
    #[prost(bytes = "vec", tag = "7")]
    arguments: Vec<u8>,
    #[prost(string, tag = "8")]
    user: String,
}

impl Record for Exchange {
    const KIND: u16 = 7;
    const WHAT: &'static str = "exchange";

    fn encode(&self) -> Payload {
        let wire = Wire {
            vhost: self.vhost.to_string(),
            name: self.name.to_string(),
            kind: self.kind.name().to_owned(),
            durable: self.durable,
            auto_delete: self.auto_delete,
            internal: self.internal,
            arguments: self.arguments.to_vec(),
            user: self.user.to_string(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 8)?;
        Ok(Exchange {
            vhost: wire.vhost.into(),
            name: wire.name.into(),
            kind: ExchangeKind::from_name(&wire.kind),
            durable: wire.durable,
            auto_delete: wire.auto_delete,
            internal: wire.internal,
            arguments: wire.arguments.into(),
            user: wire.user.into(),
            unknown,
        })
    }
}

/// Whether an exchange with bindings may be deleted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DeleteExchange {
    /// With its bindings.
    Always,
    /// Only without bindings from it.
    IfUnused,
}

impl Exchange {
    /// A durable exchange without arguments.
    pub fn named(vhost: &str, name: &str, kind: ExchangeKind) -> Self {
        Exchange { vhost: vhost.into(), name: name.into(), kind, durable: true, ..Exchange::default() }
    }

    /// The exchange of a name.
    pub fn get(tree: &Tree, vhost: &str, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::exchange(vhost, name))
    }

    /// All exchanges of a vhost, in order of their names.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::exchanges(vhost), &[])
    }

    /// Creates the exchange; aborts with `NoSuchVhost`. Read the reply with [`Record::created`].
    pub fn create_or_get(&self) -> Write {
        let no_vhost = vec![Op::Abort(AbortCode::NoSuchVhost)];
        Op::If(vhost::exists(&self.vhost), vec![self.put_if_absent()], no_vhost).into()
    }

    /// Creates the exchange unless there is one of its name, whatever it is like; aborts with `NoSuchVhost`.
    pub fn create_if_absent(&self) -> Write {
        let there = present(layout::exchange(&self.vhost, &self.name));
        let create = vec![Op::If(there, Vec::new(), vec![self.put_if_absent()])];
        Op::If(vhost::exists(&self.vhost), create, vec![Op::Abort(AbortCode::NoSuchVhost)]).into()
    }

    pub(super) fn put_if_absent(&self) -> Op {
        let path = layout::exchange(&self.vhost, &self.name);
        // The node above the bindings exists exactly while there is one; watching it costs the same however many there
        // are. It is beneath the exchange, so it need not exist when the exchange is born.
        let keep_while = self.auto_delete.then(|| vec![Watch::exists(layout::bindings(&self.vhost, &self.name))]);
        Op::Put { path, condition: Condition::absent_or_placeholder(), payload: Some(self.encode()), keep_while }
    }

    /// Replaces the record if it has not changed since it was read.
    pub fn update(&self, mod_revision: Reference) -> Write {
        let condition = Condition::ModRevision(Comparison::Eq, mod_revision);
        let path = layout::exchange(&self.vhost, &self.name);
        Op::Put { path, condition, payload: Some(self.encode()), keep_while: None }.into()
    }

    /// Takes the next serial number of the exchange, by which changes of its bindings are ordered; aborts with
    /// `NoSuchExchange`. Read the reply with [`serial`](Self::serial).
    pub fn next_serial(vhost: &str, name: &str) -> Write {
        let next = Op::CounterAdd { path: layout::serial(vhost, name), delta: 1, initial: 1 };
        let none = vec![Op::Abort(AbortCode::NoSuchExchange)];
        Op::If(present(layout::exchange(vhost, name)), vec![next], none).into()
    }

    /// The number that [`next_serial`](Self::next_serial) took: 1, 2, and so on.
    pub fn serial(reply: &Reply) -> Option<i64> {
        match reply.results[..] {
            [OpResult::Counter { old }] => Some(old.map_or(1, |old| old.wrapping_add(1))),
            _ => None,
        }
    }

    /// Deletes the exchange with the bindings from and to it; aborts with `NoSuchExchange` or `InUse`.
    pub fn delete(vhost: &str, name: &str, mode: DeleteExchange) -> Write {
        let path = layout::exchange(vhost, name);
        let delete = vec![Op::Delete(path.clone().into())];
        let delete = match mode {
            DeleteExchange::Always => delete,
            DeleteExchange::IfUnused => {
                let used = Guard::Exists(layout::bindings(vhost, name).into());
                vec![Op::If(used, vec![Op::Abort(AbortCode::InUse)], delete)]
            }
        };
        Op::If(present(path), delete, vec![Op::Abort(AbortCode::NoSuchExchange)]).into()
    }
}

/// "There is a record", not merely a placeholder.
pub(super) fn present(path: Path) -> Guard {
    Guard::Test(path, Condition::HasPayload(true))
}
