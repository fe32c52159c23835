//! Small changes of a valid history are seen by the checker that they concern.

use std::collections::VecDeque;

use proptest::prelude::*;

use super::*;
use crate::check::total_queue::{Until, Violation};
use crate::check::{order, redelivery, single_active, total_queue};

/// What a small broker does: one active consumer, returned messages first.
#[derive(Debug, Clone, Copy)]
enum Step {
    Publish(u64),
    Deliver,
    Settle,
    Return,
    ChangeConsumer,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1..4u64).prop_map(Step::Publish),
        4 => Just(Step::Deliver),
        3 => Just(Step::Settle),
        1 => Just(Step::Return),
        1 => Just(Step::ChangeConsumer),
    ];
    prop::collection::vec(step, 10..120)
}

/// The history of these steps, drained at the end.
fn valid(steps: &[Step]) -> Vec<Event> {
    let mut events = vec![Event::Activate { consumer: c(1) }];
    let mut counters = [0; 4];
    let (mut ready, mut held) = (VecDeque::new(), VecDeque::new());
    let mut consumer = 1;
    // Whatever the steps say, each publisher publishes two messages, and all is drained.
    let ends = (1..4).chain(1..4).map(Step::Publish).chain(std::iter::repeat_n(Step::Deliver, steps.len() + 6));
    let ends = ends.chain(std::iter::repeat_n(Step::Settle, steps.len() + 6));
    for step in steps.iter().copied().chain(ends) {
        match step {
            Step::Publish(publisher) => {
                counters[publisher as usize] += 1;
                let value = Value::new(publisher, counters[publisher as usize]);
                events.extend([publish(value), confirm(value)]);
                ready.push_back((value, 0));
            }
            Step::Deliver => {
                let Some((value, acquired)) = ready.pop_front() else { continue };
                events.push(if acquired == 0 {
                    deliver(value, consumer)
                } else {
                    redeliver(value, consumer, acquired)
                });
                held.push_back((value, acquired));
            }
            Step::Settle => {
                let Some((value, _)) = held.pop_front() else { continue };
                events.push(settle(value, consumer));
            }
            Step::Return => {
                let Some((value, acquired)) = held.pop_back() else { continue };
                events.push(give_back(value, consumer));
                ready.push_front((value, acquired + 1));
            }
            Step::ChangeConsumer => {
                events.push(Event::End { consumer: c(consumer) });
                consumer += 1;
                events.push(Event::Activate { consumer: c(consumer) });
                while let Some((value, acquired)) = held.pop_back() {
                    ready.push_front((value, acquired + 1));
                }
            }
        }
    }
    events
}

/// Places of first deliveries.
fn first_deliveries(events: &[Event]) -> Vec<usize> {
    let is_first = |event: &Event| matches!(event, Event::Deliver { redelivered: false, .. });
    (0..events.len()).filter(|at| is_first(&events[*at])).collect()
}

fn value_of(event: &Event) -> Option<(Value, Consumer)> {
    match event {
        Event::Deliver { value, consumer, .. } => Some((*value, *consumer)),
        _ => None,
    }
}

/// Without any trace of a message at its consumers.
fn without(events: &[Event], lost: Value) -> Vec<Event> {
    let concerns = |event: &&Event| match event {
        Event::Deliver { value, .. } | Event::Settle { value, .. } | Event::Return { value, .. } => *value == lost,
        _ => false,
    };
    events.iter().filter(|event| !concerns(event)).copied().collect()
}

proptest! {
    #[test]
    fn every_checker_accepts_what_a_small_broker_does(steps in steps()) {
        let history = history(valid(&steps));
        prop_assert!(total_queue::check(&history, Until::Answered).is_valid());
        prop_assert!(redelivery::check(&history).is_valid());
        prop_assert!(order::check(&history).is_valid());
        prop_assert!(single_active::check(&history).is_valid());
    }

    #[test]
    fn a_message_that_reaches_nobody_is_lost(steps in steps(), which: prop::sample::Index) {
        let events = valid(&steps);
        let at = *which.get(&first_deliveries(&events));
        let (lost, _) = value_of(&events[at]).unwrap();
        let verdict = total_queue::check(&history(without(&events, lost)), Until::Answered);
        let found = matches!(verdict.violation(), Some(Violation::Lost { value, count: 1, .. }) if value == lost);
        prop_assert!(found);
    }

    #[test]
    fn a_delivery_that_comes_again_without_a_mark_is_found(steps in steps(), which: prop::sample::Index) {
        let mut events = valid(&steps);
        let at = *which.get(&first_deliveries(&events));
        events.insert(at + 1, events[at]);
        prop_assert!(redelivery::check(&history(events)).is_invalid());
    }

    #[test]
    fn a_delivery_from_nowhere_is_found(steps in steps(), which: prop::sample::Index) {
        let mut events = valid(&steps);
        let at = *which.get(&first_deliveries(&events));
        events.insert(at, deliver(Value::new(9, 1), 1));
        let found = total_queue::check(&history(events), Until::Answered).violation();
        prop_assert_eq!(found, Some(Violation::Unexpected(Value::new(9, 1))));
    }

    #[test]
    fn two_of_a_publishers_that_change_places_are_found(steps in steps(), which: prop::sample::Index) {
        let mut events = valid(&steps);
        let firsts = first_deliveries(&events);
        let follows = |a: &usize, b: &usize| {
            let (Some((a, at)), Some((b, bt))) = (value_of(&events[*a]), value_of(&events[*b])) else { return false };
            a.process == b.process && at == bt && a < b
        };
        let pairs: Vec<(usize, usize)> = firsts
            .iter()
            .flat_map(|a| firsts.iter().filter(|b| follows(a, b)).map(|b| (*a, *b)))
            .collect();
        prop_assume!(!pairs.is_empty());
        let (a, b) = *which.get(&pairs);
        events.swap(a, b);
        prop_assert!(order::check(&history(events)).is_invalid());
    }

    #[test]
    fn a_delivery_to_another_consumer_is_found(steps in steps(), which: prop::sample::Index) {
        let mut events = valid(&steps);
        let at = *which.get(&first_deliveries(&events));
        if let Event::Deliver { consumer, .. } = &mut events[at] {
            *consumer = c(99);
        }
        prop_assert!(single_active::check(&history(events)).is_invalid());
    }
}
