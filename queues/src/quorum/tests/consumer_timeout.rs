//! Consumers that hold messages too long.

use super::*;

fn queue(consumer_timeout_ms: Option<u64>) -> Member {
    Member::with(MV2, Config { consumer_timeout_ms, ..Config::default() })
}

fn released(m: &Member) -> Vec<(ConsumerKey, Vec<u64>, bool)> {
    let released = |effect: &Effect| match effect {
        Effect::Released { key, ids, dequeue, .. } => {
            let ids = ids.runs().iter().flat_map(|run| run.start..run.start + run.count).collect();
            Some((*key, ids, *dequeue))
        }
        _ => None,
    };
    m.fx.iter().filter_map(released).collect()
}

fn pass(m: &mut Member, ms: u64) {
    m.ts_ms += ms;
    m.apply(Command::Timeout(TimerKey::ConsumerDeadlines));
}

fn deadline_timer(at_ms: u64) -> Effect {
    Effect::Timer { key: TimerKey::ConsumerDeadlines, at_ms: Some(at_ms) }
}

#[test]
fn a_message_held_too_long_is_ready_again_and_its_consumer_gets_no_more() {
    // Acceptance 26: x-consumer-timeout=1000, one message held; the client's cancel is applied by its session.
    let mut m = queue(Some(1000));
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 5);
    assert!(m.effects().contains(&deadline_timer(m.ts_ms + 1000)));
    pass(&mut m, 999);
    assert_eq!((released(&m), m.effects()), (vec![], vec![deadline_timer(m.ts_ms + 1)]));
    pass(&mut m, 1);
    assert_eq!(released(&m), [(key, vec![0], false)]);
    let o = m.queue.overview();
    assert_eq!((o.ready, o.unacked, o.consumers), (1, 0, 0));
    m.publish(1);
    assert_eq!(m.delivered(), []);
    m.apply(Command::Cancel { consumer: key.into() });
    assert_eq!(m.queue.consumers().count(), 0);
    let (_, message) = m.get("g");
    assert_eq!((message.acquired_count, message.delivery_count), (1, 0));
}

#[test]
fn deliveries_go_on_when_every_message_that_was_taken_away_is_answered() {
    // Acceptance 27.
    for outcome in 0..3 {
        let mut m = queue(Some(1000));
        m.publish(2);
        let key = m.attach(&consumer(1, "c"), 2);
        pass(&mut m, 1000);
        assert_eq!(released(&m), [(key, vec![0, 1], false)]);
        let answer = |ids: MsgIds| match outcome {
            0 => Command::Settle { consumer: key.into(), ids },
            1 => Command::Return { consumer: key.into(), ids, failed: true },
            _ => Command::Discard { consumer: key.into(), ids },
        };
        m.apply(answer(1.into()));
        assert_eq!(m.delivered(), []);
        m.apply(answer(0.into()));
        let delivered: Vec<_> = m.delivered().iter().map(|(_, d)| (d.msg_id, d.acquired_count)).collect();
        assert_eq!(delivered, [(2, 1), (3, 1)], "a late answer is the end of the pause and nothing else");
    }
}

#[test]
fn only_what_is_overdue_is_taken() {
    let mut m = queue(Some(1000));
    let key = m.attach(&consumer(1, "c"), 5);
    m.publish(1);
    m.ts_ms += 400;
    m.publish(1);
    pass(&mut m, 600);
    assert_eq!(released(&m), [(key, vec![0], false)]);
    assert!(m.effects().contains(&deadline_timer(m.ts_ms + 400)));
    assert_eq!(m.queue.overview().unacked, 1);
}

#[test]
fn the_consumers_own_time_comes_before_the_queues_and_that_before_the_nodes() {
    let deadline = |own: Option<u64>, queue_has: Option<u64>, node: Option<u64>| {
        let mut m = queue(queue_has);
        m.publish(1);
        let Command::Attach(mut attach) = attach(&consumer(1, "c"), 1, 0) else { unreachable!() };
        (attach.timeout_ms, attach.default_timeout_ms) = (own, node);
        m.apply(Command::Attach(attach));
        m.fx.iter().find_map(|effect| match effect {
            Effect::Timer { at_ms: Some(at), .. } => Some(at - m.ts_ms),
            _ => None,
        })
    };
    assert_eq!(deadline(Some(10), Some(20), Some(30)), Some(10));
    assert_eq!(deadline(None, Some(20), Some(30)), Some(20));
    assert_eq!(deadline(None, None, Some(30)), Some(30));
    assert_eq!(deadline(None, None, None), None);
}

#[test]
fn attaching_again_changes_the_time_of_later_deliveries() {
    let mut m = queue(None);
    let again = |timeout_ms| {
        let Command::Attach(mut attach) = attach(&consumer(1, "c"), 5, 0) else { unreachable!() };
        attach.timeout_ms = timeout_ms;
        Command::Attach(attach)
    };
    m.apply(again(Some(1000)));
    m.publish(1);
    m.apply(again(Some(100)));
    m.publish(1);
    pass(&mut m, 100);
    assert_eq!(released(&m)[0].1, [1]);
}

#[test]
fn a_get_and_a_cancelled_consumer_go_with_what_is_taken_from_them() {
    let mut m = queue(Some(1000));
    m.publish(2);
    let (got, _) = m.get("g");
    let key = m.attach(&consumer(1, "c"), 1);
    m.apply(Command::Cancel { consumer: key.into() });
    pass(&mut m, 1000);
    assert_eq!(released(&m), [(got, vec![0], true), (key, vec![0], false)]);
    assert!(m.effects().contains(&Effect::Demonitor(session(1, 1))));
    assert_eq!(m.queue.overview().ready, 2);
}

#[test]
fn one_that_is_cut_off_and_back_still_owes_its_answer() {
    let mut m = queue(Some(1000));
    m.publish(1);
    let key = m.attach(&consumer(1, "c"), 1);
    pass(&mut m, 1000);
    m.apply(down(session(1, 1), SessionLoss::NoConnection));
    m.apply(Command::NodeUp { node: NodeId(1) });
    assert_eq!(m.queue.consumers().next().map(|c| c.status), Some(ConsumerStatus::TimedOut));
    m.settle(key, [0]);
    assert_eq!(m.delivered().len(), 1);
}

#[test]
fn version_1_lets_consumers_hold_messages_as_long_as_they_like() {
    let mut m = queue(Some(1000));
    m.version = MV1;
    m.publish(1);
    m.attach(&consumer(1, "c"), 1);
    m.version = MV2;
    pass(&mut m, 5000);
    assert_eq!(released(&m), []);
}

#[test]
fn a_new_leader_tells_again_what_was_taken_away_until_it_is_answered() {
    let mut m = queue(Some(1000));
    m.publish(2);
    let key = m.attach(&consumer(1, "c"), 2);
    pass(&mut m, 1000);
    let greeted = |m: &mut Member| {
        m.fx.clear();
        m.queue.become_leader(&mut m.fx);
        released(m)
    };
    assert_eq!(greeted(&mut m), [(key, vec![0, 1], false)]);
    m.settle(key, [0]);
    assert_eq!(greeted(&mut m), [(key, vec![1], false)]);
    m.settle(key, [1]);
    assert_eq!(greeted(&mut m), []);
}
