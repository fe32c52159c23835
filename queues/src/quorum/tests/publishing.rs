use super::*;

#[test]
fn a_session_publishes_in_sequence_and_a_resend_is_confirmed_but_not_enqueued() {
    let mut m = Member::new(MV2);
    let s = session(1, 1);
    assert_eq!(m.apply(Command::RegisterEnqueuer { session: s }), Reply::Registered { next_seq: 1, blocked: false });
    assert_eq!(m.effects(), [Effect::Monitor(s)]);
    assert_eq!(m.apply(publish(Some((s, 1)), 5)), Reply::Ok);
    assert_eq!(m.apply(publish(Some((s, 1)), 5)), Reply::Ok);
    assert_eq!(m.apply(publish(Some((s, 2)), 5)), Reply::Ok);
    assert_eq!(m.queue.overview().messages, 2);
    assert_eq!(m.apply(Command::RegisterEnqueuer { session: s }), Reply::Registered { next_seq: 3, blocked: false });
}

#[test]
fn a_publish_after_a_gap_is_refused_with_the_number_expected() {
    let mut m = Member::new(MV2);
    let s = session(1, 1);
    m.apply(publish(Some((s, 1)), 5));
    assert_eq!(m.apply(publish(Some((s, 3)), 5)), Reply::OutOfSequence { expected: 2 });
    assert_eq!(m.queue.overview().messages, 1);
    m.apply(publish(Some((s, 2)), 5));
    assert_eq!(m.apply(publish(Some((s, 3)), 5)), Reply::Ok);
}

#[test]
fn an_unknown_session_may_start_its_sequence_but_not_go_on_with_one() {
    let mut m = Member::new(MV2);
    assert_eq!(m.apply(publish(Some((session(1, 1), 2)), 5)), Reply::UnknownEnqueuer);
    assert!(m.effects().is_empty());
    assert_eq!(m.apply(publish(Some((session(1, 1), 1)), 5)), Reply::Ok);
    assert_eq!(m.effects(), [Effect::Monitor(session(1, 1))]);
}

#[test]
fn a_session_that_only_consumes_has_no_sequence_yet() {
    let mut m = Member::new(MV2);
    let c = consumer(1, "c");
    m.attach(&c, 1);
    assert_eq!(m.apply(publish(Some((c.session, 4)), 5)), Reply::UnknownEnqueuer);
    assert_eq!(m.apply(publish(Some((c.session, 1)), 5)), Reply::Ok);
}

#[test]
fn only_body_bytes_are_counted() {
    let mut m = Member::new(MV2);
    m.apply(publish(None, 100));
    m.get("g");
    m.apply(publish(None, 7));
    let o = m.queue.overview();
    assert_eq!((o.bytes, o.bytes_ready, o.bytes_unacked), (107, 7, 100));
    assert_eq!((o.messages, o.ready, o.unacked), (2, 1, 1));
}

#[test]
fn a_purge_drops_what_is_ready_and_not_what_is_held() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let (key, _) = m.get("g");
    m.get("h");
    m.give_back(key, [0], false);
    assert_eq!(m.apply(Command::Purge), Reply::Purged { count: 2 });
    assert_eq!(m.effects(), [Effect::ForceSnapshot]);
    assert_eq!(m.queue.overview().messages, 1);
    assert!(m.queue.reclaimable_bytes() > 2 * 256);
}

#[test]
fn a_command_is_applied_once() {
    let mut m = Member::new(MV2);
    m.publish(1);
    let meta = m.meta();
    assert_eq!(m.queue.apply(&meta, publish(None, 1), &mut m.fx), Reply::AlreadyApplied);
    assert_eq!(m.queue.overview().messages, 1);
}
