//! One command's work on a private copy of the tree: put, clear, delete, and what follows from them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use warren_proto::ids::Reference;

use super::Tree;
use super::change::{Change, Changes, DeleteReason};
use super::condition::Condition;
use super::defect::{Defect, broken};
use super::error::MetaError;
use super::keep_while::{KeepWhile, Watch};
use super::node::{Keep, MAX_PAYLOAD, Node, NodeInfo, Payload};
use super::path::{Component, MAX_DEPTH, Path};
use super::pattern::Pattern;
use super::watch_index::Happened;

/// What the command did to a node so far.
struct Touch {
    /// As it was before the command.
    old: Option<NodeInfo>,
    /// The command created the incarnation that exists now: its versions stay at 1.
    fresh: bool,
    payload_bumped: bool,
    children_bumped: bool,
    /// Belongs in the result, not only in the bookkeeping of versions.
    listed: bool,
    removed: Option<DeleteReason>,
}

/// A command in progress. Dropping it undoes everything.
pub(crate) struct Edit {
    tree: Tree,
    reference: Reference,
    touches: BTreeMap<Path, Touch>,
}

impl Edit {
    pub(crate) fn new(tree: &Tree, reference: Reference) -> Self {
        Edit { tree: tree.clone(), reference, touches: BTreeMap::new() }
    }

    pub(crate) fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The new tree and what changed.
    pub(crate) fn finish(self) -> (Tree, Changes) {
        let mut nodes = BTreeMap::new();
        for (path, touch) in self.touches {
            if !touch.listed {
                continue;
            }
            let new = if touch.removed.is_some() { None } else { self.tree.node(&path).map(Node::info) };
            nodes.insert(path, Change { old: touch.old, new, delete_reason: touch.removed });
        }
        (self.tree, Changes { nodes })
    }

    /// Writes one node. A payload of `None` leaves the node's payload as it is (an absent node is created without
    /// one); `watches` of `None` leaves its conditions as they are. Answers the old node.
    pub(crate) fn put(
        &mut self,
        path: &Path,
        condition: &Condition,
        payload: Option<Payload>,
        watches: Option<&[Watch]>,
    ) -> Result<Option<NodeInfo>, MetaError> {
        let Some(name) = path.last().filter(|_| path.depth() <= MAX_DEPTH) else {
            return Err(MetaError::InvalidPath);
        };
        if payload.as_ref().is_some_and(|payload| payload.bytes.len() > MAX_PAYLOAD) {
            return Err(MetaError::PayloadTooLarge);
        }
        let existing = self.tree.node(path);
        match existing {
            Some(node) if !condition.holds(name, node) => {
                return Err(MetaError::MismatchingNode { path: path.clone(), node: Box::new(node.info()) });
            }
            None if !condition.allows_creation() && !broken(Defect::CreatesAnyway) => {
                return Err(MetaError::NodeNotFound { path: path.clone() });
            }
            Some(_) | None => {}
        }
        // A node in the making cannot yet have what is to lie beneath it; filling a placeholder counts as making it.
        let creating = existing.is_none_or(|node| node.payload.is_none());
        for (number, watch) in watches.unwrap_or_default().iter().enumerate() {
            let exempt = creating && watch.is_within(path.components());
            if !exempt && !watch.holds(&self.tree) && !broken(Defect::UnmetAttached) {
                return Err(MetaError::KeepWhileConditionsNotMet { path: path.clone(), watch: number as u32 });
            }
        }
        let old = existing.map(Node::info);
        let mut happened = Vec::new();
        if old.is_none() {
            self.create(path, &mut happened);
        }
        self.touch(path).listed = true;
        if let Some(payload) = payload {
            self.set_payload(path, Some(payload), &mut happened);
        }
        if let Some(watches) = watches {
            self.set_keep(path, watches);
        }
        self.settle(happened);
        Ok(old)
    }

