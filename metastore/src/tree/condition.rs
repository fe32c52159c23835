//! Conditions on one node (spec: metadata-store.md, section 2).

use warren_proto::ids::Reference;

use super::name_test::{NameRegex, NameTest, glob_matches, octets};
use super::node::Node;
use super::path::Component;
use super::predicate::Predicate;
use crate::records;

/// How a number of a node is compared with a given one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Comparison {
    /// Whether `left` compares so with `right`.
    pub fn holds(self, left: u64, right: u64) -> bool {
        match self {
            Comparison::Eq => left == right,
            Comparison::Ne => left != right,
            Comparison::Lt => left < right,
            Comparison::Le => left <= right,
            Comparison::Gt => left > right,
            Comparison::Ge => left >= right,
        }
    }
}

/// What is asked of a node.
#[derive(Clone, PartialEq, Debug)]
pub enum Condition {
    /// It has this name.
    Is(Component),
    /// Any name will do.
    AnyName,
    /// Its name matches: `*` stands for any octets, everything else for itself.
    NameMatches(Box<[u8]>),
    /// Its name matches the regular expression.
    NameRegex(NameRegex),
    /// Its name passes; as a step of a pattern, tested again on every descendant.
    PathMatches(NameTest),
    /// Its payload is a record whose fields are so.
    Data(Predicate),
    /// Whether it has a payload.
    HasPayload(bool),
    /// Whether it exists.
    NodeExists(bool),
    /// Its payload version compares so.
    PayloadVersion(Comparison, u64),
    /// Its child list version compares so.
    ChildListVersion(Comparison, u64),
    /// Its number of children compares so.
    ChildListLength(Comparison, u64),
    /// The command that created it compares so.
    CreateRevision(Comparison, Reference),
    /// The command that last changed its payload compares so.
    ModRevision(Comparison, Reference),
    /// The condition does not hold.
    Not(Box<Condition>),
    /// All hold; true of none.
    All(Vec<Condition>),
    /// One holds; false of none.
    Any(Vec<Condition>),
}

impl Condition {
    /// The condition that any node and no node meets.
    pub fn always() -> Self {
        Condition::All(Vec::new())
    }

    /// "Create, or fill an empty placeholder."
    pub fn absent_or_placeholder() -> Self {
        Condition::Any(vec![Condition::NodeExists(false), Condition::HasPayload(false)])
    }

    /// Whether it has a payload, in the words of others: the same as [`Condition::HasPayload`].
    pub fn has_data(wanted: bool) -> Self {
        Condition::HasPayload(wanted)
    }

    /// Whether, as a step of a pattern, it is tested on every descendant as well, whatever else it asks.
    pub fn applies_to_descendants(&self) -> bool {
        match self {
            Condition::PathMatches(_) => true,
            Condition::Not(inner) => inner.applies_to_descendants(),
            Condition::All(list) | Condition::Any(list) => list.iter().any(Condition::applies_to_descendants),
            _ => false,
        }
    }

    /// Calls `each` for every regular expression in it.
    pub(crate) fn regexes<'c>(&'c self, each: &mut dyn FnMut(&'c NameRegex)) {
        match self {
            Condition::NameRegex(regex) | Condition::PathMatches(NameTest::Regex(regex)) => each(regex),
            Condition::Data(predicate) => predicate.regexes(each),
            Condition::Not(inner) => inner.regexes(each),
            Condition::All(list) | Condition::Any(list) => list.iter().for_each(|inner| inner.regexes(each)),
            _ => {}
        }
    }

