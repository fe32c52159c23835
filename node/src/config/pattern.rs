//! Matching of configuration keys against patterns: `*` is one part, `a|b` one of several, a last `**` one or more.

/// If `key` matches `pattern`, the parts that a `*` or `a|b` stood for.
pub fn matches<'k>(pattern: &str, key: &'k [String]) -> Option<Vec<&'k str>> {
    let mut free = Vec::new();
    let mut parts = key.iter();
    for expected in pattern.split('.') {
        let part = parts.next()?;
        match expected {
            "**" => return Some(free),
            "*" => free.push(part.as_str()),
            _ if expected.contains('|') => {
                expected.split('|').find(|choice| choice == part)?;
                free.push(part.as_str());
            }
            _ if expected == part => {}
            _ => return None,
        }
    }
    parts.next().is_none().then_some(free)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(pattern: &str, key: &str) -> Option<String> {
        let key: Vec<String> = key.split('.').map(str::to_owned).collect();
        matches(pattern, &key).map(|free| free.join(","))
    }

    #[test]
    fn patterns_match_parts() {
        assert_eq!(check("a.b", "a.b").as_deref(), Some(""));
        assert_eq!(check("a.*.c", "a.x.c").as_deref(), Some("x"));
        assert_eq!(check("a.x|y.c", "a.y.c").as_deref(), Some("y"));
        assert_eq!(check("a.**", "a.b.c.d").as_deref(), Some(""));
        for (pattern, key) in [("a.b", "a"), ("a", "a.b"), ("a.**", "a"), ("a.x|y", "a.z"), ("a.*", "a.b.c")] {
            assert_eq!(check(pattern, key), None, "{pattern} {key}");
        }
    }
}
