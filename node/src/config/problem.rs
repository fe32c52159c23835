//! What is wrong with a configuration, and where.

use std::fmt;
use std::path::{Path, PathBuf};

/// Where a setting was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A line of a file, counted from one.
    Line(PathBuf, usize),
    /// A file as a whole.
    File(PathBuf),
    /// An environment variable.
    Environment(String),
}

impl Origin {
    /// A line of `file`, counted from one.
    pub fn line(file: &Path, line: usize) -> Self {
        Origin::Line(file.to_owned(), line)
    }
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Line(file, line) => write!(f, "{}:{line}", file.display()),
            Origin::File(file) => write!(f, "{}", file.display()),
            Origin::Environment(name) => write!(f, "${name}"),
        }
    }
}

/// A reason not to start, or (as a warning) a setting that has no effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// Where it was written.
    pub origin: Origin,
    /// What is wrong, in words that name the key.
    pub text: String,
}

impl Problem {
    /// A problem at `origin`.
    pub fn new(origin: Origin, text: impl Into<String>) -> Self {
        Problem { origin, text: text.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.origin, self.text)
    }
}
