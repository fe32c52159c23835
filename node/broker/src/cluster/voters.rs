//! Who votes in the metadata group (spec: metadata-store.md, section 8): five members at most. Those beyond only follow, which
//! keeps the cost of a write, and the number of nodes that a node waits for when it starts, from growing with the cluster.
//!
//! A follower takes the place of a voter that leaves, or whose node has been away for so long that it is taken for lost. The
//! group's leader compares what is with what should be, and makes one change at a time, so whatever was begun by another
//! leader goes on.

use std::collections::HashMap;
use std::sync::Weak;
use std::time::Duration;

use tokio::time::Instant;
use warren_proto::ids::{GroupId, MemberUid, NodeId};
use warren_raft::driver::{ChangeError, MemberChange};
use warren_raft::log_store::{Member, MemberRole, Membership};
use warren_raft::machine::Role;

use crate::node::Broker;

/// Voters at most.
pub const VOTERS: usize = 5;

/// Time between two looks.
const LOOK: Duration = Duration::from_secs(2);

/// How a node stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Health {
    /// It gives signs of life.
    Up,
    /// It has given none for a while.
    Away,
    /// For so long that its vote is given to another.
    Lost,
}

/// The part of the founder with this number.
pub(crate) fn founding_role(number: usize) -> MemberRole {
    if number < VOTERS { MemberRole::Voter } else { MemberRole::NonVoter }
}

/// The part of a node that comes to a group. `old`: its member so far, which it replaces.
pub(crate) fn joining_role(membership: &Membership, old: impl Fn(&Member) -> bool) -> MemberRole {
    let stays = |m: &&Member| m.role != MemberRole::NonVoter && !old(m);
    // The leader sets the target.
    let votes = MemberRole::Promotable { target: 0 };
    if membership.members.iter().filter(stays).count() < VOTERS { votes } else { MemberRole::NonVoter }
}

/// The next change towards five voters whose nodes are there.
fn next_change(membership: &Membership, me: MemberUid, health: impl Fn(NodeId) -> Health) -> Option<MemberChange> {
    if membership.is_joint() {
        return None;
    }
    let voters: Vec<&Member> = membership.voters().collect();
    if voters.len() > VOTERS {
        let rank = |m: &&&Member| match health(m.node) {
            Health::Up => 0,
            Health::Away => 1,
            Health::Lost => 2,
        };
        let excess = voters.iter().filter(|m| m.uid != me).max_by_key(rank)?;
        return Some(MemberChange::Add(Member { role: MemberRole::NonVoter, ..**excess }));
    }
    let counts = |m: &&Member| match m.role {
        MemberRole::Voter => health(m.node) != Health::Lost,
        MemberRole::Promotable { .. } => health(m.node) == Health::Up,
        MemberRole::NonVoter => false,
    };
    if membership.members.iter().filter(counts).count() >= VOTERS {
        return None;
    }
    let follows = |m: &&Member| m.role == MemberRole::NonVoter && health(m.node) == Health::Up;
    let next = membership.members.iter().find(follows)?;
    Some(MemberChange::Add(Member { role: MemberRole::Promotable { target: 0 }, ..*next }))
}

