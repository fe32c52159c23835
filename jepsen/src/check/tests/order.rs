use super::*;
use crate::check::Verdict;
use crate::check::order::{Violation, check};

fn judged(events: Vec<Event>) -> Verdict<Violation> {
    check(&history(events))
}

fn with_priority(value: Value, priority: u8) -> Event {
    Event::Publish { value, priority: Some(priority), may_expire: false }
}

#[test]
fn deliveries_in_order_are_valid() {
    assert_eq!(judged([published(5), consumed([1, 2, 5])].concat()), Verdict::Valid);
}

#[test]
fn priorities_publishers_and_consumers_each_have_an_order_of_their_own() {
    let other = Value::new(2, 1);
    let published = vec![publish(v(1)), with_priority(v(2), 9), publish(v(3)), publish(other), with_priority(v(4), 4)];
    let delivered = [v(2), v(1), other, v(4)].map(|value| deliver(value, 1)).to_vec();
    assert_eq!(judged([published, delivered, vec![deliver(v(3), 2)]].concat()), Verdict::Valid);
}

#[test]
fn redeliveries_copies_and_single_gets_may_come_late() {
    let got = Event::Deliver { value: v(2), consumer: c(1), redelivered: false, acquired: Some(0), got: true };
    let copy = vec![Event::Copy { value: v(3) }, deliver(v(3), 1)];
    let events = [published(5), consumed([4]), vec![redeliver(v(1), 1, 1), got], copy, consumed([5])].concat();
    assert_eq!(judged(events), Verdict::Valid);
}

#[test]
fn a_message_that_was_overtaken_is_found() {
    let violation = Violation { value: v(2), after: 3, priority: 4, consumer: c(1) };
    assert_eq!(judged([published(4), consumed([1, 3, 2, 4])].concat()), Verdict::Invalid(violation));
}

#[test]
fn a_message_that_was_overtaken_within_its_priority_is_found() {
    // More than 31 counts as 31.
    let published = vec![with_priority(v(1), 31), publish(v(2)), with_priority(v(3), 200)];
    let delivered = [v(3), v(1), v(2)].map(|value| deliver(value, 1)).to_vec();
    let violation = Violation { value: v(1), after: 3, priority: 31, consumer: c(1) };
    assert_eq!(judged([published, delivered].concat()), Verdict::Invalid(violation));
}

#[test]
fn a_consumer_that_ended_is_compared_with_nobody() {
    let events = [published(2), consumed([2]), vec![Event::End { consumer: c(1) }], consumed([1])].concat();
    assert_eq!(judged(events), Verdict::Valid);
    assert!(matches!(judged(published(1)), Verdict::Unknown(_)));
}
