//! Which policies apply to which queues and exchanges.

use std::sync::Arc;

use serde_json::Value;

use super::permission::ResourcePattern;
use crate::records::{ApplyTo, Definition, OperatorPolicy, Policy, QueueKind, Stored};

const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// Keys that classic queues do not support. A policy with one of them does not apply to any.
const NOT_FOR_CLASSIC: &[&str] = &[
    "max-age",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
    "delivery-limit",
    "dead-letter-strategy",
    "max-in-memory-length",
    "max-in-memory-bytes",
    "target-group-size",
];
/// The same for quorum queues; keys that begin with `ha-` are unsupported too.
const NOT_FOR_QUORUM: &[&str] = &[
    "max-priority",
    "queue-mode",
    "queue-master-locator",
    "max-age",
    "stream-max-segment-size-bytes",
    "initial-cluster-size",
];

/// The policies and operator policies of a vhost, with their expressions compiled. Never changes: a change makes another.
#[derive(Clone, Debug, Default)]
pub struct Policies {
    policies: Vec<Arc<PolicyView>>,
    operators: Vec<Arc<PolicyView>>,
}

/// A policy and its expression.
#[derive(Debug)]
struct PolicyView {
    record: Arc<Stored<Policy>>,
    pattern: ResourcePattern,
    classic: bool,
    quorum: bool,
    exchanges: bool,
}

/// What applies to one queue or exchange: at most one of each.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Applied {
    /// The policy.
    pub policy: Option<Arc<Stored<Policy>>>,
    /// The operator policy.
    pub operator_policy: Option<Arc<Stored<Policy>>>,
}

impl Applied {
    /// What the policy sets.
    pub fn definition(&self) -> Option<&Definition> {
        self.policy.as_ref().map(|policy| &policy.definition)
    }

    /// What the operator policy sets.
    pub fn operator_definition(&self) -> Option<&Definition> {
        self.operator_policy.as_ref().map(|policy| &policy.definition)
    }
}

impl PolicyView {
    fn new(record: Stored<Policy>) -> Self {
        let has = |keys: &[&str]| record.definition.keys().any(|key| keys.contains(&key.as_str()));
        let mirrors = record.definition.keys().any(|key| key.starts_with("ha-"));
        let (classic, quorum, exchanges) = match record.apply_to {
            ApplyTo::All => (true, true, true),
            ApplyTo::Queues => (true, true, false),
            ApplyTo::ClassicQueues => (true, false, false),
            ApplyTo::QuorumQueues => (false, true, false),
            ApplyTo::Exchanges => (false, false, true),
            ApplyTo::Streams | ApplyTo::Qos0Queues | ApplyTo::Other(_) => (false, false, false),
        };
        PolicyView {
            // Unlike in permissions, an empty expression is one that matches everything.
            pattern: match record.pattern.as_str() {
                "" => ResourcePattern::Everything,
                pattern => ResourcePattern::new(pattern),
            },
            classic: classic && !has(NOT_FOR_CLASSIC),
            quorum: quorum && !has(NOT_FOR_QUORUM) && !mirrors,
            exchanges,
            record: Arc::new(record),
        }
    }

    fn is_for(&self, kind: QueueKind) -> bool {
        match kind {
            QueueKind::Classic => self.classic,
            QueueKind::Quorum => self.quorum,
        }
    }
}

impl Policies {
    /// What applies to a queue: of the policies that match its name and type, and that its type supports as a whole, the
    /// one of the highest priority; of several such, the first by name.
    pub fn of_queue(&self, name: &str, kind: QueueKind) -> Applied {
        let find = |all| first(all, name, |view| view.is_for(kind));
        Applied { policy: find(&self.policies), operator_policy: find(&self.operators) }
    }

    /// What applies to an exchange.
    pub fn of_exchange(&self, name: &str) -> Applied {
        let find = |all| first(all, name, |view| view.exchanges);
        Applied { policy: find(&self.policies), operator_policy: find(&self.operators) }
    }

    /// The alternate exchange that a policy gives to an exchange.
    pub(super) fn alternate_exchange(&self, name: &str) -> Option<Arc<str>> {
        let policy = first(&self.policies, name, |view| view.exchanges)?;
        policy.definition.get(ALTERNATE_EXCHANGE).and_then(Value::as_str).map(Arc::from)
    }

    /// Whether any exchange gets its alternate exchange, or none, by a policy.
    pub(super) fn route(&self) -> bool {
        self.policies.iter().any(|view| view.exchanges && view.record.definition.contains_key(ALTERNATE_EXCHANGE))
    }

    /// Whether there are none of either kind.
    pub fn is_empty(&self) -> bool {
        self.policies.is_empty() && self.operators.is_empty()
    }

    /// These with a policy set, or removed where there is none any more.
    pub(super) fn with_policy(&self, name: &str, policy: Option<Stored<Policy>>) -> Self {
        Policies { policies: with(&self.policies, name, policy), operators: self.operators.clone() }
    }

    /// These with an operator policy set, or removed where there is none any more.
    pub(super) fn with_operator_policy(&self, name: &str, policy: Option<Stored<OperatorPolicy>>) -> Self {
        let policy = policy.map(|stored| Stored {
            record: stored.record.0,
            create_revision: stored.create_revision,
            mod_revision: stored.mod_revision,
        });
        Policies { policies: self.policies.clone(), operators: with(&self.operators, name, policy) }
    }
}

