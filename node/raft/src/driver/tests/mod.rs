//! The driver's behaviour on a few simulated nodes.

mod abstention;
mod cluster;
mod forgetful_disks;
mod hibernation;
mod machine;

use std::collections::BTreeMap;

use warren_proto::ids::{MachineVersion, MemberUid, NodeId};
use warren_proto::peer::{RaftMessage, RaftMessageKind, snapshot_step};

use super::output::{ChangeError, Event, MemberChange, StopReason};
use super::{DriverConfig, Lane, Sabotage, make_alone};
use crate::log_store::{LogStore, Member, MemberRole};
use crate::machine::{Refusal, Role};
use cluster::{Cluster, GROUP};
use machine::Ask;

fn plain(_: &mut DriverConfig) {}

fn pushes(range: std::ops::Range<u64>) -> Vec<Ask> {
    range.map(Ask::Push).collect()
}

#[test]
fn the_member_that_campaigns_leads_and_the_others_follow() {
    let mut c = Cluster::new(3, 3, 1, plain);
    c.run(500);
    assert_eq!(c.leader(), Some(0));
    for n in 1..3 {
        let status = c.status(n).unwrap();
        assert_eq!((status.role, status.leader), (Role::Follower, Some(c.nodes[0].id)));
    }
    assert_eq!(c.machine(0).roles, [Role::Elected, Role::Leader]);
}

#[test]
fn requests_that_wait_together_share_an_entry_and_reach_every_member() {
    let mut c = Cluster::new(3, 3, 2, plain);
    let leader = c.wait_leader();
    let before = c.status(leader).unwrap().last_index;
    c.ask(leader, &pushes(0..1000));
    c.wait_equal();
    assert_eq!(c.status(leader).unwrap().last_index, before + 1);
    for n in 0..3 {
        assert_eq!(c.machine(n).waiting.len(), 1000);
    }
    assert_eq!(c.machine(leader).proposed, [Ok((before + 1, c.status(leader).unwrap().term))]);
}

#[test]
fn a_follower_refuses_and_names_the_leader() {
    let mut c = Cluster::new(3, 3, 3, plain);
    let leader = c.wait_leader();
    let follower = (leader + 1) % 3;
    c.run(500);
    c.ask(follower, &[Ask::Pop]);
    let why = Refusal::NotLeader(Some(c.nodes[leader].id));
    assert_eq!(c.machine(follower).refused, [(Ask::Pop, why)]);
}

#[test]
fn requests_beyond_the_limit_are_refused_as_busy() {
    let mut c = Cluster::new(3, 3, 4, |config| {
        config.max_queued_requests = 10;
        config.max_uncommitted_entries = 1;
    });
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..1));
    c.ask(leader, &pushes(1..16));
    assert_eq!(c.machine(leader).refused.len(), 5);
    assert!(c.machine(leader).refused.iter().all(|(_, why)| *why == Refusal::Busy));
    c.wait_equal();
    assert_eq!(c.machine(leader).pushed, 11);
}

#[test]
fn a_dead_leader_is_replaced_and_its_committed_entries_stay() {
    let mut c = Cluster::new(3, 3, 5, plain);
    let old = c.wait_leader();
    c.ask(old, &pushes(0..40));
    c.wait_equal();
    c.ask(old, &pushes(40..50));
    c.wait_equal();
    c.crash(old);
    c.run_until(5_000, |c| c.leader().is_some_and(|l| l != old));
    let new = c.leader().unwrap();
    c.ask(new, &pushes(50..60));
    c.run(500);
    c.start(old);
    c.wait_equal();
    assert_eq!(c.machine(old).waiting.len(), 60);
    assert!(c.machine(old).replayed > 0, "what was committed before is replayed without effects");
}

#[test]
fn the_verdict_that_the_leaders_node_is_down_brings_a_new_one_within_half_a_second() {
    for seed in 0..20 {
        let mut c = Cluster::new(3, 3, 600 + seed, plain);
        let old = c.wait_leader();
        c.run(1_000);
        c.crash(old);
        let node = c.nodes[old].id;
        for n in (0..3).filter(|n| *n != old) {
            c.driver(n).peer_down(node);
        }
        c.run_until(700, |c| c.leader().is_some());
    }
}

#[test]
fn entries_of_a_deposed_leader_that_were_not_committed_are_replaced() {
    let mut c = Cluster::new(3, 3, 7, plain);
    let old = c.wait_leader();
    c.cut_off(old);
    c.ask(old, &pushes(100..110));
    c.run_until(5_000, |c| c.leader().is_some_and(|l| l != old));
    let new = c.leader().unwrap();
    c.ask(new, &pushes(0..5));
    c.run(200);
    c.heal();
    c.wait_equal();
    let values: Vec<u64> = c.machine(old).waiting.iter().map(|(v, _)| *v).collect();
    assert_eq!(values, [0, 1, 2, 3, 4]);
}

#[test]
fn a_whole_cluster_restarts_with_everything_that_was_committed() {
    let mut c = Cluster::new(3, 3, 8, plain);
    let leader = c.wait_leader();
    for i in 0..30 {
        c.ask(leader, &pushes(i * 10..i * 10 + 10));
        c.run(20);
    }
    c.wait_equal();
    for n in 0..3 {
        c.crash(n);
    }
    for n in 0..3 {
        c.start(n);
    }
    let leader = c.wait_leader();
    c.wait_equal();
    assert_eq!(c.machine(leader).waiting.len(), 300);
}

