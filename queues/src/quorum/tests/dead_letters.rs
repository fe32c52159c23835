//! Messages that leave the queue unconsumed.

use super::*;

const WORKER: SessionRef = SessionRef { node: NodeId(1), incarnation: 7, id: 99 };

fn keeping() -> Member {
    Member::with(MV2, keeping_config())
}

fn keeping_config() -> Config {
    Config { overflow: Overflow::RejectPublish, dead_letter: dead_letter(true), ..Config::default() }
}

fn attach_worker(m: &mut Member, session: SessionRef, prefetch: u32) -> Reply {
    m.apply(Command::DlxAttach { session, prefetch })
}

fn discard(m: &mut Member, count: usize) {
    m.publish(count);
    let key = m.attach(&consumer(1, "c"), 0);
    m.apply(Command::Discard { consumer: key.into(), ids: MsgIds::from_iter(0..count as u64) });
    m.apply(Command::Remove { consumer: key.into() });
}

/// Message ids and log indexes that the worker was given by the last command.
fn to_worker(m: &Member) -> Vec<(u64, u64)> {
    let given = |effect: &Effect| match effect {
        Effect::DlxDeliver { messages, .. } => {
            Some(messages.iter().map(|(_, d)| (d.msg_id, d.reference.index())).collect::<Vec<_>>())
        }
        _ => None,
    };
    m.fx.iter().filter_map(given).flatten().collect()
}

fn settle(m: &mut Member, session: SessionRef, ids: &[u64]) {
    m.apply(Command::DlxSettle { session, ids: ids.iter().copied().collect() });
}

#[test]
fn rejected_messages_die_in_the_clients_order() {
    let mut m = Member::with(MV2, Config { dead_letter: dead_letter(false), ..Config::default() });
    m.publish(4);
    let key = m.attach(&consumer(1, "c"), 4);
    m.apply(Command::Discard { consumer: key.into(), ids: MsgIds::from_iter([2, 0, 3]) });
    assert_eq!(died(&m).iter().map(|(_, index)| *index).collect::<Vec<_>>(), [4, 2, 5]);
    let Some(Effect::DeadLetter { messages, .. }) = m.effects().into_iter().next() else { panic!() };
    assert!(messages.iter().all(|d| (d.acquired_count, d.delivery_count) == (1, 1)));
}

#[test]
fn a_limit_of_three_means_four_deliveries_and_then_one_dead_letter() {
    // Acceptance 5.
    let config = Config { delivery_limit: Some(3), dead_letter: dead_letter(false), ..Config::default() };
    let mut m = Member::with(MV2, config);
    m.publish(1);
    for _ in 0..4 {
        assert_eq!(died(&m), []);
        let (key, _) = m.get("g");
        m.give_back(key, [0], true);
    }
    assert_eq!(died(&m), [(DeadReason::DeliveryLimit, 2)]);
}

#[test]
fn the_outcomes_of_amqp_1_0_count_as_they_should() {
    // Acceptance 23: released, modified(failed), modified(undeliverable-here).
    let mut m = Member::with(MV2, Config { dead_letter: dead_letter(false), ..Config::default() });
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 1);
    let counts = |m: &Member| m.delivered().first().map(|(_, d)| (d.acquired_count, d.delivery_count));
    m.give_back(key, [0], false);
    assert_eq!(counts(&m), Some((1, 0)));
    let modify = |id: u64, failed, undeliverable_here, value: &'static [u8]| {
        Command::Modify(Box::new(Modify {
            consumer: key.into(),
            ids: id.into(),
            failed,
            undeliverable_here,
            deliver_at_ms: None,
            annotations: vec![(Bytes::from_static(b"x-opt-a"), Bytes::from_static(value))],
        }))
    };
    m.apply(modify(1, true, false, b"1"));
    assert_eq!(counts(&m), Some((2, 1)));
    let noted = |d: &Delivered| d.annotations.as_ref().and_then(|all| all.get(&b"x-opt-a"[..]).cloned());
    assert_eq!(noted(&m.delivered()[0].1), Some(Bytes::from_static(b"1")));
    m.apply(modify(2, false, true, b"2"));
    assert_eq!(died(&m), [(DeadReason::Rejected, 2)]);
    let Some(Effect::DeadLetter { messages, .. }) = m.effects().into_iter().next() else { panic!() };
    assert_eq!((messages[0].acquired_count, messages[0].delivery_count), (3, 1));
    assert_eq!(noted(&messages[0]), Some(Bytes::from_static(b"2")), "notes survive the death; the later one counts");
}

