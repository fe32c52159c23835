//! Setting and clearing policies and runtime parameters (spec: broker-model.md, section 5).

use serde_json::{Map, Value};
use warren_metastore::projections::ResourcePattern;
use warren_metastore::records::{
    ApplyTo, Definition, GlobalParameter, OperatorPolicy, Parameter, Policy, QueueKind, Unknown, Vhost,
};
use warren_metastore::tree::{AbortCode, MetaError};

use crate::feature_flags::Feature;
use crate::metadata::WriteError;
use crate::node::Broker;
use crate::policy::{Kind, problems, term};

/// Octets of a name, at most.
const MAX_NAME: usize = 255;
/// Octets of a definition or value as JSON, at most.
const MAX_VALUE: usize = 64 * 1024;
/// A record that others keep changing is read again this often.
const ATTEMPTS: usize = 10;

/// The component of operator policies among the runtime parameters.
pub const OPERATOR_POLICY: &str = "operator_policy";
/// The component of policies among the runtime parameters.
pub const POLICY: &str = "policy";
/// The component of a vhost's limits among the runtime parameters.
const VHOST_LIMITS: &str = "vhost-limits";
/// The name that its one parameter has.
const LIMITS: &str = "limits";

/// Keys of policies that classic queues act upon in this version; all others wait for it.
const CLASSIC: &[&str] = &["queue-leader-locator", "queue-master-locator", "queue-mode", "queue-version"];

/// A policy to be, as it was asked for.
#[derive(Debug, Clone)]
pub struct PolicySpec {
    /// The vhost.
    pub vhost: String,
    /// The name.
    pub name: String,
    /// A regular expression on names.
    pub pattern: String,
    /// What it is meant for, by its name.
    pub apply_to: String,
    /// See [`Policy::priority`].
    pub priority: i64,
    /// What it sets: an object.
    pub definition: Value,
}

/// Why a policy or parameter was not set or cleared.
#[derive(Debug, Clone, thiserror::Error)]
pub enum SetError {
    /// It cannot be set so: why, a line each.
    #[error("Validation failed\n\n{}", .0.join("\n"))]
    Invalid(Vec<String>),
    /// It is set in another way.
    #[error("{0}")]
    OtherWay(&'static str),
    /// The vhost does not exist.
    #[error("Virtual host '{0}' does not exist")]
    NoSuchVhost(String),
    /// There is none of that name.
    #[error("Parameter does not exist")]
    NotFound,
    /// The metadata did not take it.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl SetError {
    fn of_write(error: WriteError, vhost: &str) -> Self {
        match error {
            WriteError::Refused(MetaError::Aborted { code: AbortCode::NoSuchVhost }) => {
                SetError::NoSuchVhost(vhost.to_owned())
            }
            other => SetError::Write(other),
        }
    }
}

impl Broker {
    /// Sets a policy or an operator policy, whatever was there under its name.
    pub async fn set_policy(&self, kind: Kind, spec: PolicySpec) -> Result<(), SetError> {
        let policy = checked(kind, spec)?;
        self.must_exist(&policy.vhost)?;
        if policy.definition.get("queue-master-locator").is_some() {
            self.flags.permits(Feature::QueueMasterLocator).map_err(|why| SetError::Invalid(vec![why]))?;
        }
        let vhost = policy.vhost.clone();
        let write = match kind {
            Kind::Policy => policy.set(),
            Kind::Operator => OperatorPolicy(policy.clone()).set(),
        };
        self.metadata.write(write).await.map_err(|error| SetError::of_write(error, &vhost))?;
        tracing::info!(
            ?kind, policy = %policy.name, %vhost, pattern = policy.pattern, apply_to = policy.apply_to.name(), "a policy was set"
        );
        self.warn_of_classic_queues(&policy);
        Ok(())
    }

    /// Removes a policy or an operator policy.
    pub async fn clear_policy(&self, kind: Kind, vhost: &str, name: &str) -> Result<(), SetError> {
        self.must_exist(vhost)?;
        let tree = self.metadata.tree();
        let (there, write) = match kind {
            Kind::Policy => (Policy::get(&tree, vhost, name).map(|p| p.is_some()), Policy::clear(vhost, name)),
            Kind::Operator => {
                (OperatorPolicy::get(&tree, vhost, name).map(|p| p.is_some()), OperatorPolicy::clear(vhost, name))
            }
        };
        // One that cannot be read is there.
        if !there.unwrap_or(true) {
            return Err(SetError::NotFound);
        }
        self.metadata.write(write).await?;
        tracing::info!(?kind, policy = name, vhost, "a policy was cleared");
        Ok(())
    }

