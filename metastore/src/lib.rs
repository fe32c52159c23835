//! The metadata tree of a Warren cluster: vhosts, users, permissions, exchanges, bindings, queues and nodes.
//!
//! [`tree`] is the data structure and its transactions, [`machine`] the replicated state machine around it, [`records`]
//! the typed layer that everything above uses (`Queue::get`, `Binding::put`, never a path), and [`projections`] the
//! read models that each node keeps for routing and permission checks. [`export`] writes the tree as text and reads it
//! back, [`subscription`] lets others follow its changes. All of it is pure: no I/O, no clock, no runtime.

pub mod export;
pub mod machine;
pub mod projections;
pub mod records;
pub mod subscription;
pub mod tree;

#[cfg(test)]
mod random_writes;
