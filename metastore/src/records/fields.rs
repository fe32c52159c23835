//! Fields of records by name: for conditions on payloads, for changes of single fields, and for operators who look at
//! the tree. Hashes of passwords have no name here.

use std::collections::BTreeSet;
use std::sync::Arc;

use serde_json::Value;
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, Incarnation, NodeId};

use super::{
    ApplyTo, Exchange, ExchangeKind, FeatureFlags, GlobalParameter, MaintenanceStatus, Node, NodeMaintenance,
    OperatorPolicy, Parameter, Permission, Policy, Queue, QueueKind, Record, SessionOwner, TopicPermission, User,
    Vhost,
};
use crate::tree::{Assignment, FieldValue, Payload, Predicate};

/// A record whose fields have names.
pub trait Fields: Record {
    /// The names, in the order in which they are shown.
    const NAMES: &'static [&'static str];

    /// The value of a field; `None` where it has none, or is unknown.
    fn field(&self, name: &str) -> Option<FieldValue>;

    /// Sets a field, or unsets it. False where that cannot be: the field is unknown or tells where the record lies, or the
    /// value is none that it can have.
    fn set_field(&mut self, name: &str, value: Option<FieldValue>) -> bool;
}

/// A type that fields of records have.
trait FieldType: Sized {
    fn read(&self) -> Option<FieldValue>;

    /// `None` for a value that it cannot have.
    fn write(value: Option<FieldValue>) -> Option<Self>;
}

impl FieldType for Arc<str> {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::Text(self.to_string()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        String::write(value).map(Arc::from)
    }
}

impl FieldType for String {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::Text(self.clone()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(FieldValue::Text(text)) => Some(text),
            None => Some(String::new()),
            Some(_) => None,
        }
    }
}

impl FieldType for bool {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::Bool(*self))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(FieldValue::Bool(value)) => Some(value),
            None => Some(false),
            Some(_) => None,
        }
    }
}

/// Numbers beyond `i64` are shown as its greatest.
macro_rules! numbers {
    ($($type:ty: $read:expr, $write:expr;)*) => {$(
        impl FieldType for $type {
            fn read(&self) -> Option<FieldValue> {
                let number = $read(self);
                Some(FieldValue::Integer(i64::try_from(number).unwrap_or(i64::MAX)))
            }

            fn write(value: Option<FieldValue>) -> Option<Self> {
                match value {
                    Some(FieldValue::Integer(number)) => $write(number.try_into().ok()?),
                    None => $write(0),
                    Some(_) => None,
                }
            }
        }
    )*};
}

numbers! {
    i64: |number: &i64| *number, Some;
    u64: |number: &u64| *number, Some;
    u16: |number: &u16| *number, Some;
}

impl<T: FieldType> FieldType for Option<T> {
    fn read(&self) -> Option<FieldValue> {
        self.as_ref().and_then(T::read)
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(value) => T::write(Some(value)).map(Some),
            None => Some(None),
        }
    }
}

impl FieldType for Vec<String> {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::List(self.iter().map(|text| FieldValue::Text(text.clone())).collect()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(FieldValue::List(list)) => list.into_iter().map(|value| String::write(Some(value))).collect(),
            None => Some(Vec::new()),
            Some(_) => None,
        }
    }
}

impl FieldType for BTreeSet<String> {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::List(self.iter().map(|text| FieldValue::Text(text.clone())).collect()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        Vec::<String>::write(value).map(|list| list.into_iter().collect())
    }
}

/// A table of arguments, as octets.
impl FieldType for Arc<[u8]> {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::Bytes(self.to_vec()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(FieldValue::Bytes(octets)) => FieldTable::decode_bare(&octets).is_ok().then(|| octets.into()),
            None => Some(Arc::default()),
            Some(_) => None,
        }
    }
}

