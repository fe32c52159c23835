//! How a cluster forms, how a node ends, and what a node refuses.

use std::time::{Duration, Instant};

use warren_cluster_tests::{Cluster, Setup, Stop, amqp, wait_for};

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be started")
}

/// The names that a node counts as running, sorted.
fn running(cluster: &Cluster, index: usize) -> Option<Vec<String>> {
    let rows = cluster[index].ctl_rows(&["cluster_status"])?;
    let names = rows.first()?["running_nodes"].as_array()?;
    let mut names: Vec<String> = names.iter().filter_map(|name| name.as_str().map(str::to_owned)).collect();
    names.sort();
    Some(names)
}

fn forms_one_cluster(cluster: &Cluster) {
    let all: Vec<String> = cluster.iter().map(|node| node.name().to_owned()).collect();
    for index in 0..cluster.len() {
        wait_for("every node to see all", Duration::from_secs(30), || {
            running(cluster, index).filter(|names| *names == all)
        });
    }
}

#[test]
fn nodes_started_in_any_order_form_one_cluster() {
    for order in [[2, 1, 0], [1, 0, 2]] {
        let mut cluster = Setup::new().lay_out(3);
        for index in order {
            cluster[index].start();
            std::thread::sleep(Duration::from_millis(700));
        }
        cluster.wait_ready();
        forms_one_cluster(&cluster);
    }
}

#[test]
fn nodes_started_at_once_form_one_cluster_which_outlives_a_restart_of_all() {
    let mut cluster = Cluster::start(3);
    forms_one_cluster(&cluster);
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[1]).await.unwrap();
        amqp::declare_quorum(&channel, "kept").await.unwrap();
        let confirmed = amqp::publish(&channel, "kept", b"kept", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
    });
    for node in cluster.iter_mut() {
        assert!(node.stop(Stop::Terminate).success());
    }
    cluster.start_all();
    forms_one_cluster(&cluster);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[2]).await.unwrap();
        assert_eq!(amqp::drain(&channel, "kept").await.unwrap(), [b"kept"]);
    });
}

#[test]
fn one_node_alone_is_a_cluster_of_one() {
    let mut cluster = Cluster::start(1);
    let runtime = runtime();
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        amqp::declare_quorum(&channel, "alone").await.unwrap();
        let confirmed = amqp::publish(&channel, "alone", b"alone", amqp::ANSWER_LIMIT).await;
        assert_eq!(confirmed.unwrap(), Some(true));
    });
    cluster[0].stop(Stop::Kill);
    cluster.restart(0);
    runtime.block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        assert_eq!(amqp::drain(&channel, "alone").await.unwrap(), [b"alone"]);
    });
}

#[test]
fn an_orderly_stop_is_quick_says_goodbye_to_clients_and_exits_with_zero() {
    let mut cluster = Cluster::start(3);
    let runtime = runtime();
    let connection = runtime.block_on(amqp::connect(&cluster[0])).unwrap();
    let started = Instant::now();
    let status = cluster[0].stop(Stop::Terminate);
    assert!(status.success(), "ended with {status}");
    assert!(started.elapsed() < Duration::from_secs(20), "stopping took {:?}", started.elapsed());
    let refused = runtime.block_on(connection.create_channel());
    assert!(refused.is_err(), "the connection still works");
    cluster.restart(0);
    forms_one_cluster(&cluster);
}

#[test]
fn a_second_process_on_a_data_folder_refuses_to_start() {
    let cluster = Cluster::start(1);
    let output = cluster[0].server_command().output().unwrap();
    assert_eq!(output.status.code(), Some(78));
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    let pid = cluster[0].pid().unwrap().to_string();
    assert!(text.contains(&pid), "the holder's pid is not named: {text}");
}

#[test]
fn an_unknown_configuration_key_is_refused_with_its_line() {
    let mut cluster = Setup::new().line("no.such.key = 1").lay_out(1);
    cluster[0].start();
    let status = wait_for("the node to give up", Duration::from_secs(20), || cluster[0].exited());
    assert_eq!(status.code(), Some(78));
    let log = cluster[0].log();
    assert!(log.contains("no.such.key"), "the key is not named: {log}");
}

#[test]
fn users_vhosts_and_permissions_are_seen_on_every_node() {
    let cluster = Cluster::start(3);
    cluster[0].ctl_ok(&["add_vhost", "shop"]);
    cluster[1].ctl_ok(&["add_user", "alice", "secret"]);
    cluster[2].ctl_ok(&["set_permissions", "-p", "shop", "alice", "^a", ".*", ".*"]);
    for node in cluster.iter() {
        let permissions = node.ctl_ok(&["-s", "list_permissions", "-p", "shop"]);
        assert_eq!(permissions.trim(), "alice\t^a\t.*\t.*", "on {}", node.name());
    }
    let unknown = cluster[0].ctl(&["delete_user", "nobody"]);
    assert_eq!(unknown.status.code(), Some(67));
}

#[test]
fn a_blank_node_that_its_cluster_cannot_take_in_gives_up_and_joins_once_it_can() {
    let setup = Setup::new()
        .line("cluster_formation.discovery_retry_limit = 4")
        .line("cluster_formation.discovery_retry_interval = 300");
    let mut cluster = setup.start(3);
    cluster[1].stop(Stop::Kill);
    cluster[2].stop(Stop::Kill);
    cluster[2].wipe();
    // One of three is no majority: it knows the cluster and cannot change its members.
    cluster[2].start();
    let status = wait_for("the node to give up", Duration::from_secs(120), || cluster[2].exited());
    assert_eq!(status.code(), Some(75), "ended with {status}");
    let log = cluster[2].log();
    assert!(log.contains("the cluster did not take this node in"), "the reason is not named: {log}");
    cluster.restart(1);
    cluster.restart(2);
    forms_one_cluster(&cluster);
}

#[test]
fn a_node_joins_by_way_of_one_that_does_not_lead_without_having_heard_of_the_leader() {
    let mut cluster = Setup::new().lay_out(4);
    // Keeps those lines of the list of nodes that are wanted.
    let only = |text: String, wanted: &dyn Fn(&str) -> bool| -> String {
        let kept = text.lines().filter(|line| !line.contains("classic_config.nodes.") || wanted(line));
        kept.flat_map(|line| [line, "\n"]).collect()
    };
    for index in 0..3 {
        cluster[index].configure(|text| only(text, &|line| !line.contains("w4@")));
        cluster[index].start();
    }
    cluster.wait_ready();
    let leader = wait_for("a leader of the metadata", Duration::from_secs(30), || {
        let rows = cluster[0].ctl_rows(&["cluster_status"])?;
        rows.first()?["metadata_leader"].as_str().map(str::to_owned)
    });
    let names = ["w1@", "w2@"];
    let seed = names.into_iter().find(|name| !leader.starts_with(name)).expect("one of two does not lead");
    cluster[3].configure(|text| only(text, &|line| line.contains("w4@") || line.contains(seed)));
    cluster.restart(3);
    forms_one_cluster(&cluster);
}
