//! Real `warren` processes and real clients, for tests that need a cluster.
//!
//! [`Cluster`] starts nodes on loopback ports, each with its own configuration and data folder, and gives them back as
//! [`Node`]s that a test kills, stops, wipes and restarts by their process id. [`Program`] runs the client programs in
//! `clients/` (pika and amqplib) against a cluster and reads their one-line verdict. [`amqp`] is the little that the tests
//! written in Rust need on top of lapin.
//!
//! With [`Setup::faulty_disks`] a node's disk fails when a test says so; with [`Setup::own_disks`] it is a file system of its
//! own, which can be frozen and filled up. That needs root: see [`mounts_are_refused`].
//!
//! The `warren` binary is `$WARREN_BIN`, else the one beside the test's own profile folder. When a test fails, the
//! cluster's folder with its logs stays, and its path is printed.

pub mod amqp;
mod cluster;
mod disk;
mod load;
mod node;
mod ports;
pub mod process;
mod program;
pub mod table_files;

pub use cluster::{Cluster, Setup, warren_binary};
pub use disk::{DiskFault, mounts_are_refused};
pub use load::Load;
pub use node::{Node, Stop};
pub use ports::Claim;
pub use program::{Program, Running, Verdict, clients_folder};

use std::time::{Duration, Instant};

/// What runs a test's asynchronous clients.
pub fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be started")
}

/// Tries until it gets a value, or panics saying what it waited for.
pub fn wait_for<T>(what: &str, limit: Duration, mut attempt: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + limit;
    loop {
        if let Some(value) = attempt() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited {limit:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// How often the repeated fault scenarios repeat: `$WARREN_TEST_ROUNDS`, else a few, to keep an ordinary run short.
pub fn rounds(usual: usize) -> usize {
    std::env::var("WARREN_TEST_ROUNDS").ok().and_then(|rounds| rounds.parse().ok()).unwrap_or(usual)
}
