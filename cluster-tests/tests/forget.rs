//! Nodes that leave the cluster for good.

use std::fs;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicConsumeOptions, QueueBindOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use warren_cluster_tests::{Cluster, Load, Node, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

/// The names that a node counts as members, sorted.
fn members_of_cluster(node: &Node) -> Option<Vec<String>> {
    let rows = node.ctl_rows(&["cluster_status"])?;
    let names = rows.first()?["disk_nodes"].as_array()?;
    let mut names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    Some(names)
}

fn column(rows: &[Value], column: &str) -> Vec<String> {
    rows.iter().map(|row| row[column].as_str().unwrap_or_default().to_owned()).collect()
}

/// Waits until the queue has so many members, which all vote.
fn wait_settled(node: &Node, queue: &str, count: usize) {
    wait_for("all members to vote", SOON, || {
        let rows = node.ctl_rows(&["quorum_status", queue])?;
        (rows.len() == count && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
}

/// Waits until the metadata has so many members, of which five at most vote.
fn wait_voters(node: &Node, count: usize) {
    wait_for("the members of the metadata to vote", SOON, || {
        let rows = node.ctl_rows(&["metadata_store_status"])?;
        let of = |part: &str| rows.iter().filter(|row| row["Membership"] == part).count();
        let voters = count.min(5);
        (rows.len() == count && of("voter") == voters && of("non_voter") == count - voters).then_some(())
    });
}

/// Runs `forget_cluster_node`: the exit code, and what it said of why.
fn forget(node: &Node, arguments: &[&str]) -> (i32, String) {
    let output = node.ctl(&[&["forget_cluster_node"], arguments].concat());
    (output.status.code().expect("it ends by itself"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// The node starts and gives up, since its cluster has removed it.
fn refuses_to_start(cluster: &mut Cluster, index: usize) {
    let said_before = cluster[index].log().len();
    cluster[index].start();
    let status = wait_for("the node to give up", SOON, || cluster[index].exited());
    assert_eq!(status.code(), Some(78), "ended with {status}");
    let log = cluster[index].log();
    assert!(log[said_before..].contains("reset it: start it with an empty data directory"), "{log}");
    assert!(!log[said_before..].contains(" started "), "it served clients");
}

fn quorum_of(size: i32) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(size));
    arguments
}

/// Quorum queues with so many members, one of them on the node, and a message in each.
async fn declare_filled(node: &Node, queues: &[String], members: i32) {
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    for queue in queues {
        let options = QueueDeclareOptions::durable();
        channel.queue_declare(queue.as_str().into(), options, quorum_of(members)).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, b"kept", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
    }
}

/// A cluster of `size` nodes has one of them replaced while clients publish and consume.
fn a_node_is_replaced_under_load(size: usize) {
    let mut cluster = Setup::new().lay_out(size + 1);
    let last = format!("cluster_formation.classic_config.nodes.{}", size + 1);
    for index in 0..size {
        // The cluster is formed without knowing of the new one.
        cluster[index].configure(|text| {
            let kept = text.lines().filter(|line| !line.starts_with(&last));
            kept.flat_map(|line| [line, "\n"]).collect()
        });
        cluster[index].start();
    }
    cluster.wait_ready();
    // Clients are on the nodes that stay.
    let ports: Vec<String> = cluster[1..size].iter().map(|node| node.amqp_port().to_string()).collect();
    let load = Load::start_on(&cluster, "served", &ports.join(","));
    let others: Vec<String> = (0..10).map(|n| format!("other{n}")).collect();
    runtime().block_on(declare_filled(&cluster[0], &others, 1));
    let names: Vec<String> = cluster.iter().map(|node| node.name().to_owned()).collect();
    let (old, new) = (names[0].as_str(), names[size].as_str());

    cluster.restart(size);
    let grown = cluster[1].ctl_rows(&["grow", new, "all"]).expect("the verb succeeds");
    assert!(grown.iter().all(|row| row["result"] == "ok"), "{grown:?}");
    for queue in &others {
        wait_settled(&cluster[1], queue, 2);
    }
    wait_voters(&cluster[1], size + 1);
    let shrunk = cluster[1].ctl_rows(&["shrink", old]).expect("the verb succeeds");
    assert!(shrunk.len() >= others.len() && shrunk.iter().all(|row| row["result"] == "ok"), "{shrunk:?}");
    let (code, why) = forget(&cluster[1], &[old]);
    assert!(code == 69 && why.contains("must be stopped"), "{code}: {why}");
    cluster[0].stop(Stop::Terminate);
    cluster[2].ctl_ok(&["forget_cluster_node", old]);

    for node in &cluster[1..] {
        wait_for("every node to know the cluster without it", SOON, || {
            (members_of_cluster(node)? == names[1..]).then_some(())
        });
    }
    wait_voters(&cluster[1], size);
    let rows = cluster[1].ctl_rows(&["quorum_status", "served"]).expect("the verb succeeds");
    assert!(!column(&rows, "Node Name").contains(&names[0]), "{rows:?}");

    refuses_to_start(&mut cluster, 0);
    // Nor does it come back by having lost the half of its data that says so.
    fs::rename(cluster[0].database("metadata"), cluster.folder().join("metadata-of-old")).unwrap();
    refuses_to_start(&mut cluster, 0);
    assert_eq!(members_of_cluster(&cluster[1]).expect("the verb succeeds"), names[1..]);

    cluster[0].wipe();
    cluster.restart(0);
    for node in cluster.iter() {
        wait_for("every node to know the new member", SOON, || (members_of_cluster(node)? == names).then_some(()));
    }
    wait_voters(&cluster[1], size + 1);
    cluster[0].ctl_ok(&["add_member", "served", old]);
    let verdict = load.finish();
    assert!(verdict.number("confirmed") > 1_000.0);
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        for queue in &others {
            assert_eq!(amqp::ready(&channel, queue).await.unwrap(), 1, "{queue}");
        }
    });
}

#[test]
fn one_of_three_nodes_is_replaced_under_load_and_forgotten_without_a_failed_publish() {
    a_node_is_replaced_under_load(3);
}

#[test]
fn one_of_five_nodes_is_replaced_under_load_and_forgotten_without_a_failed_publish() {
    a_node_is_replaced_under_load(5);
}

#[test]
fn a_node_is_not_forgotten_where_that_would_lose_something_or_cannot_be_known() {
    let mut cluster = Setup::new().line("metadata_store.default_timeout = 3000").start(3);
    let names: Vec<String> = cluster.iter().map(|node| node.name().to_owned()).collect();
    let (gone, two) = (names[2].as_str(), names[1].as_str());
    let refused = |node: &Node, arguments: &[&str], exit: i32, words: &str| {
        let (code, why) = forget(node, arguments);
        assert!(code == exit && why.contains(words), "{arguments:?}: {code}: {why}");
        assert_eq!(members_of_cluster(node).expect("the node answers"), names);
    };
    refused(&cluster[0], &[two], 69, "rabbit_still_running");
    refused(&cluster[0], &[&names[0]], 69, "cannot remove itself");
    refused(&cluster[0], &["nobody@localhost"], 69, "not_a_cluster_node");
    refused(&cluster[0], &["no body"], 65, "node name");
    refused(&cluster[0], &["--offline", two], 64, "--offline is not supported");
    refused(&cluster[0], &[], 64, "not enough arguments");

    let (only, shared) = (["only".to_owned()], ["shared".to_owned()]);
    runtime().block_on(declare_filled(&cluster[2], &only, 1));
    runtime().block_on(declare_filled(&cluster[2], &shared, 3));
    cluster[2].stop(Stop::Kill);
    wait_for("the node to be seen as down", SOON, || {
        let (code, why) = forget(&cluster[0], &[gone]);
        assert_eq!(code, 69, "{why}");
        (!why.contains("rabbit_still_running"))
            .then(|| assert!(why.contains("queue 'only' in vhost '/': last_node"), "{why}"))
    });
    assert_eq!(members_of_cluster(&cluster[0]).expect("the node answers"), names, "it is in the cluster still");
    wait_settled(&cluster[0], "shared", 2);
    // Done again, it goes on where it was.
    refused(&cluster[1], &[gone], 69, "queue 'only' in vhost '/': last_node");
    cluster[0].ctl_ok(&["delete_queue", "only"]);

    // Alone, a node can neither remove anything nor promise that it will be.
    cluster[1].stop(Stop::Kill);
    refused(&cluster[0], &[gone], 75, "lost its majority");
    cluster.restart(1);
    wait_for("the metadata to have a leader", SOON, || {
        cluster[0].ctl(&["set_cluster_name", "lab"]).status.success().then_some(())
    });
    assert_eq!(members_of_cluster(&cluster[0]).expect("the node answers"), names, "nothing was pending");
    // The bare name is completed with the host, as other names of nodes are.
    cluster[1].ctl_ok(&["forget_cluster_node", "w3"]);
    assert_eq!(members_of_cluster(&cluster[1]).expect("the node answers"), names[..2]);
    let (code, why) = forget(&cluster[0], &[gone]);
    assert!(code == 69 && why.contains("not_a_cluster_node"), "{code}: {why}");
    // Two nodes are a cluster of two: one alone is no majority.
    wait_voters(&cluster[0], 2);
}

#[test]
fn what_hangs_on_a_forgotten_node_goes_with_it() {
    let mut cluster = Cluster::start(3);
    let gone = cluster[2].name().to_owned();
    let runtime = runtime();
    let names = |node: &Node| {
        let mut names = column(&node.ctl_rows(&["list_queues", "name"]).unwrap_or_default(), "name");
        names.sort();
        names
    };
    // Connections that last until their node ends, and one that outlives it.
    let held = runtime.block_on(async {
        let (lost, on_lost) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        declare_filled(&cluster[0], &["held".to_owned()], 3).await;
        let classic = QueueDeclareOptions::durable();
        on_lost.queue_declare("classic".into(), classic, FieldTable::default()).await.unwrap();
        let bound = QueueBindOptions::default();
        on_lost
            .queue_bind("classic".into(), "amq.direct".into(), "k".into(), bound, FieldTable::default())
            .await
            .unwrap();
        let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
        on_lost.queue_declare("exclusive".into(), exclusive, FieldTable::default()).await.unwrap();
        let transient = QueueDeclareOptions { auto_delete: true, ..QueueDeclareOptions::default() };
        on_lost.queue_declare("transient".into(), transient, FieldTable::default()).await.unwrap();
        let consume = BasicConsumeOptions::default();
        let mut consumer =
            on_lost.basic_consume("held".into(), "away".into(), consume, FieldTable::default()).await.unwrap();
        let delivery = consumer.next().await.expect("a delivery").unwrap();
        assert_eq!(delivery.data, b"kept");

        let (stays, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        channel.queue_declare("near".into(), QueueDeclareOptions::durable(), FieldTable::default()).await.unwrap();
        let far = channel.basic_consume("classic".into(), "far".into(), consume, FieldTable::default()).await.unwrap();
        ((lost, on_lost, consumer), stays, channel, far)
    });
    assert_eq!(names(&cluster[0]), ["classic", "exclusive", "held", "near", "transient"]);
    let consumers = |node: &Node| node.ctl_rows(&["list_consumers"]).unwrap_or_default();
    assert_eq!(column(&consumers(&cluster[0]), "queue_name"), ["classic", "held"]);

    cluster[2].stop(Stop::Kill);
    wait_for("the node to be down", SOON, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", "held"])?;
        rows.iter().any(|row| row["Node Name"] == gone && row["Raft State"] == "nodedown").then_some(())
    });
    assert_eq!(names(&cluster[0]).len(), 5, "a node that is down keeps what is its own");
    cluster[0].ctl_ok(&["forget_cluster_node", &gone]);
    for node in &cluster[..2] {
        wait_for("only the other queues to be there", SOON, || (names(node) == ["held", "near"]).then_some(()));
        let bindings = node.ctl_rows(&["list_bindings"]).expect("the verb succeeds");
        assert!(!column(&bindings, "destination_name").iter().any(|name| name == "classic"), "{bindings:?}");
        let rows = node.ctl_rows(&["quorum_status", "held"]).expect("the verb succeeds");
        assert_eq!(rows.len(), 2, "{rows:?}");
    }
    // Its clients' sessions are ended: what they held comes back, and they are waited for no longer.
    wait_for("no consumer to be left", SOON, || consumers(&cluster[0]).is_empty().then_some(()));
    assert!(cluster.iter().any(|node| node.log().contains("sessions of a node that has left the cluster are ended")));
    runtime.block_on(async {
        let (lost, stays, channel, mut far) = held;
        drop(lost);
        assert_eq!(amqp::drain(&channel, "held").await.unwrap(), [b"kept"]);
        let ended = tokio::time::timeout(SOON, far.next()).await.expect("the consumer is told that its queue is gone");
        assert!(ended.is_none(), "{ended:?}");
        // Names are free.
        let durable = QueueDeclareOptions::durable();
        channel.queue_declare("exclusive".into(), durable, FieldTable::default()).await.unwrap();
        drop(stays);
    });
    assert_eq!(names(&cluster[1]), ["exclusive", "held", "near"]);

    // Blank, the node takes nothing of that away.
    cluster[2].wipe();
    cluster.restart(2);
    wait_for("the node to be a member", SOON, || (members_of_cluster(&cluster[0])?.len() == 3).then_some(()));
    assert_eq!(names(&cluster[2]), ["exclusive", "held", "near"]);
}

#[test]
fn a_node_that_was_cut_off_while_it_was_forgotten_ends_when_it_hears_of_it() {
    let mut cluster = Cluster::start(3);
    let gone = cluster[2].name().to_owned();
    let said_before = cluster[2].log().len();
    cluster[2].suspend();
    wait_for("the node to be forgotten", SOON, || {
        let (code, why) = forget(&cluster[0], &[&gone]);
        assert!(code == 0 || why.contains("rabbit_still_running"), "{code}: {why}");
        (code == 0).then_some(())
    });
    cluster[2].resume();
    let status = wait_for("the node to end", SOON, || cluster[2].exited());
    assert_eq!(status.code(), Some(78), "ended with {status}");
    assert!(cluster[2].log()[said_before..].contains("reset it: start it with an empty data directory"));
    refuses_to_start(&mut cluster, 2);
    cluster[2].wipe();
    cluster.restart(2);
    wait_for("three members", SOON, || (members_of_cluster(&cluster[0])?.len() == 3).then_some(()));
}
