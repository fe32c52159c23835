//! Permissions with their expressions compiled.

use std::sync::Arc;

use crate::records::{Permission, Stored};

/// Octets of an expression, at most; a longer one matches nothing.
const MAX_PATTERN: usize = 1024;
/// Bytes that one compiled expression may take.
const MAX_COMPILED: usize = 1 << 20;
/// Steps that a backtracking match may take; beyond them it denies.
const MAX_STEPS: usize = 50_000;
/// What the default exchange is called in a permission check.
const DEFAULT_EXCHANGE: &str = "amq.default";

/// One of the three expressions.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// To declare and delete.
    Configure,
    /// To publish, and to bind to.
    Write,
    /// To consume, and to bind from.
    Read,
}

/// An expression on resource names, unanchored. One that is empty, invalid or exceeds its budget matches nothing.
#[derive(Clone, Debug)]
pub enum ResourcePattern {
    /// Matches nothing.
    Nothing,
    /// Matches everything: `.*`, by far the commonest.
    Everything,
    /// Matches in linear time.
    Linear(Box<regex::Regex>),
    /// Needs backtracking (look-around, back references).
    Backtracking(Box<fancy_regex::Regex>),
}

impl ResourcePattern {
    /// Compiles an expression.
    pub fn new(expression: &str) -> Self {
        if expression.is_empty() || expression.len() > MAX_PATTERN {
            return ResourcePattern::Nothing;
        }
        if matches!(expression, ".*" | "^.*" | "^.*$" | ".*$") {
            return ResourcePattern::Everything;
        }
        if let Ok(linear) = regex::RegexBuilder::new(expression).size_limit(MAX_COMPILED).build() {
            return ResourcePattern::Linear(Box::new(linear));
        }
        let backtracking = fancy_regex::RegexBuilder::new(expression)
            .backtrack_limit(MAX_STEPS)
            .delegate_size_limit(MAX_COMPILED)
            .build();
        match backtracking {
            Ok(backtracking) => ResourcePattern::Backtracking(Box::new(backtracking)),
            Err(_) => ResourcePattern::Nothing,
        }
    }

    /// Why an expression cannot be used; `None` for one that can.
    pub fn fault(expression: &str) -> Option<String> {
        if expression.len() > MAX_PATTERN {
            return Some(format!("longer than {MAX_PATTERN} bytes"));
        }
        if expression.is_empty() || !matches!(ResourcePattern::new(expression), ResourcePattern::Nothing) {
            return None;
        }
        match fancy_regex::Regex::new(expression) {
            Err(error) => Some(error.to_string()),
            Ok(_) => Some("too large".to_owned()),
        }
    }

    /// Whether it matches somewhere in the name.
    pub fn matches(&self, name: &str) -> bool {
        match self {
            ResourcePattern::Nothing => false,
            ResourcePattern::Everything => true,
            ResourcePattern::Linear(pattern) => pattern.is_match(name),
            ResourcePattern::Backtracking(pattern) => pattern.is_match(name).unwrap_or(false),
        }
    }
}

/// What a user may do in a vhost.
#[derive(Clone, Debug)]
pub struct PermissionView {
    record: Arc<Stored<Permission>>,
    configure: ResourcePattern,
    write: ResourcePattern,
    read: ResourcePattern,
}

impl PermissionView {
    pub(super) fn new(record: Stored<Permission>) -> Self {
        PermissionView {
            configure: ResourcePattern::new(&record.configure),
            write: ResourcePattern::new(&record.write),
            read: ResourcePattern::new(&record.read),
            record: Arc::new(record),
        }
    }

    /// The expressions as they were set.
    pub fn record(&self) -> &Arc<Stored<Permission>> {
        &self.record
    }

    /// Whether the user may do this to the queue or exchange of this name.
    pub fn allows(&self, access: Access, resource: &str) -> bool {
        let name = if resource.is_empty() { DEFAULT_EXCHANGE } else { resource };
        match access {
            Access::Configure => self.configure.matches(name),
            Access::Write => self.write.matches(name),
            Access::Read => self.read.matches(name),
        }
    }

    /// Whether the user may do anything at all to it: what a passive declare asks.
    pub fn allows_any(&self, resource: &str) -> bool {
        [Access::Configure, Access::Write, Access::Read].iter().any(|access| self.allows(*access, resource))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_expression_matches_anywhere_and_the_empty_one_nowhere() {
        for (expression, name, expected) in [
            ("", "q", false),
            ("", "", false),
            (".*", "", true),
            ("b", "abc", true),
            ("^b", "abc", false),
            ("^(?!amq\\.).*", "amq.direct", false),
            ("^(?!amq\\.).*", "orders", true),
            ("(", "(", false),
            ("^amq\\.default$", "amq.default", true),
        ] {
            assert_eq!(ResourcePattern::new(expression).matches(name), expected, "{expression} {name}");
        }
    }

    #[test]
    fn an_expression_over_its_budget_denies() {
        let pattern = ResourcePattern::new("^(a|a|aa)+(?=b)$");
        assert!(matches!(pattern, ResourcePattern::Backtracking(_)));
        assert!(!pattern.matches(&"a".repeat(200)));
        assert!(matches!(ResourcePattern::new(&"a".repeat(2000)), ResourcePattern::Nothing));
    }
}
