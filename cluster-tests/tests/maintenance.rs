//! Maintenance mode, and what else is done to a node before it is stopped.

use std::net::TcpStream;
use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use lapin::types::FieldTable;
use serde_json::Value;
use warren_cluster_tests::{Cluster, Node, Program, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn document(node: &Node, verb: &str) -> Option<Value> {
    node.ctl_rows(&[verb])?.into_iter().next()
}

fn maintenance_of(node: &Node, of: &Node) -> Option<String> {
    document(node, "cluster_status")?["maintenance_status"][of.name()].as_str().map(str::to_owned)
}

/// The leader of each queue, as one node knows it.
fn leaders(node: &Node) -> Option<Vec<String>> {
    let rows = node.ctl_rows(&["list_queues", "name", "leader"])?;
    Some(rows.iter().map(|row| row["leader"].as_str().unwrap_or_default().to_owned()).collect())
}

/// Waits until every one of so many queues has a leader, and none of them that one.
fn wait_led_elsewhere(asked: &Node, count: usize, not: &str) {
    wait_for("all leaders to be on other nodes", SOON, || {
        let leaders = leaders(asked)?;
        (leaders.len() == count && leaders.iter().all(|leader| !leader.is_empty() && leader != not)).then_some(())
    });
}

fn declare(node: &Node, names: impl Iterator<Item = String>) {
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
        for name in names {
            amqp::declare_quorum(&channel, &name).await.unwrap();
        }
    });
}

fn connects(node: &Node) -> bool {
    TcpStream::connect(("127.0.0.1", node.amqp_port())).is_ok()
}

#[test]
fn a_drained_node_loses_its_clients_and_leaders_until_it_is_revived() {
    let mut cluster = Cluster::start(3);
    let drained = cluster[0].name().to_owned();
    declare(&cluster[0], (0..12).map(|n| format!("q{n}")));
    let file = |name: &str| cluster.folder().join(name);
    let (up, moved, revived) = (file("up"), file("moved"), file("revived"));
    let mut client = Program::python("drained.py")
        .arg("--ports", cluster.ports())
        .arg("--up-file", up.display())
        .arg("--moved-file", moved.display())
        .arg("--revived-file", revived.display())
        .start();
    wait_for("the client to work", SOON, || (up.exists() || !client.is_running()).then_some(()));

    cluster[0].ctl_ok(&["drain"]);
    wait_led_elsewhere(&cluster[1], 13, &drained);
    for node in cluster.iter() {
        let marked = maintenance_of(node, &cluster[0]);
        assert_eq!(marked.as_deref(), Some("marked for maintenance"), "as {} says", node.name());
    }
    let status = document(&cluster[0], "cluster_status").expect("operators are still answered");
    assert_ne!(status["metadata_leader"], drained.as_str());
    assert_eq!(document(&cluster[0], "status").unwrap()["is_under_maintenance"], true);
    wait_for("the client to work elsewhere", SOON, || (moved.exists() || !client.is_running()).then_some(()));
    assert!(!connects(&cluster[0]), "the node accepts clients");
    // It is a no-op where it was done, and the node is known to be out of service.
    cluster[0].ctl_ok(&["drain"]);
    cluster[0].ctl_ok(&["check_if_node_is_quorum_critical"]);

    // It does not come to lead anything, neither new nor old.
    declare(&cluster[1], (0..6).map(|n| format!("new{n}")));
    cluster[1].ctl_ok(&["rebalance", "quorum"]);
    wait_led_elsewhere(&cluster[1], 19, &drained);
    cluster[1].stop(Stop::Kill);
    wait_for("the last node to lead all queues", SOON, || {
        leaders(&cluster[2])?.iter().all(|leader| leader == "w3@localhost").then_some(())
    });
    cluster.restart(1);

    cluster[0].ctl_ok(&["revive"]);
    assert!(connects(&cluster[0]), "the node accepts no clients");
    assert_eq!(maintenance_of(&cluster[1], &cluster[0]).as_deref(), Some("not under maintenance"));
    std::fs::write(&revived, b"").expect("a file can be written");
    client.pass();
    cluster[1].ctl_ok(&["rebalance", "quorum"]);
    wait_for("the node to lead queues again", SOON, || leaders(&cluster[1])?.contains(&drained).then_some(()));
}

