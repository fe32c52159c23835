//! Users and what they may do.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use warren_metastore::projections::ResourcePattern;
use warren_metastore::records::{self, HashingAlgorithm, Unknown};

use super::{Made, Run, is_nothing, lines, name};
use crate::access;
use crate::definitions::document::{self, tags};
use crate::operations::policy::limits;

/// Tags of a user, at most.
const MAX_TAGS: usize = 32;

impl Run<'_> {
    pub(super) fn user(&self, of: &document::User) -> Made {
        name(&of.name)?;
        let mut user =
            records::User { name: of.name.as_str().into(), tags: tags(&of.tags)?, ..records::User::default() };
        if user.tags.len() > MAX_TAGS {
            return Err(format!("it has more than {MAX_TAGS} tags"));
        }
        match (&of.password_hash, &of.password) {
            (Some(hash), _) => {
                let hash = STANDARD
                    .decode(hash.trim())
                    .map_err(|error| format!("its password_hash is not base64: {error}"))?;
                // A file without the name of the algorithm is older than all others.
                let algorithm = of.hashing_algorithm.as_deref().unwrap_or(HashingAlgorithm::Md5.name());
                let algorithm = HashingAlgorithm::from_name(algorithm)
                    .ok_or_else(|| format!("the hashing algorithm '{algorithm}' is not available"))?;
                if !records::User::is_hash(algorithm, &hash) {
                    return Err(format!(
                        "its password_hash has {} octets, and none of {}",
                        hash.len(),
                        algorithm.name()
                    ));
                }
                (user.password_hash, user.hashing_algorithm) = (hash, algorithm);
            }
            (None, Some(password)) if !password.is_empty() => user.set_password(password.as_bytes(), access::salt()),
            (None, _) => {}
        }
        if !is_nothing(&of.limits) {
            let limits = limits("limits", &of.limits, &["max-connections", "max-channels"]).map_err(|e| lines(&e))?;
            let limit = |key: &str| limits.get(key).and_then(Value::as_i64);
            (user.max_connections, user.max_channels) = (limit("max-connections"), limit("max-channels"));
        }
        let bytes = user.name.len() + user.password_hash.len() + 100;
        Ok(Some((user.set(), bytes)))
    }

    pub(super) fn permission(&self, of: &document::Permission) -> Made {
        expressions(&[&of.configure, &of.write, &of.read])?;
        let permission = records::Permission {
            configure: of.configure.clone(),
            write: of.write.clone(),
            read: of.read.clone(),
            ..records::Permission::full(&of.user, &of.vhost)
        };
        Ok(Some((
            permission.set(),
            3 * of.user.len() + 3 * of.vhost.len() + of.configure.len() + of.write.len() + of.read.len(),
        )))
    }

    pub(super) fn topic_permission(&self, of: &document::TopicPermission) -> Made {
        name(&of.user)?;
        let permission = records::TopicPermission {
            user: of.user.as_str().into(),
            vhost: of.vhost.as_str().into(),
            exchange: of.exchange.as_str().into(),
            write: of.write.clone(),
            read: of.read.clone(),
            unknown: Unknown::default(),
        };
        expressions(&[&of.write, &of.read])?;
        Ok(Some((permission.set(), 3 * of.user.len() + 3 * of.vhost.len() + of.write.len() + of.read.len())))
    }
}

fn expressions(all: &[&str]) -> Result<(), String> {
    for expression in all {
        if let Some(fault) = ResourcePattern::fault(expression) {
            return Err(format!("invalid regular expression '{expression}': {fault}"));
        }
    }
    Ok(())
}
