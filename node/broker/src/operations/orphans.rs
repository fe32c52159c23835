//! Queues of this node that have lost what they lived by: the connection that they were exclusive to, or their last consumer
//! (spec: metadata-store.md, sections 9 and 10).
//!
//! They are deleted at once where that is possible. Where it is not, since the metadata store has lost its majority, they are
//! looked for again until they are gone: by what is stored, not by what was tried. So a declaration that timed out and was
//! carried out later leaves nothing behind either.

use std::collections::HashSet;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use tokio::sync::mpsc;
use warren_metastore::records::{Queue, QueueKind, Stored};
use warren_proto::ids::GroupId;

use super::members::AT_ONCE;
use crate::node::Broker;

/// Time between two looks at what is stored.
const LOOK: Duration = Duration::from_secs(5);
/// Pause after a failed attempt, at first; it doubles each time, up to [`LOOK`].
const PAUSE: Duration = Duration::from_millis(200);
/// How long a round waits to be sure that the metadata can be written.
const FENCE: Duration = Duration::from_secs(5);

/// Works until the broker is gone. `left`: queues that lost their last consumer. `dead`: those that the last process left
/// behind and that could not be deleted yet.
pub(crate) async fn run(broker: Weak<Broker>, mut left: mpsc::UnboundedReceiver<GroupId>, dead: HashSet<GroupId>) {
    let (mut abandoned, mut dead) = (HashSet::new(), dead);
    let mut pause = if dead.is_empty() { LOOK } else { PAUSE };
    loop {
        let mut new = Vec::new();
        tokio::select! {
            count = left.recv_many(&mut new, AT_ONCE) => if count == 0 {
                return;
            },
            () = tokio::time::sleep(pause) => {}
        }
        let Some(broker) = broker.upgrade() else { return };
        if new.is_empty() {
            let orphans = broker.orphans(&abandoned, &dead);
            let failed = match orphans.is_empty() {
                true => HashSet::new(),
                // One that waits for its majority does not take the whole time of a write for each queue.
                false => match broker.metadata.fence(FENCE).await {
                    Ok(()) => broker.delete_orphans(orphans).await,
                    Err(_) => orphans.iter().map(|queue| queue.group).collect(),
                },
            };
            abandoned.retain(|group| failed.contains(group));
            dead.retain(|group| failed.contains(group));
            pause = if failed.is_empty() { LOOK } else { (pause * 2).min(LOOK) };
        } else {
            let queues = new.into_iter().filter_map(|group| broker.abandoned(group)).collect();
            let failed = broker.delete_orphans(queues).await;
            if !failed.is_empty() {
                abandoned.extend(failed);
                pause = PAUSE;
            }
        }
    }
}

impl Broker {
    /// The auto-delete queue of that group, if it has no consumer.
    fn abandoned(&self, group: GroupId) -> Option<Arc<Stored<Queue>>> {
        let queue = self.metadata.queue_of_group(group).filter(|queue| queue.auto_delete)?;
        self.classic.stats(group).is_some_and(|stats| stats.consumers.is_empty()).then_some(queue)
    }

    /// Whether a queue is exclusive to a connection of this node that has ended.
    fn lost_its_owner(&self, queue: &Queue) -> bool {
        queue.exclusive_owner.is_some_and(|owner| {
            let lives = owner.incarnation == self.sessions.incarnation() && self.connections.contains(owner.connection);
            owner.node == self.me && !lives
        })
    }

    fn orphans(&self, abandoned: &HashSet<GroupId>, dead: &HashSet<GroupId>) -> Vec<Arc<Stored<Queue>>> {
        let noted =
            |group: GroupId| dead.contains(&group) || abandoned.contains(&group) && self.abandoned(group).is_some();
        let all = self.metadata.queues().into_iter();
        all.filter(|queue| self.lost_its_owner(queue) || noted(queue.group)).collect()
    }

    /// Answers which were not deleted.
    async fn delete_orphans(&self, queues: Vec<Arc<Stored<Queue>>>) -> HashSet<GroupId> {
        stream::iter(queues)
            .map(|queue| async move {
                let error = self.delete_queue(&queue).await.err()?;
                tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "a queue that nobody owns any more was not deleted yet");
                Some(queue.group)
            })
            .buffer_unordered(AT_ONCE)
            .filter_map(|failed| async move { failed })
            .collect()
            .await
    }

    /// Deletes queues that cannot have survived this node's restart: transient classic ones, and exclusive ones of
    /// connections that ended with the last process. Answers which are still there.
    pub(crate) async fn delete_own_dead_queues(&self) -> HashSet<GroupId> {
        let dead = |queue: &Queue| match queue.exclusive_owner {
            Some(owner) => owner.node == self.me && owner.incarnation != self.sessions.incarnation(),
            None => queue.kind == QueueKind::Classic && queue.home == self.me && !queue.durable,
        };
        self.delete_orphans(self.metadata.queues().into_iter().filter(|queue| dead(queue)).collect()).await
    }
}
