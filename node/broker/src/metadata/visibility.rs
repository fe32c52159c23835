//! Changes that other nodes have seen too, by the time that they are answered (spec: metadata-store.md, section 3.3).
//!
//! A client that declared something finds it on its own node in any case. Another client, on another node, may have been told
//! of it by the first, and be quicker than the change. So an answer waits for a moment, `metadata_store.visibility_wait` at
//! most, until every node that gives signs of life has applied it. Each of them is asked once at a time, for the newest change
//! that somebody waits for.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio::time::Instant;
use warren_proto::ids::NodeId;
use warren_raft::transport::{CallTarget, Transport};

/// Method of the transport's calls by which a node is asked to say when it has applied an index.
pub(crate) const APPLIED: &str = "metadata.applied";

/// How long the one that is asked waits before it says how far it is.
pub(crate) const PATIENCE: Duration = Duration::from_millis(200);
/// Pause after a question that was not answered.
const PAUSE: Duration = Duration::from_millis(100);

/// What this node knows of how far others are.
pub(super) struct Visibility {
    transport: Transport,
    wait: Duration,
    peers: Mutex<HashMap<NodeId, Arc<Peer>>>,
}

struct Peer {
    /// It has applied so much, or more.
    applied: Arc<watch::Sender<u64>>,
    /// Somebody waits for that.
    wanted: watch::Sender<u64>,
}

impl Visibility {
    pub fn new(transport: Transport, wait: Duration) -> Self {
        Visibility { transport, wait, peers: Mutex::default() }
    }

    /// Waits until all of these nodes that are up have applied `index`, or for as long as an answer may be held back.
    pub async fn wait(&self, index: u64, nodes: impl Iterator<Item = NodeId>) {
        let deadline = Instant::now() + self.wait;
        let others = nodes.filter(|node| self.transport.is_up(*node));
        let behind: Vec<Arc<Peer>> =
            others.map(|node| self.peer(node)).filter(|peer| *peer.applied.borrow() < index).collect();
        for peer in &behind {
            peer.wanted.send_if_modified(|wanted| {
                let more = index > *wanted;
                *wanted = index.max(*wanted);
                more
            });
        }
        for peer in &behind {
            let mut applied = peer.applied.subscribe();
            if tokio::time::timeout_at(deadline, applied.wait_for(|applied| *applied >= index)).await.is_err() {
                return;
            }
        }
    }

    fn peer(&self, node: NodeId) -> Arc<Peer> {
        let mut peers = self.peers.lock();
        let peer = peers.entry(node).or_insert_with(|| {
            let (applied, wanted) = (Arc::new(watch::Sender::new(0)), watch::Sender::new(0));
            tokio::spawn(ask(node, self.transport.clone(), Arc::clone(&applied), wanted.subscribe()));
            Arc::new(Peer { applied, wanted })
        });
        Arc::clone(peer)
    }
}

/// Asks a node about what is wanted, until nobody can want anything any more.
async fn ask(node: NodeId, transport: Transport, applied: Arc<watch::Sender<u64>>, mut wanted: watch::Receiver<u64>) {
    loop {
        let index = match wanted.wait_for(|wanted| *wanted > *applied.borrow()).await {
            Ok(index) => *index,
            Err(_) => return,
        };
        let answer = async {
            let question = Bytes::copy_from_slice(&index.to_be_bytes());
            transport.call(CallTarget::Node(node), APPLIED, question, 2 * PATIENCE).await?.one().await
        };
        let told = answer.await.ok().and_then(|bytes| Some(u64::from_be_bytes(bytes.as_ref().try_into().ok()?)));
        match told {
            Some(told) => drop(applied.send_if_modified(|known| {
                let more = told > *known;
                *known = told.max(*known);
                more
            })),
            None => tokio::time::sleep(PAUSE).await,
        }
    }
}
