//! Several nodes that know of each other.

use std::ffi::OsString;
use std::fmt::Write as _;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use std::time::Duration;

use tempfile::TempDir;

use crate::disk::{self, LoopDisk};
use crate::node::{Node, Stop};
use crate::ports::Claim;
use crate::wait_for;

/// Longest time that a node may take from its start until it serves clients. Generous: the machine may be busy.
pub const READY_LIMIT: Duration = Duration::from_secs(60);

/// Longest time that a queue may be without a leader.
const LEADER_LIMIT: Duration = Duration::from_secs(30);

/// What a test wants of its cluster beyond the number of nodes.
#[derive(Default)]
pub struct Setup {
    extra: Vec<String>,
    faulty_disks: bool,
    own_disks: Option<u64>,
}

impl Setup {
    /// The defaults.
    pub fn new() -> Setup {
        Setup::default()
    }

    /// Adds a line to every node's configuration file.
    pub fn line(mut self, line: &str) -> Setup {
        self.extra.push(line.to_owned());
        self
    }

    /// Lets the test break every node's disk with [`Node::break_disk`].
    pub fn faulty_disks(mut self) -> Setup {
        self.faulty_disks = true;
        self
    }

    /// Gives every node's data folder a file system of its own, of so many megabytes. Where [`mounts_are_refused`] says
    /// why, it fails.
    ///
    /// [`mounts_are_refused`]: crate::mounts_are_refused
    pub fn own_disks(mut self, megabytes: u64) -> Setup {
        self.own_disks = Some(megabytes);
        self
    }

    /// Lays out `count` nodes and starts none.
    pub fn lay_out(self, count: usize) -> Cluster {
        let folder =
            tempfile::Builder::new().prefix("warren-cluster-").tempdir().expect("a temporary folder can be made");
        let ports = Claim::new();
        let binary = warren_binary();
        let names: Vec<String> = (1..=count).map(|n| format!("w{n}@localhost")).collect();
        let mut peers = String::from("cluster_formation.peer_discovery_backend = classic_config\n");
        for (index, name) in names.iter().enumerate() {
            let (number, port) = (index + 1, ports.peer(index));
            let _ = writeln!(peers, "cluster_formation.classic_config.nodes.{number} = {name}:{port}");
        }
        let library = self.faulty_disks.then(|| disk::compile(folder.path()));
        let secret = format!("secret-of-{}", folder.path().display());
        let nodes: Vec<Node> = names
            .into_iter()
            .enumerate()
            .map(|(index, name)| {
                let (amqp, peer) = (ports.amqp(index), ports.peer(index));
                let configuration = format!(
                    "listeners.tcp.1 = 127.0.0.1:{amqp}\npeer.ip = 127.0.0.1\npeer.port = {peer}\n{peers}{}\n",
                    self.extra.join("\n")
                );
                let home = folder.path().join(format!("w{}", index + 1));
                let mut node = Node::lay_out(name, amqp, home, &configuration, &secret, &binary)
                    .expect("a node's folder can be laid out");
                if let Some(library) = &library {
                    node.put_on_faulty_disk(library);
                }
                node
            })
            .collect();
        let mount = |node: &Node| {
            let megabytes = self.own_disks?;
            let image = folder.path().join(format!("{}.img", node.name()));
            Some(LoopDisk::mount(&image, megabytes, node.data_dir()))
        };
        let disks = nodes.iter().filter_map(mount).collect();
        Cluster { nodes, disks, folder: Some(folder), _ports: ports }
    }

    /// Lays out `count` nodes, starts them all and waits until each serves clients.
    pub fn start(self, count: usize) -> Cluster {
        let mut cluster = self.lay_out(count);
        cluster.start_all();
        cluster
    }
}

/// Nodes on loopback with a shared secret; all are killed when this value is dropped.
pub struct Cluster {
    nodes: Vec<Node>,
    disks: Vec<LoopDisk>,
    folder: Option<TempDir>,
    _ports: Claim,
}

impl Cluster {
    /// Starts `count` nodes with the default settings and waits until each serves clients.
    pub fn start(count: usize) -> Cluster {
        Setup::new().start(count)
    }

    /// Starts every node that does not run, and waits until each serves clients.
    pub fn start_all(&mut self) {
        for node in &mut self.nodes {
            if node.pid().is_none() {
                node.start();
            }
        }
        self.wait_ready();
    }

