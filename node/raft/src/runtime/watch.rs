//! Notices that the disk does not answer any more.

use std::convert::Infallible;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crossbeam_channel::{Receiver, RecvTimeoutError};

/// The longest time between two looks.
const LONGEST_PERIOD: Duration = Duration::from_secs(1);

/// What the writer is doing: a number that is odd while a write runs and never the same for two writes.
#[derive(Default)]
pub(super) struct Progress(AtomicU64);

impl Progress {
    /// A write begins or ends.
    pub fn step(&self) {
        self.0.fetch_add(1, Ordering::Release);
    }

    /// The write that runs now, if one does.
    fn running(&self) -> Option<u64> {
        Some(self.0.load(Ordering::Acquire)).filter(|number| number % 2 == 1)
    }
}

/// Runs until the writer has dropped its end of `writer`, or until one and the same write has run for `limit`; only then
/// it answers true. A write that ended in between is proof that the disk works, however slowly.
///
/// Time is counted in looks rather than read off a clock, so that a process that was stopped for a while does not take that
/// for the disk's fault.
pub(super) fn stalls(progress: &Progress, limit: Duration, writer: &Receiver<Infallible>) -> bool {
    let period = (limit / 10).clamp(Duration::from_millis(1), LONGEST_PERIOD);
    let mut seen = None;
    let mut held = Duration::ZERO;
    loop {
        match writer.recv_timeout(period) {
            Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return false,
            Ok(never) => match never {},
        }
        let running = progress.running();
        held = if running.is_some() && running == seen { held + period } else { Duration::ZERO };
        seen = running;
        if held >= limit {
            return true;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::thread;
    use std::time::Instant;

    use super::*;

    const LIMIT: Duration = Duration::from_millis(100);

    #[test]
    fn a_write_that_does_not_end_is_noticed_and_others_are_not() {
        let (writer, watched) = crossbeam_channel::bounded(0);
        let progress = Arc::new(Progress::default());
        let watching = {
            let progress = progress.clone();
            thread::spawn(move || (stalls(&progress, LIMIT, &watched), Instant::now()))
        };
        // Neither an idle writer nor one that is always busy, but gets on, has stalled.
        thread::sleep(LIMIT * 3);
        for _ in 0..40 {
            progress.step();
            thread::sleep(LIMIT / 10);
            progress.step();
        }
        assert!(!watching.is_finished());
        progress.step();
        let began = Instant::now();
        let (stalled, noticed) = watching.join().expect("does not panic");
        assert!(stalled);
        assert!(noticed - began >= LIMIT);
        drop(writer);
    }

    #[test]
    fn it_ends_with_the_writer() {
        let (writer, watched) = crossbeam_channel::bounded(0);
        drop(writer);
        assert!(!stalls(&Progress::default(), LIMIT, &watched));
    }
}
