//! Rules broken on purpose, so that the tests can be shown to see it.

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A node takes a lease while another one is in force.
    TurnsOverlap,
    /// A node does what it is asked whoever has the turn.
    LeaseNotChecked,
    /// A flag that is being decided is in the file.
    ChangingIsWritten,
    /// What failed half-way is left as it is.
    NoRollback,
    /// Nobody resolves what a dead controller left.
    NoResolver,
    /// Flags are marked without their callbacks.
    CallbackSkipped,
    /// Dependencies are not enabled first.
    DependencySkipped,
    /// A node that returns does not take over what the others have.
    NoSync,
}

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
pub(super) fn break_rule(defect: Option<Defect>) -> impl Drop {
    struct Mended;
    impl Drop for Mended {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
    BROKEN.set(defect);
    Mended
}
