use super::*;

#[test]
fn a_prefetch_limit_is_kept_and_each_settle_lets_the_next_one_out() {
    let mut m = Member::new(MV2);
    m.publish(5);
    let key = m.attach(&consumer(1, "c"), 2);
    assert_eq!(m.delivered_indexes(), [2, 3]);
    m.settle(key, [1]);
    assert_eq!(m.delivered_indexes(), [4]);
    assert_eq!(m.delivered()[0].1.msg_id, 2);
    m.settle(key, [0, 2]);
    assert_eq!(m.delivered_indexes(), [5, 6]);
}

#[test]
fn no_prefetch_limit_means_two_thousand() {
    let mut m = Member::new(MV2);
    let reply = m.apply(attach(&consumer(1, "c"), 0, 0));
    assert!(matches!(reply, Reply::Attached { credit: 2000, next_msg_id: 0, num_checked_out: 0, .. }));
    m.publish(2001);
    assert_eq!(m.queue.overview().unacked, 2000);
}

#[test]
fn deliveries_of_one_buffer_are_grouped_by_consumer() {
    let mut m = Member::new(MV2);
    m.publish(6);
    m.attach(&consumer(1, "a"), 0);
    m.apply(Command::Remove { consumer: consumer(1, "a").into() });
    let mut fx = Effects::new();
    for tag in ["a", "b"] {
        m.index += 1;
        let meta = m.meta();
        m.queue.apply(&meta, attach(&consumer(2, tag), 2, 0), &mut fx);
    }
    let delivers: Vec<_> = fx
        .iter()
        .filter_map(|e| match e {
            Effect::Deliver(d) => Some((d.tag.clone(), d.messages.len())),
            _ => None,
        })
        .collect();
    assert_eq!(delivers, [("a".into(), 2), ("b".into(), 2)]);
}

#[test]
fn equal_consumers_take_turns() {
    let mut m = Member::new(MV2);
    let a = m.attach(&consumer(1, "a"), 10);
    let b = m.attach(&consumer(2, "b"), 10);
    m.index += 1;
    let mut got = Vec::new();
    for _ in 0..6 {
        m.publish(1);
        got.push(m.delivered()[0].0);
    }
    assert_eq!(got, [a, b, a, b, a, b]);
}

#[test]
fn a_higher_priority_is_served_first_and_never_holds_a_lower_one_up() {
    // Two competing consumers of priorities 10 and 0, prefetch 5, 20 messages.
    let mut m = Member::new(MV2);
    let low = m.attach_at(&consumer(1, "low"), 5, 0);
    let high = m.attach_at(&consumer(1, "high"), 5, 10);
    let mut got = Vec::new();
    for _ in 0..20 {
        m.publish(1);
        got.extend(m.delivered().iter().map(|d| d.0));
    }
    assert_eq!(got, [[high; 5], [low; 5]].concat());
    m.settle(high, [2]);
    assert_eq!(m.delivered().iter().map(|d| d.0).collect::<Vec<_>>(), [high]);
}

#[test]
fn a_get_names_how_many_are_left_and_the_same_id_gets_the_same_message_again() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let get = |settled| Command::Dequeue { consumer: consumer(1, "g"), settled, default_timeout_ms: None };
    let first = m.apply(get(false));
    let Reply::Got { key, ref message, ready: 2 } = first else { panic!("{first:?}") };
    assert!(!message.redelivered());
    assert_eq!(m.apply(get(false)), first);
    m.settle(key, [0]);
    let second = m.apply(get(true));
    assert!(matches!(second, Reply::Got { ready: 1, .. }), "{second:?}");
    assert_eq!(m.queue.overview().messages, 1);
    m.apply(get(true));
    assert_eq!(m.apply(get(true)), Reply::Empty);
    assert_eq!(m.effects(), []);
}

#[test]
fn an_attached_consumers_id_cannot_get() {
    let mut m = Member::new(MV2);
    m.attach(&consumer(1, "c"), 1);
    assert_eq!(
        m.apply(Command::Dequeue { consumer: consumer(1, "c"), settled: true, default_timeout_ms: None }),
        Reply::IdInUse
    );
}

#[test]
fn a_cancelled_consumer_keeps_what_it_holds_and_goes_with_the_last() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let c = consumer(1, "c");
    let key = m.attach(&c, 2);
    let reply = m.apply(Command::Cancel { consumer: c.clone().into() });
    assert_eq!(reply, Reply::Cancelled { key, num_checked_out: 2 });
    assert_eq!(m.queue.consumers().count(), 0);
    m.settle(key, [0]);
    assert_eq!(m.effects(), []);
    m.settle(key, [1]);
    assert_eq!(m.effects(), [Effect::Demonitor(c.session)]);
    assert_eq!(m.apply(Command::Cancel { consumer: c.into() }), Reply::NotFound);
    assert_eq!(m.queue.overview().ready, 1);
}

