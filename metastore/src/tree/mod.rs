//! The metadata tree: persistent, so that a handle to one version is cheap, readable from any thread, and never
//! changes; a writer copies what it changes.

mod change;
mod condition;
mod edit;
mod error;
mod keep_while;
mod node;
pub(crate) mod ordered_map;
mod path;
mod pattern;
#[cfg(test)]
mod tests;
mod transaction;
mod watch_index;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use warren_proto::ids::Reference;

pub use change::{Change, Changes, DeleteReason};
pub use condition::{Comparison, Condition};
pub(crate) use edit::Edit;
pub use error::{AbortCode, MetaError};
pub(crate) use keep_while::KeepWhile;
pub use keep_while::{MAX_WATCHES, Watch};
pub(crate) use node::Keep;
pub use node::{MAX_PAYLOAD, Node, NodeInfo, Payload, Properties};
pub use path::{Component, MAX_DEPTH, MAX_NAME, Path, Symbol};
pub use pattern::{Pattern, Step};
pub use transaction::{Guard, MAX_ANSWERED, MAX_OPS, MAX_VISITED, Op, OpResult};
pub(crate) use transaction::{run, set_elements};
use watch_index::WatchIndex;

/// One version of the tree. Cloning copies a pointer or two.
#[derive(Clone, Debug)]
pub struct Tree {
    root: Arc<Node>,
    index: WatchIndex,
}

impl Default for Tree {
    fn default() -> Self {
        Tree { root: Arc::new(Node::new(Reference(0), Keep::Always)), index: WatchIndex::default() }
    }
}

impl Tree {
    /// The root node. It has no payload.
    pub fn root(&self) -> &Node {
        &self.root
    }

    /// The node at a path.
    pub fn node(&self, path: &Path) -> Option<&Node> {
        self.at(path.components())
    }

    /// Calls `found` with the place of every node that matches, in path order, until it answers false.
    pub fn visit<'t>(&'t self, pattern: &Pattern, found: &mut dyn FnMut(&[Component], &'t Node) -> bool) {
        pattern.visit(&self.root, found);
    }

    /// Nodes in the tree, the root included. Walks all of it.
    pub fn count(&self) -> u64 {
        fn count(node: &Node) -> u64 {
            1 + node.children().map(|(_, child)| count(child)).sum::<u64>()
        }
        count(&self.root)
    }

    /// Whether both handles are of the same version; may be false for equal trees.
    pub fn same_version(&self, other: &Tree) -> bool {
        Arc::ptr_eq(&self.root, &other.root)
    }

    /// What turns `old` into `self`, as if one command had done it. Shared parts are skipped, so the cost is that of
    /// the difference.
    pub fn changes_since(&self, old: &Tree) -> Changes {
        let mut changes = Changes::default();
        diff(&mut Vec::new(), Some(&old.root), Some(&self.root), &mut changes);
        changes
    }

    /// A node and all beneath it, as if one command had just created them.
    pub(crate) fn changes_beneath(&self, path: &Path) -> Changes {
        let mut changes = Changes::default();
        let mut at = path.components().to_vec();
        if let Some((name, up)) = path.components().split_last()
            && let Some(parent) = self.at(up)
        {
            diff(&mut at, None, parent.children.get(name), &mut changes);
        }
        changes
    }

    pub(crate) fn from_root(root: Node) -> Self {
        let mut tree = Tree { root: Arc::new(root), index: WatchIndex::default() };
        tree.index = tree.rebuilt_index();
        tree
    }

    fn rebuilt_index(&self) -> WatchIndex {
        fn add(path: &Path, node: &Node, index: &mut WatchIndex) {
            if let Keep::While(keep) = &node.keep {
                index.add(path, keep);
            }
            node.children().for_each(|(component, child)| add(&path.child(component.clone()), child, index));
        }
        let mut index = WatchIndex::default();
        add(&Path::new(Vec::new()), &self.root, &mut index);
        index
    }

    fn root_mut(&mut self) -> &mut Node {
        Arc::make_mut(&mut self.root)
    }

    fn index(&self) -> &WatchIndex {
        &self.index
    }

    fn index_mut(&mut self) -> &mut WatchIndex {
        &mut self.index
    }

    /// What must hold in every state; the reason where it does not.
    pub fn check_invariants(&self) -> Result<(), String> {
        fn check(path: &Path, node: &Node) -> Result<(), String> {
            if path.depth() > MAX_DEPTH {
                return Err(format!("{path} is too deep"));
            }
            if path.depth() > 0 && node.is_empty_placeholder() {
                return Err(format!("{path} is an empty placeholder"));
            }
            if node.payload_version == 0 || node.child_list_version == 0 || node.create_revision > node.mod_revision {
                return Err(format!("{path} has impossible versions"));
            }
            node.children().try_for_each(|(component, child)| check(&path.child(component.clone()), child))
        }
        check(&Path::new(Vec::new()), &self.root)?;
        if self.index != self.rebuilt_index() {
            return Err("the watch index differs from one built from the tree".into());
        }
        Ok(())
    }
}

fn diff(at: &mut Vec<Component>, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>, changes: &mut Changes) {
    if let (Some(old), Some(new)) = (old, new)
        && Arc::ptr_eq(old, new)
    {
        return;
    }
    let same = match (old, new) {
        (Some(old), Some(new)) => old.payload == new.payload && old.create_revision == new.create_revision,
        _ => false,
    };
    if !same && !at.is_empty() {
        let change = Change {
            old: old.map(|node| node.info()),
            new: new.map(|node| node.info()),
            delete_reason: new.is_none().then_some(DeleteReason::Explicit),
        };
        changes.nodes.insert(Path::new(at.clone()), change);
    }
    let keys = |node: Option<&Arc<Node>>| node.into_iter().flat_map(|n| n.children.keys().cloned()).collect::<Vec<_>>();
    for component in keys(old).into_iter().chain(keys(new)).collect::<BTreeSet<_>>() {
        at.push(component.clone());
        let child = |node: Option<&'_ Arc<Node>>| node.and_then(|n| n.children.get(&component)).cloned();
        diff(at, child(old).as_ref(), child(new).as_ref(), changes);
        at.pop();
    }
}

/// Words of the schema share one allocation each.
fn interned(word: &str) -> Arc<str> {
    static WORDS: LazyLock<BTreeSet<Arc<str>>> =
        LazyLock::new(|| crate::records::SCHEMA_WORDS.iter().map(|word| Arc::from(*word)).collect());
    WORDS.get(word).cloned().unwrap_or_else(|| Arc::from(word))
}
