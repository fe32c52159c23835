//! What quorum queues promise beyond keeping messages, as client programs see it.

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicGetOptions, BasicQosOptions, QueueDeclareOptions};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{Channel, Connection};
use warren_cluster_tests::{Cluster, Node, Program, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

fn passes(program: &str) {
    let cluster = Cluster::start(3);
    Program::python(program).arg("--ports", cluster.ports()).pass();
}

#[test]
fn priorities_and_limits() {
    passes("limits.py");
}

#[test]
fn messages_and_queues_expire() {
    passes("expiry.py");
}

#[test]
fn one_consumer_is_active_and_priorities_decide_which() {
    passes("single_active.py");
}

#[test]
fn dead_letters_reach_their_queues() {
    passes("dead_letters.py");
}

#[test]
fn consumers_that_hold_messages_too_long_lose_them() {
    passes("consumer_timeout.py");
}

#[test]
fn messages_wait_before_they_are_tried_again() {
    passes("delayed_retry.py");
}

#[test]
fn a_celery_worker_retries_acknowledges_late_and_heeds_priorities() {
    passes("celery_worker.py");
}

#[test]
fn an_older_machine_version_gives_high_priorities_two_turns_of_three() {
    let cluster = Setup::new().line("quorum_queue.machine_version_limit = 1").start(3);
    Program::python("fair_share.py").arg("--ports", cluster.ports()).pass();
}

async fn declare(channel: &Channel, queue: &str, arguments: &[(&str, AMQPValue)]) {
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let durable = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
    channel.queue_declare(queue.into(), durable, table).await.unwrap();
}

fn text(value: &str) -> AMQPValue {
    AMQPValue::LongString(value.into())
}

async fn channel(node: &Node) -> (Connection, Channel) {
    amqp::confirm_channel(node).await.unwrap()
}

#[test]
fn a_policy_that_limits_a_queue_refuses_publishes_until_it_is_cleared() {
    let cluster = Cluster::start(3);
    runtime().block_on(async {
        let (_connection, channel) = channel(&cluster[0]).await;
        declare(&channel, "limited", &[]).await;
        let publish = || amqp::publish(&channel, "limited", b"x", amqp::ANSWER_LIMIT);
        assert_eq!(publish().await.unwrap(), Some(true));
        let limit = r#"{"max-length": 1, "overflow": "reject-publish"}"#;
        cluster[1].ctl_ok(&["set_policy", "limit", "limited", limit]);
        let mut taken = 1;
        while publish().await.unwrap() == Some(true) {
            taken += 1;
            assert!(taken < 5_000, "the policy has no effect");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(publish().await.unwrap(), Some(false));
        cluster[2].ctl_ok(&["clear_policy", "limit"]);
        let mut refused = 0;
        while publish().await.unwrap() == Some(false) {
            refused += 1;
            assert!(refused < 5_000, "the queue still refuses");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(amqp::drain(&channel, "limited").await.unwrap().len(), taken + 1);
    });
}

#[test]
fn an_unused_queue_lives_by_the_shorter_of_its_own_time_and_its_policys() {
    let cluster = Cluster::start(3);
    cluster[0].ctl_ok(&["set_policy", "unused", "^short", r#"{"expires": 1000}"#]);
    cluster[0].ctl_ok(&["set_policy", "long", "^own", r#"{"expires": 100000}"#]);
    runtime().block_on(async {
        let (_connection, channel) = channel(&cluster[0]).await;
        declare(&channel, "short", &[("x-expires", AMQPValue::LongInt(100_000))]).await;
        declare(&channel, "own", &[("x-expires", AMQPValue::LongInt(1_000))]).await;
        declare(&channel, "none", &[]).await;
    });
    wait_for("both to be gone", SOON, || {
        let rows = cluster[1].ctl_rows(&["list_queues", "name"])?;
        (rows.iter().map(|row| row["name"].as_str()).collect::<Vec<_>>() == [Some("none")]).then_some(())
    });
}

/// Messages that died wait for a queue whose only node is down, the leader that keeps them is killed, and all arrive.
#[test]
fn at_least_once_loses_no_dead_letter_when_the_target_is_down_and_the_leader_dies() {
    const MESSAGES: usize = 500;
    let mut cluster = Cluster::start(3);
    runtime().block_on(async {
        let (_c2, far) = channel(&cluster[2]).await;
        declare(&far, "dead", &[("x-quorum-initial-group-size", AMQPValue::LongInt(1))]).await;
        let (_c0, near) = channel(&cluster[0]).await;
        let arguments = [
            ("x-dead-letter-exchange", text("")),
            ("x-dead-letter-routing-key", text("dead")),
            ("x-dead-letter-strategy", text("at-least-once")),
            ("x-overflow", text("reject-publish")),
            ("x-message-ttl", AMQPValue::LongInt(500)),
        ];
        declare(&near, "source", &arguments).await;
    });
    cluster[2].stop(Stop::Kill);
    runtime().block_on(async {
        let (_c0, near) = channel(&cluster[0]).await;
        for n in 0..MESSAGES {
            let body = n.to_string();
            let confirmed = amqp::publish(&near, "source", body.as_bytes(), amqp::ANSWER_LIMIT).await;
            assert_eq!(confirmed.unwrap(), Some(true));
        }
    });
    let kept = |cluster: &Cluster, node: usize| {
        let rows = cluster[node].ctl_rows(&["list_queues", "name", "messages_dlx"])?;
        rows.iter().find(|row| row["name"] == "source")?["messages_dlx"].as_u64()
    };
    wait_for("all to be dead and kept", SOON, || (kept(&cluster, 0)? == MESSAGES as u64).then_some(()));
    let leader = cluster.wait_leader("source");
    cluster[leader].stop(Stop::Kill);
    cluster.restart(2);
    cluster.restart(leader);
    let counts = runtime().block_on(async {
        let (_c1, near) = channel(&cluster[1]).await;
        let mut counts = BTreeMap::<Vec<u8>, usize>::new();
        while counts.len() < MESSAGES {
            match near.basic_get("dead".into(), BasicGetOptions { no_ack: true }).await.unwrap() {
                Some(message) => *counts.entry(message.data.clone()).or_default() += 1,
                None => tokio::time::sleep(Duration::from_millis(50)).await,
            }
        }
        counts
    });
    assert!((0..MESSAGES).all(|n| counts.contains_key(n.to_string().as_bytes())), "{counts:?}");
    wait_for("the source to be empty", SOON, || (kept(&cluster, 1)? == 0).then_some(()));
}

/// A consumer whose node is cut off for longer than the queue waits loses what it holds; that does not count as a failure.
#[test]
fn a_consumer_that_is_cut_off_keeps_its_messages_for_as_long_as_the_queue_says() {
    let cluster = Cluster::start(3);
    runtime().block_on(async {
        let (_c0, near) = channel(&cluster[0]).await;
        declare(&near, "cut-off", &[("x-consumer-disconnected-timeout", AMQPValue::LongInt(2_000))]).await;
        let confirmed = amqp::publish(&near, "cut-off", b"held", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
        let (_c2, far) = channel(&cluster[2]).await;
        far.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let held = far.basic_get("cut-off".into(), BasicGetOptions::default()).await.unwrap().expect("a message");
        cluster[2].suspend();
        let mut again = None;
        for _ in 0..600 {
            again = near.basic_get("cut-off".into(), BasicGetOptions::default()).await.unwrap();
            if again.is_some() {
                break;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        cluster[2].resume();
        let again = again.expect("it comes back");
        assert!(again.redelivered);
        let headers = again.properties.headers().clone().unwrap_or_default();
        assert_eq!(headers.inner().get("x-acquired-count"), Some(&AMQPValue::LongLongInt(1)));
        assert_eq!(headers.inner().get("x-delivery-count"), None);
        // What the other says of it now means nothing.
        let _ = held.acker.ack(BasicAckOptions::default()).await;
        tokio::time::sleep(Duration::from_millis(500)).await;
        again.acker.reject(lapin::options::BasicRejectOptions { requeue: true }).await.unwrap();
        wait_for_ready(&near, "cut-off", 1).await;
    });
}

async fn wait_for_ready(channel: &Channel, queue: &str, count: u32) {
    for _ in 0..600 {
        if amqp::ready(channel, queue).await.unwrap() == count {
            return;
        }
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    panic!("{queue} does not have {count} ready messages");
}

/// What could go nowhere goes where a corrected policy says, and what was purged goes nowhere.
#[test]
fn kept_dead_letters_follow_the_policy_and_go_with_a_purge() {
    const MESSAGES: usize = 100;
    let cluster = Cluster::start(3);
    let policy = |definition: &str| {
        cluster[1].ctl_ok(&["set_policy", "dead", "^kept", definition]);
    };
    let kept = || {
        let rows = cluster[2].ctl_rows(&["list_queues", "name", "messages_dlx"])?;
        rows.iter().find(|row| row["name"] == "kept")?["messages_dlx"].as_u64()
    };
    runtime().block_on(async {
        let (_connection, channel) = channel(&cluster[0]).await;
        declare(&channel, "kept", &[]).await;
        declare(&channel, "found", &[]).await;
        let misspelt = r#"{"dead-letter-exchange": "nowhere", "dead-letter-strategy": "at-least-once",
            "overflow": "reject-publish", "message-ttl": 1}"#;
        policy(misspelt);
        // The policy is there when a message dies and stays.
        while kept().is_none_or(|count| count == 0) {
            amqp::drain(&channel, "kept").await.unwrap();
            assert_eq!(amqp::publish(&channel, "kept", b"first", amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
            tokio::time::sleep(Duration::from_millis(200)).await;
        }
        cluster[0].ctl_ok(&["purge_queue", "kept"]);
        for n in 0..MESSAGES {
            let confirmed = amqp::publish(&channel, "kept", n.to_string().as_bytes(), amqp::ANSWER_LIMIT).await;
            assert_eq!(confirmed.unwrap(), Some(true));
        }
        wait_for("all to be dead and kept", SOON, || (kept()? == MESSAGES as u64).then_some(()));
        let corrected = misspelt.replace("\"nowhere\"", "\"\", \"dead-letter-routing-key\": \"found\"");
        policy(&corrected);
        wait_for_ready(&channel, "found", MESSAGES as u32).await;
        let expected: Vec<Vec<u8>> = (0..MESSAGES).map(|n| n.to_string().into_bytes()).collect();
        assert_eq!(amqp::drain(&channel, "found").await.unwrap(), expected);
        wait_for("none to be kept", SOON, || (kept()? == 0).then_some(()));
    });
}

#[test]
fn amqplib_programs_use_them_as_well() {
    let cluster = Cluster::start(3);
    Program::node("quorum_queue.js").arg("--ports", cluster.ports()).pass();
}

/// One that is cut off for less than that keeps them, and may answer.
#[test]
fn a_consumer_that_is_cut_off_for_a_while_keeps_its_messages_and_answers_them() {
    let cluster = Cluster::start(3);
    let counts = |node: usize| {
        let rows = cluster[node].ctl_rows(&["list_queues", "messages_ready", "messages_unacknowledged"])?;
        let row = rows.first()?;
        Some((row["messages_ready"].as_u64()?, row["messages_unacknowledged"].as_u64()?))
    };
    runtime().block_on(async {
        let (_c0, near) = channel(&cluster[0]).await;
        declare(&near, "kept", &[]).await;
        let (_c2, far) = channel(&cluster[2]).await;
        let options = lapin::options::BasicConsumeOptions::default();
        let mut consumer = far.basic_consume("kept".into(), "c".into(), options, FieldTable::default()).await.unwrap();
        let publish = || amqp::publish(&near, "kept", b"held", amqp::ANSWER_LIMIT);
        assert_eq!(publish().await.unwrap(), Some(true));
        let held = consumer.next().await.expect("a delivery").unwrap();
        cluster[2].suspend();
        // Longer than it takes to be given up, and shorter than the queue waits.
        tokio::time::sleep(Duration::from_secs(8)).await;
        assert_eq!(publish().await.unwrap(), Some(true));
        assert_eq!(counts(0), Some((1, 1)), "it keeps what it holds, and gets no more");
        cluster[2].resume();
        let next = tokio::time::timeout(SOON, consumer.next()).await.expect("it is served again").unwrap().unwrap();
        assert!(!next.redelivered && !held.redelivered);
        held.acker.ack(BasicAckOptions::default()).await.unwrap();
        next.acker.ack(BasicAckOptions::default()).await.unwrap();
        wait_for("both to be done with", SOON, || (counts(1)? == (0, 0)).then_some(()));
    });
}
