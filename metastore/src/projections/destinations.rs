//! What bindings lead to.

use std::cmp::Ordering;
use std::sync::Arc;

use super::queue_target::QueueTarget;
use crate::records::DestinationKind;
use crate::tree::ordered_map::OrderedMap;

/// One end of a binding. Ordered and equal by kind and name.
#[derive(Clone, Debug)]
pub enum Destination {
    /// A queue.
    Queue(Arc<QueueTarget>),
    /// Another exchange of the vhost.
    Exchange(Arc<str>),
}

impl Destination {
    /// What kind it is.
    pub fn kind(&self) -> DestinationKind {
        match self {
            Destination::Queue(_) => DestinationKind::Queue,
            Destination::Exchange(_) => DestinationKind::Exchange,
        }
    }

    /// Its name.
    pub fn name(&self) -> &str {
        match self {
            Destination::Queue(queue) => &queue.name,
            Destination::Exchange(name) => name,
        }
    }
}

impl PartialEq for Destination {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Destination {}

impl PartialOrd for Destination {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Destination {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.kind(), self.name()).cmp(&(other.kind(), other.name()))
    }
}

/// A set of destinations. Most keys lead to one.
#[derive(Clone, Debug, Default)]
pub(super) enum Destinations {
    #[default]
    None,
    One(Destination),
    Many(OrderedMap<Destination, ()>),
}

impl Destinations {
    /// Adds one, or replaces the one of that name.
    pub(super) fn insert(&mut self, destination: Destination) {
        *self = match std::mem::take(self) {
            Destinations::None => Destinations::One(destination),
            Destinations::One(one) if one == destination => Destinations::One(destination),
            Destinations::One(one) => Destinations::Many([(one, ()), (destination, ())].into_iter().collect()),
            Destinations::Many(mut many) => {
                // A map keeps the key that it has: the old target has to go first.
                many.remove(&destination);
                many.insert(destination, ());
                Destinations::Many(many)
            }
        };
    }

    pub(super) fn remove(&mut self, destination: &Destination) {
        match self {
            Destinations::None => {}
            Destinations::One(one) if one == destination => *self = Destinations::None,
            Destinations::One(_) => {}
            Destinations::Many(many) => {
                many.remove(destination);
                let last = if many.len() == 1 { many.keys().next().cloned() } else { None };
                if let Some(last) = last {
                    *self = Destinations::One(last);
                }
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        matches!(self, Destinations::None)
    }

    pub(super) fn for_each<'a>(&'a self, found: &mut impl FnMut(&'a Destination)) {
        match self {
            Destinations::None => {}
            Destinations::One(one) => found(one),
            Destinations::Many(many) => many.keys().for_each(found),
        }
    }
}
