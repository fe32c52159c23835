//! A snapshot's state of arbitrary bytes: refused, or a sound state that is written again as it was read.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_queues::quorum::Queue;

fuzz_target!(|data: &[u8]| {
    if let Ok(queue) = Queue::decode_state(data) {
        queue.check_invariants().expect("a state that was accepted is sound");
        let written = queue.encode_state();
        let again = Queue::decode_state(&written).expect("what was written can be read");
        assert_eq!(again.encode_state(), written);
    }
});
