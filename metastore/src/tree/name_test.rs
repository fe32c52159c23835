//! Tests of names: globs and regular expressions.

use std::fmt;
use std::sync::OnceLock;

use regex::bytes::{Regex, RegexBuilder};

use super::path::Component;

/// What the compiled form of one expression may take.
const MAX_COMPILED: usize = 256 << 10;

/// A regular expression on names or texts, unanchored, in linear time: no look-around and no back references. One that
/// does not compile matches nothing; [`problem`](Self::problem) says why.
#[derive(Clone)]
pub struct NameRegex {
    source: Box<str>,
    /// Compiled when it is needed first.
    compiled: OnceLock<Result<Regex, Box<str>>>,
}

impl NameRegex {
    /// The expression of a text.
    pub fn new(source: &str) -> Self {
        NameRegex { source: source.into(), compiled: OnceLock::new() }
    }

    fn compiled(&self) -> &Result<Regex, Box<str>> {
        self.compiled.get_or_init(|| {
            let mut builder = RegexBuilder::new(&self.source);
            builder.size_limit(MAX_COMPILED).dfa_size_limit(MAX_COMPILED);
            builder.build().map_err(|why| why.to_string().into())
        })
    }

    /// The text that it was made of.
    pub fn source(&self) -> &str {
        &self.source
    }

    /// Why it matches nothing, if it cannot be used.
    pub fn problem(&self) -> Option<&str> {
        self.compiled().as_ref().err().map(|why| &**why)
    }

    /// Whether it is found anywhere in the octets.
    pub fn is_match(&self, octets: &[u8]) -> bool {
        self.compiled().as_ref().is_ok_and(|regex| regex.is_match(octets))
    }
}

impl PartialEq for NameRegex {
    fn eq(&self, other: &Self) -> bool {
        self.source == other.source
    }
}

impl fmt::Debug for NameRegex {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "/{}/", self.source)
    }
}

/// What is asked of a name at any depth.
#[derive(Clone, PartialEq, Debug)]
pub enum NameTest {
    /// Any will do.
    Any,
    /// It matches.
    Regex(NameRegex),
}

impl NameTest {
    /// Whether the name passes.
    pub fn passes(&self, name: &Component) -> bool {
        match self {
            NameTest::Any => true,
            NameTest::Regex(regex) => regex.is_match(octets(name)),
        }
    }
}

/// A name's octets, or a symbol's word.
pub(super) fn octets(component: &Component) -> &[u8] {
    match component {
        Component::Name(octets) => octets,
        Component::Symbol(symbol) => symbol.as_str().as_bytes(),
    }
}

/// Whether the octets match, where `*` stands for any octets. Linear in practice and at worst `glob * text`: on a
/// mismatch only the last star moves.
pub(super) fn glob_matches(glob: &[u8], text: &[u8]) -> bool {
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
    fn an_expression_that_does_not_compile_matches_nothing_and_says_why() {
        for bad in ["(", r"(a)\1", "(?!x)", "(a{1000}){1000}"] {
            let regex = NameRegex::new(bad);
            assert!(!regex.is_match(b"a") && regex.problem().is_some(), "{bad}");
        }
        let good = NameRegex::new("^a.c$");
        assert!(good.is_match(b"abc") && !good.is_match(b"abcd") && good.problem().is_none());
    }
}
