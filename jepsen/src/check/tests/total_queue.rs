use super::*;
use crate::check::Verdict;
use crate::check::total_queue::{Counts, Loss, TotalQueue, Until, Violation, check};

fn judged(events: Vec<Event>) -> Verdict<Violation> {
    check(&history(events), Until::Answered)
}

#[test]
fn what_is_confirmed_and_settled_is_valid() {
    assert_eq!(judged([published(9), consumed(1..=9)].concat()), Verdict::Valid);
}

#[test]
fn what_was_never_answered_to_the_publisher_may_come_or_not() {
    let events = [published(2), vec![publish(v(3)), publish(v(4))], consumed([1, 2, 3])].concat();
    assert_eq!(judged(events.clone()), Verdict::Valid);
    let mut checker = TotalQueue::new(Until::Answered);
    history(events).iter().for_each(|operation| checker.observe(operation));
    let counts = Counts { attempts: 4, confirmed: 2, delivered: 3, answered: 3, recovered: 1, ..Counts::default() };
    assert_eq!(checker.final_counts(), counts);
}

#[test]
fn what_left_as_configured_is_not_lost() {
    let left = [Reason::Expired, Reason::MaxLen, Reason::DeliveryLimit, Reason::Rejected, Reason::Purged];
    let left = (1..).zip(left).map(|(n, reason)| gone(v(n), reason));
    assert_eq!(judged(published(6).into_iter().chain(left).chain(consumed([6])).collect()), Verdict::Valid);
    let expiring = Event::Publish { value: v(1), priority: None, may_expire: true };
    let kept = [vec![publish(v(2)), confirm(v(2))], consumed([2])].concat();
    assert_eq!(judged([vec![expiring, confirm(v(1))], kept].concat()), Verdict::Valid);
}

#[test]
fn a_message_that_is_missing_is_lost() {
    let lost = |missing: u64| {
        let there = (1..=5).filter(|n| *n != missing);
        judged([published(5), consumed(there)].concat())
    };
    let violation = |value, loss| Verdict::Invalid(Violation::Lost { value, loss, count: 1 });
    assert_eq!(lost(1), violation(v(1), Loss::Prefix));
    assert_eq!(lost(3), violation(v(3), Loss::Middle));
    assert_eq!(lost(5), violation(v(5), Loss::Postfix));
}

#[test]
fn the_example_of_many_lost_messages_is_one_in_the_middle() {
    let events = [published(5), consumed([2, 4])].concat();
    let violation = Violation::Lost { value: v(3), loss: Loss::Middle, count: 3 };
    assert_eq!(judged(events), Verdict::Invalid(violation));
}

#[test]
fn a_delivery_alone_shows_only_that_a_message_reached_somebody() {
    let events = [published(2), consumed([1]), vec![deliver(v(2), 1)]].concat();
    assert_eq!(check(&history(events.clone()), Until::Delivered), Verdict::Valid);
    assert!(judged(events).is_invalid());
}

#[test]
fn a_message_from_nowhere_is_unexpected() {
    assert_eq!(judged([published(1), consumed([1, 2])].concat()), Verdict::Invalid(Violation::Unexpected(v(2))));
    assert_eq!(judged(vec![confirm(v(1))]), Verdict::Invalid(Violation::Invented(v(1))));
}

#[test]
fn a_refused_message_that_is_there_is_found() {
    let refused = vec![publish(v(2)), Event::Refuse { value: v(2) }];
    let there = [published(1), refused.clone(), consumed([1, 2])].concat();
    assert_eq!(judged(there), Verdict::Invalid(Violation::Aborted(v(2))));
    let late = [published(1), vec![publish(v(2)), deliver(v(2), 1), Event::Refuse { value: v(2) }]].concat();
    assert_eq!(judged(late), Verdict::Invalid(Violation::Aborted(v(2))));
    let both = [published(1), refused, vec![confirm(v(2))], consumed([1])].concat();
    assert_eq!(judged(both), Verdict::Invalid(Violation::Contradicted(v(2))));
}

#[test]
fn a_message_that_comes_again_after_a_proven_settle_is_found() {
    let proven = Event::Settle { value: v(1), consumer: c(1), proven: true };
    let events = [published(1), vec![deliver(v(1), 1), proven, redeliver(v(1), 2, 1)]].concat();
    assert_eq!(judged(events.clone()), Verdict::Invalid(Violation::AfterSettle(v(1))));
    let copied = [events[..2].to_vec(), vec![Event::Copy { value: v(1) }], events[2..].to_vec()].concat();
    assert_eq!(judged(copied), Verdict::Valid);
}

#[test]
fn a_history_that_shows_nothing_is_unknown() {
    assert!(matches!(judged(vec![publish(v(1))]), Verdict::Unknown(_)));
    let none = check(&history([publish(v(1)), Event::Fault]), Until::Delivered);
    assert!(matches!(none, Verdict::Unknown(_)));
}

#[test]
fn memory_grows_with_what_is_open_and_not_with_the_history() {
    let mut checker = TotalQueue::new(Until::Answered);
    for n in 1..=100_000 {
        let events = [publish(v(n)), confirm(v(n)), deliver(v(n), 1), settle(v(n), 1)];
        history(events).iter().for_each(|operation| checker.observe(operation));
        assert_eq!(checker.open(), 0);
    }
    assert_eq!(checker.verdict(), Verdict::Valid);
}
