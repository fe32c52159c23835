//! What RabbitMQ's definitions may hold that Warren does not have in this version. Some of it is kept, so that an export has it
//! again, and has no effect; objects that would do something else than they say are left out.

use serde_json::{Map, Value};
use warren_metastore::records::ExchangeKind;

/// Keys of policies that are kept without effect.
pub(super) const KEPT_POLICY_KEYS: &[&str] =
    &["federation-upstream", "federation-upstream-set", "federation-upstream-pattern", "member-placement-tag"];

/// Components of parameters that are kept without effect, and what they belong to.
const KEPT_COMPONENTS: &[(&str, &str)] = &[
    ("shovel", "shovels"),
    ("federation-upstream", "federation"),
    ("federation-upstream-set", "federation"),
    ("federation", "federation"),
];

/// What a component that is kept without effect belongs to.
pub(super) fn kept_component(component: &str) -> Option<&'static str> {
    KEPT_COMPONENTS.iter().find(|(known, _)| *known == component).map(|(_, feature)| *feature)
}

/// Takes the keys of mirrored queues, which no version has any more, out of a policy's definition.
pub(super) fn take_mirroring(definition: &mut Map<String, Value>) -> Vec<String> {
    let keys: Vec<String> = definition.keys().filter(|key| key.starts_with("ha-")).cloned().collect();
    definition.retain(|key, _| !key.starts_with("ha-"));
    keys
}

/// Types of exchanges that RabbitMQ and its plugins have.
const EXCHANGE_TYPES: &[&str] = &[
    "x-consistent-hash",
    "x-delayed-message",
    "x-federation-upstream",
    "x-jms-topic",
    "x-local-random",
    "x-modulus-hash",
    "x-random",
    "x-recent-history",
    "x-event",
];

/// Whether the exchange is of a type that RabbitMQ has and Warren does not.
pub(super) fn is_foreign_exchange(kind: &ExchangeKind) -> bool {
    matches!(kind, ExchangeKind::Other(name) if EXCHANGE_TYPES.contains(&&**name))
}

/// The name of a queue type, by which definitions of some versions name its module.
pub(super) fn queue_type(name: &str) -> &str {
    match name {
        "rabbit_classic_queue" => "classic",
        "rabbit_quorum_queue" => "quorum",
        "rabbit_stream_queue" => "stream",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn keys_of_mirrored_queues_are_taken_out() {
        let Value::Object(mut definition) = json!({"ha-mode": "all", "ha-sync-mode": "automatic", "max-length": 5})
        else {
            unreachable!()
        };
        assert_eq!(take_mirroring(&mut definition), ["ha-mode", "ha-sync-mode"]);
        assert_eq!(definition.keys().collect::<Vec<_>>(), ["max-length"]);
    }
}
