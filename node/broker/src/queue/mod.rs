//! Queues as sessions reach them.

pub mod classic_host;
pub mod group;
pub mod links;
pub(crate) mod policies;
pub mod protocol;
pub(crate) mod quarantine;
pub mod supervisor;
mod wire;
