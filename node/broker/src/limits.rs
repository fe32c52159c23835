//! Limits on connections and channels of a user or a virtual host (spec: broker-model.md, section 10).
//!
//! They count over the whole cluster: whoever would open one more under a limit asks the other nodes what they have. Nobody
//! asks where there is no limit. A node that does not answer has nothing that counts, so a limit may be exceeded while nodes do
//! not hear each other, and by one for each node that opens at the same moment.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use warren_proto::ids::NodeId;
use warren_raft::transport::CallTarget;

use crate::error::BrokerError;
use crate::node::Broker;

/// Asks a node what it has of a user and of a virtual host.
pub(crate) const USED: &str = "broker/used";
/// How long other nodes may take to say.
const ANSWER: Duration = Duration::from_secs(2);

/// Whose use is asked for.
#[derive(Debug, Clone, Serialize, Deserialize)]
struct Question {
    user: String,
    vhost: String,
}

/// What a node, or all of them, have open.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Used {
    vhost_connections: u64,
    user_connections: u64,
    user_channels: u64,
}

impl Used {
    fn plus(self, other: Used) -> Used {
        Used {
            vhost_connections: self.vhost_connections + other.vhost_connections,
            user_connections: self.user_connections + other.user_connections,
            user_channels: self.user_channels + other.user_channels,
        }
    }
}

/// Connections that were admitted and are not registered yet, as (user, virtual host).
#[derive(Debug, Default)]
pub(crate) struct Admissions(Mutex<Vec<(String, String)>>);

/// A connection that was admitted; counts until it is dropped, which is when the connection is registered, or is not to be.
#[derive(Debug)]
pub struct Admission {
    admissions: Arc<Admissions>,
    user: String,
    vhost: String,
}

impl Drop for Admission {
    fn drop(&mut self) {
        let mut waiting = self.admissions.0.lock();
        if let Some(at) = waiting.iter().position(|(user, vhost)| *user == self.user && *vhost == self.vhost) {
            waiting.swap_remove(at);
        }
    }
}

impl Broker {
    /// Whether the user may open one more connection to the virtual host.
    pub async fn admit_connection(&self, user: &str, vhost: &str) -> Result<Admission, BrokerError> {
        let of_vhost = limit(self.metadata.vhost(vhost).and_then(|record| record.max_connections));
        let of_user = limit(self.metadata.user(user).and_then(|record| record.max_connections));
        // Counts from here on, so that of two at the same moment on this node one sees the other.
        self.admissions.0.lock().push((user.to_owned(), vhost.to_owned()));
        let admission =
            Admission { admissions: Arc::clone(&self.admissions), user: user.to_owned(), vhost: vhost.to_owned() };
        if of_vhost.is_none() && of_user.is_none() {
            return Ok(admission);
        }
        let used = match of_vhost == Some(0) || of_user == Some(0) {
            true => Used { vhost_connections: 1, user_connections: 1, user_channels: 0 },
            false => self.used(user, vhost).await,
        };
        if let Some(limit) = of_vhost.filter(|limit| used.vhost_connections > *limit) {
            return Err(BrokerError::NotAllowed(format!(
                "access to vhost '{vhost}' refused for user '{user}': connection limit ({limit}) is reached"
            )));
        }
        if let Some(limit) = of_user.filter(|limit| used.user_connections > *limit) {
            return Err(BrokerError::NotAllowed(format!(
                "connection refused for user '{user}': user connection limit ({limit}) is reached"
            )));
        }
        Ok(admission)
    }

    /// Whether the user's number of channels is limited, so that [`admit_channel`](Self::admit_channel) has to be asked.
    pub fn limits_channels_of(&self, user: &str) -> bool {
        limit(self.metadata.user(user).and_then(|record| record.max_channels)).is_some()
    }

    /// Whether the user may open one more channel.
    pub async fn admit_channel(&self, user: &str) -> Result<(), BrokerError> {
        let Some(limit) = limit(self.metadata.user(user).and_then(|record| record.max_channels)) else {
            return Ok(());
        };
        if limit > 0 && self.used(user, "").await.user_channels < limit {
            return Ok(());
        }
        Err(BrokerError::NotAllowed(format!(
            "number of channels opened for user '{user}' has reached the maximum allowed user limit of ({limit})"
        )))
    }

    /// What all nodes have open.
    async fn used(&self, user: &str, vhost: &str) -> Used {
        let question = Question { user: user.to_owned(), vhost: vhost.to_owned() };
        let mut used = self.used_here(&question);
        let payload = Bytes::from(serde_json::to_vec(&question).unwrap_or_default());
        let mut asking = JoinSet::new();
        let others = self.metadata.nodes();
        let others: Vec<NodeId> = others.iter().map(|node| node.id).filter(|id| *id != self.me).collect();
        for node in others.into_iter().filter(|node| self.links.is_up(*node)) {
            let (transport, payload) = (self.transport.clone(), payload.clone());
            asking.spawn(async move {
                let reply =
                    transport.call(CallTarget::Node(node), USED, payload, ANSWER).await.ok()?.one().await.ok()?;
                serde_json::from_slice::<Used>(&reply).ok()
            });
        }
        while let Some(answer) = asking.join_next().await {
            used = used.plus(answer.ok().flatten().unwrap_or_default());
        }
        used
    }

    fn used_here(&self, of: &Question) -> Used {
        let mut used = Used::default();
        for connection in self.connections.list() {
            if connection.info.vhost == of.vhost {
                used.vhost_connections += 1;
            }
            if connection.info.user == of.user {
                used.user_connections += 1;
                used.user_channels += connection.channel_count() as u64;
            }
        }
        for (user, vhost) in self.admissions.0.lock().iter() {
            used.vhost_connections += u64::from(*vhost == of.vhost);
            used.user_connections += u64::from(*user == of.user);
        }
        used
    }

    /// Answers another node's [`USED`].
    pub(crate) fn answer_used(&self, payload: &[u8]) -> Result<Used, String> {
        let question: Question = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        Ok(self.used_here(&question))
    }
}

/// A limit that counts: a negative one is none.
fn limit(set: Option<i64>) -> Option<u64> {
    set.and_then(|limit| u64::try_from(limit).ok())
}
