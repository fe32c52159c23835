//! Groups that sleep, and everything that must wake them.

use warren_proto::ids::MemberUid;
use warren_proto::peer::RaftMessageKind;

use super::cluster::{Cluster, GROUP};
use super::machine::Ask;
use super::{plain, pushes};
use crate::driver::{DriverConfig, MemberChange};
use crate::log_store::{Member, MemberRole};

/// A cluster of three whose group sleeps, and its leader.
fn sleeping(seed: u64) -> (Cluster, usize) {
    let mut c = Cluster::new(3, 3, seed, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..10));
    c.wait_equal();
    c.run_until(10_000, |c| c.asleep() == [true; 3]);
    (c, leader)
}

#[test]
fn an_idle_group_sleeps_and_then_sends_nothing() {
    let (mut c, leader) = sleeping(1);
    c.record_sent = true;
    let term = c.status(leader).unwrap().term;
    c.run(120_000);
    assert!(c.sent.is_empty(), "{:?}", c.sent);
    assert_eq!(c.asleep(), [true; 3]);
    assert!((0..3).all(|n| c.driver(n).is_quiet()));
    assert_eq!((c.leader(), c.status(leader).unwrap().term), (Some(leader), term));
}

#[test]
fn a_request_wakes_the_group_and_is_committed_at_once() {
    for seed in 0..10 {
        let (mut c, leader) = sleeping(10 + seed);
        c.ask(leader, &pushes(10..11));
        c.run_until(200, |c| (0..3).all(|n| c.machine(n).pushed == 11));
        c.run_until(10_000, |c| c.asleep() == [true; 3]);
        assert_eq!(c.leader(), Some(leader));
    }
}

#[test]
fn a_busy_group_stays_awake() {
    let mut c = Cluster::new(3, 3, 2, plain);
    let leader = c.wait_leader();
    for i in 0..40 {
        c.ask(leader, &pushes(i..i + 1));
        c.run(500);
        assert!(!c.asleep()[leader]);
    }
}

#[test]
fn a_leader_that_dies_while_its_group_sleeps_is_replaced_when_its_node_is_seen_down() {
    for seed in 0..20 {
        let (mut c, old) = sleeping(100 + seed);
        c.crash(old);
        c.run_until(3_000, |c| c.leader().is_some_and(|l| l != old));
        let new = c.leader().unwrap();
        c.ask(new, &pushes(10..20));
        c.run(200);
        c.start(old);
        c.wait_equal();
        c.run_until(10_000, |c| c.asleep() == [true; 3]);
    }
}

#[test]
fn a_group_sleeps_without_a_member_whose_node_is_down_and_brings_it_up_to_date_when_it_is_back() {
    let (mut c, leader) = sleeping(3);
    let away = (leader + 1) % 3;
    c.crash(away);
    c.run(2_000);
    c.ask(leader, &pushes(10..50));
    c.run_until(10_000, |c| c.asleep()[leader]);
    c.record_sent = true;
    c.run(60_000);
    assert!(c.sent.is_empty(), "{:?}", c.sent);
    c.start(away);
    c.wait_equal();
    c.run_until(10_000, |c| c.asleep() == [true; 3]);
}

#[test]
fn without_a_majority_members_sleep_and_elect_as_soon_as_there_is_one() {
    let (mut c, leader) = sleeping(4);
    let (a, b) = ((leader + 1) % 3, (leader + 2) % 3);
    c.crash(leader);
    c.crash(a);
    c.run_until(20_000, |c| c.asleep()[b] && c.status(b).unwrap().leader.is_none());
    c.record_sent = true;
    c.run(60_000);
    assert!(c.sent.is_empty(), "{:?}", c.sent);
    c.start(a);
    c.run_until(2_500, |c| c.leader().is_some());
    c.start(leader);
    c.wait_equal();
}

#[test]
fn a_partition_of_sleepers_ends_with_one_leader_and_the_old_one_knows() {
    for seed in 0..20 {
        let (mut c, old) = sleeping(200 + seed);
        c.cut_off(old);
        c.run_until(3_000, |c| c.leader().is_some_and(|l| l != old));
        c.run_until(5_000, |c| c.status(old).unwrap().leader != Some(c.nodes[old].id));
        let new = c.leader().unwrap();
        c.ask(new, &pushes(10..12));
        c.run(5_000);
        c.heal();
        c.wait_equal();
        c.run_until(10_000, |c| c.asleep() == [true; 3]);
    }
}

