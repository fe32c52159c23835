//! Nodes die and come back under load; what was confirmed stays, once and in order.

use std::time::{Duration, Instant};

use warren_cluster_tests::{Cluster, Load, Program, Setup, Stop, amqp, rounds, runtime, wait_for};

#[test]
fn killing_the_leader_again_and_again_loses_no_confirmed_message() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "leader-kills");
    for _ in 0..rounds(20) {
        let victim = cluster.wait_leader("leader-kills");
        cluster[victim].stop(Stop::Kill);
        std::thread::sleep(Duration::from_secs(1));
        cluster.restart(victim);
        std::thread::sleep(Duration::from_secs(1));
    }
    let verdict = load.finish();
    assert!(verdict.number("confirmed") > 1_000.0);
}

#[test]
fn killing_each_node_in_turn_loses_no_confirmed_message() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "each-in-turn");
    for victim in (0..3).cycle().take(rounds(3)) {
        cluster[victim].stop(Stop::Kill);
        std::thread::sleep(Duration::from_secs(2));
        cluster.restart(victim);
        std::thread::sleep(Duration::from_millis(500));
    }
    load.finish();
}

#[test]
fn killing_all_nodes_at_once_loses_no_confirmed_message() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "all-at-once");
    for _ in 0..rounds(2) {
        std::thread::sleep(Duration::from_secs(2));
        cluster.kill_all();
        cluster.start_all();
    }
    std::thread::sleep(Duration::from_secs(2));
    load.finish();
}

#[test]
fn orderly_restarts_under_load_lose_nothing_either() {
    let mut cluster = Cluster::start(3);
    let load = Load::start(&cluster, "rolling");
    for victim in 0..3 {
        let status = cluster[victim].stop(Stop::Terminate);
        assert!(status.success(), "an orderly stop ended with {status}");
        cluster.restart(victim);
    }
    load.finish();
}

#[test]
fn without_a_majority_nothing_is_confirmed_and_on_its_return_everything_once() {
    // a declaration waits as long as this; the default is half a minute
    let setup = Setup::new().line("metadata_store.default_timeout = 5000");
    let mut cluster = setup.start(3);
    let queue = "majority-down";
    let runtime = runtime();
    let (_connection, known) = runtime.block_on(async {
        let (connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, b"before", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
        (connection, channel)
    });
    cluster[1].stop(Stop::Kill);
    cluster[2].stop(Stop::Kill);

    let answer = runtime.block_on(amqp::answer(&known, queue, b"pending"));
    let mut pending = Box::pin(answer.unwrap());
    runtime.block_on(async {
        // who has published before stays pending: neither confirmed nor refused
        let early = tokio::time::timeout(Duration::from_secs(10), &mut pending).await;
        assert!(early.is_err(), "answered without a majority: {early:?}");

        // a newcomer is refused after five seconds
        let (_connection, newcomer) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let started = Instant::now();
        let refused = amqp::publish(&newcomer, queue, b"refused", Duration::from_secs(20)).await;
        assert_eq!(refused.unwrap(), Some(false), "a newcomer's publish is refused");
        let took = started.elapsed();
        assert!((Duration::from_secs(4)..Duration::from_secs(10)).contains(&took), "refused after {took:?}");

        // a declaration ends in an error, in bounded time
        let (_connection, declarer) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let declared =
            tokio::time::timeout(Duration::from_secs(45), amqp::declare_quorum(&declarer, "cannot-be-declared"));
        let outcome = declared.await.expect("a declaration without a majority is answered");
        assert!(outcome.is_err(), "declared without a majority: {outcome:?}");
    });

    cluster.start_all();
    runtime.block_on(async {
        let answer = tokio::time::timeout(Duration::from_secs(30), pending)
            .await
            .expect("the pending publish is answered when the majority is back");
        assert!(answer.unwrap().is_ack(), "the pending publish is confirmed");
        let (_connection, reader) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        let bodies = amqp::drain(&reader, queue).await.unwrap();
        assert_eq!(bodies, [b"before".to_vec(), b"pending".to_vec()]);
    });
}

#[test]
fn without_a_majority_pika_gets_clear_errors_in_bounded_time_and_on_its_return_one_confirm() {
    let metadata_timeout = 8;
    let setup = Setup::new().line(&format!("metadata_store.default_timeout = {metadata_timeout}s"));
    let mut cluster = setup.start(3);
    let file = |name: &str| cluster.folder().join(name);
    let (up, down, asked) = (file("up"), file("down"), file("asked"));
    let mut program = Program::python("majority_down.py")
        .arg("--ports", cluster[0].amqp_port())
        .arg("--up-file", up.display())
        .arg("--down-file", down.display())
        .arg("--asked-file", asked.display())
        .arg("--metadata-timeout", metadata_timeout)
        .start();
    let mut await_file = |what: &str, file: &std::path::Path, limit: Duration| {
        wait_for(what, limit, || (file.exists() || !program.is_running()).then_some(()));
    };
    await_file("the queue", &up, Duration::from_secs(30));
    cluster[1].stop(Stop::Kill);
    cluster[2].stop(Stop::Kill);
    std::fs::write(&down, b"").expect("a file can be written");
    await_file("everything to be refused", &asked, Duration::from_secs(90));
    cluster.start_all();
    program.pass();
}

#[test]
fn a_node_whose_disk_was_replaced_joins_again_and_never_votes_as_its_old_self() {
    let mut cluster = Cluster::start(3);
    let queue = "wiped";
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        for n in 0..200u32 {
            let body = n.to_string();
            let confirmed = amqp::publish(&channel, queue, body.as_bytes(), amqp::ANSWER_LIMIT);
            assert_eq!(confirmed.await.unwrap(), Some(true));
        }
    });
    cluster[2].stop(Stop::Kill);
    cluster[2].wipe();
    cluster.restart(2);

    // it serves clients, knows the queue, and reaches its messages
    wait_for("three running nodes", Duration::from_secs(30), || {
        let rows = cluster[2].ctl_rows(&["cluster_status"])?;
        (rows.first()?["running_nodes"].as_array()?.len() == 3).then_some(())
    });
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, b"after", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
        assert_eq!(amqp::ready(&channel, queue).await.unwrap(), 201);
    });

    // its lost member is replaced by a new one, which votes once it has caught up
    wait_for("the lost member to be replaced", Duration::from_secs(60), || {
        let rows = cluster[1].ctl_rows(&["quorum_status", queue])?;
        let wiped = rows.iter().find(|row| row["Node Name"] == "w3@localhost")?;
        (wiped["Membership"] == "voter" && wiped["Raft State"] == "follower").then_some(())
    });
    cluster[0].stop(Stop::Kill);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        let confirmed = amqp::publish(&channel, queue, b"by two", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
    });
    cluster.restart(0);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let bodies = amqp::drain(&channel, queue).await.unwrap();
        assert_eq!(bodies.len(), 202);
    });
}

