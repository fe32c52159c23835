//! What a run counts: totals that the display reads while it runs, and latency histograms that each worker fills alone.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use hdrhistogram::Histogram;
use parking_lot::Mutex;

use super::clock::Clock;

/// Counters of all workers; updated once per batch.
#[derive(Debug, Default)]
pub struct Totals {
    /// Messages handed to the socket.
    pub published: AtomicU64,
    /// Messages that the broker confirmed.
    pub confirmed: AtomicU64,
    /// Messages that the broker refused.
    pub nacked: AtomicU64,
    /// Messages whose fate is unknown: the connection broke before the confirm, or the run ended.
    pub unknown: AtomicU64,
    /// Messages delivered.
    pub consumed: AtomicU64,
    /// Of those, marked as redelivered.
    pub redelivered: AtomicU64,
    /// Body bytes delivered.
    pub consumed_bytes: AtomicU64,
    /// Broken connections.
    pub errors: AtomicU64,
}

impl Totals {
    /// The counters now.
    pub fn snapshot(&self, clock: &Clock) -> Snapshot {
        Snapshot {
            at: clock.now(),
            published: self.published.load(Relaxed),
            confirmed: self.confirmed.load(Relaxed),
            nacked: self.nacked.load(Relaxed),
            unknown: self.unknown.load(Relaxed),
            consumed: self.consumed.load(Relaxed),
            redelivered: self.redelivered.load(Relaxed),
            consumed_bytes: self.consumed_bytes.load(Relaxed),
            errors: self.errors.load(Relaxed),
        }
    }
}

/// The counters at one time.
#[allow(missing_docs, reason = "the fields are those of Totals")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Snapshot {
    pub at: u64,
    pub published: u64,
    pub confirmed: u64,
    pub nacked: u64,
    pub unknown: u64,
    pub consumed: u64,
    pub redelivered: u64,
    pub consumed_bytes: u64,
    pub errors: u64,
}

/// Latencies in nanoseconds, kept to two significant digits beyond the first: under 1 % error at 30 KB each.
#[derive(Debug)]
pub struct Latencies(Histogram<u64>);

/// Longer latencies count as this: ten minutes.
const LONGEST: u64 = 600_000_000_000;

impl Latencies {
    /// An empty histogram.
    pub fn new() -> Self {
        let histogram = Histogram::new_with_bounds(1_000, LONGEST, 2);
        Latencies(histogram.unwrap_or_else(|_| unreachable!("constant bounds are valid")))
    }

    /// Counts `count` latencies from `start` to `end`.
    pub fn record(&mut self, start: u64, end: u64, count: u64) {
        self.0.saturating_record_n(end.saturating_sub(start).min(LONGEST), count);
    }

    /// Adds another's counts.
    pub fn merge(&mut self, other: &Latencies) {
        // Bounds are the same constants, so this cannot fail.
        let _ = self.0.add(&other.0);
    }

    /// How many were counted.
    pub fn count(&self) -> u64 {
        self.0.len()
    }

    /// The latency that `quantile` of all stay within, in microseconds.
    pub fn micros(&self, quantile: f64) -> u64 {
        self.0.value_at_quantile(quantile) / 1000
    }

    /// The longest, in microseconds.
    pub fn max_micros(&self) -> u64 {
        self.0.max() / 1000
    }

    /// The mean, in microseconds.
    pub fn mean_micros(&self) -> u64 {
        (self.0.mean() / 1000.0) as u64
    }
}

/// What workers share.
#[derive(Debug)]
pub struct Run {
    /// The clock of all timestamps.
    pub clock: Clock,
    /// Counters.
    pub totals: Totals,
    /// Latencies are counted from this time on: the end of the warm-up.
    pub measure_from: AtomicU64,
    /// Producers stop sending and wait for their confirms.
    pub stop_publishing: AtomicBool,
    /// Consumers end.
    pub stop_consuming: AtomicBool,
    /// From publish (or, with a rate, from when it was due) to confirm; filled as producers end.
    pub confirms: Mutex<Latencies>,
    /// From publish (or due time) to delivery; filled as consumers end.
    pub end_to_end: Mutex<Latencies>,
    /// Texts of the errors met, at most [`Run::MAX_ERRORS`].
    pub errors: Mutex<Vec<String>>,
}

impl Run {
    /// Error texts that are kept.
    const MAX_ERRORS: usize = 10;

    /// A run that has not started.
    pub fn new() -> Self {
        Run {
            clock: Clock::start(),
            totals: Totals::default(),
            measure_from: AtomicU64::new(u64::MAX),
            stop_publishing: AtomicBool::new(false),
            stop_consuming: AtomicBool::new(false),
            confirms: Mutex::new(Latencies::new()),
            end_to_end: Mutex::new(Latencies::new()),
            errors: Mutex::new(Vec::new()),
        }
    }

    /// Counts a broken connection.
    pub fn error(&self, who: &str, error: &std::io::Error) {
        self.totals.errors.fetch_add(1, Relaxed);
        let mut errors = self.errors.lock();
        if errors.len() < Self::MAX_ERRORS {
            errors.push(format!("{who}: {error}"));
        }
    }
}
