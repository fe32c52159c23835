//! The arguments of queues (spec: broker-model.md, section 4; quorum-queues.md, section 9).
//!
//! An argument whose meaning Warren does not have yet is refused, never ignored: a queue that quietly lacks its limit or
//! its dead letters loses messages later.

use std::ops::RangeInclusive;

use warren_metastore::records::QueueKind;
use warren_proto::amqp091::{FieldTable, FieldValue};

use crate::error::BrokerError;
use crate::policy::locator;

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
        ("x-expires", NotYet, Yes),
        ("x-message-ttl", NotYet, Yes),
        ("x-dead-letter-exchange", NotYet, Yes),
        ("x-dead-letter-routing-key", NotYet, Yes),
        ("x-dead-letter-strategy", No, Yes),
        ("x-max-length", NotYet, Yes),
        ("x-max-length-bytes", NotYet, Yes),
        ("x-overflow", NotYet, Yes),
        ("x-max-priority", NotYet, No),
        ("x-single-active-consumer", NotYet, Yes),
        ("x-queue-mode", Ignored, No),
        ("x-queue-version", Yes, No),
        ("x-queue-leader-locator", Yes, Yes),
        ("x-queue-master-locator", Yes, No),
        ("x-quorum-initial-group-size", No, Yes),
        ("x-quorum-target-group-size", No, Yes),
        ("x-delivery-limit", No, Yes),
        ("x-member-placement-tag", No, NotYet),
        ("x-delayed-retry-type", No, Yes),
        ("x-delayed-retry-min", No, Yes),
        ("x-delayed-retry-max", No, Yes),
        ("x-consumer-timeout", No, Yes),
        ("x-consumer-disconnected-timeout", No, Yes),
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
pub(crate) struct Named<'a> {
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
pub(crate) fn queue_kind(arguments: &FieldTable, queue: Named<'_>) -> Result<Option<QueueKind>, BrokerError> {
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
pub(crate) fn check(kind: QueueKind, arguments: &FieldTable, queue: Named<'_>) -> Result<(), BrokerError> {
    for (name, value) in arguments.iter() {
        match support(kind, name) {
            None => {}
            Some(Support::Yes | Support::Ignored) => check_value(name, value, arguments, queue)?,
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

/// Arguments whose meaning Warren does not have yet for the type.
pub(crate) fn not_yet(kind: QueueKind, arguments: &FieldTable) -> Vec<&str> {
    arguments.iter().map(|(name, _)| name).filter(|name| support(kind, name) == Some(Support::NotYet)).collect()
}

/// The longest time that a message or queue may be given, in ms: ten years.
const MAX_EXPIRY: i64 = 315_360_000_000;

fn check_value(name: &str, value: &FieldValue, arguments: &FieldTable, queue: Named<'_>) -> Result<(), BrokerError> {
    let wrong = |why: &str| Err(invalid(name, queue, why));
    match name {
        "x-delivery-limit" => integer(name, value, queue, i64::MIN..=i64::MAX),
        "x-max-length"
        | "x-max-length-bytes"
        | "x-max-in-memory-length"
        | "x-max-in-memory-bytes"
        | "x-consumer-timeout"
        | "x-consumer-disconnected-timeout" => integer(name, value, queue, 0..=i64::MAX),
        "x-message-ttl" => integer(name, value, queue, 0..=MAX_EXPIRY),
        "x-expires" => integer(name, value, queue, 1..=MAX_EXPIRY),
        "x-delayed-retry-min" | "x-delayed-retry-max" => integer(name, value, queue, 1..=i64::MAX),
        "x-quorum-initial-group-size" | "x-quorum-target-group-size" => match value.as_int() {
            Some(n) if n < 1 => wrong(&format!("{{value_non_positive,{n}}}")),
            _ => integer(name, value, queue, 1..=i64::MAX),
        },
        "x-dead-letter-exchange" => text(name, value, queue).map(drop),
        "x-dead-letter-routing-key" => {
            text(name, value, queue)?;
            if arguments.get("x-dead-letter-exchange").is_none() {
                return wrong("routing_key_but_no_dlx_defined");
            }
            Ok(())
        }
        "x-dead-letter-strategy" => match text(name, value, queue)? {
            "at-most-once" | "at-least-once" => Ok(()),
            _ => wrong("invalid_dlx_strategy"),
        },
        "x-overflow" => match text(name, value, queue)? {
            "drop-head" | "reject-publish" | "reject-publish-dlx" => Ok(()),
            _ => wrong("invalid_overflow"),
        },
        "x-delayed-retry-type" => match text(name, value, queue)? {
            "disabled" | "all" | "failed" | "returned" => Ok(()),
            _ => wrong("invalid_delayed_retry_type"),
        },
        "x-single-active-consumer" => match value.as_bool() {
            Some(_) => Ok(()),
            None => Err(unacceptable(name, value, queue)),
        },
        "x-queue-mode" => match value.as_str() {
            Some("lazy" | "default") => Ok(()),
            _ => wrong("unsupported queue mode"),
        },
        "x-queue-version" => match value.as_int() {
            Some(2) => Ok(()),
            _ => wrong("only version 2 is supported"),
        },
        "x-queue-leader-locator" | "x-queue-master-locator" => match value.as_str() {
            Some(text) if locator(text).is_some() => Ok(()),
            _ => wrong("unknown leader locator"),
        },
        _ => Ok(()),
    }
}

fn unacceptable(name: &str, value: &FieldValue, queue: Named<'_>) -> BrokerError {
    invalid(name, queue, &format!("{{unacceptable_type,{}}}", value.type_name()))
}

fn integer(name: &str, value: &FieldValue, queue: Named<'_>, range: RangeInclusive<i64>) -> Result<(), BrokerError> {
    let Some(n) = value.as_int() else { return Err(unacceptable(name, value, queue)) };
    let why = match n {
        _ if range.contains(&n) => return Ok(()),
        0 => "value_zero",
        ..0 => "value_negative",
        1.. => "value_too_big",
    };
    Err(invalid(name, queue, &format!("{{{why},{n}}}")))
}

/// A text; exchanges and routing keys that are not UTF-8 cannot be named.
fn text<'v>(name: &str, value: &'v FieldValue, queue: Named<'_>) -> Result<&'v str, BrokerError> {
    match value {
        FieldValue::LongStr(_) => value.as_str().ok_or_else(|| invalid(name, queue, "not UTF-8")),
        _ => Err(unacceptable(name, value, queue)),
    }
}

/// What an operator should know about the arguments of a new queue, though they are accepted.
pub(super) fn warn(kind: QueueKind, arguments: &FieldTable, queue: Named<'_>) {
    let text = |name: &str| arguments.get(name).and_then(FieldValue::as_str);
    let Named { vhost, name } = queue;
    if kind != QueueKind::Quorum {
        return;
    }
    if text("x-overflow") == Some("reject-publish-dlx") {
        tracing::warn!(queue = name, vhost, "quorum queues have no overflow reject-publish-dlx: drop-head is used");
    }
}

/// How many members a quorum queue's arguments ask for.
pub(super) fn initial_group_size(arguments: &FieldTable) -> Option<usize> {
    size(arguments, "x-quorum-initial-group-size")
}

fn size(arguments: &FieldTable, name: &str) -> Option<usize> {
    arguments.get(name)?.as_int().and_then(|n| usize::try_from(n).ok())
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
            error(QueueKind::Classic, &FieldTable::new().with("x-max-length", FieldValue::I64(5)))
                .contains("not available")
        );
    }

    #[test]
    fn a_quorum_queues_arguments_are_checked_for_type_and_range() {
        let why = |name: &str, value: FieldValue| {
            let table = FieldTable::new().with(name, value);
            match check(QueueKind::Quorum, &table, QUEUE) {
                Ok(()) => String::new(),
                Err(error) => {
                    let text = error.to_string();
                    let start = format!("invalid arg '{name}' for queue 'q' in vhost '/': ");
                    text.strip_prefix(&start).expect("the argument is named").to_owned()
                }
            }
        };
        for name in ["x-max-length", "x-max-length-bytes", "x-message-ttl", "x-consumer-timeout"] {
            assert_eq!(why(name, FieldValue::U8(0)), "", "{name}");
            assert_eq!(why(name, FieldValue::I64(-5)), "{value_negative,-5}", "{name}");
            assert_eq!(why(name, FieldValue::text("5")), "{unacceptable_type,longstr}", "{name}");
        }
        assert_eq!(why("x-expires", FieldValue::I64(0)), "{value_zero,0}");
        assert_eq!(why("x-expires", FieldValue::I64(1)), "");
        assert_eq!(why("x-message-ttl", FieldValue::I64(MAX_EXPIRY + 1)), "{value_too_big,315360000001}");
        assert_eq!(why("x-delayed-retry-min", FieldValue::I64(0)), "{value_zero,0}");
        assert_eq!(why("x-delivery-limit", FieldValue::I64(-1)), "");
        assert_eq!(why("x-delivery-limit", FieldValue::Bool(true)), "{unacceptable_type,bool}");
        assert_eq!(why("x-overflow", FieldValue::text("reject-publish-dlx")), "");
        assert_eq!(why("x-overflow", FieldValue::text("drop-tail")), "invalid_overflow");
        assert_eq!(why("x-overflow", FieldValue::I64(1)), "{unacceptable_type,long}");
        assert_eq!(why("x-dead-letter-exchange", FieldValue::text("")), "");
        assert_eq!(why("x-dead-letter-exchange", FieldValue::I64(1)), "{unacceptable_type,long}");
        assert_eq!(why("x-dead-letter-strategy", FieldValue::text("at-least-once")), "");
        assert_eq!(why("x-dead-letter-strategy", FieldValue::text("often")), "invalid_dlx_strategy");
        assert_eq!(why("x-delayed-retry-type", FieldValue::text("failed")), "");
        assert_eq!(why("x-delayed-retry-type", FieldValue::text("some")), "invalid_delayed_retry_type");
        assert_eq!(why("x-single-active-consumer", FieldValue::Bool(true)), "");
        assert_eq!(why("x-single-active-consumer", FieldValue::text("true")), "{unacceptable_type,longstr}");
        assert_eq!(why("x-quorum-target-group-size", FieldValue::I64(0)), "{value_non_positive,0}");
    }

    #[test]
    fn a_dead_letter_routing_key_needs_an_exchange() {
        let key = FieldTable::new().with("x-dead-letter-routing-key", FieldValue::text("k"));
        assert_eq!(
            error(QueueKind::Quorum, &key),
            "invalid arg 'x-dead-letter-routing-key' for queue 'q' in vhost '/': routing_key_but_no_dlx_defined"
        );
        let both = key.with("x-dead-letter-exchange", FieldValue::text("d"));
        assert_eq!(check(QueueKind::Quorum, &both, QUEUE), Ok(()));
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
