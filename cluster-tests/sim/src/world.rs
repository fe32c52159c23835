//! One run: nodes, network, disks, clients and time, in one thread, from one seed.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use parking_lot::Mutex;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId, SessionRef};
use warren_raft::driver::{Driver, EntryCache, Event, GroupSpec, GroupStatus, Output, Work, WorkDone};
use warren_raft::log_store::LogStore;
use warren_raft::machine::Role;

use crate::client::{Client, Next, Reading, Turn};
use crate::directory::Directory;
use crate::installs::{InstallMessage, Installs, stages};
use crate::journal::Journal;
use crate::judge::{Judge, SharedJudge};
use crate::liveness::{SLOW_DISK, Service};
use crate::member::{Desk, Member, Said};
use crate::message::{Ask, Envelope, QueueEvent, ToSession, worker_of};
use crate::network::{Arrivals, Network, Packet};
use crate::node::{Node, Process};
use crate::plan::{Defect, Plan, node_id};
use crate::random::Random;

/// Time between two ticks of a driver.
pub(crate) const TICK_US: u64 = 100_000;
/// Time within the node that hosts both ends.
const LOCAL_US: u64 = 20;

/// Something that is due.
pub(crate) enum Happening {
    /// A packet reaches its receiver.
    Arrives(Box<Packet>),
    /// Something within a node's process.
    Local { node: usize, life: u64, envelope: Box<Envelope> },
    /// The disk finished writing up to this number.
    Synced { node: usize, life: u64, number: u64 },
    /// Raft's clock.
    Tick { node: usize, life: u64 },
    /// A piece of a snapshot transfer is read or staged.
    Work { node: usize, life: u64, work: Box<Work> },
    /// A client's turn.
    Turn { client: usize, turn: u64 },
    /// A client opens a session somewhere.
    Connect { client: usize },
    /// The sender of lost messages notices.
    Lost { node: usize, life: u64, to: usize },
    /// A fault begins.
    Fault,
    /// Cuts end.
    Heal,
    /// A dead node comes back.
    Restart { node: usize },
    /// A node dies at a chosen moment, while faults happen.
    Strike { node: usize },
    /// A read index is asked for.
    Read,
    /// Groups are brought closer to the members that they should have.
    Tend,
}

struct Due {
    at_us: u64,
    seq: u64,
    happening: Happening,
}

impl PartialEq for Due {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Due {}

impl PartialOrd for Due {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Due {
    fn cmp(&self, other: &Self) -> Ordering {
        (self.at_us, self.seq).cmp(&(other.at_us, other.seq))
    }
}

pub(crate) struct Seat {
    pub client: Client,
    pub session: Option<(SessionRef, usize)>,
    turn: u64,
}

struct PendingRead {
    group: GroupId,
    /// Of the metadata: all registers are read.
    registers: Option<Reading>,
    node: usize,
    life: u64,
    least: u64,
}

/// See the module's head.
pub struct World {
    pub(crate) plan: Plan,
    pub(crate) now_us: u64,
    pub(crate) nodes: Vec<Node>,
    pub(crate) network: Network,
    pub(crate) faults: Random,
    pub(crate) finishing: bool,
    /// Nodes that stay dead for now.
    pub(crate) left_dead: Vec<usize>,
    /// Until when each node stays dead that lost its disk.
    pub(crate) away_until_us: Vec<u64>,
    pub(crate) seats: Vec<Seat>,
    pub(crate) judge: SharedJudge,
    pub(crate) journal: Journal,
    pub(crate) directory: Directory,
    /// Number of the newest member of any group.
    pub(crate) next_member: u64,
    /// How many disks were lost.
    pub(crate) wipes: u64,
    pub(crate) service: Service,
    pub(crate) installs: Installs,
    /// The longest time until everything was at rest.
    pub(crate) slowest_rest_us: u64,
    disks: Random,
    lies: Random,
    /// How often a disk forgot something, and how often a member found that out.
    pub(crate) lies_told: u64,
    pub(crate) amnesias: u64,
    chance: Random,
    queue: BinaryHeap<Reverse<Due>>,
    seq: u64,
    sessions: BTreeMap<SessionRef, usize>,
    next_session: u64,
    reads: BTreeMap<u64, PendingRead>,
    next_read: u64,
    /// Reads that were answered.
    pub(crate) reads_done: u64,
    output: Output,
}

impl World {
    /// The cluster of a plan, with all nodes running and every group created and durable.
    pub fn new(plan: Plan, trace: bool, looks_inside: bool) -> Self {
        let seed = plan.seed;
        let forgets = |node| if plan.disk.lying.contains(&node) { plan.disk.forgets } else { 0 };
        let nodes: Vec<Node> = (0..plan.nodes).map(|n| Node::new(node_id(n), forgets(n))).collect();
        let disks = nodes.iter().map(|n| (n.id, n.disk.clone())).collect();
        let mut world = World {
            now_us: 0,
            network: Network::new(plan.network.clone(), seed),
            faults: Random::part(seed, "faults"),
            finishing: false,
            left_dead: Vec::new(),
            away_until_us: vec![0; plan.nodes],
            seats: Vec::new(),
            judge: Arc::new(Mutex::new(Judge::new(disks, looks_inside))),
            journal: Journal::new(trace),
            directory: Directory::new(&plan.groups, plan.nodes),
            next_member: plan.nodes as u64,
            wipes: 0,
            service: Service::default(),
            installs: Installs::new(seed),
            slowest_rest_us: 0,
            disks: Random::part(seed, "disks"),
            lies: Random::part(seed, "lies told"),
            lies_told: 0,
            amnesias: 0,
            chance: Random::part(seed, "world"),
            queue: BinaryHeap::new(),
            seq: 0,
            sessions: BTreeMap::new(),
            next_session: 0,
            reads: BTreeMap::new(),
            next_read: 0,
            reads_done: 0,
            output: Output::default(),
            nodes,
            plan,
        };
        for node in 0..world.nodes.len() {
            world.start(node);
        }
        world.create_groups();
        world
    }

