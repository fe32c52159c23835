//! Queue data of this node that is not used: what cannot be read, and what belongs to no queue. Both are set aside in files
//! of their own, never just deleted.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use warren_metastore::records::{self, Queue};
use warren_proto::ids::{GroupId, MemberUid};
use warren_raft::runtime::HostError;
use warren_raft::storage::RocksStore;

use crate::cluster::identity_file::random_u64;
use crate::node::Broker;
use crate::operations::members::MemberError;

/// How long the metadata must have known no queue of a group before the group's data is set aside: deletions that were
/// applied a moment ago are on their way.
const UNKNOWN_FOR: Duration = Duration::from_secs(10);

/// How long data stays in quarantine.
const KEPT: Duration = Duration::from_secs(7 * 24 * 3600);

/// The files of a folder; none where there is no folder.
fn files_in(folder: &Path) -> std::io::Result<Vec<std::fs::DirEntry>> {
    match std::fs::read_dir(folder) {
        Ok(files) => files.collect(),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(error) => Err(error),
    }
}

/// What is known of such data, and where it goes.
pub(crate) struct Quarantine {
    store: Arc<RocksStore>,
    folder: PathBuf,
    /// Groups whose data here cannot be read, until their members are replaced.
    damaged: Mutex<BTreeSet<GroupId>>,
    /// Groups without a queue, and since when that is known.
    unknown: Mutex<BTreeMap<GroupId, Instant>>,
    /// Those that are to be set aside.
    due: Mutex<Vec<GroupId>>,
    /// Groups whose data here is of a member that was replaced while this node was away.
    foreign: Mutex<BTreeSet<GroupId>>,
}

impl Quarantine {
    /// Sets data of `store` aside in `folder`.
    pub fn new(store: Arc<RocksStore>, folder: PathBuf) -> Self {
        Quarantine {
            store,
            folder,
            damaged: Mutex::default(),
            unknown: Mutex::default(),
            due: Mutex::default(),
            foreign: Mutex::default(),
        }
    }

    /// A group's data here cannot be read. False: that was known.
    pub fn note_damage(&self, group: GroupId) -> bool {
        self.damaged.lock().insert(group)
    }

    /// Whether a group's data here cannot be read.
    pub fn is_damaged(&self, group: GroupId) -> bool {
        self.damaged.lock().contains(&group)
    }

    /// A group's data here is of a member that was replaced.
    pub fn note_foreign(&self, group: GroupId) {
        self.foreign.lock().insert(group);
    }

    /// Whether there is such data.
    pub fn has_foreign(&self) -> bool {
        !self.foreign.lock().is_empty()
    }

    /// Deletes what has been in quarantine for [`KEPT`].
    fn expire(&self) -> std::io::Result<()> {
        for file in files_in(&self.folder)? {
            let age = file.metadata()?.modified()?.elapsed().unwrap_or_default();
            if age >= KEPT {
                std::fs::remove_file(file.path())?;
                tracing::warn!(file = %file.path().display(), "seven days are over: data is deleted from the quarantine");
            }
        }
        Ok(())
    }

    fn damaged(&self) -> Vec<GroupId> {
        self.damaged.lock().iter().copied().collect()
    }

    /// Whether a group has had no queue for long enough. Every group without one is named each time.
    fn unknown_for_long(&self, groups: &[GroupId]) -> Vec<GroupId> {
        let mut unknown = self.unknown.lock();
        unknown.retain(|group, _| groups.contains(group));
        let long = |group: &&GroupId| unknown.entry(**group).or_insert_with(Instant::now).elapsed() >= UNKNOWN_FOR;
        groups.iter().filter(long).copied().collect()
    }
}

impl Broker {
    /// The files in this node's quarantine, in order of their names, with their sizes in bytes.
    pub fn quarantined(&self) -> std::io::Result<Vec<(PathBuf, u64)>> {
        let mut files = Vec::new();
        for file in files_in(&self.quarantine.folder)? {
            files.push((file.path(), file.metadata()?.len()));
        }
        files.sort();
        Ok(files)
    }

    /// Sets the data of members aside that were replaced while this node was away, and starts the new ones.
    pub(crate) async fn set_foreign_aside(&self) {
        let foreign = std::mem::take(&mut *self.quarantine.foreign.lock());
        for group in foreign {
            if !self.set_aside(group, "it is of a member that was replaced").await {
                self.quarantine.note_foreign(group);
            } else if let Some(queue) = self.metadata.queue_of_group(group) {
                self.start_here(&queue).await;
            }
        }
    }

