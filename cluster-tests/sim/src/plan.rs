//! What a seed decides before anything happens: the cluster, its settings, the clients and the faults.

use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_raft::driver::{DriverConfig, Sabotage};
use warren_raft::log_store::{Member, MemberRole};

use crate::queues::{DEAD_LETTERS, QueuePlan};
use crate::random::{Random, mix};

/// Which mix of runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Profile {
    /// Many short runs, for every change.
    Ci,
    /// Everything drawn widely, and longer.
    Swarm,
    /// As `swarm`, and in every run Raft's messages overtake each other and arrive twice.
    Wild,
}

/// A deliberate defect, for runs that must fail.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, clap::ValueEnum)]
pub enum Defect {
    /// None.
    #[default]
    None,
    /// Votes leave before the term and the vote are durable.
    VoteBeforeSync,
    /// Followers acknowledge entries before they are durable.
    AckBeforeSync,
    /// A leader counts its own entries as durable when they are only handed over.
    CountUnsynced,
    /// Queues do not sequence what sessions publish.
    DroppedDedup,
    /// Verdicts about nodes do not wake groups that sleep.
    DeafSleepers,
    /// The metadata tree forgets requests that it has answered.
    ForgottenRequests,
    /// A node that lost its disk comes back as the member that it was.
    OldSelf,
    /// Members that are lost with their disks are not replaced.
    LostForEver,
    /// Members believe a commit index beyond the end of their log.
    BlindTrust,
    /// A member that knows that its disk lost something votes all the same.
    VotingAmnesiac,
    /// Leaders do not believe a member that it lost something.
    DeafToDoubt,
    /// What is lost of a snapshot on its way is not sent again.
    OneSnapshot,
    /// Messages that were handed out before do not say so.
    Unmarked,
    /// Publishers tell their programs that a message is refused, and send it all the same.
    SentThoughRefused,
    /// Reads of the metadata do not wait until the node knows that it has applied what they must see.
    UnfencedReads,
    /// A worker says of dead messages that they have arrived when it has only sent them.
    DeadLettersForgotten,
}

/// How messages travel.
#[derive(Debug, Clone)]
pub struct NetworkPlan {
    /// Time that every message takes at least.
    pub least_us: u64,
    /// Time that it takes in addition, at most.
    pub jitter_us: u64,
    /// Bytes that pass in a microsecond.
    pub bytes_per_us: u64,
    /// Single messages lost, of a million.
    pub loss_ppm: u64,
    /// Whether messages wait out a short cut, as a connection's do, or are lost.
    pub holds: bool,
    /// Whether Raft's messages overtake each other and arrive twice.
    pub wild: bool,
}

/// How disks write.
#[derive(Debug, Clone)]
pub struct DiskPlan {
    /// Time of a sync at least.
    pub least_us: u64,
    /// Time in addition, at most.
    pub jitter_us: u64,
    /// A node whose disk takes ten times as long.
    pub slow: Option<usize>,
    /// Nodes whose disks say of this many writes that they are synced, and may forget them when power is lost.
    pub lying: Vec<usize>,
    /// How many writes those are, at most.
    pub forgets: usize,
}

/// How likely each fault is, in parts of their sum.
#[derive(Debug, Clone, Default)]
pub struct FaultWeights {
    /// One node's process dies and comes back.
    pub crash: u64,
    /// A leader's node does.
    pub crash_leader: u64,
    /// All nodes lose power.
    pub power: u64,
    /// Two halves.
    pub halves: u64,
    /// One node alone.
    pub isolate: u64,
    /// One direction of one pair.
    pub one_way: u64,
    /// Two nodes that only a third can reach.
    pub bridge: u64,
    /// Connections of a pair break.
    pub reset: u64,
    /// A disk stands still.
    pub stall: u64,
    /// Leadership is handed over.
    pub transfer: u64,
    /// A member takes a snapshot, or stands for election.
    pub nudge: u64,
    /// A wall clock jumps.
    pub clock: u64,
    /// A queue's group is to get or lose a member, or both.
    pub members: u64,
    /// The metadata group is to get or lose a member.
    pub metadata_members: u64,
    /// A node dies and comes back with an empty disk.
    pub wipe: u64,
    /// Of a thousand steps of installs, how many are the last before a crash or a cut.
    pub install_cuts: u64,
}

