//! Members of quorum queues come and go, and leaders move, by the commands that operators use.

use std::time::Duration;

use lapin::options::{BasicGetOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use serde_json::Value;
use warren_cluster_tests::{Cluster, Load, Node, Setup, Stop, amqp, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// The queue's members by `quorum_status`: node, state and part.
fn members(node: &Node, queue: &str) -> Option<Vec<(String, String, String)>> {
    let text = |row: &Value, column: &str| row[column].as_str().unwrap_or_default().to_owned();
    let rows = node.ctl_rows(&["quorum_status", queue])?;
    Some(rows.iter().map(|r| (text(r, "Node Name"), text(r, "Raft State"), text(r, "Membership"))).collect())
}

fn nodes_of(node: &Node, queue: &str) -> Vec<String> {
    members(node, queue).unwrap_or_default().into_iter().map(|(node, ..)| node).collect()
}

/// Waits until all members vote and one leads.
fn wait_settled(node: &Node, queue: &str, count: usize) {
    wait_for("all members to vote", SOON, || {
        let members = members(node, queue)?;
        let led = members.iter().filter(|(_, state, _)| state == "leader").count() == 1;
        let all = members.len() == count && members.iter().all(|(_, _, part)| part == "voter");
        (led && all).then_some(())
    });
}

fn exit(node: &Node, arguments: &[&str]) -> i32 {
    node.ctl(arguments).status.code().expect("it ends by itself")
}

fn declare_with_one_member(node: &Node, queues: &[String]) {
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
        for queue in queues {
            let mut arguments = FieldTable::default();
            arguments.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
            arguments.insert("x-quorum-initial-group-size".into(), AMQPValue::LongInt(1));
            let options = QueueDeclareOptions::durable();
            channel.queue_declare(queue.as_str().into(), options, arguments).await.unwrap();
            let confirmed = amqp::publish(&channel, queue, b"kept", amqp::ANSWER_LIMIT).await;
            assert_eq!(confirmed.unwrap(), Some(true));
        }
    });
}

#[test]
fn a_queue_moves_from_node_to_node_under_load_without_losing_anything() {
    let cluster = Cluster::start(5);
    let load = Load::start(&cluster, "moving");
    for round in 0..4 {
        let here = nodes_of(&cluster[0], "moving");
        assert_eq!(here.len(), 3, "{here:?}");
        let to = cluster.iter().map(Node::name).find(|name| !here.iter().any(|h| h == name)).expect("five nodes");
        cluster[round].ctl_ok(&["add_member", "moving", to]);
        wait_settled(&cluster[0], "moving", 4);
        // The leader's own member is the one that goes.
        let from = wait_for("a leader", SOON, || cluster.leader_of("moving"));
        cluster[(round + 1) % 5].ctl_ok(&["delete_member", "moving", cluster[from].name()]);
        wait_settled(&cluster[0], "moving", 3);
        assert!(!nodes_of(&cluster[0], "moving").iter().any(|name| name == cluster[from].name()));
        let to = nodes_of(&cluster[0], "moving").into_iter().max().expect("three members");
        cluster[round].ctl_ok(&["transfer_leadership", "moving", &to]);
        wait_for("the new leader", SOON, || (cluster[cluster.leader_of("moving")?].name() == to).then_some(()));
    }
    assert_eq!(exit(&cluster[0], &["transfer_leadership", "moving", "nobody@localhost"]), 69);
    let verdict = load.finish();
    assert!(verdict.number("confirmed") > 1_000.0);
}