#[test]
fn a_node_that_dies_while_a_queue_is_made_leaves_one_that_works_or_none_and_it_can_be_deleted() {
    let mut cluster = Cluster::start(3);
    for round in 0..rounds(9) {
        let (dies, queue) = (round % 3, format!("made-{round}"));
        let asked = (dies + 1) % 3;
        // Sometimes its own client's declare, sometimes another's.
        let through = if round % 2 == 0 { dies } else { asked };
        let uri = format!("amqp://guest:guest@127.0.0.1:{}/%2f", cluster[through].amqp_port());
        let name = queue.clone();
        let declaring = std::thread::spawn(move || {
            runtime().block_on(async {
                let connection = lapin::Connection::connect(&uri, lapin::ConnectionProperties::default()).await?;
                let channel = connection.create_channel().await?;
                amqp::declare_quorum(&channel, &name).await
            })
        });
        std::thread::sleep(Duration::from_millis(2 + 5 * round as u64));
        cluster[dies].stop(Stop::Kill);
        // With the node's death it may fail; what counts is what is left.
        let _ = declaring.join().expect("it does not panic");
        cluster.restart(dies);
        runtime().block_on(async {
            let (_connection, channel) = amqp::confirm_channel(&cluster[asked]).await.unwrap();
            amqp::declare_quorum(&channel, &queue).await.unwrap();
            assert_eq!(amqp::publish(&channel, &queue, b"m", amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
        });
        wait_for("one leader and its followers", Duration::from_secs(30), || {
            let rows = cluster[asked].ctl_rows(&["quorum_status", &queue])?;
            let state = |wanted: &str| rows.iter().filter(|row| row["Raft State"] == wanted).count();
            (state("leader") == 1 && state("follower") == 2).then_some(())
        });
        cluster[dies].ctl_ok(&["delete_queue", &queue]);
    }
    let left = cluster[0].ctl_rows(&["list_queues", "name"]).expect("it answers");
    assert!(left.is_empty(), "{left:?}");
}
