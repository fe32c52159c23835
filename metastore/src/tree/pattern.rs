//! Paths whose steps may be conditions.

use super::condition::Condition;
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
        // Whoever names the child does not pay for its siblings.
        Step::Where(condition) if condition.target().is_some() => {
            let target = condition.target().and_then(|name| Some((name, node.child(name)?)));
            match target.filter(|(name, child)| condition.holds(name, child)) {
                Some((name, child)) => enter(name, child, rest, at),
                None => true,
            }
        }
        Step::Where(condition) => node
            .children()
            .filter(|(component, child)| condition.holds(component, child))
            .all(|(component, child)| enter(component, child, rest, at)),
        // Matches the child itself and, as the same step again, everything beneath it. Two such steps in a row would
        // report a node twice; decoding refuses them.
        Step::AnyDepth => node
            .children()
            .all(|(component, child)| enter(component, child, rest, at) && enter(component, child, steps, at)),
    }
}
