use crate::check::Verdict;
use crate::check::linearizable::{Timed, check};
use crate::check::registers::{Access, Part, Registers};

const STEPS: u64 = 1_000_000;

fn timed(called: u64, answered: Option<u64>, call: Access) -> Timed<Access> {
    Timed { called, answered, call }
}

fn write(key: u32, value: u64) -> Access {
    Access::All(vec![Part::Write { key, value }])
}

fn read(key: u32, found: Option<u64>) -> Access {
    Access::All(vec![Part::Read { key, found: Some(found) }])
}

fn verdict(history: &[Timed<Access>]) -> Verdict<crate::check::linearizable::Violation> {
    check(&Registers, history, STEPS)
}

#[test]
fn reads_at_the_time_of_a_write_see_it_or_not_but_not_again_the_old_value() {
    let during = |first: Option<u64>, second: Option<u64>| {
        vec![
            timed(0, Some(1), write(1, 5)),
            timed(2, Some(9), write(1, 6)),
            timed(3, Some(4), read(1, first)),
            timed(5, Some(6), read(1, second)),
        ]
    };
    for (first, second) in [(5, 5), (5, 6), (6, 6)] {
        assert!(verdict(&during(Some(first), Some(second))).is_valid(), "{first} {second}");
    }
    assert!(verdict(&during(Some(6), Some(5))).is_invalid());
    assert!(verdict(&during(Some(5), Some(7))).is_invalid());
    assert!(verdict(&during(None, Some(5))).is_invalid());
}

#[test]
fn a_stale_read_is_found_and_the_place_is_named() {
    let history = [
        timed(0, Some(1), write(1, 1)),
        timed(2, Some(3), write(1, 2)),
        timed(4, Some(5), read(1, Some(1))),
        timed(6, Some(7), read(1, Some(2))),
    ];
    let violation = verdict(&history).violation().expect("a violation");
    assert_eq!((violation.explained, violation.calls, violation.at), (2, 4, 2));
    assert!(violation.to_string().contains("2 of 4"), "{violation}");
}

#[test]
fn a_call_without_an_answer_takes_effect_later_or_never() {
    let history = |found: Option<u64>, last: Option<u64>| {
        vec![timed(0, None, write(1, 5)), timed(10, Some(11), read(1, found)), timed(12, Some(13), read(1, last))]
    };
    assert!(verdict(&history(None, None)).is_valid());
    assert!(verdict(&history(None, Some(5))).is_valid());
    assert!(verdict(&history(Some(5), Some(5))).is_valid());
    assert!(verdict(&history(Some(5), None)).is_invalid());
    // Nothing was answered at all.
    assert!(matches!(verdict(&[timed(0, None, write(1, 5))]), Verdict::Unknown(_)));
    assert!(matches!(verdict(&[]), Verdict::Unknown(_)));
}

#[test]
fn a_transaction_is_one_moment() {
    let both = |a: Option<u64>, b: Option<u64>| {
        Access::All(vec![Part::Read { key: 1, found: Some(a) }, Part::Read { key: 2, found: Some(b) }])
    };
    let history = |a, b| {
        vec![
            timed(0, Some(9), Access::All(vec![Part::Write { key: 1, value: 3 }, Part::Write { key: 2, value: 4 }])),
            timed(1, Some(8), both(a, b)),
        ]
    };
    assert!(verdict(&history(None, None)).is_valid());
    assert!(verdict(&history(Some(3), Some(4))).is_valid());
    assert!(verdict(&history(Some(3), None)).is_invalid());
}

#[test]
fn of_two_swaps_from_one_value_one_is_done() {
    let swap = |value, done| Access::Swap { key: 1, expected: None, value, done: Some(done) };
    let history = |first, second| vec![timed(0, Some(5), swap(1, first)), timed(1, Some(6), swap(2, second))];
    assert!(verdict(&history(true, false)).is_valid());
    assert!(verdict(&history(false, true)).is_valid());
    assert!(verdict(&history(true, true)).is_invalid());
    assert!(verdict(&history(false, false)).is_invalid());
}

#[test]
fn a_search_that_takes_too_long_is_given_up() {
    let mut history: Vec<_> = (0..30).map(|n| timed(n, None, write(1, n))).collect();
    history.push(timed(40, Some(41), read(1, Some(99))));
    assert!(matches!(check(&Registers, &history, 10_000), Verdict::Unknown(_)));
}

mod random {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    /// Calls of real registers at one moment each, seen with times around it.
    fn history() -> impl Strategy<Value = Vec<Timed<Access>>> {
        let call = (0u64..12, 0u64..12, 0u32..2, 0u8..4, any::<bool>());
        proptest::collection::vec(call, 1..60).prop_map(|calls| {
            let mut registers: BTreeMap<u32, u64> = BTreeMap::new();
            let mut value = 0;
            let mut history = Vec::new();
            for (n, (early, late, key, kind, answers)) in calls.into_iter().enumerate() {
                let moment = 10 * (n as u64 + 2);
                value += 1;
                let now = registers.get(&key).copied();
                let call = match kind {
                    0 => {
                        registers.insert(key, value);
                        write(key, value)
                    }
                    1 => {
                        let expected = if answers { now } else { Some(value + 1000) };
                        if answers {
                            registers.insert(key, value);
                        }
                        Access::Swap { key, expected, value, done: Some(answers) }
                    }
                    _ => read(key, now),
                };
                // Writes whose answer got lost took place all the same.
                let answered = (answers || kind != 0).then_some(moment + late);
                history.push(timed(moment - early, answered, call));
            }
            history
        })
    }

    /// Every order of up to a few calls, without any cleverness.
    fn naive(history: &[Timed<Access>], done: &mut Vec<usize>, state: BTreeMap<u32, u64>) -> bool {
        use crate::check::linearizable::Model;
        let open = |n: &usize| !done.contains(n);
        let rest: Vec<usize> = (0..history.len()).filter(open).collect();
        if rest.iter().all(|n| history[*n].answered.is_none()) {
            return true;
        }
        // Only what began before all answers of the rest may be next.
        let first_end = rest.iter().filter_map(|n| history[*n].answered).min().unwrap_or(u64::MAX);
        for n in rest {
            if history[n].called > first_end {
                continue;
            }
            if let Some(next) = Registers.step(&state, &history[n].call) {
                done.push(n);
                if naive(history, done, next) {
                    return true;
                }
                done.pop();
            }
        }
        false
    }

    proptest! {
        #[test]
        fn what_happened_at_one_moment_each_is_linearizable(history in history()) {
            let verdict = verdict(&history);
            prop_assert!(!verdict.is_invalid(), "{verdict:?}");
        }

        #[test]
        fn the_search_agrees_with_trying_every_order(history in history(), changed in any::<prop::sample::Index>(), by in 1u64..4) {
            let mut history: Vec<_> = history.into_iter().take(7).collect();
            let at = changed.index(history.len());
            if let Access::All(parts) = &mut history[at].call
                && let [Part::Read { found: Some(found), .. }] = &mut parts[..]
            {
                *found = Some(found.unwrap_or(0) + by);
            }
            prop_assume!(history.iter().any(|timed| timed.answered.is_some()));
            prop_assert_eq!(verdict(&history).is_valid(), naive(&history, &mut Vec::new(), BTreeMap::new()));
        }
    }
}
