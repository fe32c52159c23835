//! Ending the process when its disk has failed.
#![allow(unsafe_code, reason = "the standard library has no call that ends a process without running exit handlers")]

use std::time::{Duration, Instant};

/// How long the last line may take: the log file may lie on the disk that does not answer.
const LAST_WORDS: Duration = Duration::from_secs(1);

/// Says why, and ends the process at once with that exit status.
///
/// Not [`std::process::exit`]: the handlers that it runs wait for RocksDB's background threads, which wait for the disk.
/// Nothing is lost by that: whatever was acknowledged is on disk already.
pub fn abandon(status: i32, last_words: impl FnOnce() + Send + 'static) -> ! {
    if let Ok(saying) = std::thread::Builder::new().name("last-words".into()).spawn(last_words) {
        let deadline = Instant::now() + LAST_WORDS;
        while !saying.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(2));
        }
    }
    // SAFETY: takes a number, touches no memory of ours and does not return.
    unsafe { libc::_exit(status) }
}
