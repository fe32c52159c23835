//! Direct exchanges: the binding key equals the routing key.

use std::sync::Arc;

use super::Map;
use super::destinations::{Destination, Destinations};

#[derive(Clone, Debug, Default)]
pub(super) struct Direct(Map<Arc<[u8]>, Destinations>);

impl Direct {
    pub(super) fn insert(&mut self, key: &Arc<[u8]>, destination: Destination) {
        if let Some(there) = self.0.get_mut(&key[..]) {
            there.insert(destination);
        } else {
            self.0.insert(key.clone(), Destinations::One(destination));
        }
    }

    pub(super) fn remove(&mut self, key: &[u8], destination: &Destination) {
        if let Some(there) = self.0.get_mut(key) {
            there.remove(destination);
            if there.is_empty() {
                self.0.remove(key);
            }
        }
    }

    pub(super) fn get(&self, key: &[u8]) -> Option<&Destinations> {
        self.0.get(key)
    }

    /// Keys that lead somewhere.
    pub(super) fn keys(&self) -> usize {
        self.0.len()
    }
}
