//! Operations that are done for each of several nodes, with paths that depend on the node.

use std::sync::Arc;

use super::condition::Condition;
use super::error::{AbortCode, MetaError};
use super::keep_while::Watch;
use super::node::Payload;
use super::path::{Component, MAX_DEPTH, Path};
use super::pattern::Pattern;
use super::transaction::{Assignment, Op};

/// A part of a path that depends on a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Part {
    /// This component, whatever the node.
    Literal(Component),
    /// All components of the node's path (`$path`).
    Path,
    /// One component of the node's path, from the root, beginning with zero (`$name[i]`). There must be one.
    Name(u8),
    /// One step up from what the parts before lead to; above the root there is the root (`^`).
    Parent,
}

/// A path that depends on a node.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Template(pub Vec<Part>);

impl Template {
    /// The node itself.
    pub fn itself() -> Self {
        Template(vec![Part::Path])
    }

    /// What lies beneath the node.
    pub fn beneath(components: impl IntoIterator<Item = Component>) -> Self {
        Template([Part::Path].into_iter().chain(components.into_iter().map(Part::Literal)).collect())
    }

    /// The path for a node; `None` where that has no such component, or it is too deep.
    pub fn at(&self, node: &Path) -> Option<Path> {
        let mut path: Vec<Component> = Vec::new();
        for part in &self.0 {
            match part {
                Part::Literal(component) => path.push(component.clone()),
                Part::Path => path.extend_from_slice(node.components()),
                Part::Name(at) => path.push(node.components().get(usize::from(*at))?.clone()),
                Part::Parent => drop(path.pop()),
            }
        }
        (path.len() <= MAX_DEPTH).then(|| Path::new(path))
    }
}

/// A watch that depends on a node.
#[derive(Clone, PartialEq, Debug)]
pub struct EachWatch {
    /// Where.
    pub path: Template,
    /// What.
    pub condition: Condition,
}

/// An operation for each node; see the [`Op`] of the same name.
#[derive(Clone, PartialEq, Debug)]
pub enum EachOp {
    /// [`Op::Put`].
    Put {
        /// The node.
        path: Template,
        /// What it must meet.
        condition: Condition,
        /// The payload; `None` leaves it as it is.
        payload: Option<Payload>,
        /// Conditions to attach; `None` leaves them as they are, an empty list removes them.
        keep_while: Option<Vec<EachWatch>>,
    },
    /// [`Op::Delete`].
    Delete(Template),
    /// [`Op::ClearPayload`].
    ClearPayload(Template),
    /// [`Op::SetAdd`], without conditions.
    SetAdd {
        /// The node.
        path: Template,
        /// The set's payload kind.
        kind: u16,
        /// The set's payload schema.
        schema: u16,
        /// The element's canonical encoding.
        element: Arc<[u8]>,
    },
    /// [`Op::SetRemove`].
    SetRemove {
        /// The node.
        path: Template,
        /// The set's payload kind.
        kind: u16,
        /// The element's canonical encoding.
        element: Arc<[u8]>,
        /// Whether the node goes with its last element.
        delete_if_empty: bool,
    },
    /// [`Op::CounterAdd`].
    CounterAdd {
        /// The node.
        path: Template,
        /// What to add to an existing counter.
        delta: i64,
        /// The value that a new counter gets.
        initial: i64,
    },
    /// [`Op::Patch`].
    Patch(Template, Vec<Assignment>),
    /// [`Op::Abort`]: there must be no such node.
    Abort(AbortCode),
}

impl EachOp {
    /// The operation for a node.
    pub(super) fn at(&self, node: &Path) -> Result<Op, MetaError> {
        let place = |template: &Template| template.at(node).ok_or(MetaError::InvalidPath);
        let pattern = |template: &Template| place(template).map(Pattern::from);
        Ok(match self {
            EachOp::Put { path, condition, payload, keep_while } => Op::Put {
                path: place(path)?,
                condition: condition.clone(),
                payload: payload.clone(),
                keep_while: match keep_while {
                    Some(watches) => Some(
                        watches
                            .iter()
                            .map(|watch| {
                                Ok(Watch { pattern: pattern(&watch.path)?, condition: watch.condition.clone() })
                            })
                            .collect::<Result<Vec<_>, MetaError>>()?,
                    ),
                    None => None,
                },
            },
            EachOp::Delete(path) => Op::Delete(pattern(path)?),
            EachOp::ClearPayload(path) => Op::ClearPayload(pattern(path)?),
            EachOp::SetAdd { path, kind, schema, element } => Op::SetAdd {
                path: place(path)?,
                kind: *kind,
                schema: *schema,
                element: element.clone(),
                keep_while: None,
            },
            EachOp::SetRemove { path, kind, element, delete_if_empty } => Op::SetRemove {
                path: place(path)?,
                kind: *kind,
                element: element.clone(),
                delete_if_empty: *delete_if_empty,
            },
            EachOp::CounterAdd { path, delta, initial } => {
                Op::CounterAdd { path: place(path)?, delta: *delta, initial: *initial }
            }
            EachOp::Patch(path, assignments) => Op::Patch(pattern(path)?, assignments.clone()),
            EachOp::Abort(code) => Op::Abort(*code),
        })
    }
}
