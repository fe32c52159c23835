//! A log of arbitrary bytes: whatever the commands are, the machine answers, the tree stays sound, and the read models take
//! in what was written.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_metastore::machine::{Machine, Meta};
use warren_metastore::projections::Projections;
use warren_proto::ids::Reference;

fuzz_target!(|data: &[u8]| {
    let mut machine = Machine::new();
    let projections = Projections::new();
    let mut rest = data;
    let mut index = 0;
    // each command: a length byte and that many bytes
    while let [length, more @ ..] = rest {
        let (command, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        index += 1;
        let meta = Meta { reference: Reference::new(index, 0), ts_ms: index, version: *Machine::VERSIONS.end() };
        let outcome = machine.apply(meta, command);
        projections.apply(&outcome.changes, machine.tree(), machine.applied());
        machine.check_invariants().expect("the tree is sound after every command");
    }
});