/// A group and where its members are.
#[derive(Debug, Clone)]
pub struct GroupPlan {
    /// The group.
    pub group: GroupId,
    /// Its members, by node.
    pub members: Vec<Member>,
    /// The machine version that it begins with.
    pub version: u16,
    /// What it is, if it is a queue.
    pub queue: QueuePlan,
}

/// Everything that a seed decides.
#[derive(Debug, Clone)]
pub struct Plan {
    /// The seed.
    pub seed: u64,
    /// How many nodes.
    pub nodes: usize,
    /// The groups.
    pub groups: Vec<GroupPlan>,
    /// Nodes whose first process does not support the newest machine version.
    pub old_nodes: Vec<usize>,
    /// The network.
    pub network: NetworkPlan,
    /// The disks.
    pub disk: DiskPlan,
    /// Time between faults, on average.
    pub fault_every_ms: u64,
    /// The faults.
    pub faults: FaultWeights,
    /// How long faults happen.
    pub faulty_ms: u64,
    /// Whether a minority stays dead at first when the faults are over.
    pub core_first: bool,
    /// Silence after which a node counts as down.
    pub down_after_ms: u64,
    /// The driver's settings.
    pub driver: DriverConfig,
    /// Bytes of the cache of entries.
    pub cache_bytes: usize,
    /// Publishers of each queue.
    pub publishers: usize,
    /// Pause between a publisher's bursts, on average.
    pub publish_every_ms: u64,
    /// Messages in a burst, at most.
    pub burst: u64,
    /// Bytes of a body, at most.
    pub body_bytes: u64,
    /// Consumers of each queue.
    pub consumers: usize,
    /// Clients of the metadata tree.
    pub metadata_clients: usize,
    /// Clients of registers in the metadata tree.
    pub register_clients: usize,
    /// States are compared at multiples of this index.
    pub compare_every: u64,
    /// What is wrong on purpose.
    pub defect: Defect,
}

/// The id of a member, by its number in the group.
pub fn member_uid(group: GroupId, number: u64) -> MemberUid {
    MemberUid(group.0 * 1000 + number)
}

/// The name of a simulated node.
pub fn node_id(node: usize) -> NodeId {
    NodeId(100 + node as u64)
}

/// Weights of which some are 0, so that each run is about some faults.
fn weights(r: &mut Random) -> FaultWeights {
    let mut one = |most: u64| if r.chance(600) { r.between(1, most) } else { 0 };
    FaultWeights {
        crash: one(10),
        crash_leader: one(10),
        power: one(2),
        halves: one(6),
        isolate: one(6),
        one_way: one(4),
        bridge: one(3),
        reset: one(6),
        stall: one(4),
        transfer: one(4),
        nudge: one(6),
        clock: one(2),
        members: 0,
        metadata_members: 0,
        wipe: 0,
        install_cuts: 0,
    }
}

/// How likely members change: in some runs, and there often.
fn member_changes(seed: u64, nodes: usize) -> u64 {
    let mut r = Random::part(seed, "members");
    if r.chance(if nodes > 3 { 500 } else { 200 }) { r.between(2, 12) } else { 0 }
}

/// How many share registers, where there is metadata. Drawn apart, so that other seeds stay what they were.
fn register_clients(seed: u64, metadata_clients: usize) -> usize {
    let mut r = Random::part(seed, "registers");
    if metadata_clients > 0 && r.chance(500) { r.between(2, 4) as usize } else { 0 }
}

/// How likely members of the metadata group change, where there are nodes enough to go without one.
fn metadata_changes(seed: u64, nodes: usize, clients: usize) -> u64 {
    let mut r = Random::part(seed, "metadata members");
    if nodes > 3 && clients > 0 && r.chance(500) { r.between(2, 12) } else { 0 }
}

/// How likely a step of an install is its last for now: in some runs.
fn install_cuts(seed: u64) -> u64 {
    let mut r = Random::part(seed, "install cuts");
    if r.chance(300) { r.pick(&[10, 50, 200]) } else { 0 }
}

/// How likely a node loses its disk: in some runs.
fn wipes(seed: u64) -> u64 {
    let mut r = Random::part(seed, "wipes");
    if r.chance(250) { r.between(1, 8) } else { 0 }
}

