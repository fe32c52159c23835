//! Conditions on one node (spec: metadata-store.md, section 2).

use warren_proto::ids::Reference;

use super::node::Node;
use super::path::Component;

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

    /// Whether an existing node meets it.
    pub fn holds(&self, name: &Component, node: &Node) -> bool {
        match self {
            Condition::Is(component) => component == name,
            Condition::AnyName => true,
            Condition::NameMatches(glob) => match name {
                Component::Name(octets) => glob_matches(glob, octets),
                Component::Symbol(symbol) => glob_matches(glob, symbol.as_str().as_bytes()),
            },
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
            Condition::NameMatches(glob) => match name {
                Component::Name(octets) => glob_matches(glob, octets),
                Component::Symbol(symbol) => glob_matches(glob, symbol.as_str().as_bytes()),
            },
            Condition::All(list) => list.iter().all(|c| c.admits_name(name)),
            Condition::Any(list) => list.iter().any(|c| c.admits_name(name)),
            _ => true,
        }
    }
}

/// Linear in practice and at worst `pattern * text`: on a mismatch only the last star moves.
fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
    let (mut g, mut t) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while t < text.len() {
        if glob.get(g) == Some(&b'*') {
            star = Some((g, t));
            g += 1;
        } else if glob.get(g) == Some(&text[t]) {
            g += 1;
            t += 1;
        } else if let Some((at, taken)) = star {
            star = Some((at, taken + 1));
            g = at + 1;
            t = taken + 1;
        } else {
            return false;
        }
    }
    glob[g..].iter().all(|b| *b == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_in_a_name_pattern_stands_for_any_octets() {
        for (glob, text, expected) in [
            ("*", "", true),
            ("a*b", "ab", true),
            ("a*b", "axxb", true),
            ("a*b", "axxbc", false),
            ("*.log", "x.log", true),
            ("a*b*c", "abbbc", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(glob_matches(glob.as_bytes(), text.as_bytes()), expected, "{glob} {text}");
        }
    }

    #[test]
    fn a_put_may_create_only_under_conditions_that_ask_nothing_of_the_node() {
        assert!(Condition::always().allows_creation());
        assert!(Condition::absent_or_placeholder().allows_creation());
        assert!(!Condition::PayloadVersion(Comparison::Eq, 1).allows_creation());
        assert!(!Condition::Any(Vec::new()).allows_creation());
        assert!(!Condition::HasPayload(false).allows_creation());
    }
}
