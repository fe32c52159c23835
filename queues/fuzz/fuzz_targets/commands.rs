//! A log of arbitrary bytes: whatever the commands are, the queue answers, and its state stays sound.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use warren_proto::ids::Reference;
use warren_queues::quorum::{Config, Effects, MV1, MV2, Meta, Queue, stored_message};

fuzz_target!(|data: &[u8]| {
    let mut queue = Queue::new(Config::default());
    let mut effects = Effects::new();
    let mut rest = data;
    let mut index = 0;
    // each command: a control byte (version and passing time), a length byte, and that many bytes
    while let [control, length, more @ ..] = rest {
        let (command, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        index += 1;
        let meta = Meta {
            reference: Reference::new(index, 0),
            term: 1,
            ts_ms: index * u64::from(*control),
            version: if index < 8 && control & 1 == 0 { MV1 } else { MV2 },
        };
        let command = Bytes::copy_from_slice(command);
        let _ = stored_message(&command);
        queue.apply_encoded(&meta, command, &mut effects);
        effects.clear();
        queue.check_invariants().expect("the state is sound after every command");
    }
});
