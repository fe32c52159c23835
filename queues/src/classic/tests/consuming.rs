use super::*;
use crate::consumer::ConsumerRef;

fn down(node: u64) -> Command {
    Command::SessionDown { session: session(node, 1) }
}

fn cancel(id: &ConsumerId) -> Command {
    Command::Cancel { consumer: id.clone().into() }
}

fn settle(key: ConsumerKey, ids: impl IntoIterator<Item = u64>) -> Command {
    Command::Settle { consumer: key.into(), ids: MsgIds::from_iter(ids) }
}

#[test]
fn what_is_given_back_returns_to_its_original_position() {
    let mut h = Home::default();
    h.publish(["1", "2", "3", "4", "5"]);
    let key = h.attach(&consumer(1, "c"), 4);
    h.apply(cancel(&consumer(1, "c")));
    h.give_back(key, [3, 1], false);
    h.attach(&consumer(2, "d"), 9);
    assert_eq!(h.names(), ["2", "4", "5"]);
    let flags: Vec<_> = h.delivered().iter().map(|(_, d)| d.redelivered).collect();
    assert_eq!(flags, [true, true, false]);
}

#[test]
fn failed_deliveries_are_counted_and_mere_returns_are_not() {
    let mut h = Home::default();
    h.publish(["1"]);
    let key = h.attach(&consumer(1, "c"), 1);
    h.give_back(key, [0], false);
    h.give_back(key, [1], true);
    h.apply(down(1));
    h.attach(&consumer(2, "d"), 1);
    let message = &h.delivered()[0].1;
    assert_eq!((message.redelivered, message.delivery_count), (true, 2));
}

#[test]
fn a_rejected_message_leaves_and_is_counted() {
    let mut h = Home::default();
    h.publish(["1", "2"]);
    let key = h.attach(&consumer(1, "c"), 2);
    h.apply(Command::Discard { consumer: key.into(), ids: MsgIds::from_iter([1, 4]) });
    assert!(h.fx.iter().eq([&Effect::Rejected { count: 1 }]));
    assert_eq!(h.queue.overview().messages, 1);
}

#[test]
fn a_consumer_with_a_limit_gets_what_it_may_hold() {
    let mut h = Home::default();
    h.publish(["1", "2", "3", "4"]);
    let key = h.attach(&consumer(1, "c"), 2);
    assert_eq!(h.names(), ["1", "2"]);
    h.apply(settle(key, [0, 1]));
    assert_eq!(h.names(), ["3", "4"]);
}

#[test]
fn a_consumer_without_a_limit_gets_all_as_its_session_writes_it_out() {
    let mut h = Home::default();
    for _ in 0..5000 {
        h.publish(["m"]);
    }
    let key = h.attach(&consumer(1, "c"), 0);
    assert_eq!(h.delivered().len(), UNSENT_WINDOW as usize);
    h.apply(Command::Sent { consumer: key.into(), count: 1500 });
    assert_eq!(h.delivered().len(), 1500);
    h.apply(Command::Sent { consumer: key.into(), count: 2000 });
    assert_eq!(h.delivered().len(), 1500);
    assert_eq!(h.queue.overview().unacked, 5000);
}

#[test]
fn where_nothing_is_acknowledged_the_session_settles_what_it_wrote_and_the_rest_is_not_lost() {
    let mut h = Home::default();
    h.publish(["1", "2"]);
    let meta = ConsumerMeta { ack: false, ..ConsumerMeta::default() };
    let reply = h.apply(Command::Attach(Box::new(Attach { meta, ..plain(&consumer(1, "c"), 1) })));
    let Reply::Attached { key, credit: UNSENT_WINDOW, .. } = reply else { panic!("{reply:?}") };
    assert_eq!(h.names(), ["1", "2"]);
    h.apply(settle(key, [0]));
    h.apply(down(1));
    assert_eq!(h.queue.overview().ready, 1);
}

