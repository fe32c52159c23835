//! Which topics a user may publish to and bind from, by exchange.

use std::sync::Arc;

use prost::Message;

use super::layout;
use super::permission::{guarded, put_kept_by_user};
use super::stored::{self, Invalid, Record, Stored, Unknown};
use crate::machine::Write;
use crate::tree::{Op, Payload, Tree};

/// Regular expressions on routing keys (write) and binding keys (read) of one topic exchange, which need not exist
/// yet. A user without one is not restricted.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct TopicPermission {
    /// The user.
    pub user: Arc<str>,
    /// The vhost.
    pub vhost: Arc<str>,
    /// The exchange.
    pub exchange: Arc<str>,
    /// Routing keys it may publish with.
    pub write: String,
    /// Binding keys it may bind with.
    pub read: String,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    user: String,
    #[prost(string, tag = "2")]
    vhost: String,
    #[prost(string, tag = "3")]
    exchange: String,
    #[prost(string, tag = "4")]
    write: String,
    #[prost(string, tag = "5")]
    read: String,
}

impl Record for TopicPermission {
    const KIND: u16 = 6;
    const WHAT: &'static str = "topic permission";

    fn encode(&self) -> Payload {
        let wire = Wire {
            user: self.user.to_string(),
            vhost: self.vhost.to_string(),
            exchange: self.exchange.to_string(),
            write: self.write.clone(),
            read: self.read.clone(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 5)?;
        Ok(TopicPermission {
            user: wire.user.into(),
            vhost: wire.vhost.into(),
            exchange: wire.exchange.into(),
            write: wire.write,
            read: wire.read,
            unknown,
        })
    }
}

impl TopicPermission {
    /// The topic permission of a user on an exchange.
    pub fn get(tree: &Tree, vhost: &str, exchange: &str, user: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::topic_permission(vhost, exchange, user))
    }

    /// All topic permissions on an exchange, in order of the users' names.
    pub fn list(tree: &Tree, vhost: &str, exchange: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::topic_permissions(vhost, exchange), &[])
    }

    /// All topic permissions in a vhost, in order of the exchanges' names and then the users'.
    pub fn list_in(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        let Some(exchanges) = tree.node(&layout::exchanges(vhost)) else { return Ok(Vec::new()) };
        let mut found = Vec::new();
        for (exchange, _) in exchanges.children() {
            if let Some(name) = exchange.as_name().and_then(|name| std::str::from_utf8(name).ok()) {
                found.extend(Self::list(tree, vhost, name)?);
            }
        }
        Ok(found)
    }

    /// Sets it; aborts with `NoSuchUser` or `NoSuchVhost`.
    pub fn set(&self) -> Write {
        let path = layout::topic_permission(&self.vhost, &self.exchange, &self.user);
        guarded(&self.user, &self.vhost, put_kept_by_user(path, &self.user, self.encode()))
    }

    /// Removes it. To remove none is no error.
    pub fn clear(vhost: &str, exchange: &str, user: &str) -> Write {
        Op::Delete(layout::topic_permission(vhost, exchange, user).into()).into()
    }
}