fn small_snapshots(config: &mut DriverConfig) {
    config.snapshot_min_bytes = 500;
    config.snapshot_max_bytes = 1000;
    config.snapshot_chunk_bytes = 64;
    config.tail_bytes = 0;
}

fn churn(c: &mut Cluster, rounds: u64, from: u64) {
    for i in 0..rounds {
        let leader = c.wait_leader();
        c.ask(leader, &[Ask::Push(from + 2 * i), Ask::Push(from + 2 * i + 1), Ask::Pop]);
        c.run(15);
    }
}

#[test]
fn a_snapshot_keeps_live_entries_readable_and_frees_the_rest() {
    let mut c = Cluster::new(3, 3, 9, small_snapshots);
    c.wait_leader();
    churn(&mut c, 60, 0);
    c.wait_equal();
    for n in 0..3 {
        let status = c.status(n).unwrap();
        assert!(status.snapshot_index > 0);
        assert_eq!(c.machine(n).waiting.len(), 60);
        c.check_bodies(n);
        let stored = c.nodes[n].store.durable_entries(GROUP).len();
        assert!(stored <= 60, "{stored} entries kept");
    }
    for n in 0..3 {
        c.crash(n);
        c.start(n);
    }
    c.wait_leader();
    c.wait_equal();
    for n in 0..3 {
        assert_eq!(c.machine(n).waiting.len(), 60);
        assert!(c.machine(n).restored > 0);
        c.check_bodies(n);
    }
}

#[test]
fn a_follower_behind_the_log_is_given_the_snapshot_and_its_live_entries() {
    for (seed, loss) in [(10, 0), (11, 0), (12, 5)] {
        let mut c = Cluster::new(3, 3, seed, small_snapshots);
        let leader = c.wait_leader();
        let behind = (leader + 1) % 3;
        churn(&mut c, 10, 0);
        c.cut_off(behind);
        churn(&mut c, 60, 1000);
        c.heal();
        c.record_sent = true;
        c.loss = loss;
        c.run_until(60_000, |c| c.machine(behind).restored > 0);
        c.loss = 0;
        churn(&mut c, 3, 5000);
        c.wait_equal();
        assert_eq!(c.machine(behind).waiting.len(), 73);
        c.check_bodies(behind);
        let state_in_raft = c.sent.iter().any(|(_, _, lane, m)| m.snapshot.is_some() && *lane == Lane::Append);
        assert!(!state_in_raft);
        // It can lead, and what it serves is readable after a restart too.
        c.crash(behind);
        c.start(behind);
        c.wait_equal();
        c.check_bodies(behind);
    }
}

#[test]
fn a_snapshot_takes_no_more_of_the_network_than_it_may() {
    let mut c = Cluster::new(3, 3, 10, |config| {
        small_snapshots(config);
        config.snapshot_tick_bytes = 100;
        config.snapshot_stall_ticks = 10;
    });
    let leader = c.wait_leader();
    let behind = (leader + 1) % 3;
    churn(&mut c, 10, 0);
    c.cut_off(behind);
    churn(&mut c, 60, 1000);
    c.heal();
    c.record_sent = true;
    c.run_until(60_000, |c| c.sent.iter().any(|(.., m)| is_offer(m)));
    let began = c.now;
    c.run_until(60_000, |c| c.machine(behind).restored > 0);
    let ticks = (c.now - began) / 100;
    let mut transfers = std::collections::BTreeSet::new();
    let mut bytes = 0;
    for snapshot in c.sent.iter().filter_map(|(.., m)| m.snapshot.as_ref()) {
        transfers.insert(snapshot.transfer);
        bytes += match &snapshot.step {
            Some(snapshot_step::Step::State(state)) => state.data.len() as u64,
            Some(snapshot_step::Step::Entries(entries)) => entries.entries.iter().map(|e| e.data.len() as u64).sum(),
            _ => 0,
        };
    }
    // A message may go beyond what is left.
    assert!(bytes > 2_000 && ticks >= bytes / 300, "{bytes} bytes in {ticks} ticks");
    assert_eq!(transfers.len(), 1, "waiting for its turn is no failure");
    c.wait_equal();
    c.check_bodies(behind);
}

#[test]
fn transfers_beyond_the_limit_wait_for_those_under_way() {
    let mut c = Cluster::new(3, 3, 10, |config| {
        small_snapshots(config);
        config.snapshot_tick_bytes = 300;
        config.max_transfers = 1;
    });
    let leader = c.wait_leader();
    churn(&mut c, 10, 0);
    let behind: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    // Both followers lose what they had, one after the other, so that the group goes on.
    for n in &behind {
        c.cut_off(*n);
        churn(&mut c, 40, 1000);
        c.heal();
    }
    c.run_until(120_000, |c| behind.iter().all(|n| c.machine(*n).waiting.len() == 90));
    c.wait_equal();
    for n in behind {
        c.check_bodies(n);
    }
}

#[test]
fn an_install_that_is_interrupted_leaves_the_old_state_and_is_repeated() {
    let mut c = Cluster::new(3, 3, 13, small_snapshots);
    let leader = c.wait_leader();
    let behind = (leader + 1) % 3;
    churn(&mut c, 10, 0);
    c.cut_off(behind);
    let before = c.status(behind).unwrap().last_index;
    churn(&mut c, 60, 1000);
    c.heal();
    for _ in 0..6 {
        let pause = 5 + c.draw(60);
        c.run(pause);
        c.crash(behind);
        c.start(behind);
        assert!(c.status(behind).unwrap().last_index >= before);
    }
    c.run_until(60_000, |c| c.machine(behind).waiting.len() == 70);
    c.wait_equal();
    c.check_bodies(behind);
}

