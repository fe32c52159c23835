//! A few drivers in one thread: a virtual clock, links that are ordered per lane, disks that take their time, all from
//! a seed.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::sync::Arc;

use bytes::Bytes;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_proto::peer::RaftMessage;

use super::machine::{Ask, TestMachine};
use crate::driver::config::mix;
use crate::driver::mem_store::MemStore;
use crate::driver::{
    Driver, DriverConfig, EntryCache, Event, GroupSpec, GroupStatus, Lane, MemberChange, Output, WorkDone,
};
use crate::log_store::{LogStore, Member, MemberRole, Write};
use crate::machine::{EntryReader, Role};
use crate::runtime::perform;

pub const GROUP: GroupId = GroupId(7);

pub struct Node {
    pub id: NodeId,
    pub uid: MemberUid,
    pub store: Arc<MemStore>,
    pub driver: Option<Driver<TestMachine>>,
    pub cache: Arc<EntryCache>,
    /// Versions its binary supports, up to.
    pub max_version: u16,
    pub events: Vec<Event>,
    life: u64,
    /// When each node was last heard of, and those that count as down.
    heard: BTreeMap<usize, u64>,
    down: Vec<usize>,
}

/// Silence after which a node counts as down.
const DOWN_AFTER_MS: u64 = 600;

enum Happening {
    Arrives { to: usize, from: NodeId, message: Box<RaftMessage> },
    Synced { node: usize, life: u64 },
    Tick { node: usize, life: u64 },
}

pub struct Cluster {
    pub nodes: Vec<Node>,
    pub now: u64,
    pub config: fn(&mut DriverConfig),
    /// Node pairs whose messages are lost: (from, to).
    pub cut: Vec<(usize, usize)>,
    /// Messages lost, in percent.
    pub loss: u64,
    /// Called for each message that leaves.
    pub sent: Vec<(NodeId, NodeId, Lane, RaftMessage)>,
    pub record_sent: bool,
    /// Disks that never finish.
    pub stuck: Vec<usize>,
    /// Disks that take long.
    pub slow: Vec<usize>,
    /// Messages overtake each other on one lane and arrive twice, as no TCP does.
    pub wild: bool,
    /// Digest of everything that happened, in order.
    pub digest: u64,
    seed: u64,
    draws: u64,
    seq: u64,
    queue: BinaryHeap<Reverse<(u64, u64)>>,
    happenings: BTreeMap<u64, Happening>,
    /// When the last message of a link arrives.
    links: BTreeMap<(usize, usize, Lane), u64>,
}

impl Cluster {
    /// `count` nodes with one group, of which the first `members` are founding voters.
    pub fn new(count: usize, members: usize, seed: u64, config: fn(&mut DriverConfig)) -> Self {
        let mut cluster = Cluster {
            nodes: Vec::new(),
            now: 1_000_000,
            config,
            cut: Vec::new(),
            loss: 0,
            sent: Vec::new(),
            record_sent: false,
            stuck: Vec::new(),
            slow: Vec::new(),
            wild: false,
            digest: 0,
            seed,
            draws: 0,
            seq: 0,
            queue: BinaryHeap::new(),
            happenings: BTreeMap::new(),
            links: BTreeMap::new(),
        };
        for n in 0..count {
            let store = Arc::new(MemStore::new());
            let cache = Arc::new(EntryCache::new(store.clone(), 1 << 20, 1));
            cluster.nodes.push(Node {
                id: NodeId(100 + n as u64),
                uid: MemberUid(n as u64 + 1),
                store,
                driver: None,
                cache,
                max_version: 1,
                events: Vec::new(),
                life: 0,
                heard: BTreeMap::new(),
                down: Vec::new(),
            });
            cluster.start(n);
        }
        for n in 0..members {
            cluster.create(n, members, n == 0);
        }
        cluster
    }

    pub fn voters(&self, count: usize) -> Vec<Member> {
        self.nodes[..count].iter().map(|n| Member { uid: n.uid, node: n.id, role: MemberRole::Voter }).collect()
    }

    pub fn create(&mut self, node: usize, members: usize, campaign: bool) {
        let members = self.voters(members);
        self.create_with(node, members, campaign);
    }

