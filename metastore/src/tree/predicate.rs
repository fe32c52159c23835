//! Questions about what a node's payload says: `data_matches` (spec: metadata-store.md, section 2).
//!
//! Fields have names and types; [`records`](crate::records) knows those of each kind of payload. A payload that cannot be
//! read has no fields, and a question about a field that is not there is answered with no.

use super::name_test::NameRegex;

/// The value of a field.
#[derive(Clone, PartialEq, Debug)]
pub enum FieldValue {
    /// Text.
    Text(String),
    /// A number.
    Integer(i64),
    /// Yes or no.
    Bool(bool),
    /// Octets.
    Bytes(Vec<u8>),
    /// Several. A question about such a field is about whether one of them is as asked.
    List(Vec<FieldValue>),
}

impl From<&str> for FieldValue {
    fn from(text: &str) -> Self {
        FieldValue::Text(text.to_owned())
    }
}

impl From<i64> for FieldValue {
    fn from(number: i64) -> Self {
        FieldValue::Integer(number)
    }
}

impl From<bool> for FieldValue {
    fn from(value: bool) -> Self {
        FieldValue::Bool(value)
    }
}

/// A question about one field.
#[derive(Clone, PartialEq, Debug)]
pub enum FieldTest {
    /// It has a value.
    IsSet,
    /// It is this. Values of different types differ.
    Eq(FieldValue),
    /// It is not this.
    Ne(FieldValue),
    /// It is less; no for values of different types, and for lists.
    Lt(FieldValue),
    /// It is less or equal.
    Le(FieldValue),
    /// It is greater.
    Gt(FieldValue),
    /// It is greater or equal.
    Ge(FieldValue),
    /// It is one of these.
    In(Vec<FieldValue>),
    /// It begins with these octets.
    Prefix(Vec<u8>),
    /// It matches; a text or octets.
    Regex(NameRegex),
}

/// A question about a payload.
#[derive(Clone, PartialEq, Debug)]
pub enum Predicate {
    /// About the field of a name.
    Field(Box<str>, FieldTest),
    /// The other does not hold.
    Not(Box<Predicate>),
    /// All hold; true of none.
    All(Vec<Predicate>),
    /// One holds; false of none.
    Any(Vec<Predicate>),
}

impl Predicate {
    /// Whether it holds of something with these fields.
    pub fn holds(&self, field: &dyn Fn(&str) -> Option<FieldValue>) -> bool {
        match self {
            Predicate::Field(name, test) => field(name).is_some_and(|value| test.holds(&value)),
            Predicate::Not(inner) => !inner.holds(field),
            Predicate::All(list) => list.iter().all(|predicate| predicate.holds(field)),
            Predicate::Any(list) => list.iter().any(|predicate| predicate.holds(field)),
        }
    }

    /// Calls `each` for every regular expression in it.
    pub(super) fn regexes<'p>(&'p self, each: &mut dyn FnMut(&'p NameRegex)) {
        match self {
            Predicate::Field(_, FieldTest::Regex(regex)) => each(regex),
            Predicate::Field(..) => {}
            Predicate::Not(inner) => inner.regexes(each),
            Predicate::All(list) | Predicate::Any(list) => list.iter().for_each(|inner| inner.regexes(each)),
        }
    }
}

impl FieldTest {
    /// Whether a value is as asked.
    pub fn holds(&self, value: &FieldValue) -> bool {
        match (self, value) {
            (FieldTest::IsSet, _) => true,
            (FieldTest::Ne(other), value) => !FieldTest::Eq(other.clone()).holds(value),
            (FieldTest::Eq(FieldValue::List(other)), FieldValue::List(list)) => list == other,
            (test, FieldValue::List(list)) => list.iter().any(|value| test.holds(value)),
            (FieldTest::Eq(other), value) => value == other,
            (FieldTest::Lt(other), value) => order(value, other).is_some_and(|order| order.is_lt()),
            (FieldTest::Le(other), value) => order(value, other).is_some_and(|order| order.is_le()),
            (FieldTest::Gt(other), value) => order(value, other).is_some_and(|order| order.is_gt()),
            (FieldTest::Ge(other), value) => order(value, other).is_some_and(|order| order.is_ge()),
            (FieldTest::In(list), value) => list.contains(value),
            (FieldTest::Prefix(prefix), value) => octets(value).is_some_and(|octets| octets.starts_with(prefix)),
            (FieldTest::Regex(regex), value) => octets(value).is_some_and(|octets| regex.is_match(octets)),
        }
    }
}

/// `None` for values of different types, and for lists.
fn order(left: &FieldValue, right: &FieldValue) -> Option<std::cmp::Ordering> {
    match (left, right) {
        (FieldValue::Text(left), FieldValue::Text(right)) => Some(left.cmp(right)),
        (FieldValue::Integer(left), FieldValue::Integer(right)) => Some(left.cmp(right)),
        (FieldValue::Bool(left), FieldValue::Bool(right)) => Some(left.cmp(right)),
        (FieldValue::Bytes(left), FieldValue::Bytes(right)) => Some(left.cmp(right)),
        _ => None,
    }
}

fn octets(value: &FieldValue) -> Option<&[u8]> {
    match value {
        FieldValue::Text(text) => Some(text.as_bytes()),
        FieldValue::Bytes(octets) => Some(octets),
        FieldValue::Integer(_) | FieldValue::Bool(_) | FieldValue::List(_) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holds(test: FieldTest, value: FieldValue) -> bool {
        Predicate::Field("f".into(), test).holds(&|name| (name == "f").then(|| value.clone()))
    }

    #[test]
    fn each_operator_compares_values_of_its_type() {
        assert!(holds(FieldTest::Lt(3.into()), 2.into()) && !holds(FieldTest::Lt(3.into()), 3.into()));
        assert!(holds(FieldTest::Le(3.into()), 3.into()) && !holds(FieldTest::Gt(3.into()), 3.into()));
        assert!(holds(FieldTest::Ge("b".into()), "c".into()) && holds(FieldTest::Ne("b".into()), 1.into()));
        assert!(!holds(FieldTest::Eq("1".into()), 1.into()) && !holds(FieldTest::Ge("1".into()), 1.into()));
        assert!(holds(FieldTest::In(vec![1.into(), 2.into()]), 2.into()));
        assert!(holds(FieldTest::Prefix(b"ab".to_vec()), "abc".into()));
        assert!(holds(FieldTest::Regex(NameRegex::new("b$")), "ab".into()));
        assert!(!holds(FieldTest::Regex(NameRegex::new("(")), "ab".into()));
        let list = || FieldValue::List(vec!["a".into(), "b".into()]);
        assert!(holds(FieldTest::Eq("b".into()), list()) && !holds(FieldTest::Ne("b".into()), list()));
        assert!(holds(FieldTest::Ne("c".into()), list()) && holds(FieldTest::Eq(list()), list()));
    }

    #[test]
    fn a_missing_field_answers_no_to_everything_but_a_negation() {
        let missing = |test| Predicate::Field("g".into(), test);
        for test in [FieldTest::IsSet, FieldTest::Ne(1.into()), FieldTest::Eq(1.into())] {
            assert!(!missing(test.clone()).holds(&|_| None));
            assert!(Predicate::Not(Box::new(missing(test))).holds(&|_| None));
        }
    }
}