    /// Whether an existing node meets it.
    pub fn holds(&self, name: &Component, node: &Node) -> bool {
        match self {
            Condition::Is(component) => component == name,
            Condition::AnyName => true,
            Condition::NameMatches(glob) => glob_matches(glob, octets(name)),
            Condition::NameRegex(regex) => regex.is_match(octets(name)),
            Condition::PathMatches(test) => test.passes(name),
            Condition::Data(predicate) => {
                node.payload.as_ref().is_some_and(|payload| records::fields_match(payload, predicate))
            }
            Condition::HasPayload(wanted) => node.payload.is_some() == *wanted,
            Condition::NodeExists(wanted) => *wanted,
            Condition::PayloadVersion(cmp, n) => cmp.holds(node.payload_version, *n),
            Condition::ChildListVersion(cmp, n) => cmp.holds(node.child_list_version, *n),
            Condition::ChildListLength(cmp, n) => cmp.holds(node.children.len() as u64, *n),
            Condition::CreateRevision(cmp, at) => cmp.holds(node.create_revision.0, at.0),
            Condition::ModRevision(cmp, at) => cmp.holds(node.mod_revision.0, at.0),
            Condition::Not(inner) => !inner.holds(name, node),
            Condition::All(list) => list.iter().all(|c| c.holds(name, node)),
            Condition::Any(list) => list.iter().any(|c| c.holds(name, node)),
        }
    }

    /// The one name that a node must have to meet it, where it says so plainly.
    pub(crate) fn target(&self) -> Option<&Component> {
        match self {
            Condition::Is(component) => Some(component),
            Condition::All(list) => list.iter().find_map(Condition::target),
            _ => None,
        }
    }

    /// The names of which a node must have one to meet it, where it says so plainly; in order, each once.
    pub(crate) fn targets(&self) -> Option<Vec<&Component>> {
        match self {
            Condition::Is(component) => Some(vec![component]),
            Condition::All(list) => list.iter().find_map(Condition::targets),
            Condition::Any(list) => {
                let mut names = list.iter().map(Condition::targets).collect::<Option<Vec<_>>>()?.concat();
                names.sort();
                names.dedup();
                Some(names)
            }
            _ => None,
        }
    }

    /// Whether a put may create the node that is not there: only a name, "does not exist", or a combination of such
    /// asks for nothing that an absent node lacks.
    pub fn allows_creation(&self) -> bool {
        match self {
            Condition::Is(_) => true,
            Condition::NodeExists(wanted) => !wanted,
            Condition::Not(inner) => matches!(**inner, Condition::NodeExists(true)),
            Condition::All(list) => list.iter().all(Condition::allows_creation),
            Condition::Any(list) => list.iter().any(Condition::allows_creation),
            Condition::AnyName
            | Condition::NameMatches(_)
            | Condition::NameRegex(_)
            | Condition::PathMatches(_)
            | Condition::Data(_)
            | Condition::HasPayload(_)
            | Condition::PayloadVersion(..)
            | Condition::ChildListVersion(..)
            | Condition::ChildListLength(..)
            | Condition::CreateRevision(..)
            | Condition::ModRevision(..) => false,
        }
    }

    /// Whether nothing at the watched place meets it.
    pub(crate) fn holds_for_absent(&self) -> bool {
        match self {
            Condition::NodeExists(wanted) => !wanted,
            Condition::Not(inner) => matches!(**inner, Condition::NodeExists(true)),
            Condition::All(list) => !list.is_empty() && list.iter().all(Condition::holds_for_absent),
            Condition::Any(list) => list.iter().any(Condition::holds_for_absent),
            _ => false,
        }
    }

    /// Whether a node of this name could meet it, whatever else it is.
    pub(crate) fn admits_name(&self, name: &Component) -> bool {
        match self {
            Condition::Is(component) => component == name,
            Condition::NameMatches(glob) => glob_matches(glob, octets(name)),
            Condition::NameRegex(regex) => regex.is_match(octets(name)),
            Condition::PathMatches(test) => test.passes(name),
            Condition::All(list) => list.iter().all(|c| c.admits_name(name)),
            Condition::Any(list) => list.iter().any(|c| c.admits_name(name)),
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_put_may_create_only_under_conditions_that_ask_nothing_of_the_node() {
        assert!(Condition::always().allows_creation());
        assert!(Condition::absent_or_placeholder().allows_creation());
        assert!(!Condition::PayloadVersion(Comparison::Eq, 1).allows_creation());
        assert!(!Condition::Any(Vec::new()).allows_creation());
        assert!(!Condition::HasPayload(false).allows_creation());
    }
}
