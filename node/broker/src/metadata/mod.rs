//! This node's access to the metadata tree: reads from the local tree and its projections, writes through the leader.

mod machine;
mod reads;
pub(crate) mod visibility;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use parking_lot::Mutex;
use rustc_hash::FxHashMap;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use warren_metastore::machine::{MAX_COMMAND, Reply, Request, RequestId, Write};
use warren_metastore::projections::Projections;
use warren_metastore::tree::{MetaError, Tree};
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::runtime::Host;
use warren_raft::transport::Transport;

pub use machine::MetaMachine;

use crate::queue::links::Links;
use crate::queue::supervisor::QueueChange;
use visibility::Visibility;

/// Pause before a command that was not applied yet is sent again. The machine applies it once.
const RETRY: Duration = Duration::from_millis(200);
/// How long the machine remembers a reply beyond the caller's patience.
const DEDUP_MARGIN_MS: u64 = 60_000;

/// A write that was not carried out, or of which nobody knows.
#[derive(Debug, Clone, thiserror::Error)]
pub enum WriteError {
    /// No majority applied it in time. It may still happen.
    #[error("the metadata store timed out; it may have lost its majority")]
    Timeout,
    /// It was applied, and refused.
    #[error(transparent)]
    Refused(#[from] MetaError),
}

/// What matters more in a read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Favor {
    /// The answer comes at once, from what this node has applied.
    #[default]
    LowLatency,
    /// The answer has everything that was committed when the question was asked: the leader, confirmed by a majority, says
    /// how far that is, and this node catches up to it first.
    Consistency,
}

type Pending = FxHashMap<u64, oneshot::Sender<Result<Reply, MetaError>>>;

/// What the metadata group's member on this node shares with everybody else on it.
pub struct Shared {
    /// Distinguishes this process's requests from those of its earlier lives.
    origin: u64,
    projections: Projections,
    pending: Mutex<Pending>,
    applied: watch::Sender<u64>,
    /// Sent to whenever policies changed.
    policies: watch::Sender<()>,
    /// Whether this node's tree has caught up since the process began.
    current: AtomicBool,
    queue_changes: mpsc::UnboundedSender<QueueChange>,
}

/// See the module's head. Cheap to clone.
#[derive(Clone)]
pub struct Metadata {
    shared: Arc<Shared>,
    next_seq: Arc<AtomicU64>,
    host: Arc<OnceLock<Host<MetaMachine>>>,
    links: Arc<OnceLock<Arc<Links>>>,
    visibility: Arc<OnceLock<Visibility>>,
    timeout: Duration,
}

impl Metadata {
    /// Access for this process; `timeout` bounds every write (`metadata_store.default_timeout`).
    /// Declared and deleted queues are named to `queue_changes`.
    pub fn new(origin: u64, timeout: Duration, queue_changes: mpsc::UnboundedSender<QueueChange>) -> Self {
        let (applied, _) = watch::channel(0);
        let (policies, _) = watch::channel(());
        Metadata {
            shared: Arc::new(Shared {
                origin,
                projections: Projections::new(),
                pending: Mutex::default(),
                applied,
                policies,
                current: AtomicBool::new(false),
                queue_changes,
            }),
            next_seq: Arc::new(AtomicU64::new(1)),
            host: Arc::default(),
            links: Arc::default(),
            visibility: Arc::default(),
            timeout,
        }
    }

    /// A machine for this node's member.
    pub fn machine(&self) -> MetaMachine {
        MetaMachine::new(Arc::clone(&self.shared))
    }

    /// Names the group's host and the way to peers. The first call counts.
    pub fn connect(&self, host: Host<MetaMachine>, links: Arc<Links>) {
        let _ = self.host.set(host);
        let _ = self.links.set(links);
    }

    /// From now on, answers to writes wait until other nodes have seen them, so long at most. The first call counts.
    pub(crate) fn show_to_others(&self, transport: Transport, wait: Duration) {
        if !wait.is_zero() {
            let _ = self.visibility.set(Visibility::new(transport, wait));
        }
    }

    /// Waits until the other nodes have applied what this one has.
    async fn seen_by_others(&self) {
        let (Some(visibility), Some(host)) = (self.visibility.get(), self.host.get()) else { return };
        // What the group says of itself is a moment older than what was answered.
        let applied = self.shared.projections.peek().applied().index();
        let me = host.node();
        let nodes = self.nodes();
        visibility.wait(applied, nodes.iter().map(|node| node.id).filter(|node| *node != me)).await;
    }

    /// How far this node's tree is, once it is as far as `index`, or after a while.
    pub(crate) async fn applied_within(&self, index: u64, patience: Duration) -> Option<u64> {
        let host = self.host.get()?;
        let _ = tokio::time::timeout(patience, host.wait_applied(GroupId::METADATA, index)).await;
        Some(host.status(GroupId::METADATA)?.applied)
    }

    /// The Raft host of the metadata group.
    pub fn host(&self) -> Option<&Host<MetaMachine>> {
        self.host.get()
    }

    /// The tree as applied on this node now.
    pub fn tree(&self) -> Tree {
        self.shared.projections.peek().tree().clone()
    }