    fn create_with(&mut self, node: usize, members: Vec<Member>, campaign: bool) {
        let n = &mut self.nodes[node];
        let spec = GroupSpec {
            group: GROUP,
            me: n.uid,
            members,
            version: MachineVersion(1),
            init: Bytes::from_static(b"test"),
            machine: TestMachine::new(n.max_version),
            campaign,
        };
        n.driver.as_mut().expect("up").create_group(spec).expect("created");
        self.poll(node);
    }

    /// Starts a node with whatever its disk holds.
    pub fn start(&mut self, node: usize) {
        let seed = self.seed;
        let n = &mut self.nodes[node];
        n.life += 1;
        n.heard.clear();
        n.down.clear();
        let mut config = DriverConfig::new(n.id, mix(&[seed, n.life]));
        config.snapshot_interval_ms = 0;
        (self.config)(&mut config);
        n.cache = Arc::new(EntryCache::new(n.store.clone(), 1 << 20, 1));
        let mut driver = Driver::new(config, n.store.clone(), n.cache.clone());
        driver.set_clock(self.now);
        for record in n.store.groups().expect("readable") {
            assert_eq!(record.init, "test");
            driver.recover(record, TestMachine::new(n.max_version)).expect("recovers");
        }
        n.driver = Some(driver);
        let life = n.life;
        let phase = self.draw(100);
        self.after(phase, Happening::Tick { node, life });
        self.poll(node);
    }

    /// The node's process dies and its disk keeps the first few of the writes under way.
    pub fn crash(&mut self, node: usize) {
        let pending = self.nodes[node].store.pending();
        let survive = self.draw(pending as u64 + 1) as usize;
        let n = &mut self.nodes[node];
        n.driver = None;
        n.life += 1;
        n.store.crash(survive);
    }

    pub fn draw(&mut self, below: u64) -> u64 {
        self.draws += 1;
        mix(&[self.seed, self.draws, 0x636c_7573]) % below.max(1)
    }

    fn after(&mut self, ms: u64, happening: Happening) {
        self.at(self.now + ms, happening);
    }

    fn at(&mut self, time: u64, happening: Happening) {
        self.seq += 1;
        self.queue.push(Reverse((time, self.seq)));
        self.happenings.insert(self.seq, happening);
    }

    fn note(&mut self, parts: &[u64]) {
        self.digest = mix(&[self.digest, mix(parts)]);
    }

    /// Lets time pass.
    pub fn run(&mut self, ms: u64) {
        let until = self.now + ms;
        while let Some(Reverse((time, seq))) = self.queue.peek().copied() {
            if time > until {
                break;
            }
            self.queue.pop();
            self.now = time;
            if let Some(happening) = self.happenings.remove(&seq) {
                self.happen(happening);
            }
        }
        self.now = until;
    }

    /// Lets time pass until `done`, at most `ms`.
    pub fn run_until(&mut self, ms: u64, mut done: impl FnMut(&Cluster) -> bool) {
        let until = self.now + ms;
        while !done(self) {
            assert!(self.now < until, "not done in {ms} ms: {:#?}", self.statuses());
            self.run(10);
        }
    }

    pub fn statuses(&self) -> Vec<Option<GroupStatus>> {
        (0..self.nodes.len()).map(|n| self.status(n)).collect()
    }

    fn happen(&mut self, happening: Happening) {
        match happening {
            Happening::Arrives { to, from, message } => {
                self.note(&[1, self.now, to as u64, from.0, message.kind as u64, message.term, message.index]);
                if let Some(driver) = &mut self.nodes[to].driver {
                    driver.set_clock(self.now);
                    driver.step(from, *message);
                    self.poll(to);
                }
            }
            Happening::Synced { node, life } => {
                if self.nodes[node].life != life || self.stuck.contains(&node) {
                    return;
                }
                let number = self.nodes[node].store.sync(1).expect("sync");
                if let (Some(number), Some(driver)) = (number, &mut self.nodes[node].driver) {
                    driver.set_clock(self.now);
                    driver.persisted(number);
                    self.note(&[2, self.now, node as u64, number]);
                    self.poll(node);
                }
            }
            Happening::Tick { node, life } => {
                if self.nodes[node].life != life {
                    return;
                }
                self.look_around(node);
                if let Some(driver) = &mut self.nodes[node].driver {
                    driver.tick(self.now);
                    self.after(100, Happening::Tick { node, life });
                    self.poll(node);
                }
            }
        }
    }