/// A JSON value: a text as such, a number or truth as such, everything else as its text.
impl FieldType for Value {
    fn read(&self) -> Option<FieldValue> {
        Some(match self {
            Value::String(text) => FieldValue::Text(text.clone()),
            Value::Bool(value) => FieldValue::Bool(*value),
            Value::Number(number) => match number.as_i64() {
                Some(number) => FieldValue::Integer(number),
                None => FieldValue::Text(number.to_string()),
            },
            Value::Null => return None,
            Value::Array(_) | Value::Object(_) => FieldValue::Text(self.to_string()),
        })
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        Some(match value {
            Some(FieldValue::Text(text)) => Value::String(text),
            Some(FieldValue::Integer(number)) => Value::from(number),
            Some(FieldValue::Bool(value)) => Value::Bool(value),
            None => Value::Null,
            Some(FieldValue::Bytes(_) | FieldValue::List(_)) => return None,
        })
    }
}

/// A policy's definition, as JSON.
impl FieldType for serde_json::Map<String, Value> {
    fn read(&self) -> Option<FieldValue> {
        Some(FieldValue::Text(Value::Object(self.clone()).to_string()))
    }

    fn write(value: Option<FieldValue>) -> Option<Self> {
        match value {
            Some(FieldValue::Text(text)) => serde_json::from_str(&text).ok(),
            None => Some(serde_json::Map::new()),
            Some(_) => None,
        }
    }
}

/// Texts for what has a few values, and for ids, which use all of 64 bits.
macro_rules! words {
    ($($type:ty: $read:expr, $write:expr;)*) => {$(
        impl FieldType for $type {
            fn read(&self) -> Option<FieldValue> {
                Some(FieldValue::Text($read(self).to_owned()))
            }

            fn write(value: Option<FieldValue>) -> Option<Self> {
                match value {
                    Some(FieldValue::Text(word)) => $write(&word),
                    _ => None,
                }
            }
        }
    )*};
}

words! {
    ExchangeKind: |kind: &ExchangeKind| kind.name().to_owned(), |word: &str| Some(ExchangeKind::from_name(word));
    ApplyTo: |kinds: &ApplyTo| kinds.name().to_owned(), |word: &str| Some(ApplyTo::from_name(word));
    MaintenanceStatus: |status: &MaintenanceStatus| status.as_str(), MaintenanceStatus::from_word;
    NodeId: |id: &NodeId| id.0.to_string(), |number: &str| number.parse().ok().map(NodeId);
    GroupId: |id: &GroupId| id.0.to_string(), |number: &str| number.parse().ok().map(GroupId);
    Incarnation: |id: &Incarnation| id.0.to_string(), |number: &str| number.parse().ok().map(Incarnation);
    SessionOwner: |owner: &SessionOwner| format!("{}/{}/{}", owner.node.0, owner.incarnation, owner.connection),
        |text: &str| {
            let mut numbers = text.split('/').map(|number| number.parse().ok());
            let (node, incarnation, connection) = (numbers.next()??, numbers.next()??, numbers.next()??);
            numbers.next().is_none().then_some(SessionOwner { node: NodeId(node), incarnation, connection })
        };
    QueueKind: |kind: &QueueKind| match kind { QueueKind::Classic => "classic", QueueKind::Quorum => "quorum" },
        |word: &str| match word { "classic" => Some(QueueKind::Classic), "quorum" => Some(QueueKind::Quorum), _ => None };
}

/// Names the fields of a record: those that say where it lies first, which cannot be set, then the others.
macro_rules! fields {
    ($($record:ty { $($fixed:literal: $fixed_at:ident),* ; $($open:literal: $open_at:ident),* })*) => {$(
        impl Fields for $record {
            const NAMES: &'static [&'static str] = &[$($fixed,)* $($open,)*];

            fn field(&self, name: &str) -> Option<FieldValue> {
                match name {
                    $($fixed => self.$fixed_at.read(),)*
                    $($open => self.$open_at.read(),)*
                    _ => None,
                }
            }

            fn set_field(&mut self, name: &str, value: Option<FieldValue>) -> bool {
                match name {
                    $($open => match FieldType::write(value) {
                        Some(value) => {
                            self.$open_at = value;
                            true
                        }
                        None => false,
                    },)*
                    _ => false,
                }
            }
        }
    )*};
}