    /// Groups of this node whose queues the metadata does not know stop at once. Their data is to be set aside if that stays so, and
    /// while none of the changes that wait, if any do, can be their deletion.
    pub(crate) async fn quarantine_unknown(&self, settled: bool) {
        let mut local = self.queues.groups();
        let damaged = self.quarantine.damaged();
        for group in damaged.iter().filter(|group| self.queues.has_group(**group)) {
            // Its shard was too busy to be told.
            let _ = self.queues.close_group(*group);
        }
        local.extend(&damaged);
        local.extend(self.quarantine.unknown.lock().keys());
        local.sort_unstable();
        local.dedup();
        let is_here = |queue: &Queue| queue.members.iter().any(|member| member.node == self.me);
        let unknown = |group: &GroupId| match self.metadata.queue_of_group(*group) {
            Some(queue) => damaged.contains(group) && !is_here(&queue),
            None => true,
        };
        let unknown: Vec<GroupId> = local.into_iter().filter(unknown).collect();
        for group in unknown.iter().filter(|group| self.queues.has_group(**group)) {
            tracing::warn!(%group, "queue data of this node belongs to no queue: it takes part in nothing");
            let _ = self.queues.close_group(*group);
        }
        let long = self.quarantine.unknown_for_long(&unknown);
        if settled {
            *self.quarantine.due.lock() = long;
        }
    }

    /// Deletes what has been set aside for long, and sets the data aside that has belonged to no queue for long enough. Takes as long as copying it does.
    pub(crate) async fn set_unknown_aside(&self) {
        if let Err(error) = self.quarantine.expire() {
            tracing::warn!(%error, "the quarantine's old files cannot be deleted");
        }
        let due = std::mem::take(&mut *self.quarantine.due.lock());
        for group in due.into_iter().filter(|group| self.metadata.queue_of_group(*group).is_none()) {
            if self.set_aside(group, "no queue is known that it belongs to").await {
                self.quarantine.unknown.lock().remove(&group);
            }
        }
    }

    /// Moves a closed group's data to the quarantine. False: it stays where it is for now.
    async fn set_aside(&self, group: GroupId, why: &'static str) -> bool {
        let (store, folder) = (Arc::clone(&self.quarantine.store), self.quarantine.folder.clone());
        let written = tokio::task::spawn_blocking(move || store.set_aside(group, &folder)).await;
        let set = match written {
            Ok(Ok(set)) => set,
            Ok(Err(error)) => {
                tracing::error!(%group, %error, "a group's data cannot be set aside; it stays where it is, unused");
                return false;
            }
            Err(error) => {
                tracing::error!(%group, %error, "a group's data cannot be set aside; it stays where it is, unused");
                return false;
            }
        };
        if set.rows == 0 && set.unreadable == 0 {
            // Deleted meanwhile.
            let _ = std::fs::remove_file(&set.file);
        } else {
            let (file, rows, unreadable) = (set.file.display(), set.rows, set.unreadable);
            tracing::warn!(%group, why, %file, rows, unreadable, "a group's data is in quarantine");
        }
        match self.queues.remove_group(group).await {
            Ok(()) | Err(HostError::NoSuchGroup) => {}
            Err(error) => {
                tracing::warn!(%group, %error, "a group's data is in quarantine and not removed yet");
                return false;
            }
        }
        self.quarantine.damaged.lock().remove(&group);
        true
    }

    /// This node's member of a queue has data that cannot be read: a new member takes its place in the queue's record, and
    /// the data is set aside. It is to be named to the group then.
    pub(crate) async fn replace_damaged(&self, queue: &Queue, own: &records::Member) -> Result<(), MemberError> {
        let target = self.metadata.queue_target(&queue.vhost, &queue.name).ok_or(MemberError::NotFound)?;
        // Others lead, so the group lives without this member; else what can still be read here may be all there is.
        if self.queue_leader(&target).await.is_none_or(|leader| leader == self.me) {
            return Err(MemberError::Timeout);
        }
        let local = self.quarantine.store.member(queue.group);
        if local.is_none_or(|local| local == own.uid) {
            let new = records::Member { uid: MemberUid(random_u64()), joined: true, ..*own };
            self.write_members(&target, |members| {
                members.iter_mut().filter(|m| m.uid == own.uid).for_each(|member| *member = new);
            })
            .await?;
        }
        match self.set_aside(queue.group, "it cannot be read").await {
            true => Ok(()),
            false => Err(MemberError::Metadata("the old data could not be set aside".into())),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::SystemTime;

    use warren_raft::storage::StoreConfig;

    use super::*;

    #[test]
    fn what_was_set_aside_is_deleted_after_seven_days() {
        let folder = tempfile::tempdir().unwrap();
        let store = Arc::new(RocksStore::open(folder.path().join("queues"), StoreConfig::queues()).unwrap());
        let quarantine = Quarantine::new(store, folder.path().join("quarantine"));
        quarantine.expire().unwrap();
        std::fs::create_dir(&quarantine.folder).unwrap();
        for (name, days) in [("old", 8), ("new", 6)] {
            let file = File::create(quarantine.folder.join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(days * 24 * 3600)).unwrap();
        }
        quarantine.expire().unwrap();
        let left: Vec<_> = files_in(&quarantine.folder).unwrap().iter().map(std::fs::DirEntry::file_name).collect();
        assert_eq!(left, ["new"]);
    }
}
