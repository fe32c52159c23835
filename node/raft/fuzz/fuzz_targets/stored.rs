//! Keys and values of the log store, and membership changes in entries: refused, or written again as they were read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_raft::storage::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::key(data);
    fuzzing::value(data);
    fuzzing::membership_change(data);
});
