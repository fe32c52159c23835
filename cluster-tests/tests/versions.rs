//! Nodes whose binaries know different machine versions: the one that knows less holds the queue back, by name, until it
//! is upgraded or its member removed. `quorum_queue.machine_version_limit` makes a node such an old one.

use std::time::Duration;

use warren_cluster_tests::{Cluster, Load, Node, Setup, Stop, amqp, wait_for};

const SOON: Duration = Duration::from_secs(30);
const OLD: &str = "quorum_queue.machine_version_limit = 1\n";

/// What `versions` says of a queue: node, effective version, supported versions.
fn versions(node: &Node, queue: &str) -> Vec<(String, u64, String)> {
    let rows = node.ctl_rows(&["versions", "--queue-pattern", &format!("^{queue}$")]).expect("it answers");
    let text = |row: &serde_json::Value, column: &str| row[column].as_str().unwrap_or_default().to_owned();
    let of = |row: &serde_json::Value| {
        (text(row, "node"), row["effective"].as_u64().unwrap_or_default(), text(row, "supported"))
    };
    rows.iter().map(of).collect()
}

fn effective(node: &Node, queue: &str) -> Vec<u64> {
    versions(node, queue).into_iter().map(|(_, effective, _)| effective).collect()
}

/// Waits until all members say that this version is in effect.
fn wait_effective(node: &Node, queue: &str, versions: &[u64]) {
    wait_for("the queue's version", SOON, || (effective(node, queue) == versions).then_some(()));
}

fn declare(node: &Node, queue: &str) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        assert_eq!(amqp::publish(&channel, queue, b"m", amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
    });
}

fn lay_out() -> Cluster {
    let cluster = Setup::new().lay_out(3);
    cluster[2].configure(|text| text + OLD);
    cluster
}

#[test]
fn an_old_member_holds_its_queue_back_until_its_node_is_upgraded() {
    let mut cluster = lay_out();
    cluster.start_all();
    let load = Load::start(&cluster, "upgraded");
    wait_effective(&cluster[0], "upgraded", &[1, 1, 1]);
    let told = versions(&cluster[0], "upgraded");
    assert_eq!(told.len(), 3, "{told:?}");
    let old = told.iter().find(|(node, ..)| node == "w3@localhost").unwrap();
    assert_eq!(old.2, "1..1");
    assert!(told.iter().filter(|(node, ..)| node != "w3@localhost").all(|(.., known)| known == "1..2"), "{told:?}");

    // An absent member holds it back as well.
    cluster[2].stop(Stop::Terminate);
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(effective(&cluster[0], "upgraded")[..2], [1, 1]);

    cluster[2].configure(|text| text.replace(OLD, ""));
    cluster.restart(2);
    wait_effective(&cluster[0], "upgraded", &[2, 2, 2]);
    // Its log now holds both versions' entries, and is replayed.
    cluster.kill_all();
    cluster.start_all();
    wait_effective(&cluster[1], "upgraded", &[2, 2, 2]);
    load.finish();
}

#[test]
fn a_queue_is_released_when_the_old_member_is_removed_and_does_not_take_it_again() {
    let mut cluster = lay_out();
    cluster.start_all();
    declare(&cluster[0], "released");
    wait_effective(&cluster[0], "released", &[1, 1, 1]);
    cluster[2].stop(Stop::Kill);
    cluster[0].ctl_ok(&["delete_member", "released", "w3@localhost"]);
    wait_effective(&cluster[0], "released", &[2, 2]);
    cluster.restart(2);
    let refused = cluster[0].ctl(&["add_member", "released", "w3@localhost"]);
    let why = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert!(
        refused.status.code() == Some(69) && why.contains("w3@localhost") && why.contains("machine version"),
        "{why}"
    );
    assert_eq!(effective(&cluster[1], "released"), [2, 2]);
    // New queues begin with what all of their nodes know.
    declare(&cluster[1], "next");
    wait_effective(&cluster[1], "next", &[1, 1, 1]);
}

#[test]
fn a_node_that_was_downgraded_stops_its_members_alone_and_keeps_their_logs() {
    let mut cluster = Cluster::start(3);
    declare(&cluster[0], "kept");
    wait_effective(&cluster[0], "kept", &[2, 2, 2]);
    cluster[2].stop(Stop::Terminate);
    cluster[2].configure(|text| text + OLD);
    cluster.restart(2);
    wait_for("the member to say that it is blocked", SOON, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", "kept"])?;
        let row = rows.into_iter().find(|row| row["Node Name"] == "w3@localhost")?;
        (row["Raft State"] == "blocked_on_version" && row["supported_machine_version"] == 1).then_some(())
    });
    declare(&cluster[2], "kept");
    cluster[2].stop(Stop::Terminate);
    cluster[2].configure(|text| text.replace(OLD, ""));
    cluster.restart(2);
    wait_effective(&cluster[0], "kept", &[2, 2, 2]);
    cluster[0].stop(Stop::Kill);
    declare(&cluster[1], "kept");
}
