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
    let mut three =
        Three { hosts: Vec::new(), applied: Vec::new(), stores: Vec::new(), fatal: Arc::new(AtomicU64::new(0)) };
    let mut wires = Vec::new();
    for n in 1..=3 {
        let wire = Arc::new(Wires { hosts: OnceLock::new(), me: n });
        wires.push(wire.clone());
        let store = Arc::new(MemStore::new());
        let fatal = three.fatal.clone();
        let hooks = HostHooks {
            on_event: Box::new(|_| {}),
            on_fatal: Box::new(move |_: StoreError| {
                fatal.fetch_add(1, Ordering::Relaxed);
            }),
        };
        let mut config = HostConfig::new(NodeId(n), n);
        config.shards = 2;
        let host = Host::start(config, store.clone(), wire, hooks, |_, _| counter().0).expect("starts");
        three.hosts.push(host);
        three.stores.push(store);
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
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(host) = self.hosts.iter().find(|h| h.role(GROUP) == Some(Role::Leader)) {
                return host;
            }
            assert!(Instant::now() < deadline, "no leader");
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

/// Not a benchmark with a disk: what the host itself costs. `cargo test -p warren-raft --release -- --ignored --nocapture`
#[tokio::test]
#[ignore = "prints figures"]
async fn how_fast_is_the_host_without_a_disk() {
    let three = three().await;
    let leader = three.leader().await.clone();
    let body = Bytes::from_static(b"0123456789ab");
    let total: u64 = 3_000_000;
    let from = Instant::now();
    let mut sent = 0;
    while sent < total {
        let n = 100.min(total - sent);
        let mut requests = vec![body.clone(); n as usize];
        while let Err(back) = leader.send_many(GROUP, requests) {
            requests = back;
            std::thread::sleep(Duration::from_micros(200));
        }
        sent += n;
        while sent - three.applied.iter().map(|a| a.load(Ordering::Acquire)).max().unwrap_or(0) > 50_000 {
            std::thread::sleep(Duration::from_micros(100));
        }
    }
    while three.applied.iter().map(|a| a.load(Ordering::Acquire)).max() < Some(total) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let rate = total as f64 / from.elapsed().as_secs_f64();
    let entries = leader.status(GROUP).expect("group").commit;
    println!("{rate:.0} commands/s, {entries} entries, {:?}", leader.stats());

    let mut times = Vec::new();
    for i in 1..=2000 {
        let from = Instant::now();
        leader.send(GROUP, body.clone()).expect("room");
        while three.applied.iter().map(|a| a.load(Ordering::Acquire)).max() < Some(total + i) {
            std::hint::spin_loop();
        }
        times.push(from.elapsed());
    }
    times.sort();
    println!("one at a time: p50 {:?} p99 {:?}", times[1000], times[1980]);
    three.shutdown();
}
