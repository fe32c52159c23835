//! A queue's own arguments and its policies as one. Everything here is a function of these alone.

use serde_json::Value;
use warren_metastore::records::Definition;
use warren_proto::amqp091::{FieldTable, FieldValue};
use warren_queues::quorum::{Config, DeadLetter, DeadLetterStrategy, DelayedRetry, Overflow, RetryOn};

use super::merge::delivery_limit;
use crate::node::LeaderLocator;

/// What a queue was declared with and what its policies say, by the key that both have.
struct Sources<'a> {
    arguments: &'a FieldTable,
    policies: &'a Definition,
}

impl<'a> Sources<'a> {
    fn argument(&self, key: &str) -> Option<&'a FieldValue> {
        self.arguments.get(&format!("x-{key}"))
    }

    fn numbers(&self, key: &str) -> (Option<i64>, Option<i64>) {
        (self.argument(key).and_then(FieldValue::as_int), self.policies.get(key).and_then(Value::as_i64))
    }

    fn texts(&self, key: &str) -> (Option<&'a str>, Option<&'a str>) {
        (self.argument(key).and_then(FieldValue::as_str), self.policies.get(key).and_then(Value::as_str))
    }

    /// The lower one of those that are there.
    fn least(&self, key: &str) -> Option<u64> {
        let (argument, policy) = self.numbers(key);
        argument.into_iter().chain(policy).filter_map(|n| u64::try_from(n).ok()).min()
    }

    fn argument_first(&self, key: &str) -> Option<&'a str> {
        let (argument, policy) = self.texts(key);
        argument.or(policy)
    }

    fn policy_first(&self, key: &str) -> Option<&'a str> {
        let (argument, policy) = self.texts(key);
        policy.or(argument)
    }
}

/// The configuration of a quorum queue's machine. `policies` is its [effective definition](super::merged).
pub(crate) fn quorum_config(arguments: &FieldTable, policies: &Definition) -> Config {
    let sources = Sources { arguments, policies };
    let default = Config::default();
    Config {
        delivery_limit: match sources.numbers("delivery-limit") {
            (None, None) => default.delivery_limit,
            (Some(argument), Some(policy)) => u32::try_from(delivery_limit(argument, policy)).ok(),
            (Some(limit), None) | (None, Some(limit)) => u32::try_from(limit).ok(),
        },
        consumer_disconnected_timeout_ms: sources
            .least("consumer-disconnected-timeout")
            .unwrap_or(default.consumer_disconnected_timeout_ms),
        consumer_timeout_ms: sources.least("consumer-timeout"),
        max_length: sources.least("max-length"),
        max_length_bytes: sources.least("max-length-bytes"),
        overflow: match sources.policy_first("overflow") {
            Some("reject-publish") => Overflow::RejectPublish,
            _ => Overflow::DropHead,
        },
        message_ttl_ms: sources.least("message-ttl"),
        expires_ms: sources.least("expires"),
        single_active: sources.argument("single-active-consumer").and_then(FieldValue::as_bool).unwrap_or_default(),
        dead_letter: dead_letter(&sources),
        delayed_retry: delayed_retry(&sources),
    }
}

/// Tells operators of a queue that does not keep dead messages although it was to. Said when it is declared and when its
/// policies change.
pub(crate) fn warn_of_fallback(config: &Config, vhost: &str, queue: &str) {
    if config.falls_back_to_at_most_once() {
        tracing::warn!(
            queue,
            vhost,
            "dead-letter-strategy at-least-once needs overflow reject-publish: without it, at-most-once is used"
        );
    }
}

fn dead_letter(sources: &Sources<'_>) -> Option<DeadLetter> {
    Some(DeadLetter {
        exchange: sources.argument_first("dead-letter-exchange")?.to_owned(),
        routing_key: sources.argument_first("dead-letter-routing-key").map(str::to_owned),
        strategy: match sources.argument_first("dead-letter-strategy") {
            Some("at-least-once") => DeadLetterStrategy::AtLeastOnce,
            _ => DeadLetterStrategy::AtMostOnce,
        },
    })
}

fn delayed_retry(sources: &Sources<'_>) -> Option<DelayedRetry> {
    let on = match sources.policy_first("delayed-retry-type")? {
        "all" => RetryOn::All,
        "failed" => RetryOn::Failed,
        "returned" => RetryOn::Returned,
        _ => return None,
    };
    let min_ms = sources.least("delayed-retry-min").filter(|min| *min > 0)?;
    // Each side may be sound and both together not.
    let max_ms = sources.least("delayed-retry-max").unwrap_or(min_ms).max(min_ms);
    Some(DelayedRetry { on, min_ms, max_ms })
}

