//! How a blank node finds its cluster.
//!
//! Peers are listed in the configuration. A node asks all of them who they are. If one belongs to a cluster already, the
//! node is one of that cluster's founders (by name *and* incarnation) or asks to join. If none does, the node that sorts
//! first waits until it has heard from every other one and then founds the cluster with exactly the incarnations that
//! answered; the others hear of it in their next round. So however the nodes are started they form one cluster, and a
//! node whose data was wiped, which has a new incarnation, can never pass for its old self: it has to join.

use std::collections::BTreeSet;
use std::fmt;
use std::time::Duration;

use bytes::Bytes;
use serde::{Deserialize, Serialize};
use warren_raft::transport::{CallError, CallTarget, Transport};

use super::identity_file::{Cluster, Founder, NodeIdentity, not_zero, random_u64};
use crate::feature_flags::inventory::{INCOMPATIBLE_FLAGS, INCOMPATIBLE_VERSION};
use crate::feature_flags::{FeatureFlags, FlagsError};
use crate::node::{NodeConfig, Retry};
use crate::start::StartError;

/// Method of the transport's calls that [`Hello`] answers.
pub const HELLO: &str = "cluster.hello";
/// Method by which a node asks to become a member.
pub const JOIN: &str = "cluster.join";
/// The code with which [`JOIN`] is refused to a node that the cluster has removed.
pub const REMOVED: &str = "removed";

/// What the codes begin with by which nodes refuse each other at the handshake.
const INCOMPATIBLE: &str = "incompatible";

/// The first rounds are quicker.
const QUICK_ROUNDS: u32 = 20;
const QUICK_PAUSE: Duration = Duration::from_millis(200);
const HELLO_TIMEOUT: Duration = Duration::from_secs(2);
const JOIN_TIMEOUT: Duration = Duration::from_secs(30);

/// A node of the configured list, or one that a member names.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// `name@host`.
    pub name: String,
    /// `host:port` of its peer port.
    pub address: String,
}

/// What a node says about itself.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Hello {
    /// `name@host`.
    pub name: String,
    /// The life of its data directory.
    #[serde(deserialize_with = "not_zero")]
    pub incarnation: u64,
    /// Its cluster, if it has one.
    pub cluster: Option<Cluster>,
    /// The machine version of its cluster's metadata; 0 where it does not know or did not say.
    #[serde(default)]
    pub metadata_version: u16,
    /// The feature flags that it could begin with, if it is blank.
    #[serde(default)]
    pub begins_with: BTreeSet<String>,
    /// The feature flags that its cluster has enabled.
    #[serde(default)]
    pub enabled: Option<BTreeSet<String>>,
}

/// A node asks to become a member.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct JoinRequest {
    /// `name@host`.
    pub name: String,
    /// The life of its data directory.
    #[serde(deserialize_with = "not_zero")]
    pub incarnation: u64,
    /// Its future member of the metadata group.
    #[serde(deserialize_with = "not_zero")]
    pub uid: u64,
    /// `host:port` of its peer port.
    pub address: String,
    /// It belongs to the cluster by what it knows, and has lost its member alone.
    #[serde(default)]
    pub returns: bool,
}

/// Why a node was not taken in.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NotTaken {
    /// The cluster has removed it: it is to join as a new node, without what it has.
    Removed,
    /// It may be asked again.
    Yet(String),
}

impl fmt::Display for NotTaken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NotTaken::Removed => f.write_str("the node was removed from the cluster"),
            NotTaken::Yet(reason) => f.write_str(reason),
        }
    }
}

/// How the node came to its cluster.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Membership {
    /// It is one of the founders: its member starts with the founders' configuration.
    Founder(Cluster),
    /// It was admitted: its member starts empty and learns everything from the leader.
    Joined(Cluster),
}

