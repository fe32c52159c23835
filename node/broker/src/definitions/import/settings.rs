//! Virtual hosts, policies and parameters.

use serde_json::Value;
use warren_metastore::records::{self, GlobalParameter, OperatorPolicy, Unknown};
use warren_metastore::tree::MetaError;

use super::{Made, Run, Why, is_nothing, lines, name};
use crate::definitions::document::{self, tags};
use crate::definitions::unsupported::{KEPT_POLICY_KEYS, kept_component, queue_type, take_mirroring};
use crate::metadata::WriteError;
use crate::operations::policy::{
    LIMITS, OPERATOR_POLICY, POLICY, PolicySpec, VHOST_LIMITS, checked_except, operator_policy,
};
use crate::policy::Kind;

/// The cluster's own id: that of another cluster means nothing here.
const CLUSTER_ID: &str = "internal_cluster_id";
/// A record that others keep changing is read again this often.
const ATTEMPTS: usize = 10;

impl Run<'_> {
    pub(super) async fn vhost(&self, of: &document::Vhost) -> Result<(), Why> {
        name(&of.name)?;
        let metadata = &self.broker.metadata;
        let text = |key: &str| of.metadata.get(key).and_then(Value::as_str).map(str::to_owned);
        let flag = |key: &str| of.metadata.get(key).and_then(Value::as_bool);
        let mut attempts = 0;
        loop {
            attempts += 1;
            let existing = metadata.vhost(&of.name);
            let mut vhost =
                existing.as_ref().map_or_else(|| records::Vhost::named(&of.name), |stored| stored.record.clone());
            if let Some(description) = of.description.clone().or_else(|| text("description")) {
                vhost.description = description;
            }
            let given = if of.tags.is_null() { of.metadata.get("tags").unwrap_or(&Value::Null) } else { &of.tags };
            if !given.is_null() && *given != "undefined" {
                vhost.tags = tags(given)?;
            }
            let kind = of.default_queue_type.clone().or_else(|| text("default_queue_type"));
            match kind.as_deref().map(queue_type) {
                None | Some("" | "undefined" | "null") => {}
                Some(kind @ ("classic" | "quorum")) => vhost.default_queue_type = Some(kind.to_owned()),
                Some("stream") => self.notice(format!(
                    "virtual host '{}': its default queue type is left out: streams are not available in this version",
                    of.name
                )),
                Some(other) => return Err(format!("'{other}' is not a queue type").into()),
            }
            if let Some(protected) = of.protected_from_deletion.or_else(|| flag("protected_from_deletion")) {
                vhost.protected_from_deletion = protected;
            }
            if let Some(tracing) = of.tracing.or_else(|| flag("tracing")) {
                vhost.tracing = tracing;
            }
            let write = match &existing {
                Some(stored) if stored.record == vhost => break,
                Some(stored) => vhost.update(stored.mod_revision),
                None => {
                    self.check_vhost_limit()?;
                    vhost.create(None)
                }
            };
            match metadata.write(write).await {
                Ok(_) => break,
                Err(WriteError::Refused(MetaError::MismatchingNode { .. })) if attempts < ATTEMPTS => {}
                Err(error) => return Err(error.into()),
            }
        }
        if !is_nothing(&of.limits) {
            self.broker.set_parameter(&of.name, VHOST_LIMITS, LIMITS, of.limits.clone()).await?;
        }
        Ok(())
    }

    fn check_vhost_limit(&self) -> Result<(), String> {
        match self.broker.config.limits.vhosts {
            Some(limit) if self.broker.metadata.projections().load().vhosts().count() >= limit => {
                Err(format!("vhost limit of {limit} is reached"))
            }
            _ => Ok(()),
        }
    }

    pub(super) fn global_parameter(&self, of: &document::GlobalParameter) -> Made {
        name(&of.name)?;
        if of.name == CLUSTER_ID {
            return Ok(None);
        }
        if of.name == "cluster_name" && !of.value.is_string() {
            return Err("its value is not a text".to_owned());
        }
        let bytes = of.name.len() + of.value.to_string().len();
        Ok(Some((GlobalParameter::set(&of.name, of.value.clone()), bytes)))
    }

    pub(super) fn policy(&self, of: &document::Policy) -> Made {
        let what = format!("policy '{}' in virtual host '{}'", of.name, of.vhost);
        let mut definition = match &of.definition {
            Value::Object(definition) => definition.clone(),
            other => return Err(format!("its definition {other} is not an object")),
        };
        let mirroring = take_mirroring(&mut definition);
        if !mirroring.is_empty() {
            let mirroring = mirroring.join(", ");
            if definition.is_empty() {
                self.notice(format!(
                    "{what} is left out: it sets {mirroring} alone, and there are no mirrored queues any more"
                ));
                return Ok(None);
            }
            self.notice(format!("{what} is imported without {mirroring}: there are no mirrored queues any more"));
        }
        let idle: Vec<&str> = KEPT_POLICY_KEYS.iter().copied().filter(|key| definition.contains_key(*key)).collect();
        if !idle.is_empty() {
            let idle = idle.join(", ");
            self.notice(format!("{what} is imported, but {idle} has no effect: that is not available in this version"));
        }
        let spec = PolicySpec {
            vhost: of.vhost.clone(),
            name: of.name.clone(),
            pattern: of.pattern.clone(),
            apply_to: of.apply_to.clone().unwrap_or_else(|| "all".to_owned()),
            priority: priority(&of.priority)?,
            definition: Value::Object(definition),
        };
        let policy = checked_except(Kind::Policy, spec, KEPT_POLICY_KEYS).map_err(|error| lines(&error))?;
        let bytes = policy.pattern.len() + Value::Object(policy.definition.clone()).to_string().len() + 100;
        Ok(Some((policy.set(), bytes)))
    }

    pub(super) fn parameter(&self, of: &document::Parameter) -> Made {
        name(&of.name)?;
        let bytes = of.value.to_string().len() + of.name.len() + of.vhost.len();
        match of.component.as_str() {
            OPERATOR_POLICY => {
                let spec = operator_policy(&of.vhost, &of.name, &of.value).map_err(|error| lines(&error))?;
                let policy = checked_except(Kind::Operator, spec, KEPT_POLICY_KEYS).map_err(|error| lines(&error))?;
                Ok(Some((OperatorPolicy(policy).set(), bytes)))
            }
            POLICY => Err("policies have a place of their own in definitions".to_owned()),
            component => {
                let feature = kept_component(component).ok_or_else(|| format!("component {component} not found"))?;
                self.notice(format!(
                    "parameter '{}' of component '{component}' in virtual host '{}' is imported, but has no effect: {feature} \
                     {} not available in this version",
                    of.name,
                    of.vhost,
                    if feature.ends_with('s') { "are" } else { "is" },
                ));
                let parameter = records::Parameter {
                    vhost: of.vhost.as_str().into(),
                    component: component.into(),
                    name: of.name.as_str().into(),
                    value: of.value.clone(),
                    unknown: Unknown::default(),
                };
                Ok(Some((parameter.set(), bytes)))
            }
        }
    }
}

fn priority(value: &Value) -> Result<i64, String> {
    match value {
        Value::Null => Ok(0),
        other => other.as_i64().ok_or_else(|| format!("its priority {other} is not a number")),
    }
}
