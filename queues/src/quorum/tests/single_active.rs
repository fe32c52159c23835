//! Single active consumer: whose turn it is.

use super::*;

fn queue(version: MachineVersion) -> Member {
    Member::with(version, Config { single_active: true, ..Config::default() })
}

fn turns(m: &Member) -> Vec<(ConsumerKey, bool)> {
    let turn = |effect: &Effect| match effect {
        Effect::ConsumerActive { key, active, .. } => Some((*key, *active)),
        _ => None,
    };
    m.fx.iter().filter_map(turn).collect()
}

fn receivers(m: &Member) -> Vec<ConsumerKey> {
    m.delivered().iter().map(|(key, _)| *key).collect()
}

fn cancel(m: &mut Member, key: ConsumerKey) {
    m.apply(Command::Cancel { consumer: key.into() });
}

#[test]
fn only_one_gets_messages_and_the_next_follows_at_once_when_it_is_cancelled() {
    // Acceptance 18.
    let mut m = queue(MV2);
    let (a, b) = (m.attach(&consumer(1, "a"), 1), m.attach(&consumer(1, "b"), 9));
    m.publish(3);
    assert_eq!(m.queue.held(&by_key(b), 0).count(), 0);
    cancel(&mut m, a);
    assert_eq!((turns(&m), receivers(&m)), (vec![(b, true)], vec![b, b]));
    m.settle(a, [0]);
    assert_eq!(m.queue.overview().unacked, 2);
    let get = Command::Dequeue { consumer: consumer(1, "g"), settled: true, default_timeout_ms: None };
    assert_eq!(m.apply(get), Reply::SingleActive);
}

#[test]
fn attaching_tells_whether_it_is_ones_turn() {
    let mut m = queue(MV2);
    let active = |reply: Reply| match reply {
        Reply::Attached { active, .. } => active,
        other => panic!("{other:?}"),
    };
    assert!(active(m.apply(attach(&consumer(1, "a"), 1, 0))));
    assert!(!active(m.apply(attach(&consumer(1, "b"), 1, 0))));
    assert!(active(m.apply(attach(&consumer(1, "c"), 1, 1))), "a higher priority takes over from one that is idle");
}

#[test]
fn a_higher_priority_takes_over_when_the_active_one_has_answered() {
    // Acceptance 19.
    let mut m = queue(MV2);
    m.publish(1);
    let a = m.attach_at(&consumer(1, "a"), 5, 1);
    let b = m.attach_at(&consumer(1, "b"), 5, 3);
    m.publish(1);
    assert_eq!(receivers(&m), []);
    m.settle(a, [0]);
    assert_eq!((turns(&m), receivers(&m)), (vec![(a, false), (b, true)], vec![b]));
}

#[test]
fn a_higher_priority_gets_what_the_active_one_gives_back() {
    // Acceptance 19, the variant.
    for failed in [false, true] {
        let mut m = queue(MV2);
        m.publish(1);
        let a = m.attach_at(&consumer(1, "a"), 5, 1);
        let b = m.attach_at(&consumer(1, "b"), 5, 3);
        m.give_back(a, [0], failed);
        assert_eq!((m.delivered_indexes(), receivers(&m)), (vec![2], vec![b]));
    }
}

#[test]
fn one_that_makes_way_goes_on_when_the_higher_one_is_gone() {
    let mut m = queue(MV2);
    m.publish(2);
    let a = m.attach_at(&consumer(1, "a"), 1, 1);
    let b = m.attach_at(&consumer(2, "b"), 5, 3);
    m.apply(down(session(2, 1), SessionLoss::Gone));
    assert_eq!(m.queue.overview().consumers, 1);
    m.settle(a, [0]);
    assert_eq!(turns(&m), [(a, false), (a, true)]);
    assert_eq!(receivers(&m), [a]);
    assert_eq!(m.queue.held(&by_key(b), 0).count(), 0);
}