    /// Sets a runtime parameter. The components are those of parts that Warren has.
    pub async fn set_parameter(&self, vhost: &str, component: &str, name: &str, value: Value) -> Result<(), SetError> {
        match component {
            POLICY => Err(SetError::OtherWay("policies may not be set using this method")),
            OPERATOR_POLICY => self.set_policy(Kind::Operator, operator_policy(vhost, name, &value)?).await,
            VHOST_LIMITS => {
                let max_queues = queue_limit(name, &value)?;
                self.write_limits(vhost, Some(value), max_queues).await
            }
            other => Err(SetError::Invalid(vec![format!("component {other} not found")])),
        }
    }

    /// Removes a runtime parameter.
    pub async fn clear_parameter(&self, vhost: &str, component: &str, name: &str) -> Result<(), SetError> {
        self.must_exist(vhost)?;
        match component {
            POLICY => return Err(SetError::OtherWay("policies may not be cleared using this method")),
            OPERATOR_POLICY => return self.clear_policy(Kind::Operator, vhost, name).await,
            _ => {}
        }
        let there = Parameter::get(&self.metadata.tree(), vhost, component, name).map(|p| p.is_some());
        if !there.unwrap_or(true) {
            return Err(SetError::NotFound);
        }
        if component == VHOST_LIMITS {
            return self.write_limits(vhost, None, None).await;
        }
        self.metadata.write(Parameter::clear(vhost, component, name)).await?;
        Ok(())
    }

    /// Sets a parameter of the cluster.
    pub async fn set_global_parameter(&self, name: &str, value: Value) -> Result<(), SetError> {
        let mut faults = Vec::new();
        faults.extend(name_fault(name));
        faults.extend(value_fault("value", &value));
        if name == "cluster_name" && !value.is_string() {
            faults.push(format!("{name} should be binary, actually was {}", term(&value)));
        }
        if !faults.is_empty() {
            return Err(SetError::Invalid(faults));
        }
        self.metadata.write(GlobalParameter::set(name, value)).await?;
        Ok(())
    }

    /// Removes a parameter of the cluster.
    pub async fn clear_global_parameter(&self, name: &str) -> Result<(), SetError> {
        if !GlobalParameter::get(&self.metadata.tree(), name).map(|p| p.is_some()).unwrap_or(true) {
            return Err(SetError::NotFound);
        }
        self.metadata.write(GlobalParameter::clear(name)).await?;
        Ok(())
    }

    fn must_exist(&self, vhost: &str) -> Result<(), SetError> {
        match self.metadata.vhost(vhost) {
            Some(_) => Ok(()),
            None => Err(SetError::NoSuchVhost(vhost.to_owned())),
        }
    }

    /// The limits stand in the vhost's own record, where they are looked up, and as the parameter that lists show.
    async fn write_limits(&self, name: &str, value: Option<Value>, max_queues: Option<i64>) -> Result<(), SetError> {
        let parameter = match value {
            Some(value) => Parameter {
                vhost: name.into(),
                component: VHOST_LIMITS.into(),
                name: LIMITS.into(),
                value,
                unknown: Unknown::default(),
            }
            .set(),
            None => Parameter::clear(name, VHOST_LIMITS, LIMITS),
        };
        let mut attempts = 0;
        loop {
            attempts += 1;
            let stored = self.metadata.vhost(name).ok_or_else(|| SetError::NoSuchVhost(name.to_owned()))?;
            let vhost = Vhost { max_queues, ..stored.record.clone() };
            match self.metadata.write(vhost.update(stored.mod_revision).and(parameter.clone())).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Refused(MetaError::MismatchingNode { .. })) if attempts < ATTEMPTS => {}
                Err(error) => return Err(SetError::of_write(error, name)),
            }
        }
    }

    /// Classic queues do not act on policies yet, which nobody should find out by a full disk.
    fn warn_of_classic_queues(&self, policy: &Policy) {
        let view = self.metadata.projections().load();
        let without_effect = policy.definition.keys().filter(|key| !CLASSIC.contains(&key.as_str()));
        let keys: Vec<&String> = without_effect.collect();
        let Some(vhost) = view.vhost(&policy.vhost).filter(|_| !keys.is_empty()) else { return };
        let applies = |name: &str| {
            let applied = vhost.policies().of_queue(name, QueueKind::Classic);
            let mut both = applied.policy.iter().chain(&applied.operator_policy);
            both.any(|applied| applied.record == *policy)
        };
        let queues = vhost.queues().filter(|q| q.kind == QueueKind::Classic && applies(&q.name)).count();
        if queues > 0 {
            tracing::warn!(
                policy = %policy.name, vhost = %policy.vhost, queues, ?keys,
                "the policy applies to classic queues, which do not act on these keys in this version of Warren"
            );
        }
    }
}

