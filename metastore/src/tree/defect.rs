//! Rules of the tree broken on purpose, so that its tests can be shown to see it. Only in tests.

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Defect {
    /// A payload that is put again counts as changed.
    EqualPayloadChanges,
    /// Every change within a command raises the payload's version.
    VersionRisesTwice,
    /// What follows from a deletion is deleted, what follows from that is not.
    CascadeStops,
    /// An emptied placeholder stays.
    PlaceholderStays,
    /// Who watches a pattern is not asked again.
    PatternUnwatched,
    /// What goes because of something else is not in the result.
    CascadeUnlisted,
    /// A name at any depth is not looked for beneath names that do not match.
    SweepStops,
    /// A put creates a node whatever it asks of it.
    CreatesAnyway,
    /// A watch that does not hold is attached all the same.
    UnmetAttached,
    /// A cleared payload keeps its revision.
    ClearKeepsRevision,
}

#[cfg(test)]
pub(super) const ALL: [Defect; 10] = [
    Defect::EqualPayloadChanges,
    Defect::VersionRisesTwice,
    Defect::CascadeStops,
    Defect::PlaceholderStays,
    Defect::PatternUnwatched,
    Defect::CascadeUnlisted,
    Defect::SweepStops,
    Defect::CreatesAnyway,
    Defect::UnmetAttached,
    Defect::ClearKeepsRevision,
];

#[cfg(test)]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Whether the rule is broken now, on this thread.
#[cfg(test)]
pub(super) fn broken(defect: Defect) -> bool {
    BROKEN.get() == Some(defect)
}

/// No rule is broken outside tests.
#[cfg(not(test))]
#[inline(always)]
pub(super) const fn broken(_: Defect) -> bool {
    false
}

/// Breaks a rule until the guard is gone.
#[cfg(test)]
pub(super) fn break_rule(defect: Defect) -> impl Drop {
    struct Mended;
    impl Drop for Mended {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
    BROKEN.set(Some(defect));
    Mended
}
