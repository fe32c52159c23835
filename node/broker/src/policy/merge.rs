//! A policy and an operator policy as one.

use serde_json::Value;
use warren_metastore::projections::Applied;
use warren_metastore::records::Definition;

use super::keys::{Merge, key};

/// What the policy and the operator policy of a queue or exchange set together (`effective_policy_definition`).
pub fn merged(applied: &Applied) -> Definition {
    let mut definition = applied.definition().cloned().unwrap_or_default();
    for (name, operators) in applied.operator_definition().into_iter().flatten() {
        let value = match definition.get(name) {
            Some(policys) => both(name, policys, operators).clone(),
            None => operators.clone(),
        };
        definition.insert(name.clone(), value);
    }
    definition
}

/// Where both have the key. A value that is no number, from whatever binary it came, gives way to the operator's.
fn both<'v>(name: &str, policys: &'v Value, operators: &'v Value) -> &'v Value {
    let (Some(a), Some(b)) = (policys.as_i64(), operators.as_i64()) else { return operators };
    let policys_counts = match key(name).and_then(|key| key.operator) {
        Some(Merge::Least) => a < b,
        Some(Merge::Most) => a > b,
        Some(Merge::DeliveryLimit) => delivery_limit(a, b) == a,
        Some(Merge::Operators) | None => false,
    };
    if policys_counts { policys } else { operators }
}

/// The lower one; a negative one is no limit, and gives way to the other (spec: quorum-queues.md, section 6.8).
pub(super) fn delivery_limit(a: i64, b: i64) -> i64 {
    if a < 0 || b < 0 { a.max(b) } else { a.min(b) }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;
    use warren_metastore::records::{Policy, Stored};
    use warren_proto::ids::Reference;

    use super::*;

    fn applied(policy: Option<Value>, operator: Option<Value>) -> Applied {
        let stored = |definition: Value| {
            let Value::Object(definition) = definition else { panic!("a definition is an object") };
            let record = Policy { definition, ..Policy::default() };
            Arc::new(Stored { record, create_revision: Reference(1), mod_revision: Reference(1) })
        };
        Applied { policy: policy.map(stored), operator_policy: operator.map(stored) }
    }

    #[test]
    fn keys_of_one_side_stay_as_they_are() {
        assert!(merged(&applied(None, None)).is_empty());
        let definition = merged(&applied(
            Some(json!({"max-length": 5, "dead-letter-exchange": "d"})),
            Some(json!({"expires": 7, "delivery-limit": -1})),
        ));
        let expected = json!({"max-length": 5, "dead-letter-exchange": "d", "expires": 7, "delivery-limit": -1});
        assert_eq!(Value::Object(definition), expected);
        assert_eq!(Value::Object(merged(&applied(None, Some(json!({"expires": 7}))))), json!({"expires": 7}));
    }

    #[test]
    fn keys_of_both_sides_are_merged_by_their_rule() {
        let rows = [
            ("message-ttl", json!(5), json!(3), json!(3)),
            ("message-ttl", json!(3), json!(5), json!(3)),
            ("expires", json!(9), json!(8), json!(8)),
            ("max-length", json!(0), json!(8), json!(0)),
            ("max-length-bytes", json!(100), json!(8), json!(8)),
            ("max-in-memory-length", json!(1), json!(8), json!(1)),
            ("max-in-memory-bytes", json!(9), json!(8), json!(8)),
            ("delayed-retry-max", json!(9), json!(8), json!(8)),
            ("delayed-retry-min", json!(7), json!(8), json!(8)),
            ("delayed-retry-min", json!(9), json!(8), json!(9)),
            ("target-group-size", json!(3), json!(5), json!(5)),
            ("target-group-size", json!(7), json!(5), json!(7)),
            ("overflow", json!("drop-head"), json!("reject-publish"), json!("reject-publish")),
            ("delayed-retry-type", json!("all"), json!("failed"), json!("failed")),
            ("queue-version", json!(2), json!(1), json!(1)),
            ("delivery-limit", json!(5), json!(3), json!(3)),
            ("delivery-limit", json!(3), json!(5), json!(3)),
            ("delivery-limit", json!(-1), json!(5), json!(5)),
            ("delivery-limit", json!(5), json!(-1), json!(5)),
            ("delivery-limit", json!(-1), json!(-5), json!(-1)),
        ];
        for (key, policy, operator, expected) in rows {
            let definition = merged(&applied(Some(json!({key: policy})), Some(json!({key: operator}))));
            assert_eq!(definition[key], expected, "{key} {policy} {operator}");
        }
    }
}
