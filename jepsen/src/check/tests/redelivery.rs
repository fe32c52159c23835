use super::*;
use crate::check::Verdict;
use crate::check::redelivery::{Violation, check};

fn judged(events: Vec<Event>) -> Verdict<Violation> {
    check(&history(events))
}

#[test]
fn later_deliveries_that_say_so_are_valid() {
    let again = vec![give_back(v(1), 1), redeliver(v(1), 2, 1), give_back(v(1), 2), redeliver(v(1), 1, 2)];
    assert_eq!(judged([published(2), vec![deliver(v(1), 1)], again, consumed([2])].concat()), Verdict::Valid);
}

#[test]
fn a_first_delivery_that_nobody_saw_is_nobodys_fault() {
    assert_eq!(judged([published(1), vec![redeliver(v(1), 1, 1)]].concat()), Verdict::Valid);
}

#[test]
fn a_second_delivery_without_a_mark_is_found() {
    let twice = vec![deliver(v(1), 1), deliver(v(1), 2)];
    assert_eq!(judged([published(1), twice.clone()].concat()), Verdict::Invalid(Violation::Unmarked(v(1))));
    let copied = [published(1), vec![Event::Copy { value: v(1) }], twice].concat();
    assert_eq!(judged(copied), Verdict::Valid);
}

#[test]
fn a_mark_that_contradicts_the_count_is_found() {
    let marked = |redelivered, acquired| {
        let event = Event::Deliver { value: v(1), consumer: c(1), redelivered, acquired: Some(acquired), got: false };
        judged(vec![event])
    };
    for (redelivered, acquired) in [(true, 0), (false, 1)] {
        let violation = Violation::Disagrees { value: v(1), redelivered, acquired };
        assert_eq!(marked(redelivered, acquired), Verdict::Invalid(violation));
    }
}

#[test]
fn one_handing_out_at_two_places_is_found() {
    let events = vec![deliver(v(1), 1), redeliver(v(1), 2, 1), redeliver(v(1), 3, 1)];
    assert_eq!(judged(events), Verdict::Invalid(Violation::SameCount { value: v(1), acquired: 1 }));
}

#[test]
fn a_history_without_deliveries_is_unknown() {
    assert!(matches!(judged(published(3)), Verdict::Unknown(_)));
}
