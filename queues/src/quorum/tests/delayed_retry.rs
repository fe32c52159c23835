//! Messages that are given back and not ready at once.

use super::*;

fn queue(on: RetryOn, min_ms: u64, max_ms: u64) -> Member {
    let delayed_retry = Some(DelayedRetry { on, min_ms, max_ms });
    Member::with(MV2, Config { delayed_retry, ..Config::default() })
}

fn modify(key: ConsumerKey, ids: MsgIds, failed: bool, deliver_at_ms: Option<u64>) -> Command {
    let (consumer, undeliverable_here, annotations) = (key.into(), false, vec![]);
    Command::Modify(Box::new(Modify { consumer, ids, failed, undeliverable_here, deliver_at_ms, annotations }))
}

fn timer(m: &Member) -> Option<u64> {
    m.fx.iter().find_map(|effect| match effect {
        Effect::Timer { key: TimerKey::ExpireMessages, at_ms } => *at_ms,
        _ => None,
    })
}

#[test]
fn each_failure_delays_longer_up_to_the_longest_wait() {
    // Acceptance 28: min 1000, max 2500, modified(failed).
    let mut m = queue(RetryOn::All, 1000, 2500);
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 1);
    for (id, gap) in [(0, 1000), (1, 2000), (2, 2500), (3, 2500)] {
        m.apply(modify(key, id.into(), true, None));
        let o = m.queue.overview();
        assert_eq!((o.ready, o.delayed, o.messages), (0, 1, 1));
        assert_eq!(m.queue.delayed_until(), Some((m.ts_ms + gap, m.ts_ms + gap)));
        assert!(id > 0 || timer(&m) == Some(m.ts_ms + gap));
        m.ts_ms += gap - 1;
        m.apply(Command::Timeout(TimerKey::ExpireMessages));
        assert_eq!(m.delivered(), []);
        m.ts_ms += 1;
        m.apply(Command::Timeout(TimerKey::ExpireMessages));
        assert_eq!(m.delivered().len(), 1);
    }
}

#[test]
fn the_kind_of_return_decides() {
    for (on, nacked, failed) in [(RetryOn::All, 1, 1), (RetryOn::Failed, 0, 1), (RetryOn::Returned, 1, 0)] {
        let mut m = queue(on, 10, 10);
        m.publish(1);
        let (key, _) = m.get("g");
        m.give_back(key, [0], false);
        assert_eq!(m.queue.overview().delayed, nacked, "{on:?}");
        m.apply(Command::DelayedRetryNow { count: None });
        let (key, _) = m.get("g");
        m.give_back(key, [0], true);
        assert_eq!(m.queue.overview().delayed, failed, "{on:?}");
    }
}

#[test]
fn a_consumers_time_wins_also_without_a_configuration() {
    for mut m in [queue(RetryOn::All, 1000, 1000), Member::new(MV2)] {
        m.publish(1);
        let (key, _) = m.get("g");
        m.apply(modify(key, 0.into(), false, Some(m.ts_ms + 50)));
        assert_eq!(m.queue.delayed_until().map(|(first, _)| first), Some(m.ts_ms + 50));
        m.ts_ms += 50;
        let (key, _) = m.get("g");
        m.apply(modify(key, 0.into(), false, Some(m.ts_ms)));
        assert_eq!(
            (m.queue.overview().delayed, m.queue.overview().ready),
            (0, 1),
            "a time that is past delays nothing"
        );
    }
}

#[test]
fn version_1_delays_nothing() {
    let mut m = queue(RetryOn::All, 1000, 1000);
    m.version = MV1;
    m.publish(1);
    let (key, _) = m.get("g");
    m.apply(modify(key, 0.into(), true, Some(m.ts_ms + 50)));
    assert_eq!(m.queue.overview().ready, 1);
}

