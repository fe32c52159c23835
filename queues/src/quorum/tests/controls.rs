//! Negative controls: the property test sees every rule that is broken on purpose.

use proptest::test_runner::{Config as Runs, RngAlgorithm, TestRng, TestRunner};

use super::property::{Run, history};
use crate::defect::{Defect, break_rule};

/// Whether the property test, with this many histories, sees the defect.
fn seen(defect: Defect, histories: u32) -> bool {
    let runs = Runs { cases: histories, max_shrink_iters: 0, failure_persistence: None, ..Runs::default() };
    let mut runner = TestRunner::new_with_rng(runs, TestRng::deterministic_rng(RngAlgorithm::ChaCha));
    let outcome = runner.run(&history(120), |history| {
        let _broken = break_rule(defect);
        Run::of(&history);
        Ok(())
    });
    outcome.is_err()
}

macro_rules! controls {
    ($($name:ident: $defect:ident,)*) => {$(
        #[test]
        fn $name() {
            assert!(seen(Defect::$defect, 500));
        }
    )*};
}

controls! {
    a_message_lost_at_its_return_is_seen: ReturnLost,
    a_message_returned_behind_new_ones_is_seen: ReturnToLane,
    a_duplicate_is_seen: Duplicates,
    a_second_active_consumer_is_seen: TwoActive,
    an_expired_message_handed_out_is_seen: ExpiredServed,
    a_drop_of_the_wrong_message_is_seen: DropPassesReturns,
    a_delivery_limit_that_is_one_too_low_is_seen: LimitTooLow,
    a_prefetch_count_that_is_overrun_is_seen: PrefetchOverrun,
    credit_that_is_not_refilled_is_seen: CreditNotRefilled,
    a_delivery_count_that_does_not_wrap_is_seen: CreditDoesNotWrap,
    a_drain_that_is_not_counted_is_seen: DrainNotCounted,
    deaths_in_reverse_are_seen: DeathsReversed,
    dead_messages_behind_newer_ones_are_seen: WorkerReturnsLast,
    ids_of_dead_messages_used_again_are_seen: WorkerIdsReused,
    a_delivery_to_one_that_owes_an_answer_is_seen: TimedOutServed,
    a_delivery_to_one_that_makes_way_is_seen: QuiescingServed,
    publishers_that_go_on_too_early_are_seen: UnblockedEarly,
    delayed_messages_out_of_order_are_seen: LateCountsUp,
}
