//! Data on a node that does not belong there any more: it is neither used nor lost.

use std::fs;
use std::time::Duration;

use lapin::options::QueueDeleteOptions;
use warren_cluster_tests::{Cluster, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);

async fn publish(channel: &lapin::Channel, queue: &str, body: &str) {
    let confirmed = amqp::publish(channel, queue, body.as_bytes(), amqp::ANSWER_LIMIT).await;
    assert_eq!(confirmed.unwrap(), Some(true));
}

/// Whether the node serves clients in a cluster of that many running nodes.
fn sees(cluster: &Cluster, index: usize, count: usize) -> Option<()> {
    let rows = cluster[index].ctl_rows(&["cluster_status"])?;
    (rows.first()?["running_nodes"].as_array()?.len() == count).then_some(())
}

#[test]
fn data_of_a_queue_that_the_metadata_does_not_know_is_set_aside() {
    // The node that comes back gets a snapshot instead of the entries.
    let mut cluster = Setup::new().line("metadata_store.khepri.snapshot_interval = 20").start(3);
    let (gone, kept) = ("gone", "kept");
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        for queue in [gone, kept] {
            amqp::declare_quorum(&channel, queue).await.unwrap();
            publish(&channel, queue, "a message that nobody has read").await;
        }
    });
    // Its metadata is lost, so it never hears that the queue was there and was deleted.
    cluster[2].stop(Stop::Kill);
    fs::remove_dir_all(cluster[2].database("metadata")).unwrap();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        channel.queue_delete(gone.into(), QueueDeleteOptions::default()).await.unwrap();
        for number in 0..60 {
            amqp::declare_quorum(&channel, &format!("other-{number}")).await.unwrap();
        }
    });
    // A leader that was started again has no old entries in memory.
    for index in 0..2 {
        cluster[index].stop(Stop::Terminate);
    }
    for index in 0..2 {
        cluster[index].start();
    }
    cluster.wait_ready();
    cluster.restart(2);
    wait_for("the data to be set aside", SOON, || (cluster[2].quarantine().len() == 1).then_some(()));
    let file = cluster[2].quarantine().remove(0);
    let listed = cluster[2].ctl_rows(&["list_quarantined"]).expect("it answers");
    assert!(listed.len() == 1 && listed[0]["bytes"].as_u64() > Some(0), "{listed:?}");
    let bytes = fs::read(&file).unwrap();
    assert!(bytes.starts_with(b"WARRENQ1"));
    let message = b"a message that nobody has read";
    assert!(bytes.windows(message.len()).any(|part| part == message), "the message is not in {}", file.display());
    let log = cluster[2].log();
    assert!(log.contains("belongs to no queue") && log.contains(&file.display().to_string()), "{log}");
    assert!(cluster[0].quarantine().is_empty() && cluster[1].quarantine().is_empty());

    // Set aside once, and for good.
    cluster[2].stop(Stop::Kill);
    cluster.restart(2);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(amqp::drain(&channel, kept).await.unwrap().len(), 1);
    });
    assert_eq!(cluster[2].quarantine(), [file]);
}

#[test]
fn a_removed_node_that_returns_with_its_old_data_refuses_to_start_and_says_so() {
    let mut cluster = Cluster::start(3);
    let queue = "outlived";
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        publish(&channel, queue, "first").await;
    });
    // Its data is taken away, and it joins as another member.
    cluster[2].stop(Stop::Kill);
    let old = cluster.folder().join("old-data");
    fs::rename(cluster[2].data_dir(), &old).unwrap();
    cluster.restart(2);
    wait_for("three running nodes", SOON, || sees(&cluster, 0, 3));
    wait_for("the new member to vote", SOON, || {
        let rows = cluster[0].ctl_rows(&["quorum_status", queue])?;
        let row = rows.iter().find(|row| row["Node Name"] == cluster[2].name())?;
        (row["Membership"] == "voter").then_some(())
    });
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        publish(&channel, queue, "second").await;
    });

    // The old data comes back.
    cluster[2].stop(Stop::Kill);
    cluster[2].wipe();
    fs::rename(&old, cluster[2].data_dir()).unwrap();
    let said_before = cluster[2].log().len();
    cluster[2].start();
    let status = wait_for("the node to give up", SOON, || cluster[2].exited());
    assert_eq!(status.code(), Some(78), "ended with {status}");
    let log = cluster[2].log();
    assert!(log[said_before..].contains("a member which the cluster has removed"), "the reason is not named: {log}");
    assert!(!log[said_before..].contains(" started "), "it served clients");
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        publish(&channel, queue, "third").await;
        let bodies = amqp::drain(&channel, queue).await.unwrap();
        assert_eq!(bodies, [b"first".to_vec(), b"second".to_vec(), b"third".to_vec()]);
    });
    // And the way that it names works.
    cluster[2].wipe();
    cluster.restart(2);
    wait_for("three running nodes", SOON, || sees(&cluster, 2, 3));
}