#[test]
fn waiting_ones_follow_by_priority_then_credit_then_age() {
    let mut m = queue(MV2);
    let a = m.attach_at(&consumer(1, "a"), 1, 0);
    let small = m.attach_at(&consumer(1, "small"), 1, 0);
    let large = m.attach_at(&consumer(1, "large"), 9, 0);
    let young = m.attach_at(&consumer(1, "young"), 9, 0);
    let mut order = Vec::new();
    for key in [a, large, young] {
        cancel(&mut m, key);
        order.extend(turns(&m));
    }
    assert_eq!(order, [(large, true), (young, true), (small, true)]);
}

#[test]
fn one_that_is_cut_off_keeps_its_turn_for_a_time() {
    let mut m = queue(MV2);
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 1);
    let b = m.attach(&consumer(2, "b"), 1);
    m.apply(down(session(1, 1), SessionLoss::NoConnection));
    assert_eq!(turns(&m), []);
    m.ts_ms += 60_000;
    m.apply(Command::Timeout(TimerKey::ConsumerDisconnected(a)));
    assert_eq!((turns(&m), receivers(&m)), (vec![(a, false), (b, true)], vec![b]));
    m.apply(Command::NodeUp { node: NodeId(1) });
    assert_eq!(turns(&m), [], "who lost its turn waits for the next");
}

#[test]
fn in_version_1_one_that_is_cut_off_loses_its_turn_at_once() {
    let mut m = queue(MV1);
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 1);
    let b = m.attach(&consumer(2, "b"), 1);
    m.apply(down(session(1, 1), SessionLoss::NoConnection));
    assert_eq!((turns(&m), receivers(&m)), (vec![(a, false), (b, true)], vec![b]));
}

#[test]
fn one_that_held_a_message_too_long_loses_its_turn_and_gets_it_back_with_the_answer() {
    let mut m = queue(MV2);
    m.apply(Command::UpdateConfig(Config { consumer_timeout_ms: Some(100), ..Config::default() }));
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 1);
    m.ts_ms += 100;
    m.apply(Command::Timeout(TimerKey::ConsumerDeadlines));
    assert_eq!((turns(&m), receivers(&m)), (vec![(a, false)], vec![]));
    m.settle(a, [0]);
    assert_eq!((turns(&m), receivers(&m)), (vec![(a, true)], vec![a]));
}

#[test]
fn who_holds_other_messages_goes_on_after_the_answer_if_nobody_took_over() {
    let mut m = queue(MV2);
    m.apply(Command::UpdateConfig(Config { consumer_timeout_ms: Some(100), ..Config::default() }));
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 2);
    m.ts_ms += 50;
    m.publish(1);
    m.ts_ms += 50;
    m.apply(Command::Timeout(TimerKey::ConsumerDeadlines));
    assert_eq!((turns(&m), receivers(&m)), (vec![], vec![]));
    m.settle(a, [0]);
    assert_eq!(receivers(&m), [a]);
}

#[test]
fn who_took_over_from_one_that_held_a_message_too_long_stays_the_only_one() {
    let mut m = queue(MV2);
    m.apply(Command::UpdateConfig(Config { consumer_timeout_ms: Some(100), ..Config::default() }));
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 9);
    m.ts_ms += 50;
    m.publish(1);
    m.ts_ms += 50;
    m.apply(Command::Timeout(TimerKey::ConsumerDeadlines));
    let b = m.attach(&consumer(1, "b"), 9);
    assert_eq!(receivers(&m), [b]);
    m.settle(a, [0]);
    m.publish(1);
    assert_eq!(receivers(&m), [b]);
    m.settle(a, [1]);
    assert_eq!(turns(&m), [(a, false)]);
}

#[test]
fn a_cancelled_consumer_that_attaches_again_waits_behind_the_new_one() {
    let mut m = queue(MV2);
    m.publish(1);
    let a = m.attach(&consumer(1, "a"), 9);
    let b = m.attach(&consumer(1, "b"), 9);
    cancel(&mut m, a);
    assert_eq!(m.attach(&consumer(1, "a"), 9), a);
    m.publish(1);
    assert_eq!(receivers(&m), [b]);
    m.settle(a, [0]);
    cancel(&mut m, b);
    assert_eq!(turns(&m), [(a, true)]);
}
