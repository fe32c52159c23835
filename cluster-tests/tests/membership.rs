//! Joining and leaving a cluster by an operator's word, and nodes whose app is stopped.

use std::fs;
use std::net::TcpStream;
use std::time::Duration;

use lapin::options::QueueDeclareOptions;
use lapin::types::{AMQPValue, FieldTable};
use serde_json::{Value, json};
use warren_cluster_tests::{Cluster, Node, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

/// Nodes that know nothing of each other.
fn strangers(setup: Setup, count: usize) -> Cluster {
    let mut cluster = setup.lay_out(count);
    for node in cluster.iter_mut() {
        node.configure(|text| {
            let kept = text.lines().filter(|line| !line.contains("classic_config.nodes."));
            kept.flat_map(|line| [line, "\n"]).collect()
        });
    }
    cluster
}

/// How another node names it: with its peer port, since several nodes share the host.
fn reached_at(node: &Node) -> String {
    let mut port = String::new();
    node.configure(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("peer.port = ")).expect("the port is configured");
        port = line.to_owned();
        text
    });
    format!("{}:{port}", node.name())
}

fn status(node: &Node) -> Option<Value> {
    node.ctl_rows(&["cluster_status"])?.into_iter().next()
}

fn names(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).map(str::to_owned).collect()
}

/// Waits until the nodes agree that they, and nobody else, are a cluster that runs.
fn wait_cluster(nodes: &[&Node]) {
    let all: Vec<String> = nodes.iter().map(|node| node.name().to_owned()).collect();
    for node in nodes {
        wait_for("the nodes to be one cluster", SOON, || {
            let status = status(node)?;
            let (members, mut running) = (names(&status["disk_nodes"]), names(&status["running_nodes"]));
            running.sort();
            (members == all && running == all).then_some(())
        });
    }
}

/// A verb that fails: its exit code, and what it said of why.
fn refused(node: &Node, arguments: &[&str]) -> (i32, String) {
    let output = node.ctl(arguments);
    (output.status.code().expect("it ends by itself"), String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A node of its own, with feature flags that others need not know.
fn define_flags(cluster: &Cluster, index: usize, flags: &Value) {
    let file = cluster.folder().join(format!("flags-{index}.json"));
    fs::write(&file, flags.to_string()).unwrap();
    let line = format!("feature_flags.test_definitions = {}\n", file.display());
    cluster[index].configure(|text| if text.contains(&line) { text } else { text + &line });
}

#[test]
fn a_node_whose_flags_do_not_go_together_with_the_clusters_joins_nothing_and_keeps_what_it_has() {
    let mut cluster = strangers(Setup::new(), 2);
    define_flags(&cluster, 0, &json!({"flags": [{"name": "of_the_cluster"}]}));
    define_flags(&cluster, 1, &json!({"flags": [{"name": "of_the_node"}]}));
    cluster.start_all();
    let target = reached_at(&cluster[0]);
    cluster[1].ctl_ok(&["add_vhost", "kept"]);
    let incompatible = |node: &Node, flag: &str| {
        let (code, why) = refused(node, &["join_cluster", &target]);
        assert!(code == 69 && why.contains("incompatible_feature_flags") && why.contains(flag), "{code}: {why}");
    };
    incompatible(&cluster[1], "of_the");
    assert_eq!(vhosts(&cluster[1]), ["/", "kept"]);

    // Nor while its app is stopped, when it counts as if it had been reset.
    cluster[1].ctl_ok(&["stop_app"]);
    incompatible(&cluster[1], "of_the_cluster");
    cluster[1].ctl_ok(&["start_app"]);
    cluster[1].ctl_ok(&["await_startup"]);
    assert_eq!(vhosts(&cluster[1]), ["/", "kept"]);
    let flags = cluster[1].ctl_rows(&["list_feature_flags"]).expect("the node answers");
    assert!(flags.iter().any(|flag| flag["name"] == "of_the_node" && flag["state"] == "enabled"), "{flags:?}");

    // Reset, and with a flag that it lacked, it joins and has it.
    cluster[1].ctl_ok(&["stop_app"]);
    cluster[1].ctl_ok(&["reset"]);
    cluster[1].stop(Stop::Terminate);
    define_flags(&cluster, 1, &json!({"flags": [{"name": "of_the_cluster"}]}));
    cluster.restart(1);
    cluster[1].ctl_ok(&["join_cluster", &target]);
    wait_cluster(&[&cluster[0], &cluster[1]]);
    let enabled = || {
        let flags = cluster[1].ctl_rows(&["list_feature_flags"])?;
        flags.iter().any(|flag| flag["name"] == "of_the_cluster" && flag["state"] == "enabled").then_some(())
    };
    wait_for("the node to have the cluster's flag", SOON, enabled);
    // The metadata shows them.
    wait_for("the metadata to show the flags", SOON, || {
        let shown = cluster[0].ctl(&["metadata", "get", "/:warren/:feature_flags"]);
        String::from_utf8_lossy(&shown.stdout).contains("of_the_cluster").then_some(())
    });
}

fn vhosts(node: &Node) -> Vec<String> {
    let rows = node.ctl_rows(&["list_vhosts", "name"]).expect("the node answers");
    let mut names: Vec<String> = rows.iter().map(|row| row["name"].as_str().unwrap_or_default().to_owned()).collect();
    names.sort();
    names
}

async fn declare_of_size(node: &Node, queue: &str, members: i32) {
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    let mut arguments = FieldTable::default();
    arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    arguments.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(members));
    channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), arguments).await.unwrap();
    let confirmed = amqp::publish(&channel, queue, b"kept", amqp::ANSWER_LIMIT).await;
    assert_eq!(confirmed.unwrap(), Some(true));
}