#[test]
fn a_transfer_whose_messages_come_twice_is_one_transfer() {
    let mut c = Cluster::new(3, 3, 113, small_snapshots);
    let leader = c.wait_leader();
    let behind = (leader + 1) % 3;
    churn(&mut c, 10, 0);
    c.cut_off(behind);
    churn(&mut c, 60, 1000);
    c.heal();
    c.record_sent = true;
    let mut again = 0;
    c.run_until(60_000, |c| c.machine(behind).restored > 0 || !c.sent.is_empty());
    let until = c.now + 60_000;
    while c.machine(behind).restored == 0 {
        assert!(c.now < until, "{:#?}", c.statuses());
        c.run(1);
        let to = c.nodes[behind].id;
        let copies: Vec<_> = c.sent[again..].iter().filter(|s| s.1 == to && s.3.snapshot.is_some()).cloned().collect();
        again = c.sent.len();
        for (from, _, _, message) in copies {
            c.driver(behind).step(from, message.clone());
            c.driver(behind).step(from, message);
            c.poll(behind);
        }
    }
    let transfers: std::collections::BTreeSet<u64> =
        c.sent.iter().filter_map(|(_, _, _, m)| m.snapshot.as_ref()).map(|s| s.transfer).collect();
    assert_eq!(transfers.len(), 1);
    c.wait_equal();
    c.check_bodies(behind);
}

#[test]
fn an_offer_that_comes_again_does_not_begin_the_transfer_anew() {
    let mut c = Cluster::new(3, 3, 113, small_snapshots);
    let leader = c.wait_leader();
    let behind = (leader + 1) % 3;
    churn(&mut c, 10, 0);
    c.cut_off(behind);
    churn(&mut c, 60, 1000);
    c.heal();
    c.record_sent = true;
    while c.machine(behind).restored == 0 {
        c.run(1);
        let offers: Vec<_> = c.sent.iter().filter(|(.., m)| is_offer(m)).map(|(f, .., m)| (*f, m.clone())).collect();
        assert!(offers.len() < 2, "one transfer is enough");
        for (from, offer) in offers {
            c.driver(behind).step(from, offer);
            c.poll(behind);
        }
    }
    c.wait_equal();
    c.check_bodies(behind);
}

fn is_offer(message: &RaftMessage) -> bool {
    message.snapshot.as_ref().is_some_and(|s| matches!(s.step, Some(snapshot_step::Step::Offer(_))))
}

#[test]
fn a_new_member_catches_up_and_then_votes() {
    for seed in [14, 15] {
        let mut c = Cluster::new(4, 3, seed, small_snapshots);
        c.wait_leader();
        churn(&mut c, if seed == 14 { 2 } else { 60 }, 0);
        c.wait_equal();
        let leader = c.wait_leader();
        let new = Member { uid: c.nodes[3].uid, node: c.nodes[3].id, role: MemberRole::Promotable { target: 0 } };
        c.create(3, 3, false);
        c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Add(new)]);
        c.poll(leader);
        c.run_until(20_000, |c| {
            (0..4).all(|n| {
                let membership = c.status(n).unwrap().membership;
                membership.member(MemberUid(4)).is_some_and(|m| m.role == MemberRole::Voter)
            })
        });
        c.wait_equal();
        c.check_bodies(3);
        assert!(c.nodes[leader].events.iter().any(|e| matches!(e, Event::Changed { token: 1, outcome: Ok(()), .. })));
        let record = c.nodes[3].store.durable_record(GROUP).unwrap();
        assert_eq!(record.membership.members.len(), 4);
        // It may lead.
        let node = c.nodes[3].id;
        let leader = c.wait_leader();
        c.driver(leader).transfer_leader(GROUP, Some(node)).unwrap();
        c.poll(leader);
        c.run_until(5_000, |c| c.leader() == Some(3));
    }
}

#[test]
fn a_member_without_a_vote_does_not_stand_when_it_is_asked_to() {
    let mut c = Cluster::new(4, 3, 116, plain);
    let leader = c.wait_leader();
    c.create(3, 3, false);
    let new = Member { uid: c.nodes[3].uid, node: c.nodes[3].id, role: MemberRole::NonVoter };
    c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Add(new)]);
    c.poll(leader);
    c.wait_equal();
    let term = c.status(leader).unwrap().term;
    c.record_sent = true;
    c.driver(3).campaign(GROUP);
    c.poll(3);
    c.run(2_000);
    let id = c.nodes[3].id;
    let stood = |m: &RaftMessage| matches!(m.kind(), RaftMessageKind::RaftVote | RaftMessageKind::RaftPreVote);
    assert!(!c.sent.iter().any(|(from, _, _, m)| *from == id && stood(m)));
    assert_eq!(c.status(leader).unwrap().term, term);
}

