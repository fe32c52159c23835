//! Seeds under which nothing may go wrong. Each part of a range is a test of its own, so that they share the cores.

use std::ops::Range;

use warren_sim::plan::{Defect, Profile};
use warren_sim::regressions;
use warren_sim::run::{Watch, replay, run};
use warren_sim::sweep::{Sweep, sweep};

fn nothing_goes_wrong(profile: Profile, seeds: Range<u64>) {
    let watch = Watch::default();
    let count = seeds.end - seeds.start;
    let what = Sweep { seeds, profile, defect: Defect::None, watch, jobs: 1, most_failures: 3 };
    let summary = sweep(&what, &|report| {
        let wrong = report.wrong.as_deref().unwrap_or_default();
        eprintln!("{wrong}\n  {}", replay(report.seed, profile, Defect::None, watch));
    });
    assert!(summary.failures.is_empty(), "{} seeds failed", summary.failures.len());
    assert_eq!(summary.runs, count);
    assert!(summary.figures.confirms > 0 && summary.figures.lives > 3 * count, "{:?}", summary.figures);
}

#[test]
fn ci_seeds_0_to_250() {
    nothing_goes_wrong(Profile::Ci, 0..250);
}

#[test]
fn ci_seeds_250_to_500() {
    nothing_goes_wrong(Profile::Ci, 250..500);
}

#[test]
fn ci_seeds_500_to_750() {
    nothing_goes_wrong(Profile::Ci, 500..750);
}

#[test]
fn ci_seeds_750_to_1000() {
    nothing_goes_wrong(Profile::Ci, 750..1000);
}

#[test]
fn swarm_seeds_0_to_24() {
    nothing_goes_wrong(Profile::Swarm, 0..24);
}

#[test]
fn wild_seeds_0_to_24() {
    nothing_goes_wrong(Profile::Wild, 0..24);
}

#[test]
fn seeds_that_failed_once_do_not_fail_again() {
    for known in regressions::all() {
        let watch = Watch::default();
        if let Some(wrong) = run(known.seed, known.profile, Defect::None, watch).wrong {
            panic!("{} again: {wrong}\n  {}", known.what, replay(known.seed, known.profile, Defect::None, watch));
        }
    }
}