#[test]
fn an_exclusive_consumer_is_alone() {
    let mut h = Home::default();
    let exclusive = |tag| Command::Attach(Box::new(Attach { exclusive: true, ..plain(&consumer(1, tag), 1) }));
    h.attach(&consumer(1, "a"), 1);
    assert_eq!(h.apply(exclusive("b")), Reply::ExclusiveUse);
    h.apply(cancel(&consumer(1, "a")));
    assert!(matches!(h.apply(exclusive("b")), Reply::Attached { .. }));
    assert_eq!(h.apply(attach(&consumer(1, "c"), 1)), Reply::ExclusiveUse);
    assert!(matches!(h.apply(exclusive("b")), Reply::Attached { .. }));
    h.apply(cancel(&consumer(1, "b")));
    h.attach(&consumer(1, "c"), 1);
}

#[test]
fn the_host_learns_that_the_last_consumer_has_gone_and_not_before_there_was_one() {
    let mut h = Home::default();
    h.publish(["1", "2"]);
    let get = h.apply(Command::Dequeue { consumer: consumer(1, "g"), settled: false });
    let Reply::Got { key, .. } = get else { panic!("{get:?}") };
    h.apply(settle(key, [0]));
    assert!(!h.last_consumer_gone());
    h.attach(&consumer(1, "a"), 1);
    h.attach(&consumer(2, "b"), 1);
    h.apply(cancel(&consumer(1, "a")));
    assert!(!h.last_consumer_gone());
    h.apply(Command::NodeDown { node: NodeId(2) });
    assert!(h.last_consumer_gone());
    // What the cancelled one still holds changes nothing.
    h.apply(down(1));
    assert!(!h.last_consumer_gone());
    assert_eq!(h.queue.overview().ready, 1);
}

#[test]
fn a_higher_priority_is_served_first_and_equals_take_turns() {
    let mut h = Home::default();
    let mut keys = Vec::new();
    for (tag, priority) in [("a", 0), ("b", 0), ("c", 5)] {
        let reply = h.apply(Command::Attach(Box::new(Attach { priority, ..plain(&consumer(1, tag), 2) })));
        let Reply::Attached { key, .. } = reply else { panic!("{reply:?}") };
        keys.push(key);
    }
    let mut got = Vec::new();
    for _ in 0..6 {
        h.publish(["m"]);
        got.extend(h.delivered().iter().map(|(key, _)| *key));
    }
    let [a, b, c] = keys[..] else { unreachable!() };
    assert_eq!(got, [c, c, a, b, a, b]);
}

#[test]
fn a_get_that_is_asked_again_answers_the_same_message() {
    let mut h = Home::default();
    h.publish(["1", "2"]);
    let get = || Command::Dequeue { consumer: consumer(1, "g"), settled: false };
    let first = h.apply(get());
    assert!(matches!(first, Reply::Got { ready: 1, .. }));
    assert_eq!(h.apply(get()), first);
    h.attach(&consumer(1, "c"), 1);
    assert_eq!(h.apply(Command::Dequeue { consumer: consumer(1, "c"), settled: true }), Reply::IdInUse);
    assert_eq!(h.apply(Command::Dequeue { consumer: consumer(1, "h"), settled: true }), Reply::Empty);
}

#[test]
fn a_session_is_watched_while_it_has_a_part_in_the_queue() {
    let mut h = Home::default();
    let c = consumer(1, "c");
    h.attach(&c, 1);
    assert!(h.fx.iter().eq([&Effect::Monitor(c.session)]));
    let reply = h.apply(Command::Remove { consumer: c.clone().into() });
    assert!(matches!(reply, Reply::Cancelled { num_checked_out: 0, .. }));
    assert!(h.fx.iter().eq([&Effect::LastConsumerGone, &Effect::Demonitor(c.session)]));
    assert_eq!(h.apply(cancel(&c)), Reply::NotFound);
    assert_eq!(h.apply(settle(ConsumerKey(9), [1])), Reply::Ok);
    assert_eq!(h.apply(Command::Sent { consumer: ConsumerRef::Id(c), count: 9 }), Reply::Ok);
}

#[test]
fn the_listing_shows_attached_consumers() {
    let mut h = Home::default();
    h.publish(["1", "2"]);
    h.attach(&consumer(1, "a"), 1);
    h.attach(&consumer(1, "b"), 3);
    h.apply(cancel(&consumer(1, "a")));
    let listed: Vec<_> = h.queue.consumers().map(|c| (c.id.tag, c.prefetch, c.num_checked_out)).collect();
    assert_eq!(listed, [(Bytes::from("b"), 3, 1)]);
    assert_eq!(h.queue.overview().consumers, 1);
}
