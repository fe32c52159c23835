//! The keys of policies, and what is wrong with a definition.

use std::fmt::Write as _;

use serde_json::{Map, Value};
use warren_metastore::records::Definition;

use super::effective::locator;

/// Which of the two a definition belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// A policy.
    Policy,
    /// An operator policy.
    Operator,
}

/// How an operator policy's value goes together with a policy's.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Merge {
    /// The lower number counts.
    Least,
    /// The higher number counts.
    Most,
    /// The operator's value counts.
    Operators,
    /// See [`delivery_limit`](super::merge::delivery_limit).
    DeliveryLimit,
}

/// Values that a key may have.
#[derive(Clone, Copy)]
enum Values {
    /// An integer from this one on.
    From(i64),
    /// An integer between these.
    Between(i64, i64),
    /// Any integer.
    Integer,
    /// A text.
    Text,
    /// One of these texts.
    OneOf(&'static [&'static str]),
    /// The name of a leader locator.
    Locator,
    /// A number and a unit of time.
    Age,
}

/// A key of policies.
pub(super) struct Key {
    name: &'static str,
    values: Values,
    /// What a wrong value is not.
    valid: &'static str,
    /// How it merges, if operator policies may have it.
    pub operator: Option<Merge>,
}

const fn key_of(name: &'static str, values: Values, valid: &'static str, operator: Option<Merge>) -> Key {
    Key { name, values, valid, operator }
}

const KEYS: &[Key] = {
    use Merge::{DeliveryLimit, Least, Most, Operators};
    use Values::{Age, Between, From, Integer, Locator, OneOf, Text};
    const OVERFLOWS: Values = OneOf(&["drop-head", "reject-publish", "reject-publish-dlx"]);
    const RETRIES: Values = OneOf(&["disabled", "all", "failed", "returned"]);
    &[
        key_of("alternate-exchange", Text, "a valid alternate exchange name", None),
        key_of("consumer-timeout", From(0), "a valid consumer timeout", None),
        key_of("consumer-disconnected-timeout", From(0), "a valid consumer disconnected timeout", None),
        key_of("dead-letter-exchange", Text, "a valid dead letter exchange name", None),
        key_of("dead-letter-routing-key", Text, "a valid dead letter routing key", None),
        key_of("dead-letter-strategy", OneOf(&["at-most-once", "at-least-once"]), "a valid dead letter strategy", None),
        key_of("delayed-retry-max", From(1), "a valid delayed retry maximum", Some(Least)),
        key_of("delayed-retry-min", From(1), "a valid delayed retry minimum", Some(Most)),
        key_of("delayed-retry-type", RETRIES, "a valid delayed retry type", Some(Operators)),
        key_of("delivery-limit", Integer, "a valid delivery limit", Some(DeliveryLimit)),
        key_of("expires", From(1), "a valid queue expiry", Some(Least)),
        key_of("initial-cluster-size", From(0), "a valid cluster size", None),
        key_of("max-age", Age, "a valid max age", None),
        key_of("max-in-memory-bytes", From(0), "a valid maximum memory in bytes", Some(Least)),
        key_of("max-in-memory-length", From(0), "a valid maximum memory in bytes", Some(Least)),
        key_of("max-length", From(0), "a valid maximum length", Some(Least)),
        key_of("max-length-bytes", From(0), "a valid maximum length in bytes", Some(Least)),
        key_of("message-ttl", From(0), "a valid message TTL", Some(Least)),
        key_of("overflow", OVERFLOWS, "a valid overflow value", Some(Operators)),
        key_of("queue-leader-locator", Locator, "a valid queue leader locator value", None),
        key_of("queue-master-locator", Locator, "a valid queue leader locator value", None),
        key_of("queue-mode", OneOf(&["default", "lazy"]), "a valid queue-mode value", None),
        key_of("queue-version", Between(1, 2), "a valid queue version", Some(Operators)),
        key_of("stream-filter-size-bytes", Between(16, 255), "a valid filter size. Valid range is 16-255", None),
        key_of("stream-max-segment-size-bytes", Between(0, 3_000_000_000), "a valid segment size", None),
        key_of("target-group-size", From(1), "a valid target group size", Some(Most)),
    ]
};

/// Keys that RabbitMQ has and Warren does not yet.
const NOT_YET: &[&str] = &["member-placement-tag"];

pub(super) fn key(name: &str) -> Option<&'static Key> {
    KEYS.iter().find(|key| key.name == name)
}

impl Values {
    fn hold(self, value: &Value) -> bool {
        match self {
            Values::From(least) => value.as_i64().is_some_and(|n| n >= least),
            Values::Between(least, most) => value.as_i64().is_some_and(|n| (least..=most).contains(&n)),
            Values::Integer => value.as_i64().is_some(),
            Values::Text => value.is_string(),
            Values::OneOf(words) => value.as_str().is_some_and(|text| words.contains(&text)),
            Values::Locator => value.as_str().is_some_and(|text| locator(text).is_some()),
            Values::Age => value.as_str().is_some_and(is_age),
        }
    }
}

/// `7D`: a number above 0 and a unit.
fn is_age(text: &str) -> bool {
    let number = text.strip_suffix(['Y', 'M', 'D', 'h', 'm', 's']);
    number
        .is_some_and(|number| number.bytes().all(|b| b.is_ascii_digit()) && number.parse::<u64>().is_ok_and(|n| n > 0))
}