#[test]
fn kept_messages_wait_for_the_worker_in_the_order_of_their_deaths() {
    // Acceptance 29.
    let mut m = keeping();
    discard(&mut m, 100);
    assert_eq!((m.queue.overview().dead, m.queue.overview().messages), (100, 0));
    assert_eq!(m.queue.live(), [2..=101]);
    assert_eq!(attach_worker(&mut m, WORKER, 32), Reply::Ok);
    let mut arrived = to_worker(&m);
    assert_eq!(arrived.len(), 32);
    while let Some((id, _)) = arrived.get(100 - m.queue.overview().dead as usize).copied() {
        settle(&mut m, WORKER, &[id]);
        arrived.extend(to_worker(&m));
    }
    assert_eq!(arrived, (0..100).map(|n| (n, n + 2)).collect::<Vec<_>>());
    assert_eq!((m.queue.overview().dead, m.queue.live()), (0, vec![]));
}

#[test]
fn a_newer_worker_gets_what_the_older_one_had_first_and_under_new_ids() {
    // Acceptance 30: nothing is lost when the worker is, whoever answers late.
    let mut m = keeping();
    discard(&mut m, 4);
    attach_worker(&mut m, WORKER, 3);
    settle(&mut m, WORKER, &[1]);
    assert_eq!(to_worker(&m), [(3, 5)]);
    for worker in [SessionRef { id: 100, ..WORKER }, WORKER, WORKER] {
        let before = m.queue.overview().dead;
        attach_worker(&mut m, worker, 3);
        let given = to_worker(&m);
        assert_eq!(given.iter().map(|(_, index)| *index).collect::<Vec<_>>(), [2, 4, 5]);
        settle(&mut m, worker, &[0, 1, 2, 3]);
        assert_eq!(m.queue.overview().dead, before, "the ids of {given:?} were used before");
    }
}

#[test]
fn ids_are_not_used_again_after_dead_messages_were_not_kept_for_a_time() {
    let mut m = keeping();
    discard(&mut m, 1);
    attach_worker(&mut m, WORKER, 3);
    m.apply(Command::UpdateConfig(Config::default()));
    m.queue = Queue::decode_state(&m.queue.encode_state()).unwrap();
    m.apply(Command::UpdateConfig(keeping_config()));
    attach_worker(&mut m, WORKER, 3);
    discard(&mut m, 1);
    settle(&mut m, WORKER, &[0]);
    assert_eq!(m.queue.overview().dead, 1);
}

#[test]
fn who_does_not_keep_dead_messages_has_no_worker() {
    let mut m = Member::with(MV2, Config { dead_letter: dead_letter(true), ..Config::default() });
    assert_eq!(attach_worker(&mut m, WORKER, 3), Reply::NotFound, "with drop-head they are published once");
    discard(&mut m, 1);
    assert_eq!(m.queue.overview().dead, 0);
}

#[test]
fn another_strategy_drops_the_backlog_and_stops_the_worker() {
    for config in [
        Config { dead_letter: dead_letter(false), overflow: Overflow::RejectPublish, ..Config::default() },
        Config { dead_letter: dead_letter(true), ..Config::default() },
    ] {
        let mut m = keeping();
        discard(&mut m, 3);
        attach_worker(&mut m, WORKER, 1);
        m.apply(Command::UpdateConfig(config));
        assert!(m.effects().contains(&Effect::DlxWorker(false)));
        assert_eq!((m.queue.overview().dead, m.queue.live()), (0, vec![]));
        m.apply(Command::UpdateConfig(keeping_config()));
        assert!(m.effects().contains(&Effect::DlxWorker(true)));
        assert_eq!(to_worker(&m), []);
    }
}

#[test]
fn a_purge_takes_kept_messages_too_except_in_version_1() {
    for (version, count) in [(MV1, 1), (MV2, 4)] {
        let mut m = keeping();
        discard(&mut m, 3);
        attach_worker(&mut m, WORKER, 1);
        m.publish(1);
        m.version = version;
        assert_eq!(m.apply(Command::Purge), Reply::Purged { count });
        assert_eq!(m.queue.overview().dead, 4 - count);
    }
}
