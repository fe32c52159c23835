//! Joining a cluster that an operator names by one of its nodes (spec: operations.md, sections 2.1 and 5.5).
//!
//! Everything that may stand against it is found out before the node loses anything: the cluster takes the new member in
//! first, as one without a vote, and only then the node writes down that it begins anew. A node that dies in between is
//! what it was, and joins when it is asked to again; its cluster replaces the member that never came.

use std::time::Duration;

use bytes::Bytes;
use warren_metastore::machine::Machine;
use warren_raft::transport::{CallError, CallTarget, Transport};

use super::formation::{self, Hello, NoHello, Peer};
use super::identity_file::{Cluster, NodeIdentity, random_u64};
use super::next_life::NextLife;
use super::removal::{self, Question};
use crate::feature_flags::{Inventory, check_compatible as check_flags, fetch_inventories};

/// How long all nodes of the cluster may take to say which feature flags they have.
const INVENTORIES: Duration = Duration::from_secs(10);
/// Pause before the cluster is asked again to take the node in.
const PAUSE: Duration = Duration::from_millis(300);

/// Why a node did not join. Nothing was changed on it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum JoinError {
    /// The node was told to join itself.
    #[error("cannot_cluster_node_with_itself: node {0} cannot join itself")]
    Itself(String),
    /// Nobody answers there, or another node does.
    #[error("node {name} does not answer at {address}")]
    Unreachable {
        /// The node that was named.
        name: String,
        /// Where it was looked for.
        address: String,
    },
    /// It is still starting and belongs to none.
    #[error("node {0} belongs to no cluster yet")]
    NoCluster(String),
    /// The node would have to leave where it is first.
    #[error("already_clustered: this node belongs to a cluster with others; it leaves that with stop_app and reset")]
    Clustered,
    /// The two cannot work together.
    #[error("{0}")]
    Incompatible(String),
    /// The cluster there cannot take anybody in.
    #[error("the metadata store of {name}'s cluster timed out; it may have lost its majority: {reason}")]
    NoMajority {
        /// The node that was named.
        name: String,
        /// What it said.
        reason: String,
    },
}

/// What came of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Joined {
    /// The node is a member of that cluster.
    Already,
    /// The cluster has taken it in; this is to be stored, and the process to begin anew.
    Now(NextLife),
}

/// Has the cluster of `member` take this node in. `alone`: the node has no cluster, or is its only node. `flags`: the
/// feature flags that the node would have once its data is deleted.
pub async fn join(
    identity: &NodeIdentity,
    alone: bool,
    flags: &Inventory,
    me: &Peer,
    member: &Peer,
    timeout: Duration,
    transport: &Transport,
) -> Result<Joined, JoinError> {
    if member.name == me.name {
        return Err(JoinError::Itself(me.name.clone()));
    }
    let (name, address) = (member.name.clone(), member.address.clone());
    let hello = formation::ask(member, transport).await.map_err(|why| match why {
        NoHello::Incompatible(why) => JoinError::Incompatible(why),
        NoHello::Unknown => JoinError::Unreachable { name, address },
    })?;
    let cluster = hello.cluster.clone().ok_or_else(|| JoinError::NoCluster(member.name.clone()))?;
    let no_majority = |reason: String| JoinError::NoMajority { name: member.name.clone(), reason };
    let known = identity.cluster.as_ref().filter(|own| own.id == cluster.id).map(|own| own.uid);
    let uid = random_u64();
    let question = Question { cluster: cluster.id, member: known.unwrap_or(uid), from: me.clone() };
    let payload = serde_json::to_vec(&question).map_err(|error| no_majority(error.to_string()))?;
    // It answers once it has compared itself with its leader, so this tells whether there is a majority.
    let standing = match removal::ask(member, Bytes::from(payload), transport).await {
        Ok(Some(standing)) => standing,
        Ok(None) => return Err(JoinError::Incompatible(format!("the answer of {} cannot be read", member.name))),
        Err(CallError::Failed { message, .. }) => return Err(no_majority(message)),
        Err(error) => return Err(no_majority(error.to_string())),
    };
    if standing.belongs {
        return Ok(Joined::Already);
    }
    if !alone && known.is_none() {
        return Err(JoinError::Clustered);
    }
    check_compatible(&hello)?;
    let theirs = fetch_inventories(transport, CallTarget::Address(member.address.clone()), INVENTORIES).await;
    let theirs = theirs.map_err(|error| JoinError::Incompatible(format!("{} does not tell: {error}", member.name)))?;
    check_flags(flags, &theirs).map_err(|why| JoinError::Incompatible(why.to_string()))?;
    let incarnation = random_u64();
    let new = NodeIdentity { name: me.name.clone(), incarnation, cluster: None, has_databases: false };
    let mut why = format!("no answer within {timeout:?}");
    let taken = async {
        // Another change of members may be under way: one is made at a time.
        while let Err(reason) = formation::join(&new, me, uid, false, &[member], transport).await {
            why = reason.to_string();
            tokio::time::sleep(PAUSE).await;
        }
    };
    if tokio::time::timeout(timeout, taken).await.is_err() {
        return Err(no_majority(why));
    }
    let mut contacts = standing.nodes;
    contacts.retain(|contact| contact.name != me.name && contact.name != member.name);
    contacts.push(member.clone());
    Ok(Joined::Now(NextLife::member(&me.name, incarnation, Cluster { uid, ..cluster }, contacts)))
}

/// Whether this binary can read a cluster's metadata.
fn check_compatible(hello: &Hello) -> Result<(), JoinError> {
    let supported = *Machine::VERSIONS.end();
    if hello.metadata_version > supported.0 {
        return Err(JoinError::Incompatible(format!(
            "the metadata of {}'s cluster has machine version {}, and this node supports {} at most: upgrade it first",
            hello.name, hello.metadata_version, supported.0
        )));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cluster_with_newer_metadata_is_not_joined() {
        let supported = Machine::VERSIONS.end().0;
        let hello = |metadata_version| Hello {
            name: "a@h".to_owned(),
            incarnation: 1,
            cluster: None,
            metadata_version,
            begins_with: Default::default(),
            enabled: None,
        };
        check_compatible(&hello(supported)).unwrap();
        assert!(matches!(check_compatible(&hello(supported + 1)), Err(JoinError::Incompatible(_))));
    }
}
