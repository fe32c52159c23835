//! Judging what clients saw of a cluster.
//!
//! A [history](check::history) says in order what clients asked and what they got. Each checker of [`check`] reads one
//! and answers a [`Verdict`](check::Verdict): the same checkers judge the simulation and real processes.

pub mod check;