fields! {
    Vhost {
        "name": name;
        "description": description, "tags": tags, "default_queue_type": default_queue_type,
        "protected_from_deletion": protected_from_deletion, "tracing": tracing, "max-connections": max_connections,
        "max-queues": max_queues
    }
    User {
        "name": name;
        "tags": tags, "max-connections": max_connections, "max-channels": max_channels
    }
    Permission {
        "user": user, "vhost": vhost;
        "configure": configure, "write": write, "read": read
    }
    TopicPermission {
        "user": user, "vhost": vhost, "exchange": exchange;
        "write": write, "read": read
    }
    Exchange {
        "vhost": vhost, "name": name;
        "type": kind, "durable": durable, "auto_delete": auto_delete, "internal": internal, "arguments": arguments,
        "user": user
    }
    Queue {
        "vhost": vhost, "name": name;
        "type": kind, "durable": durable, "auto_delete": auto_delete, "exclusive_owner": exclusive_owner,
        "arguments": arguments, "group": group,
        "home": home, "leader": leader, "user": user, "created_ms": created_ms, "machine_version": machine_version
    }
    Policy {
        "vhost": vhost, "name": name;
        "pattern": pattern, "apply-to": apply_to, "priority": priority, "definition": definition
    }
    Parameter {
        "vhost": vhost, "component": component, "name": name;
        "value": value
    }
    GlobalParameter {
        ;
        "value": value
    }
    Node {
        "name": name;
        "id": id, "incarnation": incarnation, "address": address, "machine_version": machine_version, "tags": tags
    }
    NodeMaintenance {
        "node": node;
        "status": status
    }
    FeatureFlags {
        ;
        "enabled": enabled
    }
}

impl Fields for OperatorPolicy {
    const NAMES: &'static [&'static str] = Policy::NAMES;

    fn field(&self, name: &str) -> Option<FieldValue> {
        self.0.field(name)
    }

    fn set_field(&mut self, name: &str, value: Option<FieldValue>) -> bool {
        self.0.set_field(name, value)
    }
}

/// Does the same with a payload as whatever record its kind says it is.
macro_rules! by_kind {
    ($payload:expr, $does:ident($($argument:expr),*)) => {
        match $payload.kind {
            Vhost::KIND => $does::<Vhost>($payload, $($argument),*),
            User::KIND => $does::<User>($payload, $($argument),*),
            Permission::KIND => $does::<Permission>($payload, $($argument),*),
            TopicPermission::KIND => $does::<TopicPermission>($payload, $($argument),*),
            Exchange::KIND => $does::<Exchange>($payload, $($argument),*),
            Queue::KIND => $does::<Queue>($payload, $($argument),*),
            Policy::KIND => $does::<Policy>($payload, $($argument),*),
            OperatorPolicy::KIND => $does::<OperatorPolicy>($payload, $($argument),*),
            Parameter::KIND => $does::<Parameter>($payload, $($argument),*),
            GlobalParameter::KIND => $does::<GlobalParameter>($payload, $($argument),*),
            Node::KIND => $does::<Node>($payload, $($argument),*),
            NodeMaintenance::KIND => $does::<NodeMaintenance>($payload, $($argument),*),
            FeatureFlags::KIND => $does::<FeatureFlags>($payload, $($argument),*),
            _ => Default::default(),
        }
    };
}

