//! Everything that happens in a run, as one number, and as text where somebody wants to read it.

use crate::random::mix;

/// The event log of a run. Only its digest is kept.
pub struct Journal {
    digest: u64,
    events: u64,
    trace: bool,
}

impl Journal {
    /// An empty journal; with `trace`, every event is printed.
    pub fn new(trace: bool) -> Self {
        Journal { digest: 0, events: 0, trace }
    }

    /// An event: numbers that tell it from any other, and words for it.
    pub fn note(&mut self, at_us: u64, parts: &[u64], words: impl FnOnce() -> String) {
        self.digest = mix(&[self.digest, at_us, mix(parts)]);
        self.events += 1;
        if self.trace {
            println!("{:>10.3} {}", at_us as f64 / 1000.0, words());
        }
    }

    /// The digest so far.
    pub fn digest(&self) -> u64 {
        self.digest
    }

    /// How many events there were.
    pub fn events(&self) -> u64 {
        self.events
    }
}
