//! Many queues at once: what they cost when nobody uses them, and how soon all are served again when their leader dies.
//! `WARREN_TEST_QUEUES` says how many; what is measured is printed.

use std::time::{Duration, Instant};

use futures_util::StreamExt as _;
use futures_util::stream;
use lapin::Channel;
use warren_cluster_tests::process::{processor_seconds, resident_megabytes};
use warren_cluster_tests::{Cluster, Node, Stop, amqp};

/// Declarations and publishes under way at once.
const AT_ONCE: usize = 64;
/// Connections over which they are spread: a connection does one declaration after the other.
const CHANNELS: usize = AT_ONCE;
const LIMIT: Duration = Duration::from_secs(60);

fn count() -> usize {
    std::env::var("WARREN_TEST_QUEUES").ok().and_then(|n| n.parse().ok()).unwrap_or(300)
}

async fn channels(node: &Node) -> (Vec<lapin::Connection>, Vec<Channel>) {
    let mut all = (Vec::new(), Vec::new());
    for _ in 0..CHANNELS {
        let (connection, channel) = amqp::confirm_channel(node).await.unwrap();
        all.0.push(connection);
        all.1.push(channel);
    }
    all
}

/// Publishes one message into each queue, some at once, and answers how long each confirm took, sorted.
async fn publish_all(channels: &[Channel], queues: &[String], at_once: usize) -> Vec<Duration> {
    let publishing = stream::iter(queues.iter().enumerate()).map(|(at, queue)| async move {
        let began = Instant::now();
        let confirmed = amqp::publish(&channels[at % channels.len()], queue, b"hello", LIMIT).await.unwrap();
        assert_eq!(confirmed, Some(true), "{queue}");
        began.elapsed()
    });
    let mut took: Vec<Duration> = publishing.buffer_unordered(at_once).collect().await;
    took.sort_unstable();
    took
}

fn percentile(sorted: &[Duration], of_hundred: usize) -> Duration {
    sorted[(sorted.len() * of_hundred / 100).min(sorted.len() - 1)]
}

#[test]
fn all_of_many_queues_are_served_and_again_after_their_leader_died() {
    let count = count();
    let mut cluster = Cluster::start(3);
    let queues: Vec<String> = (0..count).map(|n| format!("many-{n:05}")).collect();
    tokio::runtime::Runtime::new().unwrap().block_on(async {
        let (connections, declaring) = channels(&cluster[0]).await;
        let began = Instant::now();
        stream::iter(queues.iter().enumerate())
            .for_each_concurrent(AT_ONCE, |(at, queue)| {
                let channel = &declaring[at % CHANNELS];
                async move {
                    amqp::declare_quorum(channel, queue).await.unwrap();
                }
            })
            .await;
        println!("{count} queues declared at {:.0}/s", count as f64 / began.elapsed().as_secs_f64());
        for connection in connections {
            connection.close(0, "".into()).await.unwrap();
        }

        tokio::time::sleep(Duration::from_secs(6)).await;
        let pids: Vec<u32> = cluster.iter().filter_map(Node::pid).collect();
        let before: Vec<f64> = pids.iter().map(|pid| processor_seconds(*pid)).collect();
        let watched = Duration::from_secs(10);
        tokio::time::sleep(watched).await;
        for (pid, before) in pids.iter().zip(before) {
            let share = (processor_seconds(*pid) - before) / watched.as_secs_f64();
            println!("idle node: {share:.4} of a processor, {:.0} MB", resident_megabytes(*pid));
        }

        let (_connections, publishing) = channels(&cluster[1]).await;
        let took = publish_all(&publishing, &queues, 1).await;
        let (half, most) = (percentile(&took, 50), percentile(&took, 99));
        println!("a publish into each, one after another: confirmed in {half:.1?} p50, {most:.1?} p99");

        // All are led by the node on which they were declared.
        cluster[0].stop(Stop::Kill);
        let began = Instant::now();
        let took = publish_all(&publishing, &queues, count).await;
        println!(
            "after the leader's death: first confirm {:.0?}, half {:.0?}, all {:.0?} after it",
            took[0],
            percentile(&took, 50),
            began.elapsed()
        );
        for (at, queue) in queues.iter().enumerate().step_by(count.div_ceil(50)) {
            assert_eq!(amqp::ready(&publishing[at % CHANNELS], queue).await.unwrap(), 2, "{queue}");
        }
    });
}
