//! What a checker answers.

/// A checker's answer, with an example of what is wrong where something is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict<V> {
    /// Everything that was looked at is as it must be.
    Valid,
    /// The history shows too little.
    Unknown(&'static str),
    /// Something is wrong: the example that says most about it.
    Invalid(V),
}

impl<V> Verdict<V> {
    /// Whether nothing is wrong and enough was seen.
    pub fn is_valid(&self) -> bool {
        matches!(self, Verdict::Valid)
    }

    /// Whether something is wrong.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Verdict::Invalid(_))
    }

    /// The example, if something is wrong.
    pub fn violation(self) -> Option<V> {
        match self {
            Verdict::Invalid(violation) => Some(violation),
            Verdict::Valid | Verdict::Unknown(_) => None,
        }
    }

    /// The verdict of a whole run: `valid < unknown < invalid`, the first of the worst.
    pub fn and(self, other: Self) -> Self {
        match (&self, &other) {
            (Verdict::Valid, _) => other,
            (Verdict::Unknown(_), Verdict::Invalid(_)) => other,
            (Verdict::Unknown(_) | Verdict::Invalid(_), _) => self,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_part_is_the_verdict_of_the_whole() {
        let (valid, unknown, invalid) = (Verdict::Valid, Verdict::Unknown("?"), Verdict::Invalid(1));
        assert_eq!(valid.and(unknown), unknown);
        assert_eq!(unknown.and(invalid), invalid);
        assert_eq!(invalid.and(Verdict::Invalid(2)).and(unknown), invalid);
        assert_eq!((valid.and(valid), invalid.violation()), (valid, Some(1)));
    }
}
