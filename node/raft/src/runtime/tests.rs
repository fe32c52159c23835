//! Three hosts with real threads in one process.

use std::ops::RangeInclusive;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_proto::peer::RaftBatch;

use super::{Host, HostConfig, HostHooks, PeerSink};
use crate::driver::mem_store::MemStore;
use crate::driver::{GroupSpec, Lane};
use crate::log_store::{LogStore, Member, MemberRole, StoreError};
use crate::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, Role, StateMachine};
use crate::storage::{RocksStore, StoreConfig};

/// Counts what is applied.
struct Counter {
    applied: Arc<AtomicU64>,
    refused: Arc<AtomicU64>,
    total: u64,
}

impl StateMachine for Counter {
    type Request = Bytes;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        MachineVersion(1)..=MachineVersion(1)
    }

    fn prepare(&mut self, request: Bytes, out: &mut BatchBuilder, _: &GroupCx<'_>) {
        if out.push(MachineVersion(1), |b| b.extend_from_slice(&request)).is_err() {
            self.refused.fetch_add(1, Ordering::Relaxed);
        }
    }

    fn proposed(&mut self, _: Result<(u64, u64), Refusal>, _: &GroupCx<'_>) {}

    fn refuse(&mut self, _: Bytes, _: Refusal, _: &GroupCx<'_>) {
        self.refused.fetch_add(1, Ordering::Relaxed);
    }

    fn apply(&mut self, entry: Applied, _: &GroupCx<'_>) {
        self.total += entry.batch.len() as u64;
        self.applied.store(self.total, Ordering::Release);
    }

    fn role_changed(&mut self, _: &GroupCx<'_>) {}

    fn tick(&mut self, _: &mut BatchBuilder, _: &GroupCx<'_>) {}

    fn reclaimable_bytes(&self) -> u64 {
        0
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        MachineSnapshot { state: self.total.to_le_bytes().to_vec().into(), live: Vec::new() }
    }

    fn restore(&mut self, state: &[u8], _: u64, _: MachineVersion, _: &GroupCx<'_>) -> Result<(), RestoreError> {
        let bytes = state.try_into().map_err(|_| RestoreError("length".into()))?;
        self.total = u64::from_le_bytes(bytes);
        self.applied.store(self.total, Ordering::Release);
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}

#[derive(Default)]
struct Wires {
    hosts: OnceLock<Vec<Host<Counter>>>,
    me: u64,
}

impl PeerSink for Wires {
    fn send(&self, to: NodeId, _: Lane, batch: RaftBatch) -> bool {
        let Some(host) = self.hosts.get().and_then(|h| h.get(to.0 as usize - 1)) else { return false };
        host.deliver(NodeId(self.me), batch)
    }
}

struct Three {
    hosts: Vec<Host<Counter>>,
    applied: Vec<Arc<AtomicU64>>,
    stores: Vec<Arc<MemStore>>,
    fatal: Arc<AtomicU64>,
}

const GROUP: GroupId = GroupId(1);

async fn three() -> Three {
    let stores: Vec<_> = (0..3).map(|_| Arc::new(MemStore::new())).collect();
    let mut three = three_on(stores.iter().map(|s| s.clone() as Arc<dyn LogStore>).collect()).await;
    three.stores = stores;
    three
}

async fn three_on(stores: Vec<Arc<dyn LogStore>>) -> Three {
    let mut three =
        Three { hosts: Vec::new(), applied: Vec::new(), stores: Vec::new(), fatal: Arc::new(AtomicU64::new(0)) };
    let mut wires = Vec::new();
    for (n, store) in (1..=3).zip(stores) {
        let wire = Arc::new(Wires { hosts: OnceLock::new(), me: n });
        wires.push(wire.clone());
        let fatal = three.fatal.clone();
        let hooks = HostHooks {
            on_event: Box::new(|_| {}),
            on_fatal: Box::new(move |_: StoreError| {
                fatal.fetch_add(1, Ordering::Relaxed);
            }),
        };
        let mut config = HostConfig::new(NodeId(n), n);
        config.shards = 2;
        let host = Host::start(config, store, wire, hooks, |_, _| counter().0).expect("starts");
        three.hosts.push(host);
    }
    for wire in &wires {
        assert!(wire.hosts.set(three.hosts.clone()).is_ok());
    }
    let members: Vec<Member> =
        (1..=3).map(|n| Member { uid: MemberUid(10 + n), node: NodeId(n), role: MemberRole::Voter }).collect();
    for (n, host) in three.hosts.iter().enumerate() {
        let (machine, applied) = counter();
        three.applied.push(applied);
        let spec = GroupSpec {
            group: GROUP,
            me: members[n].uid,
            members: members.clone(),
            version: MachineVersion(1),
            init: Bytes::new(),
            machine,
            campaign: n == 0,
        };
        host.create_group(spec).await.expect("created");
    }
    three
}

fn counter() -> (Counter, Arc<AtomicU64>) {
    let applied = Arc::new(AtomicU64::new(0));
    (Counter { applied: applied.clone(), refused: Arc::default(), total: 0 }, applied)
}

impl Three {
    async fn leader(&self) -> &Host<Counter> {
        let leads = || self.hosts.iter().find(|h| h.role(GROUP) == Some(Role::Leader));
        self.until("one leads", || leads().is_some()).await;
        leads().expect("just seen")
    }

    async fn until(&self, what: &str, done: impl Fn() -> bool) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while !done() {
            assert!(Instant::now() < deadline, "{what}: not in time");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    fn shutdown(self) {
        for host in &self.hosts {
            host.shutdown();
        }
    }
}

#[tokio::test]
async fn three_hosts_elect_replicate_read_and_hand_leadership_over() {
    let three = three().await;
    let leader = three.leader().await.clone();
    for _ in 0..100 {
        leader.send(GROUP, Bytes::from_static(b"x")).expect("room");
    }
    let status = loop {
        let status = leader.status(GROUP).expect("group");
        if three.applied.iter().any(|a| a.load(Ordering::Acquire) == 100) {
            break status;
        }
        tokio::time::sleep(Duration::from_millis(1)).await;
    };
    for host in &three.hosts {
        host.wait_applied(GROUP, status.commit).await.expect("applies");
        assert!(host.read_index(GROUP).await.expect("confirmed") >= status.commit);
        assert_eq!(host.leader(GROUP), Some(leader.node()));
    }
    let to = three.hosts.iter().map(Host::node).find(|n| *n != leader.node()).expect("another");
    leader.transfer_leadership(GROUP, Some(to), Duration::from_secs(5)).await.expect("moves");
    assert_eq!(three.leader().await.node(), to);
    assert_eq!(leader.send(GroupId(99), Bytes::new()), Err(Bytes::new()));
    three.hosts[0].remove_group(GROUP).await.expect("removed");
    assert!(!three.hosts[0].has_group(GROUP));
    assert!(three.hosts[0].wait_applied(GROUP, 1 << 40).await.is_err());
    three.shutdown();
}

/// Threads and timers too: shards whose groups all sleep are not ticked, and still hear of requests and verdicts.
#[tokio::test]
async fn a_group_without_work_sleeps_until_a_request_or_a_verdict_wakes_it() {
    let three = three().await;
    let leader = three.leader().await.clone();
    let asleep = || three.hosts.iter().all(|h| h.status(GROUP).is_some_and(|s| s.asleep));
    three.until("all sleep", asleep).await;
    leader.send(GROUP, Bytes::from_static(b"x")).expect("room");
    three.until("all have it", || three.applied.iter().all(|a| a.load(Ordering::Acquire) == 1)).await;
    three.until("all sleep again", asleep).await;
    leader.shutdown();
    let others = || three.hosts.iter().filter(|h| h.node() != leader.node());
    others().for_each(|host| host.peer_down(leader.node()));
    three.until("another leads", || others().any(|h| h.role(GROUP) == Some(Role::Leader))).await;
    three.shutdown();
}

#[tokio::test]
async fn a_failed_write_is_reported_once_and_nothing_is_acknowledged_after_it() {
    let three = three().await;
    let leader = three.leader().await.clone();
    for store in &three.stores {
        store.break_writes();
    }
    let before = leader.status(GROUP).expect("group").commit;
    leader.send(GROUP, Bytes::from_static(b"x")).expect("room");
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(leader.status(GROUP).expect("group").commit, before);
    assert_eq!(three.fatal.load(Ordering::Relaxed), 3);
    three.shutdown();
}

#[tokio::test]
async fn a_host_recovers_its_groups_from_the_store() {
    let three = three().await;
    let leader = three.leader().await.clone();
    leader.send_many(GROUP, vec![Bytes::from_static(b"x"); 50]).expect("room");
    leader.send_many(GROUP, vec![Bytes::from_static(b"x"); 50]).expect("room");
    while three.applied.iter().any(|a| a.load(Ordering::Acquire) < 100) {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    for host in &three.hosts {
        host.shutdown();
    }
    let store = three.stores[0].clone();
    assert_eq!(store.groups().expect("readable").len(), 1);
    let hooks = HostHooks { on_event: Box::new(|_| {}), on_fatal: Box::new(|_| {}) };
    let config = HostConfig::new(NodeId(1), 77);
    let wires = Arc::new(Wires::default());
    let host = Host::start(config, store, wires, hooks, |_, _| counter().0).expect("starts");
    assert_eq!(host.groups(), [GROUP]);
    assert!(host.unopened().is_empty());
    let status = host.status(GROUP).expect("group");
    assert_eq!(status.last_index, leader_last(&three));
    host.shutdown();
}

fn leader_last(three: &Three) -> u64 {
    three.stores[0].durable_record(GROUP).expect("record").last_index
}

/// What the host itself costs: `cargo test -p warren-raft --release -- --ignored --nocapture how_fast`.
#[tokio::test]
#[ignore = "prints figures"]
async fn how_fast_is_the_host_without_a_disk() {
    measure(three().await, 3_000_000, 50_000);
}

/// The same with three stores on one disk.
#[tokio::test]
#[ignore = "prints figures"]
async fn how_fast_is_the_host_on_disk() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("directory")).collect();
    let open = |d: &tempfile::TempDir| RocksStore::open(d.path(), StoreConfig::queues()).expect("opens");
    let stores = dirs.iter().map(|d| Arc::new(open(d)) as Arc<dyn LogStore>).collect();
    measure(three_on(stores).await, 1_000_000, 20_000);
}

/// Sends `total` commands with at most `window` of them not applied, then some one at a time.
fn measure(three: Three, total: u64, window: u64) {
    let applied = || three.applied.iter().map(|a| a.load(Ordering::Acquire)).max().unwrap_or(0);
    let leader = loop {
        match three.hosts.iter().find(|h| h.role(GROUP) == Some(Role::Leader)) {
            Some(leader) => break leader.clone(),
            None => std::thread::sleep(Duration::from_millis(5)),
        }
    };
    let body = Bytes::from_static(b"0123456789ab");
    let from = Instant::now();
    for sent in (0..total).step_by(100) {
        let mut requests = vec![body.clone(); 100];
        while let Err(back) = leader.send_many(GROUP, requests) {
            requests = back;
            std::thread::sleep(Duration::from_micros(200));
        }
        while sent + 100 - applied() > window {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    while applied() < total {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = total as f64 / from.elapsed().as_secs_f64();
    let entries = leader.status(GROUP).expect("group").commit;
    println!("{rate:.0} commands/s, {entries} entries, {:?}", leader.stats());

    let mut times = Vec::new();
    for i in 1..=500 {
        let from = Instant::now();
        leader.send(GROUP, body.clone()).expect("room");
        while applied() < total + i {
            std::thread::yield_now();
        }
        times.push(from.elapsed());
    }
    times.sort();
    println!("one at a time: p50 {:?} p99 {:?}", times[250], times[495]);
    three.shutdown();
}

/// Keeps every third command for ever: its log never becomes empty, and its snapshots have live entries.
struct Keeper {
    kept: Vec<u64>,
    seen: u64,
    freed: u64,
    shown: Arc<AtomicU64>,
    live: Arc<parking_lot::Mutex<Vec<u64>>>,
}

impl Keeper {
    fn show(&self) {
        *self.live.lock() = self.kept.clone();
        self.shown.store(self.seen, Ordering::Release);
    }
}

impl StateMachine for Keeper {
    type Request = Bytes;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        MachineVersion(1)..=MachineVersion(1)
    }

    fn prepare(&mut self, request: Bytes, out: &mut BatchBuilder, _: &GroupCx<'_>) {
        let pushed = out.push(MachineVersion(1), |b| b.extend_from_slice(&request));
        assert!(pushed.is_ok());
    }

    fn proposed(&mut self, _: Result<(u64, u64), Refusal>, _: &GroupCx<'_>) {}

    fn refuse(&mut self, _: Bytes, _: Refusal, _: &GroupCx<'_>) {}

    fn apply(&mut self, entry: Applied, _: &GroupCx<'_>) {
        self.seen += entry.batch.len() as u64;
        if entry.index.is_multiple_of(3) {
            self.kept.push(entry.index);
        } else {
            self.freed += 1000;
        }
        self.show();
    }

    fn role_changed(&mut self, _: &GroupCx<'_>) {}

    fn tick(&mut self, _: &mut BatchBuilder, _: &GroupCx<'_>) {}

    fn reclaimable_bytes(&self) -> u64 {
        self.freed
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.freed = 0;
        let mut state = self.seen.to_le_bytes().to_vec();
        state.extend(self.kept.iter().flat_map(|i| i.to_le_bytes()));
        MachineSnapshot { state: state.into(), live: self.kept.iter().map(|i| *i..=*i).collect() }
    }

    fn restore(&mut self, state: &[u8], _: u64, _: MachineVersion, _: &GroupCx<'_>) -> Result<(), RestoreError> {
        let mut numbers = state.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().unwrap_or_default()));
        self.seen = numbers.next().ok_or_else(|| RestoreError("empty".into()))?;
        self.kept = numbers.collect();
        self.show();
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}

#[derive(Default)]
struct Link {
    hosts: OnceLock<Vec<Host<Keeper>>>,
    me: u64,
    /// The node that nobody reaches; 0 = none.
    cut: Arc<AtomicU64>,
}

impl PeerSink for Link {
    fn send(&self, to: NodeId, _: Lane, batch: RaftBatch) -> bool {
        let cut = self.cut.load(Ordering::Acquire);
        if cut == to.0 || cut == self.me {
            return false;
        }
        let host = self.hosts.get().and_then(|h| h.get(to.0 as usize - 1));
        host.is_some_and(|host| host.deliver(NodeId(self.me), batch))
    }
}

/// The whole host on real disks: a follower that was away gets the snapshot and its live entries, and has them after a
/// restart.
#[tokio::test]
async fn on_disk_a_follower_left_behind_gets_every_live_entry() {
    let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().expect("directory")).collect();
    let cut = Arc::new(AtomicU64::new(0));
    let mut shown = Vec::new();
    let mut live = Vec::new();
    let mut hosts = Vec::new();
    let mut links = Vec::new();
    let settings = |n: u64| {
        let mut config = HostConfig::new(NodeId(n), n);
        config.shards = 1;
        // Bodies come from the disk, not from memory.
        config.cache_bytes = 0;
        config.driver.snapshot_min_bytes = 20_000;
        config.driver.snapshot_max_bytes = 30_000;
        config.driver.snapshot_interval_ms = 0;
        config.driver.snapshot_chunk_bytes = 4096;
        config.driver.tail_bytes = 0;
        config
    };
    let hooks = || HostHooks { on_event: Box::new(|_| {}), on_fatal: Box::new(|error| panic!("{error}")) };
    let open = |n: usize| Arc::new(RocksStore::open(dirs[n].path(), StoreConfig::metadata()).expect("opens"));
    let keeper = |shown: &Arc<AtomicU64>, live: &Arc<parking_lot::Mutex<Vec<u64>>>| Keeper {
        kept: Vec::new(),
        seen: 0,
        freed: 0,
        shown: shown.clone(),
        live: live.clone(),
    };
    for n in 0..3 {
        let link = Arc::new(Link { hosts: OnceLock::new(), me: n as u64 + 1, cut: cut.clone() });
        links.push(link.clone());
        shown.push(Arc::new(AtomicU64::new(0)));
        live.push(Arc::default());
        let (s, l): (&Arc<AtomicU64>, &Arc<parking_lot::Mutex<Vec<u64>>>) = (&shown[n], &live[n]);
        let host = Host::start(settings(n as u64 + 1), open(n), link, hooks(), |_, _| keeper(s, l));
        hosts.push(host.expect("starts"));
    }
    for link in &links {
        assert!(link.hosts.set(hosts.clone()).is_ok());
    }
    let members: Vec<Member> =
        (1..=3).map(|n| Member { uid: MemberUid(10 + n), node: NodeId(n), role: MemberRole::Voter }).collect();
    for n in 0..3 {
        let spec = GroupSpec {
            group: GROUP,
            me: members[n].uid,
            members: members.clone(),
            version: MachineVersion(1),
            init: Bytes::new(),
            machine: keeper(&shown[n], &live[n]),
            campaign: n == 0,
        };
        hosts[n].create_group(spec).await.expect("created");
    }
    let push = async |count: u64| {
        for _ in 0..count {
            let leader = loop {
                if let Some(host) = hosts.iter().find(|h| h.role(GROUP) == Some(Role::Leader)) {
                    break host;
                }
                tokio::time::sleep(Duration::from_millis(5)).await;
            };
            let before = leader.status(GROUP).expect("group").applied;
            leader.send(GROUP, Bytes::from(vec![7; 500])).expect("room");
            leader.wait_applied(GROUP, before + 1).await.expect("applied");
        }
    };
    push(60).await;
    let away = hosts.iter().position(|h| h.role(GROUP) == Some(Role::Follower)).expect("a follower");
    cut.store(away as u64 + 1, Ordering::Release);
    push(300).await;
    cut.store(0, Ordering::Release);
    let deadline = Instant::now() + Duration::from_secs(30);
    while shown.iter().any(|s| s.load(Ordering::Acquire) < 360) {
        assert!(Instant::now() < deadline, "{:?}", hosts[away].status(GROUP));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(hosts[away].status(GROUP).expect("group").snapshot_index > 60);
    let check = |host: &Host<Keeper>, n: usize| {
        let indexes = live[n].lock().clone();
        assert!(indexes.len() >= 120);
        let bodies = host.entry_reader().read(GROUP, &indexes).expect("readable");
        assert!(bodies.iter().all(|b| b.as_ref().and_then(|b| b.get(0)).is_some_and(|c| c.len() == 500)));
    };
    for (n, host) in hosts.iter().enumerate() {
        check(host, n);
    }
    for host in &hosts {
        host.shutdown();
    }
    drop((hosts, links));
    for n in 0..3 {
        let host = Host::start(settings(n as u64 + 1), open(n), Arc::new(Link::default()), hooks(), |_, _| {
            keeper(&shown[n], &live[n])
        })
        .expect("starts again");
        assert!(host.unopened().is_empty());
        check(&host, n);
        host.shutdown();
    }
}
