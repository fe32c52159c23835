//! Feature flags and deprecated features (spec: feature-flags.md).
//!
//! A flag says whether a change of messages between nodes, of stored data or of the cluster's behaviour is in force, so that
//! nodes of neighbouring versions can be one cluster. [`registry`] is what flags are, [`catalogue`] those of this version;
//! [`inventory`] is what nodes tell each other of them, and whether they can be one cluster. A [`Member`](member::Member) keeps
//! a node's flags, a [`Controller`](controller::Controller) changes those of all nodes, and [`FeatureFlags`] is both with
//! what a node needs of them.

mod card;
pub mod catalogue;
pub mod controller;
mod defect;
mod definitions;
pub mod deprecated;
mod file;
pub mod first_start;
pub mod inventory;
pub mod member;
pub mod registry;
mod service;
pub mod states;
#[cfg(test)]
mod tests;
mod uses;

pub use controller::EnableError;
pub use inventory::{Incompatible, Inventory, check_compatible, fetch_inventories};
pub(crate) use service::{ASK, JOIN_TURN};
pub use service::{Feature, FeatureFlags, FlagSettings, FlagsError};