#[test]
fn queues_grow_shrink_and_are_rebalanced() {
    let mut cluster = Cluster::start(3);
    let names: Vec<String> = (0..6).flat_map(|n| [format!("a{n}"), format!("b{n}")]).collect();
    declare_with_one_member(&cluster[0], &names);
    let second = cluster[1].name().to_owned();
    let third = cluster[2].name().to_owned();
    let rows = |node: &Node, arguments: &[&str]| node.ctl_rows(arguments).expect("the verb succeeds");

    let grown = rows(&cluster[2], &["grow", &second, "all", "--queue-pattern", "^a"]);
    assert_eq!(grown.len(), 6, "{grown:?}");
    assert!(grown.iter().all(|r| r["vhost"] == "/" && r["size"] == 2 && r["result"] == "ok"), "{grown:?}");
    assert!(rows(&cluster[0], &["grow", &second, "all", "--queue-pattern", "^a"]).is_empty());
    assert_eq!(nodes_of(&cluster[0], "b0").len(), 1);
    for name in names.iter().filter(|name| name.starts_with('a')) {
        wait_settled(&cluster[0], name, 2);
    }
    let even = rows(&cluster[1], &["grow", &third, "even"]);
    assert_eq!(even.len(), 6, "the others have one member: {even:?}");
    let rest = rows(&cluster[1], &["grow_to_count", "7", "all"]);
    assert_eq!(rest.len(), 6, "{rest:?}");
    assert!(rest.iter().all(|r| r["size"] == 3 && r["result"] == "ok"), "{rest:?}");
    for name in &names {
        wait_settled(&cluster[0], name, 3);
    }

    let leaders = rows(&cluster[1], &["rebalance", "quorum"]);
    let counts: Vec<u64> = leaders.iter().filter_map(|r| r["Number of quorum queue leaders"].as_u64()).collect();
    assert_eq!(counts, [4, 4, 4], "{leaders:?}");
    let checked = rows(&cluster[1], &["force_checkpoint", "--queue-pattern", "^a1$"]);
    assert!(checked.len() == 1 && checked[0]["result"] == "ok", "{checked:?}");

    assert_eq!(exit(&cluster[0], &["check_if_node_is_quorum_critical"]), 0);
    cluster[1].stop(Stop::Kill);
    wait_for("the others to be critical", SOON, || {
        let output = cluster[0].ctl(&["check_if_node_is_quorum_critical"]);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code() == Some(69) && text.contains("queue 'a0' in vhost '/'")).then_some(())
    });
    assert_eq!(exit(&cluster[0], &["add_member", "b0", &second]), 69, "its node does not run");
    // A member goes although its node is down, and comes back empty-handed with it.
    cluster[0].ctl_ok(&["delete_member", "a0", &second]);
    cluster.restart(1);
    // Where the old member's data stayed, no new one could start beside it.
    cluster[0].ctl_ok(&["add_member", "a0", &second]);
    wait_settled(&cluster[0], "a0", 3);
    cluster[0].ctl_ok(&["delete_member", "a0", &second]);

    let shrunk = rows(&cluster[0], &["shrink", &third]);
    assert_eq!(shrunk.len(), 12, "{shrunk:?}");
    assert!(shrunk.iter().all(|r| r["result"] == "ok"), "{shrunk:?}");
    assert!(rows(&cluster[0], &["shrink", &third]).is_empty());
    assert_eq!(exit(&cluster[0], &["delete_member", "a0", &second]), 0, "an absent member");
    assert_eq!(exit(&cluster[0], &["delete_member", "a0", cluster[0].name()]), 69, "the last member");
    assert_eq!(exit(&cluster[0], &["add_member", "a0", "nobody@localhost"]), 69);
    assert_eq!(exit(&cluster[0], &["add_member", "nothing", &second]), 65);
    assert_eq!(exit(&cluster[0], &["grow", &second, "some"]), 65);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        for name in &names {
            assert_eq!(amqp::ready(&channel, name).await.unwrap(), 1, "{name}");
        }
    });
}

#[test]
fn a_node_is_added_to_a_cluster_under_load_and_an_old_one_leaves_without_a_failed_publish() {
    let mut cluster = Setup::new().lay_out(4);
    for index in 0..3 {
        // The cluster is formed without knowing of the fourth.
        cluster[index].configure(|text| {
            let kept = text.lines().filter(|line| !line.starts_with("cluster_formation.classic_config.nodes.4"));
            kept.flat_map(|line| [line, "\n"]).collect()
        });
        cluster[index].start();
    }
    cluster.wait_ready();
    // Clients are on the nodes that stay.
    let ports = format!("{},{}", cluster[1].amqp_port(), cluster[2].amqp_port());
    let load = Load::start_on(&cluster, "served", &ports);
    let others: Vec<String> = (0..20).map(|n| format!("other{n}")).collect();
    declare_with_one_member(&cluster[0], &others);
    let [old, new] = [0, 3].map(|index| cluster[index].name().to_owned());

    cluster.restart(3);
    let grown = cluster[1].ctl_rows(&["grow", &new, "all"]).expect("the verb succeeds");
    assert!(grown.len() == 21 && grown.iter().all(|row| row["result"] == "ok"), "{grown:?}");
    wait_settled(&cluster[1], "served", 4);
    for queue in &others {
        wait_settled(&cluster[1], queue, 2);
    }
    wait_for("the new members to have caught up", SOON, || {
        (exit(&cluster[3], &["check_if_new_quorum_queue_replicas_have_finished_initial_sync"]) == 0).then_some(())
    });
    let gone = cluster[1].ctl_rows(&["shrink", &old]).expect("the verb succeeds");
    assert!(gone.len() == 21 && gone.iter().all(|row| row["result"] == "ok"), "{gone:?}");
    wait_for("the old node to be dispensable", SOON, || {
        (exit(&cluster[0], &["check_if_node_is_quorum_critical"]) == 0).then_some(())
    });
    cluster[0].stop(Stop::Terminate);
    std::thread::sleep(Duration::from_secs(3));
    let verdict = load.finish();
    assert!(verdict.number("confirmed") > 1_000.0);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[3]).await.unwrap();
        for queue in &others {
            assert_eq!(amqp::ready(&channel, queue).await.unwrap(), 1, "{queue}");
        }
    });
}

