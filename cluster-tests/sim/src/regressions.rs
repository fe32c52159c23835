//! Seeds that failed once. They are run first, for ever.

use clap::ValueEnum;

use crate::plan::Profile;

/// One line of `regressions.txt`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Regression {
    /// The seed.
    pub seed: u64,
    /// Under which profile.
    pub profile: Profile,
    /// What it found.
    pub what: String,
}

/// All of them. A line is: seed, profile, commit that it failed at, and what it found; `#` begins a comment.
pub fn all() -> Vec<Regression> {
    include_str!("../regressions.txt").lines().filter_map(parse).collect()
}

fn parse(line: &str) -> Option<Regression> {
    let mut words = line.split_whitespace();
    let seed = words.next()?.parse().ok()?;
    let profile = Profile::from_str(words.next()?, true).ok()?;
    Some(Regression { seed, profile, what: words.collect::<Vec<_>>().join(" ") })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_names_a_seed_and_a_profile() {
        let expected = Regression { seed: 17, profile: Profile::Wild, what: "0a1b2c3 a lost vote".into() };
        assert_eq!(parse("17 wild 0a1b2c3 a lost vote"), Some(expected));
        assert_eq!(parse("# seed profile commit what"), None);
    }

    #[test]
    fn every_line_can_be_read() {
        let lines = include_str!("../regressions.txt").lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty());
        assert_eq!(lines.count(), all().len());
    }
}