/// In some runs a few disks lie: of each group, fewer than half of them.
fn lies(seed: u64, honest: DiskPlan, groups: &[GroupPlan]) -> DiskPlan {
    let mut r = Random::part(seed, "lies");
    if !r.chance(250) {
        return honest;
    }
    let smallest = groups.iter().map(|g| g.members.len()).min().unwrap_or(1);
    let mut nodes: Vec<usize> = (0..smallest).collect();
    r.shuffle(&mut nodes);
    nodes.truncate(r.between(1, (smallest as u64 - 1) / 2) as usize);
    DiskPlan { lying: nodes, forgets: r.spread(1, 64) as usize, ..honest }
}

impl Plan {
    /// What a queue is.
    pub fn queue(&self, group: GroupId) -> QueuePlan {
        self.groups.iter().find(|g| g.group == group).map(|g| g.queue.clone()).unwrap_or_default()
    }

    /// Whether any group's members change.
    pub fn changes_members(&self) -> bool {
        self.faults.members > 0 || self.faults.metadata_members > 0 || self.faults.wipe > 0
    }

    /// What the seed decides under a profile.
    pub fn new(seed: u64, profile: Profile, defect: Defect) -> Self {
        let r = &mut Random::part(seed, "plan");
        let wide = profile != Profile::Ci;
        let nodes = r.pick(&[3, 3, 3, 4, 5]);
        let (queues, faulty_ms) = match r.below(100) {
            0..70 => (1, r.between(6_000, 14_000)),
            70..95 => (r.between(2, 3), r.between(5_000, 9_000)),
            _ => (4, r.between(4_000, 8_000)),
        };
        let faulty_ms = if wide { faulty_ms * r.between(1, 4) } else { faulty_ms };
        let metadata_clients = if r.chance(500) { r.between(1, 3) as usize } else { 0 };
        let latest = 2;
        let old_nodes: Vec<usize> = if r.chance(300) { (0..nodes).filter(|_| r.chance(500)).collect() } else { vec![] };
        let version = if old_nodes.is_empty() { r.between(1, latest) as u16 } else { 1 };
        let mut groups = Vec::new();
        if metadata_clients > 0 {
            groups.push(group_plan(GroupId::METADATA, (0..nodes).collect(), 1));
        }
        for n in 0..queues {
            let mut on: Vec<usize> = (0..nodes).collect();
            r.shuffle(&mut on);
            if nodes > 3 && r.chance(500) {
                on.truncate(3);
            }
            groups.push(group_plan(GroupId(10 + n), on, version));
        }
        let latency = r.spread(100, if wide { 20_000 } else { 4_000 });
        let network = NetworkPlan {
            least_us: latency / 2,
            jitter_us: latency.max(10),
            bytes_per_us: r.spread(2, 1000),
            loss_ppm: r.pick(&[0, 0, 1_000, 10_000, if wide { 60_000 } else { 20_000 }]),
            holds: r.chance(500),
            wild: match profile {
                Profile::Ci => Random::part(seed, "wild").chance(300),
                Profile::Swarm => false,
                Profile::Wild => true,
            },
        };
        let disk = DiskPlan {
            least_us: r.spread(50, 2_000),
            jitter_us: r.spread(100, if wide { 40_000 } else { 8_000 }),
            slow: r.chance(250).then(|| r.index(nodes)),
            lying: Vec::new(),
            forgets: 0,
        };
        let disk = lies(seed, disk, &groups);
        let fault_every_ms = r.spread(200, 4_000);
        let faults = weights(r);
        let core_first = r.chance(300);
        let down_after_ms = r.spread(300, 3_000);
        let driver = driver_config(seed, defect, r);
        let cache_bytes = r.spread(256, 1 << 20) as usize;
        let queue = QueuePlan::plain(r.chance(300).then(|| r.between(1, 20) as u32), r.spread(500, 5_000));
        plan_queues(seed, &queue, &old_nodes, &mut groups);
        Plan {
            seed,
            nodes,
            groups,
            old_nodes,
            network,
            disk,
            fault_every_ms,
            faults: FaultWeights {
                members: member_changes(seed, nodes),
                metadata_members: metadata_changes(seed, nodes, metadata_clients),
                wipe: wipes(seed),
                install_cuts: install_cuts(seed),
                ..faults
            },
            faulty_ms,
            core_first,
            down_after_ms,
            driver,
            cache_bytes,
            publishers: r.between(1, 3) as usize,
            publish_every_ms: r.spread(20, 400),
            burst: r.spread(1, 16),
            body_bytes: r.spread(16, 4_000),
            consumers: r.between(1, 3) as usize,
            metadata_clients,
            register_clients: register_clients(seed, metadata_clients),
            compare_every: r.spread(1, 16),
            defect,
        }
    }
}

