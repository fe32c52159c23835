use super::*;

fn cut_off(node: u64) -> Command {
    down(session(node, 1), SessionLoss::NoConnection)
}

fn timeout(key: ConsumerKey) -> Command {
    Command::Timeout(TimerKey::ConsumerDisconnected(key))
}

fn timer(key: ConsumerKey, at_ms: Option<u64>) -> Effect {
    Effect::Timer { key: TimerKey::ConsumerDisconnected(key), at_ms }
}

#[test]
fn a_session_that_is_gone_returns_what_it_holds_as_failed_oldest_first() {
    let mut m = Member::new(MV2);
    m.publish(4);
    m.attach(&consumer(1, "a"), 2);
    m.attach(&consumer(1, "b"), 2);
    m.apply(publish(Some((session(1, 1), 1)), 1));
    m.apply(down(session(1, 1), SessionLoss::Gone));
    assert_eq!(m.effects(), [Effect::Demonitor(session(1, 1))]);
    assert_eq!(m.queue.overview().publishers, 0);
    m.attach(&consumer(2, "c"), 0);
    assert_eq!(m.delivered_indexes(), [2, 3, 4, 5, 8]);
    let counts: Vec<_> = m.delivered().iter().map(|(_, d)| (d.acquired_count, d.delivery_count)).collect();
    assert_eq!(counts, [(1, 1), (1, 1), (1, 1), (1, 1), (0, 0)]);
}

#[test]
fn a_consumer_that_is_cut_off_keeps_its_messages_for_a_time() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let key = m.attach(&consumer(1, "c"), 2);
    m.apply(cut_off(1));
    assert_eq!(m.effects(), [timer(key, Some(m.ts_ms + 60_000))]);
    m.settle(key, [0]);
    assert_eq!(m.delivered(), []);
    assert_eq!(m.queue.overview().consumers, 0);
    m.ts_ms += 20_000;
    m.apply(Command::NodeUp { node: NodeId(1) });
    assert!(m.effects().contains(&timer(key, None)));
    assert!(m.effects().contains(&Effect::LeaderChange(session(1, 1))));
    assert_eq!(m.delivered_indexes(), [4]);
    m.settle(key, [1]);
    assert_eq!(m.queue.overview().messages, 1);
}

#[test]
fn after_that_time_they_are_returned_as_not_failed_and_a_late_ack_is_ignored() {
    let mut m = Member::new(MV2);
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 2);
    m.apply(cut_off(1));
    m.ts_ms += 59_999;
    m.apply(timeout(key));
    assert_eq!(m.effects(), [timer(key, Some(m.ts_ms + 1))]);
    m.ts_ms += 1;
    m.apply(timeout(key));
    m.attach(&consumer(2, "d"), 1);
    let message = m.delivered()[0].1.clone();
    assert_eq!((message.acquired_count, message.delivery_count), (1, 0));
    m.settle(key, [0]);
    assert_eq!(m.queue.overview().unacked, 1);
}

#[test]
fn an_empty_consumer_that_is_cut_off_gets_nothing_until_it_is_back() {
    let mut m = Member::new(MV2);
    let key = m.attach(&consumer(1, "c"), 2);
    m.apply(cut_off(1));
    assert_eq!(m.effects(), []);
    m.publish(1);
    assert_eq!(m.delivered(), []);
    m.apply(Command::NodeUp { node: NodeId(1) });
    assert_eq!(m.delivered().len(), 1);
    assert_eq!(m.delivered()[0].0, key);
}

#[test]
fn one_cut_off_session_says_nothing_about_others_of_its_node() {
    let mut m = Member::new(MV2);
    let other = ConsumerId { session: session(1, 2), tag: "o".into() };
    m.attach(&consumer(1, "c"), 2);
    let key = m.attach(&other, 2);
    m.apply(cut_off(1));
    m.publish(2);
    assert_eq!(m.queue.held(&by_key(key), 0).count(), 2);
}

#[test]
fn in_version_1_a_whole_node_is_cut_off_and_its_messages_return_at_once_as_failed() {
    let mut m = Member::new(MV1);
    m.publish(2);
    let other = ConsumerId { session: session(1, 2), tag: "o".into() };
    m.attach(&consumer(1, "c"), 1);
    m.attach(&other, 1);
    m.apply(cut_off(1));
    assert_eq!(m.queue.overview().ready, 2);
    m.attach(&consumer(2, "d"), 2);
    assert!(m.delivered().iter().all(|(_, d)| (d.acquired_count, d.delivery_count) == (1, 1)));
    m.publish(1);
    m.apply(Command::NodeUp { node: NodeId(1) });
    assert_eq!(m.delivered().len(), 1);
}

#[test]
fn version_1_knows_no_such_timeout() {
    let mut m = Member::new(MV1);
    let needed = Encoder::for_group(MV1).encode(&timeout(ConsumerKey(1)), &mut BatchBuilder::new(MV1));
    assert!(matches!(needed, Err(EncodeError::Unsupported(e)) if e.needed == MV2));
    m.index += 1;
    let meta = m.meta();
    assert_eq!(m.queue.apply(&meta, timeout(ConsumerKey(1)), &mut m.fx), Reply::Unsupported);
}

#[test]
fn nodes_that_left_take_their_sessions_along() {
    let mut m = Member::new(MV2);
    m.publish(2);
    m.attach(&consumer(1, "c"), 1);
    m.attach(&consumer(2, "c"), 1);
    m.apply(Command::RegisterEnqueuer { session: session(1, 9) });
    m.apply(Command::PurgeNodes { nodes: vec![NodeId(1), NodeId(5)] });
    assert_eq!(m.effects(), [Effect::Demonitor(session(1, 1)), Effect::Demonitor(session(1, 9))]);
    assert_eq!(m.queue.overview().unacked, 1);
}

#[test]
fn a_new_leader_watches_all_sessions_and_arms_the_time_that_is_left() {
    let mut m = Member::new(MV2);
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 1);
    m.apply(Command::RegisterEnqueuer { session: session(2, 1) });
    let cut_at = m.ts_ms;
    m.apply(cut_off(1));
    m.ts_ms += 5_000;
    m.publish(1);
    let mut fx = Effects::new();
    m.queue.become_leader(&mut fx);
    let expected = [
        Effect::Monitor(session(1, 1)),
        Effect::LeaderChange(session(1, 1)),
        Effect::Monitor(session(2, 1)),
        Effect::LeaderChange(session(2, 1)),
        timer(key, Some(cut_at + 60_000)),
    ];
    assert!(fx.iter().eq(expected.iter()));
}

#[test]
fn a_get_goes_with_its_session() {
    let mut m = Member::new(MV2);
    m.publish(1);
    m.get("g");
    assert!(m.effects().contains(&Effect::Monitor(session(1, 1))));
    m.apply(down(session(1, 1), SessionLoss::Gone));
    assert_eq!(m.queue.overview().ready, 1);
    let (key, message) = m.get("g");
    assert_eq!(message.delivery_count, 1);
    m.settle(key, [0]);
    assert_eq!(m.effects(), [Effect::Demonitor(session(1, 1))]);
}
