//! Topic permissions.

use serde_json::json;
use warren_broker::Broker;
use warren_metastore::projections::ResourcePattern;
use warren_metastore::records::{TopicPermission, Vhost};

use super::protocol::{Code, Refusal, Request};
use super::vhosts::must_exist;
use super::{Answer, Outcome, done, row, unreadable, users, vhosts};

/// `set_topic_permissions`. The exchange need not exist yet.
pub async fn set(broker: &Broker, request: &Request) -> Outcome {
    for name in ["write", "read"] {
        let expression = request.text(name);
        if let Some(fault) = ResourcePattern::fault(expression) {
            return Err(Refusal::new(Code::Invalid, format!("Invalid regular expression `{expression}`: {fault}")));
        }
    }
    must_exist(broker, request.text("user"), &request.vhost)?;
    let permission = TopicPermission {
        user: request.text("user").into(),
        vhost: request.vhost.as_str().into(),
        exchange: request.text("exchange").into(),
        write: request.text("write").to_owned(),
        read: request.text("read").to_owned(),
        ..TopicPermission::default()
    };
    broker.metadata().write(permission.set()).await?;
    done()
}

/// `clear_topic_permissions`: on one exchange, or on all of the virtual host.
pub async fn clear(broker: &Broker, request: &Request) -> Outcome {
    let user = request.text("user");
    must_exist(broker, user, &request.vhost)?;
    if let Some(exchange) = request.args.get("exchange").and_then(serde_json::Value::as_str) {
        broker.metadata().write(TopicPermission::clear(&request.vhost, exchange, user)).await?;
        return done();
    }
    let all = TopicPermission::list_in(&broker.metadata().tree(), &request.vhost).map_err(unreadable)?;
    let of_user = all.iter().filter(|permission| &*permission.user == user);
    let clears = of_user.map(|permission| TopicPermission::clear(&request.vhost, &permission.exchange, user));
    if let Some(all) = clears.reduce(|all, clear| all.and(clear)) {
        broker.metadata().write(all).await?;
    }
    done()
}

/// `list_topic_permissions`.
pub fn list(broker: &Broker, request: &Request) -> Outcome {
    vhosts::find(broker, &request.vhost)?;
    let all = TopicPermission::list_in(&broker.metadata().tree(), &request.vhost).map_err(unreadable)?;
    let rows = all.iter().map(|permission| {
        row([
            ("user", json!(permission.user.as_ref())),
            ("exchange", json!(permission.exchange.as_ref())),
            ("write", json!(permission.write)),
            ("read", json!(permission.read)),
        ])
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `list_user_topic_permissions`.
pub fn list_of_user(broker: &Broker, request: &Request) -> Outcome {
    let user = request.text("user");
    users::find(broker, user)?;
    let tree = broker.metadata().tree();
    let mut rows = Vec::new();
    for vhost in Vhost::list(&tree).map_err(unreadable)? {
        let all = TopicPermission::list_in(&tree, &vhost.name).map_err(unreadable)?;
        rows.extend(all.iter().filter(|permission| &*permission.user == user).map(|permission| {
            row([
                ("vhost", json!(permission.vhost.as_ref())),
                ("exchange", json!(permission.exchange.as_ref())),
                ("write", json!(permission.write)),
                ("read", json!(permission.read)),
            ])
        }));
    }
    Ok(Answer::Rows(rows))
}
