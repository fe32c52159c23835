//! Real file systems that stand still or are full. They need root, to mount them; without it each test says that it was
//! skipped.

use std::io::{self, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use lapin::Channel;
use warren_cluster_tests::{Cluster, Load, Setup, amqp, mounts_are_refused, runtime, wait_for};

/// The exit status of a node that stopped since its log cannot be written.
const LOG_FAILED: i32 = 74;

/// Whether the test can run here; says so if it cannot.
fn skipped(test: &str) -> bool {
    let refused = mounts_are_refused();
    if let Some(why) = &refused {
        // Not with `eprintln`, whose lines nobody sees of a test that passes.
        let _ = writeln!(io::stderr(), "SKIPPED {test}: {why}");
    }
    refused.is_some()
}

/// Publishes the numbers of a range, each of which must be confirmed within the time.
async fn publish(channel: &Channel, queue: &str, numbers: std::ops::Range<u32>, limit: Duration) {
    for number in numbers {
        let confirmed = amqp::publish(channel, queue, number.to_string().as_bytes(), limit).await;
        assert!(matches!(confirmed, Ok(Some(true))), "{number}: {confirmed:?}");
    }
}

/// Takes everything out of the queue: the numbers up to `count`, each once and in order.
async fn drain(channel: &Channel, queue: &str, count: u32) {
    let bodies = amqp::drain(channel, queue).await.expect("the queue can be read");
    let numbers: Vec<u32> =
        bodies.iter().map(|body| String::from_utf8_lossy(body).parse().expect("a number")).collect();
    assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
}

/// How a member takes part, as its own node sees it.
fn raft_state(cluster: &Cluster, queue: &str, index: usize) -> Option<String> {
    let asked = (index + 1) % cluster.len();
    let rows = cluster[asked].ctl_rows(&["quorum_status", queue])?;
    let row = rows.into_iter().find(|row| row["Node Name"] == cluster[index].name())?;
    (row["Membership"] == "voter").then(|| row["Raft State"].as_str().map(str::to_owned))?
}

#[test]
fn a_leader_whose_file_system_is_frozen_is_replaced_and_takes_part_again_after_the_thaw() {
    if skipped("a_leader_whose_file_system_is_frozen_is_replaced_and_takes_part_again_after_the_thaw") {
        return;
    }
    let mut cluster = Setup::new().own_disks(256).start(3);
    let (queue, runtime) = ("frozen", runtime());
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        publish(&channel, queue, 0..20, amqp::ANSWER_LIMIT).await;
    });
    let frozen = cluster.wait_leader(queue);
    cluster.freeze_disk(frozen);
    let began = Instant::now();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[(frozen + 1) % 3]).await.unwrap();
        publish(&channel, queue, 20..21, Duration::from_secs(15)).await;
        println!("another leader confirmed {:?} after the freeze", began.elapsed());
        assert!(began.elapsed() < Duration::from_secs(15));
        publish(&channel, queue, 21..100, amqp::ANSWER_LIMIT).await;
    });
    assert_ne!(cluster.wait_leader(queue), frozen);
    std::thread::sleep(Duration::from_secs(30).saturating_sub(began.elapsed()));
    assert!(cluster[frozen].exited().is_none(), "it ended after half a minute");
    cluster.thaw_disk(frozen);
    let thawed = Instant::now();
    wait_for("the member to follow again", Duration::from_secs(20), || {
        (raft_state(&cluster, queue, frozen)? == "follower").then_some(())
    });
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[frozen]).await.unwrap();
        publish(&channel, queue, 100..101, amqp::ANSWER_LIMIT).await;
        println!("it took part again {:?} after the thaw", thawed.elapsed());
        // It counts: without it there is no majority once another one is gone.
        cluster[(frozen + 1) % 3].stop(warren_cluster_tests::Stop::Kill);
        publish(&channel, queue, 101..102, Duration::from_secs(30)).await;
        drain(&channel, queue, 102).await;
    });
}

#[test]
fn a_freeze_that_lasts_ends_the_node_which_serves_nobody_until_the_thaw() {
    if skipped("a_freeze_that_lasts_ends_the_node_which_serves_nobody_until_the_thaw") {
        return;
    }
    // It gives up the process after six times that.
    let mut cluster = Setup::new().line("raft.disk_stall_timeout = 2s").own_disks(256).start(3);
    let (queue, runtime) = ("frozen-for-good", runtime());
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        publish(&channel, queue, 0..20, amqp::ANSWER_LIMIT).await;
    });
    let frozen = cluster.wait_leader(queue);
    let client = runtime.block_on(amqp::connect(&cluster[frozen])).unwrap();
    cluster.freeze_disk(frozen);
    let began = Instant::now();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[(frozen + 1) % 3]).await.unwrap();
        publish(&channel, queue, 20..100, Duration::from_secs(15)).await;
    });
    // The kernel ends no thread that waits for a frozen file system, so the process stays; but it has left the network.
    let address = SocketAddr::from(([127, 0, 0, 1], cluster[frozen].amqp_port()));
    wait_for("the node to refuse connections", Duration::from_secs(25), || {
        let refused = TcpStream::connect_timeout(&address, Duration::from_secs(1));
        refused.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused).then_some(())
    });
    let refused = began.elapsed();
    println!("it refused connections {refused:?} after the freeze");
    assert!(refused > Duration::from_secs(10), "after {refused:?}");
    wait_for("its client to be told", Duration::from_secs(2), || (!client.status().connected()).then_some(()));
    let log = cluster[frozen].log();
    assert!(log.contains("the disk does not answer"), "the reason is not named: {log}");
    let state = std::fs::read_to_string(format!("/proc/{}/status", cluster[frozen].pid().unwrap()));
    println!(
        "what is left of the process: {:?}",
        state.ok().and_then(|s| s.lines().find(|line| line.starts_with("State:")).map(str::to_owned))
    );
    cluster.thaw_disk(frozen);
    let status = wait_for("the process to end", Duration::from_secs(5), || cluster[frozen].exited());
    assert_eq!(status.code(), Some(LOG_FAILED), "ended with {status}");
    cluster.restart(frozen);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[frozen]).await.unwrap();
        drain(&channel, queue, 100).await;
    });
}

#[test]
fn file_systems_that_fill_up_and_are_freed_every_two_seconds_lose_nothing_confirmed() {
    if skipped("file_systems_that_fill_up_and_are_freed_every_two_seconds_lose_nothing_confirmed") {
        return;
    }
    let mut cluster = Setup::new().own_disks(64).start(3);
    let load = Load::start(&cluster, "filling");
    let mut ended = 0;
    for round in 0..8 {
        // Of one node, of two, of all.
        let full = 1 + round % 3;
        (0..full).for_each(|index| cluster.fill_disk(index));
        std::thread::sleep(Duration::from_secs(2));
        (0..full).for_each(|index| cluster.release_disk(index));
        // What a supervisor does.
        for node in cluster.iter_mut() {
            if let Some(status) = node.exited() {
                assert_eq!(status.code(), Some(LOG_FAILED), "{} ended with {status}", node.name());
                ended += 1;
                node.start();
            }
        }
        cluster.wait_ready();
        std::thread::sleep(Duration::from_secs(2));
    }
    println!("nodes ended {ended} times for a full disk");
    assert!(ended >= 8, "the disks were full {ended} times");
    load.finish();
}