    fn create_groups(&mut self) {
        for g in 0..self.plan.groups.len() {
            let plan = self.plan.groups[g].clone();
            if plan.group != GroupId::METADATA {
                self.judge.lock().open_queue(plan.group, &plan.queue);
            }
            for (n, member) in plan.members.iter().enumerate() {
                let Some(node) = self.nodes.iter().position(|node| node.id == member.node) else { continue };
                let Some(desk) = self.desk(node, member.uid) else { continue };
                let spec = GroupSpec {
                    group: plan.group,
                    me: member.uid,
                    members: plan.members.clone(),
                    version: MachineVersion(plan.version),
                    init: bytes::Bytes::new(),
                    machine: Member::new(plan.group, &plan.queue, desk),
                    campaign: n == 0,
                };
                if let Some(driver) = self.nodes[node].driver()
                    && let Err(error) = driver.create_group(spec)
                {
                    self.wrong(|| format!("cannot create a group: {error}"));
                }
                self.settle(node);
            }
        }
        while !self.is_created() && self.now_us < 5_000_000 {
            self.run_until(self.now_us + 10_000);
        }
    }

    fn is_created(&self) -> bool {
        let on_disk = |group, node| self.nodes.iter().any(|n| n.id == node && n.disk.has(group));
        self.plan.groups.iter().all(|g| g.members.iter().all(|m| on_disk(g.group, m.node)))
    }

    /// Adds a client, which connects soon.
    pub(crate) fn add_client(&mut self, client: Client) {
        self.seats.push(Seat { client, session: None, turn: 0 });
        let client = self.seats.len() - 1;
        let soon = self.chance.below(100_000);
        self.after(soon, Happening::Connect { client });
    }

    pub(crate) fn wrong(&self, what: impl FnOnce() -> String) {
        self.judge.lock().wrong(what);
    }

    /// What was wrong first.
    pub fn verdict(&self) -> Option<String> {
        self.judge.lock().verdict().map(str::to_owned)
    }

    fn life(&self, node: usize) -> u64 {
        self.nodes[node].lives
    }

    pub(crate) fn index_of(&self, node: NodeId) -> Option<usize> {
        self.nodes.iter().position(|n| n.id == node)
    }

    pub(crate) fn after(&mut self, us: u64, happening: Happening) {
        self.at(self.now_us + us, happening);
    }

