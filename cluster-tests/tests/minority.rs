//! Nodes without a majority of their cluster: what they refuse, what goes on, and that nothing is left behind.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{
    BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, QueueBindOptions, QueueDeclareOptions,
};
use lapin::types::FieldTable;
use lapin::{BasicProperties, Channel, Consumer};
use serde_json::Value;
use warren_cluster_tests::{Cluster, Node, Program, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn status(node: &Node) -> Option<Value> {
    node.ctl_rows(&["cluster_status"])?.into_iter().next()
}

/// The index of the node that leads the metadata.
fn metadata_leader(cluster: &Cluster, asked: usize) -> Option<usize> {
    let leader = status(&cluster[asked])?["metadata_leader"].as_str()?.to_owned();
    cluster.iter().position(|node| node.name() == leader)
}

fn queue_names(node: &Node) -> Vec<String> {
    let rows = node.ctl_rows(&["list_queues", "name"]).unwrap_or_default();
    let mut names: Vec<String> = rows.iter().map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

/// The last index of the metadata's log on that node.
fn last_index(node: &Node) -> Option<u64> {
    let rows = node.ctl_rows(&["metadata_store_status"])?;
    rows.iter().find(|row| row["Node Name"] == node.name())?["Last Log Index"].as_u64()
}

#[test]
fn without_a_majority_changes_fail_in_bounded_time_and_leave_nothing_half_done() {
    let timeout = 4;
    let mut cluster = Setup::new().line(&format!("metadata_store.default_timeout = {}", timeout * 1000)).start(3);
    // It is the leader that is left: it may have taken in what it cannot commit any more.
    let left = wait_for("a leader of the metadata", SOON, || metadata_leader(&cluster, 0));
    let others: Vec<usize> = (0..3).filter(|index| *index != left).collect();
    cluster[left].ctl_ok(&["add_vhost", "old"]);
    let file = |name: &str| cluster.folder().join(name);
    let (up, down, asked, healed) = (file("up"), file("down"), file("asked"), file("healed"));
    let mut program = Program::python("minority.py")
        .arg("--ports", cluster[left].amqp_port())
        .arg("--up-file", up.display())
        .arg("--down-file", down.display())
        .arg("--asked-file", asked.display())
        .arg("--healed-file", healed.display())
        .arg("--metadata-timeout", timeout)
        .start();
    let mut await_file = |what: &str, file: &std::path::Path| {
        wait_for(what, SOON * 2, || (file.exists() || !program.is_running()).then_some(()));
    };
    await_file("the clients to be ready", &up);
    for index in &others {
        cluster[*index].stop(Stop::Kill);
    }
    std::fs::write(&down, b"").expect("a file can be written");

    let gone = cluster[others[0]].name().to_owned();
    for arguments in [
        &["add_user", "late", "secret"][..],
        &["add_vhost", "late"],
        &["delete_vhost", "old"],
        &["set_policy", "late", "^late", r#"{"max-length": 5}"#],
        &["set_permissions", "guest", "", "", ""],
        &["set_parameter", "vhost-limits", "limits", r#"{"max-queues": 100}"#],
        &["set_global_parameter", "late", "1"],
        &["set_cluster_name", "late"],
        &["forget_cluster_node", &gone],
        &["drain"],
    ] {
        let output = cluster[left].ctl(arguments);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(75), "{arguments:?}: {why}");
        assert!(why.contains("timed out"), "{arguments:?}: {why}");
    }
    await_file("everything to be refused", &asked);
    // What is known here is still told, and no leader takes anything in.
    let told = status(&cluster[left]).expect("the node answers");
    assert_eq!(told["metadata_leader"], Value::Null);
    assert_eq!(told["disk_nodes"].as_array().map(Vec::len), Some(3));
    assert!(queue_names(&cluster[left]).contains(&"local".to_owned()));
    let before = last_index(&cluster[left]).expect("the node answers");
    assert_eq!(cluster[left].ctl(&["add_user", "later", "secret"]).status.code(), Some(75));
    assert_eq!(last_index(&cluster[left]), Some(before), "a leader that is none has appended something");

    cluster.start_all();
    wait_for("nothing exclusive to be left", SOON, || {
        let rows = cluster[left].ctl_rows(&["list_queues", "name", "exclusive"])?;
        rows.iter().all(|row| row["exclusive"] != true).then_some(())
    });
    std::fs::write(&healed, b"").expect("a file can be written");
    program.pass();
    for node in cluster.iter() {
        for vhost in node.ctl_rows(&["list_vhosts", "name"]).expect("the node answers") {
            let name = vhost["name"].as_str().expect("a name");
            let exchanges = node.ctl_rows(&["list_exchanges", "-p", name, "name"]).expect("the node answers");
            assert!(exchanges.len() >= 7, "vhost {name} has no default exchanges: {exchanges:?}");
        }
        assert_eq!(status(node).unwrap()["disk_nodes"].as_array().map(Vec::len), Some(3), "nothing was pending");
    }
}

async fn exclusive_queue(channel: &Channel, name: &str) -> Consumer {
    let exclusive = QueueDeclareOptions { exclusive: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(name.into(), exclusive, FieldTable::default()).await.unwrap();
    let bound = QueueBindOptions::default();
    channel.queue_bind(name.into(), "amq.direct".into(), name.into(), bound, FieldTable::default()).await.unwrap();
    let consume = BasicConsumeOptions::default();
    channel.basic_consume(name.into(), "".into(), consume, FieldTable::default()).await.unwrap()
}

/// Publishes a message through the binding, and has the consumer get it.
async fn passes(channel: &Channel, consumer: &mut Consumer, key: &str, body: &str) {
    let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
    let publish =
        channel.basic_publish("amq.direct".into(), key.into(), options, body.as_bytes(), BasicProperties::default());
    publish.await.unwrap();
    let delivery = tokio::time::timeout(SOON, consumer.next()).await.expect("a delivery in time");
    let delivery = delivery.expect("the consumer lives").unwrap();
    assert_eq!(delivery.data, body.as_bytes());
    delivery.ack(BasicAckOptions::default()).await.unwrap();
}

/// Waits until the node sees so many running nodes.
fn wait_running(node: &Node, count: usize) {
    wait_for("the nodes to be seen", SOON, || {
        (status(node)?["running_nodes"].as_array()?.len() == count).then_some(())
    });
}

#[test]
fn an_exclusive_queue_outlives_the_time_in_which_its_node_is_cut_off() {
    let cluster = Cluster::start(3);
    let runtime = runtime();
    let (_connection, channel) = runtime.block_on(amqp::confirm_channel(&cluster[0])).unwrap();
    let mut consumer = runtime.block_on(exclusive_queue(&channel, "mine"));
    runtime.block_on(passes(&channel, &mut consumer, "mine", "before"));

    // The others are away: its node serves alone, and knows that it has no majority.
    cluster[1].suspend();
    cluster[2].suspend();
    wait_running(&cluster[0], 1);
    for n in 0..10 {
        runtime.block_on(passes(&channel, &mut consumer, "mine", &format!("alone {n}")));
    }
    cluster[1].resume();
    cluster[2].resume();
    wait_running(&cluster[0], 3);
    runtime.block_on(passes(&channel, &mut consumer, "mine", "after"));

    // The node is away: the majority goes on without it, and does not take it for dead.
    cluster[0].suspend();
    wait_running(&cluster[1], 2);
    wait_for("the majority to write", SOON, || {
        cluster[1].ctl(&["set_cluster_name", "two"]).status.success().then_some(())
    });
    cluster[0].resume();
    wait_running(&cluster[1], 3);
    for n in 0..10 {
        runtime.block_on(passes(&channel, &mut consumer, "mine", &format!("again {n}")));
    }
    for node in cluster.iter() {
        assert_eq!(queue_names(node), ["mine"], "on {}", node.name());
    }
}

#[test]
fn what_a_connection_leaves_behind_in_a_minority_goes_when_the_majority_is_back() {
    let mut cluster = Setup::new().line("metadata_store.default_timeout = 2000").start(3);
    let runtime = runtime();
    runtime.block_on(async {
        let (connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let on_exclusive = exclusive_queue(&channel, "mine").await;
        let transient = QueueDeclareOptions { auto_delete: true, ..QueueDeclareOptions::default() };
        channel.queue_declare("transient".into(), transient, FieldTable::default()).await.unwrap();
        let consume = BasicConsumeOptions::default();
        let on_transient =
            channel.basic_consume("transient".into(), "".into(), consume, FieldTable::default()).await.unwrap();
        cluster[1].stop(Stop::Kill);
        cluster[2].stop(Stop::Kill);
        wait_running(&cluster[0], 1);
        connection.close(200, "done".into()).await.unwrap();
        drop((on_exclusive, on_transient));
    });
    // A change that is asked for after them has failed: so have they.
    assert_eq!(cluster[0].ctl(&["add_vhost", "late"]).status.code(), Some(75));
    assert_eq!(queue_names(&cluster[0]), ["mine", "transient"], "the records stay for now");
    cluster.restart(1);
    for index in [0, 1] {
        wait_for("the queues to be deleted", SOON, || queue_names(&cluster[index]).is_empty().then_some(()));
        let bindings = cluster[index].ctl_rows(&["list_bindings"]).expect("the node answers");
        assert!(bindings.iter().all(|row| row["destination_name"] != "mine"), "{bindings:?}");
    }
}

#[test]
fn exclusive_queues_of_a_killed_node_are_gone_before_it_serves_again() {
    let mut cluster = Cluster::start(3);
    let runtime = runtime();
    let held = runtime.block_on(async {
        let (connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let consumer = exclusive_queue(&channel, "mine").await;
        (connection, channel, consumer)
    });
    cluster[0].stop(Stop::Kill);
    wait_running(&cluster[1], 2);
    assert_eq!(queue_names(&cluster[1]), ["mine"], "others delete nothing");
    cluster.restart(0);
    assert!(queue_names(&cluster[0]).is_empty());
    let bindings = cluster[0].ctl_rows(&["list_bindings"]).expect("the node answers");
    assert!(bindings.iter().all(|row| row["destination_name"] != "mine"), "{bindings:?}");
    drop(held);
}