    /// Removes the payloads of all matching nodes. Answers how many had one.
    pub(crate) fn clear(&mut self, pattern: &Pattern) -> u64 {
        let mut cleared = 0;
        for path in self.matching(pattern) {
            if self.tree.node(&path).is_some_and(|node| node.payload.is_some()) {
                cleared += 1;
                let mut happened = Vec::new();
                self.touch(&path).listed = true;
                self.set_payload(&path, None, &mut happened);
                if self.tree.node(&path).is_some_and(Node::is_empty_placeholder) {
                    self.remove(&path, DeleteReason::KeepWhile, &mut happened);
                }
                self.settle(happened);
            }
        }
        cleared
    }

    /// Deletes all matching nodes with what lies beneath them; the root is only emptied. Answers how many matched.
    pub(crate) fn delete(&mut self, pattern: &Pattern) -> u64 {
        let mut targets = self.matching(pattern);
        if targets.first().is_some_and(|path| path.depth() == 0) {
            targets = self.tree.root().children().map(|(c, _)| Path::new(vec![c.clone()])).collect();
        }
        let mut happened = Vec::new();
        for path in &targets {
            self.remove(path, DeleteReason::Explicit, &mut happened);
        }
        self.settle(happened);
        targets.len() as u64
    }

    fn matching(&self, pattern: &Pattern) -> Vec<Path> {
        let mut paths = Vec::new();
        self.tree.visit(pattern, &mut |at, _| {
            paths.push(Path::new(at.to_vec()));
            true
        });
        paths
    }

    /// The bookkeeping of a node, which must exist; begun with the node as it is now.
    fn touch(&mut self, path: &Path) -> &mut Touch {
        let tree = &self.tree;
        self.touches.entry(path.clone()).or_insert_with(|| Touch {
            old: tree.node(path).map(Node::info),
            fresh: false,
            payload_bumped: false,
            children_bumped: false,
            listed: false,
            removed: None,
        })
    }

    /// Creates the node and the placeholders on the way to it.
    fn create(&mut self, path: &Path, happened: &mut Vec<Happened>) {
        let existing = (0..path.depth()).rev().find(|&n| self.tree.at(&path.components()[..n]).is_some()).unwrap_or(0);
        let parent = Path::new(path.components()[..existing].to_vec());
        self.bump_children(&parent);
        happened.push(Happened::Changed(parent));
        for depth in existing + 1..=path.depth() {
            let place = Path::new(path.components()[..depth].to_vec());
            let touch = self.touches.entry(place.clone()).or_insert(Touch {
                old: None,
                fresh: true,
                payload_bumped: false,
                children_bumped: false,
                listed: true,
                removed: None,
            });
            touch.fresh = true;
            touch.removed = None;
            happened.push(Happened::Changed(place));
        }
        let mut node = self.tree.root_mut();
        for (depth, component) in path.components().iter().enumerate() {
            if node.children.get(component).is_none() {
                let keep = if depth + 1 == path.depth() { Keep::Always } else { Keep::Placeholder };
                node.children.insert(component.clone(), Arc::new(Node::new(self.reference, keep)));
            }
            let Some(child) = node.children.get_mut(component) else {
                return;
            };
            node = Arc::make_mut(child);
        }
    }

    fn set_payload(&mut self, path: &Path, payload: Option<Payload>, happened: &mut Vec<Happened>) {
        let same = |node: &Node| node.payload == payload && !broken(Defect::EqualPayloadChanges);
        if self.tree.node(path).is_none_or(same) {
            return;
        }
        let touch = self.touch(path);
        let bump = !touch.fresh && (!touch.payload_bumped || broken(Defect::VersionRisesTwice));
        touch.payload_bumped = true;
        let reference = self.reference;
        if let Some(node) = self.tree.node_mut(path) {
            if payload.is_some() || !broken(Defect::ClearKeepsRevision) {
                node.mod_revision = reference;
            }
            node.payload = payload;
            node.payload_version += u64::from(bump);
        }
        happened.push(Happened::Changed(path.clone()));
    }

    fn set_keep(&mut self, path: &Path, watches: &[Watch]) {
        self.unwatch(path);
        let keep = (!watches.is_empty()).then(|| Arc::new(KeepWhile(watches.to_vec())));
        if let Some(keep) = &keep {
            self.tree.index_mut().add(path, keep);
        }
        if let Some(node) = self.tree.node_mut(path) {
            node.keep = keep.map_or(Keep::Always, Keep::While);
        }
    }