    pub(crate) fn at(&mut self, at_us: u64, happening: Happening) {
        self.seq += 1;
        self.queue.push(Reverse(Due { at_us, seq: self.seq, happening }));
    }

    pub(crate) fn arrivals(&mut self, arrivals: Arrivals) {
        for (at, packet) in arrivals {
            self.at(at, Happening::Arrives(Box::new(packet)));
        }
    }

    /// Lets time pass, unless something is wrong already.
    pub fn run_until(&mut self, until_us: u64) {
        while let Some(Reverse(due)) = self.queue.peek() {
            if due.at_us > until_us || self.judge.lock().verdict().is_some() {
                break;
            }
            let Some(Reverse(due)) = self.queue.pop() else { break };
            self.now_us = due.at_us;
            self.happen(due.happening);
        }
        self.now_us = self.now_us.max(until_us);
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrives(packet) => {
                if self.network.arrives(self.now_us, &packet) {
                    let Packet { from, to, envelope, .. } = *packet;
                    self.receive(to, from, envelope);
                }
            }
            Happening::Local { node, life, envelope } => {
                if self.life(node) == life {
                    self.receive(node, node, *envelope);
                }
            }
            Happening::Synced { node, life, number } => self.synced(node, life, number),
            Happening::Tick { node, life } => self.tick(node, life),
            Happening::Work { node, life, work } => self.work(node, life, *work),
            Happening::Turn { client, turn } => self.turn(client, turn),
            Happening::Connect { client } => self.connect(client),
            Happening::Lost { node, life, to } => {
                let to = self.nodes[to].id;
                if self.life(node) == life
                    && let Some(driver) = self.nodes[node].driver()
                {
                    driver.peer_lost(to);
                    self.settle(node);
                }
            }
            Happening::Fault => self.fault(),
            Happening::Heal => self.heal(),
            Happening::Restart { node } => self.revive(node),
            Happening::Strike { node } => {
                if !self.finishing && self.nodes[node].is_up() {
                    self.kill(node);
                }
            }
            Happening::Read => self.ask_read(),
            Happening::Tend => self.tend_members(),
        }
    }

    fn receive(&mut self, to: usize, from: usize, envelope: Envelope) {
        if !self.nodes[to].is_up() {
            return;
        }
        match envelope {
            Envelope::Raft(_, message) => {
                let parts =
                    [1, to as u64, from as u64, message.group, message.kind as u64, message.term, message.index];
                self.journal.note(self.now_us, &parts, || {
                    let m = &message;
                    let (kind, group) = (m.kind(), m.group);
                    let more = (m.entries.len(), m.commit, m.reject);
                    format!("{from}->{to} group {group} {kind:?} term {} index {} {more:?}", m.term, m.index)
                });
                let (from, clock) = (self.nodes[from].id, self.nodes[to].clock_ms(self.now_us));
                let install = InstallMessage::of(&message);
                if let Some(driver) = self.nodes[to].driver() {
                    driver.set_clock(clock);
                    driver.step(from, *message);
                }
                if let Some(install) = install {
                    self.install_arrived(to, from, &install);
                }
                self.settle(to);
            }
            Envelope::ToGroup(group, ask) => {
                self.journal.note(self.now_us, &[2, to as u64, from as u64, group.0], || {
                    format!("{from}->{to} group {group} is asked {ask:?}")
                });
                let clock = self.nodes[to].clock_ms(self.now_us);
                if let Some(driver) = self.nodes[to].driver() {
                    driver.set_clock(clock);
                    driver.requests(group, [ask]);
                }
                self.settle(to);
            }
            Envelope::ToSession(said) => self.tell_session(to, said),
        }
    }

    fn tell_session(&mut self, node: usize, said: ToSession) {
        self.journal.note(self.now_us, &[3, node as u64, said.session.id, said.group.0], || {
            format!("session {} on {node} hears of group {}: {:?}", said.session.id, said.group, said.event)
        });
        if let Some(source) = worker_of(said.session) {
            if let Some(driver) = self.nodes[node].driver() {
                driver.requests(source, [Ask::WorkerHears(said)]);
            }
            self.settle(node);
            return;
        }
        let Some(client) = self.sessions.get(&said.session).copied() else {
            // Whoever watches over a session that is not there any more has to know.
            if matches!(said.event, QueueEvent::LeaderChanged | QueueEvent::Deliver { .. }) {
                let to = said.from;
                self.send(node, to, Envelope::ToGroup(said.group, Ask::SessionGone(said.session)));
            }
            return;
        };
        self.with_client(client, |client, turn| client.hear(said, turn));
    }

