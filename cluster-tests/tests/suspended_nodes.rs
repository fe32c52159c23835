//! Nodes that stand still for a while, and what others believe of them.

use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions};
use lapin::types::FieldTable;
use warren_cluster_tests::{Cluster, Load, Node, amqp, rounds, wait_for};

/// Longer than it takes to judge a silent node down.
const A_WHILE: Duration = Duration::from_secs(3);

#[test]
fn a_consumer_is_served_when_its_node_comes_back_while_nobody_leads() {
    let cluster = Cluster::start(3);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_first, first) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&first, "watched").await.unwrap();
        let (_third, third) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        let options = BasicConsumeOptions::default();
        let mut consumer =
            third.basic_consume("watched".into(), "c".into(), options, FieldTable::default()).await.unwrap();
        assert_eq!(cluster.leader_of("watched"), Some(0));

        cluster[2].suspend();
        tokio::time::sleep(A_WHILE).await;
        // The leader has given up the consumer. Now nobody leads when its node comes back.
        cluster[0].suspend();
        tokio::time::sleep(A_WHILE).await;
        cluster[2].resume();

        let (_second, second) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        let limit = Duration::from_secs(20);
        assert_eq!(amqp::publish(&second, "watched", b"hello", limit).await.unwrap(), Some(true));
        let delivery = tokio::time::timeout(limit, consumer.next()).await.expect("the consumer is served");
        let delivery = delivery.expect("the consumer goes on").expect("the connection goes on");
        assert_eq!(delivery.data, b"hello");
        delivery.acker.ack(BasicAckOptions::default()).await.unwrap();
        cluster[0].resume();
    });
}

#[test]
fn nodes_that_stand_still_for_a_moment_again_and_again_are_in_step_soon_after() {
    let cluster = Cluster::start(3);
    let load = Load::start(&cluster, "blips");
    for round in 0..rounds(40) {
        let node = &cluster[round % 3];
        node.suspend();
        std::thread::sleep(Duration::from_millis(300));
        node.resume();
        std::thread::sleep(Duration::from_millis(100));
    }
    wait_for("every node to see every other", Duration::from_secs(10), || {
        let all_up = |node: &Node| {
            let rows = node.ctl_rows(&["cluster_status"])?;
            Some(rows.first()?["running_nodes"].as_array()?.len() == 3)
        };
        cluster.iter().all(|node| all_up(node) == Some(true)).then_some(())
    });
    wait_for("every member to follow", Duration::from_secs(10), || {
        let rows = cluster[0].ctl_rows(&["quorum_status", "blips"])?;
        let state = |wanted: &str| rows.iter().filter(|row| row["Raft State"] == wanted).count();
        (state("leader") == 1 && state("follower") == 2).then_some(())
    });
    load.finish();
}

#[test]
fn publishes_under_way_when_the_leader_cannot_be_reached_are_all_confirmed_in_order_and_once() {
    const COUNT: u32 = 1_000;
    let cluster = Cluster::start(3);
    for (round, silence) in [1, 4].into_iter().enumerate() {
        let queue = format!("cut-{round}");
        tokio::runtime::Runtime::new().unwrap().block_on(async {
            let (_first, first) = amqp::confirm_channel(&cluster[0]).await.unwrap();
            amqp::declare_quorum(&first, &queue).await.unwrap();
            assert_eq!(cluster.leader_of(&queue), Some(0));
            let (_second, second) = amqp::confirm_channel(&cluster[1]).await.unwrap();
            let mut answers = Vec::new();
            for number in 0..COUNT {
                if number == COUNT / 2 {
                    cluster[0].suspend();
                }
                answers.push(amqp::answer(&second, &queue, number.to_string().as_bytes()).await.unwrap());
            }
            tokio::time::sleep(Duration::from_secs(silence)).await;
            cluster[0].resume();
            for (number, answer) in answers.into_iter().enumerate() {
                let answered = tokio::time::timeout(Duration::from_secs(30), answer).await;
                assert!(answered.expect("it is answered").unwrap().is_ack(), "{number}");
            }
            let (_third, third) = amqp::confirm_channel(&cluster[2]).await.unwrap();
            let bodies = amqp::drain(&third, &queue).await.unwrap();
            let numbers: Vec<u32> = bodies.iter().map(|b| String::from_utf8_lossy(b).parse().unwrap()).collect();
            assert!(numbers.iter().copied().eq(0..COUNT), "{numbers:?}");
        });
    }
}