#[test]
fn a_read_wakes_the_group_from_any_member() {
    let (mut c, leader) = sleeping(5);
    for (ctx, node) in [(1, leader), (2, (leader + 1) % 3)] {
        c.run_until(10_000, |c| c.asleep() == [true; 3]);
        c.driver(node).read_index(GROUP, ctx);
        c.poll(node);
        let answered = |c: &Cluster| {
            c.nodes[node]
                .events
                .iter()
                .any(|e| matches!(e, crate::driver::Event::Read { ctx: of, index: Some(_), .. } if *of == ctx))
        };
        c.run_until(400, answered);
    }
}

#[test]
fn a_member_is_added_to_a_sleeping_group_and_it_sleeps_again_when_that_votes() {
    let mut c = Cluster::new(4, 3, 6, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..10));
    c.run_until(10_000, |c| c.asleep()[..3] == [true; 3]);
    c.create(3, 3, false);
    let member = Member { uid: MemberUid(4), node: c.nodes[3].id, role: MemberRole::Promotable { target: 0 } };
    c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Add(member)]);
    c.poll(leader);
    let votes = |c: &Cluster| c.status(3).is_some_and(|s| s.membership.voters().any(|m| m.uid == MemberUid(4)));
    c.run_until(5_000, votes);
    c.run_until(10_000, |c| c.asleep() == [true; 4]);
}

#[test]
fn leadership_moves_in_a_sleeping_group() {
    let (mut c, old) = sleeping(7);
    let to = c.nodes[(old + 1) % 3].id;
    c.driver(old).transfer_leader(GROUP, Some(to)).expect("a voter");
    c.poll(old);
    c.run_until(2_000, |c| c.leader() == Some((old + 1) % 3));
    c.run_until(10_000, |c| c.asleep() == [true; 3]);
}

#[test]
fn a_sleeping_leader_whose_disk_stands_still_gives_up_and_the_others_elect() {
    let mut c = Cluster::new(3, 3, 8, |config: &mut DriverConfig| config.disk_stall_ms = 2_000);
    let old = c.wait_leader();
    c.ask(old, &pushes(0..10));
    c.run_until(10_000, |c| c.asleep() == [true; 3]);
    c.stuck.push(old);
    c.ask(old, &[Ask::Pop]);
    c.run_until(8_000, |c| c.leader().is_some_and(|l| l != old));
}

#[test]
fn what_a_sleeper_is_told_by_another_than_its_leader_reaches_the_leader() {
    let (mut c, leader) = sleeping(9);
    let (a, b) = ((leader + 1) % 3, (leader + 2) % 3);
    // `a` restarts so fast that nobody's detector sees it: it knows of no leader, and asks for votes.
    c.crash(a);
    c.start(a);
    c.record_sent = true;
    c.run_until(5_000, |c| c.status(a).unwrap().leader.is_some());
    assert_eq!(c.leader(), Some(leader), "nobody was deposed");
    assert!(c.sent.iter().any(|(from, _, _, m)| { *from == c.nodes[b].id && m.kind() == RaftMessageKind::RaftWake }));
    c.run_until(10_000, |c| c.asleep() == [true; 3]);
}

#[test]
fn few_groups_stand_for_election_at_once() {
    let mut c = Cluster::new(3, 3, 11, |config: &mut DriverConfig| config.max_elections = 0);
    c.run(300);
    let old = c.wait_leader();
    c.crash(old);
    c.run(10_000);
    assert_eq!(c.leader(), None, "no election is allowed");
}

/// A group that takes the place of one that was just removed is ticked once a tick, not twice.
#[test]
fn a_group_made_in_another_ones_place_keeps_its_pace() {
    let mut c = Cluster::new(1, 1, 12, plain);
    c.wait_leader();
    c.driver(0).remove_group(GROUP);
    c.create(0, 1, false);
    let created = c.now;
    c.run_until(10_000, |c| c.leader().is_some());
    // Ten ticks at least; the first comes at once or up to 100 ms later.
    let ticks = (c.now - created) / 100 + 1;
    assert!(ticks >= 10, "it stood after {ticks} ticks, before an election timeout");
}

#[test]
fn a_leader_that_is_closed_while_its_group_sleeps_is_replaced_and_not_created_again() {
    for seed in 0..20 {
        let (mut c, old) = sleeping(300 + seed);
        assert!(c.driver(old).close_group(GROUP));
        assert!(!c.driver(old).close_group(GROUP));
        c.poll(old);
        c.run_until(10_000, |c| c.leader().is_some_and(|l| l != old));
        let new = c.leader().unwrap();
        c.ask(new, &pushes(10..20));
        c.run_until(1_000, |c| c.machine(new).pushed == 20);
        assert!(c.driver(old).remove_group(GROUP));
        assert!(!c.driver(old).remove_group(GROUP));
    }
}
