//! Which bindings lead to a destination. (Which lead from a source, the tree itself says.)

use std::sync::Arc;

use imbl::OrdSet;

use super::Map;
use crate::records::DestinationKind;

/// A source and a binding key.
type Origin = (Arc<str>, Arc<[u8]>);

#[derive(Clone, Debug, Default)]
pub(super) struct BindingsByDestination(Map<(DestinationKind, Arc<str>), OrdSet<Origin>>);

impl BindingsByDestination {
    pub(super) fn insert(&mut self, kind: DestinationKind, name: &Arc<str>, origin: Origin) {
        let place = (kind, name.clone());
        if let Some(origins) = self.0.get_mut(&place) {
            origins.insert(origin);
        } else {
            self.0.insert(place, OrdSet::unit(origin));
        }
    }

    pub(super) fn remove(&mut self, kind: DestinationKind, name: &Arc<str>, origin: &Origin) {
        let place = (kind, name.clone());
        if let Some(origins) = self.0.get_mut(&place) {
            origins.remove(origin);
            if origins.is_empty() {
                self.0.remove(&place);
            }
        }
    }

    /// The sources and keys that lead to a destination, in order.
    pub(super) fn of(&self, kind: DestinationKind, name: &str) -> impl Iterator<Item = &Origin> {
        self.0.get(&(kind, Arc::from(name))).into_iter().flatten()
    }

    /// Sources and keys.
    pub(super) fn len(&self) -> usize {
        self.0.values().map(OrdSet::len).sum()
    }
}
