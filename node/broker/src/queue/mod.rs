//! Queues as sessions reach them.

pub mod classic_host;
pub mod group;
pub mod links;
pub mod protocol;
pub mod supervisor;
mod wire;