#[test]
fn a_dead_voter_loses_its_vote_and_gets_it_back_when_it_has_caught_up() {
    let mut c = Cluster::new(4, 4, 117, plain);
    let leader = c.wait_leader();
    c.run(500);
    let down = (leader + 1) % 4;
    c.crash(down);
    let (uid, node) = (c.nodes[down].uid, c.nodes[down].id);
    let change = |c: &mut Cluster, role: MemberRole| {
        let leader = c.wait_leader();
        c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Add(Member { uid, node, role })]);
        c.poll(leader);
    };
    let role = |c: &Cluster, n: usize| c.status(n).unwrap().membership.member(uid).map(|m| m.role);
    change(&mut c, MemberRole::NonVoter);
    c.run_until(5_000, |c| role(c, leader) == Some(MemberRole::NonVoter));
    // Three voters are left: two of them are a majority.
    let second = (leader + 2) % 4;
    c.crash(second);
    c.ask(leader, &pushes(0..10));
    c.run_until(5_000, |c| c.machine(leader).waiting.len() == 10);
    c.start(second);
    c.start(down);
    c.wait_equal();
    assert_eq!(role(&c, down), Some(MemberRole::NonVoter));
    change(&mut c, MemberRole::Promotable { target: 0 });
    c.run_until(10_000, |c| (0..4).all(|n| role(c, n) == Some(MemberRole::Voter)));
    c.wait_equal();
}

#[test]
fn a_member_is_replaced_in_one_joint_change() {
    let mut c = Cluster::new(4, 3, 16, plain);
    let leader = c.wait_leader();
    let out = (leader + 1) % 3;
    c.create(3, 3, false);
    let new = Member { uid: c.nodes[3].uid, node: c.nodes[3].id, role: MemberRole::Voter };
    let gone = c.nodes[out].uid;
    let change = vec![MemberChange::Add(new), MemberChange::Remove(gone)];
    c.driver(leader).change_members(GROUP, 9, change);
    c.poll(leader);
    c.run_until(10_000, |c| {
        let membership = c.status(leader).unwrap().membership;
        membership.member(gone).is_none() && !membership.is_joint() && membership.members.len() == 3
    });
    c.ask(leader, &pushes(0..10));
    c.wait_equal();
    assert_eq!(c.machine(3).pushed, 10);
    assert!(c.nodes[leader].events.iter().any(|e| matches!(e, Event::Changed { token: 9, outcome: Ok(()), .. })));
}

#[test]
fn a_member_that_missed_changes_votes_for_a_candidate_that_it_does_not_know() {
    let mut c = Cluster::new(4, 3, 117, plain);
    let leader = c.wait_leader();
    c.run(500);
    let (behind, out) = ((leader + 1) % 3, (leader + 2) % 3);
    c.cut_off(behind);
    c.create(3, 3, false);
    let new = Member { uid: c.nodes[3].uid, node: c.nodes[3].id, role: MemberRole::Voter };
    let changes = [
        vec![MemberChange::Add(new), MemberChange::Remove(c.nodes[out].uid)],
        vec![MemberChange::Remove(c.nodes[leader].uid)],
    ];
    for (token, change) in changes.into_iter().enumerate() {
        c.driver(leader).change_members(GROUP, token as u64, change);
        c.poll(leader);
        c.run(1_000);
    }
    let voters: Vec<NodeId> = c.status(3).unwrap().membership.members.iter().map(|m| m.node).collect();
    assert_eq!(voters, [c.nodes[behind].id, c.nodes[3].id]);
    c.crash(leader);
    c.crash(out);
    c.heal();
    c.run_until(20_000, |c| c.leader() == Some(3));
    c.wait_equal();
    assert_eq!(c.status(behind).unwrap().membership, c.status(3).unwrap().membership);
}

/// A cluster of four voters, three of which died for good; the one that is left has everything.
fn one_of_four(seed: u64) -> (Cluster, usize) {
    let mut c = Cluster::new(4, 3, seed, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..20));
    c.create(3, 3, false);
    let new = Member { uid: c.nodes[3].uid, node: c.nodes[3].id, role: MemberRole::Voter };
    c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Add(new)]);
    c.poll(leader);
    c.wait_equal();
    c.ask(leader, &pushes(20..30));
    c.wait_equal();
    for n in (0..4).filter(|n| *n != 1) {
        c.crash(n);
    }
    (c, 1)
}

fn serves_alone(c: &mut Cluster, left: usize) {
    c.run_until(10_000, |c| c.leader() == Some(left));
    let status = c.status(left).unwrap();
    assert_eq!(status.membership.members.iter().map(|m| m.uid).collect::<Vec<_>>(), [c.nodes[left].uid]);
}

#[test]
fn a_member_left_alone_serves_once_it_is_made_the_only_one_and_still_after_a_restart() {
    for seed in 0..10 {
        let (mut c, left) = one_of_four(900 + seed);
        c.run(5_000);
        assert_eq!(c.leader(), None);
        c.driver(left).make_alone(GROUP).unwrap();
        c.poll(left);
        serves_alone(&mut c, left);
        c.ask(left, &pushes(30..40));
        c.run(1_000);
        assert_eq!(c.machine(left).pushed, 40);
        // Refused now that it has a leader.
        assert_eq!(c.driver(left).make_alone(GROUP), Err(ChangeError::NotPermitted));
        // The membership entries in its log do not bring the others back.
        c.crash(left);
        c.start(left);
        serves_alone(&mut c, left);
        assert_eq!(c.machine(left).pushed, 40);
    }
}