/// Finds or founds the cluster; logs what it waits for. It waits for as long as it takes until the nodes that have to
/// found the cluster are there; a cluster that is there and does not take the node in is asked again only so often, and
/// then its reason is the error.
pub async fn find_cluster(
    identity: &NodeIdentity,
    me: &Peer,
    config: &NodeConfig,
    transport: &Transport,
    flags: &FeatureFlags,
) -> Result<Membership, StartError> {
    let others: Vec<&Peer> = config.peers.iter().filter(|p| p.name != me.name).collect();
    let retry = config.discovery;
    let mut round = 0_u32;
    let mut refused = 0_u64;
    loop {
        let hellos = ask_all(&others, transport).await;
        let member = hellos.iter().find_map(|hello| Some((hello, hello.cluster.as_ref()?)));
        if let Some((hello, cluster)) = member {
            let mine = cluster.founders.iter().find(|f| f.name == me.name && f.incarnation == identity.incarnation);
            if let Some(founder) = mine {
                flags.adopt(&hello.enabled.clone().unwrap_or_default())?;
                return Ok(Membership::Founder(Cluster { uid: founder.uid, ..cluster.clone() }));
            }
            let uid = random_u64();
            let joined = match hold_turn(&hello.name, &others, transport, flags).await? {
                Ok(()) => join(identity, me, uid, false, &others, transport).await,
                Err(reason) => Err(reason),
            };
            match joined {
                Ok(()) => return Ok(Membership::Joined(Cluster { uid, ..cluster.clone() })),
                Err(reason) => {
                    flags.abandon_join();
                    if retry.limit.is_some_and(|limit| refused >= limit) {
                        return Err(StartError::NotAdmitted(reason.to_string()));
                    }
                    tracing::warn!(%reason, "could not join the cluster yet");
                }
            }
            refused += 1;
        } else if let Some(why) = flags.incompatibility() {
            return Err(FlagsError::Incompatible(why).into());
        } else if hellos.len() == others.len() && others.iter().all(|p| me.name < p.name) {
            let begin: Vec<BTreeSet<String>> = hellos.iter().map(|hello| hello.begins_with.clone()).collect();
            flags.found(&config.flags.forced, &begin)?;
            return Ok(Membership::Founder(found(identity, me, &others, &hellos)));
        } else if round.is_multiple_of(10) {
            let missing: Vec<&str> =
                others.iter().filter(|p| !hellos.iter().any(|h| h.name == p.name)).map(|p| p.name.as_str()).collect();
            tracing::info!(?missing, "waiting for the other nodes to form the cluster");
        }
        round += 1;
        // Nodes that are started together find each other at once.
        tokio::time::sleep(if round < QUICK_ROUNDS { retry.pause.min(QUICK_PAUSE) } else { retry.pause }).await;
    }
}

/// Waits until no feature flags change, and takes over those of the cluster; they do not change until the node has joined.
/// Nodes that do not go together with this one never will.
async fn hold_turn(
    member: &str,
    others: &[&Peer],
    transport: &Transport,
    flags: &FeatureFlags,
) -> Result<Result<(), NotTaken>, StartError> {
    let Some(peer) = others.iter().find(|peer| peer.name == member) else {
        return Ok(Err(NotTaken::Yet(format!("{member} is not among the configured nodes"))));
    };
    match flags.begin_join(transport, CallTarget::Address(peer.address.clone())).await {
        Ok(()) => Ok(Ok(())),
        Err(CallError::Failed { code, message }) if code == INCOMPATIBLE_FLAGS || code == INCOMPATIBLE_VERSION => {
            Err(FlagsError::Incompatible(message).into())
        }
        Err(error) => Ok(Err(NotTaken::Yet(format!("{member}: {error}")))),
    }
}

/// Has the cluster that the node belongs to take its new member of the metadata group in, in place of the old one.
pub async fn join_again(
    identity: &NodeIdentity,
    me: &Peer,
    peers: &[Peer],
    uid: u64,
    retry: Retry,
    transport: &Transport,
) -> Result<(), NotTaken> {
    let others: Vec<&Peer> = peers.iter().filter(|p| p.name != me.name).collect();
    let mut refused = 0_u64;
    loop {
        match join(identity, me, uid, true, &others, transport).await {
            Ok(()) => return Ok(()),
            Err(NotTaken::Removed) => return Err(NotTaken::Removed),
            Err(reason) if retry.limit.is_some_and(|limit| refused >= limit) => return Err(reason),
            Err(reason) => tracing::warn!(%reason, "the new metadata member could not join yet"),
        }
        refused += 1;
        tokio::time::sleep(retry.pause).await;
    }
}

async fn ask_all(others: &[&Peer], transport: &Transport) -> Vec<Hello> {
    let mut asking = tokio::task::JoinSet::new();
    for peer in others {
        let (transport, peer) = (transport.clone(), (*peer).clone());
        asking.spawn(async move { ask(&peer, &transport).await });
    }
    let mut hellos = Vec::new();
    while let Some(answer) = asking.join_next().await {
        if let Ok(Ok(hello)) = answer {
            hellos.push(hello);
        }
    }
    hellos
}

