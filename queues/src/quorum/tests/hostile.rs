//! Bytes that nobody should have written, and values that nobody should have chosen.

use proptest::collection::vec;
use proptest::prelude::*;

use super::ops::{OP_BYTES, busy, op, some_config};
use super::*;

fn extreme() -> impl Strategy<Value = u64> {
    prop_oneof![0u64..20, Just(u64::MAX), Just(u64::MAX - 1), Just(1 << 63), any::<u64>()]
}

fn any_consumer() -> impl Strategy<Value = ConsumerRef> {
    let by_id = (0u64..3, 0u64..2, vec(any::<u8>(), 0..3))
        .prop_map(|(node, id, tag)| ConsumerRef::Id(ConsumerId { session: session(node, id), tag: tag.into() }));
    let known = any_id().prop_map(ConsumerRef::Id);
    prop_oneof![1 => extreme().prop_map(|k| ConsumerKey(k).into()), 1 => by_id, 3 => known]
}

fn any_ids() -> impl Strategy<Value = MsgIds> {
    vec((extreme(), extreme()), 0..6).prop_map(|runs| {
        let mut ids = MsgIds::new();
        runs.into_iter().for_each(|(start, count)| ids.push_run(crate::Run { start, count }));
        ids
    })
}

fn maybe() -> impl Strategy<Value = Option<u64>> {
    // The largest number is written as the one below it.
    proptest::option::of(extreme().prop_map(|n| n.min(u64::MAX - 1)))
}

fn any_session() -> impl Strategy<Value = SessionRef> {
    (0u64..3, prop_oneof![0u64..2, Just(50)]).prop_map(|(node, id)| session(node, id))
}

fn any_id() -> impl Strategy<Value = ConsumerId> {
    (any_session(), prop_oneof![Just("c0"), Just("c1"), Just("g"), Just("")])
        .prop_map(|(session, tag)| ConsumerId { session, tag: Bytes::from_static(tag.as_bytes()) })
}

fn any_mode() -> impl Strategy<Value = Mode> {
    let number = || prop_oneof![0u32..4, Just(u32::MAX), any::<u32>()];
    prop_oneof![
        number().prop_map(Mode::SimplePrefetch),
        number().prop_map(|initial_delivery_count| Mode::Credited { initial_delivery_count }),
    ]
}

fn any_config() -> impl Strategy<Value = Config> {
    let retry = (extreme(), extreme(), 0usize..3).prop_map(|(min_ms, max_ms, on)| DelayedRetry {
        on: [RetryOn::All, RetryOn::Failed, RetryOn::Returned][on],
        min_ms,
        max_ms,
    });
    let numbers = (extreme(), maybe(), maybe(), maybe(), maybe(), maybe());
    let rest = (proptest::option::of(any::<u32>()), any::<bool>(), any::<bool>(), 0u8..3, proptest::option::of(retry));
    (numbers, rest).prop_map(|(numbers, (delivery_limit, rejects, single_active, dead, delayed_retry))| Config {
        delivery_limit,
        consumer_disconnected_timeout_ms: numbers.0,
        consumer_timeout_ms: numbers.1,
        max_length: numbers.2,
        max_length_bytes: numbers.3,
        overflow: if rejects { Overflow::RejectPublish } else { Overflow::DropHead },
        message_ttl_ms: numbers.4,
        expires_ms: numbers.5,
        single_active,
        dead_letter: if dead == 0 { None } else { dead_letter(dead == 1) },
        delayed_retry,
    })
}

fn any_outcome() -> impl Strategy<Value = Command> {
    (any_consumer(), any_ids(), 0u8..6, maybe()).prop_map(|(consumer, ids, kind, deliver_at_ms)| match kind {
        0 => Command::Settle { consumer, ids },
        1 => Command::Discard { consumer, ids },
        2 | 3 => Command::Return { consumer, ids, failed: kind == 2 },
        kind => Command::Modify(Box::new(Modify {
            consumer,
            ids,
            failed: kind == 4,
            undeliverable_here: deliver_at_ms == Some(0),
            deliver_at_ms,
            annotations: vec![(Bytes::new(), Bytes::new()), (Bytes::from_static(b"x-a"), Bytes::from_static(b"1"))],
        })),
    })
}

