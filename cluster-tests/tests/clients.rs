//! Ordinary client programs, written for RabbitMQ, against a cluster of three.

use futures_util::StreamExt as _;
use warren_cluster_tests::{Cluster, Program, Setup, amqp, rounds};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be started")
}

#[test]
fn pika_publishes_and_consumes_through_every_node() {
    let cluster = Cluster::start(3);
    Program::python("each_node.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn amqplib_publishes_and_consumes_through_every_node() {
    let cluster = Cluster::start(3);
    Program::node("each_node.js").arg("--ports", cluster.ports()).pass();
}

#[test]
fn lapin_publishes_and_consumes_through_every_node() {
    let cluster = Cluster::start(3);
    runtime().block_on(async {
        for publisher in cluster.iter() {
            for consumer in cluster.iter() {
                let queue = format!("lapin-{}-{}", publisher.amqp_port(), consumer.amqp_port());
                let (_out_connection, out) = amqp::confirm_channel(publisher).await.unwrap();
                amqp::declare_quorum(&out, &queue).await.unwrap();
                let bodies: Vec<Vec<u8>> = (0..100u32).map(|n| n.to_string().into()).collect();
                for body in &bodies {
                    let confirmed = amqp::publish(&out, &queue, body, amqp::ANSWER_LIMIT).await;
                    assert_eq!(confirmed.unwrap(), Some(true));
                }
                let (_in_connection, into) = amqp::confirm_channel(consumer).await.unwrap();
                assert_eq!(amqp::drain(&into, &queue).await.unwrap(), bodies);
            }
        }
    });
}

#[test]
fn the_tutorials_of_pika_run() {
    let cluster = Cluster::start(3);
    Program::python("tutorials.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn the_tutorials_of_amqplib_run() {
    let cluster = Cluster::start(3);
    Program::node("tutorials.js").arg("--ports", cluster.ports()).pass();
}

#[test]
fn a_quorum_queue_gives_messages_back_in_order_and_counts_them() {
    let cluster = Cluster::start(3);
    Program::python("redelivery.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn what_was_published_without_confirms_before_an_orderly_close_is_there() {
    let cluster = Cluster::start(3);
    Program::python("publish_and_leave.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn a_quorum_queue_declared_by_pika_has_a_member_on_each_node_and_its_leader_where_it_was_declared() {
    let cluster = Cluster::start(3);
    Program::python("declare.py").arg("--ports", cluster.ports()).arg("--queue", "declared").pass();
    for (index, node) in cluster.iter().enumerate() {
        let queue = format!("declared-{index}");
        let rows = node.ctl_rows(&["quorum_status", &queue]).expect("quorum_status answers in JSON");
        assert_eq!(rows.len(), 3, "{rows:?}");
        for row in &rows {
            assert_eq!(row["Membership"], "voter", "{rows:?}");
            let expected = if row["Node Name"] == node.name() { "leader" } else { "follower" };
            assert_eq!(row["Raft State"], expected, "{rows:?}");
        }
    }
}

#[test]
fn queues_declared_as_balanced_spread_their_leaders() {
    let cluster = Setup::new().line("queue_leader_locator = balanced").start(3);
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        for number in 0..9 {
            amqp::declare_quorum(&channel, &format!("balanced-{number}")).await.unwrap();
        }
    });
    let mut leaders = [0; 3];
    for number in 0..9 {
        let queue = format!("balanced-{number}");
        leaders[cluster.leader_of(&queue).expect("a queue that was declared has a leader")] += 1;
    }
    assert_eq!(leaders, [3, 3, 3]);
}

#[test]
fn bad_input_gets_the_right_error_and_harms_nobody_else() {
    let cluster = Cluster::start(3);
    let pid = cluster[0].pid().expect("the node runs");
    Program::python("bad_input.py").arg("--ports", cluster.ports()).arg("--pid", pid).pass();
}

#[test]
fn what_warren_does_not_have_is_refused_by_name() {
    let cluster = Cluster::start(1);
    Program::python("refusals.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn corner_cases_are_as_in_rabbitmq() {
    let cluster = Cluster::start(1);
    Program::python("corners.py").arg("--ports", cluster.ports()).pass();
}

#[test]
fn a_consumer_that_may_not_read_any_more_ends_when_its_clients_secret_is_updated() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_user", "reader", "secret"]);
    node.ctl_ok(&["set_permissions", "reader", ".*", ".*", ".*"]);
    runtime().block_on(async {
        let uri = format!("amqp://reader:secret@127.0.0.1:{}/%2f", node.amqp_port());
        let connection = lapin::Connection::connect(&uri, Default::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let mut consumers = Vec::new();
        for queue in ["kept", "lost"] {
            amqp::declare_quorum(&channel, queue).await.unwrap();
            let consumer = channel.basic_consume(queue.into(), queue.into(), Default::default(), Default::default());
            consumers.push(consumer.await.unwrap());
        }
        node.ctl_ok(&["set_permissions", "reader", ".*", ".*", "^kept$"]);
        connection.update_secret("secret".into(), "test".into()).await.unwrap();
        amqp::publish(&channel, "kept", b"kept", amqp::ANSWER_LIMIT).await.unwrap();
        let [kept, lost] = &mut consumers[..] else { unreachable!() };
        let limit = amqp::ANSWER_LIMIT;
        let delivered = tokio::time::timeout(limit, kept.next()).await.unwrap().unwrap().unwrap();
        assert_eq!(delivered.data, b"kept");
        assert!(tokio::time::timeout(limit, lost.next()).await.unwrap().is_none());
        assert!(channel.status().connected());
    });
}

#[test]
fn a_steady_load_keeps_every_rule() {
    let cluster = Cluster::start(3);
    let verdict = Program::python("load.py")
        .arg("--ports", cluster.ports())
        .arg("--history", cluster.folder().join("history.jsonl").display())
        .arg("--seconds", 5 * rounds(1))
        .pass();
    assert_eq!(verdict.number("duplicates"), 0.0, "nothing failed, so nothing is delivered twice");
}

#[test]
fn the_history_checker_finds_each_kind_of_fault() {
    Program::unittest("test_history");
}