#[test]
fn messages_that_are_due_follow_those_that_were_returned_before() {
    let mut m = Member::new(MV2);
    m.publish(4);
    let key = m.attach(&consumer(1, "c"), 4);
    m.apply(modify(key, 0.into(), false, Some(m.ts_ms + 20)));
    m.apply(modify(key, MsgIds::from_iter([3, 1]), false, Some(m.ts_ms + 10)));
    m.apply(Command::Cancel { consumer: key.into() });
    m.give_back(key, [2], false);
    m.ts_ms += 20;
    m.attach(&consumer(2, "d"), 9);
    assert_eq!(m.delivered_indexes(), [4, 3, 5, 2]);
}

#[test]
fn delayed_messages_can_be_made_ready_at_once() {
    let mut m = queue(RetryOn::All, 1000, 1000);
    m.publish(3);
    let key = m.attach(&consumer(1, "c"), 3);
    for id in [2, 0, 1] {
        m.ts_ms += 1;
        m.give_back(key, [id], false);
    }
    assert_eq!(m.apply(Command::DelayedRetryNow { count: Some(2) }), Reply::Retried { count: 2 });
    assert_eq!(m.delivered_indexes(), [4, 2]);
    assert_eq!(m.apply(Command::DelayedRetryNow { count: None }), Reply::Retried { count: 1 });
    assert_eq!(m.delivered_indexes(), [3]);
}

#[test]
fn a_delayed_message_that_has_expired_dies_when_its_time_comes() {
    let mut m = queue(RetryOn::All, 100, 100);
    m.apply(Command::UpdateConfig(Config {
        message_ttl_ms: Some(50),
        dead_letter: dead_letter(false),
        ..m.queue.config().clone()
    }));
    m.publish(1);
    let (key, _) = m.get("g");
    m.give_back(key, [0], true);
    m.ts_ms += 60;
    m.apply(Command::Continue);
    assert_eq!((died(&m), m.queue.overview().delayed), (vec![], 1));
    m.ts_ms += 40;
    m.apply(Command::Timeout(TimerKey::ExpireMessages));
    assert_eq!(died(&m), [(DeadReason::Expired, 3)]);
}

#[test]
fn many_that_have_expired_die_in_pieces() {
    let config = Config { message_ttl_ms: Some(50), dead_letter: dead_letter(false), ..Config::default() };
    let mut m = Member::with(MV2, config);
    m.fill(16_384 + 5);
    let key = m.attach(&consumer(1, "c"), 20_000);
    m.apply(Command::Continue);
    m.apply(Command::Cancel { consumer: key.into() });
    let mut all = MsgIds::new();
    all.push_run(crate::Run { start: 0, count: 20_000 });
    m.apply(modify(key, all, false, Some(m.ts_ms + 1000)));
    assert_eq!(m.queue.overview().delayed, 16_384 + 5);
    m.ts_ms += 50;
    assert_eq!(m.apply(Command::DelayedRetryNow { count: None }), Reply::Retried { count: 5 });
    // The timer that was set when they were published goes off now.
    assert_eq!(died(&m).len(), 16_384);
    m.apply(Command::Timeout(TimerKey::ExpireMessages));
    assert_eq!((died(&m).len(), m.queue.overview().messages), (5, 0));
}

#[test]
fn the_delivery_limit_is_looked_at_before_a_delay() {
    let mut m = queue(RetryOn::All, 100, 100);
    m.apply(Command::UpdateConfig(Config { delivery_limit: Some(0), ..m.queue.config().clone() }));
    m.publish(1);
    let (key, _) = m.get("g");
    m.give_back(key, [0], true);
    assert_eq!(m.queue.overview().messages, 0);
}

#[test]
fn a_purge_takes_delayed_messages_too() {
    let mut m = queue(RetryOn::All, 100, 100);
    m.publish(2);
    let (key, _) = m.get("g");
    m.give_back(key, [0], true);
    assert_eq!(m.apply(Command::Purge), Reply::Purged { count: 2 });
    assert_eq!((m.queue.overview().messages, m.queue.live()), (0, vec![]));
}