/// The policy that was asked for, or everything that is wrong with it.
fn checked(kind: Kind, spec: PolicySpec) -> Result<Policy, SetError> {
    let mut faults = Vec::new();
    faults.extend(name_fault(&spec.name));
    if let Some(fault) = ResourcePattern::fault(&spec.pattern) {
        faults.push(format!("pattern should be regular expression but is invalid: {fault}"));
    }
    let apply_to = ApplyTo::from_name(&spec.apply_to);
    match (&apply_to, kind) {
        (ApplyTo::Other(name), _) => faults.push(format!(
            "apply-to '{name}' unrecognised; should be one of: 'queues', 'classic_queues', 'quorum_queues', 'streams', \
             'qos0_queues', 'exchanges', or 'all'"
        )),
        (ApplyTo::Exchanges, Kind::Operator) => {
            faults.push("apply-to 'exchanges' unrecognised; operator policies apply to queues".to_owned());
        }
        _ => {}
    }
    faults.extend(problems(kind, &spec.definition));
    faults.extend(value_fault("definition", &spec.definition));
    let definition = match spec.definition {
        Value::Object(definition) if faults.is_empty() => definition,
        _ => return Err(SetError::Invalid(faults)),
    };
    let (vhost, name) = (spec.vhost.into(), spec.name.into());
    let unknown = Unknown::default();
    Ok(Policy { vhost, name, pattern: spec.pattern, apply_to, priority: spec.priority, definition, unknown })
}

fn name_fault(name: &str) -> Option<String> {
    (name.is_empty() || name.len() > MAX_NAME).then(|| format!("a name has 1 to {MAX_NAME} bytes"))
}

fn value_fault(what: &str, value: &Value) -> Option<String> {
    (value.to_string().len() > MAX_VALUE).then(|| format!("{what} is longer than {MAX_VALUE} bytes"))
}

/// An operator policy written as a parameter.
fn operator_policy(vhost: &str, name: &str, value: &Value) -> Result<PolicySpec, SetError> {
    let Value::Object(fields) = value else {
        return Err(SetError::Invalid(vec![format!("{name} not a list {}", term(value))]));
    };
    let mut faults = Vec::new();
    for key in ["pattern", "definition", "priority"].iter().filter(|key| !fields.contains_key(**key)) {
        faults.push(format!("Key \"{key}\" not found in {name}"));
    }
    faults.extend(unrecognised(name, fields, &["pattern", "definition", "priority", "apply-to"]));
    let mut text = |key: &str, default: &str| match fields.get(key) {
        None => default.to_owned(),
        Some(Value::String(text)) => text.clone(),
        Some(other) => {
            faults.push(format!("{key} should be a binary but was {}", term(other)));
            String::new()
        }
    };
    let (pattern, apply_to) = (text("pattern", ""), text("apply-to", "all"));
    let priority = fields.get("priority").unwrap_or(&Value::Null);
    if !priority.is_i64() && fields.contains_key("priority") {
        faults.push(format!("priority should be a number, actually was {}", term(priority)));
    }
    if !faults.is_empty() {
        return Err(SetError::Invalid(faults));
    }
    Ok(PolicySpec {
        vhost: vhost.to_owned(),
        name: name.to_owned(),
        pattern,
        apply_to,
        priority: priority.as_i64().unwrap_or_default(),
        definition: fields.get("definition").cloned().unwrap_or_default(),
    })
}

/// The limit on queues that a vhost's limits set.
fn queue_limit(name: &str, value: &Value) -> Result<Option<i64>, SetError> {
    let Value::Object(limits) = value else {
        return Err(SetError::Invalid(vec![format!("{name} not a list {}", term(value))]));
    };
    let mut faults = Vec::new();
    if name != LIMITS {
        faults.push(format!("the limits of a virtual host are called '{LIMITS}', not '{name}'"));
    }
    faults.extend(unrecognised(name, limits, &["max-connections", "max-queues"]));
    for (key, limit) in limits {
        match limit.as_i64() {
            None => faults.push(format!("{key} should be a number, actually was {}", term(limit))),
            Some(0..) if key == "max-connections" => {
                faults.push("max-connections is not available in this version of Warren".to_owned());
            }
            Some(_) => {}
        }
    }
    match faults.is_empty() {
        true => Ok(limits.get("max-queues").and_then(Value::as_i64)),
        false => Err(SetError::Invalid(faults)),
    }
}