#[test]
fn a_node_that_starts_is_in_service_and_one_alone_can_be_drained() {
    let mut cluster = Cluster::start(1);
    declare(&cluster[0], std::iter::once("alone".to_owned()));
    cluster[0].ctl_ok(&["drain"]);
    assert!(!connects(&cluster[0]));
    assert_eq!(cluster[0].stop(Stop::Terminate).code(), Some(0));
    cluster.restart(0);
    assert_eq!(maintenance_of(&cluster[0], &cluster[0]).as_deref(), Some("not under maintenance"));
    assert_eq!(document(&cluster[0], "status").unwrap()["is_under_maintenance"], false);
    declare(&cluster[0], std::iter::once("another".to_owned()));
}

#[test]
fn a_node_that_cannot_be_marked_is_not_drained() {
    let mut cluster = Setup::new().line("metadata_store.default_timeout = 2000").start(3);
    cluster[1].stop(Stop::Kill);
    cluster[2].stop(Stop::Kill);
    let output = cluster[0].ctl(&["drain"]);
    assert_eq!(output.status.code(), Some(75), "{}", String::from_utf8_lossy(&output.stderr));
    assert!(connects(&cluster[0]), "nothing else was done");
}

#[test]
fn suspended_listeners_take_no_new_client_and_lose_none() {
    let cluster = Cluster::start(1);
    let runtime = runtime();
    let (_connection, channel) = runtime.block_on(amqp::confirm_channel(&cluster[0])).unwrap();
    cluster[0].ctl_ok(&["suspend_listeners"]);
    assert!(!connects(&cluster[0]));
    let listeners = cluster[0].ctl_ok(&["-q", "listeners"]);
    assert!(!listeners.contains("protocol: amqp") && listeners.contains("protocol: clustering"), "{listeners}");
    let declared = channel.queue_declare("q".into(), QueueDeclareOptions::durable(), FieldTable::default());
    runtime.block_on(declared).expect("the client that was there is served");
    cluster[0].ctl_ok(&["suspend_listeners"]);
    cluster[0].ctl_ok(&["resume_listeners"]);
    assert!(connects(&cluster[0]));
    cluster[0].ctl_ok(&["resume_listeners"]);
}

#[test]
fn a_node_may_be_stopped_once_one_more_than_a_majority_runs() {
    let mut cluster = Cluster::start(3);
    let alone = Cluster::start(1);
    alone[0].ctl_ok(&["await_online_quorum_plus_one"]);
    declare(&cluster[0], std::iter::once("guarded".to_owned()));
    wait_for("all members to vote", SOON, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", "guarded"])?;
        (rows.len() == 3 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
    cluster[0].ctl_ok(&["await_online_quorum_plus_one"]);
    cluster[0].ctl_ok(&["check_if_node_is_quorum_critical"]);

    cluster[2].stop(Stop::Kill);
    wait_for("the node to be seen as down", SOON, || {
        (!cluster[0].ctl(&["check_if_node_is_quorum_critical"]).status.success()).then_some(())
    });
    let started = Instant::now();
    let output = cluster[0].ctl(&["-t", "3", "await_online_quorum_plus_one"]);
    assert_eq!(output.status.code(), Some(69));
    assert!(started.elapsed() >= Duration::from_secs(3), "it gave up after {:?}", started.elapsed());
    let why = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(why.contains("guarded") && why.contains("rabbitmq_metadata"), "{why}");
    let output = cluster[0].ctl(&["check_if_node_is_quorum_critical", "--formatter", "json"]);
    assert_eq!(output.status.code(), Some(69));
    let told: Value = serde_json::from_slice(&output.stdout).expect("JSON");
    assert_eq!(
        (&told["result"], &told["queues"][0]["name"]),
        (&Value::from("error"), &Value::from("rabbitmq_metadata"))
    );
    let queue = &told["queues"][1];
    assert_eq!((&queue["name"], &queue["virtual_host"]), (&Value::from("guarded"), &Value::from("/")));
    cluster[2].start();
    cluster[0].ctl_ok(&["-t", "60", "await_online_quorum_plus_one"]);

    for verb in ["check_if_metadata_store_is_initialized", "check_if_metadata_store_is_initialized_with_data"] {
        cluster[0].ctl_ok(&[verb]);
    }
    assert_eq!(cluster[0].ctl_ok(&["-q", "discover_peers"]).trim(), "w1@localhost\nw2@localhost\nw3@localhost");
    cluster[0].ctl_ok(&["await_online_nodes", "3"]);
    let rows = cluster[0].ctl_rows(&["post_upgrade"]).expect("the verb succeeds");
    assert_eq!(rows.len(), 3, "{rows:?}");
}