    /// Lets a client do something, and sends what it says.
    fn with_client<R>(&mut self, client: usize, f: impl FnOnce(&mut Client, &mut Turn<'_>) -> R) -> Option<R> {
        let seat = &mut self.seats[client];
        let (_, node) = seat.session?;
        let mut out = Vec::new();
        let mut turn = Turn { now_us: self.now_us, judge: &self.judge, finishing: self.finishing, out: &mut out };
        let result = f(&mut seat.client, &mut turn);
        for (to, group, ask) in out {
            self.send(node, to, Envelope::ToGroup(group, ask));
        }
        Some(result)
    }

    pub(crate) fn send(&mut self, from: usize, to: NodeId, envelope: Envelope) {
        let Some(to) = self.index_of(to) else { return };
        if to == from {
            let life = self.life(from);
            self.after(LOCAL_US, Happening::Local { node: from, life, envelope: Box::new(envelope) });
            return;
        }
        let mut arrivals = Arrivals::new();
        self.network.send(self.now_us, from, to, envelope, &mut arrivals);
        self.arrivals(arrivals);
    }

    fn turn(&mut self, client: usize, turn: u64) {
        if self.seats[client].turn != turn {
            return;
        }
        let Some((_, node)) = self.seats[client].session else { return };
        self.journal.note(self.now_us, &[4, client as u64], || format!("client {client}'s turn"));
        let now_ms = self.nodes[node].clock_ms(self.now_us);
        let process = self.nodes[node].process.as_ref();
        let tree = process
            .and_then(|p| p.driver.machine(GroupId::METADATA))
            .and_then(|m| Some((m.tree()?.tree(), process?.driver.status(GroupId::METADATA)?.leader)));
        let member = self.directory.uid(GroupId::METADATA, node).is_some();
        let next = self.with_client(client, |client, turn| match client {
            Client::Publisher(c) => c.step(turn),
            Client::Consumer(c) => c.step(turn),
            Client::Metadata(c) => match &tree {
                Some((tree, leader)) => c.step(tree, *leader, now_ms, turn),
                None if member => Next::After(TICK_US),
                None => Next::Close,
            },
            Client::Registers(c) => match &tree {
                Some((tree, leader)) => c.step(tree, *leader, now_ms, turn),
                None if member => Next::After(TICK_US),
                None => Next::Close,
            },
        });
        match next {
            Some(Next::After(us)) => self.after(us, Happening::Turn { client, turn }),
            Some(Next::Close) => self.close(client, true),
            None => {}
        }
    }

    /// A client's session ends. With `tell`, its node says so to whom the client takes for the leader.
    fn close(&mut self, client: usize, tell: bool) {
        let seat = &mut self.seats[client];
        seat.turn += 1;
        let Some((session, node)) = seat.session.take() else { return };
        let (group, leader) = (seat.client.group(), seat.client.leader());
        self.sessions.remove(&session);
        self.journal.note(self.now_us, &[5, client as u64], || format!("client {client} loses session {}", session.id));
        if let Some(leader) = leader.filter(|_| tell) {
            self.send(node, leader, Envelope::ToGroup(group, Ask::SessionGone(session)));
        }
        let gone = self.chance.between(20_000, 600_000);
        self.after(gone, Happening::Connect { client });
    }

    fn connect(&mut self, client: usize) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|n| self.nodes[*n].is_up()).collect();
        if up.is_empty() || self.seats[client].session.is_some() {
            if self.seats[client].session.is_none() {
                self.after(200_000, Happening::Connect { client });
            }
            return;
        }
        let node = up[self.chance.index(up.len())];
        self.next_session += 1;
        let session = SessionRef { node: self.nodes[node].id, incarnation: self.life(node), id: self.next_session };
        self.journal.note(self.now_us, &[6, client as u64, node as u64], || {
            format!("client {client} opens session {} on {node}", session.id)
        });
        self.sessions.insert(session, client);
        let seat = &mut self.seats[client];
        seat.session = Some((session, node));
        seat.turn += 1;
        let turn = seat.turn;
        self.with_client(client, |client, turn| client.connected(session, turn));
        let soon = self.chance.below(20_000);
        self.after(soon, Happening::Turn { client, turn });
    }