fn unrecognised(name: &str, fields: &Definition, known: &[&str]) -> Option<String> {
    let others = fields.iter().filter(|(key, _)| !known.contains(&key.as_str()));
    let others: Map<String, Value> = others.map(|(key, value)| (key.clone(), value.clone())).collect();
    (!others.is_empty()).then(|| format!("Unrecognised terms {} in {name}", term(&Value::Object(others))))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec() -> PolicySpec {
        PolicySpec {
            vhost: "/".to_owned(),
            name: "p".to_owned(),
            pattern: "^a".to_owned(),
            apply_to: "queues".to_owned(),
            priority: 3,
            definition: json!({"max-length": 5}),
        }
    }

    fn faults(result: Result<Policy, SetError>) -> Vec<String> {
        match result {
            Err(SetError::Invalid(faults)) => faults,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn everything_that_is_wrong_is_told_at_once() {
        assert_eq!(checked(Kind::Policy, spec()).unwrap().apply_to, ApplyTo::Queues);
        let wrong = PolicySpec {
            pattern: "[".to_owned(),
            apply_to: "messages".to_owned(),
            definition: json!({"max-length": "x", "foo": true}),
            ..spec()
        };
        let faults = faults(checked(Kind::Policy, wrong));
        assert_eq!(faults.len(), 4, "{faults:?}");
        assert!(faults[0].starts_with("pattern should be regular expression but is invalid: "), "{faults:?}");
        assert!(faults[1].starts_with("apply-to 'messages' unrecognised"), "{faults:?}");
        let error = SetError::Invalid(vec!["a".to_owned(), "b".to_owned()]);
        assert_eq!(error.to_string(), "Validation failed\n\na\nb");
    }

    #[test]
    fn names_patterns_and_definitions_are_bounded() {
        assert_eq!(faults(checked(Kind::Policy, PolicySpec { name: "n".repeat(256), ..spec() })).len(), 1);
        assert_eq!(faults(checked(Kind::Policy, PolicySpec { pattern: "n".repeat(1025), ..spec() })).len(), 1);
        let definition = json!({"dead-letter-routing-key": "k".repeat(MAX_VALUE)});
        assert_eq!(faults(checked(Kind::Policy, PolicySpec { definition, ..spec() })).len(), 1);
        for pattern in ["", ".*", "^(?!amq\\.)"] {
            assert!(checked(Kind::Policy, PolicySpec { pattern: pattern.to_owned(), ..spec() }).is_ok(), "{pattern}");
        }
    }

    #[test]
    fn operator_policies_are_for_queues_and_may_be_written_as_parameters() {
        let exchanges = PolicySpec { apply_to: "exchanges".to_owned(), ..spec() };
        assert!(checked(Kind::Policy, exchanges.clone()).is_ok());
        assert_eq!(faults(checked(Kind::Operator, exchanges)).len(), 1);
        let value = json!({"pattern": "^a", "priority": 3, "definition": {"max-length": 5}});
        let read = operator_policy("/", "p", &value).unwrap();
        assert_eq!((read.pattern.as_str(), read.priority, read.apply_to.as_str()), ("^a", 3, "all"));
        for wrong in [json!([]), json!({}), json!({"pattern": 1, "priority": "x", "definition": {}, "foo": 1})] {
            assert!(operator_policy("/", "p", &wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn limits_of_a_vhost_are_numbers_and_known() {
        assert_eq!(queue_limit("limits", &json!({"max-queues": 5, "max-connections": -1})).unwrap(), Some(5));
        assert_eq!(queue_limit("limits", &json!({})).unwrap(), None);
        for (name, wrong) in [
            ("limits", json!({"max-queues": "5"})),
            ("limits", json!({"max-channels": 5})),
            ("limits", json!({"max-connections": 5})),
            ("limits", json!(5)),
            ("other", json!({"max-queues": 5})),
        ] {
            assert!(queue_limit(name, &wrong).is_err(), "{wrong}");
        }
    }
}
