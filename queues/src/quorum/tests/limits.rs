//! More messages than the queue may hold.

use super::*;

fn queue(config: Config) -> Member {
    Member::with(MV2, config)
}

fn rejecting(max_length: u64) -> Member {
    queue(Config { max_length: Some(max_length), overflow: Overflow::RejectPublish, ..Config::default() })
}

fn get_settled(m: &mut Member) {
    let get = Command::Dequeue { consumer: consumer(1, "g"), settled: true, default_timeout_ms: None };
    assert!(matches!(m.apply(get), Reply::Got { .. }));
}

/// What publishers were told by the last command.
fn told(m: &Member) -> Vec<bool> {
    let status = |effect: &Effect| match effect {
        Effect::QueueStatus { reject, .. } => Some(*reject),
        _ => None,
    };
    m.fx.iter().filter_map(status).collect()
}

#[test]
fn the_oldest_message_makes_room_for_a_new_one() {
    // Acceptance 11.
    let mut m = queue(Config { max_length: Some(1), dead_letter: dead_letter(false), ..Config::default() });
    m.apply(publish(Some((session(1, 1), 1)), 4));
    m.apply(publish(Some((session(2, 1), 1)), 4));
    assert_eq!(died(&m), [(DeadReason::MaxLen, 2)]);
    assert_eq!(m.get("g").1.reference.index(), 3);
}

#[test]
fn what_would_be_delivered_next_is_dropped_first() {
    let mut m = queue(Config::default());
    for priority in [3, 9, 9] {
        let Command::Enqueue(mut enqueue) = publish(None, 4) else { unreachable!() };
        enqueue.priority = Some(priority);
        m.apply(Command::Enqueue(enqueue));
    }
    let (key, _) = m.get("g");
    m.give_back(key, [0], false);
    m.apply(Command::UpdateConfig(Config {
        max_length: Some(0),
        dead_letter: dead_letter(false),
        ..Config::default()
    }));
    assert_eq!(died(&m), [(DeadReason::MaxLen, 3), (DeadReason::MaxLen, 4), (DeadReason::MaxLen, 2)]);
}

#[test]
fn what_consumers_hold_does_not_count_until_it_comes_back() {
    let mut m = queue(Config { max_length: Some(1), dead_letter: dead_letter(false), ..Config::default() });
    let key = m.attach(&consumer(1, "c"), 2);
    m.publish(3);
    assert_eq!(m.queue.overview().messages, 3);
    m.apply(Command::Remove { consumer: key.into() });
    assert_eq!(died(&m), [(DeadReason::MaxLen, 3), (DeadReason::MaxLen, 4)]);
}

#[test]
fn delayed_messages_are_dropped_where_nothing_is_ready() {
    let retry = DelayedRetry { on: RetryOn::All, min_ms: 100, max_ms: 100 };
    let mut m = queue(Config { delayed_retry: Some(retry), dead_letter: dead_letter(false), ..Config::default() });
    m.publish(2);
    let key = m.attach(&consumer(1, "c"), 2);
    m.give_back(key, [1], false);
    m.ts_ms += 1;
    m.give_back(key, [0], false);
    assert_eq!(m.queue.overview().delayed, 2);
    m.apply(Command::UpdateConfig(Config { max_length: Some(1), ..m.queue.config().clone() }));
    assert_eq!(died(&m), [(DeadReason::MaxLen, 3)]);
    assert!(!m.queue.work_owed());
}

#[test]
fn only_bytes_of_bodies_are_limited() {
    let mut m = queue(Config { max_length_bytes: Some(20), ..Config::default() });
    m.apply(publish(None, 20));
    assert_eq!(m.queue.overview().ready, 1);
    m.apply(publish(None, 1));
    assert_eq!((m.queue.overview().ready, m.queue.overview().bytes), (1, 1));
}

#[test]
fn publishers_are_told_to_stop_when_the_limit_is_passed_and_to_go_on_when_there_is_room() {
    // Acceptance 12: max-length 1 takes two, then nacks; after two gets it takes more.
    let mut m = rejecting(1);
    let s = session(1, 1);
    m.apply(Command::RegisterEnqueuer { session: s });
    m.apply(publish(Some((s, 1)), 4));
    assert_eq!(told(&m), []);
    m.apply(publish(Some((s, 2)), 4));
    assert_eq!(told(&m), [true]);
    get_settled(&mut m);
    assert_eq!(told(&m), []);
    get_settled(&mut m);
    assert_eq!(told(&m), [false]);
}

#[test]
fn room_means_four_fifths_of_the_limit() {
    // Acceptance 13: full at 11; at 9 still refused, at 8 accepted.
    let mut m = rejecting(10);
    for seq in 1..=11 {
        m.apply(publish(Some((session(1, 1), seq)), 4));
        assert_eq!(told(&m), if seq == 11 { vec![true] } else { vec![] });
    }
    for left in (8..=10).rev() {
        get_settled(&mut m);
        assert_eq!(told(&m), if left == 8 { vec![false] } else { vec![] });
    }
}

#[test]
fn without_the_limit_publishers_go_on() {
    // Acceptance 12: clearing the limiting policy also unblocks.
    for config in [Config { overflow: Overflow::RejectPublish, ..Config::default() }, Config::default()] {
        let mut m = rejecting(1);
        (1..=2).for_each(|seq| drop(m.apply(publish(Some((session(1, 1), seq)), 4))));
        assert_eq!(told(&m), [true]);
        m.apply(Command::UpdateConfig(config));
        assert_eq!(told(&m), [false]);
    }
}

#[test]
fn who_registers_with_a_full_queue_is_told_to_stop_and_so_is_who_registers_again() {
    let mut m = rejecting(1);
    m.publish(2);
    for _ in 0..2 {
        m.apply(Command::RegisterEnqueuer { session: session(1, 1) });
        assert_eq!(told(&m), [true]);
    }
    let mut fx = Effects::new();
    m.queue.become_leader(&mut fx);
    assert!(fx.iter().any(|effect| matches!(effect, Effect::QueueStatus { reject: true, .. })));
}

#[test]
fn dead_messages_that_are_kept_count() {
    let mut m = queue(Config {
        max_length: Some(3),
        overflow: Overflow::RejectPublish,
        dead_letter: dead_letter(true),
        ..Config::default()
    });
    (1..=3).for_each(|seq| drop(m.apply(publish(Some((session(1, 1), seq)), 4))));
    let key = m.attach(&consumer(1, "c"), 3);
    m.apply(Command::Discard { consumer: key.into(), ids: MsgIds::from_iter(0..3) });
    assert_eq!(told(&m), []);
    m.apply(Command::Remove { consumer: key.into() });
    m.apply(publish(Some((session(1, 1), 4)), 4));
    assert_eq!(told(&m), [true]);
}

#[test]
fn a_long_queue_is_cut_in_pieces() {
    let mut m = queue(Config { dead_letter: dead_letter(false), ..Config::default() });
    m.fill(20_000);
    m.apply(Command::UpdateConfig(Config { max_length: Some(10), ..m.queue.config().clone() }));
    assert_eq!((died(&m).len(), m.queue.work_owed()), (16_384, true));
    m.apply(Command::Continue);
    assert_eq!((died(&m).len(), m.queue.work_owed()), (20_000 - 10 - 16_384, false));
}
