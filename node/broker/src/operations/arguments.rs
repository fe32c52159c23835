//! The arguments of queues (spec: broker-model.md, section 4; quorum-queues.md, section 9).
//!
//! An argument whose meaning Warren does not have yet is refused, never ignored: a queue that quietly lacks its limit or
//! its dead letters loses messages later.

use warren_metastore::records::QueueKind;
use warren_proto::amqp091::{FieldTable, FieldValue};
use warren_queues::quorum::Config;

use crate::error::BrokerError;
use crate::node::LeaderLocator;

/// How a queue type takes an argument.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Support {
    /// It means something, and is compared when the queue is declared again.
    Yes,
    /// It is accepted and does nothing, as in RabbitMQ.
    Ignored,
    /// The type has it, Warren does not yet.
    NotYet,
    /// It belongs to other queue types.
    No,
}

/// Name, for classic, for quorum queues. Arguments that are not here are stored and mean nothing.
const ARGUMENTS: &[(&str, Support, Support)] = {
    use Support::{Ignored, No, NotYet, Yes};
    &[
        ("x-queue-type", Yes, Yes),
        ("x-expires", NotYet, NotYet),
        ("x-message-ttl", NotYet, NotYet),
        ("x-dead-letter-exchange", NotYet, NotYet),
        ("x-dead-letter-routing-key", NotYet, NotYet),
        ("x-dead-letter-strategy", No, NotYet),
        ("x-max-length", NotYet, NotYet),
        ("x-max-length-bytes", NotYet, NotYet),
        ("x-overflow", NotYet, NotYet),
        ("x-max-priority", NotYet, No),
        ("x-single-active-consumer", NotYet, NotYet),
        ("x-queue-mode", Ignored, No),
        ("x-queue-version", Yes, No),
        ("x-queue-leader-locator", Yes, Yes),
        ("x-queue-master-locator", NotYet, No),
        ("x-quorum-initial-group-size", No, Yes),
        ("x-quorum-target-group-size", No, Yes),
        ("x-delivery-limit", No, Yes),
        ("x-member-placement-tag", No, NotYet),
        ("x-delayed-retry-type", No, NotYet),
        ("x-delayed-retry-min", No, NotYet),
        ("x-delayed-retry-max", No, NotYet),
        ("x-consumer-timeout", No, NotYet),
        ("x-consumer-disconnected-timeout", No, NotYet),
        ("x-max-in-memory-length", No, Ignored),
        ("x-max-in-memory-bytes", No, Ignored),
        ("x-max-age", No, No),
        ("x-stream-max-segment-size-bytes", No, No),
        ("x-stream-filter-size-bytes", No, No),
        ("x-initial-cluster-size", No, No),
    ]
};

/// A queue's name, for error texts.
#[derive(Clone, Copy)]
pub(super) struct Named<'a> {
    pub vhost: &'a str,
    pub name: &'a str,
}

fn support(kind: QueueKind, name: &str) -> Option<Support> {
    ARGUMENTS.iter().find(|(argument, ..)| *argument == name).map(|(_, classic, quorum)| match kind {
        QueueKind::Classic => *classic,
        QueueKind::Quorum => *quorum,
    })
}

fn invalid(name: &str, queue: Named<'_>, why: &str) -> BrokerError {
    BrokerError::PreconditionFailed(format!(
        "invalid arg '{name}' for queue '{}' in vhost '{}': {why}",
        queue.name, queue.vhost
    ))
}

/// The queue type that the arguments name.
pub(super) fn queue_kind(arguments: &FieldTable, queue: Named<'_>) -> Result<Option<QueueKind>, BrokerError> {
    let Some(value) = arguments.get("x-queue-type") else { return Ok(None) };
    match value.as_str() {
        Some("classic") => Ok(Some(QueueKind::Classic)),
        Some("quorum") => Ok(Some(QueueKind::Quorum)),
        Some("stream") => Err(BrokerError::NotImplemented(format!(
            "queue '{}' in vhost '{}': streams are not available in this version of Warren",
            queue.name, queue.vhost
        ))),
        Some(other) => Err(invalid("x-queue-type", queue, &format!("unsupported queue type '{other}'"))),
        None => Err(invalid("x-queue-type", queue, "not a string")),
    }
}