fn any_enqueue() -> impl Strategy<Value = Command> {
    let traits = (any::<u32>(), any::<Option<u8>>(), maybe());
    (any::<Option<()>>(), any_session(), extreme(), traits).prop_map(|(tracked, session, seq, traits)| {
        let Command::Enqueue(mut e) = publish(tracked.map(|()| (session, seq)), 3) else { unreachable!() };
        (e.delivery_count, e.priority, e.ttl_ms) = traits;
        Command::Enqueue(e)
    })
}

fn any_attach() -> impl Strategy<Value = Command> {
    (any_id(), any_mode(), any::<i32>(), maybe(), maybe()).prop_map(|(id, mode, priority, own, default)| {
        let Command::Attach(mut attach) = attach(&id, 0, priority) else { unreachable!() };
        (attach.mode, attach.timeout_ms, attach.default_timeout_ms) = (mode, own, default);
        Command::Attach(attach)
    })
}

/// Every command, with values that nobody would choose.
fn any_command() -> impl Strategy<Value = Command> {
    let number = || prop_oneof![0u32..4, Just(u32::MAX), any::<u32>()];
    let dequeue = (any_id(), any::<bool>(), maybe())
        .prop_map(|(consumer, settled, default_timeout_ms)| Command::Dequeue { consumer, settled, default_timeout_ms });
    let credit =
        (any_consumer(), number(), number(), any::<bool>()).prop_map(|(consumer, credit, delivery_count, drain)| {
            Command::Credit { consumer, credit, delivery_count, drain }
        });
    let lost = (any_session(), any::<bool>())
        .prop_map(|(session, gone)| down(session, if gone { SessionLoss::Gone } else { SessionLoss::NoConnection }));
    prop_oneof![
        4 => any_outcome(),
        3 => any_enqueue(),
        2 => any_attach(),
        1 => dequeue,
        1 => credit,
        1 => any_session().prop_map(|session| Command::RegisterEnqueuer { session }),
        1 => any_consumer().prop_map(|consumer| Command::Cancel { consumer }),
        1 => any_consumer().prop_map(|consumer| Command::Remove { consumer }),
        1 => Just(Command::Purge),
        1 => lost,
        1 => (0u64..3).prop_map(|node| Command::NodeUp { node: NodeId(node) }),
        1 => vec(0u64..5, 0..4).prop_map(|nodes| Command::PurgeNodes { nodes: nodes.into_iter().map(NodeId).collect() }),
        1 => any_config().prop_map(Command::UpdateConfig),
        1 => extreme().prop_map(|key| Command::Timeout(TimerKey::ConsumerDisconnected(ConsumerKey(key)))),
        1 => Just(Command::Timeout(TimerKey::ConsumerDeadlines)),
        1 => Just(Command::Timeout(TimerKey::ExpireMessages)),
        1 => (any_session(), number()).prop_map(|(session, prefetch)| Command::DlxAttach { session, prefetch }),
        1 => (any_session(), any_ids()).prop_map(|(session, ids)| Command::DlxSettle { session, ids }),
        1 => maybe().prop_map(|count| Command::DelayedRetryNow { count }),
        1 => Just(Command::Continue),
    ]
}

