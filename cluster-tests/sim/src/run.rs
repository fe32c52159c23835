//! A whole run of a seed: faults while clients work, then peace, in which everything must come to rest.

use std::panic::{AssertUnwindSafe, catch_unwind};

use clap::ValueEnum;
use clap::builder::PossibleValue;
use warren_proto::ids::{GroupId, NodeId};
use warren_queues::quorum::Overview;

use crate::client::{Client, Consumer, Habits, MetadataClient, Publisher, RegisterClient};
use crate::installs::STEPS;
use crate::member::Member;
use crate::plan::{Defect, Plan, Profile};
use crate::random::{Random, mix};
use crate::world::World;

/// Time in which everything must come to rest when the faults are over, counted from the last message that a consumer
/// answered: a long backlog takes its time.
const PEACE_US: u64 = 30_000_000;

/// How a run is watched.
#[derive(Debug, Clone, Copy)]
pub struct Watch {
    /// Print every event.
    pub trace: bool,
    /// Look inside: compare with the disks at once what is promised or committed, and with the queue what a publish adds.
    /// Without, a defect shows only in what follows from it.
    pub inside: bool,
}

impl Default for Watch {
    fn default() -> Self {
        Watch { trace: false, inside: true }
    }
}

/// What came of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// The seed.
    pub seed: u64,
    /// What was wrong, if anything.
    pub wrong: Option<String>,
    /// Digest of everything that happened.
    pub digest: u64,
    /// What was done.
    pub figures: Figures,
}

/// How much a run did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Figures {
    /// Events.
    pub events: u64,
    /// Virtual time in ms.
    pub virtual_ms: u64,
    /// Publishes confirmed.
    pub confirms: u64,
    /// Messages that a consumer answered.
    pub answers: u64,
    /// Reads answered.
    pub reads: u64,
    /// Calls on shared registers.
    pub register_calls: u64,
    /// Histories of registers that no order was searched for to the end.
    pub register_unknown: u64,
    /// Process starts.
    pub lives: u64,
    /// Groups whose disk holds a snapshot at the end, over all nodes.
    pub snapshots: u64,
    /// Publishes of sessions that were gone.
    pub late_copies: u64,
    /// Messages that left their queue unconsumed.
    pub deaths: u64,
    /// Members that joined or left.
    pub changes: u64,
    /// Disks that were lost.
    pub wipes: u64,
    /// Crashes after which a disk had forgotten what it said was synced.
    pub lies: u64,
    /// Members that found out that their disk had.
    pub amnesias: u64,
    /// Snapshots that were being received when their receiver died, by the last step before.
    pub cut_installs: [u64; STEPS.len()],
    /// The longest time in ms that a group took to serve when the faults were over.
    pub slowest_service_ms: u64,
    /// The same in thousandths of what it may take.
    pub slowest_service_share: u64,
    /// The longest time in ms until everything was at rest.
    pub slowest_rest_ms: u64,
}

impl Figures {
    /// Adds another run's.
    pub fn add(&mut self, other: &Figures) {
        self.events += other.events;
        self.virtual_ms += other.virtual_ms;
        self.confirms += other.confirms;
        self.answers += other.answers;
        self.reads += other.reads;
        self.register_calls += other.register_calls;
        self.register_unknown += other.register_unknown;
        self.lives += other.lives;
        self.snapshots += other.snapshots;
        self.late_copies += other.late_copies;
        self.deaths += other.deaths;
        self.changes += other.changes;
        self.wipes += other.wipes;
        self.lies += other.lies;
        self.amnesias += other.amnesias;
        for (sum, more) in self.cut_installs.iter_mut().zip(other.cut_installs) {
            *sum += more;
        }
        self.slowest_service_ms = self.slowest_service_ms.max(other.slowest_service_ms);
        self.slowest_service_share = self.slowest_service_share.max(other.slowest_service_share);
        self.slowest_rest_ms = self.slowest_rest_ms.max(other.slowest_rest_ms);
    }
}

/// The command that runs a seed again.
pub fn replay(seed: u64, profile: Profile, defect: Defect, watch: Watch) -> String {
    let name = |value: Option<PossibleValue>| value.map(|v| v.get_name().to_owned()).unwrap_or_default();
    let profile = name(profile.to_possible_value());
    let mut line = format!("cargo run -p warren-sim -- replay --seed {seed} --profile {profile}");
    if defect != Defect::None {
        line += &format!(" --defect {}", name(defect.to_possible_value()));
    }
    if !watch.inside {
        line += " --outcomes-only";
    }
    line
}

/// Runs a seed.
pub fn run(seed: u64, profile: Profile, defect: Defect, watch: Watch) -> Report {
    let ran = catch_unwind(AssertUnwindSafe(|| run_plan(Plan::new(seed, profile, defect), watch)));
    ran.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("?");
        Report { seed, wrong: Some(format!("panic: {text}")), digest: 0, figures: Figures::default() }
    })
}

