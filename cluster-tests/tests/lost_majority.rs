//! Majorities that are lost for good, and the way back.

use std::time::Duration;

use warren_cluster_tests::{Cluster, Node, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

async fn publish_numbers(node: &Node, queue: &str, numbers: std::ops::Range<u32>) {
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    for number in numbers {
        let body = number.to_string();
        let confirmed = amqp::publish(&channel, queue, body.as_bytes(), amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true), "{number}");
    }
}

async fn holds_numbers(node: &Node, queue: &str, count: u32) {
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    let bodies = amqp::drain(&channel, queue).await.unwrap();
    let numbers: Vec<u32> = bodies.iter().map(|b| String::from_utf8_lossy(b).parse().unwrap()).collect();
    assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
}

fn members(node: &Node, queue: &str) -> Option<Vec<(String, String)>> {
    let rows = node.ctl_rows(&["quorum_status", queue])?;
    let text = |row: &serde_json::Value, column: &str| row[column].as_str().unwrap_or_default().to_owned();
    Some(rows.iter().map(|r| (text(r, "Node Name"), text(r, "Raft State"))).collect())
}

#[test]
fn the_last_node_of_three_is_made_a_cluster_of_its_own_and_takes_in_new_ones() {
    let mut cluster = Cluster::start(3);
    let runtime = runtime();
    runtime.block_on(async {
        for queue in ["one", "two"] {
            let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
            amqp::declare_quorum(&channel, queue).await.unwrap();
            publish_numbers(&cluster[0], queue, 0..100).await;
        }
    });
    // It must not depend on whether the last node led.
    cluster[0].stop(Stop::Kill);
    cluster[1].stop(Stop::Kill);
    cluster[0].wipe();
    cluster[1].wipe();
    let forced = |node: &Node, options: &[&str]| node.ctl(&[&["force_standalone_boot"], options].concat());
    let running = forced(&cluster[2], &["--i-accept-data-loss"]);
    assert_eq!(running.status.code(), Some(69), "refused while the node runs: {running:?}");
    cluster[2].stop(Stop::Kill);
    assert_eq!(forced(&cluster[2], &[]).status.code(), Some(64), "not without saying so");
    let done = forced(&cluster[2], &["--i-accept-data-loss"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert!(done.status.success() && said.contains("2 of its 2 quorum queues"), "{done:?}");
    let again = forced(&cluster[2], &["--i-accept-data-loss"]);
    assert!(String::from_utf8_lossy(&again.stdout).contains("0 of its 2 quorum queues"), "{again:?}");

    cluster.restart(2);
    runtime.block_on(async {
        publish_numbers(&cluster[2], "one", 100..110).await;
        holds_numbers(&cluster[2], "two", 100).await;
    });

    // New nodes under the old names join, and are given members again.
    cluster.restart(0);
    cluster.restart(1);
    wait_for("three voters of the metadata", SOON, || {
        let rows = cluster[2].ctl_rows(&["metadata_store_status"])?;
        let voters = rows.iter().filter(|row| row["Membership"] == "voter").count();
        (rows.len() == 3 && voters == 3).then_some(())
    });
    for name in ["w1@localhost", "w2@localhost"] {
        wait_for("the queue to take its new member in", SOON, || {
            cluster[2].ctl(&["add_member", "one", name]).status.success().then_some(())
        });
    }
    wait_for("three members of the queue", SOON, || {
        let rows = cluster[2].ctl_rows(&["quorum_status", "one"])?;
        (rows.len() == 3 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
    cluster[2].stop(Stop::Kill);
    runtime.block_on(async {
        holds_numbers(&cluster[0], "one", 110).await;
        // Nobody counts the nodes that are lost: two of three are a majority, of the metadata as well.
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        amqp::declare_quorum(&channel, "three").await.unwrap();
        publish_numbers(&cluster[0], "three", 0..10).await;
        publish_numbers(&cluster[0], "one", 0..10).await;
        holds_numbers(&cluster[1], "one", 10).await;
    });
}

#[test]
fn a_queue_whose_majority_is_lost_is_reduced_to_the_member_that_is_left() {
    let mut cluster = Cluster::start(5);
    let queue = "reduced";
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        publish_numbers(&cluster[0], queue, 0..50).await;
    });
    let here = members(&cluster[0], queue).expect("the queue has members");
    let index = |name: &str| cluster.iter().position(|n| n.name() == name).expect("a node of the cluster");
    let on: Vec<usize> = here.iter().map(|(name, _)| index(name)).collect();
    let asked = (0..5).find(|n| !on.contains(n)).expect("five nodes");
    let left = on[0];
    let reduce = |node: &Node| node.ctl_rows(&["force_shrink", "--queue-pattern", "^reduced$", "--i-accept-data-loss"]);

    let refused = reduce(&cluster[left]).expect("it answers");
    let why = refused[0]["result"].as_str().unwrap_or_default();
    assert!(refused.len() == 1 && why.contains("has a leader"), "{refused:?}");
    assert_eq!(cluster[left].ctl(&["force_shrink"]).status.code(), Some(65), "not without saying so");
    for gone in &on[1..] {
        cluster[*gone].stop(Stop::Kill);
    }
    let check = || cluster[asked].ctl(&["check_for_quorum_queues_without_an_elected_leader", "^red"]);
    wait_for("the check to name the queue", SOON, || {
        let output = check();
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code() == Some(69) && text.contains("queue 'reduced' in vhost '/'")).then_some(())
    });
    let done = wait_for("the queue to be reduced", SOON, || {
        reduce(&cluster[left]).filter(|rows| rows.iter().any(|row| row["result"] == "ok"))
    });
    assert!(done.len() == 1 && done[0]["size"] == 1, "{done:?}");
    assert_eq!(check().status.code(), Some(0));
    runtime.block_on(publish_numbers(&cluster[asked], queue, 50..60));

    // The others come back: what they had of the queue is not part of it any more, and goes.
    for gone in &on[1..] {
        cluster.restart(*gone);
    }
    assert_eq!(members(&cluster[asked], queue).unwrap().len(), 1);
    cluster[asked].ctl_ok(&["add_member", queue, cluster[on[1]].name()]);
    wait_for("the queue's second member to vote", SOON, || {
        let rows = cluster[asked].ctl_rows(&["quorum_status", queue])?;
        (rows.len() == 2 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
    runtime.block_on(holds_numbers(&cluster[on[2]], queue, 60));
}