#[test]
fn queues_with_too_few_members_get_more_by_themselves_where_that_is_asked_for() {
    let mut cluster = Setup::new()
        .line("quorum_queue.continuous_membership_reconciliation.enabled = true")
        .line("quorum_queue.continuous_membership_reconciliation.target_group_size = 3")
        .line("quorum_queue.continuous_membership_reconciliation.interval = 2s")
        .line("quorum_queue.continuous_membership_reconciliation.trigger_interval = 500ms")
        .start(3);
    let names: Vec<String> = (0..4).map(|n| format!("few{n}")).collect();
    declare_with_one_member(&cluster[0], &names);
    for name in &names {
        wait_settled(&cluster[1], name, 3);
    }
    cluster[0].stop(Stop::Kill);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        for name in &names {
            assert_eq!(amqp::ready(&channel, name).await.unwrap(), 1, "{name}");
        }
    });
}

#[test]
fn a_new_member_gets_a_backlog_without_traffic_and_serves_it_alone() {
    const COUNT: u32 = 50_000;
    let mut cluster = Cluster::start(3);
    declare_with_one_member(&cluster[0], &["backlog".to_owned()]);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let mut answers = Vec::new();
        for number in 1..COUNT {
            answers.push(amqp::answer(&channel, "backlog", number.to_string().as_bytes()).await.unwrap());
        }
        for answer in answers {
            assert!(answer.await.unwrap().is_ack());
        }
    });
    let [first, second] = [0, 1].map(|index| cluster[index].name().to_owned());
    cluster[2].ctl_ok(&["add_member", "backlog", &second]);
    wait_settled(&cluster[2], "backlog", 2);
    cluster[2].ctl_ok(&["delete_member", "backlog", &first]);
    assert_eq!(exit(&cluster[2], &["delete_member", "backlog", &second]), 69, "the last member");
    cluster[0].stop(Stop::Kill);
    wait_for("the new member to lead", SOON, || (cluster.leader_of("backlog") == Some(1)).then_some(()));
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        assert_eq!(amqp::ready(&channel, "backlog").await.unwrap(), COUNT);
        for number in 0..200u32 {
            let options = BasicGetOptions { no_ack: true };
            let message = channel.basic_get("backlog".into(), options).await.unwrap().expect("a message");
            let body = if number == 0 { b"kept".to_vec() } else { number.to_string().into_bytes() };
            assert_eq!(message.delivery.data, body);
        }
    });
}

#[test]
fn a_member_of_a_deleted_queue_neither_votes_nor_serves_what_it_had() {
    let mut cluster = Cluster::start(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let publish = |node: &Node, body: &'static [u8]| {
        runtime.block_on(async {
            let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
            amqp::declare_quorum(&channel, "again").await.unwrap();
            assert_eq!(amqp::publish(&channel, "again", body, amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
        });
    };
    publish(&cluster[0], b"old");
    cluster[2].stop(Stop::Kill);
    cluster[0].ctl_ok(&["delete_queue", "again"]);
    publish(&cluster[0], b"new");
    cluster.restart(2);
    wait_settled(&cluster[0], "again", 3);
    // With the first node gone, the third is needed for a majority, and only its new member counts.
    cluster[0].stop(Stop::Kill);
    publish(&cluster[2], b"newer");
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(amqp::drain(&channel, "again").await.unwrap(), [b"new".to_vec(), b"newer".to_vec()]);
    });
}

#[test]
fn removals_at_once_leave_a_queue_that_works_and_one_without_a_majority_is_not_reported_as_done() {
    let mut cluster = Cluster::start(5);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, "shrunk").await.unwrap();
        assert_eq!(amqp::publish(&channel, "shrunk", b"m", amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
    });
    let here = nodes_of(&cluster[0], "shrunk");
    // All three at once, from three nodes: whatever the order, one member stays.
    let ends: Vec<i32> = std::thread::scope(|scope| {
        let remove = |(asked, name): (&Node, &String)| exit(asked, &["delete_member", "shrunk", name]);
        let running: Vec<_> = cluster.iter().zip(&here).map(|pair| scope.spawn(move || remove(pair))).collect();
        running.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert_eq!(ends.iter().filter(|end| **end == 69).count(), 1, "{ends:?}");
    assert_eq!(ends.iter().filter(|end| **end == 0).count(), 2, "{ends:?}");
    wait_settled(&cluster[0], "shrunk", 1);

    let left = nodes_of(&cluster[0], "shrunk").remove(0);
    let index = |name: &str| cluster.iter().position(|n| n.name() == name).expect("a node of the cluster");
    let (one, other) = (index(&left), (index(&left) + 1) % 5);
    let joins = cluster[other].name().to_owned();
    cluster[one].ctl_ok(&["add_member", "shrunk", &joins]);
    wait_settled(&cluster[one], "shrunk", 2);
    cluster[other].stop(Stop::Kill);
    assert_eq!(exit(&cluster[one], &["delete_member", "shrunk", &joins]), 75, "one of two is no majority");
    assert_eq!(nodes_of(&cluster[one], "shrunk").len(), 2);
}
