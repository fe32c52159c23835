//! Virtual hosts and the permissions in them.

use serde_json::{Map, Value, json};
use warren_broker::metadata::WriteError;
use warren_broker::{Broker, CloseReason};
use warren_metastore::projections::ResourcePattern;
use warren_metastore::records::{Permission, Vhost};
use warren_metastore::tree::MetaError;

use super::protocol::{Code, Refusal, Request};
use super::{Answer, Outcome, clients, done, no_user, no_vhost, row, unreadable};

/// `list_vhosts`.
pub fn list(broker: &Broker) -> Outcome {
    let vhosts = Vhost::list(&broker.metadata().tree()).map_err(unreadable)?;
    let nodes = broker.metadata().nodes();
    let state: Map<String, Value> = nodes
        .iter()
        .map(|node| {
            let up = node.id == broker.me() || broker.links().is_up(node.id);
            (node.name.to_string(), Value::from(if up { "running" } else { "nodedown" }))
        })
        .collect();
    let rows = vhosts.iter().map(|vhost| {
        row([
            ("name", json!(vhost.name.as_ref())),
            ("description", json!(vhost.description)),
            ("tags", json!(vhost.tags)),
            ("default_queue_type", json!(vhost.default_queue_type.as_deref().unwrap_or("undefined"))),
            ("protected_from_deletion", json!(vhost.protected_from_deletion)),
            ("tracing", json!(vhost.tracing)),
            ("cluster_state", Value::Object(state.clone())),
            ("metadata", json!({"description": vhost.description, "tags": vhost.tags})),
        ])
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `add_vhost`. One that exists already stays as it is.
pub async fn add(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("name");
    if name.len() > 255 {
        return Err(Refusal::new(Code::Invalid, "a virtual host's name has 1 to 255 bytes"));
    }
    let default_queue_type = match request.text("default-queue-type") {
        "" => None,
        kind @ ("classic" | "quorum") => Some(kind.to_owned()),
        other => return Err(Refusal::new(Code::Invalid, format!("unsupported default queue type: {other}"))),
    };
    if broker.metadata().vhost(name).is_some() {
        return done();
    }
    if let Some(limit) = broker.config().limits.vhosts
        && broker.metadata().projections().load().vhosts().count() >= limit
    {
        let text = format!("cannot create vhost '{name}': vhost limit of {limit} is reached");
        return Err(Refusal::new(Code::Unavailable, text));
    }
    let tags =
        request.text("tags").split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect();
    let vhost =
        Vhost { description: request.text("description").to_owned(), tags, default_queue_type, ..Vhost::named(name) };
    match broker.metadata().write(vhost.create(None)).await {
        Ok(_) | Err(WriteError::Refused(MetaError::MismatchingNode { .. })) => done(),
        Err(error) => Err(error.into()),
    }
}

/// `delete_vhost`: with everything in it, and the connections to it.
pub async fn delete(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("name");
    let stored = broker.metadata().vhost(name).ok_or_else(|| no_vhost(name))?;
    if stored.protected_from_deletion {
        let text = format!("Cannot delete this virtual host: '{name}' is protected from deletion");
        return Err(Refusal::new(Code::Invalid, text));
    }
    broker.metadata().write(Vhost::delete(name, stored.mod_revision)).await?;
    clients::close_everywhere(broker, Some(name), &CloseReason::VhostDeleted(name.to_owned())).await;
    done()
}

/// `set_permissions`.
pub async fn set_permissions(broker: &Broker, request: &Request) -> Outcome {
    let user = request.text("user");
    for name in ["configure", "write", "read"] {
        let expression = request.text(name);
        if !expression.is_empty() && matches!(ResourcePattern::new(expression), ResourcePattern::Nothing) {
            return Err(Refusal::new(Code::Invalid, format!("Invalid regular expression `{expression}`")));
        }
    }
    must_exist(broker, user, &request.vhost)?;
    let permission = Permission {
        configure: request.text("configure").to_owned(),
        write: request.text("write").to_owned(),
        read: request.text("read").to_owned(),
        ..Permission::full(user, &request.vhost)
    };
    broker.metadata().write(permission.set()).await?;
    done()
}

/// `clear_permissions`.
pub async fn clear_permissions(broker: &Broker, request: &Request) -> Outcome {
    let user = request.text("user");
    must_exist(broker, user, &request.vhost)?;
    broker.metadata().write(Permission::clear(&request.vhost, user)).await?;
    done()
}

/// `list_permissions`.
pub fn list_permissions(broker: &Broker, request: &Request) -> Outcome {
    if broker.metadata().vhost(&request.vhost).is_none() {
        return Err(no_vhost(&request.vhost));
    }
    let permissions = Permission::list(&broker.metadata().tree(), &request.vhost).map_err(unreadable)?;
    let rows = permissions.iter().map(|permission| {
        row([
            ("user", json!(permission.user.as_ref())),
            ("configure", json!(permission.configure)),
            ("write", json!(permission.write)),
            ("read", json!(permission.read)),
        ])
    });
    Ok(Answer::Rows(rows.collect()))
}

/// `list_user_permissions`.
pub fn list_user_permissions(broker: &Broker, request: &Request) -> Outcome {
    let user = request.text("user");
    if broker.metadata().user(user).is_none() {
        return Err(no_user(user));
    }
    let tree = broker.metadata().tree();
    let mut rows = Vec::new();
    for vhost in Vhost::list(&tree).map_err(unreadable)? {
        if let Some(permission) = Permission::get(&tree, &vhost.name, user).map_err(unreadable)? {
            rows.push(row([
                ("vhost", json!(vhost.name.as_ref())),
                ("configure", json!(permission.configure)),
                ("write", json!(permission.write)),
                ("read", json!(permission.read)),
            ]));
        }
    }
    Ok(Answer::Rows(rows))
}

fn must_exist(broker: &Broker, user: &str, vhost: &str) -> Result<(), Refusal> {
    if broker.metadata().vhost(vhost).is_none() {
        return Err(no_vhost(vhost));
    }
    if broker.metadata().user(user).is_none() {
        return Err(no_user(user));
    }
    Ok(())
}