/// Runs until the broker is gone.
pub(crate) async fn watch(broker: Weak<Broker>) {
    let mut away: HashMap<NodeId, Instant> = HashMap::new();
    loop {
        tokio::time::sleep(LOOK).await;
        let Some(broker) = broker.upgrade() else { return };
        let Some(host) = broker.metadata.host() else { continue };
        let Some(status) = host.status(GroupId::METADATA) else { continue };
        let nodes: Vec<NodeId> = status.membership.members.iter().map(|m| m.node).collect();
        let now = Instant::now();
        away.retain(|node, _| nodes.contains(node) && !broker.links.is_up(*node));
        for node in nodes.into_iter().filter(|node| !broker.links.is_up(*node)) {
            away.entry(node).or_insert(now);
        }
        if status.role != Role::Leader {
            continue;
        }
        let health = |node: NodeId| match away.get(&node) {
            None => Health::Up,
            Some(since) if now.duration_since(*since) >= broker.config.voter_replacement => Health::Lost,
            Some(_) => Health::Away,
        };
        let Some(change) = next_change(&status.membership, status.me, health) else { continue };
        match host.change_members(GroupId::METADATA, vec![change]).await {
            Ok(()) => tracing::info!(?change, "the voters of the metadata store were changed"),
            // Another change is under way, or another member leads.
            Err(ChangeError::NotPermitted | ChangeError::NotLeader(_)) => {}
            Err(error) => tracing::warn!(?change, %error, "the voters of the metadata store were not changed yet"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FOLLOWS: MemberRole = MemberRole::NonVoter;

    fn member(uid: u64, role: MemberRole) -> Member {
        Member { uid: MemberUid(uid), node: NodeId(uid), role }
    }

    fn group(voters: u64, followers: u64) -> Membership {
        let voters = (1..=voters).map(|uid| member(uid, MemberRole::Voter));
        Membership::founding(voters.chain((11..11 + followers).map(|uid| member(uid, FOLLOWS))).collect())
    }

    /// Makes all changes that follow from each other; a member that may be promoted is.
    fn settle(mut group: Membership, health: impl Fn(NodeId) -> Health) -> (Vec<u64>, Vec<u64>) {
        for round in 0..20 {
            let change = next_change(&group, MemberUid(1), &health);
            let catching_up = group.members.iter().find(|m| matches!(m.role, MemberRole::Promotable { .. }));
            let promotion = catching_up.map(|m| MemberChange::Promote(m.uid));
            let Some(change) = promotion.or(change) else { break };
            group = group.changed(&[change], round + 1).expect("allowed");
        }
        let of = |role: MemberRole| {
            let mut uids: Vec<u64> = group.members.iter().filter(|m| m.role == role).map(|m| m.uid.0).collect();
            uids.sort_unstable();
            uids
        };
        (of(MemberRole::Voter), of(FOLLOWS))
    }

    fn all_up(_: NodeId) -> Health {
        Health::Up
    }

    #[test]
    fn a_group_that_is_as_it_should_be_stays() {
        for group in [group(1, 0), group(3, 0), group(5, 0), group(5, 4)] {
            assert_eq!(next_change(&group, MemberUid(1), all_up), None);
        }
    }

    #[test]
    fn the_place_of_a_voter_that_left_is_taken() {
        assert_eq!(settle(group(4, 2), all_up), (vec![1, 2, 3, 4, 11], vec![12]));
        assert_eq!(settle(group(2, 2), all_up), (vec![1, 2, 11, 12], vec![]));
        // Not by one that is away itself.
        let health = |node| if node == NodeId(11) { Health::Away } else { Health::Up };
        assert_eq!(settle(group(4, 2), health), (vec![1, 2, 3, 4, 12], vec![11]));
    }

    #[test]
    fn a_lost_voter_gives_its_vote_to_another_and_only_then_loses_it() {
        let lost = |node| if node == NodeId(3) { Health::Lost } else { Health::Up };
        let first = next_change(&group(5, 1), MemberUid(1), lost);
        let promotable = member(11, MemberRole::Promotable { target: 0 });
        assert_eq!(first, Some(MemberChange::Add(promotable)));
        assert_eq!(settle(group(5, 1), lost), (vec![1, 2, 4, 5, 11], vec![3]));
        // One that is away for a moment keeps it, and so does one that nobody can replace.
        let away = |node| if node == NodeId(3) { Health::Away } else { Health::Up };
        assert_eq!(settle(group(5, 1), away), (vec![1, 2, 3, 4, 5], vec![11]));
        assert_eq!(settle(group(5, 0), lost), (vec![1, 2, 3, 4, 5], vec![]));
    }

    #[test]
    fn voters_beyond_five_follow_from_then_on_the_leader_never() {
        let (voters, followers) = settle(group(7, 0), all_up);
        assert_eq!((voters.len(), followers.len()), (5, 2));
        assert!(voters.contains(&1));
        let away = |node| if node == NodeId(2) { Health::Away } else { Health::Up };
        assert!(settle(group(6, 0), away).1.contains(&2));
    }

    #[test]
    fn who_joins_votes_while_there_is_a_place_and_keeps_the_one_that_it_had() {
        let votes = MemberRole::Promotable { target: 0 };
        let role = |group: &Membership, old: u64| joining_role(group, |m| m.uid.0 == old);
        assert_eq!(role(&group(4, 0), 0), votes);
        assert_eq!(role(&group(5, 1), 0), FOLLOWS);
        assert_eq!(role(&group(5, 1), 3), votes);
        assert_eq!(role(&group(5, 1), 11), FOLLOWS);
        assert_eq!([founding_role(4), founding_role(5)], [MemberRole::Voter, FOLLOWS]);
    }
}
