//! Reads of one version of the tree. A handle never changes, so that these run on any thread, as long as they take.

use super::Tree;
use super::node::{Node, NodeInfo, Payload};
use super::path::{Component, Path};
use super::pattern::Pattern;

impl Tree {
    /// The node at a path with payload and properties.
    pub fn get(&self, path: &Path) -> Option<NodeInfo> {
        self.node(path).map(Node::info)
    }

    /// The payload at a path; another one where there is none.
    pub fn get_or(&self, path: &Path, default: Payload) -> Payload {
        self.node(path).and_then(|node| node.payload.clone()).unwrap_or(default)
    }

    /// All matching nodes in path order; the root too where the pattern is empty.
    pub fn get_many(&self, pattern: &Pattern) -> Vec<(Path, NodeInfo)> {
        self.fold(pattern, Vec::new(), |found, at, node| found.push((Path::new(at.to_vec()), node.info())))
    }

    /// Whether a node is there, with or without a payload.
    pub fn exists(&self, path: &Path) -> bool {
        self.node(path).is_some()
    }

    /// Whether a node is there and has a payload.
    pub fn has_data(&self, path: &Path) -> bool {
        self.node(path).is_some_and(|node| node.payload.is_some())
    }

    /// How many nodes match.
    pub fn count_matching(&self, pattern: &Pattern) -> u64 {
        self.fold(pattern, 0, |count, _, _| *count += 1)
    }

    /// Takes all matching nodes into a value, in path order.
    pub fn fold<T>(&self, pattern: &Pattern, mut value: T, mut step: impl FnMut(&mut T, &[Component], &Node)) -> T {
        self.visit(pattern, &mut |at, node| {
            step(&mut value, at, node);
            true
        });
        value
    }

    /// The names of a node's direct children, in order; none where it is not there.
    pub fn children(&self, path: &Path) -> Vec<Component> {
        self.node(path).into_iter().flat_map(Node::children).map(|(component, _)| component.clone()).collect()
    }
}
