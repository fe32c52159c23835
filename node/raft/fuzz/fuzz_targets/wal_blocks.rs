//! A file of the write-ahead log that is longer than a block: with nothing wrong in it, it ends where its last record does.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_raft::storage::fuzzing;

fuzz_target!(|script: &[u8]| {
    fuzzing::write_ahead_log_of(script);
});
