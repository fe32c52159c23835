//! Recent committed batches in memory, for whoever reads bodies: one bounded cache per node, shared by all groups.

use std::collections::VecDeque;
use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use warren_proto::batch::Batch;
use warren_proto::ids::GroupId;

use crate::log_store::{EntryKind, LogStore};
use crate::machine::{EntryReader, ReadError};

/// Bytes that a cached entry costs beside its data.
const OVERHEAD: usize = 96;

/// The newest committed batches, oldest out first. Readers on other threads take a read lock for one lookup; the shard
/// that applies takes the write lock once per entry.
pub struct EntryCache {
    store: Arc<dyn LogStore>,
    parts: Box<[RwLock<Part>]>,
    part_limit: usize,
}

/// The cached entries of a group, and what they cost.
#[derive(Default)]
struct Cached {
    /// Index, batch, cost.
    entries: VecDeque<(u64, Batch, usize)>,
    bytes: usize,
}

#[derive(Default)]
struct Part {
    groups: FxHashMap<GroupId, Cached>,
    order: VecDeque<(GroupId, u64, usize)>,
    /// Of all places in `order`.
    bytes: usize,
    /// Of those whose group is there.
    alive: usize,
}

impl EntryCache {
    /// A cache of at most `bytes` in `parts` partitions, over `store`. A group belongs to the partition that
    /// [`shard_of`] says, so that two shards never wait for each other.
    pub fn new(store: Arc<dyn LogStore>, bytes: usize, parts: usize) -> Self {
        let parts = parts.max(1);
        EntryCache { store, parts: (0..parts).map(|_| RwLock::default()).collect(), part_limit: bytes / parts }
    }

    /// Bytes in the cache, and at most.
    pub fn bytes(&self) -> (usize, usize) {
        let used = self.parts.iter().map(|part| part.read().alive).sum();
        (used, self.part_limit * self.parts.len())
    }

    fn part(&self, group: GroupId) -> &RwLock<Part> {
        &self.parts[shard_of(group, self.parts.len())]
    }

    /// Remembers a committed batch of `size` bytes. Indexes of a group ascend.
    pub(crate) fn insert(&self, group: GroupId, index: u64, batch: Batch, size: usize) {
        let cost = size + OVERHEAD;
        if cost > self.part_limit {
            return;
        }
        let mut part = self.part(group).write();
        let part = &mut *part;
        let cached = part.groups.entry(group).or_default();
        if cached.entries.back().is_some_and(|(last, ..)| *last >= index) {
            return;
        }
        cached.entries.push_back((index, batch, cost));
        cached.bytes += cost;
        part.order.push_back((group, index, cost));
        part.bytes += cost;
        part.alive += cost;
        while part.bytes > self.part_limit {
            let Some((group, index, cost)) = part.order.pop_front() else { break };
            part.bytes -= cost;
            if let Some(Cached { entries, bytes }) = part.groups.get_mut(&group) {
                // None where the place is that of a member that was here before.
                while let Some((_, _, cost)) = entries.pop_front_if(|(i, ..)| *i <= index) {
                    *bytes -= cost;
                    part.alive -= cost;
                }
                if entries.is_empty() {
                    part.groups.remove(&group);
                }
            }
        }
    }

    /// Forgets a group that is deleted. Its places in the eviction order go as they come up.
    pub(crate) fn remove(&self, group: GroupId) {
        let mut part = self.part(group).write();
        if let Some(cached) = part.groups.remove(&group) {
            part.alive -= cached.bytes;
        }
    }
}

impl EntryReader for EntryCache {
    fn cached(&self, group: GroupId, index: u64) -> Option<Batch> {
        let part = self.part(group).read();
        let entries = &part.groups.get(&group)?.entries;
        let at = entries.partition_point(|(i, ..)| *i < index);
        entries.get(at).filter(|(i, ..)| *i == index).map(|(_, batch, _)| batch.clone())
    }

    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Batch>>, ReadError> {
        let mut out: Vec<Option<Batch>> = indexes.iter().map(|i| self.cached(group, *i)).collect();
        let missing: Vec<u64> = indexes.iter().zip(&out).filter(|(_, b)| b.is_none()).map(|(i, _)| *i).collect();
        if missing.is_empty() {
            return Ok(out);
        }
        let entries = self.store.read(group, &missing).map_err(|e| ReadError(e.to_string()))?;
        let mut entries = entries.into_iter();
        for slot in out.iter_mut().filter(|b| b.is_none()) {
            *slot = entries
                .next()
                .flatten()
                .filter(|e| e.kind == EntryKind::Commands)
                .and_then(|e| Batch::parse(e.data).ok());
        }
        Ok(out)
    }
}

/// Which of `shards` a group belongs to.
pub fn shard_of(group: GroupId, shards: usize) -> usize {
    (super::config::mix(&[group.0]) % shards.max(1) as u64) as usize
}

#[cfg(test)]
mod tests {
    use warren_proto::batch::BatchBuilder;
    use warren_proto::ids::MachineVersion;

    use super::*;
    use crate::driver::mem_store::MemStore;

    fn batch() -> Batch {
        Batch::parse(BatchBuilder::new(MachineVersion(1)).finish(1)).unwrap()
    }

    #[test]
    fn a_deleted_group_takes_nothing_and_its_places_go_as_they_come_up() {
        let cache = EntryCache::new(Arc::new(MemStore::default()), 10 * (100 + OVERHEAD), 1);
        for index in 1..=5 {
            cache.insert(GroupId(1), index, batch(), 100);
        }
        assert_eq!(cache.bytes(), (5 * (100 + OVERHEAD), 10 * (100 + OVERHEAD)));
        cache.remove(GroupId(1));
        assert_eq!(cache.bytes().0, 0);
        // Another member of the same group comes, with lower indexes.
        cache.insert(GroupId(1), 2, batch(), 100);
        assert_eq!(cache.bytes().0, 100 + OVERHEAD);
        for index in 1..=20 {
            cache.insert(GroupId(2), index, batch(), 100);
        }
        assert_eq!(cache.bytes().0, 10 * (100 + OVERHEAD));
        assert!(cache.cached(GroupId(2), 10).is_none() && cache.cached(GroupId(2), 11).is_some());
    }
}
