//! Which groups live here, for every thread.

use std::sync::Arc;

use parking_lot::RwLock;
use rustc_hash::FxHashMap;
use warren_proto::ids::GroupId;

use super::status::Published;
use crate::driver::{GroupStatus, shard_of};

/// Locks, so that lookups of different groups seldom meet. Writers come only with a group's creation and removal.
const PARTS: usize = 16;

/// Groups with their shard and what it publishes.
type Part = FxHashMap<GroupId, (usize, Arc<Published>)>;

pub(super) struct Registry {
    parts: Vec<RwLock<Part>>,
}

impl Registry {
    pub fn new() -> Self {
        Registry { parts: (0..PARTS).map(|_| RwLock::default()).collect() }
    }

    fn part(&self, group: GroupId) -> &RwLock<Part> {
        &self.parts[shard_of(group, PARTS)]
    }

    pub fn insert(&self, status: &GroupStatus, shard: usize) {
        self.part(status.group).write().insert(status.group, (shard, Arc::new(Published::new(status))));
    }

    pub fn remove(&self, group: GroupId) {
        if let Some((_, published)) = self.part(group).write().remove(&group) {
            published.close();
        }
    }

    pub fn get(&self, group: GroupId) -> Option<Arc<Published>> {
        self.part(group).read().get(&group).map(|(_, published)| published.clone())
    }

    pub fn contains(&self, group: GroupId) -> bool {
        self.part(group).read().contains_key(&group)
    }

    pub fn groups(&self) -> Vec<GroupId> {
        let mut all: Vec<GroupId> =
            self.parts.iter().flat_map(|p| p.read().keys().copied().collect::<Vec<_>>()).collect();
        all.sort_unstable();
        all
    }

    /// A shard stops: nobody waits for its groups any longer.
    pub fn close_all(&self, shard: usize) {
        for part in &self.parts {
            for (_, (_, published)) in part.write().extract_if(|_, (s, _)| *s == shard) {
                published.close();
            }
        }
    }
}