#[test]
fn who_joins_a_member_that_was_left_alone_does_not_count_those_that_are_lost() {
    for restarts in [false, true] {
        let (mut c, left) = one_of_four(950);
        c.run(5_000);
        c.driver(left).make_alone(GROUP).unwrap();
        c.poll(left);
        if restarts {
            c.run(1);
            c.crash(left);
            c.start(left);
        }
        serves_alone(&mut c, left);
        // A node that lost its data joins as another member, and is told the founders, as the broker does.
        let founders = c.voters(3);
        c.start_anew(2, founders);
        let new = Member { uid: c.nodes[2].uid, node: c.nodes[2].id, role: MemberRole::Promotable { target: 0 } };
        for _ in 0..100 {
            c.driver(left).change_members(GROUP, 7, vec![MemberChange::Add(new)]);
            c.poll(left);
            c.run(100);
        }
        c.run_until(20_000, |c| {
            c.status(2).is_some_and(|s| s.membership.member(new.uid).is_some_and(|m| m.role == MemberRole::Voter))
        });
        let voters: Vec<MemberUid> = c.status(2).unwrap().membership.voters().map(|m| m.uid).collect();
        assert_eq!(voters, [c.nodes[left].uid, new.uid], "restarts: {restarts}");
        assert_eq!(c.machine(2).pushed, 30);
    }
}

#[test]
fn a_stopped_member_is_made_the_only_one_on_its_disk() {
    let (mut c, left) = one_of_four(77);
    c.crash(left);
    let record = c.nodes[left].store.durable_record(GROUP).unwrap();
    let writes = make_alone(&record, c.nodes[left].id);
    c.nodes[left].store.write(&writes).unwrap();
    c.start(left);
    serves_alone(&mut c, left);
    assert_eq!(c.machine(left).pushed, 30);
    c.crash(left);
    let record = c.nodes[left].store.durable_record(GROUP).unwrap();
    assert!(make_alone(&record, c.nodes[left].id).is_empty());
}

#[test]
fn a_second_change_waits_for_the_first_and_the_last_voter_stays() {
    let mut c = Cluster::new(3, 3, 17, plain);
    let leader = c.wait_leader();
    let uids: Vec<MemberUid> = c.nodes.iter().map(|n| n.uid).collect();
    let others: Vec<usize> = (0..3).filter(|n| *n != leader).collect();
    c.driver(leader).change_members(GROUP, 1, vec![MemberChange::Remove(uids[others[0]])]);
    c.driver(leader).change_members(GROUP, 2, vec![MemberChange::Remove(uids[others[1]])]);
    c.poll(leader);
    c.run(1_000);
    c.driver(leader).change_members(GROUP, 3, vec![MemberChange::Remove(uids[others[1]])]);
    c.poll(leader);
    c.run(1_000);
    c.driver(leader).change_members(GROUP, 4, vec![MemberChange::Remove(uids[leader])]);
    c.poll(leader);
    let outcomes: Vec<_> = c.nodes[leader]
        .events
        .iter()
        .filter_map(|e| match e {
            Event::Changed { token, outcome, .. } => Some((*token, *outcome)),
            _ => None,
        })
        .collect();
    let mut sorted = outcomes.clone();
    sorted.sort_by_key(|(t, _)| *t);
    assert_eq!(
        sorted,
        [(1, Ok(())), (2, Err(ChangeError::NotPermitted)), (3, Ok(())), (4, Err(ChangeError::LastVoter))]
    );
}

#[test]
fn messages_to_or_from_another_incarnation_are_dropped() {
    let mut c = Cluster::new(3, 3, 18, plain);
    let leader = c.wait_leader();
    c.run(500);
    let follower = (leader + 1) % 3;
    let before = c.status(follower).unwrap();
    c.record_sent = true;
    c.ask(leader, &pushes(0..1));
    let (_, _, _, append) = c
        .sent
        .iter()
        .find(|(_, to, _, m)| *to == c.nodes[follower].id && m.kind() == RaftMessageKind::RaftAppend)
        .cloned()
        .unwrap();
    c.cut_off(follower);
    let leader_node = c.nodes[leader].id;
    let wrong =
        [(leader_node, warren_proto::peer::RaftMessage { to_uid: 99, ..append.clone() }), (NodeId(5), append.clone())];
    for (from, message) in wrong {
        c.driver(follower).step(from, message);
        c.poll(follower);
    }
    // A stranger asks for a vote in a much later term.
    let vote = warren_proto::peer::RaftMessage {
        from_uid: 77,
        to_uid: before.me.0,
        kind: RaftMessageKind::RaftVote.into(),
        term: before.term + 10,
        index: 1000,
        log_term: before.term + 9,
        context: bytes::Bytes::from_static(b"CampaignTransfer"),
        supported: Some(warren_proto::peer::VersionRange { min: 1, max: 1 }),
        ..append
    };
    c.driver(follower).step(NodeId(5), vote);
    c.poll(follower);
    let after = c.status(follower).unwrap();
    assert_eq!((after.term, after.last_index), (before.term, before.last_index));
}

#[test]
fn the_version_rises_only_when_every_member_supports_it() {
    let mut c = Cluster::new(3, 0, 19, plain);
    for n in 0..3 {
        c.nodes[n].max_version = if n == 2 { 1 } else { 2 };
    }
    for n in 0..3 {
        c.create(n, 3, n == 0);
    }
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..5));
    c.run(5_000);
    assert_eq!(c.status(leader).unwrap().version, MachineVersion(1));
    let last = c.status(leader).unwrap().last_index;
    c.ask(leader, &[Ask::Needs(2)]);
    assert_eq!(c.machine(leader).refused, [(Ask::Needs(2), Refusal::Stopped)]);
    assert_eq!(c.status(leader).unwrap().last_index, last, "nothing was appended");
    // The old binary is upgraded.
    c.crash(2);
    c.nodes[2].max_version = 3;
    c.start(2);
    c.run_until(10_000, |c| (0..3).all(|n| c.status(n).is_some_and(|s| s.version == MachineVersion(2))));
    let leader = c.wait_leader();
    c.ask(leader, &[Ask::Needs(2)]);
    c.wait_equal();
    assert_eq!(c.machine(leader).version, 2);
}

