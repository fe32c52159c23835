//! Paths whose steps may be conditions.

use super::condition::Condition;
use super::defect::{Defect, broken};
use super::node::Node;
use super::path::{Component, Path};

/// One step of a pattern.
#[derive(Clone, PartialEq, Debug)]
pub enum Step {
    /// The child of this name.
    Literal(Component),
    /// Every child that meets the condition (`*` is [`Condition::AnyName`]).
    Where(Condition),
    /// Every descendant, at any depth of one or more (`**`).
    AnyDepth,
}

/// A pattern that a command cannot work with.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum PatternError {
    /// The command is about one node.
    #[error("possibly_matching_many_nodes: the pattern may match several nodes, and the command expects one")]
    PossiblyMatchingManyNodes,
}

/// A set of places in the tree. A pattern of literals names one.
#[derive(Clone, PartialEq, Debug)]
pub struct Pattern(Vec<Step>);

impl From<Path> for Pattern {
    fn from(path: Path) -> Self {
        Pattern(path.components().iter().cloned().map(Step::Literal).collect())
    }
}

impl Pattern {
    /// A pattern of these steps.
    pub fn new(steps: Vec<Step>) -> Self {
        Pattern(steps)
    }

    /// The steps.
    pub fn steps(&self) -> &[Step] {
        &self.0
    }

    /// This pattern with more steps.
    pub fn join(mut self, steps: impl IntoIterator<Item = Step>) -> Self {
        self.0.extend(steps);
        self
    }

    /// The one node that a command which expects one is about, and what it must meet besides its name: every step but
    /// the last is a literal, and the last names its node.
    pub fn target(&self) -> Result<(Path, Condition), PatternError> {
        let many = || PatternError::PossiblyMatchingManyNodes;
        let Some((last, up)) = self.0.split_last() else {
            return Ok((Path::new(Vec::new()), Condition::always()));
        };
        let parent = Pattern(up.to_vec()).as_path().ok_or_else(many)?;
        match last {
            Step::Literal(component) => Ok((parent.child(component.clone()), Condition::always())),
            Step::Where(condition) if !condition.applies_to_descendants() => {
                let component = condition.target().ok_or_else(many)?;
                Ok((parent.child(component.clone()), condition.clone()))
            }
            Step::Where(_) | Step::AnyDepth => Err(many()),
        }
    }

    /// Whether a place has a name and a depth that the pattern asks for. Looks at names only: of a node that is gone
    /// nothing else is left.
    pub fn admits(&self, place: &[Component]) -> bool {
        fn admits(steps: &[Step], place: &[Component]) -> bool {
            let (Some((step, rest)), Some((component, beneath))) = (steps.split_first(), place.split_first()) else {
                return steps.is_empty() && place.is_empty();
            };
            match step {
                Step::Literal(literal) => literal == component && admits(rest, beneath),
                Step::Where(condition) => {
                    condition.admits_name(component) && admits(rest, beneath)
                        || condition.applies_to_descendants() && admits(steps, beneath)
                }
                Step::AnyDepth => admits(rest, beneath) || admits(steps, beneath),
            }
        }
        admits(&self.0, place)
    }

    /// The steps up to the last that is not a literal, and the literals after it.
    pub(crate) fn split_tail(&self) -> (Pattern, Vec<Component>) {
        let head = self.0.iter().rposition(|step| !matches!(step, Step::Literal(_))).map_or(0, |at| at + 1);
        let tail = self.0[head..].iter().filter_map(|step| match step {
            Step::Literal(component) => Some(component.clone()),
            Step::Where(_) | Step::AnyDepth => None,
        });
        (Pattern(self.0[..head].to_vec()), tail.collect())
    }

    /// Steps that are tested on every descendant.
    pub(crate) fn sweeps(&self) -> usize {
        let sweep = |step: &&Step| match step {
            Step::Literal(_) => false,
            Step::Where(condition) => condition.applies_to_descendants(),
            Step::AnyDepth => true,
        };
        self.0.iter().filter(sweep).count()
    }

    /// The path, where every step is a literal.
    pub fn as_path(&self) -> Option<Path> {
        let components: Option<Vec<_>> = self
            .0
            .iter()
            .map(|step| match step {
                Step::Literal(component) => Some(component.clone()),
                Step::Where(_) | Step::AnyDepth => None,
            })
            .collect();
        components.map(Path::new)
    }

    /// The literal steps before the first that is not.
    pub(crate) fn literal_prefix(&self) -> Vec<Component> {
        self.0
            .iter()
            .map_while(|step| match step {
                Step::Literal(component) => Some(component.clone()),
                Step::Where(_) | Step::AnyDepth => None,
            })
            .collect()
    }

    /// Whether a change at `place` could change what the pattern matches, there or beneath. Looks at names only.
    pub(crate) fn may_touch(&self, place: &[Component]) -> bool {
        for (step, component) in self.0.iter().zip(place) {
            let admitted = match step {
                Step::Literal(literal) => literal == component,
                Step::Where(condition) if condition.applies_to_descendants() => return true,
                Step::Where(condition) => condition.admits_name(component),
                Step::AnyDepth => return true,
            };
            if !admitted {
                return false;
            }
        }
        place.len() <= self.0.len()
    }

    /// Calls `found` for every matching node beneath `root`, in tree order, until it answers false.
    pub(crate) fn visit<'t>(&self, root: &'t Node, found: &mut dyn FnMut(&[Component], &'t Node) -> bool) {
        let mut at = Vec::with_capacity(self.0.len());
        visit(&self.0, root, &mut at, found);
    }
}

fn visit<'t>(
    steps: &[Step],
    node: &'t Node,
    at: &mut Vec<Component>,
    found: &mut dyn FnMut(&[Component], &'t Node) -> bool,
) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return found(at, node);
    };
    let mut enter = |component: &Component, child: &'t Node, steps: &[Step], at: &mut Vec<Component>| {
        at.push(component.clone());
        let on = visit(steps, child, at, found);
        at.pop();
        on
    };
    match step {
        Step::Literal(component) => match node.child(component) {
            Some(child) => enter(component, child, rest, at),
            None => true,
        },
        // A node that meets it, and, as the same step again, everything beneath each child, whether that meets it or not.
        Step::Where(condition) if condition.applies_to_descendants() => node.children().all(|(component, child)| {
            let meets = condition.holds(component, child);
            (!meets || enter(component, child, rest, at))
                && (!meets && broken(Defect::SweepStops) || enter(component, child, steps, at))
        }),
        Step::Where(condition) => match condition.targets() {
            // Whoever names the children does not pay for their siblings.
            Some(names) => names
                .into_iter()
                .filter_map(|name| Some((name, node.child(name)?)))
                .filter(|(name, child)| condition.holds(name, child))
                .all(|(name, child)| enter(name, child, rest, at)),
            None => node
                .children()
                .filter(|(component, child)| condition.holds(component, child))
                .all(|(component, child)| enter(component, child, rest, at)),
        },
        // Matches the child itself and, as the same step again, everything beneath it. Two such steps in a row would
        // report a node twice; decoding refuses them.
        Step::AnyDepth => node
            .children()
            .all(|(component, child)| enter(component, child, rest, at) && enter(component, child, steps, at)),
    }
}