/// Why a node did not say who it is.
#[derive(Debug)]
pub(crate) enum NoHello {
    /// It is there, and does not go together with this node.
    Incompatible(String),
    /// Nobody answers there, another node does, or what answers cannot be read.
    Unknown,
}

/// What the node at a peer's address says about itself, if it is that peer.
pub(crate) async fn ask(peer: &Peer, transport: &Transport) -> Result<Hello, NoHello> {
    let target = CallTarget::Address(peer.address.clone());
    let reply = async {
        let replies = transport.call(target, HELLO, Bytes::new(), HELLO_TIMEOUT).await?;
        replies.one().await
    };
    let bytes = match reply.await {
        Ok(bytes) => bytes,
        Err(CallError::Failed { code, message }) if code.starts_with(INCOMPATIBLE) => {
            tracing::debug!(peer = peer.name, message, "peer does not go together with this node");
            return Err(NoHello::Incompatible(message));
        }
        Err(error) => {
            tracing::debug!(peer = peer.name, %error, "peer does not answer");
            return Err(NoHello::Unknown);
        }
    };
    match serde_json::from_slice::<Hello>(&bytes) {
        Ok(hello) if hello.name == peer.name => return Ok(hello),
        Ok(hello) => tracing::warn!(
            address = peer.address,
            expected = peer.name,
            found = hello.name,
            "another node answers there"
        ),
        Err(error) => tracing::warn!(peer = peer.name, %error, "peer's answer does not decode"),
    }
    Err(NoHello::Unknown)
}

fn found(identity: &NodeIdentity, me: &Peer, others: &[&Peer], hellos: &[Hello]) -> Cluster {
    let uid = random_u64();
    let mut founders =
        vec![Founder { name: me.name.clone(), incarnation: identity.incarnation, uid, address: me.address.clone() }];
    for peer in others {
        if let Some(hello) = hellos.iter().find(|h| h.name == peer.name) {
            founders.push(Founder {
                name: peer.name.clone(),
                incarnation: hello.incarnation,
                uid: random_u64(),
                address: peer.address.clone(),
            });
        }
    }
    Cluster { id: random_u64(), founders, uid }
}

pub(super) async fn join(
    identity: &NodeIdentity,
    me: &Peer,
    uid: u64,
    returns: bool,
    others: &[&Peer],
    transport: &Transport,
) -> Result<(), NotTaken> {
    let (name, address) = (me.name.clone(), me.address.clone());
    let request = JoinRequest { name, incarnation: identity.incarnation, uid, address, returns };
    let payload = serde_json::to_vec(&request).map_err(|e| NotTaken::Yet(e.to_string()))?;
    let mut reason = "no member of the cluster answered".to_owned();
    for peer in others {
        let target = CallTarget::Address(peer.address.clone());
        let answer = async {
            let replies = transport.call(target, JOIN, Bytes::from(payload.clone()), JOIN_TIMEOUT).await?;
            replies.one().await
        };
        match answer.await {
            Ok(_) => return Ok(()),
            Err(CallError::Failed { code, .. }) if code == REMOVED => return Err(NotTaken::Removed),
            Err(error) => reason = format!("{}: {error}", peer.name),
        }
    }
    Err(NotTaken::Yet(reason))
}

#[cfg(test)]
mod tests {
    use serde_json::{from_str, json};

    use super::*;

    #[test]
    fn an_answer_with_ids_or_a_cluster_that_cannot_be_is_not_believed() {
        let founder = json!({ "name": "a@h", "incarnation": 1, "uid": 2, "address": "h:1" });
        let hello = |incarnation: u64, founders: &[&serde_json::Value]| {
            let cluster = json!({ "id": 3, "founders": founders, "uid": 2 });
            from_str::<Hello>(&json!({ "name": "a@h", "incarnation": incarnation, "cluster": cluster }).to_string())
        };
        assert!(hello(1, &[&founder]).is_ok());
        assert!(hello(0, &[&founder]).is_err());
        assert!(hello(1, &[]).is_err());
        assert!(hello(1, &[&founder, &founder]).is_err());
        let join = |uid: u64| json!({ "name": "a@h", "incarnation": 1, "uid": uid, "address": "h:1" }).to_string();
        assert!(from_str::<JoinRequest>(&join(4)).is_ok());
        assert!(from_str::<JoinRequest>(&join(0)).is_err());
    }
}
