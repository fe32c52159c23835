//! Nanoseconds since 1970 that never go backwards, so that several processes of one host can compare them.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A clock that reads the system time once and counts on from there.
#[derive(Clone, Copy, Debug)]
pub struct Clock {
    start: Instant,
    epoch: u64,
}

impl Clock {
    /// Starts the clock.
    pub fn start() -> Self {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or(Duration::ZERO);
        Clock { start: Instant::now(), epoch: since.as_nanos() as u64 }
    }

    /// Now.
    pub fn now(&self) -> u64 {
        self.epoch + self.start.elapsed().as_nanos() as u64
    }
}