    /// Whether the node's process does not know the newest machine version. Its next one does.
    pub(crate) fn is_old(&self, node: usize) -> bool {
        self.nodes[node].lives == 1 && self.plan.old_nodes.contains(&node)
    }

    pub(crate) fn desk(&self, node: usize, me: MemberUid) -> Option<Desk> {
        let process = self.nodes[node].process.as_ref()?;
        Some(Desk {
            node: self.nodes[node].id,
            me,
            disk: self.nodes[node].disk.clone(),
            out: process.out.clone(),
            down: process.down.clone(),
            judge: self.judge.clone(),
            max_version: if self.is_old(node) { 1 } else { 2 },
            compare_every: self.plan.compare_every,
            defect: self.plan.defect,
        })
    }

    /// Starts a node's process with what its disk holds.
    pub(crate) fn start(&mut self, node: usize) {
        let clock = self.nodes[node].clock_ms(self.now_us);
        let count = self.nodes.len();
        let n = &mut self.nodes[node];
        n.lives += 1;
        let life = n.lives;
        let mut config = self.plan.driver.clone();
        config.node = n.id;
        config.seed = crate::random::mix(&[config.seed, life]);
        let cache = Arc::new(EntryCache::new(n.disk.clone(), self.plan.cache_bytes, 1));
        let mut driver = Driver::new(config, n.disk.clone(), cache.clone());
        driver.set_clock(clock);
        n.process = Some(Process {
            life,
            driver,
            cache,
            out: Arc::default(),
            down: Arc::default(),
            heard_us: vec![self.now_us; count],
        });
        self.journal.note(self.now_us, &[7, node as u64], || format!("node {node} starts, life {life}"));
        self.recover(node);
        let phase = self.chance.below(TICK_US);
        self.after(phase, Happening::Tick { node, life });
        self.settle(node);
    }

    fn recover(&mut self, node: usize) {
        let records = match self.nodes[node].disk.groups() {
            Ok(records) => records,
            Err(error) => {
                self.wrong(|| format!("node {node} cannot read its disk: {error}"));
                return;
            }
        };
        for record in records {
            let group = record.group;
            let Some(desk) = self.desk(node, record.me) else { return };
            let machine = Member::new(group, &self.plan.queue(group), desk);
            if let Some(driver) = self.nodes[node].driver()
                && let Err(error) = driver.recover(record, machine)
            {
                self.wrong(|| format!("node {node} cannot recover group {group}: {error}"));
            }
        }
    }

    /// A node's process dies, and what its disk had not synced is lost, but for a prefix.
    pub(crate) fn crash(&mut self, node: usize) {
        if !self.nodes[node].is_up() {
            return;
        }
        self.nodes[node].process = None;
        let pending = self.nodes[node].disk.pending();
        let survive = self.faults.index(pending + 1);
        self.journal.note(self.now_us, &[8, node as u64, survive as u64], || {
            format!("node {node} dies; {survive} of {pending} writes survive")
        });
        if let Err(error) = self.nodes[node].disk.crash(survive) {
            self.wrong(|| format!("node {node} wrote what no store can take: {error}"));
        }
        self.lie(node);
        self.installs_cut(node);
        self.nodes[node].syncing = None;
        self.nodes[node].stalled_until_us = self.now_us;
        self.network.died(self.now_us, node);
        for client in 0..self.seats.len() {
            if self.seats[client].session.is_some_and(|(_, on)| on == node) {
                self.close(client, false);
            }
        }
    }