/// Checks every argument of a new queue.
pub(super) fn check(kind: QueueKind, arguments: &FieldTable, queue: Named<'_>) -> Result<(), BrokerError> {
    for (name, value) in arguments.iter() {
        match support(kind, name) {
            None => {}
            Some(Support::Yes | Support::Ignored) => check_value(name, value, queue)?,
            Some(Support::NotYet) => {
                return Err(invalid(name, queue, "not available in this version of Warren"));
            }
            Some(Support::No) => {
                return Err(BrokerError::PreconditionFailed(format!(
                    "invalid arg '{name}' for queue '{}' in vhost '{}' of queue type rabbit_{}_queue",
                    queue.name,
                    queue.vhost,
                    kind.name()
                )));
            }
        }
    }
    Ok(())
}

fn check_value(name: &str, value: &FieldValue, queue: Named<'_>) -> Result<(), BrokerError> {
    match name {
        "x-delivery-limit" => match value.as_int() {
            Some(_) => Ok(()),
            None => Err(invalid(name, queue, "not an integer")),
        },
        "x-quorum-initial-group-size" | "x-quorum-target-group-size" => match value.as_int() {
            Some(n) if n >= 1 => Ok(()),
            Some(n) => Err(invalid(name, queue, &format!("{{value_non_positive,{n}}}"))),
            None => Err(invalid(name, queue, "not an integer")),
        },
        "x-max-in-memory-length" | "x-max-in-memory-bytes" => match value.as_int() {
            Some(n) if n >= 0 => Ok(()),
            Some(n) => Err(invalid(name, queue, &format!("{{value_negative,{n}}}"))),
            None => Err(invalid(name, queue, "not an integer")),
        },
        "x-queue-mode" => match value.as_str() {
            Some("lazy" | "default") => Ok(()),
            _ => Err(invalid(name, queue, "unsupported queue mode")),
        },
        "x-queue-version" => match value.as_int() {
            Some(2) => Ok(()),
            _ => Err(invalid(name, queue, "only version 2 is supported")),
        },
        "x-queue-leader-locator" => match value.as_str() {
            Some(text) if locator(text).is_some() => Ok(()),
            _ => Err(invalid(name, queue, "unknown leader locator")),
        },
        _ => Ok(()),
    }
}

/// The locator of a name. The names of older RabbitMQ versions spread leaders, so they mean `balanced`.
fn locator(name: &str) -> Option<LeaderLocator> {
    match name {
        "client-local" => Some(LeaderLocator::ClientLocal),
        "balanced" | "random" | "least-leaders" | "min-masters" => Some(LeaderLocator::Balanced),
        _ => None,
    }
}

/// Where a queue's arguments want its leader.
pub(super) fn leader_locator(arguments: &FieldTable) -> Option<LeaderLocator> {
    locator(arguments.get("x-queue-leader-locator")?.as_str()?)
}

/// How many members a quorum queue's arguments ask for.
pub(super) fn initial_group_size(arguments: &FieldTable) -> Option<usize> {
    size(arguments, "x-quorum-initial-group-size")
}

/// The members that a quorum queue is to have.
pub(super) fn target_group_size(arguments: &FieldTable) -> Option<usize> {
    size(arguments, "x-quorum-target-group-size")
}

fn size(arguments: &FieldTable, name: &str) -> Option<usize> {
    arguments.get(name)?.as_int().and_then(|n| usize::try_from(n).ok())
}

/// The configuration of a quorum queue's machine.
pub(crate) fn quorum_config(arguments: &FieldTable) -> Config {
    let mut config = Config::default();
    if let Some(limit) = arguments.get("x-delivery-limit").and_then(FieldValue::as_int) {
        config.delivery_limit = u32::try_from(limit).ok();
    }
    config
}

