//! Messages that wait too long, and queues that are not used.

use super::*;

fn publish_for(m: &mut Member, ttl_ms: Option<u64>, priority: Option<u8>) {
    let Command::Enqueue(mut enqueue) = publish(None, 4) else { unreachable!() };
    (enqueue.ttl_ms, enqueue.priority) = (ttl_ms, priority);
    assert_eq!(m.apply(Command::Enqueue(enqueue)), Reply::Ok);
}

fn queue(message_ttl_ms: Option<u64>) -> Member {
    Member::with(MV2, Config { message_ttl_ms, dead_letter: dead_letter(false), ..Config::default() })
}

fn timer(m: &Member) -> Option<u64> {
    m.fx.iter().find_map(|effect| match effect {
        Effect::Timer { key: TimerKey::ExpireMessages, at_ms } => *at_ms,
        _ => None,
    })
}

fn pass(m: &mut Member, ms: u64) {
    m.ts_ms += ms;
    m.apply(Command::Timeout(TimerKey::ExpireMessages));
}

#[test]
fn the_shorter_of_the_queues_and_the_messages_time_counts() {
    // Acceptance 15.
    let mut m = queue(Some(100));
    publish_for(&mut m, Some(50), None);
    assert_eq!(timer(&m), Some(m.ts_ms + 50));
    publish_for(&mut m, Some(200), None);
    pass(&mut m, 49);
    assert_eq!((died(&m), timer(&m)), (vec![], Some(m.ts_ms + 1)));
    pass(&mut m, 1);
    assert_eq!((died(&m), timer(&m)), (vec![(DeadReason::Expired, 2)], Some(m.ts_ms + 50)));
    pass(&mut m, 50);
    assert_eq!(died(&m), [(DeadReason::Expired, 3)]);
}

#[test]
fn a_message_that_may_not_wait_goes_to_a_consumer_that_is_there_or_dies() {
    let mut m = queue(None);
    publish_for(&mut m, Some(0), None);
    pass(&mut m, 1);
    assert_eq!(died(&m), [(DeadReason::Expired, 2)]);
    m.attach(&consumer(1, "c"), 1);
    publish_for(&mut m, Some(0), None);
    assert_eq!(m.delivered().len(), 1);
}

#[test]
fn a_live_head_holds_only_its_own_priority_back() {
    // Acceptance 16.
    let mut m = queue(None);
    for (priority, ttl) in [(9, Some(100)), (9, None), (7, Some(100)), (7, None)] {
        publish_for(&mut m, ttl, Some(priority));
    }
    publish_for(&mut m, Some(10), Some(9));
    pass(&mut m, 101);
    assert_eq!(died(&m), [(DeadReason::Expired, 2), (DeadReason::Expired, 4)]);
    assert_eq!((m.queue.overview().ready, timer(&m)), (3, None), "who waits behind a live head dies with its turn");
}

#[test]
fn nothing_is_handed_out_past_its_time() {
    let mut m = queue(None);
    publish_for(&mut m, None, None);
    publish_for(&mut m, Some(10), None);
    publish_for(&mut m, None, None);
    m.ts_ms += 10;
    m.attach(&consumer(1, "c"), 9);
    assert_eq!((m.delivered_indexes(), died(&m)), (vec![2, 4], vec![(DeadReason::Expired, 3)]));
}

#[test]
fn a_get_passes_expired_messages_by() {
    let mut m = queue(None);
    publish_for(&mut m, Some(10), None);
    publish_for(&mut m, None, None);
    m.ts_ms += 10;
    assert_eq!(m.get("g").1.reference.index(), 3);
}

#[test]
fn a_returned_message_keeps_its_time() {
    let mut m = queue(Some(100));
    m.publish(1);
    let (key, _) = m.get("g");
    m.ts_ms += 100;
    assert_eq!(m.queue.overview().unacked, 1);
    m.give_back(key, [0], false);
    assert_eq!(died(&m), [(DeadReason::Expired, 2)]);
}

#[test]
fn a_new_time_of_the_queue_is_for_later_messages() {
    let mut m = queue(Some(100));
    m.publish(1);
    m.apply(Command::UpdateConfig(Config::default()));
    m.publish(1);
    pass(&mut m, 1000);
    assert_eq!(m.queue.overview().ready, 1);
}

#[test]
fn returned_messages_expire_before_those_of_the_lanes() {
    let mut m = queue(None);
    publish_for(&mut m, Some(50), Some(1));
    publish_for(&mut m, Some(10), Some(9));
    let (key, _) = m.get("g");
    publish_for(&mut m, Some(10), Some(31));
    m.give_back(key, [0], false);
    pass(&mut m, 50);
    assert_eq!(died(&m).iter().map(|(_, index)| *index).collect::<Vec<_>>(), [3, 4 + 1, 2]);
}

#[test]
fn many_expire_in_pieces() {
    let mut m = queue(Some(10));
    m.fill(16_384 + 5);
    pass(&mut m, 10);
    assert_eq!((died(&m).len(), timer(&m)), (16_384, Some(m.ts_ms)));
    pass(&mut m, 0);
    assert_eq!((died(&m).len(), m.queue.overview().ready), (5, 0));
}

#[test]
fn a_queue_without_consumers_expires_some_time_after_its_last_use() {
    // Acceptance 17.
    let mut m = Member::with(MV2, Config { expires_ms: Some(1000), ..Config::default() });
    m.publish(1);
    assert_eq!(m.queue.expires_at(), Some(1_001_000));
    m.ts_ms += 500;
    m.publish(1);
    assert_eq!(m.queue.expires_at(), Some(1_001_000), "publishing is no use");
    let (got, _) = m.get("g");
    assert_eq!(m.queue.expires_at(), None, "a get holds a message");
    m.settle(got, [0]);
    assert_eq!(m.queue.expires_at(), Some(1_001_500));
    let key = m.attach(&consumer(1, "c"), 1);
    m.ts_ms += 5000;
    assert_eq!(m.queue.expires_at(), None);
    m.apply(Command::Cancel { consumer: key.into() });
    assert_eq!(m.queue.expires_at(), None, "a cancelled consumer holds a message");
    m.settle(key, [0]);
    assert_eq!(m.queue.expires_at(), Some(m.ts_ms + 1000));
}

#[test]
fn a_consumer_that_is_cut_off_was_there_until_then() {
    for version in [MV1, MV2] {
        let mut m = Member::with(version, Config { expires_ms: Some(1000), ..Config::default() });
        m.attach(&consumer(1, "c"), 1);
        m.ts_ms += 5000;
        m.apply(down(session(1, 1), SessionLoss::NoConnection));
        assert_eq!(m.queue.expires_at(), Some(m.ts_ms + 1000));
        m.apply(Command::NodeUp { node: NodeId(1) });
        assert_eq!(m.queue.expires_at(), None);
    }
}