    /// A lying disk forgets some of what it said was synced, as far as honest disks have it, and none of them is about to
    /// leave.
    fn lie(&mut self, node: usize) {
        let could = self.nodes[node].disk.could_forget();
        let planned = self.plan.groups.iter().any(|g| self.directory.has_plans(g.group));
        if could > 0 && !planned {
            let most = self.lies.between(1, could as u64) as usize;
            let forgotten = self.judge.lock().forget(node, most);
            self.lies_told += u64::from(forgotten > 0);
            self.journal.note(self.now_us, &[25, node as u64, forgotten as u64], || {
                format!("node {node}'s disk forgets {forgotten} of {could} writes, {most} were drawn")
            });
        }
        self.judge.lock().died(node);
    }

    /// A member has found out that its disk lied. Often its leader dies then, so that votes are asked for.
    fn found_loss(&mut self, node: usize, group: GroupId, commit: u64, last_index: u64) {
        self.amnesias += 1;
        self.journal.note(self.now_us, &[13, node as u64, group.0, commit], || {
            format!("node {node} finds that it lost entries {last_index}..{commit} of group {group}")
        });
        let Some(status) = self.status(node, group) else { return };
        self.judge.lock().found_loss(node, group, status.me, commit, status.term);
        let leader = status.leader.and_then(|leader| self.index_of(leader));
        if let Some(leader) = leader.filter(|leader| *leader != node)
            && self.lies.chance(500)
        {
            let soon = self.lies.below(20_000);
            self.after(soon, Happening::Strike { node: leader });
        }
    }

    fn synced(&mut self, node: usize, life: u64, number: u64) {
        if self.life(node) != life || !self.nodes[node].is_up() || self.nodes[node].syncing != Some(number) {
            return;
        }
        let stalled = self.nodes[node].stalled_until_us;
        if self.now_us < stalled {
            self.at(stalled, Happening::Synced { node, life, number });
            return;
        }
        self.nodes[node].syncing = None;
        self.journal.note(self.now_us, &[9, node as u64, number], || format!("node {node} synced {number}"));
        if let Err(error) = self.nodes[node].disk.sync(number) {
            self.wrong(|| format!("node {node} wrote what no store can take: {error}"));
            return;
        }
        let clock = self.nodes[node].clock_ms(self.now_us);
        if let Some(driver) = self.nodes[node].driver() {
            driver.set_clock(clock);
            driver.persisted(number);
        }
        self.install_synced(node, number);
        self.begin_sync(node);
        self.settle(node);
    }

    fn tick(&mut self, node: usize, life: u64) {
        if self.life(node) != life || !self.nodes[node].is_up() {
            return;
        }
        self.journal.note(self.now_us, &[10, node as u64], || format!("node {node} ticks"));
        self.look_around(node);
        let clock = self.nodes[node].clock_ms(self.now_us);
        if let Some(driver) = self.nodes[node].driver() {
            driver.tick(clock);
        }
        self.after(TICK_US, Happening::Tick { node, life });
        self.settle(node);
    }

    /// The node's failure detector: who can still be heard.
    fn look_around(&mut self, node: usize) {
        let mut verdicts = Vec::new();
        for other in (0..self.nodes.len()).filter(|other| *other != node) {
            let heard = self.nodes[other].is_up() && self.network.is_open(other, node);
            let id = self.nodes[other].id;
            let Some(process) = &mut self.nodes[node].process else { return };
            if heard {
                process.heard_us[other] = self.now_us;
            }
            let silent = self.now_us - process.heard_us[other] > self.plan.down_after_ms * 1000;
            let mut down = process.down.lock();
            let known = down.contains(&id);
            if silent && !known {
                down.push(id);
                verdicts.push((id, false));
            } else if heard && known {
                down.retain(|d| *d != id);
                verdicts.push((id, true));
            }
        }
        for (id, up) in verdicts {
            let groups: Vec<GroupId> = self.plan.groups.iter().map(|g| g.group).collect();
            let Some(driver) = self.nodes[node].driver() else { return };
            if up {
                driver.peer_up(id);
            } else {
                driver.peer_down(id);
            }
            for group in groups {
                driver.requests(group, [Ask::NodesChanged]);
            }
        }
    }

