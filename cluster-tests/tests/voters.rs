//! The voters of the metadata in a cluster that has more nodes than that.

use std::collections::BTreeMap;
use std::time::Duration;

use warren_cluster_tests::{Node, Setup, Stop, wait_for};

const SOON: Duration = Duration::from_secs(90);

/// The parts of the metadata's members by node, as the nodes themselves say; `""` for one that is down.
fn parts(node: &Node) -> Option<BTreeMap<String, String>> {
    let text = |value: &serde_json::Value| value.as_str().unwrap_or_default().to_owned();
    let rows = node.ctl_rows(&["metadata_store_status"])?;
    Some(rows.iter().map(|row| (text(&row["Node Name"]), text(&row["Membership"]))).collect())
}

fn names_of(parts: &BTreeMap<String, String>, part: &str) -> Vec<String> {
    parts.iter().filter(|(_, is)| *is == part).map(|(name, _)| name.clone()).collect()
}

#[test]
fn five_of_seven_nodes_vote_and_the_others_take_the_places_of_lost_ones() {
    let mut cluster = Setup::new().line("metadata_store.voter_replacement_after = 3000").start(7);
    let before = wait_for("five voters and two others", SOON, || {
        let parts = parts(&cluster[0])?;
        (names_of(&parts, "voter").len() == 5 && names_of(&parts, "non_voter").len() == 2).then_some(parts)
    });
    let index = |name: &str| -> usize { name[1..].split('@').next().unwrap().parse::<usize>().unwrap() - 1 };
    let (voters, others) = (names_of(&before, "voter"), names_of(&before, "non_voter"));

    // One that is lost is replaced, and follows when it comes back.
    let lost = index(&voters[4]);
    cluster[lost].stop(Stop::Kill);
    wait_for("another to vote in its place", SOON, || {
        let parts = parts(&cluster[0])?;
        (names_of(&parts, "voter").len() == 5 && names_of(&parts, "non_voter").len() == 1).then_some(())
    });
    // Two changes: the follower gets a vote, and then the lost one loses its own, which it cannot say itself.
    wait_for("the lost one to lose its vote", SOON, || {
        let changes = |node: &Node| node.log().matches("the voters of the metadata store were changed").count();
        (cluster.iter().map(changes).sum::<usize>() >= 2).then_some(())
    });
    cluster.restart(lost);
    wait_for("the one that came back to follow", SOON, || {
        let parts = parts(&cluster[0])?;
        let five = names_of(&parts, "voter").len() == 5;
        (five && names_of(&parts, "non_voter").contains(&voters[4])).then_some(())
    });
    // With two voters away for a moment, the others are a majority: members without a vote are not counted.
    let stays: Vec<String> = names_of(&parts(&cluster[0]).unwrap(), "voter");
    let gone = index(stays.iter().rfind(|name| **name != voters[0]).unwrap());
    let gone_name = cluster[gone].name().to_owned();
    cluster[gone].stop(Stop::Kill);
    wait_for("the node to be forgotten", SOON, || {
        cluster[0].ctl(&["forget_cluster_node", &gone_name]).status.success().then_some(())
    });
    wait_for("a follower to vote in its place", SOON, || {
        let parts = parts(&cluster[0])?;
        (parts.len() == 6 && names_of(&parts, "voter").len() == 5).then_some(())
    });
    assert!(!others.is_empty());
    cluster[0].ctl_ok(&["add_vhost", "written"]);
}
