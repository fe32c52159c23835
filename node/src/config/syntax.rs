//! The `key = value` syntax of rabbitmq.conf: comments, single quotes, escaped dots, `$(NAME)` from the environment.

use std::path::Path;

use super::problem::{Origin, Problem};

/// Longest line that is read; longer ones are an error rather than a surprise in memory.
const MAX_LINE: usize = 64 * 1024;

/// One assignment, with where it stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// The key, split at its unescaped dots.
    pub key: Vec<String>,
    /// The value, without quotes, comments and surrounding blanks.
    pub value: String,
    /// File and line.
    pub origin: Origin,
}

impl Assignment {
    /// The key as it was written.
    pub fn name(&self) -> String {
        self.key.iter().map(|part| part.replace('.', "\\.")).collect::<Vec<_>>().join(".")
    }
}

/// Splits `text` into assignments. Lines that cannot be understood go to `problems`; the rest is still returned, so
/// that one run reports everything.
pub fn parse(
    text: &str,
    file: &Path,
    variable: &dyn Fn(&str) -> Option<String>,
    problems: &mut Vec<Problem>,
) -> Vec<Assignment> {
    let mut assignments = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let origin = Origin::line(file, index + 1);
        match parse_line(line, variable) {
            Ok(Some((key, value))) => assignments.push(Assignment { key, value, origin }),
            Ok(None) => {}
            Err(reason) => problems.push(Problem::new(origin, reason)),
        }
    }
    assignments
}

type Line = Option<(Vec<String>, String)>;

fn parse_line(line: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<Line, String> {
    if line.len() > MAX_LINE {
        return Err(format!("line is longer than {MAX_LINE} bytes"));
    }
    let line = line.trim_start_matches('\u{feff}').trim();
    if line.is_empty() || line.starts_with('#') {
        return Ok(None);
    }
    let Some((key, value)) = line.split_once('=') else {
        return Err(format!("expected `key = value`, found `{line}`"));
    };
    Ok(Some((parse_key(key.trim())?, parse_value(value.trim(), variable)?)))
}

/// Splits a key at its dots; `\.` is a dot inside a part.
fn parse_key(key: &str) -> Result<Vec<String>, String> {
    let mut parts = vec![String::new()];
    let mut chars = key.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some(escaped) => last(&mut parts).push(escaped),
                None => return Err(format!("key `{key}` ends in a backslash")),
            },
            '.' => parts.push(String::new()),
            c if c.is_whitespace() || c == '#' || c == '\'' => {
                return Err(format!("key `{key}` contains a character that keys cannot have"));
            }
            c => last(&mut parts).push(c),
        }
    }
    if parts.iter().any(String::is_empty) {
        return Err(format!("key `{key}` has an empty part"));
    }
    Ok(parts)
}

fn last(parts: &mut Vec<String>) -> &mut String {
    if parts.is_empty() {
        parts.push(String::new());
    }
    let end = parts.len() - 1;
    &mut parts[end]
}

/// Unquotes a value, drops its comment, and fills in `$(NAME)`. What comes from the environment is taken as it is: a
/// `#` or quote in a password means itself.
fn parse_value(text: &str, variable: &dyn Fn(&str) -> Option<String>) -> Result<String, String> {
    let mut value = String::new();
    // Bytes up to here are protected from trimming: they were quoted or came from the environment.
    let mut kept = 0;
    let mut quoted = false;
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        if c == '$' && rest[1..].starts_with('(') {
            let Some(end) = rest.find(')') else {
                return Err("`$(` without `)`".to_owned());
            };
            let name = &rest[2..end];
            let Some(found) = variable(name) else {
                return Err(format!("environment variable `{name}` is not set"));
            };
            value.push_str(&found);
            kept = value.len();
            rest = &rest[end + 1..];
            continue;
        }
        rest = &rest[c.len_utf8()..];
        match c {
            '\'' => {
                quoted = !quoted;
                kept = value.len();
            }
            '#' if !quoted => break,
            '\\' if !quoted && rest.starts_with(['#', '\'', '$', '\\']) => {
                value.push_str(&rest[..1]);
                rest = &rest[1..];
            }
            c => value.push(c),
        }
    }
    if quoted {
        return Err("a single quote is not closed".to_owned());
    }
    let end = kept.max(value.trim_end().len());
    value.truncate(end);
    if value.is_empty() && !text.starts_with('\'') && !text.starts_with('$') {
        return Err("value is missing".to_owned());
    }
    Ok(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(line: &str) -> Result<(Vec<String>, String), String> {
        let variable = |name: &str| (name == "SEED").then(|| "w#1 ".to_owned());
        parse_line(line, &variable).map(|found| found.unwrap_or_default())
    }

    fn value(line: &str) -> String {
        one(line).unwrap().1
    }

    #[test]
    fn comments_and_blank_lines_are_nothing() {
        assert_eq!(one("   ").unwrap().0.len(), 0);
        assert_eq!(one("  # heartbeat = 1").unwrap().0.len(), 0);
        assert_eq!(one("# $(UNSET)").unwrap().0.len(), 0);
    }

    #[test]
    fn keys_split_at_dots_but_not_at_escaped_ones() {
        assert_eq!(one("a.b\\.c.d = 1").unwrap().0, ["a", "b.c", "d"]);
        assert!(one("a..b = 1").is_err());
        assert!(one("a b = 1").is_err());
    }

    #[test]
    fn a_comment_ends_a_value_unless_quoted() {
        assert_eq!(value("k = v # note"), "v");
        assert_eq!(value("k = 'v # kept' # note"), "v # kept");
        assert_eq!(value("k = ' padded '"), " padded ");
        assert_eq!(value("k = a\\#b"), "a#b");
        assert_eq!(value("k = a=b"), "a=b");
    }

    #[test]
    fn the_environment_is_filled_in_literally() {
        assert_eq!(value("k = x$(SEED)"), "xw#1 ");
        assert!(one("k = $(UNSET)").unwrap_err().contains("UNSET"));
        assert!(one("k = $(SEED").is_err());
    }

    #[test]
    fn a_line_without_a_value_is_an_error() {
        assert!(one("heartbeat").is_err());
        assert!(one("heartbeat =").is_err());
        assert_eq!(value("k = ''"), "");
        assert!(one("k = 'open").is_err());
    }

    #[test]
    fn every_bad_line_is_reported_with_its_number() {
        let mut problems = Vec::new();
        let found = parse("ok = 1\nbad\n\nworse =\n", Path::new("w.conf"), &|_| None, &mut problems);
        assert_eq!(found.len(), 1);
        let lines: Vec<String> = problems.iter().map(ToString::to_string).collect();
        assert!(lines[0].starts_with("w.conf:2: "), "{lines:?}");
        assert!(lines[1].starts_with("w.conf:4: "), "{lines:?}");
    }
}
