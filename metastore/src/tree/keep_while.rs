//! Conditions that a node attaches to other nodes: it goes when they no longer hold (spec: metadata-store.md,
//! section 5).

use super::Tree;
use super::condition::Condition;
use super::path::Component;
use super::pattern::Pattern;

/// Watches of one node, at most.
pub const MAX_WATCHES: usize = 16;

/// One watched place and what must hold there.
#[derive(Clone, PartialEq, Debug)]
pub struct Watch {
    /// Where; absolute. All nodes that it matches must meet the condition, and there must be one unless the condition
    /// asks for absence.
    pub pattern: Pattern,
    /// What.
    pub condition: Condition,
}

impl Watch {
    /// "That node exists."
    pub fn exists(pattern: impl Into<Pattern>) -> Self {
        Watch { pattern: pattern.into(), condition: Condition::NodeExists(true) }
    }

    pub(crate) fn holds(&self, tree: &Tree) -> bool {
        let (mut any, mut all) = (false, true);
        tree.visit(&self.pattern, &mut |at, node| {
            any = true;
            all = at.last().is_some_and(|name| self.condition.holds(name, node));
            all
        });
        if any { all } else { self.condition.holds_for_absent() }
    }

    /// Whether it watches `place` or something beneath it.
    pub(crate) fn is_within(&self, place: &[Component]) -> bool {
        self.pattern.literal_prefix().starts_with(place)
    }
}

/// All watches of one node.
#[derive(Clone, PartialEq, Debug)]
pub struct KeepWhile(pub(crate) Vec<Watch>);

impl KeepWhile {
    pub(crate) fn holds(&self, tree: &Tree) -> bool {
        self.0.iter().all(|watch| watch.holds(tree))
    }
}
