//! Disks that say a write is synced and forget it when power is lost.

use super::*;
use crate::driver::config::Sabotage;
use crate::driver::mem_store::Memory;

/// A follower crashes and comes back with what its disk had then.
fn forgets(c: &mut Cluster, node: usize, then: &Memory) {
    c.crash(node);
    c.nodes[node].store.forget(then);
    c.start(node);
}

/// A cluster whose first follower will have forgotten ten entries, which the others keep; answers the leader, that
/// follower, and what its disk had before.
fn about_to_forget(seed: u64, config: fn(&mut DriverConfig)) -> (Cluster, usize, usize, Memory) {
    let mut c = Cluster::new(3, 3, seed, config);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..5));
    c.wait_equal();
    let follower = (leader + 1) % 3;
    let then = c.nodes[follower].store.remember();
    for n in 5..15 {
        c.ask(leader, &pushes(n..n + 1));
        c.run(100);
    }
    c.wait_equal();
    (c, leader, follower, then)
}

fn amnesia(c: &Cluster, node: usize) -> Option<u64> {
    c.nodes[node].events.iter().find_map(|e| match e {
        Event::Amnesia { commit, .. } => Some(*commit),
        _ => None,
    })
}

fn awake(config: &mut DriverConfig) {
    config.hibernate_ticks = 0;
}

#[test]
fn a_commit_beyond_the_log_is_amnesia_and_no_panic() {
    let mut c = Cluster::new(3, 3, 26, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..10));
    c.wait_equal();
    let follower = (leader + 1) % 3;
    let heartbeat = RaftMessage {
        group: GROUP.0,
        from_uid: c.nodes[leader].uid.0,
        to_uid: c.nodes[follower].uid.0,
        kind: RaftMessageKind::RaftHeartbeat.into(),
        term: c.status(leader).unwrap().term,
        commit: 1_000,
        ..RaftMessage::default()
    };
    let from = c.nodes[leader].id;
    c.driver(follower).step(from, heartbeat);
    c.poll(follower);
    let status = c.status(follower).unwrap();
    assert_eq!((status.stopped, status.amnesia), (None, Some(1_000)));
    assert_eq!(amnesia(&c, follower), Some(1_000));
}

#[test]
fn a_member_that_lost_entries_gets_them_again_from_the_leader_that_counted_on_it() {
    let (mut c, leader, follower, then) = about_to_forget(201, awake);
    let (term, last) = c.status(leader).map(|s| (s.term, s.last_index)).unwrap();
    forgets(&mut c, follower, &then);
    assert!(c.status(follower).unwrap().last_index < last);
    c.wait_equal();
    assert_eq!(amnesia(&c, follower), Some(last));
    let status = c.status(follower).unwrap();
    assert_eq!((status.amnesia, status.term, c.leader()), (None, term, Some(leader)), "under the same leader");
}

#[test]
fn a_member_that_lost_entries_below_the_leaders_log_gets_the_snapshot() {
    let (mut c, leader, follower, then) = about_to_forget(202, |config| {
        awake(config);
        config.tail_bytes = 1;
    });
    c.driver(leader).force_snapshot(GROUP);
    c.poll(leader);
    c.run_until(5_000, |c| c.status(leader).unwrap().snapshot_index > 10);
    c.run(20_000);
    let snapshot = c.status(leader).unwrap().snapshot_index;
    forgets(&mut c, follower, &then);
    c.wait_equal();
    assert_eq!(c.status(follower).unwrap().snapshot_index, snapshot);
    assert_eq!(c.status(follower).unwrap().amnesia, None);
}

