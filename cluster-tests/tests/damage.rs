//! Bits that flip on disk, in every column family of every database: no panic, no loss, and a way out that is named.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use lapin::Channel;
use warren_cluster_tests::table_files::{flip_in_first_block, table_files};
use warren_cluster_tests::{Cluster, Node, Setup, Stop, amqp, runtime, wait_for};

/// The exit status of a node that somebody has to do something about.
const NEEDS_SOMEBODY: i32 = 78;
const SOON: Duration = Duration::from_secs(60);

/// Declares the queue and publishes numbers to it, each of which must be confirmed.
async fn fill(channel: &Channel, queue: &str, count: u32) {
    amqp::declare_quorum(channel, queue).await.unwrap();
    let mut answers = Vec::new();
    for number in 0..count {
        answers.push(amqp::answer(channel, queue, body(number).as_bytes()).await.unwrap());
    }
    for answer in answers {
        let answered = tokio::time::timeout(amqp::ANSWER_LIMIT, answer).await.expect("an answer");
        assert!(answered.unwrap().is_ack());
    }
}

/// Long enough that a few hundred take more than one block.
fn body(number: u32) -> String {
    format!("{number:0>400}")
}

/// Takes everything out of the queue: the numbers up to `count`, each once and in order.
async fn drain(channel: &Channel, queue: &str, count: u32) {
    let bodies = amqp::drain(channel, queue).await.expect("the queue can be read");
    let expected: Vec<Vec<u8>> = (0..count).map(|number| body(number).into_bytes()).collect();
    assert_eq!(bodies.len(), expected.len());
    assert!(bodies == expected, "{queue} gives back other messages");
}

/// Starts a node whose data is damaged. `None`: it serves clients. Else what it said before it gave up.
fn start(node: &mut Node) -> Option<String> {
    let said_before = node.log().len();
    node.start();
    let ended = wait_for("the node to serve or to give up", SOON, || {
        if let Some(status) = node.exited() {
            return Some(Some(status));
        }
        node.log()[said_before..].contains(" started ").then_some(None)
    });
    let said = node.log()[said_before..].to_owned();
    assert!(!said.contains("panicked"), "{said}");
    let status = ended?;
    assert_eq!(status.code(), Some(NEEDS_SOMEBODY), "ended with {status}: {said}");
    Some(said)
}

/// Waits until the node's member of the queue votes and takes part.
fn wait_member(cluster: &Cluster, queue: &str, index: usize) {
    wait_for("the member to vote", SOON, || {
        let rows = cluster[(index + 1) % cluster.len()].ctl_rows(&["quorum_status", queue])?;
        let row = rows.iter().find(|row| row["Node Name"] == cluster[index].name())?;
        let state = row["Raft State"].as_str()?;
        (row["Membership"] == "voter" && ["leader", "follower"].contains(&state)).then_some(())
    });
}

/// The stopped node's biggest table file of a family, with a bit flipped.
fn damaged(node: &Node, database: &str, family: &str) -> PathBuf {
    let files = table_files(&node.database(database), family);
    let file = files.first().unwrap_or_else(|| panic!("{database} has no table files of {family}")).clone();
    flip_in_first_block(&file);
    file
}

fn file_name(file: &Path) -> String {
    file.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

/// A cluster whose first queue has a snapshot and a log, all of it in table files.
fn with_table_files(queue: &str, count: u32) -> Cluster {
    let mut cluster = Cluster::start(3);
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        fill(&channel, queue, count).await;
    });
    cluster.flush();
    cluster
}

#[test]
fn a_bit_in_the_records_or_the_snapshots_of_the_queues_is_refused_or_costs_the_group_alone() {
    let (queue, count) = ("records", 300);
    let mut cluster = with_table_files(queue, count);
    cluster[0].ctl_ok(&["force_checkpoint", "--queue-pattern", "^records$"]);
    std::thread::sleep(Duration::from_secs(2));
    cluster.flush();
    for family in ["meta", "snap"] {
        cluster[2].stop(Stop::Kill);
        let aside = cluster[2].quarantine().len();
        let file = damaged(&cluster[2], "queues", family);
        match start(&mut cluster[2]) {
            Some(said) => {
                println!("{family}: the node is refused");
                assert!(said.contains(&file_name(&file)), "the file is not named: {said}");
                assert!(said.contains("delete its data directory"), "the way out is not named: {said}");
                cluster[2].wipe();
                cluster.restart(2);
            }
            None => {
                println!("{family}: the node runs");
                wait_for("the damaged data to be set aside", SOON, || {
                    (cluster[2].quarantine().len() > aside).then_some(())
                });
                assert!(cluster[2].log().contains(&file_name(&file)));
            }
        }
        wait_member(&cluster, queue, 2);
        cluster.flush();
    }
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        drain(&channel, queue, count).await;
    });
}

#[test]
fn a_bit_in_entries_that_a_start_replays_costs_the_member_which_is_replaced() {
    let (queue, count) = ("replayed", 300);
    let mut cluster = with_table_files(queue, count);
    cluster[2].stop(Stop::Kill);
    let file = damaged(&cluster[2], "queues", "log");
    assert!(start(&mut cluster[2]).is_none(), "one group's damage costs the whole node");
    wait_for("the damaged data to be set aside", SOON, || (!cluster[2].quarantine().is_empty()).then_some(()));
    assert!(cluster[2].log().contains(&file_name(&file)), "the file is not named");
    wait_member(&cluster, queue, 2);
    // The new member counts: without it there is no majority.
    cluster[0].stop(Stop::Kill);
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, body(count).as_bytes(), SOON).await;
        assert_eq!(confirmed.unwrap(), Some(true));
        drain(&channel, queue, count + 1).await;
    });
    // It stays as it is over a restart.
    let before = cluster[2].quarantine();
    cluster.flush();
    wait_member(&cluster, queue, 2);
    assert_eq!(cluster[2].quarantine(), before);
}

