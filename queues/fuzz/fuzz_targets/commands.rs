//! A log of arbitrary bytes: whatever the commands are, and whatever state they meet, the queue answers, its state stays
//! sound, and it comes back from a snapshot as it was.

#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use warren_proto::ids::Reference;
use warren_queues::quorum::{Config, Decoder, Effects, MV1, MV2, Meta, Queue, stored_message};

fuzz_target!(|data: &[u8]| {
    let [declared, length, rest @ ..] = data else { return };
    // the first bytes may be a state to start from
    let (state, mut rest) = rest.split_at(usize::from(*length).min(rest.len()));
    let single_active = declared & 1 == 1;
    let mut queue =
        Queue::decode_state(state).unwrap_or_else(|_| Queue::new(Config { single_active, ..Config::default() }));
    let mut effects = Effects::new();
    let mut index = queue.applied().index();
    let mut ts_ms = 0u64;
    // each command: a control byte (version and passing time), a length byte, and that many bytes
    while let [control, length, more @ ..] = rest {
        let (command, after) = more.split_at(usize::from(*length).min(more.len()));
        rest = after;
        index = index.saturating_add(1);
        // now and then time goes as far as it can
        ts_ms = if *control == 255 { u64::MAX } else { ts_ms.saturating_add(u64::from(control / 2) * 16) };
        if index >= 1 << 47 {
            // the state's last reference is at the end of what a log can have
            return;
        }
        let version = if control & 1 == 0 && declared & 2 == 0 { MV1 } else { MV2 };
        let meta = Meta { reference: Reference::new(index, 0), term: 1, ts_ms, version };
        let command = Bytes::copy_from_slice(command);
        let _ = stored_message(&command);
        queue.apply_encoded(&meta, &mut Decoder::new(version), command, &mut effects);
        effects.clear();
        queue.check_invariants().expect("the state is sound after every command");
    }
    // message ids that a state comes with may count on beyond those that can be read
    let written = queue.encode_state();
    if let Ok(again) = Queue::decode_state(&written) {
        assert_eq!(again.encode_state(), written, "a state comes back as it was");
    }
});