    /// A tree as new as the caller asks for. Without a majority only [`Favor::LowLatency`] is answered; the others time out.
    pub async fn tree_favoring(&self, favor: Favor, timeout: Duration) -> Result<Tree, WriteError> {
        match favor {
            Favor::LowLatency => {}
            Favor::Consistency => self.fence(timeout).await?,
        }
        Ok(self.tree())
    }

    /// The read models fed by the tree.
    pub fn projections(&self) -> &Projections {
        &self.shared.projections
    }

    /// Changes whenever something was applied: for loops that compare what is with what should be.
    pub fn applied(&self) -> watch::Receiver<u64> {
        self.shared.applied.subscribe()
    }

    /// Changes whenever policies changed.
    pub(crate) fn policies_changed(&self) -> watch::Receiver<()> {
        self.shared.policies.subscribe()
    }

    /// From now on, this node's tree is what the cluster's was when the process began, or newer.
    pub(crate) fn set_current(&self) {
        self.shared.current.store(true, Ordering::Release);
    }

    /// The node that leads the metadata group, as far as this node knows.
    pub fn leader(&self) -> Option<NodeId> {
        self.host.get()?.leader(GroupId::METADATA)
    }

    /// Applies a write and answers once this node has applied it and its projections show it.
    pub async fn write(&self, write: Write) -> Result<Reply, WriteError> {
        self.write_within(write, self.timeout).await
    }

    /// [`write`](Self::write) with a time limit of its own.
    pub async fn write_within(&self, write: Write, timeout: Duration) -> Result<Reply, WriteError> {
        let seq = self.next_seq.fetch_add(1, Ordering::Relaxed);
        let (sender, mut reply) = oneshot::channel();
        self.shared.pending.lock().insert(seq, sender);
        let request = Request {
            id: RequestId { origin: self.shared.origin, seq },
            deadline_ms: now_ms() + timeout.as_millis() as u64 + DEDUP_MARGIN_MS,
            // A copy of an answered request may still be on its way to a leader, so its reply is kept until the
            // deadline.
            acked_below: 0,
        };
        let command = Bytes::from(write.to_bytes(Some(&request)));
        if command.len() > MAX_COMMAND {
            self.shared.pending.lock().remove(&seq);
            return Err(WriteError::Refused(MetaError::TxnTooLarge));
        }
        let deadline = Instant::now() + timeout;
        let outcome = loop {
            if let (Some(leader), Some(links)) = (self.leader(), self.links.get()) {
                links.to_metadata(leader, command.clone());
            }
            let pause = (Instant::now() + RETRY).min(deadline);
            match tokio::time::timeout_at(pause, &mut reply).await {
                Ok(Ok(reply)) => break reply.map_err(WriteError::from),
                Ok(Err(_)) => break Err(WriteError::Timeout),
                Err(_) if Instant::now() >= deadline => break Err(WriteError::Timeout),
                Err(_) => {}
            }
        };
        self.shared.pending.lock().remove(&seq);
        if outcome.is_ok() {
            self.seen_by_others().await;
        }
        outcome
    }

    /// Waits until this node's tree contains everything that was committed when the call began.
    pub async fn fence(&self, timeout: Duration) -> Result<(), WriteError> {
        let Some(host) = self.host.get() else { return Err(WriteError::Timeout) };
        let fence = async {
            loop {
                match host.read_index(GroupId::METADATA).await {
                    Ok(index) => {
                        if host.wait_applied(GroupId::METADATA, index).await.is_ok() {
                            return;
                        }
                    }
                    Err(_) => tokio::time::sleep(RETRY).await,
                }
            }
        };
        tokio::time::timeout(timeout, fence).await.map_err(|_| WriteError::Timeout)
    }
}

/// Wall clock in milliseconds since 1970.
pub fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as u64
}

#[cfg(test)]
mod tests {
    use warren_metastore::tree::{Component, Op, Path, Payload};

    use super::*;

    fn unconnected() -> Metadata {
        let (queue_changes, _) = mpsc::unbounded_channel();
        Metadata::new(7, Duration::from_millis(20), queue_changes)
    }

    #[tokio::test]
    async fn without_a_group_only_a_read_that_waits_for_nobody_is_answered() {
        let metadata = unconnected();
        let limit = Duration::from_millis(20);
        assert!(metadata.tree_favoring(Favor::LowLatency, limit).await.is_ok());
        let fenced = metadata.tree_favoring(Favor::Consistency, limit).await;
        assert!(matches!(fenced, Err(WriteError::Timeout)));
    }

    #[tokio::test]
    async fn a_write_that_no_log_would_take_is_refused_at_once() {
        let metadata = unconnected();
        let payload = || Payload { kind: 99, schema: 1, bytes: vec![0; 1 << 20].into() };
        let put = |n: u8| Op::create(Path::new(vec![Component::name([n])]), payload());
        let refused = metadata.write(Write::new((0..4).map(put).collect())).await;
        assert!(matches!(refused, Err(WriteError::Refused(MetaError::TxnTooLarge))));
        assert!(metadata.shared.pending.lock().is_empty());
        // One that fits waits for a leader that is not there.
        let waited = metadata.write(Write::new((0..3).map(put).collect())).await;
        assert!(matches!(waited, Err(WriteError::Timeout)));
    }
}
