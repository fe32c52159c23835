//! A million messages wait while every node restarts.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use lapin::BasicProperties;
use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicPublishOptions, BasicQosOptions};
use lapin::types::FieldTable;
use warren_cluster_tests::{Cluster, Stop, amqp};

/// `$WARREN_TEST_BACKLOG` messages, else a million.
fn backlog() -> u32 {
    std::env::var("WARREN_TEST_BACKLOG").ok().and_then(|count| count.parse().ok()).unwrap_or(1_000_000)
}

/// Unconfirmed messages in flight.
const WINDOW: u32 = 20_000;

/// Deliveries between two acknowledgements.
const ACK_EVERY: u32 = 1_000;

/// 12 to 100 octets that begin with the message's number.
fn body(number: u32) -> String {
    let length = 12 + number as usize % 89;
    format!("{number:0>12}{:.<1$}", "", length - 12)
}

#[test]
fn a_million_messages_outlive_a_restart_of_every_node() {
    let count = backlog();
    let mut cluster = Cluster::start(3);
    let runtime = tokio::runtime::Runtime::new().unwrap();

    let started = Instant::now();
    runtime.block_on(publish(&cluster, count));
    println!("published and confirmed in {:?}", started.elapsed());

    let stopping = Instant::now();
    cluster[0].stop(Stop::Terminate);
    cluster[1].stop(Stop::Kill);
    cluster[2].stop(Stop::Kill);
    println!("stopped in {:?}", stopping.elapsed());
    let restarting = Instant::now();
    cluster.start_all();
    println!("restarted in {:?}", restarting.elapsed());

    let consuming = Instant::now();
    runtime.block_on(consume(&cluster, count));
    println!("consumed in {:?}", consuming.elapsed());
}

async fn publish(cluster: &Cluster, count: u32) {
    let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
    amqp::declare_quorum(&channel, "backlog").await.unwrap();
    let mut sent = 0;
    while sent < count {
        let batch = WINDOW.min(count - sent);
        for number in sent..sent + batch {
            channel
                .basic_publish(
                    "".into(),
                    "backlog".into(),
                    BasicPublishOptions::default(),
                    body(number).as_bytes(),
                    BasicProperties::default().with_delivery_mode(2),
                )
                .await
                .unwrap();
        }
        sent += batch;
        let confirmed = tokio::time::timeout(Duration::from_secs(60), channel.wait_for_confirms());
        let returned = confirmed.await.expect("a batch is confirmed in a minute");
        assert!(returned.unwrap().is_empty(), "nothing is returned");
    }
}

async fn consume(cluster: &Cluster, count: u32) {
    let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
    let limit = Duration::from_secs(60);
    let ready = amqp::ready(&channel, "backlog").await.unwrap();
    assert_eq!(ready, count, "messages ready after the restart");
    channel.basic_qos(5_000, BasicQosOptions::default()).await.unwrap();
    let mut consumer = channel
        .basic_consume("backlog".into(), "reader".into(), BasicConsumeOptions::default(), FieldTable::default())
        .await
        .unwrap();
    for number in 0..count {
        let delivery = tokio::time::timeout(limit, consumer.next()).await;
        let delivery = delivery
            .unwrap_or_else(|_| panic!("message {number} did not come"))
            .expect("the consumer goes on")
            .expect("the connection goes on");
        assert_eq!(delivery.data, body(number).into_bytes(), "message {number}");
        assert!(!delivery.redelivered, "message {number}");
        if (number + 1) % ACK_EVERY == 0 || number + 1 == count {
            let multiple = BasicAckOptions { multiple: true };
            delivery.acker.ack(multiple).await.unwrap();
        }
    }
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert_eq!(amqp::ready(&channel, "backlog").await.unwrap(), 0);
}
