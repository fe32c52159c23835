//! Many Raft groups in one process.

pub mod log_store;
pub mod machine;