/// What kind of record a payload is, and its fields; `None` for what is no record, or cannot be read.
pub fn described(payload: &Payload) -> Option<(&'static str, Vec<(&'static str, FieldValue)>)> {
    fn read<R: Fields>(payload: &Payload) -> Option<(&'static str, Vec<(&'static str, FieldValue)>)> {
        let record = R::decode(payload).ok()?;
        let fields = R::NAMES.iter().filter_map(|name| Some((*name, record.field(name)?)));
        Some((R::WHAT, fields.collect()))
    }
    by_kind!(payload, read())
}

/// Whether a payload is a record whose fields are as asked.
pub(crate) fn fields_match(payload: &Payload, predicate: &Predicate) -> bool {
    fn holds<R: Fields>(payload: &Payload, predicate: &Predicate) -> bool {
        R::decode(payload).is_ok_and(|record| predicate.holds(&|name| record.field(name)))
    }
    by_kind!(payload, holds(predicate))
}

/// The payload after the assignments; the field that could not be set so. A payload that cannot be read has no fields.
pub(crate) fn patched(payload: &Payload, assignments: &[Assignment]) -> Result<Payload, Box<str>> {
    fn patch<R: Fields>(payload: &Payload, assignments: &[Assignment]) -> Option<Result<Payload, Box<str>>> {
        let mut record = R::decode(payload).ok()?;
        for assignment in assignments {
            let (name, value) = match assignment {
                Assignment::Set(name, value) => (name, Some(value.clone())),
                Assignment::Unset(name) => (name, None),
                Assignment::Add(name, number) => {
                    let sum = match record.field(name) {
                        Some(FieldValue::Integer(old)) => old.checked_add(*number),
                        Some(_) => None,
                        None => Some(*number),
                    };
                    let Some(sum) = sum else { return Some(Err(name.clone())) };
                    (name, Some(FieldValue::Integer(sum)))
                }
            };
            if !record.set_field(name, value) {
                return Some(Err(name.clone()));
            }
        }
        Some(Ok(record.encode()))
    }
    let unreadable = || assignments.first().map(|assignment| assignment.field().into()).unwrap_or_default();
    by_kind!(payload, patch(assignments)).unwrap_or_else(|| Err(unreadable()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::records::HashingAlgorithm;

    #[test]
    fn fields_are_read_and_set_by_name_and_those_that_say_where_it_lies_stay() {
        let vhost = Vhost { max_queues: Some(5), tags: vec!["a".into()], ..Vhost::named("v") };
        let set = |name: &str, value: FieldValue| Assignment::Set(name.into(), value);
        let changes = [
            set("description", "text".into()),
            Assignment::Add("max-queues".into(), 2),
            Assignment::Unset("tags".into()),
            Assignment::Add("max-connections".into(), 7),
        ];
        let patched_vhost = Vhost::decode(&patched(&vhost.encode(), &changes).unwrap()).unwrap();
        let expected =
            Vhost { description: "text".into(), max_queues: Some(7), max_connections: Some(7), ..Vhost::named("v") };
        assert_eq!(patched_vhost, expected);
        for wrong in [
            set("name", "w".into()),
            set("tags", "no list".into()),
            set("nothing", 1.into()),
            Assignment::Add("description".into(), 1),
        ] {
            assert_eq!(patched(&vhost.encode(), std::slice::from_ref(&wrong)), Err(wrong.field().into()));
        }
        let full = Vhost { max_queues: Some(i64::MAX), ..vhost };
        assert!(patched(&full.encode(), &[Assignment::Add("max-queues".into(), 1)]).is_err());
    }

    #[test]
    fn what_is_shown_of_a_user_has_no_hash() {
        let user =
            User { hashing_algorithm: HashingAlgorithm::Sha256, ..User::with_password("u", b"p", [1; 4], vec![]) };
        let (what, fields) = described(&user.encode()).unwrap();
        assert_eq!(what, "user");
        assert!(fields.iter().all(|(name, _)| !name.contains("hash")));
        assert_eq!(described(&Payload { kind: 60_000, schema: 1, bytes: Arc::default() }), None);
    }
}
