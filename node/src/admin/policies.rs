//! Policies and operator policies.

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::operations::policy::{PolicySpec, SetError};
use warren_broker::policy::Kind;
use warren_metastore::records::{OperatorPolicy, Policy};

use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, done, no_user, no_vhost, row, unreadable, vhosts};

/// `set_policy`, `set_operator_policy`.
pub async fn set(broker: &Broker, request: &Request, kind: Kind) -> Outcome {
    let priority = match request.text("priority") {
        "" => 0,
        text => text.parse().map_err(|_| Refusal::new(Code::Invalid, format!("{text} priority must be a number")))?,
    };
    let apply_to = match request.text("apply-to") {
        "" => "all",
        name => name,
    };
    let spec = PolicySpec {
        vhost: request.vhost.clone(),
        name: request.text("name").to_owned(),
        pattern: request.text("pattern").to_owned(),
        apply_to: apply_to.to_owned(),
        priority,
        definition: document(request, "definition")?,
    };
    broker.set_policy(kind, spec).await?;
    done()
}

/// `clear_policy`, `clear_operator_policy`.
pub async fn clear(broker: &Broker, request: &Request, kind: Kind) -> Outcome {
    broker.clear_policy(kind, &request.vhost, request.text("name")).await?;
    done()
}

/// `list_policies`, `list_operator_policies`.
pub fn list(broker: &Broker, request: &Request, kind: Kind) -> Outcome {
    vhosts::find(broker, &request.vhost)?;
    let tree = broker.metadata().tree();
    let rows = match kind {
        Kind::Policy => {
            let policies = Policy::list(&tree, &request.vhost).map_err(unreadable)?;
            policies.iter().map(|policy| policy_row(policy)).collect()
        }
        Kind::Operator => {
            let policies = OperatorPolicy::list(&tree, &request.vhost).map_err(unreadable)?;
            policies.iter().map(|policy| policy_row(policy)).collect()
        }
    };
    Ok(Answer::Rows(rows))
}

fn policy_row(policy: &Policy) -> Row {
    row([
        ("vhost", json!(policy.vhost.as_ref())),
        ("name", json!(policy.name.as_ref())),
        ("pattern", json!(policy.pattern)),
        ("apply-to", json!(policy.apply_to.name())),
        // As a text, which is what scripts take from rabbitmqctl.
        ("definition", json!(Value::Object(policy.definition.clone()).to_string())),
        ("priority", json!(policy.priority)),
    ])
}

/// A JSON argument.
pub(super) fn document(request: &Request, name: &str) -> Result<Value, Refusal> {
    serde_json::from_str(request.text(name))
        .map_err(|error| Refusal::new(Code::Invalid, format!("Could not parse JSON document: {error}")))
}

impl From<SetError> for Refusal {
    fn from(error: SetError) -> Self {
        let text = error.to_string();
        match error {
            SetError::Invalid(_) | SetError::OtherWay(_) => Refusal::new(Code::Invalid, text),
            SetError::NoSuchVhost(name) => no_vhost(&name),
            SetError::NoSuchUser(name) => no_user(&name),
            SetError::NotFound => Refusal::new(Code::NotFound, text),
            SetError::Write(error) => error.into(),
        }
    }
}
