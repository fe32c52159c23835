//! Topic exchanges: a trie of the words of binding keys, one for each exchange (spec: metadata-store.md, section 7;
//! edge cases: broker-model.md, section 3).
//!
//! The empty key has no words; otherwise there is one word more than dots, and words may be empty. `*` stands for one
//! word, `#` for any number. Persistent: a view shares all but the changed branches with the one before.

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::Map;
use super::destinations::{Destination, Destinations};

/// `#` words that a new binding key may have; more are refused with 406.
pub const MAX_HASH_WORDS: usize = 2;

/// Children by word that are kept in a plain array.
const SMALL: usize = 16;

/// `#` words of a binding key.
pub fn hash_words(key: &[u8]) -> usize {
    words(key).iter().filter(|word| **word == b"#").count()
}

type Words<'k> = SmallVec<[&'k [u8]; 16]>;

fn words(key: &[u8]) -> Words<'_> {
    if key.is_empty() { Words::new() } else { key.split(|b| *b == b'.').collect() }
}

/// The trie of one exchange.
#[derive(Clone, Debug, Default)]
pub(super) struct Topic {
    root: Node,
}

#[derive(Clone, Debug, Default)]
struct Node {
    here: Destinations,
    literal: Literal,
    star: Option<Arc<Node>>,
    hash: Option<Arc<Node>>,
}

/// Children by literal word.
#[derive(Clone, Debug)]
enum Literal {
    /// Sorted by word.
    Small(Vec<(Arc<[u8]>, Arc<Node>)>),
    Large(Box<Map<Arc<[u8]>, Arc<Node>>>),
}

impl Default for Literal {
    fn default() -> Self {
        Literal::Small(Vec::new())
    }
}

impl Literal {
    fn get(&self, word: &[u8]) -> Option<&Arc<Node>> {
        match self {
            Literal::Small(list) => list.binary_search_by(|(w, _)| w[..].cmp(word)).ok().map(|at| &list[at].1),
            Literal::Large(map) => map.get(word),
        }
    }

    fn get_mut(&mut self, word: &[u8]) -> Option<&mut Arc<Node>> {
        match self {
            Literal::Small(list) => match list.binary_search_by(|(w, _)| w[..].cmp(word)) {
                Ok(at) => Some(&mut list[at].1),
                Err(_) => None,
            },
            Literal::Large(map) => map.get_mut(word),
        }
    }

    /// Adds a word that is not there.
    fn insert(&mut self, word: &[u8]) {
        let entry = (Arc::from(word), Arc::default());
        match self {
            Literal::Small(list) if list.len() < SMALL => {
                let at = list.partition_point(|(w, _)| w[..] < *word);
                list.reserve_exact(1);
                list.insert(at, entry);
            }
            Literal::Small(list) => {
                let mut map: Map<_, _> = std::mem::take(list).into_iter().collect();
                map.insert(entry.0, entry.1);
                *self = Literal::Large(Box::new(map));
            }
            Literal::Large(map) => drop(map.insert(entry.0, entry.1)),
        }
    }

    fn remove(&mut self, word: &[u8]) {
        match self {
            Literal::Small(list) => list.retain(|(w, _)| w[..] != *word),
            Literal::Large(map) => {
                map.remove(word);
                if map.len() <= SMALL / 2 {
                    let mut list: Vec<_> = map.iter().map(|(w, n)| (w.clone(), n.clone())).collect();
                    list.sort_by(|(a, _), (b, _)| a.cmp(b));
                    *self = Literal::Small(list);
                }
            }
        }
    }

    fn is_empty(&self) -> bool {
        match self {
            Literal::Small(list) => list.is_empty(),
            Literal::Large(map) => map.is_empty(),
        }
    }
}

impl Node {
    fn has_children(&self) -> bool {
        self.star.is_some() || self.hash.is_some() || !self.literal.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.here.is_empty() && !self.has_children()
    }

    fn child_mut(&mut self, word: &[u8]) -> Option<&mut Arc<Node>> {
        match word {
            b"*" => self.star.as_mut(),
            b"#" => self.hash.as_mut(),
            word => self.literal.get_mut(word),
        }
    }

    fn add_child(&mut self, word: &[u8]) {
        match word {
            b"*" => self.star = Some(Arc::default()),
            b"#" => self.hash = Some(Arc::default()),
            word => self.literal.insert(word),
        }
    }

    fn remove_child(&mut self, word: &[u8]) {
        match word {
            b"*" => self.star = None,
            b"#" => self.hash = None,
            word => self.literal.remove(word),
        }
    }

    /// Removes a destination, then, from the bottom up, the edges that lead nowhere any more.
    fn remove(&mut self, words: &[&[u8]], destination: &Destination) {
        let Some((word, rest)) = words.split_first() else {
            self.here.remove(destination);
            return;
        };
        if let Some(child) = self.child_mut(word) {
            let child = Arc::make_mut(child);
            child.remove(rest, destination);
            if child.is_empty() {
                self.remove_child(word);
            }
        }
    }

    fn count(&self) -> usize {
        let literal: usize = match &self.literal {
            Literal::Small(list) => list.iter().map(|(_, n)| n.count()).sum(),
            Literal::Large(map) => map.values().map(|n| n.count()).sum(),
        };
        1 + literal + self.star.iter().chain(&self.hash).map(|n| n.count()).sum::<usize>()
    }
}

impl Topic {
    pub(super) fn insert(&mut self, key: &[u8], destination: Destination) {
        let mut node = &mut self.root;
        for word in words(key) {
            if node.child_mut(word).is_none() {
                node.add_child(word);
            }
            let Some(child) = node.child_mut(word) else {
                return;
            };
            node = Arc::make_mut(child);
        }
        node.here.insert(destination);
    }

    pub(super) fn remove(&mut self, key: &[u8], destination: &Destination) {
        self.root.remove(&words(key), destination);
    }

    /// Calls `found` for the destinations of every matching key; several keys may lead to one destination.
    pub(super) fn for_each_match<'a>(&'a self, key: &[u8], found: &mut impl FnMut(&'a Destination)) {
        let words = words(key);
        // Nodes to visit, each with the words already used and the `#` edges on the way to it.
        let mut open: SmallVec<[(&Node, usize, usize); 32]> = SmallVec::new();
        // From the second `#` on, a node and the words used so far come up again and again.
        let mut seen: HashSet<(*const Node, usize), foldhash::fast::RandomState> = HashSet::default();
        open.push((&self.root, 0, 0));
        while let Some((node, used, hashes)) = open.pop() {
            if hashes >= 2 && !seen.insert((node, used)) {
                continue;
            }
            if let Some(hash) = &node.hash {
                // At the end of a binding key `#` takes whatever is left.
                let first = if hash.has_children() { used } else { words.len() };
                open.extend((first..=words.len()).map(|used| (&**hash, used, hashes + 1)));
            }
            match words.get(used) {
                None => node.here.for_each(found),
                Some(word) => {
                    open.extend(node.literal.get(word).map(|child| (&**child, used + 1, hashes)));
                    open.extend(node.star.as_ref().map(|child| (&**child, used + 1, hashes)));
                }
            }
        }
    }

    /// Nodes of the trie, the root included.
    pub(super) fn nodes(&self) -> usize {
        self.root.count()
    }
}