/// The members that a quorum queue is to have.
pub(crate) fn target_group_size(arguments: &FieldTable, policies: &Definition) -> Option<usize> {
    let argument = arguments.get("x-quorum-target-group-size").and_then(FieldValue::as_int);
    let policy = policies.get("target-group-size").and_then(Value::as_i64);
    argument.into_iter().chain(policy).filter_map(|n| usize::try_from(n).ok()).max()
}

/// Where a new queue's arguments and policies want its leader, or a classic queue its home.
pub(crate) fn leader_locator(arguments: &FieldTable, policies: &Definition) -> Option<LeaderLocator> {
    let policy = policies.get("queue-leader-locator").or_else(|| policies.get("queue-master-locator"));
    let argument = arguments.get("x-queue-leader-locator").or_else(|| arguments.get("x-queue-master-locator"));
    let argument = argument.and_then(FieldValue::as_str);
    policy.and_then(Value::as_str).and_then(locator).or_else(|| argument.and_then(locator))
}

/// The locator of a name. The names of older RabbitMQ versions spread leaders, so they mean `balanced`.
pub(crate) fn locator(name: &str) -> Option<LeaderLocator> {
    match name {
        "client-local" => Some(LeaderLocator::ClientLocal),
        "balanced" | "random" | "least-leaders" | "min-masters" => Some(LeaderLocator::Balanced),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(arguments: &Value) -> FieldTable {
        let fields = arguments.as_object().expect("an object").iter().map(|(key, value)| {
            let value = match value {
                Value::Bool(flag) => FieldValue::Bool(*flag),
                Value::Number(number) => FieldValue::I64(number.as_i64().expect("an integer")),
                Value::String(text) => FieldValue::text(text.clone()),
                other => panic!("{other}"),
            };
            (format!("x-{key}"), value)
        });
        fields.fold(FieldTable::new(), |table, (name, value)| table.with(&name, value))
    }

    fn definition(policies: &Value) -> Definition {
        policies.as_object().expect("an object").clone()
    }

    fn config(arguments: Value, policies: Value) -> Config {
        quorum_config(&table(&arguments), &definition(&policies))
    }

    /// What argument alone, policy alone, and both in either order make of a number.
    fn numbers(key: &str, of: impl Fn(&Config) -> Option<u64>) -> [Option<u64>; 4] {
        let both = |argument: i64, policy: i64| config(json!({key: argument}), json!({key: policy}));
        [config(json!({key: 7}), json!({})), config(json!({}), json!({key: 8})), both(7, 8), both(8, 7)].map(|c| of(&c))
    }

    #[test]
    fn without_arguments_and_policies_a_queue_has_the_defaults() {
        assert_eq!(config(json!({}), json!({})), Config::default());
        assert_eq!(config(json!({"foo": 1, "max-priority": 5}), json!({"max-in-memory-length": 5})), Config::default());
    }

    #[test]
    fn of_lengths_times_and_timeouts_the_least_counts() {
        let least = [Some(7), Some(8), Some(7), Some(7)];
        assert_eq!(numbers("max-length", |c| c.max_length), least);
        assert_eq!(numbers("max-length-bytes", |c| c.max_length_bytes), least);
        assert_eq!(numbers("message-ttl", |c| c.message_ttl_ms), least);
        assert_eq!(numbers("expires", |c| c.expires_ms), least);
        assert_eq!(numbers("consumer-timeout", |c| c.consumer_timeout_ms), least);
        assert_eq!(numbers("consumer-disconnected-timeout", |c| Some(c.consumer_disconnected_timeout_ms)), least);
    }

    #[test]
    fn the_lower_delivery_limit_counts_and_a_negative_one_gives_way() {
        let limit = |argument: i64, policy: i64| {
            config(json!({"delivery-limit": argument}), json!({"delivery-limit": policy})).delivery_limit
        };
        assert_eq!(limit(5, 3), Some(3));
        assert_eq!(limit(3, 5), Some(3));
        assert_eq!(limit(0, 5), Some(0));
        assert_eq!(limit(-1, 5), Some(5));
        assert_eq!(limit(5, -1), Some(5));
        assert_eq!(limit(-1, -2), None);
        assert_eq!(config(json!({"delivery-limit": -1}), json!({})).delivery_limit, None);
        assert_eq!(config(json!({}), json!({"delivery-limit": 50})).delivery_limit, Some(50));
    }

    #[test]
    fn a_policys_overflow_counts_before_the_argument() {
        let overflow =
            |argument: &str, policy: &str| config(json!({"overflow": argument}), json!({"overflow": policy})).overflow;
        assert_eq!(overflow("drop-head", "reject-publish"), Overflow::RejectPublish);
        assert_eq!(overflow("reject-publish", "drop-head"), Overflow::DropHead);
        assert_eq!(config(json!({"overflow": "reject-publish"}), json!({})).overflow, Overflow::RejectPublish);
        assert_eq!(config(json!({"overflow": "reject-publish-dlx"}), json!({})).overflow, Overflow::DropHead);
    }

    #[test]
    fn dead_letter_arguments_count_before_policies_each_by_itself() {
        assert_eq!(config(json!({}), json!({"dead-letter-routing-key": "k"})).dead_letter, None);
        let mixed = config(
            json!({"dead-letter-exchange": "own"}),
            json!({"dead-letter-exchange": "d", "dead-letter-routing-key": "k", "dead-letter-strategy": "at-least-once"}),
        );
        let expected = DeadLetter {
            exchange: "own".to_owned(),
            routing_key: Some("k".to_owned()),
            strategy: DeadLetterStrategy::AtLeastOnce,
        };
        assert_eq!(mixed.dead_letter, Some(expected));
        let own = config(
            json!({"dead-letter-exchange": "", "dead-letter-strategy": "at-most-once", "dead-letter-routing-key": "o"}),
            json!({"dead-letter-routing-key": "k", "dead-letter-strategy": "at-least-once"}),
        );
        let expected = DeadLetter {
            exchange: String::new(),
            routing_key: Some("o".to_owned()),
            strategy: DeadLetterStrategy::AtMostOnce,
        };
        assert_eq!(own.dead_letter, Some(expected));
    }

    #[test]
    fn a_single_active_consumer_comes_by_argument_only() {
        assert!(config(json!({"single-active-consumer": true}), json!({})).single_active);
        assert!(!config(json!({"single-active-consumer": false}), json!({})).single_active);
        assert!(!config(json!({}), json!({"single-active-consumer": true})).single_active);
    }

    #[test]
    fn of_delayed_retry_the_type_is_the_policys_and_of_the_times_the_least_counts() {
        let retry = |arguments, policies| config(arguments, policies).delayed_retry;
        let expected = |on, min_ms, max_ms| Some(DelayedRetry { on, min_ms, max_ms });
        assert_eq!(retry(json!({"delayed-retry-type": "all"}), json!({})), None);
        assert_eq!(
            retry(json!({"delayed-retry-type": "all", "delayed-retry-min": 5}), json!({})),
            expected(RetryOn::All, 5, 5)
        );
        assert_eq!(
            retry(
                json!({"delayed-retry-type": "all", "delayed-retry-min": 5, "delayed-retry-max": 90}),
                json!({"delayed-retry-type": "failed", "delayed-retry-min": 3, "delayed-retry-max": 80})
            ),
            expected(RetryOn::Failed, 3, 80)
        );
        assert_eq!(
            retry(
                json!({"delayed-retry-type": "returned", "delayed-retry-min": 5}),
                json!({"delayed-retry-type": "disabled"})
            ),
            None
        );
        let apart = json!({"delayed-retry-max": 2});
        assert_eq!(
            retry(json!({"delayed-retry-type": "returned", "delayed-retry-min": 5}), apart),
            expected(RetryOn::Returned, 5, 5)
        );
    }

    #[test]
    fn the_larger_group_is_the_target() {
        let target = |argument: Option<i64>, policy: Value| {
            let arguments = argument.map_or_else(FieldTable::new, |n| {
                FieldTable::new().with("x-quorum-target-group-size", FieldValue::I64(n))
            });
            target_group_size(&arguments, &definition(&policy))
        };
        assert_eq!(target(None, json!({})), None);
        assert_eq!(target(Some(3), json!({})), Some(3));
        assert_eq!(target(Some(3), json!({"target-group-size": 5})), Some(5));
        assert_eq!(target(Some(7), json!({"target-group-size": 5})), Some(7));
    }

    #[test]
    fn a_policys_locator_counts_before_the_argument() {
        let locator = |arguments: Value, policies: Value| leader_locator(&table(&arguments), &definition(&policies));
        assert_eq!(locator(json!({}), json!({})), None);
        let own = json!({"queue-leader-locator": "client-local"});
        assert_eq!(locator(own.clone(), json!({})), Some(LeaderLocator::ClientLocal));
        let policy = json!({"queue-leader-locator": "least-leaders"});
        assert_eq!(locator(own, policy), Some(LeaderLocator::Balanced));
    }
}
