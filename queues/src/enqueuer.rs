//! Sequencing of what a session publishes: a resend is never enqueued twice, a gap never passed over.

use warren_proto::ids::SessionRef;

use crate::defect::{Defect, broken};

/// Where a publish comes from. Without one it is untracked: not sequenced, and not deduplicated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Origin {
    /// The publishing session.
    pub session: SessionRef,
    /// The session's count of publishes to this queue, from 1.
    pub seq: u64,
}

/// The first sequence number of every enqueuer.
pub(crate) const FIRST_SEQ: u64 = 1;

/// One session's place in its own sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Enqueuer {
    pub next_seq: u64,
    /// Whether it has been told to stop.
    pub blocked: bool,
}

/// What a sequence number says about a publish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admission {
    /// The one that was expected: it is now counted.
    Next,
    /// Seen before: owed a confirm, nothing else.
    Duplicate,
    /// Something before it is missing: the session keeps it and resends in order.
    Ahead { expected: u64 },
}

impl Enqueuer {
    pub fn new() -> Self {
        Enqueuer { next_seq: FIRST_SEQ, blocked: false }
    }

    pub fn admit(&mut self, seq: u64) -> Admission {
        match seq.cmp(&self.next_seq) {
            std::cmp::Ordering::Equal => {
                self.next_seq = self.next_seq.saturating_add(1);
                Admission::Next
            }
            std::cmp::Ordering::Less if broken(Defect::Duplicates) => Admission::Next,
            std::cmp::Ordering::Less => Admission::Duplicate,
            std::cmp::Ordering::Greater => Admission::Ahead { expected: self.next_seq },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_resend_is_a_duplicate_and_a_gap_names_what_was_expected() {
        let mut e = Enqueuer::new();
        assert_eq!(e.admit(1), Admission::Next);
        assert_eq!(e.admit(1), Admission::Duplicate);
        assert_eq!(e.admit(3), Admission::Ahead { expected: 2 });
        assert_eq!(e.admit(2), Admission::Next);
        assert_eq!(e.admit(3), Admission::Next);
    }
}