    /// Waits until every running node serves clients.
    pub fn wait_ready(&mut self) {
        for node in &mut self.nodes {
            if node.pid().is_some() {
                node.wait_ready(READY_LIMIT);
            }
        }
    }

    /// Starts one node and waits until it serves clients.
    pub fn restart(&mut self, index: usize) {
        self.nodes[index].start();
        self.nodes[index].wait_ready(READY_LIMIT);
    }

    /// Kills and starts every node, so that what they stored is in table files and not in the write-ahead log alone.
    pub fn flush(&mut self) {
        self.kill_all();
        self.start_all();
    }

    /// Kills every running node, as nearly at once as one thread can.
    pub fn kill_all(&mut self) {
        for node in &mut self.nodes {
            if node.pid().is_some() {
                node.stop(Stop::Kill);
            }
        }
    }

    /// Lets writes to the node's disk wait.
    pub fn freeze_disk(&mut self, index: usize) {
        self.disks[index].freeze();
    }

    /// Lets writes to the node's disk go on.
    pub fn thaw_disk(&mut self, index: usize) {
        self.disks[index].thaw();
    }

    /// Takes all the space that is left on the node's disk.
    pub fn fill_disk(&self, index: usize) {
        self.disks[index].fill();
    }

    /// Gives the space back that [`fill_disk`](Self::fill_disk) took.
    pub fn release_disk(&self, index: usize) {
        self.disks[index].release();
    }

    /// The AMQP ports of all nodes, as the client programs take them.
    pub fn ports(&self) -> String {
        let ports: Vec<String> = self.nodes.iter().map(|n| n.amqp_port().to_string()).collect();
        ports.join(",")
    }

    /// The folder that holds the nodes' folders, for a test's own files.
    pub fn folder(&self) -> PathBuf {
        self.folder.as_ref().map(|folder| folder.path().to_owned()).unwrap_or_default()
    }

    /// Waits until the queue has a leader; the index of its node.
    pub fn wait_leader(&self, queue: &str) -> usize {
        wait_for("the queue to have a leader", LEADER_LIMIT, || self.leader_of(queue))
    }

    /// The index of the node that leads the queue's group, asked of any running node.
    pub fn leader_of(&self, queue: &str) -> Option<usize> {
        let running = self.nodes.iter().filter(|node| node.pid().is_some());
        for node in running {
            let rows = node.ctl_rows(&["list_queues", "name", "leader"]);
            let leader = rows
                .into_iter()
                .flatten()
                .find_map(|row| (row["name"] == queue).then(|| row["leader"].as_str().map(str::to_owned))?);
            let index = leader.and_then(|name| self.nodes.iter().position(|n| n.name() == name));
            if index.is_some() {
                return index;
            }
        }
        None
    }
}

impl Deref for Cluster {
    type Target = [Node];

    fn deref(&self) -> &[Node] {
        &self.nodes
    }
}

impl DerefMut for Cluster {
    fn deref_mut(&mut self) -> &mut [Node] {
        &mut self.nodes
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        let failed = std::thread::panicking();
        // A process does not end while it waits for a frozen disk.
        self.disks.iter_mut().for_each(LoopDisk::thaw);
        for node in &mut self.nodes {
            if node.pid().is_some() {
                node.stop(Stop::Kill);
            }
            if failed {
                eprintln!("---- last lines of {}\n{}", node.name(), node.log_tail(40));
            }
        }
        self.disks.clear();
        if failed && let Some(folder) = self.folder.take() {
            eprintln!("the cluster's files are kept in {}", folder.keep().display());
        }
    }
}

/// `$WARREN_BIN`, else the `warren` of the profile that this test was built with.
pub fn warren_binary() -> PathBuf {
    if let Some(path) = std::env::var_os("WARREN_BIN").filter(|path: &OsString| !path.is_empty()) {
        return PathBuf::from(path);
    }
    let this = std::env::current_exe().expect("a test knows its own path");
    let profile = this.ancestors().nth(2).expect("a test lies in the deps folder of its profile");
    let binary = profile.join("warren");
    assert!(
        binary.exists(),
        "{} does not exist: build it with `cargo build -p warren`, or set WARREN_BIN",
        binary.display()
    );
    binary
}