#[test]
fn a_bit_in_a_message_that_the_leader_reads_at_run_time_costs_its_member_and_no_message() {
    let (queue, count) = ("read-late", 300);
    let mut cluster = with_table_files(queue, count);
    cluster[0].ctl_ok(&["force_checkpoint", "--queue-pattern", "^read-late$"]);
    std::thread::sleep(Duration::from_secs(2));
    cluster.flush();
    cluster[2].stop(Stop::Kill);
    // The messages lie below the snapshot: no start reads them.
    let file = damaged(&cluster[2], "queues", "log");
    assert!(start(&mut cluster[2]).is_none());
    wait_member(&cluster, queue, 2);
    wait_for("the damaged member to lead", SOON, || {
        let moved = cluster[0].ctl(&["transfer_leadership", queue, cluster[2].name()]);
        moved.status.success().then_some(())
    });
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        drain(&channel, queue, count).await;
    });
    assert!(cluster[2].log().contains(&file_name(&file)), "the file is not named");
    wait_for("the damaged data to be set aside", SOON, || (!cluster[2].quarantine().is_empty()).then_some(()));
    wait_member(&cluster, queue, 2);
    assert!(!cluster.iter().any(|node| node.log().contains("panicked")));
}

/// Starts a node whose metadata is damaged and does what it says.
fn repair_metadata(node: &mut Node, file: &Path) {
    let said = start(node).expect("a node with damaged metadata is refused");
    assert!(said.contains(&file_name(file)), "the file is not named: {said}");
    assert!(said.contains("move that folder away"), "the way out is not named: {said}");
    let (folder, aside) = (node.database("metadata"), node.database("metadata-aside"));
    let _ = fs::remove_dir_all(&aside);
    fs::rename(folder, aside).expect("a folder can be moved");
    node.start();
    node.wait_ready(SOON);
}

#[test]
fn a_bit_in_the_metadata_is_refused_and_the_queues_outlive_the_repair() {
    let (queue, count) = ("kept", 200);
    // Snapshots soon, so that there are some.
    let mut cluster = Setup::new().line("metadata_store.khepri.snapshot_interval = 20").start(3);
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        fill(&channel, queue, count).await;
        for number in 0..40 {
            amqp::declare_quorum(&channel, &format!("other-{number}")).await.unwrap();
        }
    });
    cluster.flush();
    for family in ["log", "meta", "snap"] {
        cluster[2].stop(Stop::Kill);
        // A snapshot that came last leaves no entries behind it.
        for more in 0..5 {
            if !table_files(&cluster[2].database("metadata"), family).is_empty() {
                break;
            }
            cluster.restart(2);
            runtime().block_on(async {
                let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
                amqp::declare_quorum(&channel, &format!("more-{family}-{more}")).await.unwrap();
            });
            cluster.flush();
            cluster[2].stop(Stop::Kill);
        }
        let file = damaged(&cluster[2], "metadata", family);
        repair_metadata(&mut cluster[2], &file);
        // Its member of the queue is the one that it was.
        wait_member(&cluster, queue, 2);
        assert!(cluster[2].log().contains("joins the metadata group again"));
        // The new metadata member counts: without it there is no majority.
        wait_for("the node's metadata member to vote", SOON, || {
            let rows = cluster[0].ctl_rows(&["metadata_store_status"])?;
            let row = rows.iter().find(|row| row["Node Name"] == cluster[2].name())?;
            (row["Membership"] == "voter").then_some(())
        });
        cluster[0].stop(Stop::Kill);
        runtime().block_on(async {
            let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
            amqp::declare_quorum(&channel, &format!("after-{family}")).await.unwrap();
        });
        cluster.restart(0);
        cluster.flush();
    }
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        drain(&channel, queue, count).await;
    });
}

#[test]
fn damaged_metadata_snapshots_on_two_of_five_nodes_cost_no_queue() {
    let mut cluster = Setup::new().line("metadata_store.khepri.snapshot_interval = 20").start(5);
    let queues: Vec<String> = (0..10).map(|number| format!("five-{number}")).collect();
    runtime().block_on(async {
        for (number, queue) in queues.iter().enumerate() {
            let (_connection, channel) = amqp::confirm_channel(&cluster[number % 5]).await.unwrap();
            fill(&channel, queue, 20).await;
        }
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        for number in 0..30 {
            amqp::declare_quorum(&channel, &format!("other-{number}")).await.unwrap();
        }
    });
    cluster.flush();
    cluster.kill_all();
    let files: Vec<PathBuf> = (0..2).map(|index| damaged(&cluster[index], "metadata", "snap")).collect();
    for index in 2..5 {
        cluster[index].start();
    }
    for (index, file) in files.iter().enumerate() {
        repair_metadata(&mut cluster[index], file);
    }
    cluster.wait_ready();
    let rows = cluster[0].ctl_rows(&["list_queues", "name"]).expect("an answer");
    assert_eq!(rows.len(), 40);
    runtime().block_on(async {
        for (number, queue) in queues.iter().enumerate() {
            let (_connection, channel) = amqp::confirm_channel(&cluster[(number + 1) % 5]).await.unwrap();
            drain(&channel, queue, 20).await;
        }
    });
    assert!(cluster.iter().all(|node| node.quarantine().is_empty()), "data of queues was set aside");
}