#[test]
fn a_member_too_old_for_the_group_stops_there_keeps_its_log_and_never_leads() {
    let mut c = Cluster::new(3, 0, 20, plain);
    for n in 0..3 {
        c.nodes[n].max_version = 2;
        c.create(n, 3, n == 0);
    }
    c.run_until(10_000, |c| (0..3).all(|n| c.status(n).is_some_and(|s| s.version == MachineVersion(2))));
    c.crash(2);
    c.nodes[2].max_version = 1;
    c.start(2);
    // It may learn only from the leader that the version entry in its log is committed.
    c.run_until(5_000, |c| c.status(2).unwrap().stopped == Some(StopReason::BlockedOnVersion(2)));
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..20));
    c.run(1_000);
    assert_eq!(c.status(2).unwrap().last_index, c.status(leader).unwrap().last_index, "it still replicates");
    c.crash(leader);
    c.run_until(10_000, |c| c.leader().is_some());
    assert_ne!(c.leader(), Some(2));
    // With its binary upgraded again it goes on.
    c.crash(2);
    c.nodes[2].max_version = 2;
    c.start(2);
    c.wait_equal();
    assert_eq!(c.machine(2).pushed, 20);
}

#[test]
fn no_vote_and_no_acknowledgement_leaves_before_it_is_durable() {
    let mut c = Cluster::new(3, 3, 21, plain);
    let leader = c.wait_leader();
    c.run(500);
    let follower = (leader + 1) % 3;
    c.stuck.push(follower);
    c.record_sent = true;
    c.ask(leader, &pushes(0..1));
    c.run(300);
    let acked = |c: &Cluster, kind: RaftMessageKind| {
        let id = c.nodes[follower].id;
        c.sent.iter().any(|(from, _, _, m)| *from == id && m.kind() == kind && m.index > 0)
    };
    assert!(!acked(&c, RaftMessageKind::RaftAppendResponse));
    // A candidate asks it for a vote in a new term.
    let vote = warren_proto::peer::RaftMessage {
        group: GROUP.0,
        from_uid: c.nodes[(leader + 2) % 3].uid.0,
        to_uid: c.nodes[follower].uid.0,
        kind: RaftMessageKind::RaftVote.into(),
        term: 50,
        index: 1000,
        log_term: 49,
        context: bytes::Bytes::from_static(b"CampaignTransfer"),
        supported: Some(warren_proto::peer::VersionRange { min: 1, max: 1 }),
        ..warren_proto::peer::RaftMessage::default()
    };
    c.sent.clear();
    let from = c.nodes[(leader + 2) % 3].id;
    c.driver(follower).step(from, vote);
    c.poll(follower);
    c.run(20);
    let voted = |c: &Cluster| {
        let id = c.nodes[follower].id;
        c.sent.iter().any(|(from, _, _, m)| *from == id && m.kind() == RaftMessageKind::RaftVoteResponse)
    };
    assert!(!voted(&c));
    assert_ne!(c.nodes[follower].store.durable_record(GROUP).unwrap().hard_state.term, 50);
    // The disk comes back.
    c.stuck.clear();
    while let Some(number) = c.nodes[follower].store.sync(1).unwrap() {
        c.driver(follower).persisted(number);
        c.poll(follower);
    }
    assert!(voted(&c));
    assert_eq!(c.nodes[follower].store.durable_record(GROUP).unwrap().hard_state.term, 50);
}

#[test]
fn the_sabotaged_driver_votes_before_its_disk_knows() {
    let mut c = Cluster::new(3, 3, 22, |config| config.sabotage = Sabotage::VoteBeforeSync);
    c.stuck = vec![0, 1, 2];
    c.record_sent = true;
    c.run(3_000);
    assert!(c.sent.iter().any(|(_, _, _, m)| m.kind() == RaftMessageKind::RaftVoteResponse));
}

#[test]
fn a_leader_whose_disk_is_stuck_gives_up_leadership() {
    let mut c = Cluster::new(3, 3, 23, |config| config.disk_stall_ms = 2_000);
    let old = c.wait_leader();
    c.run(500);
    c.stuck.push(old);
    c.ask(old, &pushes(0..3));
    c.run_until(10_000, |c| c.leader().is_some_and(|l| l != old));
    let new = c.leader().unwrap();
    c.ask(new, &pushes(3..5));
    c.run(500);
    assert_eq!(c.machine(new).pushed, 5, "the entries were on a majority");
}

#[test]
fn a_panic_in_apply_stops_the_group_and_nothing_else() {
    let mut c = Cluster::new(1, 1, 24, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..3));
    c.run(200);
    c.ask(leader, &[Ask::Boom]);
    c.run(200);
    let status = c.status(leader).unwrap();
    assert_eq!(status.stopped, Some(StopReason::Faulted("boom".into())));
    c.ask(leader, &[Ask::Pop]);
    assert_eq!(c.machine(leader).refused, [(Ask::Pop, Refusal::Stopped)]);
    assert!(c.nodes[leader].store.durable_record(GROUP).is_some(), "its log stays");
}