fn run_plan(plan: Plan, watch: Watch) -> Report {
    let seed = plan.seed;
    // With members that change, are lost or forget, a minority of the nodes may be what a group's majority needs.
    let core_first = plan.core_first && !plan.changes_members() && plan.disk.lying.is_empty();
    let faulty_us = plan.faulty_ms * 1000;
    let mut world = World::new(plan, watch.trace, watch.inside);
    world.add_clients();
    world.run_until(world.now_us + 300_000);
    world.begin_faults();
    world.run_until(world.now_us + faulty_us);
    let dead = if core_first { world.minority() } else { Vec::new() };
    world.end_faults(&dead);
    world.rest();
    if !dead.is_empty() {
        world.left_dead.clear();
        world.revive_all();
        world.rest();
    }
    world.check_end();
    world.report(seed)
}

/// What keeps a run from its end: the group, and where it is.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Unrest {
    Service(GroupId),
    Members(GroupId),
    NoLeader(GroupId),
    Messages(GroupId, usize),
    NoMember(GroupId, usize),
    Differs(GroupId, usize),
    Clients,
}

impl World {
    fn add_clients(&mut self) {
        let plan = self.plan.clone();
        let mut random = Random::part(plan.seed, "clients");
        for group in &plan.groups {
            let members: Vec<NodeId> = match plan.faults.members {
                0 => group.members.iter().map(|m| m.node).collect(),
                _ => self.nodes.iter().map(|n| n.id).collect(),
            };
            let mut part =
                |kind: u64, n: usize| Random::new(mix(&[plan.seed, group.group.0, kind, n as u64, random.any()]));
            if group.group == GroupId::METADATA {
                for n in 0..plan.metadata_clients {
                    let client = MetadataClient::new(n as u64, members.clone(), part(3, n));
                    self.add_client(Client::Metadata(Box::new(client)));
                }
                for n in 0..plan.register_clients {
                    let random = Random::new(mix(&[plan.seed, 0x7265_6769, n as u64]));
                    let client = RegisterClient::new(n as u64, members.clone(), random);
                    self.add_client(Client::Registers(Box::new(client)));
                }
                continue;
            }
            let publishers = if group.queue.takes_dead { 0 } else { plan.publishers };
            for n in 0..publishers {
                let client = Publisher::new(group, members.clone(), part(1, n), &plan);
                self.add_client(Client::Publisher(Box::new(client)));
            }
            // The first consumer always attaches, so that the queue drains.
            for n in 0..plan.consumers {
                let mut r = part(2, n);
                let gets = n > 0 && r.chance(250) && !group.queue.config.single_active;
                let habits = Habits {
                    prefetch: if gets { 0 } else { r.spread(1, 100) as u32 },
                    returns: r.pick(&[0, 20, 200]),
                    discards: r.pick(&[0, 0, 50]),
                    leaves: r.pick(&[0, 5, 20]),
                    purges: r.pick(&[0, 0, 0, 0, 0, 2]),
                };
                let client = Consumer::new(group.group, members.clone(), r, habits);
                self.add_client(Client::Consumer(Box::new(client)));
            }
        }
    }

    /// Fewer nodes than any group needs for a majority to be left.
    fn minority(&mut self) -> Vec<usize> {
        let smallest = self.plan.groups.iter().map(|g| g.members.len()).min().unwrap_or(1);
        let most = (smallest - 1) / 2;
        let mut all: Vec<usize> = (0..self.nodes.len()).collect();
        self.faults.shuffle(&mut all);
        all.truncate(most);
        all
    }

    /// Lets time pass until every group serves and everything has come to rest; it is wrong if that takes too long.
    fn rest(&mut self) {
        self.expect_service();
        let began = self.now_us;
        self.come_to_rest();
        self.slowest_rest_us = self.slowest_rest_us.max(self.now_us - began);
    }

    fn come_to_rest(&mut self) {
        let mut until = self.now_us + PEACE_US;
        let mut answered = 0;
        loop {
            let now_answered: u64 = self.judge.lock().queues().map(|(_, book)| book.answers()).sum();
            if now_answered > answered {
                (answered, until) = (now_answered, self.now_us + PEACE_US);
            }
            match self.look_for_service().or_else(|| self.unrest()) {
                None => return,
                Some(_) if self.verdict().is_some() => return,
                Some(what) if self.now_us >= until => {
                    let what = self.describe(what);
                    self.wrong(|| format!("no rest within {} s: {what}", PEACE_US / 1_000_000));
                    return;
                }
                Some(_) => self.run_until(self.now_us + 50_000),
            }
        }
    }

