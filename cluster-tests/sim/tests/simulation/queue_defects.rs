//! Defects of whoever serves or uses queues, put in on purpose: each shows in what clients see.

use warren_sim::plan::Defect;

use super::defects::{INSIDE, OUTCOMES, found};

#[test]
fn a_delivery_that_does_not_say_that_it_is_a_later_one_is_found() {
    let wrong = found(Defect::Unmarked, OUTCOMES, 40);
    assert!(wrong.contains("comes for the first time again") || wrong.contains("comes after"), "{wrong}");
}

#[test]
fn a_publish_that_is_refused_and_sent_is_found() {
    let wrong = found(Defect::SentThoughRefused, OUTCOMES, 100);
    assert!(wrong.contains("was refused"), "{wrong}");
}

#[test]
fn dead_letters_that_are_settled_before_they_have_arrived_are_found() {
    let wrong = found(Defect::DeadLettersForgotten, INSIDE, 100);
    assert!(wrong.contains("is said to have arrived and has not"), "{wrong}");
}

/// It takes a leader that dies between what its worker says and what it does.
#[test]
fn dead_letters_that_are_settled_before_they_have_arrived_are_found_by_what_is_lost() {
    let wrong = found(Defect::DeadLettersForgotten, OUTCOMES, 1500);
    assert!(wrong.contains("dead letters are lost"), "{wrong}");
}
