//! The threads that serve peers: each has a runtime of its own, with its own share of the connections.
//!
//! A runtime whose threads share work wakes a second one for most of what happens, which for signs of life every 100 ms is
//! most of what an idle node costs; and it has client work before it when it is busy. A connection stays on the thread
//! on which it was opened. Signs of life and what is judged by them have the first, with the control lanes; the other lanes
//! are spread over the rest.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::runtime::{Builder, Handle};
use tokio_util::sync::CancellationToken;
use warren_proto::ids::NodeId;

use super::lane::Lane;

/// Threads, at most: beyond that, peers are served faster than a node can use.
const MOST: usize = 4;

pub(crate) struct Threads {
    runtimes: Vec<Handle>,
    next: AtomicUsize,
    end: CancellationToken,
}

impl Threads {
    /// Starts a thread for two cores, at most four.
    pub(crate) fn start() -> io::Result<Self> {
        let count = (std::thread::available_parallelism().map_or(1, usize::from) / 2).clamp(1, MOST);
        let end = CancellationToken::new();
        let mut runtimes = Vec::new();
        for number in 0..count {
            let runtime = Builder::new_current_thread().enable_all().build()?;
            runtimes.push(runtime.handle().clone());
            let ended = end.clone();
            std::thread::Builder::new()
                .name(format!("peer-{number}"))
                .spawn(move || runtime.block_on(ended.cancelled()))?;
        }
        Ok(Threads { runtimes, next: AtomicUsize::new(0), end })
    }

    /// The one for signs of life.
    pub(crate) fn first(&self) -> &Handle {
        &self.runtimes[0]
    }

    pub(crate) fn all(&self) -> &[Handle] {
        &self.runtimes
    }

    /// The one that keeps a lane to a peer.
    pub(crate) fn of(&self, node: NodeId, lane: Lane) -> &Handle {
        let others = self.runtimes.len() - 1;
        if lane == Lane::Control || others == 0 {
            return self.first();
        }
        &self.runtimes[1 + (node.0 as usize).wrapping_add(lane.number()) % others]
    }

    /// The number of the one that gets the next accepted connection.
    pub(crate) fn next(&self) -> usize {
        self.next.fetch_add(1, Ordering::Relaxed) % self.runtimes.len()
    }

    /// Ends the threads and whatever still runs on them.
    pub(crate) fn end(&self) {
        self.end.cancel();
    }
}

impl Drop for Threads {
    fn drop(&mut self) {
        self.end();
    }
}