#[test]
fn an_app_is_stopped_and_started_again_in_one_process() {
    let mut cluster = Cluster::start(3);
    runtime().block_on(declare_of_size(&cluster[2], "kept", 3));
    let pid = cluster[2].pid();
    let port = cluster[2].amqp_port();
    for _ in 0..2 {
        cluster[2].ctl_ok(&["stop_app"]);
    }
    assert!(TcpStream::connect(("127.0.0.1", port)).is_err(), "clients can connect");
    cluster[2].ctl_ok(&["ping"]);
    cluster[2].ctl_ok(&["status"]);
    let said = cluster[2].ctl_ok(&["-q", "is_running"]);
    assert!(said.contains("is not running"), "{said}");
    let (code, why) = refused(&cluster[2], &["check_running"]);
    assert!(code == 69 && why.contains("app is stopped"), "{code}: {why}");
    let (code, why) = refused(&cluster[2], &["list_users"]);
    assert!(code == 64 && why.contains("start_app"), "{code}: {why}");
    wait_for("the others to see it as stopped", SOON, || {
        (names(&status(&cluster[0])?["running_nodes"]).len() == 2).then_some(())
    });
    assert_eq!(names(&status(&cluster[0]).unwrap()["disk_nodes"]).len(), 3);
    for _ in 0..2 {
        cluster[2].ctl_ok(&["start_app"]);
    }
    assert!(cluster[2].exited().is_none());
    assert_eq!(cluster[2].pid(), pid);
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
    let (code, why) = refused(&cluster[2], &["reset"]);
    assert!(code == 64 && why.contains("stop_app"), "{code}: {why}");
    let (code, why) = refused(&cluster[2], &["force_reset"]);
    assert!(code == 69 && why.contains("not supported with Raft-based metadata"), "{code}: {why}");
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(amqp::drain(&channel, "kept").await.unwrap(), [b"kept"]);
    });
    // Its signals end it in either state.
    cluster[2].ctl_ok(&["stop_app"]);
    assert_eq!(cluster[2].stop(Stop::Terminate).code(), Some(0));
    cluster.restart(2);
}

