//! A deterministic simulation of a Warren cluster: the Raft driver, the metadata tree and quorum queues on a few nodes
//! in one thread, with a virtual clock, a network that loses and cuts, disks that stall and forget what was not
//! synced, and clients that resend. Everything follows from one seed.
//!
//! [`run::run`] runs a seed and says what was wrong; [`sweep`] runs many. While a run goes on, the [`judge`] compares
//! all nodes, disks and clients with what must hold; when the faults are over, everything must come to rest.

pub mod client;
mod directory;
pub mod disk;
mod faults;
pub mod installs;
pub mod journal;
pub mod judge;
mod liveness;
pub mod member;
mod members;
pub mod message;
pub mod network;
pub mod node;
pub mod plan;
pub mod queues;
pub mod random;
pub mod regressions;
pub mod run;
pub mod sweep;
pub mod world;