#[test]
fn a_removed_consumer_returns_what_it_holds_as_not_failed() {
    let mut m = Member::new(MV2);
    m.publish(2);
    let key = m.attach(&consumer(1, "c"), 2);
    assert_eq!(m.apply(Command::Remove { consumer: key.into() }), Reply::Cancelled { key, num_checked_out: 2 });
    let (_, message) = m.get("g");
    assert_eq!((message.reference.index(), message.acquired_count, message.delivery_count), (2, 1, 0));
}

#[test]
fn attaching_again_changes_properties_and_keeps_ids_and_messages() {
    let mut m = Member::new(MV2);
    m.publish(4);
    let c = consumer(1, "c");
    let key = m.attach(&c, 2);
    let again = m.apply(attach(&c, 3, 9));
    assert_eq!(
        again,
        Reply::Attached { key, next_msg_id: 2, credit: 1, delivery_count: 0, num_checked_out: 2, active: true }
    );
    assert_eq!(m.delivered()[0].1.msg_id, 2);
    let smaller = m.apply(attach(&c, 1, 9));
    assert_eq!(
        smaller,
        Reply::Attached { key, next_msg_id: 3, credit: 0, delivery_count: 0, num_checked_out: 3, active: true }
    );
    m.settle(key, [0, 1]);
    assert_eq!(m.delivered(), []);
    m.settle(key, [2]);
    assert_eq!(m.delivered().len(), 1);
    assert_eq!(m.queue.consumers().next().unwrap().priority, 9);
}

#[test]
fn a_cancelled_consumer_can_be_attached_again() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let c = consumer(1, "c");
    let key = m.attach(&c, 1);
    m.apply(Command::Cancel { consumer: key.into() });
    assert_eq!(m.attach(&c, 2), key);
    assert_eq!(m.delivered()[0].1.msg_id, 1);
}

#[test]
fn a_multiple_nack_comes_back_in_order_before_new_messages() {
    // Acceptance 8: prefetch 10, messages 1..10 unacked, nack 5 multiple.
    let mut m = Member::new(MV2);
    m.publish(12);
    let key = m.attach(&consumer(1, "c"), 10);
    m.give_back(key, 0..5, false);
    assert_eq!(m.delivered_indexes(), [2, 3, 4, 5, 6]);
    assert_eq!(m.delivered().iter().map(|d| d.1.msg_id).collect::<Vec<_>>(), [10, 11, 12, 13, 14]);
    assert!(m.delivered().iter().all(|d| d.1.redelivered()));
}

#[test]
fn returns_keep_the_order_in_which_the_client_named_them() {
    let mut m = Member::new(MV2);
    m.publish(4);
    let key = m.attach(&consumer(1, "c"), 4);
    m.give_back(key, [2, 0, 3], false);
    assert_eq!(m.delivered_indexes(), [4, 2, 5]);
}

#[test]
fn requeued_messages_go_round_after_a_lost_connection() {
    // Acceptance 7: publish 1..8, prefetch 5 unacked, close the connection, then get and requeue six times.
    let mut m = Member::new(MV2);
    m.publish(8);
    m.attach(&consumer(1, "c"), 5);
    m.apply(down(session(1, 1), SessionLoss::Gone));
    let mut got = Vec::new();
    for _ in 0..6 {
        let (key, message) = m.get("g");
        got.push(message.reference.index() - 1);
        m.give_back(key, [0], false);
    }
    assert_eq!(got, [1, 2, 3, 4, 5, 1]);
}

#[test]
fn a_consumer_with_prefetch_one_sees_what_it_requeues() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let key = m.attach(&consumer(1, "c"), 1);
    for id in 0..3 {
        m.give_back(key, [id], false);
        assert_eq!(m.delivered_indexes(), [2]);
    }
}

#[test]
fn work_left_at_the_bound_is_owed_and_goes_on() {
    let mut m = Member::new(MV2);
    m.publish(1);
    for i in 0..20_000 {
        m.index += 1;
        let meta = m.meta();
        m.queue.apply(&meta, publish(None, i % 3), &mut m.fx);
    }
    m.attach(&consumer(1, "c"), 65_535);
    assert_eq!(m.delivered().len(), 16_384);
    assert!(m.queue.work_owed());
    m.apply(Command::Continue);
    assert_eq!(m.delivered().len(), 20_001 - 16_384);
    assert!(!m.queue.work_owed());
}

#[test]
fn a_missed_delivery_can_be_asked_for() {
    let mut m = Member::new(MV2);
    m.publish(4);
    let key = m.attach(&consumer(3, "c"), 4);
    m.settle(key, [1]);
    let ids: Vec<_> = m.queue.held(&by_key(key), 1).map(|d| d.msg_id).collect();
    assert_eq!(ids, [2, 3]);
    let mut fx = Effects::new();
    m.queue.redeliver(NodeId(3), &mut fx);
    m.queue.redeliver(NodeId(4), &mut fx);
    let Some(Effect::Deliver(deliver)) = fx.iter().next() else { panic!() };
    assert_eq!((fx.len(), deliver.messages.len()), (1, 3));
}
