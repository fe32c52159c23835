//! The consumers of a queue, by either name, and whose turn it is.

use std::collections::BTreeMap;

use bytes::Bytes;
use warren_proto::ids::{NodeId, SessionRef};

use crate::consumer::{ConsumerId, ConsumerKey, ConsumerRef};
use crate::effects::DeliverSlot;
use crate::service::ServiceQueue;

/// What every consumer has: its names and its place among the others.
#[derive(Debug)]
pub(crate) struct Seat {
    pub id: ConsumerId,
    pub key: ConsumerKey,
    pub priority: i32,
    /// Whether the service queue has it.
    in_service: bool,
    /// Not state: its open delivery in the host's buffer.
    pub slot: DeliverSlot,
}

impl Seat {
    pub fn new(id: ConsumerId, key: ConsumerKey, priority: i32) -> Self {
        Seat { id, key, priority, in_service: false, slot: DeliverSlot::default() }
    }

    pub fn in_service(&self) -> bool {
        self.in_service
    }
}

/// A consumer of some kind of queue.
pub(crate) trait Seated {
    fn seat(&self) -> &Seat;

    fn seat_mut(&mut self) -> &mut Seat;

    /// Whether it may be given a message.
    fn able(&self) -> bool;
}

#[derive(Debug)]
pub(crate) struct Consumers<C> {
    /// Boxed: a map's nodes are half empty where keys only ascend.
    by_key: BTreeMap<ConsumerKey, Box<C>>,
    by_id: BTreeMap<ConsumerId, ConsumerKey>,
    service: ServiceQueue,
}

impl<C> Default for Consumers<C> {
    fn default() -> Self {
        Consumers { by_key: BTreeMap::new(), by_id: BTreeMap::new(), service: ServiceQueue::default() }
    }
}

impl<C: Seated> Consumers<C> {
    pub fn len(&self) -> usize {
        self.by_key.len()
    }

    pub fn iter(&self) -> impl Iterator<Item = &C> {
        self.by_key.values().map(Box::as_ref)
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

    pub fn get(&self, key: ConsumerKey) -> Option<&C> {
        self.by_key.get(&key).map(Box::as_ref)
    }

    pub fn get_mut(&mut self, key: ConsumerKey) -> Option<&mut C> {
        self.by_key.get_mut(&key).map(Box::as_mut)
    }

    pub fn by_id(&self, id: &ConsumerId) -> Option<&C> {
        self.by_id.get(id).and_then(|key| self.get(*key))
    }

    pub fn by_id_mut(&mut self, id: &ConsumerId) -> Option<&mut C> {
        self.by_id.get(id).copied().and_then(|key| self.get_mut(key))
    }

    /// Adds a consumer whose key and id are new.
    pub fn insert(&mut self, consumer: C) {
        let Seat { id, key, .. } = consumer.seat();
        let (id, key) = (id.clone(), *key);
        let id = self.by_id.insert(id, key);
        let old = self.by_key.insert(key, Box::new(consumer));
        debug_assert!(id.is_none() && old.is_none());
    }

    pub fn remove(&mut self, key: ConsumerKey) -> Option<C> {
        let consumer = self.by_key.remove(&key)?;
        let seat = consumer.seat();
        self.by_id.remove(&seat.id);
        if seat.in_service {
            self.service.remove(seat.priority, key);
        }
        Some(*consumer)
    }

    /// Makes the service queue agree with what the consumer may be given now. Call it after every change to it.
    pub fn reschedule(&mut self, key: ConsumerKey) {
        let Some(consumer) = self.by_key.get_mut(&key) else { return };
        let able = consumer.able();
        let seat = consumer.seat_mut();
        match (able, seat.in_service) {
            (true, false) => self.service.push(seat.priority, key),
            (false, true) => self.service.remove(seat.priority, key),
            (true, true) | (false, false) => return,
        }
        seat.in_service = able;
    }

    /// Changes a consumer's priority; with another one it loses its place in the service queue.
    pub fn set_priority(&mut self, key: ConsumerKey, priority: i32) {
        let Some(seat) = self.by_key.get_mut(&key).map(|consumer| consumer.seat_mut()) else { return };
        if seat.priority != priority && std::mem::take(&mut seat.in_service) {
            self.service.remove(seat.priority, key);
        }
        seat.priority = priority;
    }

    /// The consumer whose turn it is, out of the service queue.
    pub fn next(&mut self) -> Option<&mut C> {
        let key = self.service.pop()?;
        let consumer = self.get_mut(key)?;
        consumer.seat_mut().in_service = false;
        Some(consumer)
    }

    /// A session's consumers in the order in which they were attached.
    pub fn of_session(&self, session: SessionRef) -> Vec<ConsumerKey> {
        self.keys_from(session, |id| id.session == session)
    }

    /// The consumers of a node's sessions in the order in which they were attached.
    pub fn of_node(&self, node: NodeId) -> Vec<ConsumerKey> {
        self.keys_from(SessionRef { node, incarnation: 0, id: 0 }, |id| id.session.node == node)
    }

    fn keys_from(&self, first: SessionRef, belongs: impl Fn(&ConsumerId) -> bool) -> Vec<ConsumerKey> {
        let from = ConsumerId { session: first, tag: Bytes::new() };
        let mut keys: Vec<_> =
            self.by_id.range(from..).take_while(|(id, _)| belongs(id)).map(|(_, key)| *key).collect();
        keys.sort_unstable();
        keys
    }

    /// For a restored service queue: puts a consumer behind the others. False if it cannot be there.
    pub fn enlist_restored(&mut self, key: ConsumerKey) -> bool {
        match self.by_key.get(&key) {
            Some(consumer) if consumer.able() && !consumer.seat().in_service => {
                self.reschedule(key);
                true
            }
            _ => false,
        }
    }
}
