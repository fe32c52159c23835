//! The simulation as part of every test run: many seeds, those that failed once, and proof that defects are found.
//!
//! `warren-sim run` runs more seeds, `warren-sim replay` one of them again.

mod defects;
mod machine_defects;
mod queue_defects;
mod replays;
mod seeds;