#[test]
fn a_read_index_waits_for_a_ready_leader_and_covers_what_was_committed() {
    let mut c = Cluster::new(3, 3, 25, plain);
    // Asked before there is any leader, on each member.
    for n in 0..3 {
        c.driver(n).read_index(GROUP, 40 + n as u64);
        c.poll(n);
    }
    let leader = c.wait_leader();
    let read = |c: &Cluster, n: usize, ctx: u64| {
        c.nodes[n].events.iter().find_map(|e| match e {
            Event::Read { ctx: c, index, .. } if *c == ctx => Some(*index),
            _ => None,
        })
    };
    c.run_until(5_000, |c| (0..3).all(|n| read(c, n, 40 + n as u64).is_some_and(|i| i.is_some())));
    c.ask(leader, &pushes(0..10));
    c.wait_equal();
    let committed = c.status(leader).unwrap().commit;
    let follower = (leader + 1) % 3;
    c.driver(follower).read_index(GROUP, 50);
    c.poll(follower);
    c.run_until(2_000, |c| read(c, follower, 50).is_some());
    assert!(read(&c, follower, 50).unwrap().unwrap() >= committed);
    // In a minority it fails, in bounded time.
    c.cut_off(follower);
    c.run(200);
    c.driver(follower).read_index(GROUP, 51);
    c.poll(follower);
    c.run_until(20_000, |c| read(c, follower, 51) == Some(None));
}

#[test]
fn a_late_rejection_does_not_move_a_probe_below_what_is_matched() {
    let mut c = Cluster::new(3, 3, 27, plain);
    let leader = c.wait_leader();
    c.ask(leader, &pushes(0..10));
    c.wait_equal();
    let follower = (leader + 1) % 3;
    let status = c.status(leader).unwrap();
    for index in 0..=status.last_index + 1 {
        let reject = warren_proto::peer::RaftMessage {
            group: GROUP.0,
            from_uid: c.nodes[follower].uid.0,
            to_uid: c.nodes[leader].uid.0,
            kind: RaftMessageKind::RaftAppendResponse.into(),
            term: status.term,
            index,
            reject: true,
            reject_hint: 0,
            ..warren_proto::peer::RaftMessage::default()
        };
        let from = c.nodes[follower].id;
        c.driver(leader).peer_lost(from);
        c.driver(leader).step(from, reject);
        // Debug assertions check the progress after each ready.
        c.poll(leader);
    }
    assert_eq!(c.leader(), Some(leader));
    c.ask(leader, &pushes(10..20));
    c.wait_equal();
}

#[test]
fn a_deleted_group_leaves_nothing_behind_and_its_messages_are_ignored() {
    let mut c = Cluster::new(3, 3, 28, plain);
    let leader = c.wait_leader();
    let gone = (leader + 1) % 3;
    assert!(c.driver(gone).remove_group(GROUP));
    c.poll(gone);
    c.ask(leader, &pushes(0..5));
    c.run(2_000);
    assert!(c.status(gone).is_none());
    assert!(c.nodes[gone].store.was_deleted(GROUP));
    assert!(c.nodes[gone].store.groups().unwrap().is_empty());
}

#[test]
fn one_seed_gives_one_run() {
    let run = |seed: u64| {
        let mut c = Cluster::new(3, 3, seed, small_snapshots);
        c.loss = 3;
        churn(&mut c, 20, 0);
        let leader = c.wait_leader();
        c.crash(leader);
        churn(&mut c, 20, 100);
        c.start(leader);
        churn(&mut c, 20, 200);
        c.loss = 0;
        c.wait_equal();
        c.digest
    };
    let digests: Vec<u64> = (30..34).map(run).collect();
    assert_eq!(digests, (30..34).map(run).collect::<Vec<_>>());
    assert_ne!(digests[0], digests[1]);
}

/// Crashes, loss and partitions from a seed; an error if two members, or one at two times, had different states at one
/// index, or if the members do not come together in the end.
fn chaos(seed: u64, nodes: usize, config: fn(&mut DriverConfig)) -> Result<(), String> {
    let mut c = Cluster::new(nodes, nodes, seed, config);
    c.run(100);
    c.loss = 2;
    c.wild = seed % 5 == 4;
    let mut pushed = 0;
    let mut known: BTreeMap<u64, u64> = BTreeMap::new();
    for _ in 0..60 {
        let n = c.draw(nodes as u64) as usize;
        match c.draw(12) {
            0 => c.crash(n),
            1 => (0..nodes).for_each(|n| c.crash(n)),
            2 => {
                c.heal();
                c.cut_off(n);
            }
            3 | 8 => c.heal(),
            4 => c.slow = if c.slow.is_empty() { vec![n] } else { Vec::new() },
            5 | 7 => c.replace(c.outsider().unwrap_or(n)),
            6 => {
                if let Some(leader) = c.leader() {
                    let to = c.nodes[n].id;
                    // Whether that works is not the point.
                    let _ = c.driver(leader).transfer_leader(GROUP, Some(to));
                    c.poll(leader);
                }
            }
            _ => c.start_all(),
        }
        for _ in 0..5 {
            let pause = c.draw(200);
            c.run(pause);
            if let Some(leader) = c.leader() {
                c.ask(leader, &[Ask::Push(pushed), Ask::Push(pushed + 1), Ask::Pop]);
                pushed += 2;
            }
            c.check_states(&mut known)?;
        }
    }
    c.heal();
    c.loss = 0;
    c.wild = false;
    c.start_all();
    c.run_for_equal(60_000)?;
    c.check_states(&mut known)?;
    for n in 0..nodes {
        c.check_bodies(n);
    }
    Ok(())
}

