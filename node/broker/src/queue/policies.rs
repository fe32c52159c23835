//! Tells quorum queues that their policies changed.
//!
//! Whoever becomes a queue's leader compares the queue's configuration with what the metadata says, and does so again now and
//! then ([`QuorumMachine`](super::group::QuorumMachine)). Most queues sleep, so a change of policies is brought to those
//! whose policies are others than before: to every member on this node, since who leads may change meanwhile. So many at a
//! time that a policy for ten thousand queues does not keep the node from its other work.

use std::collections::HashMap;
use std::sync::{Arc, Weak};
use std::time::Duration;

use warren_metastore::projections::{Policies, QueueTarget, View};
use warren_metastore::records::QueueKind;

use super::group::GroupRequest;
use crate::node::Broker;
use crate::policy::warn_of_fallback;

/// Queues that are looked at before a pause.
const AT_ONCE: usize = 256;
/// The pause: time for what the leaders then append.
const PAUSE: Duration = Duration::from_millis(50);

/// The policies of each vhost, as its queues know them.
type Known = HashMap<Arc<str>, Arc<Policies>>;

/// A queue whose policies may have changed, with those it knew and those of now.
type Doubtful = (Arc<QueueTarget>, Arc<Policies>, Arc<Policies>);

/// Runs until the broker is gone.
pub(crate) async fn run(broker: Weak<Broker>) {
    let Some(mut changes) = broker.upgrade().map(|broker| broker.metadata.policies_changed()) else { return };
    let mut known = Known::new();
    loop {
        changes.mark_unchanged();
        {
            let Some(broker) = broker.upgrade() else { return };
            let view = broker.metadata.projections().load();
            let doubtful = doubtful(&view, &mut known);
            drop(view);
            if !doubtful.is_empty() {
                // Also a policy says how many members a queue is to have.
                broker.may_grow.notify_one();
                broker.tell(doubtful).await;
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// The quorum queues of the vhosts whose policies changed. From now on those of the view are known.
fn doubtful(view: &View, known: &mut Known) -> Vec<Doubtful> {
    let mut found = Vec::new();
    let mut now = Known::new();
    for vhost in view.vhosts().filter_map(|record| view.vhost(&record.name)) {
        let Some(record) = vhost.record() else { continue };
        let policies = vhost.policies();
        let before = known.get(&record.name).cloned().unwrap_or_default();
        now.insert(record.name.clone(), Arc::clone(policies));
        if Arc::ptr_eq(&before, policies) || (before.is_empty() && policies.is_empty()) {
            continue;
        }
        let quorum = vhost.queues().filter(|queue| queue.kind == QueueKind::Quorum);
        found.extend(quorum.map(|queue| (Arc::clone(queue), Arc::clone(&before), Arc::clone(policies))));
    }
    *known = now;
    found
}

impl Broker {
    /// Tells the queues with other policies than before, until this node's members of all of them have been told.
    async fn tell(&self, mut doubtful: Vec<Doubtful>) {
        loop {
            let chunk = doubtful.split_off(doubtful.len().saturating_sub(AT_ONCE));
            for (queue, before, now) in chunk {
                let kind = queue.kind;
                let same = before.of_queue(&queue.name, kind) == now.of_queue(&queue.name, kind);
                if same || !self.queues.has_group(queue.group) {
                    continue;
                }
                // Refused where the group has too much to do: then it is asked again.
                if self.queues.send(queue.group, GroupRequest::Configure).is_err() {
                    doubtful.push((queue, before, now));
                } else if let Some(config) = self.metadata.quorum_config(queue.group) {
                    warn_of_fallback(&config, &queue.vhost, &queue.name);
                }
            }
            if doubtful.is_empty() {
                return;
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
