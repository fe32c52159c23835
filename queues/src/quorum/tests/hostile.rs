//! Bytes that nobody should have written, and values that nobody should have chosen.

use proptest::collection::vec;
use proptest::prelude::*;

use super::property::{busy, op};
use super::*;

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..20, Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()]
}

fn any_consumer() -> impl Strategy<Value = ConsumerRef> {
    let by_id = (0u64..3, 0u64..2, vec(any::<u8>(), 0..3))
        .prop_map(|(node, id, tag)| ConsumerRef::Id(ConsumerId { session: session(node, id), tag: tag.into() }));
    prop_oneof![extreme().prop_map(|k| ConsumerKey(k).into()), by_id]
}

fn any_ids() -> impl Strategy<Value = MsgIds> {
    vec((extreme(), extreme()), 0..6).prop_map(|runs| {
        let mut ids = MsgIds::new();
        runs.into_iter().for_each(|(start, count)| ids.push_run(crate::Run { start, count }));
        ids
    })
}

fn any_command() -> impl Strategy<Value = Command> {
    let outcome = (any_consumer(), any_ids(), 0u8..4).prop_map(|(consumer, ids, kind)| match kind {
        0 => Command::Settle { consumer, ids },
        1 => Command::Discard { consumer, ids },
        kind => Command::Return { consumer, ids, failed: kind == 2 },
    });
    prop_oneof![
        outcome,
        (0u64..3, 0u64..2, extreme(), any::<u32>()).prop_map(|(node, id, seq, delivery_count)| {
            let Command::Enqueue(mut e) = publish(Some((session(node, id), seq)), 3) else { unreachable!() };
            e.delivery_count = delivery_count;
            Command::Enqueue(e)
        }),
        (0u64..3, any::<u32>(), any::<i32>()).prop_map(|(node, prefetch, priority)| attach(
            &consumer(node, "c"),
            prefetch,
            priority
        )),
        any_consumer().prop_map(|consumer| Command::Cancel { consumer }),
        any_consumer().prop_map(|consumer| Command::Remove { consumer }),
        extreme().prop_map(|k| Command::Timeout(TimerKey::ConsumerDisconnected(ConsumerKey(k)))),
        (proptest::option::of(any::<u32>()), extreme()).prop_map(|(delivery_limit, timeout)| {
            Command::UpdateConfig(Config {
                delivery_limit,
                consumer_disconnected_timeout_ms: timeout,
                ..Config::default()
            })
        }),
        vec(0u64..5, 0..4).prop_map(|nodes| Command::PurgeNodes { nodes: nodes.into_iter().map(NodeId).collect() }),
        (0u64..3, any::<bool>()).prop_map(|(node, gone)| {
            down(session(node, 1), if gone { SessionLoss::Gone } else { SessionLoss::NoConnection })
        }),
    ]
}

/// Bytes that begin as a command does.
fn almost_command() -> impl Strategy<Value = Vec<u8>> {
    (0u8..22, vec(any::<u8>(), 0..60)).prop_map(|(tag, mut rest)| {
        rest.insert(0, tag);
        rest
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn extreme_values_do_no_harm_and_come_back_from_the_wire(
        ops in vec(op(), 0..40),
        commands in vec((any_command(), extreme()), 1..30),
    ) {
        let mut m = busy(&ops, MV2);
        for (command, ts_ms) in commands {
            let mut bytes = bytes::BytesMut::new();
            command.encode(MV2, &mut bytes);
            assert_eq!(Command::decode(MV2, bytes.freeze()).as_ref(), Ok(&command));
            m.ts_ms = ts_ms;
            m.apply(command);
        }
        let state = m.queue.encode_state();
        assert_eq!(Queue::decode_state(&state).map(|q| q.encode_state()), Ok(state));
    }

    #[test]
    fn arbitrary_bytes_are_applied_without_panic(
        ops in vec(op(), 0..40),
        commands in vec(almost_command(), 1..30),
        version in 0u16..4,
    ) {
        let mut m = busy(&ops, MV2);
        for command in commands {
            let command = Bytes::from(command);
            let _ = stored_message(&command);
            m.index += 1;
            let meta = Meta { version: MachineVersion(version), ..m.meta() };
            m.queue.apply_encoded(&meta, command, &mut m.fx);
            m.queue.check_invariants().unwrap();
        }
    }

    #[test]
    fn damaged_commands_are_applied_without_panic(
        ops in vec(op(), 0..40),
        commands in vec((any_command(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..3)), 1..30),
        version in 1u16..3,
    ) {
        let mut m = busy(&ops, MV2);
        for (command, damage) in commands {
            let mut bytes = bytes::BytesMut::new();
            command.encode(MV2, &mut bytes);
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            let bytes = bytes.freeze();
            let _ = stored_message(&bytes);
            m.index += 1;
            let meta = Meta { version: MachineVersion(version), ..m.meta() };
            m.queue.apply_encoded(&meta, bytes, &mut m.fx);
            m.queue.check_invariants().unwrap();
        }
    }

    #[test]
    fn a_damaged_state_is_refused_or_consistent(
        ops in vec(op(), 0..60),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        commands in vec(any_command(), 1..10),
    ) {
        let mut state = busy(&ops, MV2).queue.encode_state();
        for (at, byte) in damage {
            let at = at.index(state.len());
            state[at] = byte;
        }
        if let Ok(queue) = Queue::decode_state(&state) {
            assert_eq!(queue.check_invariants(), Ok(()));
            let index = queue.applied().index();
            let mut m = Member { queue, index: index.min(1 << 40), ..Member::new(MV2) };
            for command in commands {
                m.apply(command);
            }
        }
    }

    #[test]
    fn an_arbitrary_state_does_not_panic(state in vec(any::<u8>(), 0..200)) {
        let _ = Queue::decode_state(&state);
    }
}
