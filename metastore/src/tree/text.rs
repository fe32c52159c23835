//! Paths and patterns as people write them: `/:vhosts/prod/:queues/my%2Fq` (spec: metadata-store.md, section 1.1).
//!
//! Components are separated by `/`; a symbol begins with `:`; octets of a name may be percent-encoded, and `/`, `%`, `*`
//! and a leading `:` must be. `.` is the place itself and `..` what lies above it; above the root there is the root. In
//! patterns `*` is any name, `a*b` a glob and `**` any depth. What does not begin with `/` is relative. A trailing `/`
//! ends in the empty name; `%` alone is the empty name, too, where nothing else would say it. Only the command line and
//! logs use this form: nothing is keyed by it.

use std::fmt;

use super::condition::Condition;
use super::name_test::NameRegex;
use super::path::{Component, MAX_DEPTH, MAX_NAME, Path, Symbol};
use super::pattern::{Pattern, PatternError, Step};

/// A text that is no path or pattern.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum TextError {
    /// What follows `:` is not a symbol.
    #[error("`:{0}` is not a symbol: it has 1 to 64 of `a-z`, `0-9` and `_`")]
    Symbol(String),
    /// `%` without two hexadecimal digits.
    #[error("`{0}`: two hexadecimal digits must follow `%`")]
    Escape(String),
    /// A name is longer than [`MAX_NAME`].
    #[error("a name has more than {MAX_NAME} octets")]
    NameTooLong,
    /// More than [`MAX_DEPTH`] components.
    #[error("a path has more than {MAX_DEPTH} components")]
    TooDeep,
    /// Two steps of any depth.
    #[error("`**` may be there once only")]
    TwoSweeps,
    /// One node is asked for.
    #[error(transparent)]
    Pattern(#[from] PatternError),
}

impl Path {
    /// The path of a text; a relative one begins at `base`.
    pub fn parse(text: &str, base: &Path) -> Result<Self, TextError> {
        let steps = Pattern::parse(text, &Pattern::from(base.clone()))?;
        steps.as_path().ok_or(TextError::Pattern(PatternError::PossiblyMatchingManyNodes))
    }
}

impl Pattern {
    /// The pattern of a text; a relative one begins at `base`.
    pub fn parse(text: &str, base: &Pattern) -> Result<Self, TextError> {
        let (mut steps, rest) = match text.strip_prefix('/') {
            Some(rest) => (Vec::new(), rest),
            None => (base.steps().to_vec(), text),
        };
        if !rest.is_empty() {
            for component in rest.split('/') {
                match component {
                    "." => {}
                    ".." => drop(steps.pop()),
                    "**" => steps.push(Step::AnyDepth),
                    "*" => steps.push(Step::Where(Condition::AnyName)),
                    other => steps.push(step(other)?),
                }
            }
        }
        if steps.len() > MAX_DEPTH {
            return Err(TextError::TooDeep);
        }
        let pattern = Pattern::new(steps);
        if pattern.sweeps() > 1 { Err(TextError::TwoSweeps) } else { Ok(pattern) }
    }
}

fn step(text: &str) -> Result<Step, TextError> {
    if let Some(word) = text.strip_prefix(':') {
        let symbol = Symbol::new(word).ok_or_else(|| TextError::Symbol(word.to_owned()))?;
        return Ok(Step::Literal(Component::Symbol(symbol)));
    }
    if text == "%" {
        return Ok(Step::Literal(Component::name("")));
    }
    let parts = text.split('*').map(decoded).collect::<Result<Vec<_>, _>>()?;
    if parts.iter().map(Vec::len).sum::<usize>() > MAX_NAME {
        return Err(TextError::NameTooLong);
    }
    if let [name] = &parts[..] {
        return Ok(Step::Literal(Component::name(name)));
    }
    // A star that is meant as such cannot be written in a glob.
    let condition = if parts.iter().any(|part| part.contains(&b'*')) {
        let escaped = |part: &Vec<u8>| part.iter().map(|octet| format!(r"\x{octet:02X}")).collect::<String>();
        let parts: Vec<String> = parts.iter().map(escaped).collect();
        Condition::NameRegex(NameRegex::new(&format!(r"(?s-u)\A{}\z", parts.join(".*"))))
    } else {
        Condition::NameMatches(parts.join(&b'*').into())
    };
    Ok(Step::Where(condition))
}

