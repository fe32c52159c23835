//! Ending the process when its disk has failed.
#![allow(
    unsafe_code,
    reason = "the standard library has no calls that end a process without running exit handlers, and its connections"
)]

use std::os::fd::RawFd;
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
    close_connections();
    // SAFETY: takes a number, touches no memory of ours and does not return.
    unsafe { libc::_exit(status) }
}

/// Ends every connection and stops listening. A thread that waits for the disk in the kernel ends when the disk answers, and
/// the process, with whatever it has open, only then: peers and clients would take it for a node that is slow.
fn close_connections() {
    let Ok(open) = std::fs::read_dir("/proc/self/fd") else { return };
    let numbers = open.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<RawFd>().ok());
    // Other sockets are the process's own, or lead to who keeps its log.
    for number in numbers.filter(|number| is_of_the_network(*number)) {
        // SAFETY: takes numbers and touches no memory of ours.
        unsafe { libc::shutdown(number, libc::SHUT_RDWR) };
    }
}

fn is_of_the_network(number: RawFd) -> bool {
    let mut domain: libc::c_int = 0;
    let mut length = size_of::<libc::c_int>() as libc::socklen_t;
    // SAFETY: writes at most `length` bytes to `domain`, and both live longer than the call.
    let asked = unsafe {
        libc::getsockopt(number, libc::SOL_SOCKET, libc::SO_DOMAIN, (&raw mut domain).cast(), &raw mut length)
    };
    asked == 0 && [libc::AF_INET, libc::AF_INET6].contains(&domain)
}
