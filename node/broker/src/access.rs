//! Who may do what (spec: broker-model.md, section 2).

use std::sync::Arc;

pub use warren_metastore::projections::Access as Permission;
use warren_metastore::projections::VhostView;
use warren_metastore::records::{Exchange, ExchangeKind, Stored, User};

use crate::cluster::identity_file::random_u64;
use crate::error::BrokerError;
use crate::node::Broker;

/// What a permission is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Resource<'a> {
    /// A queue.
    Queue(&'a str),
    /// An exchange; the default one is matched as `amq.default`.
    Exchange(&'a str),
}

impl Broker {
    /// Checks a password. Takes as long for a user that does not exist.
    pub fn authenticate(&self, name: &str, password: &[u8], loopback: bool) -> Result<Arc<Stored<User>>, BrokerError> {
        let user = self.metadata.user(name);
        let refused = || BrokerError::AccessRefused(format!("user '{name}' - invalid credentials"));
        let matches = user.as_ref().map_or(&self.stranger, |u| &u.record).verify(password);
        let user = user.filter(|_| matches).ok_or_else(refused)?;
        if !loopback && self.config.loopback_users.iter().any(|u| u == name) {
            return Err(BrokerError::AccessRefused(format!("user '{name}' can only connect via localhost")));
        }
        Ok(user)
    }

    /// Whether the user may open connections to the vhost.
    pub fn check_vhost_access(&self, user: &str, vhost: &str) -> Result<(), BrokerError> {
        if self.metadata.vhost(vhost).is_none() {
            return Err(BrokerError::NotAllowed(format!("vhost {vhost} not found")));
        }
        if self.metadata.projections().peek().permission(vhost, user).is_some() {
            return Ok(());
        }
        Err(BrokerError::NotAllowed(format!("access to vhost '{vhost}' refused for user '{user}'")))
    }

    /// Checks one permission.
    pub fn check(
        &self,
        user: &str,
        vhost: &str,
        permission: Permission,
        resource: Resource<'_>,
    ) -> Result<(), BrokerError> {
        let (kind, name) = match resource {
            Resource::Queue(name) => ("queue", name),
            Resource::Exchange("") => ("exchange", "amq.default"),
            Resource::Exchange(name) => ("exchange", name),
        };
        let view = self.metadata.projections().peek();
        let allowed = view.permission(vhost, user).is_some_and(|p| p.allows(permission, name));
        if allowed {
            return Ok(());
        }
        Err(BrokerError::AccessRefused(format!(
            "{} access to {kind} '{name}' in vhost '{vhost}' refused for user '{user}'",
            word(permission)
        )))
    }

    /// Checks that the user has any of the three permissions: what a passive declare needs.
    pub fn check_any(&self, user: &str, vhost: &str, resource: Resource<'_>) -> Result<(), BrokerError> {
        let any = [Permission::Configure, Permission::Write, Permission::Read]
            .into_iter()
            .any(|p| self.check(user, vhost, p, resource).is_ok());
        if any { Ok(()) } else { self.check(user, vhost, Permission::Configure, resource) }
    }
}

/// Checks the topic permission on routing keys or a binding key; of exchanges of another type, everything is allowed.
pub fn check_topics(
    vhost: &VhostView,
    user: &str,
    exchange: &Exchange,
    permission: Permission,
    topics: &[&[u8]],
) -> Result<(), BrokerError> {
    if exchange.kind != ExchangeKind::Topic {
        return Ok(());
    }
    let Some(of_user) = vhost.topic_permission(user, &exchange.name) else { return Ok(()) };
    match topics.iter().find(|topic| !of_user.allows(permission, topic)) {
        None => Ok(()),
        Some(topic) => Err(BrokerError::AccessRefused(format!(
            "{} access to topic '{}' in exchange '{}' in vhost '{}' refused for user '{user}'",
            word(permission),
            String::from_utf8_lossy(topic),
            exchange.name,
            exchange.vhost,
        ))),
    }
}

fn word(permission: Permission) -> &'static str {
    match permission {
        Permission::Configure => "configure",
        Permission::Write => "write",
        Permission::Read => "read",
    }
}

/// A user that nobody is, so that checking a password takes as long for unknown names.
pub(crate) fn stranger() -> User {
    User::with_password("", &random_u64().to_le_bytes(), salt(), Vec::new())
}

/// A random salt for a stored password.
pub fn salt() -> [u8; 4] {
    (random_u64() as u32).to_be_bytes()
}