    fn work(&mut self, node: usize, life: u64, work: Work) {
        if self.life(node) != life || !self.nodes[node].is_up() {
            return;
        }
        let (group, transfer) = whose(&work);
        self.journal.note(self.now_us, &[11, node as u64, group.0, transfer], || {
            format!("node {node} works on transfer {transfer} of group {group}")
        });
        let disk = self.nodes[node].disk.clone();
        let staged = stages(&work);
        let done = warren_raft::runtime::perform(&*disk, work).unwrap_or_else(|e| WorkDone::Failed(e.to_string()));
        if let Some(driver) = self.nodes[node].driver() {
            driver.work_done(group, transfer, done);
        }
        self.install_worked(node, staged);
        self.settle(node);
    }

    /// Asks a member for a read index, and remembers what it must cover.
    fn ask_read(&mut self) {
        let (node, group) = (self.chance.index(self.nodes.len()), self.chance.index(self.plan.groups.len()));
        let group = self.plan.groups[group].group;
        let least = self.judge.lock().acknowledged_index(group);
        let life = self.life(node);
        if !self.finishing {
            let pause = self.chance.between(50_000, 500_000);
            self.after(pause, Happening::Read);
        }
        self.next_read += 1;
        let ctx = self.next_read;
        if let Some(driver) = self.nodes[node].driver()
            && driver.status(group).is_some()
        {
            let registers = (group == GroupId::METADATA && self.plan.register_clients > 0)
                .then(|| Reading::begin(self.judge.lock().registers(), self.now_us));
            driver.read_index(group, ctx);
            self.reads.insert(ctx, PendingRead { group, registers, node, life, least });
            if self.plan.defect == Defect::UnfencedReads {
                self.read_done(node, ctx, Some(0));
            }
            self.settle(node);
        }
    }

    fn read_done(&mut self, node: usize, ctx: u64, index: Option<u64>) {
        let Some(read) = self.reads.remove(&ctx) else { return };
        let Some(index) = index else { return };
        if (read.node, read.life) != (node, self.life(node)) {
            return;
        }
        self.reads_done += 1;
        if let Some(reading) = read.registers
            && let Some(tree) = self.nodes[node].member(GroupId::METADATA).and_then(Member::tree)
        {
            reading.end(&tree.tree(), self.judge.lock().registers(), self.now_us);
        }
        let applied = self.status(node, read.group).map_or(0, |s| s.applied);
        if (index < read.least || applied < index) && self.plan.defect != Defect::UnfencedReads {
            let PendingRead { group, least, .. } = read;
            self.wrong(|| {
                format!("group {group}: a read on node {node} covers {index}, applied {applied}, of {least}")
            });
        }
    }

    /// A group's member on a node.
    pub(crate) fn status(&self, node: usize, group: GroupId) -> Option<GroupStatus> {
        self.nodes[node].process.as_ref()?.driver.status(group)
    }

    /// The node that leads a group, of the highest term, and is ready to.
    pub(crate) fn leader(&self, group: GroupId) -> Option<(usize, GroupStatus)> {
        (0..self.nodes.len())
            .filter_map(|n| Some((n, self.status(n, group)?)))
            .filter(|(_, s)| s.role == Role::Leader)
            .max_by_key(|(_, s)| s.term)
    }

    /// Collects what a driver wants done until it wants nothing more, and has the judge look at it.
    pub(crate) fn settle(&mut self, node: usize) {
        let mut out = std::mem::take(&mut self.output);
        loop {
            let life = self.life(node);
            let Some(driver) = self.nodes[node].driver() else { break };
            let more = driver.poll(&mut out);
            if let Some(batch) = out.write.take() {
                self.submit(node, batch);
            }
            for outgoing in out.messages.drain(..) {
                self.judge.lock().sent(node, &outgoing.message);
                self.send(node, outgoing.to, Envelope::Raft(outgoing.lane, Box::new(outgoing.message)));
            }
            for work in out.work.drain(..) {
                let takes = self.disks.below(5_000);
                self.after(takes, Happening::Work { node, life, work: Box::new(work) });
            }
            for event in out.events.drain(..) {
                self.event(node, event);
            }
            // Before clients hear of what was applied: the judge needs to know with which members it was committed.
            for group in out.touched.drain(..) {
                if let Some(status) = self.status(node, group) {
                    self.judge.lock().status(node, life, &status);
                }
            }
            self.say(node);
            if !more {
                break;
            }
        }
        self.output = out;
    }

