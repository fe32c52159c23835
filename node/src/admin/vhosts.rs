//! Virtual hosts and the permissions in them.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use warren_broker::metadata::WriteError;
use warren_broker::{Broker, CloseReason};
use warren_metastore::projections::ResourcePattern;
use warren_metastore::records::{Permission, Stored, Vhost};
use warren_metastore::tree::MetaError;

use super::protocol::{Code, Refusal, Request};
use super::{Answer, Outcome, clients, done, no_vhost, row, unreadable, users};

/// A record that others keep changing is read again this often.
const ATTEMPTS: usize = 10;

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
            ("metadata", metadata(vhost)),
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
    let default_queue_type = queue_type(request)?;
    if broker.metadata().vhost(name).is_some() {
        return done();
    }
    if let Some(limit) = broker.config().limits.vhosts
        && broker.metadata().projections().load().vhosts().count() >= limit
    {
        let text = format!("cannot create vhost '{name}': vhost limit of {limit} is reached");
        return Err(Refusal::new(Code::Unavailable, text));
    }
    let tags = tags(request);
    let vhost =
        Vhost { description: request.text("description").to_owned(), tags, default_queue_type, ..Vhost::named(name) };
    match broker.metadata().write(vhost.create(None)).await {
        Ok(_) | Err(WriteError::Refused(MetaError::MismatchingNode { .. })) => done(),
        Err(error) => Err(error.into()),
    }
}

/// `update_vhost_metadata`: what is not given stays as it is.
pub async fn update_metadata(broker: &Broker, request: &Request) -> Outcome {
    let kind = queue_type(request)?;
    update(broker, request, |vhost| {
        if let Some(description) = request.args.get("description").and_then(Value::as_str) {
            vhost.description = description.to_owned();
        }
        if request.args.contains_key("tags") {
            vhost.tags = tags(request);
        }
        if kind.is_some() {
            vhost.default_queue_type.clone_from(&kind);
        }
    })
    .await
}

/// `set_vhost_tags`: these and no others.
pub async fn set_tags(broker: &Broker, request: &Request) -> Outcome {
    let mut tags: Vec<String> = Vec::new();
    for tag in request.list("tags").iter().flat_map(|word| word.split(',')).map(str::trim) {
        if !tag.is_empty() && !tags.iter().any(|have| have == tag) {
            tags.push(tag.to_owned());
        }
    }
    update(broker, request, |vhost| vhost.tags.clone_from(&tags)).await
}

/// `enable_vhost_deletion_protection`, `disable_vhost_deletion_protection`.
pub async fn protect(broker: &Broker, request: &Request, protected: bool) -> Outcome {
    update(broker, request, |vhost| vhost.protected_from_deletion = protected).await
}

/// `check_virtual_hosts`: what a node has of the metadata it serves, so none can be down by itself.
pub fn check(broker: &Broker, ready: bool) -> Outcome {
    let node = broker.name();
    if ready {
        return Ok(Answer::Value(json!({"text": format!("All virtual hosts on node {node} are running")})));
    }
    let vhosts = Vhost::list(&broker.metadata().tree()).map_err(unreadable)?;
    let names: Vec<&str> = vhosts.iter().map(|vhost| vhost.name.as_ref()).collect();
    let text = format!("Some virtual hosts on node {node} are down:\n{}", names.join("\n"));
    Err(Refusal::new(Code::Unavailable, text))
}

/// Changes a virtual host as it is now; reads it again if somebody else changed it meanwhile.
async fn update(broker: &Broker, request: &Request, change: impl Fn(&mut Vhost)) -> Outcome {
    let name = request.text("name");
    for _ in 0..ATTEMPTS {
        let stored = find(broker, name)?;
        let mut vhost = stored.record.clone();
        change(&mut vhost);
        match broker.metadata().write(vhost.update(stored.mod_revision)).await {
            Ok(_) => return done(),
            Err(WriteError::Refused(MetaError::MismatchingNode { .. })) => {}
            Err(WriteError::Refused(MetaError::NodeNotFound { .. })) => return Err(no_vhost(name)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::new(Code::Unavailable, format!("virtual host '{name}' is being changed by others")))
}

/// The default queue type that was asked for.
fn queue_type(request: &Request) -> Result<Option<String>, Refusal> {
    match request.text("default-queue-type") {
        "" => Ok(None),
        kind @ ("classic" | "quorum") => Ok(Some(kind.to_owned())),
        other => Err(Refusal::new(Code::Invalid, format!("unsupported default queue type: {other}"))),
    }
}

/// The tags that were given, joined by commas.
fn tags(request: &Request) -> Vec<String> {
    request.text("tags").split(',').map(str::trim).filter(|tag| !tag.is_empty()).map(str::to_owned).collect()
}

fn metadata(vhost: &Vhost) -> Value {
    let mut metadata = json!({"description": vhost.description, "tags": vhost.tags});
    if let Some(kind) = &vhost.default_queue_type {
        metadata["default_queue_type"] = json!(kind);
    }
    if vhost.protected_from_deletion {
        metadata["protected_from_deletion"] = json!(true);
    }
    metadata
}

/// `delete_vhost`: with everything in it, and the connections to it.
pub async fn delete(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("name");
    let stored = find(broker, name)?;
    if stored.protected_from_deletion {
        let text = format!("Cannot delete this virtual host: '{name}' is protected from deletion");
        return Err(Refusal::new(Code::Invalid, text));
    }
    broker.metadata().write(Vhost::delete(name, stored.mod_revision)).await?;
    let chosen = clients::Chosen { vhost: Some(name), user: None };
    clients::close_everywhere(broker, chosen, &CloseReason::VhostDeleted(name.to_owned())).await;
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
    find(broker, &request.vhost)?;
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
    users::find(broker, user)?;
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

/// A virtual host; one that does not exist is refused.
pub(super) fn find(broker: &Broker, name: &str) -> Result<Arc<Stored<Vhost>>, Refusal> {
    broker.metadata().vhost(name).ok_or_else(|| no_vhost(name))
}

/// Refuses where one of both does not exist.
pub(super) fn must_exist(broker: &Broker, user: &str, vhost: &str) -> Result<(), Refusal> {
    find(broker, vhost)?;
    users::find(broker, user)?;
    Ok(())
}
