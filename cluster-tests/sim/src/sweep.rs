//! Many seeds, on a few threads; each run itself is in one.

use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;

use parking_lot::Mutex;

use crate::plan::{Defect, Profile};
use crate::run::{Figures, Report, Watch, run};

/// Of so many seeds one is run twice.
const TWICE: u64 = 100;

/// What to run.
#[derive(Debug, Clone)]
pub struct Sweep {
    /// The seeds.
    pub seeds: Range<u64>,
    /// The mix.
    pub profile: Profile,
    /// A deliberate defect.
    pub defect: Defect,
    /// How each is watched.
    pub watch: Watch,
    /// Threads.
    pub jobs: usize,
    /// Seeds that may fail before no more are begun.
    pub most_failures: usize,
}

/// What came of many runs.
#[derive(Debug, Clone, Default)]
pub struct Summary {
    /// How many seeds were run.
    pub runs: u64,
    /// Sums.
    pub figures: Figures,
    /// What failed, by seed.
    pub failures: Vec<Report>,
}

/// Runs the seeds; `each` is told of every failure at once.
pub fn sweep(what: &Sweep, each: &(dyn Fn(&Report) + Sync)) -> Summary {
    let next = AtomicU64::new(what.seeds.start);
    let summary = Mutex::new(Summary::default());
    thread::scope(|scope| {
        for _ in 0..what.jobs.max(1) {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= what.seeds.end || summary.lock().failures.len() >= what.most_failures {
                        return;
                    }
                    let report = run_checked(seed, what);
                    if report.wrong.is_some() {
                        each(&report);
                    }
                    let mut summary = summary.lock();
                    summary.runs += 1;
                    summary.figures.add(&report.figures);
                    if report.wrong.is_some() {
                        summary.failures.push(report);
                    }
                }
            });
        }
    });
    let mut summary = summary.into_inner();
    summary.failures.sort_by_key(|report| report.seed);
    summary
}

fn run_checked(seed: u64, what: &Sweep) -> Report {
    let mut report = run(seed, what.profile, what.defect, what.watch);
    if seed.is_multiple_of(TWICE) && report.wrong.is_none() {
        let again = run(seed, what.profile, what.defect, what.watch);
        if again.digest != report.digest {
            report.wrong = Some(format!("two runs differ: {:016x}, {:016x}", report.digest, again.digest));
        }
    }
    report
}