/// The number of seeds: more with `WARREN_SEEDS`.
fn seeds(usual: u64) -> u64 {
    std::env::var("WARREN_SEEDS").ok().and_then(|s| s.parse().ok()).unwrap_or(usual)
}

#[test]
fn nothing_committed_is_lost_under_crashes_loss_and_partitions() {
    for seed in 0..seeds(60) {
        let nodes = if seed % 4 == 3 { 5 } else { 3 };
        if let Err(wrong) = chaos(1000 + seed, nodes, small_snapshots) {
            panic!("seed {seed}: {wrong}");
        }
    }
}

#[test]
fn the_checks_find_a_member_that_counts_entries_before_they_are_synced() {
    let sabotaged = |config: &mut DriverConfig| {
        small_snapshots(config);
        config.sabotage = Sabotage::CountUnsynced;
    };
    let found = (0..200).any(|seed| chaos_fails(seed, sabotaged));
    assert!(found);
}

#[test]
fn the_checks_find_a_member_that_answers_before_it_is_durable() {
    let sabotaged = |config: &mut DriverConfig| {
        small_snapshots(config);
        config.sabotage = Sabotage::AckBeforeSync;
    };
    let found = (0..200).any(|seed| chaos_fails(seed, sabotaged));
    assert!(found);
}

/// A defect may also show itself as a panic of the harness.
fn chaos_fails(seed: u64, config: fn(&mut DriverConfig)) -> bool {
    std::panic::catch_unwind(|| chaos(1000 + seed, 3, config)).map_or(true, |r| r.is_err())
}

/// Chunks are lost, and then the node for longer than a transfer waits: what has arrived is not sent again.
#[test]
fn a_transfer_that_was_cut_off_goes_on_where_it_was() {
    let mut c = Cluster::new(3, 3, 77, |config| {
        small_snapshots(config);
        config.snapshot_window = 1;
        config.snapshot_stall_ticks = 20;
    });
    let leader = c.wait_leader();
    let behind = (leader + 1) % 3;
    churn(&mut c, 10, 0);
    c.cut_off(behind);
    churn(&mut c, 60, 1000);
    // Until the leader knows that the node is down, and snapshots all.
    c.run(3_000);
    c.driver(leader).force_snapshot(GROUP);
    c.run(1_000);
    c.heal();
    c.record_sent = true;
    let to = c.nodes[behind].id;
    let offsets = |c: &Cluster| -> Vec<(u64, u64)> {
        let of = |m: &RaftMessage| match &m.snapshot.as_ref()?.step {
            Some(snapshot_step::Step::State(chunk)) => Some((m.snapshot.as_ref()?.transfer, chunk.offset)),
            _ => None,
        };
        c.sent.iter().filter(|(_, t, ..)| *t == to).filter_map(|(.., m)| of(m)).collect()
    };
    c.run_until(30_000, |c| offsets(c).iter().any(|(_, offset)| *offset >= 512));
    c.cut_off(behind);
    c.run(8_000);
    c.heal();
    c.run_until(60_000, |c| c.machine(behind).restored > 0);
    let seen = offsets(&c);
    let (first, last) = (seen[0].0, seen[seen.len() - 1].0);
    assert_ne!(first, last, "another transfer");
    let resumed = seen.iter().filter(|(transfer, _)| *transfer == last).map(|(_, offset)| *offset).min();
    assert!(resumed >= Some(448), "it began at {resumed:?}");
    churn(&mut c, 3, 5000);
    c.wait_equal();
    c.check_bodies(behind);
}

/// A cluster whose queue holds 2,000 numbers, in 200 entries, and its leader.
fn backlog(config: fn(&mut DriverConfig)) -> (Cluster, usize) {
    let mut c = Cluster::new(3, 3, 78, config);
    let leader = c.wait_leader();
    for i in 0..200 {
        c.ask(leader, &pushes(i * 10..i * 10 + 10));
        c.run(20);
    }
    c.wait_equal();
    (c, leader)
}

/// Nothing can be reclaimed while everything waits; a restart is still not to replay all of it.
#[test]
fn a_backlog_is_snapshot_although_that_frees_nothing() {
    let (c, _) = backlog(|config| config.snapshot_replay_bytes = 4 << 10);
    for n in 0..3 {
        let status = c.status(n).unwrap();
        let behind = status.applied - status.snapshot_index;
        assert!(status.snapshot_index > 0 && behind < 200, "node {n} would replay {behind} entries");
        c.check_bodies(n);
    }
}

#[test]
fn an_orderly_stop_leaves_nothing_to_replay() {
    let (mut c, leader) = backlog(|config| config.snapshot_stop_bytes = 64);
    let before = c.status(leader).unwrap();
    assert_eq!(before.snapshot_index, 0);
    c.driver(leader).prepare_to_stop();
    c.poll(leader);
    c.run(50);
    assert_eq!(c.status(leader).unwrap().snapshot_index, before.applied);
    c.crash(leader);
    c.start(leader);
    assert_eq!(c.machine(leader).replayed, 0);
    c.wait_equal();
    assert_eq!(c.machine(leader).waiting.len(), 2_000);
    c.check_bodies(leader);
}
