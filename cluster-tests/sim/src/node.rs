//! A simulated node: a disk that stays, and a process with a driver that comes and goes.

use std::sync::Arc;

use parking_lot::Mutex;
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::driver::{Driver, EntryCache};

use crate::disk::SimDisk;
use crate::member::{Member, Said};

/// See the module's head.
pub struct Node {
    /// Its name.
    pub id: NodeId,
    /// Its disk.
    pub disk: Arc<SimDisk>,
    /// Its process, while it lives.
    pub process: Option<Process>,
    /// How many processes it had.
    pub lives: u64,
    /// Its wall clock against the others', in ms.
    pub skew_ms: u64,
    /// The newest write that the sync under way covers.
    pub syncing: Option<u64>,
    /// The disk stands still until then.
    pub stalled_until_us: u64,
}

/// One life of a node.
pub struct Process {
    /// Which.
    pub life: u64,
    /// The groups.
    pub driver: Driver<Member>,
    /// Recent entries.
    pub cache: Arc<EntryCache>,
    /// What members said.
    pub out: Arc<Mutex<Vec<Said>>>,
    /// Nodes that it takes for dead.
    pub down: Arc<Mutex<Vec<NodeId>>>,
    /// When it last heard of each node.
    pub heard_us: Vec<u64>,
}

impl Node {
    /// A node with an empty disk, switched off. The disk may forget the last few writes that it says are synced.
    pub fn new(id: NodeId, forgets: usize) -> Self {
        Node {
            id,
            disk: Arc::new(SimDisk::new(forgets)),
            process: None,
            lives: 0,
            skew_ms: 0,
            syncing: None,
            stalled_until_us: 0,
        }
    }

    /// Whether its process lives.
    pub fn is_up(&self) -> bool {
        self.process.is_some()
    }

    /// Its wall clock, in ms.
    pub fn clock_ms(&self, now_us: u64) -> u64 {
        EPOCH_MS + self.skew_ms + now_us / 1000
    }

    /// The driver, while the process lives.
    pub fn driver(&mut self) -> Option<&mut Driver<Member>> {
        self.process.as_mut().map(|p| &mut p.driver)
    }

    /// The member of a group, while the process lives.
    pub fn member(&self, group: GroupId) -> Option<&Member> {
        self.process.as_ref()?.driver.machine(group)
    }
}

/// Wall clock at the run's start.
const EPOCH_MS: u64 = 1_000_000;
