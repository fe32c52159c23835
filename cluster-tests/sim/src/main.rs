//! Runs the simulation: `warren-sim run --seeds 0..1000 --profile ci`, `warren-sim replay --seed 7 --trace`.

use std::ops::Range;
use std::process::ExitCode;
use std::time::Instant;

use clap::{Args, Parser, Subcommand};
use warren_sim::installs::STEPS;
use warren_sim::plan::{Defect, Profile};
use warren_sim::regressions;
use warren_sim::run::{Report, Watch, run};
use warren_sim::sweep::{Sweep, sweep};

/// Failing seeds after which a sweep stops.
const MOST_FAILURES: usize = 20;

/// A deterministic simulation of a Warren cluster.
#[derive(Debug, Parser)]
#[command(name = "warren-sim")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Runs the known bad seeds, then a range; exits with 1 if any of them fails.
    Run {
        /// First and last, the last excluded: `A..B`.
        #[arg(long, value_parser = seeds)]
        seeds: Range<u64>,
        /// Threads.
        #[arg(long, default_value_t = 2)]
        jobs: usize,
        #[command(flatten)]
        how: How,
    },
    /// Runs one seed again.
    Replay {
        /// The seed.
        #[arg(long)]
        seed: u64,
        /// Print every event.
        #[arg(long)]
        trace: bool,
        #[command(flatten)]
        how: How,
    },
}

#[derive(Debug, Clone, Copy, Args)]
struct How {
    /// The mix of runs.
    #[arg(long, value_enum, default_value_t = Profile::Ci)]
    profile: Profile,
    /// A deliberate defect, which must be found.
    #[arg(long, value_enum, default_value_t = Defect::None)]
    defect: Defect,
    /// Look neither at the disks nor into queues: a defect shows only in what follows from it.
    #[arg(long)]
    outcomes_only: bool,
}

impl How {
    fn watch(self, trace: bool) -> Watch {
        Watch { trace, inside: !self.outcomes_only }
    }

    fn replay(self, seed: u64) -> String {
        warren_sim::run::replay(seed, self.profile, self.defect, self.watch(false))
    }
}

fn seeds(text: &str) -> Result<Range<u64>, String> {
    let (from, to) = text.split_once("..").ok_or("seeds are written A..B")?;
    let number = |s: &str| s.trim().parse::<u64>().map_err(|e| format!("{s}: {e}"));
    Ok(number(from)?..number(to)?)
}

fn main() -> ExitCode {
    // A panic is a finding like any other, and reported as one.
    std::panic::set_hook(Box::new(|_| {}));
    match Arguments::parse().command {
        Command::Run { seeds, jobs, how } => run_all(seeds, jobs, how),
        Command::Replay { seed, trace, how } => replay(seed, trace, how),
    }
}

fn run_all(seeds: Range<u64>, jobs: usize, how: How) -> ExitCode {
    let began = Instant::now();
    let mut failed = false;
    if how.defect == Defect::None {
        for known in regressions::all() {
            let report = run(known.seed, known.profile, Defect::None, Watch::default());
            if let Some(wrong) = &report.wrong {
                failed = true;
                println!("seed {} was fixed once ({}) and fails again: {wrong}", known.seed, known.what);
            }
        }
    }
    let what = Sweep {
        seeds,
        profile: how.profile,
        defect: how.defect,
        watch: how.watch(false),
        jobs,
        most_failures: MOST_FAILURES,
    };
    let summary = sweep(&what, &|report: &Report| {
        let wrong = report.wrong.as_deref().unwrap_or_default();
        println!("seed {} failed: {wrong}\n  {}", report.seed, how.replay(report.seed));
    });
    let seconds = began.elapsed().as_secs_f64();
    let f = &summary.figures;
    println!(
        "{} seeds in {seconds:.1} s ({:.0} a minute), {} failed; {} events, {} virtual s, {} confirms, {} answers, {} reads, {} calls on registers ({} histories given up), {} process starts, {} snapshots, {} member changes, {} lost disks, {} lies of disks ({} found out), {} late copies, {} messages that died",
        summary.runs,
        summary.runs as f64 * 60.0 / seconds,
        summary.failures.len(),
        f.events,
        f.virtual_ms / 1000,
        f.confirms,
        f.answers,
        f.reads,
        f.register_calls,
        f.register_unknown,
        f.lives,
        f.snapshots,
        f.changes,
        f.wipes,
        f.lies,
        f.amnesias,
        f.late_copies,
        f.deaths,
    );
    let cut: Vec<String> = STEPS.iter().zip(f.cut_installs).map(|(step, count)| format!("{count} {step:?}")).collect();
    println!("receivers of snapshots died after these steps: {}", cut.join(", "));
    println!(
        "after the faults every group served within {} ms, at most {:.0} % of what it may take; all were at rest within {} ms",
        f.slowest_service_ms,
        f.slowest_service_share as f64 / 10.0,
        f.slowest_rest_ms,
    );
    if failed || !summary.failures.is_empty() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
}

fn replay(seed: u64, trace: bool, how: How) -> ExitCode {
    let report = run(seed, how.profile, how.defect, how.watch(trace));
    println!("seed {seed}: digest {:016x}, {:?}", report.digest, report.figures);
    match report.wrong {
        Some(wrong) => {
            println!("failed: {wrong}");
            ExitCode::FAILURE
        }
        None => ExitCode::SUCCESS,
    }
}