/// What is wrong with a definition, a line each; nothing where it can be set.
pub fn problems(kind: Kind, definition: &Value) -> Vec<String> {
    let Value::Object(definition) = definition else {
        return vec![format!("definition must be a dictionary: {}", term(definition))];
    };
    if definition.is_empty() {
        return vec!["no policy provided".to_owned()];
    }
    let mut problems = Vec::new();
    let mut unknown = Map::new();
    for (name, value) in definition {
        match key(name).filter(|key| kind == Kind::Policy || key.operator.is_some()) {
            Some(key) if key.values.hold(value) => {}
            Some(key) => problems.push(format!("{} is not {}", term(value), key.valid)),
            None if NOT_YET.contains(&name.as_str()) => {
                problems.push(format!("{name} is not available in this version of Warren"));
            }
            None => drop(unknown.insert(name.clone(), value.clone())),
        }
    }
    if !unknown.is_empty() {
        problems.push(format!("{} are not recognised policy settings", pairs(&unknown)));
    }
    problems.extend(crossed(definition));
    problems
}

/// What only two keys together make wrong.
fn crossed(definition: &Definition) -> Option<String> {
    let number = |name: &str| definition.get(name).and_then(Value::as_i64);
    let (min, max) = (number("delayed-retry-min")?, number("delayed-retry-max")?);
    (max < min).then(|| format!("delayed-retry-max ({max}) must not be less than delayed-retry-min ({min})"))
}

/// A value as RabbitMQ's error texts have it.
pub(crate) fn term(value: &Value) -> String {
    match value {
        Value::String(text) => format!("<<{text:?}>>"),
        Value::Array(items) => format!("[{}]", items.iter().map(term).collect::<Vec<_>>().join(",")),
        Value::Object(object) => pairs(object),
        Value::Null | Value::Bool(_) | Value::Number(_) => value.to_string(),
    }
}

fn pairs(object: &Map<String, Value>) -> String {
    let mut out = String::from("[");
    for (name, value) in object {
        let comma = if out.len() > 1 { "," } else { "" };
        let _ = write!(out, "{comma}{{<<{name:?}>>,{}}}", term(value));
    }
    out + "]"
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn every_key_has_values_that_are_right_and_wrong() {
        for (key, right, wrong) in [
            ("alternate-exchange", json!("x"), json!(1)),
            ("consumer-timeout", json!(0), json!(-1)),
            ("consumer-disconnected-timeout", json!(5), json!("5")),
            ("dead-letter-exchange", json!(""), json!(null)),
            ("dead-letter-routing-key", json!("k"), json!(5)),
            ("dead-letter-strategy", json!("at-least-once"), json!("exactly-once")),
            ("delayed-retry-max", json!(1), json!(0)),
            ("delayed-retry-min", json!(1), json!(1.5)),
            ("delayed-retry-type", json!("disabled"), json!("some")),
            ("delivery-limit", json!(-1), json!("none")),
            ("expires", json!(1), json!(0)),
            ("initial-cluster-size", json!(3), json!(-3)),
            ("max-age", json!("7D"), json!("0D")),
            ("max-in-memory-bytes", json!(0), json!(-1)),
            ("max-in-memory-length", json!(0), json!(-1)),
            ("max-length", json!(0), json!(-1)),
            ("max-length-bytes", json!(0), json!(true)),
            ("message-ttl", json!(0), json!("1s")),
            ("overflow", json!("reject-publish-dlx"), json!("drop-tail")),
            ("queue-leader-locator", json!("min-masters"), json!("here")),
            ("queue-master-locator", json!("random"), json!("there")),
            ("queue-mode", json!("lazy"), json!("busy")),
            ("queue-version", json!(2), json!(3)),
            ("stream-filter-size-bytes", json!(16), json!(15)),
            ("stream-max-segment-size-bytes", json!(5), json!(-5)),
            ("target-group-size", json!(1), json!(0)),
        ] {
            assert_eq!(problems(Kind::Policy, &json!({key: right})), Vec::<String>::new(), "{key}");
            assert_eq!(problems(Kind::Policy, &json!({key: wrong})).len(), 1, "{key}");
        }
        assert_eq!(KEYS.len(), 26, "every key is in the list above");
    }

    #[test]
    fn problems_are_told_in_rabbitmqs_words_each_on_its_own_line() {
        let told = |definition: Value| problems(Kind::Policy, &definition).join("\n");
        assert_eq!(
            told(json!({"foo": 1, "ha-mode": "all"})),
            "[{<<\"foo\">>,1},{<<\"ha-mode\">>,<<\"all\">>}] are not recognised policy settings"
        );
        assert_eq!(told(json!({"message-ttl": "x"})), "<<\"x\">> is not a valid message TTL");
        assert_eq!(told(json!({"max-length": -1, "expires": 0})).lines().count(), 2);
        assert_eq!(told(json!({})), "no policy provided");
        assert_eq!(told(json!([1, "a"])), "definition must be a dictionary: [1,<<\"a\">>]");
        assert!(told(json!({"delayed-retry-min": 10, "delayed-retry-max": 5})).contains("delayed-retry-max (5)"));
        assert_eq!(told(json!({"delayed-retry-min": 5, "delayed-retry-max": 5})), "");
        assert!(told(json!({"member-placement-tag": "ssd"})).contains("not available"));
    }

    #[test]
    fn operator_policies_have_fewer_keys() {
        assert_eq!(problems(Kind::Operator, &json!({"max-length": 5, "overflow": "drop-head"})), Vec::<String>::new());
        assert_eq!(
            problems(Kind::Operator, &json!({"dead-letter-exchange": "d"})),
            ["[{<<\"dead-letter-exchange\">>,<<\"d\">>}] are not recognised policy settings"]
        );
    }
}
