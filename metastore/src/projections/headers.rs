//! Headers exchanges: binding arguments against message headers (spec: broker-model.md, section 3).

use std::sync::Arc;

use warren_proto::amqp091::{FieldValue, TableRef, ValueRef};

use super::destinations::Destination;
use crate::tree::ordered_map::OrderedMap;

/// Where a message's headers are found by name.
pub trait HeaderLookup {
    /// The header of this name.
    fn header(&self, name: &str) -> Option<ValueRef<'_>>;
}

impl HeaderLookup for TableRef<'_> {
    fn header(&self, name: &str) -> Option<ValueRef<'_>> {
        self.get(name)
    }
}

/// A destination and a binding key.
type Place = (Destination, Arc<[u8]>);

/// The bindings, by destination and key; each holds one matcher for each table of arguments.
#[derive(Clone, Debug, Default)]
pub(super) struct Headers(OrderedMap<Place, Arc<[Matcher]>>);

impl Headers {
    pub(super) fn set(&mut self, key: &Arc<[u8]>, destination: Destination, arguments: &[Arc<[u8]>]) {
        let place = (destination, key.clone());
        self.0.remove(&place);
        if !arguments.is_empty() {
            self.0.insert(place, arguments.iter().map(|table| Matcher::of(table)).collect());
        }
    }

    pub(super) fn for_each_match<'a>(
        &'a self,
        headers: Option<&dyn HeaderLookup>,
        found: &mut impl FnMut(&'a Destination),
    ) {
        let headers = headers.unwrap_or(&NoHeaders);
        for ((destination, _), matchers) in self.0.iter() {
            if matchers.iter().any(|matcher| matcher.matches(headers)) {
                found(destination);
            }
        }
    }
}

struct NoHeaders;

impl HeaderLookup for NoHeaders {
    fn header(&self, _: &str) -> Option<ValueRef<'_>> {
        None
    }
}

/// One binding's arguments, ready to compare.
#[derive(Clone, Debug)]
struct Matcher {
    /// One field that agrees is enough.
    any: bool,
    fields: Box<[(Box<str>, FieldValue)]>,
}

impl Matcher {
    /// Arguments that cannot be read match nothing: a declare refuses them, an import may not.
    fn of(arguments: &[u8]) -> Self {
        let nothing = Matcher { any: true, fields: Box::default() };
        let Ok(table) = TableRef::new(arguments).to_table() else {
            return nothing;
        };
        let mode = table.get("x-match").and_then(|mode| mode.as_str()).unwrap_or("all");
        let (any, with_x) = match mode {
            "all" => (false, false),
            "any" => (true, false),
            "all-with-x" => (false, true),
            "any-with-x" => (true, true),
            _ => return nothing,
        };
        let ignored = |name: &str| {
            if with_x { name == "x-match" } else { name.starts_with("x-") }
        };
        let tested = table.iter().filter(|(name, _)| !ignored(name));
        Matcher { any, fields: tested.map(|(name, value)| (name.into(), value.clone())).collect() }
    }

    /// With no field to test, `all` matches every message and `any` none.
    fn matches(&self, headers: &dyn HeaderLookup) -> bool {
        let agrees = |(name, expected): &(Box<str>, FieldValue)| match headers.header(name) {
            Some(value) => asks_presence(expected) || expected.matches(value),
            None => false,
        };
        if self.any { self.fields.iter().any(agrees) } else { self.fields.iter().all(agrees) }
    }
}

/// Void asks no more than that the header is there; arrays and tables are compared no further either.
fn asks_presence(expected: &FieldValue) -> bool {
    matches!(expected, FieldValue::Void | FieldValue::Array(_) | FieldValue::Table(_))
}