/// Bytes that begin as a command does.
fn almost_command() -> impl Strategy<Value = Vec<u8>> {
    (0u8..28, vec(any::<u8>(), 0..60)).prop_map(|(tag, mut rest)| {
        rest.insert(0, tag);
        rest
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    #[test]
    fn extreme_values_do_no_harm_and_come_back_from_the_wire(
        ops in vec(op(), 0..40),
        config in any::<[u8; OP_BYTES]>(),
        commands in vec((any_command(), extreme()), 1..30),
    ) {
        let mut m = busy(&ops, MV2, some_config(&config));
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
        config in any::<[u8; OP_BYTES]>(),
        commands in vec(almost_command(), 1..30),
        version in 0u16..4,
    ) {
        let mut m = busy(&ops, MV2, some_config(&config));
        let mut decoder = Decoder::new(MachineVersion(version));
        for command in commands {
            let command = Bytes::from(command);
            let _ = stored_message(&command);
            m.index += 1;
            let meta = Meta { version: MachineVersion(version), ..m.meta() };
            m.queue.apply_encoded(&meta, &mut decoder, command, &mut m.fx);
            m.queue.check_invariants().unwrap();
        }
    }

    #[test]
    fn damaged_commands_are_applied_without_panic(
        ops in vec(op(), 0..40),
        config in any::<[u8; OP_BYTES]>(),
        commands in vec((any_command(), vec((any::<prop::sample::Index>(), any::<u8>()), 1..3)), 1..30),
        version in 1u16..3,
    ) {
        let mut m = busy(&ops, MV2, some_config(&config));
        let mut decoder = Decoder::new(MachineVersion(version));
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
            m.queue.apply_encoded(&meta, &mut decoder, bytes, &mut m.fx);
            m.queue.check_invariants().unwrap();
        }
    }

    #[test]
    fn a_damaged_state_is_refused_or_consistent(
        ops in vec(op(), 0..60),
        config in any::<[u8; OP_BYTES]>(),
        damage in vec((any::<prop::sample::Index>(), any::<u8>()), 1..4),
        commands in vec((any_command(), extreme()), 1..10),
    ) {
        let mut state = busy(&ops, MV2, some_config(&config)).queue.encode_state();
        for (at, byte) in damage {
            let at = at.index(state.len());
            state[at] = byte;
        }
        if let Ok(queue) = Queue::decode_state(&state) {
            assert_eq!(queue.check_invariants(), Ok(()));
            let index = queue.applied().index();
            let mut m = Member { queue, index: index.min(1 << 40), ..Member::new(MV2) };
            for (command, ts_ms) in commands {
                m.ts_ms = ts_ms;
                m.apply(command);
            }
        }
    }

    #[test]
    fn an_arbitrary_state_does_not_panic(state in vec(any::<u8>(), 0..200)) {
        let _ = Queue::decode_state(&state);
    }
}

/// The queue with another next message id of its consumer, which is 77 and nothing is held.
fn with_next_id(m: &Member, next_id: u64) -> Option<Queue> {
    let state = m.queue.encode_state();
    let at = state.windows(2).rposition(|window| window == [77, 0])?;
    let mut bytes = state[..at].to_vec();
    crate::wire::put_varint(&mut bytes, next_id);
    bytes.extend_from_slice(&state[at + 1..]);
    Queue::decode_state(&bytes).ok()
}

#[test]
fn message_ids_near_their_end_go_on_counting() {
    let mut m = Member::new(MV2);
    let key = m.attach(&consumer(1, "c"), 1);
    for id in 0..77 {
        m.publish(1);
        m.settle(key, [id]);
    }
    m.queue = with_next_id(&m, (1 << 62) - 2).expect("a state with another next id");
    m.publish(1);
    assert_eq!(m.delivered()[0].1.msg_id, (1 << 62) - 2);
    assert!(Queue::decode_state(&m.queue.encode_state()).is_ok());
    m.settle(key, [(1 << 62) - 2]);
    m.publish(2);
    let mut all = MsgIds::new();
    all.push_run(crate::Run { start: 0, count: u64::MAX });
    m.apply(Command::Settle { consumer: key.into(), ids: all });
    assert_eq!(m.delivered()[0].1.msg_id, 1 << 62);
}

#[test]
fn times_without_end_do_not_come() {
    let mut m = Member::with(
        MV2,
        Config {
            message_ttl_ms: Some(u64::MAX),
            expires_ms: Some(u64::MAX),
            consumer_timeout_ms: Some(u64::MAX),
            consumer_disconnected_timeout_ms: u64::MAX,
            max_length: Some(u64::MAX),
            max_length_bytes: Some(u64::MAX),
            overflow: Overflow::RejectPublish,
            delayed_retry: Some(DelayedRetry { on: RetryOn::Failed, min_ms: u64::MAX, max_ms: u64::MAX }),
            ..Config::default()
        },
    );
    m.publish(2);
    let key = m.attach(&consumer(1, "c"), 1);
    m.ts_ms = 4_000_000_000_000;
    m.apply(Command::Timeout(TimerKey::ExpireMessages));
    m.apply(Command::Timeout(TimerKey::ConsumerDeadlines));
    assert_eq!((m.queue.overview().unacked, m.queue.overview().ready), (1, 1));
    m.apply(down(session(1, 1), SessionLoss::NoConnection));
    m.apply(Command::Timeout(TimerKey::ConsumerDisconnected(key)));
    assert_eq!(m.queue.overview().unacked, 1);
    m.give_back(key, [0], true);
    assert_eq!(m.queue.delayed_until(), Some((u64::MAX, u64::MAX)));
    assert_eq!(m.queue.expires_at(), Some(u64::MAX));
    let state = m.queue.encode_state();
    assert_eq!(Queue::decode_state(&state).unwrap().encode_state(), state);
}
