//! Disks that fail: nothing that was confirmed is lost, and a node whose disk cannot be trusted stops.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use lapin::Channel;
use warren_cluster_tests::{Cluster, DiskFault, Load, Setup, Stop, amqp, rounds, runtime, wait_for};

/// The exit status of a node that stopped since its log cannot be written.
const LOG_FAILED: i32 = 74;

/// How long a node may take from the failure to its end. A second is asked for; the machine may be busy.
const END_LIMIT: Duration = Duration::from_secs(5);

/// Publishes numbers from `first` on and awaits each answer, until one is not confirmed or `most` are. Gives back how many
/// were.
async fn publish_numbers(channel: &Channel, queue: &str, first: u32, most: u32) -> u32 {
    for number in first..first + most {
        let body = number.to_string();
        let outcome = amqp::publish(channel, queue, body.as_bytes(), amqp::ANSWER_LIMIT).await;
        if !matches!(outcome, Ok(Some(true))) {
            return number - first;
        }
    }
    most
}

/// Takes everything out of the queue; it must be the numbers from 0 on, each once and in order. Gives back how many.
async fn drain_numbers(channel: &Channel, queue: &str) -> u32 {
    let bodies = amqp::drain(channel, queue).await.expect("the queue can be read");
    let numbers: Vec<u32> =
        bodies.iter().map(|body| String::from_utf8_lossy(body).parse().expect("a number")).collect();
    let count = numbers.len() as u32;
    assert!(numbers.iter().copied().eq(0..count), "{numbers:?}");
    count
}

/// Waits until the node has ended by itself, which must be for its log. Gives back how long it took.
fn ends_for_its_log(cluster: &mut Cluster, index: usize, limit: Duration) -> Duration {
    let started = Instant::now();
    let status = wait_for("the node to end", limit, || cluster[index].exited());
    assert_eq!(status.code(), Some(LOG_FAILED), "ended with {status}");
    let log = cluster[index].log();
    assert!(log.contains("the log cannot be written"), "the log does not say why: {log}");
    started.elapsed()
}

#[test]
fn one_failed_sync_ends_the_node_before_anything_else_is_confirmed() {
    let mut cluster = Setup::new().faulty_disks().start(1);
    let queue = "one-failed-sync";
    let runtime = runtime();
    let confirmed = runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        let before = publish_numbers(&channel, queue, 0, 50).await;
        assert_eq!(before, 50);
        cluster[0].break_disk(DiskFault::FailOneSync);
        // The sync after the failed one would succeed: whoever tried again would confirm what is not on the disk.
        let after = publish_numbers(&channel, queue, before, 1_000).await;
        assert_eq!(after, 0, "confirmed after a failed sync");
        before
    });
    assert!(!cluster[0].disk_is_broken(), "the sync was tried");
    let took = ends_for_its_log(&mut cluster, 0, END_LIMIT);
    println!("ended after {took:?}");
    cluster.restart(0);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let found = drain_numbers(&channel, queue).await;
        // The one whose sync failed may be there: nobody was told that it is not.
        assert!(found >= confirmed && found <= confirmed + 1, "{confirmed} confirmed, {found} found");
    });
}

#[test]
fn failed_syncs_under_load_lose_nothing_confirmed() {
    let mut cluster = Setup::new().faulty_disks().start(3);
    let load = Load::start(&cluster, "failed-syncs");
    for _ in 0..rounds(3) {
        let victim = cluster.wait_leader("failed-syncs");
        cluster[victim].break_disk(DiskFault::FailOneSync);
        ends_for_its_log(&mut cluster, victim, END_LIMIT);
        cluster.restart(victim);
        std::thread::sleep(Duration::from_secs(1));
    }
    load.finish();
}

#[test]
fn a_full_disk_ends_the_node_which_returns_with_everything_once_there_is_space() {
    let mut cluster = Setup::new().faulty_disks().start(1);
    let queue = "full-disk";
    let runtime = runtime();
    let confirmed = runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        assert_eq!(publish_numbers(&channel, queue, 0, 200).await, 200);
        cluster[0].break_disk(DiskFault::Full);
        assert_eq!(publish_numbers(&channel, queue, 200, 1_000).await, 0, "confirmed on a full disk");
        200
    });
    ends_for_its_log(&mut cluster, 0, END_LIMIT);

    // While the disk is full, it says so and does not run.
    cluster[0].start();
    let status = wait_for("the node to give up", Duration::from_secs(20), || cluster[0].exited());
    assert!(!status.success(), "it runs on a full disk");
    let log = cluster[0].log();
    assert!(log.contains("No space left on device"), "{log}");

    cluster[0].mend_disk();
    cluster.restart(0);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let found = drain_numbers(&channel, queue).await;
        assert!(found >= confirmed && found <= confirmed + 1, "{confirmed} confirmed, {found} found");
        // The file that was cut short is no obstacle.
        assert_eq!(publish_numbers(&channel, queue, 0, 50).await, 50);
        assert_eq!(drain_numbers(&channel, queue).await, 50);
    });
}

