use super::*;

fn reject_once(m: &mut Member) -> Delivered {
    let (key, message) = m.get("g");
    m.give_back(key, [0], true);
    message
}

#[test]
fn a_rejected_message_is_redelivered_with_its_failures_counted() {
    // Acceptance 3: publish one, then get and reject with requeue thrice.
    let mut m = Member::new(MV2);
    m.publish(1);
    let seen: Vec<_> = (0..3).map(|_| reject_once(&mut m)).collect();
    assert_eq!(seen.iter().map(Delivered::redelivered).collect::<Vec<_>>(), [false, true, true]);
    assert_eq!(seen.iter().map(|d| d.delivery_count).collect::<Vec<_>>(), [0, 1, 2]);
}

#[test]
fn a_nacked_message_is_delivered_fifty_times_without_a_failure() {
    // Acceptance 4: the default limit counts failures only.
    let mut m = Member::new(MV2);
    m.publish(1);
    for _ in 0..50 {
        let (key, _) = m.get("g");
        m.give_back(key, [0], false);
    }
    let (_, message) = m.get("g");
    assert_eq!((message.acquired_count, message.delivery_count), (50, 0));
}

#[test]
fn version_1_counts_every_return_against_the_limit() {
    let mut m = Member::new(MV1);
    m.publish(1);
    for _ in 0..20 {
        let (key, message) = m.get("g");
        assert_eq!(message.delivery_count, 0);
        m.give_back(key, [0], true);
    }
    let (key, _) = m.get("g");
    m.give_back(key, [0], false);
    assert!(m.effects().contains(&Effect::Dropped { reason: DeadReason::DeliveryLimit, count: 1 }));
    assert_eq!(m.queue.overview().messages, 0);
}

#[test]
fn a_limit_of_three_means_four_deliveries() {
    let mut m = Member::new(MV2);
    m.apply(Command::UpdateConfig(Config { delivery_limit: Some(3), ..Config::default() }));
    m.publish(1);
    for _ in 0..4 {
        reject_once(&mut m);
    }
    assert!(m.effects().contains(&Effect::Dropped { reason: DeadReason::DeliveryLimit, count: 1 }));
    assert_eq!(
        m.apply(Command::Dequeue { consumer: consumer(1, "g"), settled: true, default_timeout_ms: None }),
        Reply::Empty
    );
}

#[test]
fn a_limit_set_later_applies_to_the_next_reject() {
    let mut m = Member::new(MV2);
    m.apply(Command::UpdateConfig(Config { delivery_limit: None, ..Config::default() }));
    m.publish(1);
    for _ in 0..100 {
        reject_once(&mut m);
    }
    assert_eq!(m.queue.overview().messages, 1);
    m.apply(Command::UpdateConfig(Config { delivery_limit: Some(5), ..Config::default() }));
    reject_once(&mut m);
    assert_eq!(m.queue.overview().messages, 0);
}

#[test]
fn failures_in_an_earlier_queue_are_shown_but_not_limited() {
    let mut m = Member::new(MV2);
    m.apply(Command::UpdateConfig(Config { delivery_limit: Some(1), ..Config::default() }));
    let Command::Enqueue(mut enqueue) = publish(None, 4) else { unreachable!() };
    enqueue.delivery_count = 9;
    m.apply(Command::Enqueue(enqueue));
    assert_eq!(reject_once(&mut m).delivery_count, 9);
    assert_eq!(reject_once(&mut m).delivery_count, 10);
    assert_eq!(m.queue.overview().messages, 0);
}

#[test]
fn a_discarded_message_leaves() {
    let mut m = Member::new(MV2);
    m.publish(2);
    let key = m.attach(&consumer(1, "c"), 2);
    m.apply(Command::Discard { consumer: key.into(), ids: MsgIds::from_iter([0, 1, 1, 5]) });
    assert_eq!(m.effects(), [Effect::Dropped { reason: DeadReason::Rejected, count: 2 }]);
    assert_eq!(m.queue.overview().messages, 0);
}
