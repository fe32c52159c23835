//! Runtime parameters of virtual hosts and of the cluster.

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::definitions::export::IMPORTED_HASH;
use warren_broker::operations::policy::OPERATOR_POLICY;
use warren_metastore::records::{GlobalParameter, OperatorPolicy, Parameter};

use super::policies::document;
use super::protocol::Request;
use super::{Answer, Outcome, done, row, unreadable, vhosts};

/// `set_parameter`.
pub async fn set(broker: &Broker, request: &Request) -> Outcome {
    let value = document(request, "value")?;
    broker.set_parameter(&request.vhost, request.text("component"), request.text("name"), value).await?;
    done()
}

/// `clear_parameter`.
pub async fn clear(broker: &Broker, request: &Request) -> Outcome {
    broker.clear_parameter(&request.vhost, request.text("component"), request.text("name")).await?;
    done()
}

/// `list_parameters`: with operator policies, without policies, as rabbitmqctl does.
pub fn list(broker: &Broker, request: &Request) -> Outcome {
    vhosts::find(broker, &request.vhost)?;
    let tree = broker.metadata().tree();
    let mut parameters: Vec<(String, String, Value)> = Vec::new();
    for policy in OperatorPolicy::list(&tree, &request.vhost).map_err(unreadable)? {
        let value = json!({
            "pattern": policy.pattern,
            "apply-to": policy.apply_to.name(),
            "priority": policy.priority,
            "definition": policy.definition,
        });
        parameters.push((OPERATOR_POLICY.to_owned(), policy.name.to_string(), value));
    }
    for parameter in Parameter::list(&tree, &request.vhost).map_err(unreadable)? {
        parameters.push((parameter.component.to_string(), parameter.name.to_string(), parameter.record.value));
    }
    let rows = parameters.into_iter().map(|(component, name, value)| {
        row([("component", json!(component)), ("name", json!(name)), ("value", json!(value.to_string()))])
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `set_global_parameter`.
pub async fn set_global(broker: &Broker, request: &Request) -> Outcome {
    let value = document(request, "value")?;
    broker.set_global_parameter(request.text("name"), value).await?;
    done()
}

/// `clear_global_parameter`.
pub async fn clear_global(broker: &Broker, request: &Request) -> Outcome {
    broker.clear_global_parameter(request.text("name")).await?;
    done()
}

/// `list_global_parameters`.
pub fn list_global(broker: &Broker) -> Outcome {
    let parameters = GlobalParameter::list(&broker.metadata().tree()).map_err(unreadable)?;
    let rows = parameters
        .iter()
        .filter(|(name, _)| name != IMPORTED_HASH)
        .map(|(name, stored)| row([("name", json!(name)), ("value", json!(stored.value.to_string()))]));
    Ok(Answer::Rows(rows.collect()))
}
