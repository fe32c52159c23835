//! Rules of the machine broken on purpose, so that the tests can be shown to see it. Only in tests, and with the feature
//! `defects`, which is for tests of other crates.

/// A rule that is broken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Defect {
    /// A message that is given back is nowhere afterwards.
    ReturnLost,
    /// A message that is given back goes behind those that were never handed out.
    ReturnToLane,
    /// A publish that is sent again is enqueued again.
    Duplicates,
    /// In a single active queue, whoever waits first gets a turn beside the active one.
    TwoActive,
    /// The message behind one that is handed out is handed out as well, expired or not.
    ExpiredServed,
    /// Over its limit, the queue drops messages that were never handed out before those that were.
    DropPassesReturns,
    /// A message is delivered once less than the delivery limit says.
    LimitTooLow,
    /// A consumer holds one message more than its prefetch count.
    PrefetchOverrun,
    /// A consumer that answers gets nothing for it.
    CreditNotRefilled,
    /// Delivery counts do not wrap around.
    CreditDoesNotWrap,
    /// A drain gives credit up and does not count it as used.
    DrainNotCounted,
    /// Messages that die together do so in reverse.
    DeathsReversed,
    /// What a worker had goes behind what it had not when another one takes over.
    WorkerReturnsLast,
    /// Message ids of dead messages start at 0 with every worker.
    WorkerIdsReused,
    /// A consumer gets messages though it has not answered those that it held too long.
    TimedOutServed,
    /// Who makes way for a higher priority gets messages as before.
    QuiescingServed,
    /// Publishers go on as soon as the queue is not over its limit.
    UnblockedEarly,
    /// Delayed messages get ready in the order in which they were given back.
    LateCountsUp,
}

#[cfg(any(test, feature = "defects"))]
thread_local! {
    static BROKEN: std::cell::Cell<Option<Defect>> = const { std::cell::Cell::new(None) };
}

/// Whether the rule is broken now, on this thread.
#[cfg(any(test, feature = "defects"))]
pub(crate) fn broken(defect: Defect) -> bool {
    BROKEN.get() == Some(defect)
}

/// No rule is broken outside tests.
#[cfg(not(any(test, feature = "defects")))]
#[inline(always)]
pub(crate) const fn broken(_: Defect) -> bool {
    false
}

/// Breaks a rule until the guard is gone.
#[cfg(any(test, feature = "defects"))]
pub fn break_rule(defect: Defect) -> impl Drop {
    struct Mended;
    impl Drop for Mended {
        fn drop(&mut self) {
            BROKEN.set(None);
        }
    }
    BROKEN.set(Some(defect));
    Mended
}
