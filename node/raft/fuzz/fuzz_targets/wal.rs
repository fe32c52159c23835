//! A file of the write-ahead log: whole, damaged, or with a torn tail whose cut leaves a whole file.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_raft::storage::fuzzing;

fuzz_target!(|data: &[u8]| {
    fuzzing::write_ahead_log(data);
});