    /// What a node's failure detector finds.
    fn look_around(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|o| *o != node) {
            let heard = self.nodes[other].driver.is_some() && !self.cut.contains(&(other, node));
            let (now, id) = (self.now, self.nodes[other].id);
            let n = &mut self.nodes[node];
            let Some(driver) = &mut n.driver else { return };
            let last = n.heard.entry(other).or_insert(now);
            let was_down = n.down.contains(&other);
            if heard {
                *last = now;
            }
            if heard && was_down {
                n.down.retain(|d| *d != other);
                driver.peer_up(id);
            } else if !was_down && now > *last + DOWN_AFTER_MS {
                n.down.push(other);
                driver.peer_down(id);
            }
        }
    }

    pub fn poll(&mut self, node: usize) {
        let mut out = Output::default();
        loop {
            let store = self.nodes[node].store.clone();
            let Some(driver) = &mut self.nodes[node].driver else { return };
            let more = driver.poll(&mut out);
            let mut work = false;
            for piece in out.work.drain(..) {
                work = true;
                let (group, transfer) = crate::runtime::whose(&piece);
                let done = perform(&*store, piece).unwrap_or_else(|e| WorkDone::Failed(e.to_string()));
                driver.work_done(group, transfer, done);
            }
            self.nodes[node].events.append(&mut out.events);
            if let Some(batch) = out.write.take() {
                self.note(&[3, node as u64, batch.number, batch.writes.len() as u64]);
                self.submit(node, batch.number, batch.writes);
            }
            for message in std::mem::take(&mut out.messages) {
                self.transmit(node, message.to, message.lane, message.message);
            }
            if !more && !work {
                return;
            }
        }
    }

    fn submit(&mut self, node: usize, number: u64, writes: Vec<Write>) {
        self.nodes[node].store.submit(number, writes);
        let most = if self.slow.contains(&node) { 300 } else { 8 };
        let (life, ms) = (self.nodes[node].life, 1 + self.draw(most));
        self.after(ms, Happening::Synced { node, life });
    }

    fn transmit(&mut self, from: usize, to: NodeId, lane: Lane, message: RaftMessage) {
        let (from_id, loss) = (self.nodes[from].id, self.loss);
        if self.record_sent {
            self.sent.push((from_id, to, lane, message.clone()));
        }
        let Some(to) = self.nodes.iter().position(|n| n.id == to) else { return };
        if self.cut.contains(&(from, to)) || self.draw(100) < loss {
            return;
        }
        let delay = 1 + self.draw(10);
        if self.wild {
            let copies = if self.draw(20) == 0 { 2 } else { 1 };
            for copy in 0..copies {
                let time = self.now + delay + copy * self.draw(200) + self.draw(30);
                let message = Box::new(message.clone());
                self.at(time, Happening::Arrives { to, from: from_id, message });
            }
            return;
        }
        let last = self.links.entry((from, to, lane)).or_default();
        let time = (self.now + delay).max(*last);
        *last = time;
        self.at(time, Happening::Arrives { to, from: from_id, message: Box::new(message) });
    }

    pub fn ask(&mut self, node: usize, asks: &[Ask]) {
        let now = self.now;
        let driver = self.nodes[node].driver.as_mut().expect("up");
        driver.set_clock(now);
        driver.requests(GROUP, asks.iter().copied());
        self.poll(node);
    }

    pub fn driver(&mut self, node: usize) -> &mut Driver<TestMachine> {
        self.nodes[node].driver.as_mut().expect("up")
    }

    pub fn status(&self, node: usize) -> Option<GroupStatus> {
        self.nodes[node].driver.as_ref()?.status(GROUP)
    }

    pub fn machine(&self, node: usize) -> &TestMachine {
        self.nodes[node].driver.as_ref().expect("up").machine(GROUP).expect("group")
    }

    pub fn asleep(&self) -> Vec<bool> {
        self.statuses().iter().map(|s| s.as_ref().is_some_and(|s| s.asleep)).collect()
    }

    /// The node whose member is a ready leader, of the highest term.
    pub fn leader(&self) -> Option<usize> {
        (0..self.nodes.len())
            .filter_map(|n| Some((self.status(n)?, n)))
            .filter(|(s, _)| s.role == Role::Leader)
            .max_by_key(|(s, _)| s.term)
            .map(|(_, n)| n)
    }

    pub fn wait_leader(&mut self) -> usize {
        self.run_until(20_000, |c| c.leader().is_some());
        self.leader().expect("just seen")
    }

    /// All members that are up have applied the same, as far as the leader.
    pub fn wait_equal(&mut self) {
        self.run_until(30_000, Cluster::is_equal);
    }

    fn is_equal(&self) -> bool {
        let Some(leader) = self.leader() else { return false };
        let Some(want) = self.status(leader) else { return false };
        (0..self.nodes.len()).filter_map(|n| Some((self.status(n)?, n))).all(|(s, n)| {
            let member = want.membership.member(self.nodes[n].uid).is_some();
            let same = || self.machine(n).digest == self.machine(leader).digest;
            !member || (s.applied == want.last_index && same())
        })
    }

    /// Starts whatever is down; a member whose creation was lost is created again.
    pub fn start_all(&mut self) {
        let count = self.nodes.len();
        for n in 0..count {
            if self.nodes[n].driver.is_none() {
                self.start(n);
            }
            if self.status(n).is_none() {
                let members = match self.leader().and_then(|l| self.status(l)) {
                    Some(status) => status.membership.members,
                    None => self.voters(count),
                };
                self.create_with(n, members, false);
            }
        }
    }

    /// A node whose member was removed.
    pub fn outsider(&self) -> Option<usize> {
        let membership = self.status(self.leader()?)?.membership;
        (0..self.nodes.len()).find(|n| membership.member(self.nodes[*n].uid).is_none())
    }

    /// Starts a node that lost what it had: with another member, which begins with the members that it is told.
    pub fn start_anew(&mut self, node: usize, members: Vec<Member>) {
        self.start(node);
        self.driver(node).remove_group(GROUP);
        self.nodes[node].uid.0 += 100;
        self.create_with(node, members, false);
    }

    /// One step of replacing a node's member by a new one: removes it, or where it is removed, adds the next.
    pub fn replace(&mut self, node: usize) {
        let Some(leader) = self.leader().filter(|l| *l != node) else { return };
        let Some(status) = self.status(leader) else { return };
        let members = status.membership.members;
        let uid = self.nodes[node].uid;
        let change = if members.iter().any(|m| m.uid == uid) {
            if members.len() < 3 {
                return;
            }
            MemberChange::Remove(uid)
        } else {
            if self.nodes[node].driver.is_none() {
                return;
            }
            self.driver(node).remove_group(GROUP);
            self.nodes[node].uid = MemberUid(uid.0 + 100);
            self.create_with(node, members, false);
            let role = MemberRole::Promotable { target: 0 };
            let n = &self.nodes[node];
            MemberChange::Add(Member { uid: n.uid, node: n.id, role })
        };
        self.driver(leader).change_members(GROUP, 0, vec![change]);
        self.poll(leader);
    }

    /// As [`wait_equal`](Self::wait_equal), as a result.
    pub fn run_for_equal(&mut self, ms: u64) -> Result<(), String> {
        let until = self.now + ms;
        while !self.is_equal() {
            if self.now >= until {
                return Err(format!("no agreement: {:#?}", self.statuses()));
            }
            self.run(20);
        }
        Ok(())
    }

    /// At one index, one state: on every member, at any time.
    pub fn check_states(&self, known: &mut BTreeMap<u64, u64>) -> Result<(), String> {
        for n in 0..self.nodes.len() {
            let Some(status) = self.status(n) else { continue };
            if let Some(reason) = status.stopped {
                return Err(format!("node {n} stopped: {reason:?}"));
            }
            let digest = self.machine(n).digest;
            if *known.entry(status.applied).or_insert(digest) != digest {
                return Err(format!("node {n} has another state at {}", status.applied));
            }
        }
        Ok(())
    }

    pub fn cut_off(&mut self, node: usize) {
        for other in (0..self.nodes.len()).filter(|o| *o != node) {
            self.cut.extend([(node, other), (other, node)]);
        }
    }

    pub fn heal(&mut self) {
        self.cut.clear();
    }

    /// Every message still waiting can be read on this node.
    pub fn check_bodies(&self, node: usize) {
        let indexes: Vec<u64> = self.machine(node).waiting.iter().map(|(_, i)| *i).collect();
        let read = self.nodes[node].cache.read(GROUP, &indexes).expect("read");
        for (index, batch) in indexes.iter().zip(read) {
            assert!(batch.is_some(), "body at {index} is gone on node {node}");
        }
    }
}