#[test]
fn a_node_joins_a_cluster_and_gives_up_what_it_had() {
    let mut cluster = strangers(Setup::new().line("metadata_store.default_timeout = 3000"), 3);
    cluster.start_all();
    let seed = reached_at(&cluster[0]);
    for (number, node) in cluster.iter().enumerate() {
        wait_cluster(&[node]);
        node.ctl_ok(&["add_vhost", &format!("of{number}")]);
        node.ctl_ok(&["add_user", &format!("user{number}"), "secret"]);
    }
    runtime().block_on(declare_of_size(&cluster[1], "lost", 1));
    let pid = cluster[1].pid();
    let own = reached_at(&cluster[1]);
    let (code, why) = refused(&cluster[1], &["join_cluster", &own]);
    assert!(code == 70 && why.contains("cannot_cluster_node_with_itself"), "{code}: {why}");
    let (code, why) = refused(&cluster[1], &["join_cluster", "nobody@localhost:1"]);
    assert!(code == 69 && why.contains("does not answer"), "{code}: {why}");
    assert_eq!(refused(&cluster[1], &["join_cluster", "--ram", &seed]).0, 64);
    assert_eq!(vhosts(&cluster[1]), ["/", "of1"]);

    cluster[1].ctl_ok(&["join_cluster", &seed]);
    wait_cluster(&[&cluster[0], &cluster[1]]);
    assert_eq!(cluster[1].pid(), pid);
    for node in &cluster[..2] {
        assert_eq!(vhosts(node), ["/", "of0"]);
        assert_eq!(node.ctl_rows(&["list_queues", "name"]).unwrap(), Vec::<Value>::new());
    }
    let text = cluster[1].ctl_ok(&["join_cluster", &seed]);
    assert!(text.contains("already a member"), "{text}");
    wait_for("both to vote", SOON, || {
        let rows = cluster[0].ctl_rows(&["metadata_store_status"])?;
        (rows.len() == 2 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
    // Who is in a cluster with others leaves that first.
    let third = reached_at(&cluster[2]);
    let (code, why) = refused(&cluster[1], &["join_cluster", &third]);
    assert!(code == 69 && why.contains("reset"), "{code}: {why}");

    // One of two is no majority: nothing is changed, there or here.
    cluster[1].stop(Stop::Kill);
    let (code, why) = wait_for("the majority to be missed", SOON, || {
        let (code, why) = refused(&cluster[2], &["join_cluster", &seed]);
        (code != 0).then_some((code, why))
    });
    assert!(code == 75 && why.contains("lost its majority"), "{code}: {why}");
    assert_eq!(vhosts(&cluster[2]), ["/", "of2"]);
    cluster[2].ctl_ok(&["authenticate_user", "user2", "secret"]);
    assert_eq!(names(&status(&cluster[0]).unwrap()["disk_nodes"]).len(), 2);
    cluster.restart(1);
    // In RabbitMQ's order of old.
    cluster[2].ctl_ok(&["stop_app"]);
    cluster[2].ctl_ok(&["reset"]);
    cluster[2].ctl_ok(&["join_cluster", &seed]);
    let (code, _) = refused(&cluster[2], &["list_users"]);
    assert_eq!(code, 64, "its app is still stopped");
    cluster[2].ctl_ok(&["start_app"]);
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
    assert_eq!(vhosts(&cluster[2]), ["/", "of0"]);

    // It is a node like any other: it has members of queues, and comes back from a restart.
    runtime().block_on(declare_of_size(&cluster[2], "shared", 3));
    cluster[2].stop(Stop::Kill);
    cluster.restart(2);
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(amqp::drain(&channel, "shared").await.unwrap(), [b"kept"]);
    });
}

#[test]
fn a_node_that_is_reset_leaves_its_cluster_and_is_blank() {
    let mut cluster = strangers(Setup::new().line("metadata_store.default_timeout = 3000"), 3);
    cluster.start_all();
    let seed = reached_at(&cluster[0]);
    for node in &cluster[1..] {
        node.ctl_ok(&["join_cluster", &seed]);
    }
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
    cluster[0].ctl_ok(&["add_vhost", "shared"]);
    runtime().block_on(async {
        declare_of_size(&cluster[2], "alone", 1).await;
        declare_of_size(&cluster[2], "common", 3).await;
    });
    wait_for("all members to vote", SOON, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", "common"])?;
        (rows.len() == 3 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
    cluster[2].ctl_ok(&["stop_app"]);
    // Without a majority the node cannot leave, and keeps what it has.
    cluster[1].stop(Stop::Kill);
    let (code, why) = refused(&cluster[2], &["reset"]);
    assert!(code == 75 && why.contains("lost its majority"), "{code}: {why}");
    cluster.restart(1);
    wait_for("the node to be let go", SOON, || cluster[2].ctl(&["reset"]).status.success().then_some(()));
    wait_cluster(&[&cluster[0], &cluster[1]]);
    let queues = cluster[0].ctl_rows(&["list_queues", "name"]).expect("the node answers");
    assert_eq!(queues.len(), 1, "what was on that node alone is gone: {queues:?}");
    let rows = cluster[0].ctl_rows(&["quorum_status", "common"]).expect("the queue is there");
    assert_eq!(rows.len(), 2, "{rows:?}");
    cluster[2].ctl_ok(&["start_app"]);
    wait_cluster(&[&cluster[2]]);
    assert_eq!(vhosts(&cluster[2]), ["/"]);
    assert_eq!(cluster[2].ctl_rows(&["list_queues", "name"]).unwrap(), Vec::<Value>::new());
    cluster[2].ctl_ok(&["join_cluster", &seed]);
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
}

#[test]
fn nodes_that_join_at_once_all_come_in() {
    let mut cluster = strangers(Setup::new(), 4);
    cluster.start_all();
    let seed = reached_at(&cluster[0]);
    std::thread::scope(|scope| {
        for node in &cluster[1..] {
            scope.spawn(|| {
                // One change of members at a time: who comes too early is told so, and asks again.
                wait_for("the node to be taken in", SOON, || {
                    node.ctl(&["join_cluster", &seed]).status.success().then_some(())
                });
            });
        }
    });
    wait_cluster(&cluster.iter().collect::<Vec<_>>());
    wait_for("all to vote", SOON, || {
        let rows = cluster[0].ctl_rows(&["metadata_store_status"])?;
        (rows.len() == 4 && rows.iter().all(|row| row["Membership"] == "voter")).then_some(())
    });
}