    /// What keeps the run from its end.
    fn unrest(&self) -> Option<Unrest> {
        for group in self.plan.groups.iter().map(|g| g.group) {
            if self.directory.is_open(group) {
                return Some(Unrest::Members(group));
            }
            let Some((leader, status)) = self.leader(group) else { return Some(Unrest::NoLeader(group)) };
            let Some(member) = self.nodes[leader].member(group) else { continue };
            let holds = |overview: Overview| overview.messages + overview.dead > 0;
            if member.queue().is_some_and(|queue| holds(queue.state().overview())) {
                return Some(Unrest::Messages(group, leader));
            }
            for node in 0..self.nodes.len() {
                match self.status(node, group) {
                    None if self.nodes[node].is_up() && self.directory.uid(group, node).is_some() => {
                        return Some(Unrest::NoMember(group, node));
                    }
                    Some(other) if other.applied != status.last_index => return Some(Unrest::Differs(group, node)),
                    None | Some(_) => {}
                }
            }
        }
        if self.seats.iter().any(|seat| !seat.client.is_idle()) {
            return Some(Unrest::Clients);
        }
        // The digests last: they cost most.
        self.plan.groups.iter().find_map(|g| {
            let member = |node: usize| self.nodes[node].member(g.group);
            let digest = self.leader(g.group).and_then(|(leader, _)| member(leader)).map(Member::digest);
            let differs = |node: &usize| member(*node).is_some_and(|m| Some(m.digest()) != digest);
            (0..self.nodes.len()).find(differs).map(|node| Unrest::Differs(g.group, node))
        })
    }

    /// What keeps the run from its end, in words.
    fn describe(&self, unrest: Unrest) -> String {
        match unrest {
            Unrest::Service(group) => format!("group {group} does not serve: {:#?}", self.statuses(group)),
            Unrest::Members(group) => format!("group {group} still changes its members: {:#?}", self.statuses(group)),
            Unrest::NoLeader(group) => format!("group {group} has no leader: {:#?}", self.statuses(group)),
            Unrest::Messages(group, leader) => {
                let overview = self.nodes[leader].member(group).and_then(Member::queue).map(|q| q.state().overview());
                format!("group {group} is not drained: {overview:?}, {}", self.open_clients())
            }
            Unrest::NoMember(group, node) => format!("group {group} has no member on node {node}"),
            Unrest::Differs(group, node) => {
                format!("group {group} differs on node {node}: {:#?}", self.statuses(group))
            }
            Unrest::Clients => self.open_clients(),
        }
    }

    fn open_clients(&self) -> String {
        let open = self.seats.iter().filter(|seat| !seat.client.is_idle() || seat.session.is_none());
        open.map(|seat| seat.client.describe()).collect::<Vec<_>>().join("; ")
    }

    pub(crate) fn statuses(&self, group: GroupId) -> Vec<String> {
        let brief = |n: usize| {
            let s = self.status(n, group)?;
            Some(format!(
                "node {n}: {:?} of term {}, commit {}, applied {}, last {}, written {}, snapshot {}",
                s.role, s.term, s.commit, s.applied, s.last_index, s.last_written, s.snapshot_index
            ))
        };
        (0..self.nodes.len()).filter_map(brief).collect()
    }

    /// What must hold once everything is at rest.
    fn check_end(&mut self) {
        for group in self.plan.groups.clone() {
            let group = group.group;
            for node in 0..self.nodes.len() {
                let Some(member) = self.nodes[node].member(group) else { continue };
                if let Err(what) = member.check() {
                    self.wrong(|| format!("group {group} on node {node}: {what}"));
                }
                if let Some(tree) = member.tree() {
                    let tree = tree.tree();
                    for seat in &self.seats {
                        if let Client::Metadata(client) = &seat.client
                            && let Err(what) = client.compare(&tree)
                        {
                            self.wrong(|| format!("at the end on node {node}: {what}"));
                        }
                    }
                }
            }
        }
        let mut judge = self.judge.lock();
        judge.check_drained();
        judge.check_registers();
    }

    fn report(&self, seed: u64) -> Report {
        let mut judge = self.judge.lock();
        let registers = judge.registers();
        let (register_calls, register_unknown) = (registers.len(), registers.unknown);
        let mut figures = Figures {
            register_calls,
            register_unknown,
            events: self.journal.events(),
            virtual_ms: self.now_us / 1000,
            reads: self.reads_done,
            lives: self.nodes.iter().map(|n| n.lives).sum(),
            changes: self.directory.changed(),
            wipes: self.wipes,
            lies: self.lies_told,
            amnesias: self.amnesias,
            cut_installs: self.installs.cut,
            slowest_service_ms: self.service.slowest_us / 1000,
            slowest_service_share: self.service.slowest_us * 1000 / self.plan.serves_within_us(),
            slowest_rest_ms: self.slowest_rest_us / 1000,
            ..Figures::default()
        };
        for (_, book) in judge.queues() {
            figures.confirms += book.confirms();
            figures.answers += book.answers();
            figures.late_copies += book.late_copies;
            figures.deaths += book.deaths();
        }
        for group in &self.plan.groups {
            let has = |n: &&crate::node::Node| n.disk.snapshot_size(group.group).0 > 0;
            figures.snapshots += self.nodes.iter().filter(has).count() as u64;
        }
        let digest = mix(&[self.journal.digest(), figures.confirms, figures.answers, figures.events]);
        Report { seed, wrong: judge.verdict().map(str::to_owned), digest, figures }
    }
}
