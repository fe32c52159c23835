//! One message that nobody acknowledges, while millions of others come and go.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicNackOptions, BasicQosOptions};
use lapin::types::FieldTable;
use lapin::{Channel, Connection, Consumer};
use warren_cluster_tests::{Cluster, Node, Stop, amqp, wait_for, warren_binary};

/// `$WARREN_TEST_PASSING` messages go by, else so many that a log that kept them would be too big: 300 MB.
fn passing() -> u64 {
    std::env::var("WARREN_TEST_PASSING").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000)
}

/// What a node's folder may hold afterwards.
const MOST_BYTES: u64 = 100 << 20;
/// Time in which it must have come down to that.
const SILENCE: Duration = Duration::from_secs(60);

fn bytes_in(folder: &Path) -> u64 {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(meta) if meta.is_dir() => bytes_in(&entry.path()),
            Ok(meta) => meta.len(),
            // Deleted in between.
            Err(_) => 0,
        })
        .sum()
}

/// Publishes a message into a new queue and consumes it without an acknowledgement, for as long as what is given back lives.
async fn hold_the_first(node: &Node, queue: &str) -> (Connection, Channel, Consumer) {
    let (connection, channel) = amqp::confirm_channel(node).await.unwrap();
    amqp::declare_quorum(&channel, queue).await.unwrap();
    let confirmed = amqp::publish(&channel, queue, b"the first", amqp::ANSWER_LIMIT).await;
    assert_eq!(confirmed.unwrap(), Some(true));
    channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer = channel.basic_consume(queue.into(), "h".into(), options, FieldTable::default()).await.unwrap();
    let held = consumer.next().await.expect("a delivery").expect("the connection works");
    assert_eq!(held.data, b"the first");
    (connection, channel, consumer)
}

/// The message comes again, and is acknowledged.
async fn take_the_first_again(node: &Node, queue: &str) {
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut consumer = channel.basic_consume(queue.into(), "c".into(), options, FieldTable::default()).await.unwrap();
    let again = tokio::time::timeout(amqp::ANSWER_LIMIT, consumer.next()).await.expect("it comes again");
    let again = again.expect("a delivery").expect("the connection works");
    assert_eq!((again.data.as_slice(), again.redelivered), (b"the first".as_slice(), true));
    again.acker.ack(BasicAckOptions::default()).await.unwrap();
}

/// So many messages of 200 bytes go through a queue, by way of the nodes that run.
fn pass(cluster: &Cluster, queue: &str, count: u64) {
    let running = cluster.iter().filter(|node| node.pid().is_some());
    let nodes: Vec<String> =
        running.map(|node| format!("amqp://guest:guest@127.0.0.1:{}/%2f", node.amqp_port())).collect();
    let ended = Command::new(warren_binary())
        .args(["perf", "amqp091", "--keep", "--quiet", "--json", "-u", queue, "-s", "200"])
        .args(["-C", &count.to_string(), "-H", &nodes.join(",")])
        .stdout(Stdio::null())
        .status()
        .expect("the load generator runs");
    assert!(ended.success(), "{ended}");
}

fn wait_small(cluster: &Cluster, most: u64) {
    wait_for("the logs to shrink", SILENCE, || {
        let sizes: Vec<u64> = cluster.iter().map(|node| bytes_in(&node.data_dir())).collect();
        println!("bytes of the nodes' folders: {sizes:?}");
        std::thread::sleep(Duration::from_secs(1));
        sizes.iter().all(|bytes| *bytes < most).then_some(())
    });
}

#[test]
fn a_message_that_is_never_acknowledged_does_not_keep_the_log_of_millions_that_pass() {
    let cluster = Cluster::start(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = "old";
    let holder = runtime.block_on(hold_the_first(&cluster[0], queue));

    pass(&cluster, queue, passing());
    wait_small(&cluster, MOST_BYTES);

    runtime.block_on(async {
        drop(holder);
        take_the_first_again(&cluster[2], queue).await;
    });
}

#[test]
fn a_follower_that_was_away_meanwhile_gets_a_snapshot_and_can_lead() {
    let mut cluster = Cluster::start(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = "away";
    let holder = runtime.block_on(hold_the_first(&cluster[0], queue));
    cluster[2].stop(Stop::Kill);
    pass(&cluster, queue, 200_000);
    cluster.restart(2);
    wait_for("the follower to have everything", SILENCE, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", queue])?;
        let of = |name: &str, column: &str| rows.iter().find(|r| r["Node Name"] == name)?[column].as_u64();
        let (first, third) = (of("w1@localhost", "Last Applied")?, of("w3@localhost", "Last Applied")?);
        (first == third && of("w3@localhost", "Snapshot Index")? > 0).then_some(())
    });
    assert!(cluster[2].log().contains("snapshot installed"), "it was behind the log");
    cluster[0].ctl_ok(&["transfer_leadership", queue, "w3@localhost"]);
    runtime.block_on(async {
        drop(holder);
        take_the_first_again(&cluster[2], queue).await;
    });
}

#[test]
fn messages_that_are_returned_again_and_again_do_not_fill_the_disk() {
    let cluster = Cluster::start(3);
    let queue = "returned";
    let returned = tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        for _ in 0..100 {
            let confirmed = amqp::publish(&channel, queue, &[7; 1000], amqp::ANSWER_LIMIT).await;
            assert_eq!(confirmed.unwrap(), Some(true));
        }
        let options = BasicConsumeOptions::default();
        let mut consumer =
            channel.basic_consume(queue.into(), "c".into(), options, FieldTable::default()).await.unwrap();
        let until = tokio::time::Instant::now() + Duration::from_secs(10);
        let mut returned = 0;
        while tokio::time::Instant::now() < until {
            let delivery = consumer.next().await.expect("a delivery").expect("the connection works");
            let options = BasicNackOptions { requeue: true, ..BasicNackOptions::default() };
            delivery.acker.nack(options).await.unwrap();
            returned += 1;
        }
        returned
    });
    assert!(returned > 1_000, "{returned}");
    wait_small(&cluster, 4 << 20);
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        assert_eq!(amqp::ready(&channel, queue).await.unwrap(), 100);
    });
}
