use super::*;
use crate::check::Verdict;
use crate::check::single_active::{AFTERMATH_NS, SingleActive, Violation, check};

fn judged(events: Vec<Event>) -> Verdict<Violation> {
    check(&history(events))
}

fn activate(consumer: u64) -> Event {
    Event::Activate { consumer: c(consumer) }
}

fn deactivate(consumer: u64) -> Event {
    Event::Deactivate { consumer: c(consumer) }
}

fn end(consumer: u64) -> Event {
    Event::End { consumer: c(consumer) }
}

#[test]
fn one_after_the_other_is_valid() {
    let first = vec![activate(1), deliver(v(1), 1), settle(v(1), 1), deactivate(1)];
    let second = vec![activate(2), deliver(v(2), 2), end(2), activate(1), redeliver(v(2), 1, 1)];
    assert_eq!(judged([first, second].concat()), Verdict::Valid);
}

#[test]
fn one_that_was_cancelled_or_held_too_long_may_keep_what_it_holds() {
    let cancelled = vec![activate(1), deliver(v(1), 1), end(1), activate(2), deliver(v(2), 2), settle(v(1), 1)];
    let late = vec![Event::TimedOut { consumer: c(2) }, activate(3), deliver(v(3), 3), settle(v(2), 2)];
    assert_eq!(judged([cancelled, late].concat()), Verdict::Valid);
}

#[test]
fn one_that_held_messages_too_long_is_served_again_where_nobody_took_over() {
    let late = vec![activate(1), deliver(v(1), 1), Event::TimedOut { consumer: c(1) }];
    assert_eq!(judged([late.clone(), vec![redeliver(v(1), 1, 1)]].concat()), Verdict::Valid);
    let violation = Violation::Served { consumer: c(1), value: v(2) };
    assert_eq!(judged([late, vec![activate(2), deliver(v(2), 1)]].concat()), Verdict::Invalid(violation));
}

#[test]
fn a_second_active_consumer_is_found() {
    let violation = Violation::TwoActive { active: c(1), also: c(2) };
    assert_eq!(judged(vec![activate(1), deliver(v(1), 1), activate(2)]), Verdict::Invalid(violation));
}

#[test]
fn a_delivery_to_one_that_waits_is_found() {
    let violation = Violation::Served { consumer: c(2), value: v(2) };
    assert_eq!(judged(vec![activate(1), deliver(v(1), 1), deliver(v(2), 2)]), Verdict::Invalid(violation));
}

#[test]
fn a_delivery_after_the_end_is_found() {
    let violation = Violation::Served { consumer: c(1), value: v(2) };
    assert_eq!(judged(vec![deliver(v(1), 1), end(1), deliver(v(2), 1)]), Verdict::Invalid(violation));
}

#[test]
fn two_that_hold_messages_are_found_without_notices() {
    let violation = Violation::TwoHolders { holder: c(1), also: c(2), value: v(2) };
    assert_eq!(judged(vec![deliver(v(1), 1), deliver(v(2), 2)]), Verdict::Invalid(violation));
    assert_eq!(judged(vec![deliver(v(1), 1), settle(v(1), 1), deliver(v(2), 2)]), Verdict::Valid);
}

#[test]
fn an_overlap_after_a_fault_is_measured() {
    let mut checker = SingleActive::new();
    let mut operations = history([Event::Fault, deliver(v(1), 1), deliver(v(2), 2), settle(v(1), 1)]);
    operations.iter().for_each(|operation| checker.observe(operation));
    assert_eq!((checker.verdict(), checker.overlapped_ns()), (Verdict::Valid, 1_000_000));
    operations[2].at_ns = AFTERMATH_NS;
    assert!(check(&operations).is_invalid());
}

#[test]
fn a_history_without_deliveries_is_unknown() {
    assert!(matches!(judged(vec![activate(1)]), Verdict::Unknown(_)));
}
