//! The consumers of a queue, by either name, and whose turn it is.

use std::collections::BTreeMap;

use bytes::Bytes;
use warren_proto::ids::{NodeId, SessionRef};

use super::consumer::Consumer;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerRef};
use crate::service::ServiceQueue;

#[derive(Debug, Default)]
pub(super) struct Consumers {
    by_key: BTreeMap<ConsumerKey, Consumer>,
    by_id: BTreeMap<ConsumerId, ConsumerKey>,
    service: ServiceQueue,
}

impl Consumers {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &Consumer> {
        self.by_key.values()
    }

    pub fn service(&self) -> &ServiceQueue {
        &self.service
    }

    /// The number of names; equals [`len`](Self::len).
    pub fn names(&self) -> usize {
        self.by_id.len()
    }

    pub fn key_of(&self, consumer: &ConsumerRef) -> Option<ConsumerKey> {
        match consumer {
            ConsumerRef::Key(key) => Some(*key),
            ConsumerRef::Id(id) => self.by_id.get(id).copied(),
        }
    }

    pub fn get(&self, key: ConsumerKey) -> Option<&Consumer> {
        self.by_key.get(&key)
    }

    pub fn get_mut(&mut self, key: ConsumerKey) -> Option<&mut Consumer> {
        self.by_key.get_mut(&key)
    }

    pub fn by_id_mut(&mut self, id: &ConsumerId) -> Option<&mut Consumer> {
        self.by_id.get(id).and_then(|key| self.by_key.get_mut(key))
    }

    /// Adds a consumer whose key and id are new.
    pub fn insert(&mut self, consumer: Consumer) {
        let id = self.by_id.insert(consumer.id.clone(), consumer.key);
        let key = self.by_key.insert(consumer.key, consumer);
        debug_assert!(id.is_none() && key.is_none());
    }

    pub fn remove(&mut self, key: ConsumerKey) -> Option<Consumer> {
        let consumer = self.by_key.remove(&key)?;
        self.by_id.remove(&consumer.id);
        if consumer.in_service {
            self.service.remove(consumer.priority, key);
        }
        Some(consumer)
    }

    /// Makes the service queue agree with what the consumer may be given now. Call it after every change to it.
    pub fn reschedule(&mut self, key: ConsumerKey) {
        let Some(consumer) = self.by_key.get_mut(&key) else {
            return;
        };
        match (consumer.able(), consumer.in_service) {
            (true, false) => self.service.push(consumer.priority, key),
            (false, true) => self.service.remove(consumer.priority, key),
            (true, true) | (false, false) => return,
        }
        consumer.in_service = !consumer.in_service;
    }

    /// Changes a consumer's priority, and with it its place in the service queue.
    pub fn set_priority(&mut self, key: ConsumerKey, priority: i32) {
        let Some(consumer) = self.by_key.get_mut(&key) else {
            return;
        };
        if consumer.priority != priority {
            if consumer.in_service {
                self.service.remove(consumer.priority, key);
                consumer.in_service = false;
            }
            consumer.priority = priority;
        }
    }

    /// The consumer whose turn it is, out of the service queue.
    pub fn next(&mut self) -> Option<&mut Consumer> {
        let key = self.service.pop()?;
        let consumer = self.by_key.get_mut(&key)?;
        consumer.in_service = false;
        Some(consumer)
    }

    /// A session's consumers in the order in which they were attached.
    pub fn of_session(&self, session: SessionRef) -> Vec<ConsumerKey> {
        self.keys_from(session, |id| id.session == session)
    }

    /// The consumers of a node's sessions in the order in which they were attached.
    pub fn of_node(&self, node: NodeId) -> Vec<ConsumerKey> {
        self.keys_from(
            SessionRef {
                node,
                incarnation: 0,
                id: 0,
            },
            |id| id.session.node == node,
        )
    }

    fn keys_from(
        &self,
        first: SessionRef,
        belongs: impl Fn(&ConsumerId) -> bool,
    ) -> Vec<ConsumerKey> {
        let from = ConsumerId {
            session: first,
            tag: Bytes::new(),
        };
        let mut keys: Vec<_> = self
            .by_id
            .range(from..)
            .take_while(|(id, _)| belongs(id))
            .map(|(_, key)| *key)
            .collect();
        keys.sort_unstable();
        keys
    }

    /// For a restored service queue: puts a consumer behind the others. False if it cannot be there.
    pub fn enlist_restored(&mut self, key: ConsumerKey) -> bool {
        match self.by_key.get(&key) {
            Some(consumer) if consumer.able() && !consumer.in_service => {
                self.reschedule(key);
                true
            }
            _ => false,
        }
    }
}