/// Compares the arguments that the queue's type knows with those that it was declared with.
pub(super) fn equivalent(
    kind: QueueKind,
    existing: &FieldTable,
    wanted: &FieldTable,
    queue: Named<'_>,
) -> Result<(), BrokerError> {
    for (name, ..) in ARGUMENTS.iter().filter(|(name, ..)| support(kind, name) == Some(Support::Yes)) {
        let (current, received) = (existing.get(name), wanted.get(name));
        let same = match (current, received) {
            (None, None) => true,
            (Some(a), Some(b)) => a.equivalent(b),
            (None, Some(value)) | (Some(value), None) => *name == "x-queue-type" && value.as_str() == Some("classic"),
        };
        if !same {
            return Err(BrokerError::PreconditionFailed(format!(
                "inequivalent arg '{name}' for queue '{}' in vhost '{}': received {} but current is {}",
                queue.name,
                queue.vhost,
                show(received),
                show(current)
            )));
        }
    }
    // One that is refused at creation would be missed in the comparison above, and must not pass as known.
    check(kind, wanted, queue)
}

/// An argument in the words of an error text.
pub(super) fn show(value: Option<&FieldValue>) -> String {
    let Some(value) = value else { return "none".to_owned() };
    let kind = value.type_name();
    match (value.as_str(), value.as_int()) {
        (Some(text), _) => format!("the value '{text}' of type '{kind}'"),
        (_, Some(n)) => format!("the value '{n}' of type '{kind}'"),
        _ => format!("a value of type '{kind}'"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const QUEUE: Named<'_> = Named { vhost: "/", name: "q" };

    fn error(kind: QueueKind, table: &FieldTable) -> String {
        check(kind, table, QUEUE).unwrap_err().to_string()
    }

    #[test]
    fn an_argument_of_another_type_is_named() {
        let text = error(QueueKind::Quorum, &FieldTable::new().with("x-max-priority", FieldValue::I64(5)));
        assert_eq!(text, "invalid arg 'x-max-priority' for queue 'q' in vhost '/' of queue type rabbit_quorum_queue");
    }

    #[test]
    fn an_argument_that_has_no_effect_yet_is_refused() {
        assert!(
            error(QueueKind::Quorum, &FieldTable::new().with("x-max-length", FieldValue::I64(5)))
                .contains("not available")
        );
    }

    #[test]
    fn unknown_arguments_are_accepted() {
        assert_eq!(check(QueueKind::Quorum, &FieldTable::new().with("x-foo", FieldValue::I64(1)), QUEUE), Ok(()));
    }

    #[test]
    fn an_argument_without_effect_must_be_a_valid_one_all_the_same() {
        let mode = |value: FieldValue| check(QueueKind::Classic, &FieldTable::new().with("x-queue-mode", value), QUEUE);
        assert_eq!(mode(FieldValue::text("lazy")), Ok(()));
        assert!(mode(FieldValue::text("busy")).is_err());
        assert!(mode(FieldValue::I64(1)).is_err());
        for name in ["x-max-in-memory-length", "x-max-in-memory-bytes"] {
            let limit = |value: FieldValue| check(QueueKind::Quorum, &FieldTable::new().with(name, value), QUEUE);
            assert_eq!(limit(FieldValue::I32(0)), Ok(()));
            assert!(limit(FieldValue::I32(-1)).is_err());
            assert!(limit(FieldValue::text("5")).is_err());
        }
    }

    #[test]
    fn a_difference_is_told_with_both_values_and_their_types() {
        let five = FieldTable::new().with("x-delivery-limit", FieldValue::I32(5));
        let error = equivalent(QueueKind::Quorum, &FieldTable::new(), &five, QUEUE).unwrap_err().to_string();
        assert_eq!(
            error,
            "inequivalent arg 'x-delivery-limit' for queue 'q' in vhost '/': received the value '5' of type 'signedint' \
             but current is none"
        );
    }

    #[test]
    fn a_missing_queue_type_equals_classic_only() {
        let none = FieldTable::new();
        let classic = FieldTable::new().with("x-queue-type", FieldValue::text("classic"));
        assert_eq!(equivalent(QueueKind::Classic, &none, &classic, QUEUE), Ok(()));
        let limited = FieldTable::new().with("x-delivery-limit", FieldValue::I64(5));
        assert!(equivalent(QueueKind::Quorum, &none, &limited, QUEUE).is_err());
    }
}
