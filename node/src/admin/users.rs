//! Users.

use std::sync::Arc;

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::access::salt;
use warren_broker::metadata::WriteError;
use warren_metastore::records::{Stored, User};
use warren_metastore::tree::MetaError;

use super::protocol::{Code, Refusal, Request};
use super::{Answer, Outcome, done, no_user, row, unreadable};

/// Tags of one user, at most.
const MAX_TAGS: usize = 32;
/// A record that others keep changing is read again this often.
const ATTEMPTS: usize = 10;

/// `list_users`.
pub fn list(broker: &Broker) -> Outcome {
    let users = User::list(&broker.metadata().tree()).map_err(unreadable)?;
    Ok(Answer::Rows(
        users.iter().map(|user| row([("user", json!(user.name.as_ref())), ("tags", json!(user.tags))])).collect(),
    ))
}

/// `add_user`.
pub async fn add(broker: &Broker, request: &Request) -> Outcome {
    let (name, password) = (request.text("user"), request.text("password"));
    if name.is_empty() || name.len() > 255 {
        return Err(Refusal::new(Code::Invalid, "a user's name has 1 to 255 bytes"));
    }
    let exists = || Refusal::new(Code::Exists, format!("User \"{name}\" already exists"));
    if broker.metadata().user(name).is_some() {
        return Err(exists());
    }
    let user = User::with_password(name, password.as_bytes(), salt(), Vec::new());
    match broker.metadata().write(user.create()).await {
        Ok(_) => done(),
        Err(WriteError::Refused(MetaError::MismatchingNode { .. })) => Err(exists()),
        Err(error) => Err(error.into()),
    }
}

/// `change_password`.
pub async fn change_password(broker: &Broker, request: &Request) -> Outcome {
    let password = request.text("password");
    update(broker, request, |user| user.set_password(password.as_bytes(), salt())).await
}

/// `clear_password`.
pub async fn clear_password(broker: &Broker, request: &Request) -> Outcome {
    update(broker, request, |user| user.password_hash.clear()).await
}

/// `set_user_tags`.
pub async fn set_tags(broker: &Broker, request: &Request) -> Outcome {
    let mut tags: Vec<String> = Vec::new();
    // Tags may come as words or joined by commas.
    for tag in request.list("tags").iter().flat_map(|word| word.split(',')).map(str::trim) {
        if !tag.is_empty() && !tags.iter().any(|have| have == tag) {
            tags.push(tag.to_owned());
        }
    }
    if tags.len() > MAX_TAGS {
        return Err(Refusal::new(Code::Invalid, format!("a user has at most {MAX_TAGS} tags")));
    }
    update(broker, request, |user| user.tags.clone_from(&tags)).await
}

/// `delete_user`.
pub async fn delete(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("user");
    find(broker, name)?;
    broker.metadata().write(User::delete(name)).await?;
    done()
}

/// `authenticate_user`. The command line is not a remote client, so users limited to loopback are fine.
pub fn authenticate(broker: &Broker, request: &Request) -> Outcome {
    let name = request.text("user");
    match broker.authenticate(name, request.text("password").as_bytes(), true) {
        Ok(_) => Ok(Answer::Value(Value::Null)),
        Err(error) => {
            Err(Refusal::new(Code::AccessRefused, format!("failed to authenticate user \"{name}\"\n{error}")))
        }
    }
}

/// A user; one that does not exist is refused.
pub(super) fn find(broker: &Broker, name: &str) -> Result<Arc<Stored<User>>, Refusal> {
    broker.metadata().user(name).ok_or_else(|| no_user(name))
}

/// Changes a user as it is now; reads it again if somebody else changed it meanwhile.
async fn update(broker: &Broker, request: &Request, change: impl Fn(&mut User)) -> Outcome {
    let name = request.text("user");
    for _ in 0..ATTEMPTS {
        let stored = find(broker, name)?;
        let mut user = stored.record.clone();
        change(&mut user);
        match broker.metadata().write(user.update(stored.mod_revision)).await {
            Ok(_) => return done(),
            Err(WriteError::Refused(MetaError::MismatchingNode { .. })) => {}
            Err(WriteError::Refused(MetaError::NodeNotFound { .. })) => return Err(no_user(name)),
            Err(error) => return Err(error.into()),
        }
    }
    Err(Refusal::new(Code::Unavailable, format!("user \"{name}\" is being changed by others")))
}
