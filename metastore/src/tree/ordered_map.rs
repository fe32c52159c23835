//! A persistent ordered map that costs little while it is small.
//!
//! Most nodes of the tree, of the watch index and of a topic trie have one or two children, a few have a hundred
//! thousand. Up to [`SMALL`] entries lie in one sorted array that is copied on write; beyond that they move to a
//! persistent B-tree, where a change copies O(log n).

use std::borrow::Borrow;
use std::fmt;

use imbl::OrdMap;

/// Entries that are kept in a plain array.
const SMALL: usize = 12;

/// See the module.
#[derive(Clone)]
pub struct OrderedMap<K, V>(Inner<K, V>);

#[derive(Clone)]
enum Inner<K, V> {
    Small(Vec<(K, V)>),
    Large(OrdMap<K, V>),
}

impl<K, V> Default for OrderedMap<K, V> {
    fn default() -> Self {
        OrderedMap(Inner::Small(Vec::new()))
    }
}

impl<K: Ord + Clone, V: Clone> OrderedMap<K, V> {
    /// Number of entries.
    pub fn len(&self) -> usize {
        match &self.0 {
            Inner::Small(list) => list.len(),
            Inner::Large(map) => map.len(),
        }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The value of a key.
    pub fn get<Q: Ord + ?Sized>(&self, key: &Q) -> Option<&V>
    where
        K: Borrow<Q>,
    {
        match &self.0 {
            Inner::Small(list) => find(list, key).ok().map(|at| &list[at].1),
            Inner::Large(map) => map.get(key),
        }
    }

    /// The value of a key, to change; copies what others share.
    pub fn get_mut<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<&mut V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Inner::Small(list) => find(list, key).ok().map(|at| &mut list[at].1),
            Inner::Large(map) => map.get_mut(key),
        }
    }

    /// Sets a value; answers the old one.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        match &mut self.0 {
            Inner::Small(list) => match find(list, &key) {
                Ok(at) => Some(std::mem::replace(&mut list[at].1, value)),
                Err(at) if list.len() < SMALL => {
                    list.reserve_exact(1);
                    list.insert(at, (key, value));
                    None
                }
                Err(_) => {
                    let mut map: OrdMap<K, V> = std::mem::take(list).into_iter().collect();
                    map.insert(key, value);
                    self.0 = Inner::Large(map);
                    None
                }
            },
            Inner::Large(map) => map.insert(key, value),
        }
    }

    /// Removes an entry; answers its value.
    pub fn remove<Q: Ord + ?Sized>(&mut self, key: &Q) -> Option<V>
    where
        K: Borrow<Q>,
    {
        match &mut self.0 {
            Inner::Small(list) => find(list, key).ok().map(|at| list.remove(at).1),
            Inner::Large(map) => {
                let old = map.remove(key)?;
                if map.len() <= SMALL / 2 {
                    self.0 = Inner::Small(std::mem::take(map).into_iter().collect());
                }
                Some(old)
            }
        }
    }

    /// Entries in key order.
    pub fn iter(&self) -> Iter<'_, K, V> {
        match &self.0 {
            Inner::Small(list) => Iter::Small(list.iter()),
            Inner::Large(map) => Iter::Large(map.iter()),
        }
    }

    /// Values in key order.
    pub fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    /// Keys in order.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }
}

impl<K: Ord + Clone, V: Clone> FromIterator<(K, V)> for OrderedMap<K, V> {
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut map = OrderedMap::default();
        entries.into_iter().for_each(|(key, value)| drop(map.insert(key, value)));
        map
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq> PartialEq for OrderedMap<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len() == other.len() && self.iter().eq(other.iter())
    }
}

impl<K: Ord + Clone + fmt::Debug, V: Clone + fmt::Debug> fmt::Debug for OrderedMap<K, V> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

fn find<K: Borrow<Q>, V, Q: Ord + ?Sized>(list: &[(K, V)], key: &Q) -> Result<usize, usize> {
    list.binary_search_by(|(k, _)| k.borrow().cmp(key))
}

/// Entries in key order.
pub enum Iter<'a, K, V> {
    #[doc(hidden)]
    Small(std::slice::Iter<'a, (K, V)>),
    #[doc(hidden)]
    Large(imbl::ordmap::Iter<'a, K, V, imbl::shared_ptr::DefaultSharedPtr>),
}

impl<'a, K: Ord, V> Iterator for Iter<'a, K, V> {
    type Item = (&'a K, &'a V);

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Iter::Small(iter) => iter.next().map(|(key, value)| (key, value)),
            Iter::Large(iter) => iter.next(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    proptest::proptest! {
        #[test]
        fn it_behaves_like_an_ordered_map_and_a_clone_never_changes(
            steps in proptest::collection::vec((0u8..40, proptest::bool::ANY), 0..120)
        ) {
            let (mut map, mut model) = (OrderedMap::default(), BTreeMap::new());
            for (i, (key, insert)) in steps.into_iter().enumerate() {
                let (before, was) = (map.clone(), model.clone());
                if insert {
                    assert_eq!(map.insert(key, i), model.insert(key, i));
                } else {
                    assert_eq!(map.remove(&key), model.remove(&key));
                }
                assert!(map.iter().eq(model.iter()));
                assert!(before.iter().eq(was.iter()));
                assert_eq!(map.len(), model.len());
                assert_eq!(map.get(&key), model.get(&key));
            }
        }
    }
}
