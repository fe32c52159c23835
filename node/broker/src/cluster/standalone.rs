//! Recovery from the loss of a cluster's majority: a stopped node is made the only member of all of its groups.

use std::path::Path;

use warren_proto::ids::NodeId;
use warren_raft::driver::make_alone;
use warren_raft::log_store::{LogStore, StoreError, Write};
use warren_raft::storage::{RocksStore, StoreConfig};

use super::identity_file::{Founder, IdentityError, NodeIdentity};
use crate::start::database_paths;

/// Groups written at once.
const BATCH: usize = 256;

/// What was done to a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Standalone {
    /// Quorum queues with a member here.
    pub queues: usize,
    /// Those that had other members.
    pub reduced: usize,
}

/// Why a node was not made the only one of its cluster.
#[derive(Debug, thiserror::Error)]
pub enum StandaloneError {
    /// The data directory's identity cannot be used.
    #[error(transparent)]
    Identity(#[from] IdentityError),
    /// A database cannot be opened, read or written.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// It never belonged to a cluster, so there is nothing to recover.
    #[error("the node belongs to no cluster yet")]
    NoCluster,
}

/// Makes a node that is not running, and whose folder the caller has locked, the only member of the metadata group and
/// of every queue that has a member here. Doing it again changes nothing.
pub fn make_standalone(name: &str, data: &Path, queues_data: &Path) -> Result<Standalone, StandaloneError> {
    let mut identity = NodeIdentity::load(data, name)?;
    let databases = database_paths(data, queues_data);
    identity.check_databases(&databases)?;
    let incarnation = identity.incarnation;
    let cluster = identity.cluster.as_mut().ok_or(StandaloneError::NoCluster)?;
    // Those that are lost are not to be waited for, nor named to whoever joins. The address is written when it starts.
    let address = cluster.founders.iter().find(|f| f.name == name).map(|f| f.address.clone()).unwrap_or_default();
    cluster.founders = vec![Founder { name: name.to_owned(), incarnation, uid: cluster.uid, address }];
    let [metadata, queues] = databases;
    let node = NodeId::of_name(name);
    let (queues, reduced) = reduce(&RocksStore::open(&queues, StoreConfig::queues())?, node)?;
    reduce(&RocksStore::open(&metadata, StoreConfig::metadata())?, node)?;
    identity.store(data)?;
    Ok(Standalone { queues, reduced })
}

/// Answers how many groups there are, and how many were changed.
fn reduce(store: &dyn LogStore, node: NodeId) -> Result<(usize, usize), StoreError> {
    let groups = store.groups()?;
    let writes: Vec<Vec<Write>> = groups.iter().map(|record| make_alone(record, node)).collect();
    let changed: Vec<Vec<Write>> = writes.into_iter().filter(|writes| !writes.is_empty()).collect();
    for batch in changed.chunks(BATCH) {
        store.write(&batch.concat())?;
    }
    Ok((groups.len(), changed.len()))
}