fn decoded(text: &str) -> Result<Vec<u8>, TextError> {
    let mut octets = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((&octet, after)) = rest.split_first() {
        rest = after;
        if octet != b'%' {
            octets.push(octet);
            continue;
        }
        let digit = |at: usize| after.get(at).and_then(|digit| (*digit as char).to_digit(16));
        let (Some(high), Some(low)) = (digit(0), digit(1)) else {
            return Err(TextError::Escape(text.to_owned()));
        };
        octets.push((high * 16 + low) as u8);
        rest = &after[2..];
    }
    Ok(octets)
}

/// The text form; a condition that has none is shown in brackets.
impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(path) = self.as_path() {
            return fmt::Display::fmt(&path, f);
        }
        for step in self.steps() {
            match step {
                Step::Literal(component) => write!(f, "/{component}")?,
                Step::AnyDepth => write!(f, "/**")?,
                Step::Where(Condition::AnyName) => write!(f, "/*")?,
                Step::Where(Condition::NameMatches(glob)) => {
                    let parts = glob.split(|octet| *octet == b'*').map(|part| Component::name(part).to_string());
                    write!(f, "/{}", parts.collect::<Vec<_>>().join("*"))?;
                }
                Step::Where(condition) => write!(f, "/[{condition:?}]")?,
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn root() -> Path {
        Path::new(Vec::new())
    }

    fn pattern(text: &str) -> Result<Pattern, TextError> {
        Pattern::parse(text, &Pattern::new(Vec::new()))
    }

    #[test]
    fn dots_lead_to_the_place_and_above_it_and_never_above_the_root() {
        let base = Path::parse("/:vhosts/prod", &root()).unwrap();
        let parsed = |text: &str| Path::parse(text, &base).unwrap().to_string();
        assert_eq!(parsed(":queues/my%2Fq"), "/:vhosts/prod/:queues/my%2Fq");
        assert_eq!(parsed("../dev/."), "/:vhosts/dev");
        assert_eq!(parsed("../../../x"), "/x");
        assert_eq!((parsed(""), parsed("/")), ("/:vhosts/prod".into(), "/".into()));
        assert_eq!(Path::parse("/a/", &base).unwrap().depth(), 2);
        assert_eq!(Path::parse("/%2E%2E", &base).unwrap(), Path::new(vec![Component::name("..")]));
    }

    #[test]
    fn what_is_no_path_is_refused_with_the_reason() {
        let refused = |text: &str| Path::parse(text, &root()).unwrap_err();
        assert_eq!(refused("/:Vhosts"), TextError::Symbol("Vhosts".into()));
        assert_eq!(refused("/:"), TextError::Symbol("".into()));
        assert_eq!(refused("/a%2"), TextError::Escape("a%2".into()));
        assert_eq!(refused("/%éé"), TextError::Escape("%éé".into()));
        assert_eq!(refused("/a/*"), TextError::Pattern(PatternError::PossiblyMatchingManyNodes));
        assert_eq!(refused(&"/a".repeat(MAX_DEPTH + 1)), TextError::TooDeep);
        assert_eq!(refused(&"a".repeat(MAX_NAME + 1)), TextError::NameTooLong);
        assert_eq!(pattern("/**/a/**"), Err(TextError::TwoSweeps));
        assert!(refused("/*").to_string().starts_with("possibly_matching_many_nodes"));
    }

    #[test]
    fn stars_are_patterns_and_an_encoded_star_is_a_star() {
        for text in ["/:vhosts/*/:queues/**", "/a*b/*c", "/a/", "/%2A"] {
            assert_eq!(pattern(text).unwrap().to_string(), text);
        }
        let mixed = pattern("/%2A*x").unwrap();
        let admits = |name: &[u8]| mixed.admits(&[Component::name(name)]);
        assert!(admits(b"*x") && admits(b"*\xff\nx") && !admits(b"ax"));
        let one = pattern("/:vhosts/a").unwrap().target().unwrap();
        assert_eq!((one.0.to_string().as_str(), one.1), ("/:vhosts/a", Condition::always()));
        assert_eq!(pattern("/a*").unwrap().target(), Err(PatternError::PossiblyMatchingManyNodes));
    }

    proptest! {
        #[test]
        fn a_path_survives_its_text(names in proptest::collection::vec(any::<Vec<u8>>(), 0..5), symbol in "[a-z0-9_]{1,8}") {
            let mut path = Path::new(names.iter().map(Component::name).collect());
            prop_assert_eq!(Path::parse(&path.to_string(), &root()), Ok(path.clone()));
            path = path.child(Component::Symbol(Symbol::new(&symbol).unwrap()));
            prop_assert_eq!(Path::parse(&path.to_string(), &root()), Ok(path));
        }

        #[test]
        fn any_text_is_parsed_or_refused(text: String) {
            if let Ok(parsed) = pattern(&text) {
                let _ = parsed.to_string();
            }
        }
    }
}
