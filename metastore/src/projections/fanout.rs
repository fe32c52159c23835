//! Fanout exchanges: every binding, whatever its key.

use crate::tree::ordered_map::OrderedMap;

use super::destinations::Destination;

/// Destinations with the number of keys that each is bound with. A replaced target keeps its count.
#[derive(Clone, Debug, Default)]
pub(super) struct Fanout(OrderedMap<Destination, u32>);

impl Fanout {
    /// `known`: the destination is bound with this key already and is only replaced.
    pub(super) fn insert(&mut self, destination: Destination, known: bool) {
        let count = self.0.remove(&destination).unwrap_or(0);
        self.0.insert(destination, if known { count.max(1) } else { count + 1 });
    }

    pub(super) fn remove(&mut self, destination: &Destination) {
        match self.0.get_mut(destination) {
            Some(count) if *count > 1 => *count -= 1,
            Some(_) => drop(self.0.remove(destination)),
            None => {}
        }
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Destination> {
        self.0.keys()
    }
}
