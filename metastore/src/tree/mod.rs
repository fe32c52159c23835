//! The metadata tree: persistent, so that a handle to one version is cheap, readable from any thread, and never
//! changes; a writer copies what it changes.

mod change;
mod condition;
mod defect;
mod each;
mod edit;
mod error;
mod inspect;
mod keep_while;
mod name_test;
mod node;
pub(crate) mod ordered_map;
mod path;
mod pattern;
mod predicate;
mod read;
mod report;
#[cfg(test)]
mod tests;
mod text;
mod transaction;
mod watch_index;

use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

use warren_proto::ids::Reference;

pub use change::{Change, Changes, DeleteReason};
pub use condition::{Comparison, Condition};
pub use each::{EachOp, EachWatch, Part, Template};
pub(crate) use edit::Edit;
pub use error::{AbortCode, MetaError};
pub(crate) use inspect::{is_of_version_1, regexes};
pub(crate) use keep_while::KeepWhile;
pub use keep_while::{MAX_WATCHES, Watch};
pub use name_test::{NameRegex, NameTest};
pub(crate) use node::Keep;
pub use node::{MAX_PAYLOAD, Node, NodeInfo, Payload, Properties};
pub use path::{Component, MAX_DEPTH, MAX_NAME, Path, Symbol};
pub use pattern::{Pattern, PatternError, Step};
pub use predicate::{FieldTest, FieldValue, Predicate};
pub use report::{Report, Touched};
pub use text::TextError;
pub use transaction::{Answered, Assignment, Guard, MAX_ANSWERED, MAX_OPS, MAX_VISITED, Op, OpResult};
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

    /// What must hold in every state that commands up to `newest` led to; the reason where it does not.
    pub fn check_invariants(&self, newest: Reference) -> Result<(), String> {
        self.check_nodes(newest)?;
        if self.index != self.rebuilt_index() {
            return Err("the watch index differs from one built from the tree".into());
        }
        Ok(())
    }

    /// The part of the invariants that a tree read from bytes could break; what is derived from its nodes is left out.
    pub(crate) fn check_nodes(&self, newest: Reference) -> Result<(), String> {
        let root = &self.root;
        if root.payload.is_some() || root.keep != Keep::Always || root.create_revision != Reference(0) {
            return Err("the root is not a root".into());
        }
        check_node(&mut Vec::new(), root, Reference(0), newest).map_err(|(at, why)| format!("{}: {why}", Path::new(at)))
    }
}

/// Checks a node whose parent was created at `earliest`, and all beneath it; where and why it is unsound.
fn check_node(
    at: &mut Vec<Component>,
    node: &Node,
    earliest: Reference,
    newest: Reference,
) -> Result<(), (Vec<Component>, &'static str)> {
    let unsound = if at.len() > MAX_DEPTH {
        Some("too deep")
    } else if node.payload.as_ref().is_some_and(|payload| payload.bytes.len() > MAX_PAYLOAD) {
        Some("its payload is too large")
    } else if node.is_empty_placeholder() {
        Some("an empty placeholder")
    } else if matches!(&node.keep, Keep::While(keep) if keep.0.is_empty() || keep.0.len() > MAX_WATCHES) {
        Some("a number of watches that no command attaches")
    } else if node.payload_version == 0 || node.child_list_version == 0 {
        Some("a version below 1")
    } else if !(earliest..=node.mod_revision).contains(&node.create_revision) || node.mod_revision > newest {
        Some("revisions out of order")
    } else {
        None
    };
    if let Some(why) = unsound {
        return Err((std::mem::take(at), why));
    }
    for (component, child) in node.children() {
        at.push(component.clone());
        check_node(at, child, node.create_revision, newest)?;
        at.pop();
    }
    Ok(())
}

fn diff(at: &mut Vec<Component>, old: Option<&Arc<Node>>, new: Option<&Arc<Node>>, changes: &mut Changes) {
    if let (Some(old), Some(new)) = (old, new)
        && Arc::ptr_eq(old, new)
    {
        return;
    }
    // A payload that changed and changed back is a change too: whoever compares revisions must learn of the new one.
    let written = |node: &Node| (node.create_revision, node.mod_revision);
    let same = match (old, new) {
        (Some(old), Some(new)) => written(old) == written(new) && old.payload == new.payload,
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
