//! Defects put in on purpose: a check that finds nothing proves nothing. Each is looked for twice: by a judge that
//! compares what nodes do with their disks and queues, and by one that sees only what comes of it.

use warren_sim::plan::{Defect, Profile};
use warren_sim::run::{Watch, replay, run};

pub(super) const INSIDE: Watch = Watch { trace: false, inside: true };
pub(super) const OUTCOMES: Watch = Watch { trace: false, inside: false };

/// Looks for a defect under so many seeds, up to one that shows it and passes without the defect; answers what was
/// seen.
pub(super) fn found(defect: Defect, watch: Watch, seeds: u64) -> String {
    let failing = |seed| Some((seed, run(seed, Profile::Ci, defect, watch).wrong?));
    let Some((seed, wrong)) = (0..seeds).find_map(failing) else { panic!("{defect:?} passes {seeds} seeds") };
    println!("{wrong}\n  {}", replay(seed, Profile::Ci, defect, watch));
    assert_eq!(run(seed, Profile::Ci, Defect::None, watch).wrong, None);
    wrong
}

#[test]
fn a_vote_that_leaves_before_it_is_synced_is_found() {
    let wrong = found(Defect::VoteBeforeSync, INSIDE, 2);
    assert!(wrong.contains("its disk says"), "{wrong}");
}

/// It takes a crash between the vote and the sync, and a second candidate in the same term.
#[test]
fn a_vote_that_leaves_before_it_is_synced_is_found_by_a_second_vote() {
    let wrong = found(Defect::VoteBeforeSync, OUTCOMES, 1500);
    assert!(wrong.contains("and did for"), "{wrong}");
}

#[test]
fn an_acknowledgement_that_leaves_before_the_entry_is_synced_is_found() {
    let wrong = found(Defect::AckBeforeSync, INSIDE, 2);
    assert!(wrong.contains("its disk ends at"), "{wrong}");
}

#[test]
fn an_acknowledgement_that_leaves_before_the_entry_is_synced_is_found_by_what_is_lost() {
    let wrong = found(Defect::AckBeforeSync, OUTCOMES, 100);
    assert!(wrong.contains("lost entries"), "{wrong}");
}

#[test]
fn a_leader_that_counts_its_own_unsynced_entry_is_found() {
    let wrong = found(Defect::CountUnsynced, INSIDE, 20);
    assert!(wrong.contains("is committed and durable on"), "{wrong}");
}

/// It takes a leader's crash after the commit, and a new leader that is not among the few that had the entry.
#[test]
fn a_leader_that_counts_its_own_unsynced_entry_is_found_by_what_is_lost() {
    found(Defect::CountUnsynced, OUTCOMES, 1500);
}

/// It takes a leader that dies while its group sleeps, and is not back when the others must serve.
#[test]
fn sleepers_that_no_verdict_wakes_are_found() {
    let wrong = found(Defect::DeafSleepers, OUTCOMES, 1500);
    assert!(wrong.contains("does not serve within"), "{wrong}");
}

#[test]
fn a_queue_without_dedup_is_found() {
    let wrong = found(Defect::DroppedDedup, INSIDE, 20);
    assert!(wrong.contains("next is"), "{wrong}");
}

#[test]
fn a_queue_without_dedup_is_found_by_what_consumers_get() {
    let wrong = found(Defect::DroppedDedup, OUTCOMES, 20);
    assert!(wrong.contains("comes from") || wrong.contains("comes after"), "{wrong}");
}

#[test]
fn a_tree_that_forgets_answered_requests_is_found_by_a_wrong_answer() {
    let wrong = found(Defect::ForgottenRequests, OUTCOMES, 100);
    assert!(wrong.contains("was answered"), "{wrong}");
}

/// It takes a node that is behind and does not know it.
#[test]
fn a_read_that_does_not_wait_for_what_it_must_see_is_found() {
    let wrong = found(Defect::UnfencedReads, OUTCOMES, 100);
    assert!(wrong.contains("registers of epoch"), "{wrong}");
}

#[test]
fn a_node_without_its_disk_that_comes_back_as_its_old_self_is_found() {
    let wrong = found(Defect::OldSelf, INSIDE, 40);
    assert!(wrong.contains("is lost with its disk and says") || wrong.contains("lost entries"), "{wrong}");
}

#[test]
fn a_node_without_its_disk_that_comes_back_as_its_old_self_is_found_by_what_it_lacks() {
    let wrong = found(Defect::OldSelf, OUTCOMES, 100);
    assert!(wrong.contains("lost entries") || wrong.contains("and did for"), "{wrong}");
}

#[test]
fn a_lost_member_that_is_never_replaced_is_found() {
    let wrong = found(Defect::LostForEver, OUTCOMES, 40);
    assert!(wrong.contains("still changes its members"), "{wrong}");
}

#[test]
fn a_member_that_takes_a_commit_beyond_its_log_for_its_own_is_found() {
    let wrong = found(Defect::BlindTrust, OUTCOMES, 200);
    assert!(wrong.contains("stopped"), "{wrong}");
}

/// It takes a lying disk, a member that finds that out, and a leader that dies before it has helped.
#[test]
fn a_member_that_votes_although_it_knows_what_it_lost_is_found() {
    let wrong = found(Defect::VotingAmnesiac, INSIDE, 1500);
    assert!(wrong.contains("and votes"), "{wrong}");
}

/// It takes a lying disk, and a leader that goes on leading.
#[test]
fn a_leader_that_counts_on_what_a_member_says_it_lost_is_found() {
    let wrong = found(Defect::DeafToDoubt, OUTCOMES, 400);
    assert!(wrong.contains("no rest within"), "{wrong}");
}

/// It takes a part of a snapshot that gets lost, and a leader that goes on leading.
#[test]
fn a_snapshot_that_is_not_sent_again_is_found() {
    let wrong = found(Defect::OneSnapshot, OUTCOMES, 400);
    assert!(wrong.contains("no rest within"), "{wrong}");
}