/// The leader's heartbeat gets through, its entries do not.
#[test]
fn a_member_in_amnesia_neither_votes_nor_stands_also_after_a_restart() {
    let (mut c, leader, follower, then) = about_to_forget(203, awake);
    let third = 3 - leader - follower;
    let last = c.status(leader).unwrap().last_index;
    forgets(&mut c, follower, &then);
    let (from, term) = (c.nodes[leader].id, c.status(leader).unwrap().term);
    c.cut_off(follower);
    let heartbeat = RaftMessage {
        group: GROUP.0,
        from_uid: c.nodes[leader].uid.0,
        to_uid: c.nodes[follower].uid.0,
        kind: RaftMessageKind::RaftHeartbeat.into(),
        term,
        commit: last,
        ..RaftMessage::default()
    };
    c.driver(follower).step(from, heartbeat);
    c.poll(follower);
    c.run(500);
    assert_eq!(c.status(follower).unwrap().amnesia, Some(last));
    c.crash(follower);
    c.crash(leader);
    c.start(follower);
    assert_eq!(c.status(follower).unwrap().amnesia, Some(last), "it is written");
    c.heal();
    c.record_sent = true;
    c.run(10_000);
    let id = c.nodes[follower].id;
    let votes = |m: &RaftMessage| {
        let stands = matches!(m.kind(), RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote);
        let grants = matches!(m.kind(), RaftMessageKind::RaftVoteResponse | RaftMessageKind::RaftPreVoteResponse);
        stands || (grants && !m.reject)
    };
    assert!(!c.sent.iter().any(|(from, _, _, m)| *from == id && votes(m)));
    assert!(c.status(third).is_some() && c.leader().is_none(), "the third alone is no majority");
    c.start(leader);
    c.wait_equal();
    assert_eq!(c.status(follower).unwrap().amnesia, None);
}

/// The lost write had replaced entries of a deposed leader: the log is as long as the leader says, but another one.
#[test]
fn entries_that_a_forgotten_write_had_replaced_are_not_taken_for_committed() {
    let mut c = Cluster::new(3, 3, 204, awake);
    let old = c.wait_leader();
    c.run(500);
    let (second, third) = ((old + 1) % 3, (old + 2) % 3);
    c.cut_off(old);
    for n in 0..4 {
        c.ask(old, &pushes(100 + n..101 + n));
        c.run(50);
    }
    let then = c.nodes[old].store.remember();
    c.run_until(20_000, |c| c.leader().is_some_and(|l| l != old));
    let leader = c.leader().unwrap();
    c.ask(leader, &pushes(0..1));
    c.run(500);
    assert!(c.status(leader).unwrap().commit < c.status(old).unwrap().last_index);
    c.heal();
    c.wait_equal();
    forgets(&mut c, old, &then);
    let garbage = c.status(old).unwrap();
    assert!(garbage.last_index > c.status(leader).unwrap().commit && garbage.amnesia.is_none());
    c.wait_equal();
    assert_eq!(c.leader(), Some(leader));
    assert_eq!(c.machine(old).digest, c.machine(if leader == second { third } else { second }).digest);
}

#[test]
fn an_honest_member_that_restarts_is_compared_once_and_learns_what_is_committed() {
    let (mut c, leader, follower, _) = about_to_forget(205, awake);
    c.crash(follower);
    c.start(follower);
    c.record_sent = true;
    c.wait_equal();
    c.run(2_000);
    let id = c.nodes[follower].id;
    let doubts = |m: &RaftMessage| m.kind() == RaftMessageKind::RaftHeartbeatResponse && m.reject;
    let doubts = c.sent.iter().filter(|(from, _, _, m)| *from == id && doubts(m)).count();
    assert!((1..=3).contains(&doubts), "{doubts}");
    assert_eq!((amnesia(&c, follower), c.leader()), (None, Some(leader)));
}

#[test]
fn a_blindly_trusting_member_panics_and_a_deaf_leader_leaves_the_gap() {
    let (mut c, _, follower, then) = about_to_forget(206, |config| {
        awake(config);
        config.sabotage = Sabotage::BlindTrust;
    });
    forgets(&mut c, follower, &then);
    c.run(5_000);
    assert!(c.status(follower).unwrap().stopped.is_some());
    let (mut c, _, follower, then) = about_to_forget(207, |config| {
        awake(config);
        config.sabotage = Sabotage::DeafToDoubt;
    });
    forgets(&mut c, follower, &then);
    assert!(c.run_for_equal(20_000).is_err());
}
