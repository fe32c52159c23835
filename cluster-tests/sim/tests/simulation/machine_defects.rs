//! Rules of the queue machine broken on purpose, on every member alike, so that members agree: what clients see must show
//! it, or what a queue says of its messages.

use warren_queues::{Defect as Rule, break_rule};
use warren_sim::plan::{Defect, Profile};
use warren_sim::run::run;

use super::defects::OUTCOMES;

/// Looks for a broken rule under so many seeds, up to one that shows it and passes with the rule; answers what was seen.
fn found(rule: Rule, seeds: u64) -> String {
    let failing = |seed| {
        let _broken = break_rule(rule);
        Some((seed, run(seed, Profile::Ci, Defect::None, OUTCOMES).wrong?))
    };
    let Some((seed, wrong)) = (0..seeds).find_map(failing) else { panic!("{rule:?} passes {seeds} seeds") };
    println!("seed {seed}: {wrong}");
    assert_eq!(run(seed, Profile::Ci, Defect::None, OUTCOMES).wrong, None);
    wrong
}

#[test]
fn a_second_active_consumer_is_found() {
    let wrong = found(Rule::TwoActive, 40);
    assert!(wrong.contains("becomes active beside"), "{wrong}");
}

#[test]
fn a_message_that_is_lost_at_its_return_is_found() {
    let wrong = found(Rule::ReturnLost, 10);
    assert!(wrong.contains("confirmed messages are lost"), "{wrong}");
}

#[test]
fn a_publish_that_is_enqueued_again_is_found() {
    let wrong = found(Rule::Duplicates, 20);
    assert!(wrong.contains("comes from") || wrong.contains("comes after"), "{wrong}");
}

#[test]
fn returned_messages_among_new_ones_are_found() {
    let wrong = found(Rule::ReturnToLane, 40);
    assert!(wrong.contains("comes for the first time again") || wrong.contains("comes after"), "{wrong}");
}

#[test]
fn messages_for_one_that_makes_way_are_found() {
    let wrong = found(Rule::QuiescingServed, 400);
    assert!(wrong.contains("is not active"), "{wrong}");
}
