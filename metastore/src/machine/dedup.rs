//! Replies that are remembered until their callers have them, so that a retry is answered and not done again.

use imbl::{OrdMap, OrdSet};

use super::Reply;
use super::command::RequestId;
use crate::tree::MetaError;

/// Replies remembered, at most: some 8 hours of 2 unanswered requests a second. Beyond that the one whose caller gives
/// up first is forgotten.
pub const MAX_DEDUPS: usize = 65_536;

/// A remembered reply.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Remembered {
    pub deadline_ms: u64,
    pub reply: Result<Reply, MetaError>,
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Dedups {
    replies: OrdMap<RequestId, Remembered>,
    by_deadline: OrdSet<(u64, RequestId)>,
}

impl Dedups {
    pub(crate) fn get(&self, id: &RequestId) -> Option<&Remembered> {
        self.replies.get(id)
    }

    pub(crate) fn insert(&mut self, id: RequestId, remembered: Remembered) {
        if self.replies.len() >= MAX_DEDUPS
            && let Some((_, first)) = self.by_deadline.get_min().copied()
        {
            self.remove(&first);
        }
        self.by_deadline.insert((remembered.deadline_ms, id));
        if let Some(old) = self.replies.insert(id, remembered.clone())
            && old.deadline_ms != remembered.deadline_ms
        {
            self.by_deadline.remove(&(old.deadline_ms, id));
        }
    }

    pub(crate) fn remove(&mut self, id: &RequestId) {
        if let Some(old) = self.replies.remove(id) {
            self.by_deadline.remove(&(old.deadline_ms, *id));
        }
    }

    /// Forgets the origin's requests below `seq`.
    pub(crate) fn remove_below(&mut self, origin: u64, seq: u64) {
        let first = RequestId { origin, seq: 0 };
        let done: Vec<RequestId> = self.replies.range(first..RequestId { origin, seq }).map(|(id, _)| *id).collect();
        done.iter().for_each(|id| self.remove(id));
    }

    /// Requests whose callers had given up at `now_ms`, earliest first.
    pub(crate) fn expired(&self, now_ms: u64) -> impl Iterator<Item = RequestId> {
        self.by_deadline.iter().take_while(move |(deadline, _)| *deadline < now_ms).map(|(_, id)| *id)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&RequestId, &Remembered)> {
        self.replies.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    pub(crate) fn check_invariants(&self) -> Result<(), String> {
        let indexed = |(id, r): (&RequestId, &Remembered)| self.by_deadline.contains(&(r.deadline_ms, *id));
        if self.replies.len() != self.by_deadline.len() || !self.replies.iter().all(indexed) {
            return Err("remembered replies and their deadlines differ".into());
        }
        Ok(())
    }
}
