//! A node that knows of no metadata leader asks its peers where it stands (spec: operations.md, section 5.5).
//!
//! Nobody talks to a removed member of the metadata group, which to that member looks as if it were cut off. A peer answers
//! once it has compared itself with the leader, and ids of members never return: "no" is final, and the node ends.
//!
//! One that belongs may not know the leader's address, or the leader not its own: it has just joined by way of another node,
//! or came back under a name that was removed. So the question says where the asker is, and the answer where the others are.

use std::sync::Weak;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use tokio::task::JoinSet;
use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_raft::transport::{CallError, CallTarget, Transport};

use super::formation::Peer;
use crate::abandon::abandon;
use crate::node::Broker;
use crate::start::EXIT_DAMAGED;

/// Method of the transport's calls that [`Standing`] answers.
pub const STANDING: &str = "cluster.standing";

/// Time between two looks at whether a leader is known; one that is missing twice in a row is asked about.
const LOOK: Duration = Duration::from_secs(5);
/// How long the one that is asked compares itself with the leader.
const COMPARE: Duration = Duration::from_secs(3);
const CALL: Duration = Duration::from_secs(5);

/// Whether a member still belongs to the metadata group.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Question {
    /// The cluster.
    pub cluster: u64,
    /// The member.
    pub member: u64,
    /// The asker.
    pub from: Peer,
}

/// The answer.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Standing {
    /// It does.
    pub belongs: bool,
    /// The nodes of the cluster.
    pub nodes: Vec<Peer>,
}

/// What a removed node tells whoever runs it.
pub const ADVICE: &str = "this node's data is that of a member which the cluster has removed: other nodes ignore it, and it \
                          does not run. To have the node join again as a new one, reset it: start it with an empty data \
                          directory";

pub(super) async fn ask(peer: &Peer, payload: Bytes, transport: &Transport) -> Result<Option<Standing>, CallError> {
    let target = CallTarget::Address(peer.address.clone());
    let reply = transport.call(target, STANDING, payload, CALL).await?.one().await?;
    Ok(serde_json::from_slice(&reply).ok())
}

impl Broker {
    /// Whether peers say that this node's member was removed from the metadata group, and none says that it was not.
    pub(crate) async fn was_removed(&self) -> bool {
        let status = self.metadata.host().and_then(|host| host.status(GroupId::METADATA));
        let Some(status) = status else { return false };
        let from = Peer { name: self.config.name.clone(), address: self.config.peer_address.clone() };
        let question = Question { cluster: self.cluster.id, member: status.me.0, from };
        let Ok(payload) = serde_json::to_vec(&question) else { return false };
        let payload = Bytes::from(payload);
        let mut asking = JoinSet::new();
        for peer in self.peers_to_ask() {
            let (transport, payload) = (self.transport.clone(), payload.clone());
            asking.spawn(async move { ask(&peer, payload, &transport).await });
        }
        let (mut removed, mut belongs) = (false, false);
        while let Some(answer) = asking.join_next().await {
            let Ok(Ok(Some(standing))) = answer else { continue };
            removed |= !standing.belongs;
            if standing.belongs {
                belongs = true;
                self.get_to_know(&standing.nodes);
            }
        }
        removed && !belongs
    }

    /// Connects to nodes that this one has no address of.
    fn get_to_know(&self, nodes: &[Peer]) {
        let known = self.transport.peers();
        for peer in nodes {
            let id = NodeId::of_name(&peer.name);
            if !known.iter().any(|(node, ..)| *node == id) {
                self.transport.set_peer(id, &peer.name, &peer.address);
            }
        }
    }

    /// Answers another node's question; an error where this node cannot be sure.
    pub(crate) async fn standing(&self, payload: &[u8]) -> Result<Standing, String> {
        let question: Question = serde_json::from_slice(payload).map_err(|error| error.to_string())?;
        if question.cluster != self.cluster.id {
            return Err("this node belongs to another cluster".to_owned());
        }
        self.metadata.fence(COMPARE).await.map_err(|error| error.to_string())?;
        let status = self.metadata.host().and_then(|host| host.status(GroupId::METADATA));
        let membership = status.ok_or("this node is starting")?.membership;
        let id = NodeId::of_name(&question.from.name);
        let belongs = membership.member(MemberUid(question.member)).is_some_and(|member| member.node == id);
        if belongs {
            self.transport.set_peer(id, &question.from.name, &question.from.address);
        }
        Ok(Standing { belongs, nodes: self.recorded_nodes() })
    }

    fn recorded_nodes(&self) -> Vec<Peer> {
        let nodes = self.metadata.nodes();
        nodes.iter().map(|n| Peer { name: n.name.to_string(), address: n.address.clone() }).collect()
    }

    /// All other nodes that are configured, founded the cluster, belonged to it when this node heard of it last, or were
    /// named to it since.
    fn peers_to_ask(&self) -> Vec<Peer> {
        let configured = self.config.peers.iter().cloned();
        let founders = self.cluster.founders.iter().map(|f| Peer { name: f.name.clone(), address: f.address.clone() });
        let told = self.transport.peers().into_iter().map(|(_, name, address)| Peer { name, address });
        let all = configured.chain(founders).chain(self.recorded_nodes()).chain(told);
        let mut all: Vec<Peer> = all.filter(|peer| peer.name != self.config.name).collect();
        all.sort_by(|a, b| (&a.name, &a.address).cmp(&(&b.name, &b.address)));
        all.dedup();
        all
    }
}

/// Ends the process of a node that was removed while it ran, cut off from the others. Runs until the broker is gone.
pub(crate) async fn watch(broker: Weak<Broker>) {
    let mut leaderless = false;
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(broker) = broker.upgrade() else { return };
        let before = std::mem::replace(&mut leaderless, broker.metadata.leader().is_none());
        if before && leaderless && broker.was_removed().await {
            abandon(EXIT_DAMAGED, || tracing::error!("{ADVICE}"));
        }
    }
}
