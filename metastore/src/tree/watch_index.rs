//! Who watches what: a prefix tree from watched places to watchers, so that a change finds the nodes that depend on it
//! in time proportional to their number.
//!
//! A watched path is filed at its place, a watched pattern under its literal prefix. Persistent like the tree itself,
//! so that a transaction that aborts leaves no trace. It is a function of the tree and is rebuilt after a restore.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::defect::{Defect, broken};
use super::keep_while::{KeepWhile, Watch};
use super::ordered_map::OrderedMap;
use super::path::{Component, Path};
use super::pattern::Pattern;

/// What happened at a place.
#[derive(Debug, Clone)]
pub(crate) enum Happened {
    /// The node was created, or its payload or its list of children changed.
    Changed(Path),
    /// The node and everything beneath it went away.
    Removed(Path),
}

#[derive(Clone, Debug, Default)]
pub(crate) struct WatchIndex {
    root: Arc<Place>,
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Place {
    /// Watchers of exactly this place.
    exact: OrderedMap<Path, ()>,
    /// Watchers of patterns whose literal prefix ends here, with those patterns.
    patterns: OrderedMap<Path, Arc<[Pattern]>>,
    children: OrderedMap<Component, Arc<Place>>,
}

impl Place {
    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.patterns.is_empty() && self.children.is_empty()
    }
}

impl PartialEq for WatchIndex {
    fn eq(&self, other: &Self) -> bool {
        self.root == other.root
    }
}

impl WatchIndex {
    pub(crate) fn add(&mut self, watcher: &Path, keep: &KeepWhile) {
        for watch in &keep.0 {
            let mut place = Arc::make_mut(&mut self.root);
            let prefix = watch.pattern.literal_prefix();
            for component in &prefix {
                if place.children.get(component).is_none() {
                    place.children.insert(component.clone(), Arc::default());
                }
                let Some(child) = place.children.get_mut(component) else {
                    return;
                };
                place = Arc::make_mut(child);
            }
            if prefix.len() == watch.pattern.steps().len() {
                place.exact.insert(watcher.clone(), ());
            } else {
                place.patterns.insert(watcher.clone(), patterns_at(keep, &prefix));
            }
        }
    }

    pub(crate) fn remove(&mut self, watcher: &Path, keep: &KeepWhile) {
        for watch in &keep.0 {
            remove(&mut self.root, watcher, &watch.pattern.literal_prefix());
        }
    }

    /// Adds to `out` every watcher whose conditions may have changed.
    pub(crate) fn affected(&self, happened: &Happened, out: &mut BTreeSet<Path>) {
        let (at, removed) = match happened {
            Happened::Changed(path) => (path.components(), false),
            Happened::Removed(path) => (path.components(), true),
        };
        let mut place = &*self.root;
        for depth in 0..=at.len() {
            let candidates = place.patterns.iter().filter(|(_, list)| list.iter().any(|p| p.may_touch(at)));
            if !broken(Defect::PatternUnwatched) {
                out.extend(candidates.map(|(watcher, _)| watcher.clone()));
            }
            match at.get(depth).map(|component| place.children.get(component)) {
                Some(Some(child)) => place = child,
                Some(None) => return,
                None => break,
            }
        }
        if removed {
            all(place, out);
        } else {
            out.extend(place.exact.keys().cloned());
        }
    }
}

fn patterns_at(keep: &KeepWhile, prefix: &[Component]) -> Arc<[Pattern]> {
    let here = |watch: &&Watch| watch.pattern.as_path().is_none() && watch.pattern.literal_prefix() == prefix;
    keep.0.iter().filter(here).map(|watch| watch.pattern.clone()).collect()
}

fn remove(place: &mut Arc<Place>, watcher: &Path, prefix: &[Component]) {
    let place = Arc::make_mut(place);
    let Some((component, rest)) = prefix.split_first() else {
        place.exact.remove(watcher);
        place.patterns.remove(watcher);
        return;
    };
    let Some(child) = place.children.get_mut(component) else {
        return;
    };
    remove(child, watcher, rest);
    if child.is_empty() {
        place.children.remove(component);
    }
}

fn all(place: &Place, out: &mut BTreeSet<Path>) {
    out.extend(place.exact.keys().cloned());
    out.extend(place.patterns.keys().cloned());
    place.children.values().for_each(|child| all(child, out));
}