    fn submit(&mut self, node: usize, batch: warren_raft::driver::WriteBatch) {
        self.install_submitted(node, &batch);
        self.nodes[node].disk.submit(batch.number, batch.writes);
        self.begin_sync(node);
    }

    /// One sync at a time covers everything that was handed over before it began.
    fn begin_sync(&mut self, node: usize) {
        if self.nodes[node].syncing.is_some() {
            return;
        }
        let Some(newest) = self.nodes[node].disk.newest_pending() else { return };
        let disk = &self.plan.disk;
        let factor = if disk.slow == Some(node) && !self.finishing { SLOW_DISK } else { 1 };
        let takes = factor * (disk.least_us + self.disks.below(disk.jitter_us));
        let life = self.life(node);
        self.nodes[node].syncing = Some(newest);
        self.after(takes, Happening::Synced { node, life, number: newest });
    }

    /// A disk that stood still goes on: what it was about to write is written now.
    pub(crate) fn end_stall(&mut self, node: usize) {
        let stalled = self.now_us < self.nodes[node].stalled_until_us;
        self.nodes[node].stalled_until_us = self.now_us;
        if let Some(number) = self.nodes[node].syncing.filter(|_| stalled) {
            let life = self.life(node);
            self.after(0, Happening::Synced { node, life, number });
        }
    }

    fn event(&mut self, node: usize, event: Event) {
        match event {
            Event::Read { ctx, index, .. } => self.read_done(node, ctx, index),
            Event::Amnesia { group, commit, last_index } => self.found_loss(node, group, commit, last_index),
            Event::Undecodable { group, index } => {
                self.wrong(|| format!("node {node} cannot read entry {index} of group {group}"));
            }
            Event::Stopped { group, reason } => {
                self.wrong(|| format!("group {group} stopped on node {node}: {reason:?}"));
            }
            Event::Role { group, term, role, leader } => {
                let parts = [12, node as u64, group.0, term, role as u64];
                self.journal.note(self.now_us, &parts, || {
                    format!("node {node} is {role:?} of group {group} in term {term}, leader {leader:?}")
                });
            }
            Event::Membership { .. } | Event::Changed { .. } => {}
        }
    }

    /// Carries what members said to whom it concerns.
    fn say(&mut self, node: usize) {
        let Some(process) = &self.nodes[node].process else { return };
        let said = std::mem::take(&mut *process.out.lock());
        for said in said {
            match said {
                Said::ToSession(to) => self.send(node, to.session.node, Envelope::ToSession(to)),
                Said::ToLeader(group, ask) => {
                    if let Some((leader, _)) = self.leader(group) {
                        self.send(node, self.nodes[leader].id, Envelope::ToGroup(group, ask));
                    }
                }
                Said::ToMember(to, group, ask) => self.send(node, to, Envelope::ToGroup(group, ask)),
                Said::Answered { origin, seq, index, answer } => {
                    let waits = |seat: &Seat| match &seat.client {
                        Client::Metadata(c) => c.origin() == origin && seat.session.is_some_and(|(_, on)| on == node),
                        Client::Registers(c) => c.origin() == origin && seat.session.is_some_and(|(_, on)| on == node),
                        _ => false,
                    };
                    let Some(client) = self.seats.iter().position(waits) else { continue };
                    let Some(tree) = self.nodes[node].member(GroupId::METADATA).and_then(Member::tree) else {
                        continue;
                    };
                    let tree = tree.tree();
                    let answered = self.with_client(client, |client, turn| match client {
                        Client::Metadata(c) => c.answered(seq, &answer, &tree, turn),
                        Client::Registers(c) => c.answered(seq, &answer, turn),
                        _ => false,
                    });
                    if answered == Some(true) {
                        self.judge.lock().acknowledged(GroupId::METADATA, index);
                    }
                }
            }
        }
    }

    /// Whether this run has a defect on purpose.
    pub fn has_defect(&self) -> bool {
        self.plan.defect != Defect::None
    }
}

/// The group and the transfer that a piece of work is for.
fn whose(work: &Work) -> (GroupId, u64) {
    match work {
        Work::LoadState { group, transfer }
        | Work::LoadEntries { group, transfer, .. }
        | Work::Stage { group, transfer, .. }
        | Work::Restage { group, transfer, .. } => (*group, *transfer),
    }
}
