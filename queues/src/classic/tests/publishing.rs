use super::*;

#[test]
fn publishes_are_sequenced_as_in_a_quorum_queue() {
    let mut h = Home::default();
    let s = session(1, 1);
    assert_eq!(h.apply(publish(Some((s, 2)), "b")), Reply::UnknownEnqueuer);
    assert_eq!(h.apply(publish(Some((s, 1)), "a")), Reply::Ok);
    assert!(h.fx.iter().eq([&Effect::Monitor(s)]));
    assert_eq!(h.apply(publish(Some((s, 1)), "a")), Reply::Ok);
    assert_eq!(h.apply(publish(Some((s, 3)), "c")), Reply::OutOfSequence { expected: 2 });
    assert_eq!(h.apply(Command::RegisterEnqueuer { session: s }), Reply::Registered { next_seq: 2, blocked: false });
    assert_eq!(h.queue.overview().messages, 1);
}

#[test]
fn a_message_leaves_with_header_and_body() {
    let mut h = Home::default();
    h.publish(["hello"]);
    let reply = h.apply(Command::Dequeue { consumer: consumer(1, "g"), settled: true });
    let Reply::Got { message, ready: 0, .. } = reply else { panic!("{reply:?}") };
    assert_eq!((message.message.meta(), message.message.body()), ("h:".into(), "hello".into()));
    assert_eq!(h.queue.overview().messages, 0);
}

#[test]
fn a_purge_drops_what_is_ready_and_not_what_is_held() {
    let mut h = Home::default();
    h.publish(["1", "2", "3"]);
    let key = h.attach(&consumer(1, "c"), 1);
    assert_eq!(h.apply(Command::Purge), Reply::Purged { count: 2 });
    h.publish(["4"]);
    h.give_back(key, [0], false);
    assert_eq!(h.names(), ["1"]);
    let o = h.queue.overview();
    assert_eq!((o.messages, o.ready, o.unacked, o.bytes), (2, 1, 1, 2));
}