    fn unwatch(&mut self, path: &Path) {
        if let Some(Keep::While(keep)) = self.tree.node(path).map(|node| node.keep.clone()) {
            self.tree.index_mut().remove(path, &keep);
        }
    }

    fn bump_children(&mut self, path: &Path) {
        let touch = self.touch(path);
        let bump = !touch.fresh && !touch.children_bumped;
        touch.children_bumped = true;
        if bump && let Some(node) = self.tree.node_mut(path) {
            node.child_list_version += 1;
        }
    }

    /// Takes the node away with what lies beneath it, and the placeholders above it that it leaves empty.
    fn remove(&mut self, path: &Path, reason: DeleteReason, happened: &mut Vec<Happened>) {
        let Some(parent) = path.parent() else { return };
        let Some(component) = path.last() else { return };
        if self.tree.node(path).is_none() {
            return;
        }
        self.bump_children(&parent);
        let Some(node) = self.tree.node_mut(&parent).and_then(|parent| parent.children.remove(component)) else {
            return;
        };
        self.forget(path, &node, reason);
        happened.push(Happened::Removed(path.clone()));
        let emptied = parent.depth() > 0 && self.tree.node(&parent).is_some_and(Node::is_empty_placeholder);
        if emptied && !broken(Defect::PlaceholderStays) {
            self.remove(&parent, DeleteReason::KeepWhile, happened);
        } else {
            happened.push(Happened::Changed(parent));
        }
    }

    /// Notes the removal of a node that is already detached, and of everything beneath it.
    fn forget(&mut self, path: &Path, node: &Node, reason: DeleteReason) {
        if let Keep::While(keep) = &node.keep {
            self.tree.index_mut().remove(path, keep);
        }
        match self.touches.get_mut(path) {
            // It came and went within the command.
            Some(touch) if touch.old.is_none() => drop(self.touches.remove(path)),
            Some(touch) => {
                touch.removed = Some(reason);
                touch.listed = reason == DeleteReason::Explicit || !broken(Defect::CascadeUnlisted);
                (touch.payload_bumped, touch.children_bumped) = (false, false);
            }
            None => {
                let touch = Touch {
                    old: Some(node.info()),
                    fresh: false,
                    payload_bumped: false,
                    children_bumped: false,
                    listed: reason == DeleteReason::Explicit || !broken(Defect::CascadeUnlisted),
                    removed: Some(reason),
                };
                self.touches.insert(path.clone(), touch);
            }
        }
        for (component, child) in node.children() {
            self.forget(&path.child(component.clone()), child, reason);
        }
    }

    /// Re-evaluates who watches what changed, deletes those whose conditions no longer hold, and so on until nothing
    /// more follows. Ends because every round deletes a node.
    fn settle(&mut self, mut happened: Vec<Happened>) {
        while !happened.is_empty() {
            let mut affected = BTreeSet::new();
            happened.drain(..).for_each(|what| self.tree.index().affected(&what, &mut affected));
            for watcher in affected {
                if !self.tree.keeps(&watcher) {
                    self.remove(&watcher, DeleteReason::KeepWhile, &mut happened);
                }
            }
            if broken(Defect::CascadeStops) {
                return;
            }
        }
    }
}

impl Tree {
    /// Whether the node's own conditions hold; true of a node that is gone already.
    fn keeps(&self, path: &Path) -> bool {
        match self.node(path).map(|node| &node.keep) {
            Some(Keep::While(keep)) => keep.holds(self),
            Some(Keep::Always | Keep::Placeholder) | None => true,
        }
    }

    fn node_mut(&mut self, path: &Path) -> Option<&mut Node> {
        let mut node = self.root_mut();
        for component in path.components() {
            node = Arc::make_mut(node.children.get_mut(component)?);
        }
        Some(node)
    }

    /// The node at these components.
    pub(crate) fn at(&self, components: &[Component]) -> Option<&Node> {
        components.iter().try_fold(self.root(), |node, component| node.child(component))
    }
}
