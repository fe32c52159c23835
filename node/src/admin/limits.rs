//! Limits of virtual hosts and of users.

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::definitions::export::limits;
use warren_broker::operations::policy::{LIMITS, SetError, VHOST_LIMITS};
use warren_metastore::records::{User, Vhost};

use super::policies::document;
use super::protocol::{Request, Row};
use super::{Answer, Outcome, done, row, unreadable, users, vhosts};

/// `set_vhost_limits`.
pub async fn set_of_vhost(broker: &Broker, request: &Request) -> Outcome {
    let value = document(request, "definition")?;
    broker.set_parameter(&request.vhost, VHOST_LIMITS, LIMITS, value).await?;
    done()
}

/// `clear_vhost_limits`. To clear none is no error.
pub async fn clear_of_vhost(broker: &Broker, request: &Request) -> Outcome {
    match broker.clear_parameter(&request.vhost, VHOST_LIMITS, LIMITS).await {
        Ok(()) | Err(SetError::NotFound) => done(),
        Err(error) => Err(error.into()),
    }
}

/// `list_vhost_limits`: of one, or of all that have any.
pub fn list_of_vhosts(broker: &Broker, request: &Request) -> Outcome {
    let of = |vhost: &Vhost| {
        limits_row(
            ("vhost", &vhost.name),
            &[("max-connections", vhost.max_connections), ("max-queues", vhost.max_queues)],
        )
    };
    match request.args.get("of").and_then(Value::as_str) {
        Some(name) => {
            let vhost = vhosts::find(broker, name)?;
            Ok(Answer::Rows(of(&vhost).into_iter().collect()))
        }
        None => {
            let vhosts = Vhost::list(&broker.metadata().tree()).map_err(unreadable)?;
            Ok(Answer::Rows(vhosts.iter().filter_map(|vhost| of(vhost)).collect()))
        }
    }
}

/// `set_user_limits`.
pub async fn set_of_user(broker: &Broker, request: &Request) -> Outcome {
    let value = document(request, "definition")?;
    broker.set_user_limits(request.text("user"), &value).await?;
    done()
}

/// `clear_user_limits`.
pub async fn clear_of_user(broker: &Broker, request: &Request) -> Outcome {
    broker.clear_user_limits(request.text("user"), request.text("limit")).await?;
    done()
}

/// `list_user_limits`: of one, or of all that have any.
pub fn list_of_users(broker: &Broker, request: &Request) -> Outcome {
    let of = |user: &User| {
        limits_row(
            ("user", &user.name),
            &[("max-connections", user.max_connections), ("max-channels", user.max_channels)],
        )
    };
    match request.args.get("of").and_then(Value::as_str) {
        Some(name) => {
            let user = users::find(broker, name)?;
            Ok(Answer::Rows(of(&user).into_iter().collect()))
        }
        None => {
            let users = User::list(&broker.metadata().tree()).map_err(unreadable)?;
            Ok(Answer::Rows(users.iter().filter_map(|user| of(user)).collect()))
        }
    }
}

/// Limits as a text, which is what scripts take from rabbitmqctl; none where none are set.
fn limits_row((what, name): (&str, &str), all: &[(&str, Option<i64>)]) -> Option<Row> {
    let limits = limits(all);
    let text = Value::Object(limits.clone()).to_string();
    (!limits.is_empty()).then(|| row([(what, json!(name)), ("limits", json!(text))]))
}
