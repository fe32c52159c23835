//! A snapshot of arbitrary content under a right checksum: refused, or a sound machine that is written as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use sha2::{Digest, Sha256};
use warren_metastore::machine::Machine;

fuzz_target!(|data: &[u8]| {
    // what every snapshot starts with, so that mutations reach the content
    let empty = Machine::new().snapshot();
    let start = data.first().map_or(0, |byte| usize::from(*byte) % empty.len());
    let mut bytes = [&empty[..start], data.get(1..).unwrap_or_default()].concat();
    let checksum = Sha256::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    if let Ok(machine) = Machine::restore(&bytes) {
        machine.check_invariants().expect("a state that was accepted is sound");
        let written = machine.snapshot();
        let again = Machine::restore(&written).expect("what was written can be read");
        assert_eq!(again.digest(), machine.digest());
    }
});
