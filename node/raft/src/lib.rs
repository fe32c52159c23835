//! Many Raft groups in one process.

pub mod driver;
pub mod log_store;
pub mod machine;
pub mod runtime;
pub mod storage;
pub mod transport;