fn group_plan(group: GroupId, on: Vec<usize>, version: u16) -> GroupPlan {
    let member = |node: &usize| Member {
        uid: member_uid(group, *node as u64 + 1),
        node: node_id(*node),
        role: MemberRole::Voter,
    };
    GroupPlan { group, members: on.iter().map(member).collect(), version, queue: QueuePlan::default() }
}

/// Makes each queue what the seed wants it to be. The first one that has dead messages sends them to one more queue.
fn plan_queues(seed: u64, plain: &QueuePlan, old_nodes: &[usize], groups: &mut Vec<GroupPlan>) {
    let mut dead = None;
    for group in groups.iter_mut().filter(|g| g.group != GroupId::METADATA) {
        let is_newest = old_nodes.is_empty() && group.version > 1;
        group.queue = plain.clone().full(seed, group.group, is_newest);
        if group.queue.dead_letters_to.is_some() {
            if dead.is_some() {
                (group.queue.dead_letters_to, group.queue.config.dead_letter) = (None, None);
                continue;
            }
            let on = group.members.iter().map(|m| (m.node.0 - node_id(0).0) as usize).collect();
            let target = group_plan(DEAD_LETTERS, on, group.version);
            dead = Some(GroupPlan { queue: plain.of_dead_letters(), ..target });
        }
    }
    groups.extend(dead);
}

fn driver_config(seed: u64, defect: Defect, r: &mut Random) -> DriverConfig {
    let mut config = DriverConfig::new(NodeId(0), mix(&[seed, 0x6472_6976]));
    config.node_down_ticks = r.between(2, 6) as usize;
    config.max_append_bytes = r.spread(256, 1 << 20);
    config.max_inflight_messages = r.spread(1, 256) as usize;
    config.max_apply_bytes = r.spread(512, 4 << 20);
    config.max_uncommitted_entries = r.spread(1, 64);
    config.max_queued_requests = r.spread(8, 4096) as usize;
    config.tail_bytes = r.spread(256, 1 << 20) as usize;
    config.snapshot_min_bytes = r.spread(512, 64 << 10);
    config.snapshot_max_bytes = config.snapshot_min_bytes * 3;
    config.snapshot_interval_ms = r.pick(&[0, 100, 1000]);
    config.snapshot_max_entries = r.spread(50, 10_000);
    config.snapshot_chunk_bytes = r.spread(64, 64 << 10) as usize;
    config.snapshot_window = r.between(1, 6) as usize;
    config.snapshot_stall_ticks = r.between(10, 50);
    config.disk_stall_ms = r.spread(1_000, 10_000);
    // Drawn apart, so that recorded seeds stay what they were.
    config.hibernate_ticks = Random::part(seed, "sleep").pick(&[0, 1, 2, 5, 20]);
    config.sabotage = match defect {
        Defect::VoteBeforeSync => Sabotage::VoteBeforeSync,
        Defect::AckBeforeSync => Sabotage::AckBeforeSync,
        Defect::CountUnsynced => Sabotage::CountUnsynced,
        Defect::DeafSleepers => Sabotage::DeafSleepers,
        Defect::BlindTrust => Sabotage::BlindTrust,
        Defect::VotingAmnesiac => Sabotage::VotingAmnesiac,
        Defect::DeafToDoubt => Sabotage::DeafToDoubt,
        Defect::OneSnapshot => Sabotage::OneSnapshot,
        Defect::None
        | Defect::DroppedDedup
        | Defect::ForgottenRequests
        | Defect::OldSelf
        | Defect::LostForEver
        | Defect::Unmarked
        | Defect::SentThoughRefused
        | Defect::UnfencedReads
        | Defect::DeadLettersForgotten => Sabotage::None,
    };
    config
}