fn first(all: &[Arc<PolicyView>], name: &str, fits: impl Fn(&PolicyView) -> bool) -> Option<Arc<Stored<Policy>>> {
    all.iter().find(|view| fits(view) && view.pattern.matches(name)).map(|view| Arc::clone(&view.record))
}

/// The list with the policy of this name replaced: highest priority first, equal ones by name.
fn with(all: &[Arc<PolicyView>], name: &str, policy: Option<Stored<Policy>>) -> Vec<Arc<PolicyView>> {
    let mut list: Vec<_> = all.iter().filter(|view| &*view.record.name != name).cloned().collect();
    if let Some(policy) = policy {
        let view = Arc::new(PolicyView::new(policy));
        let rank = |view: &PolicyView| (std::cmp::Reverse(view.record.priority), view.record.name.clone());
        let place = list.partition_point(|other| rank(other) < rank(&view));
        list.insert(place, view);
    }
    list
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use warren_proto::ids::Reference;

    use super::*;

    fn policy(name: &str, pattern: &str, apply_to: &str, priority: i64, definition: Value) -> Policy {
        let Value::Object(definition) = definition else { panic!("a definition is an object") };
        Policy {
            vhost: "/".into(),
            name: name.into(),
            pattern: pattern.into(),
            apply_to: ApplyTo::from_name(apply_to),
            priority,
            definition,
            ..Policy::default()
        }
    }

    fn set(policies: &[Policy]) -> Policies {
        policies.iter().fold(Policies::default(), |all, policy| {
            let (create_revision, mod_revision) = (Reference(1), Reference(1));
            all.with_policy(&policy.name, Some(Stored { record: policy.clone(), create_revision, mod_revision }))
        })
    }

    fn name(applied: Applied) -> Option<String> {
        applied.policy.map(|policy| policy.name.to_string())
    }

    fn quorum(policies: &Policies, queue: &str) -> Option<String> {
        name(policies.of_queue(queue, QueueKind::Quorum))
    }

    #[test]
    fn the_highest_priority_wins_and_ties_go_by_name() {
        let length = || json!({"max-length": 1});
        let all = set(&[
            policy("b", "^a", "all", 1, length()),
            policy("low", ".*", "all", -3, length()),
            policy("a", "^a", "all", 1, length()),
            policy("high", "^ab", "all", 2, length()),
        ]);
        assert_eq!(quorum(&all, "abc").as_deref(), Some("high"));
        assert_eq!(quorum(&all, "ac").as_deref(), Some("a"));
        assert_eq!(quorum(&all, "x").as_deref(), Some("low"));
        let all = all.with_policy("a", None);
        assert_eq!(quorum(&all, "ac").as_deref(), Some("b"));
        assert_eq!(quorum(&all.with_policy("low", None), "x"), None);
    }

    #[test]
    fn patterns_match_anywhere_look_ahead_included_and_the_empty_one_everywhere() {
        let one = |pattern: &str| set(&[policy("p", pattern, "all", 0, json!({"max-length": 1}))]);
        for (pattern, queue, matches) in [
            ("b", "abc", true),
            ("^b", "abc", false),
            ("", "abc", true),
            ("", "", true),
            ("^(?!amq\\.)", "amq.gen-1", false),
            ("^(?!amq\\.)", "orders", true),
            ("(", "(", false),
        ] {
            assert_eq!(quorum(&one(pattern), queue).is_some(), matches, "{pattern} {queue}");
        }
        // Beyond its budget of steps a pattern matches nothing.
        assert_eq!(quorum(&one("^(a|a|aa)+(?=b)$"), &"a".repeat(200)), None);
    }

    #[test]
    fn a_policy_applies_to_what_it_is_meant_for() {
        let kinds = |apply_to: &str| {
            let all = set(&[policy("p", ".*", apply_to, 0, json!({"max-length": 1}))]);
            let queue = |kind| all.of_queue("q", kind).policy.is_some();
            (queue(QueueKind::Classic), queue(QueueKind::Quorum), all.of_exchange("q").policy.is_some())
        };
        for (apply_to, expected) in [
            ("all", (true, true, true)),
            ("queues", (true, true, false)),
            ("classic_queues", (true, false, false)),
            ("quorum_queues", (false, true, false)),
            ("streams", (false, false, false)),
            ("qos0_queues", (false, false, false)),
            ("exchanges", (false, false, true)),
            ("of_the_future", (false, false, false)),
        ] {
            assert_eq!(kinds(apply_to), expected, "{apply_to}");
        }
    }

    #[test]
    fn one_unsupported_key_excludes_the_whole_policy_and_the_next_one_applies() {
        for key in NOT_FOR_QUORUM.iter().copied().chain(["ha-mode"]) {
            let mut wide = json!({"message-ttl": 5});
            wide[key] = json!(1);
            let all = set(&[
                policy("wide", ".*", "all", 9, wide),
                policy("narrow", ".*", "all", 0, json!({"message-ttl": 7})),
            ]);
            assert_eq!(quorum(&all, "q").as_deref(), Some("narrow"), "{key}");
        }
        let all = set(&[
            policy("quorum", ".*", "queues", 9, json!({"message-ttl": 5, "delivery-limit": 3})),
            policy("any", ".*", "queues", 0, json!({"message-ttl": 7})),
        ]);
        assert_eq!(quorum(&all, "q").as_deref(), Some("quorum"));
        assert_eq!(name(all.of_queue("q", QueueKind::Classic)).as_deref(), Some("any"));
    }
}