#[test]
fn disks_that_fill_up_and_are_freed_again_lose_nothing_confirmed() {
    let mut cluster = Setup::new().faulty_disks().start(3);
    let load = Load::start(&cluster, "oscillating");
    for round in 0..rounds(6) {
        // Of one node, of two, of all: as a disk that all of them share would.
        let full = 1 + round % 3;
        for index in 0..full {
            cluster[index].break_disk(DiskFault::Full);
        }
        std::thread::sleep(Duration::from_secs(2));
        for index in 0..full {
            cluster[index].mend_disk();
        }
        // What a supervisor does.
        for node in cluster.iter_mut() {
            if let Some(status) = node.exited() {
                assert_eq!(status.code(), Some(LOG_FAILED), "{} ended with {status}", node.name());
                node.start();
            }
        }
        cluster.wait_ready();
        std::thread::sleep(Duration::from_secs(2));
    }
    load.finish();
}

/// The newest write-ahead log of a database.
fn newest_log(database: &Path) -> PathBuf {
    let files = fs::read_dir(database).expect("the database is there").flatten().map(|entry| entry.path());
    let logs = files.filter(|path| path.extension().is_some_and(|extension| extension == "log"));
    let filled = logs.filter(|path| fs::metadata(path).is_ok_and(|file| file.len() > 0));
    filled.max().expect("there is a write-ahead log")
}

/// Flips one bit in the middle of the file.
fn damage(file: &Path) {
    let mut bytes = fs::read(file).expect("the log can be read");
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(file, bytes).expect("the log can be written");
}

#[test]
fn damage_before_the_logs_end_is_refused_with_the_files_name_and_the_way_out() {
    let mut cluster = Cluster::start(3);
    let queue = "damaged";
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        assert_eq!(publish_numbers(&channel, queue, 0, 300).await, 300);
    });
    cluster[2].stop(Stop::Kill);
    let database = cluster[2].data_dir().join(cluster[2].name()).join("queues");
    let file = newest_log(&database);
    damage(&file);
    let said_before = cluster[2].log().len();
    cluster[2].start();
    let status = wait_for("the node to give up", Duration::from_secs(20), || cluster[2].exited());
    assert_eq!(status.code(), Some(78), "a start that somebody has to do something about");
    let said = cluster[2].log()[said_before..].to_owned();
    assert!(said.contains(&file.display().to_string()), "the file is not named: {said}");
    assert!(said.contains("delete its data directory"), "the way out is not named: {said}");

    // The way out works, and nothing is lost by it.
    cluster[2].wipe();
    cluster.restart(2);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(drain_numbers(&channel, queue).await, 300);
    });
}

#[test]
fn a_disk_that_stalls_costs_the_leadership_and_in_the_end_the_process() {
    // Leaderships are given up after two seconds, the process after twelve.
    let mut cluster = Setup::new().line("raft.disk_stall_timeout = 2s").faulty_disks().start(3);
    let queue = "stalled";
    let runtime = runtime();
    let mut published = runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        publish_numbers(&channel, queue, 0, 20).await
    });
    assert_eq!(published, 20);

    // A stall that ends in time costs no more than the leadership.
    let first = cluster.wait_leader(queue);
    cluster[first].break_disk(DiskFault::Stall);
    let took = confirms_again(&cluster, &runtime, queue, first, &mut published);
    println!("another node confirmed after {took:?}");
    assert!(took < Duration::from_secs(15), "another leader confirmed only after {took:?}");
    assert!(cluster[first].exited().is_none(), "it ended after {took:?}");
    cluster[first].mend_disk();
    std::thread::sleep(Duration::from_secs(15));
    assert!(cluster[first].exited().is_none(), "the disk works again");
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[first]).await.unwrap();
        assert_eq!(publish_numbers(&channel, queue, published, 1).await, 1);
        published += 1;
    });

    // One that does not end costs the process.
    let second = cluster.wait_leader(queue);
    cluster[second].break_disk(DiskFault::Stall);
    let stalled = Instant::now();
    confirms_again(&cluster, &runtime, queue, second, &mut published);
    ends_for_its_log(&mut cluster, second, Duration::from_secs(25));
    let took = stalled.elapsed();
    assert!(took > Duration::from_secs(10), "it ended after {took:?}");
    let log = cluster[second].log();
    assert!(log.contains("the disk does not answer"), "the reason is not named: {log}");

    cluster[second].mend_disk();
    cluster.restart(second);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[second]).await.unwrap();
        assert_eq!(drain_numbers(&channel, queue).await, published);
    });
}

/// Publishes the next number through a node other than `without` until it is confirmed. Gives back how long it took.
fn confirms_again(
    cluster: &Cluster,
    runtime: &tokio::runtime::Runtime,
    queue: &str,
    without: usize,
    published: &mut u32,
) -> Duration {
    let other = (without + 1) % cluster.len();
    let started = Instant::now();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[other]).await.unwrap();
        let answer = amqp::answer(&channel, queue, published.to_string().as_bytes()).await.unwrap();
        let answered = tokio::time::timeout(Duration::from_secs(40), answer).await;
        assert!(answered.expect("it is answered").unwrap().is_ack(), "it is confirmed");
    });
    *published += 1;
    started.elapsed()
}
