//! One message that nobody acknowledges, while millions of others come and go.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use futures_util::StreamExt as _;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions};
use lapin::types::FieldTable;
use warren_cluster_tests::{Cluster, amqp, wait_for, warren_binary};

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

#[test]
fn a_message_that_is_never_acknowledged_does_not_keep_the_log_of_millions_that_pass() {
    let cluster = Cluster::start(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let queue = "old";
    let holder = runtime.block_on(async {
        let (connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, b"the first", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
        channel.basic_qos(1, BasicQosOptions::default()).await.unwrap();
        let options = BasicConsumeOptions::default();
        let mut consumer =
            channel.basic_consume(queue.into(), "h".into(), options, FieldTable::default()).await.unwrap();
        let held = consumer.next().await.expect("a delivery").expect("the connection works");
        assert_eq!(held.data, b"the first");
        (connection, channel, consumer)
    });

    let nodes: Vec<String> =
        cluster.iter().map(|node| format!("amqp://guest:guest@127.0.0.1:{}/%2f", node.amqp_port())).collect();
    let ended = Command::new(warren_binary())
        .args(["perf", "amqp091", "--keep", "--quiet", "--json", "-u", queue, "-s", "200"])
        .args(["-C", &passing().to_string(), "-H", &nodes.join(",")])
        .stdout(Stdio::null())
        .status()
        .expect("the load generator runs");
    assert!(ended.success(), "{ended}");

    wait_for("the logs to shrink", SILENCE, || {
        let sizes: Vec<u64> = cluster.iter().map(|node| bytes_in(&node.data_dir())).collect();
        println!("bytes of the nodes' folders: {sizes:?}");
        std::thread::sleep(Duration::from_secs(1));
        sizes.iter().all(|bytes| *bytes < MOST_BYTES).then_some(())
    });

    runtime.block_on(async {
        drop(holder);
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        let options = BasicConsumeOptions::default();
        let mut consumer =
            channel.basic_consume(queue.into(), "c".into(), options, FieldTable::default()).await.unwrap();
        let again = tokio::time::timeout(amqp::ANSWER_LIMIT, consumer.next()).await.expect("it comes again");
        let again = again.expect("a delivery").expect("the connection works");
        assert_eq!((again.data.as_slice(), again.redelivered), (b"the first".as_slice(), true));
        again.acker.ack(BasicAckOptions::default()).await.unwrap();
    });
}
