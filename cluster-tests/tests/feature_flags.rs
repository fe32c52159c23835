//! Feature flags and deprecated features on real nodes. `feature_flags.test_definitions` gives nodes flags that others do not
//! know, with callbacks that last for as long as a file is there, or fail.

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;
use std::process::{Output, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use warren_cluster_tests::{Cluster, Load, Node, Setup, Stop, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);
const READY: Duration = Duration::from_secs(60);

fn states(node: &Node) -> Option<BTreeMap<String, String>> {
    let rows = node.ctl_rows(&["list_feature_flags"])?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    Some(rows.iter().map(|row| (text(&row["name"]), text(&row["state"]))).collect())
}

fn state(node: &Node, flag: &str) -> String {
    states(node).and_then(|states| states.get(flag).cloned()).unwrap_or_default()
}

fn wait_state(nodes: &[&Node], flag: &str, wanted: &str) {
    for node in nodes {
        wait_for(&format!("{flag} to be {wanted} on {}", node.name()), SOON, || {
            (state(node, flag) == wanted).then_some(())
        });
    }
}

fn all(cluster: &Cluster) -> Vec<&Node> {
    cluster.iter().collect()
}

/// The names in the node's file.
fn stored(node: &Node) -> Vec<String> {
    let text = node.own_file("feature_flags.json").expect("the file is there");
    let file: Value = serde_json::from_str(&text).expect("the file is JSON");
    assert_eq!(file["format"], 1);
    let names = file["enabled"].as_array().expect("a list").iter();
    names.map(|flag| flag["name"].as_str().expect("a name").to_owned()).collect()
}

/// Changes the names in a stopped node's file.
fn edit(node: &Node, change: impl FnOnce(&mut Vec<Value>)) {
    let path = node.database("feature_flags.json");
    let mut file: Value = serde_json::from_str(&fs::read_to_string(&path).unwrap()).unwrap();
    change(file["enabled"].as_array_mut().unwrap());
    fs::write(path, file.to_string()).unwrap();
}

/// Gives a node definitions: they count from its next start on.
fn define(cluster: &Cluster, index: usize, definitions: &Value) {
    let path = cluster.folder().join(format!("definitions-{index}.json"));
    fs::write(&path, definitions.to_string()).unwrap();
    let line = format!("feature_flags.test_definitions = {}\n", path.display());
    cluster[index].configure(|text| if text.contains(&line) { text } else { text + &line });
}

/// Three nodes that were started before they knew the flags, so that these are off.
fn upgraded(definitions: [&Value; 3]) -> Cluster {
    let mut cluster = Cluster::start(3);
    for (index, definitions) in definitions.into_iter().enumerate() {
        cluster[index].stop(Stop::Terminate);
        define(&cluster, index, definitions);
    }
    cluster.start_all();
    cluster
}

fn enable(node: &Node, flag: &str) -> Output {
    node.ctl(&["enable_feature_flag", flag])
}

fn refused(output: &Output, code: i32, words: &[&str]) {
    let why = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{why}");
    assert!(words.iter().all(|word| why.contains(word)), "{words:?}: {why}");
}

/// The flags whose callbacks have run on a node, in order.
fn ran(node: &Node) -> Vec<String> {
    let log = node.log();
    let lines = log.lines().filter(|line| line.contains("a feature flag's callback has run: enable"));
    lines.map(|line| field(line, "feature_flag")).collect()
}

fn field(line: &str, name: &str) -> String {
    let (_, rest) = line.split_once(&format!("{name}=")).unwrap_or_else(|| panic!("no {name} in {line}"));
    rest.split_whitespace().next().unwrap_or_default().trim_matches('"').to_owned()
}

/// A file that holds callbacks up.
fn gate(cluster: &Cluster, name: &str) -> PathBuf {
    let path = cluster.folder().join(name);
    fs::write(&path, "").unwrap();
    path
}

fn publish(node: &Node, queue: &str) {
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
        amqp::declare_quorum(&channel, queue).await.unwrap();
        assert_eq!(amqp::publish(&channel, queue, b"m", amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
    });
}

#[test]
fn a_new_node_has_every_stable_flag_and_its_file_lists_those() {
    let mut cluster = Setup::new().lay_out(1);
    define(&cluster, 0, &json!({"flags": [{"name": "trial", "stability": "experimental"}]}));
    cluster.start_all();
    let node = &cluster[0];
    let rows = node.ctl_rows(&["list_feature_flags", "name,state,stability,provided_by"]).unwrap();
    for row in &rows {
        let expected = if row["stability"] == "experimental" { "disabled" } else { "enabled" };
        assert_eq!(row["state"], expected, "{row}");
        assert_eq!(row["provided_by"], "rabbit");
    }
    let names: Vec<&str> = rows.iter().map(|row| row["name"].as_str().unwrap()).collect();
    for name in ["quorum_queue", "khepri_db", "rabbitmq_4.0.0", "rabbitmq_4.3.0", "stream_filtering", "trial"] {
        assert!(names.contains(&name), "{names:?}");
    }
    assert!(names.is_sorted() && !names.contains(&"global_qos"), "{names:?}");
    let enabled: Vec<&str> = names.iter().copied().filter(|name| *name != "trial").collect();
    assert_eq!(stored(node), enabled);

    let table = node.ctl_ok(&["-q", "list_feature_flags"]);
    assert!(table.starts_with("name\tstate\n") && table.contains("\nkhepri_db\tenabled\n"), "{table}");
    refused(&node.ctl(&["list_feature_flags", "colour"]), 64, &["colour"]);
    refused(&enable(node, "no_such_flag"), 64, &["not supported by node"]);
    refused(&enable(node, ""), 65, &[]);
    refused(&node.ctl(&["enable_feature_flag"]), 64, &[]);
    refused(&node.ctl(&["enable_feature_flag", "a", "b"]), 64, &[]);
    refused(&node.ctl(&["enable_feature_flag", "--opt-in", "all"]), 64, &["opt-in"]);
    node.ctl_ok(&["enable_feature_flag", "khepri_db"]);
    node.ctl_ok(&["enable_feature_flag", "all"]);
    assert_eq!(state(node, "trial"), "disabled");
    refused(&enable(node, "trial"), 64, &["--opt-in"]);
    node.ctl_ok(&["enable_feature_flag", "--opt-in", "trial"]);
    assert_eq!(state(node, "trial"), "enabled");
    assert!(stored(node).contains(&"trial".to_owned()));
    let status: Value = serde_json::from_str(&node.ctl_ok(&["status", "--formatter", "json"])).unwrap();
    assert!(status["feature_flags"].as_array().unwrap().iter().any(|flag| flag["name"] == "trial"), "{status}");
    let shown = node.ctl_ok(&["cluster_status"]);
    assert!(shown.contains("Flag: trial, state: enabled"), "{shown}");
}

#[test]
fn a_list_decides_what_a_new_cluster_begins_with_and_nothing_later() {
    let mut cluster = Setup::new().lay_out(1);
    cluster[0].set_variable("RABBITMQ_FEATURE_FLAGS", "+quorum_queue,khepri_db");
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("cannot be mixed"), "{code:?}: {log}");
    cluster[0].set_variable("RABBITMQ_FEATURE_FLAGS", "-khepri_db");
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("khepri_db"), "{code:?}: {log}");
    cluster[0].set_variable("RABBITMQ_FEATURE_FLAGS", "-no_such_flag");
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("no_such_flag"), "{code:?}: {log}");

    cluster[0].set_variable("RABBITMQ_FEATURE_FLAGS", "");
    cluster.start_all();
    let check = |node: &Node| {
        for row in node.ctl_rows(&["list_feature_flags", "name,state,stability"]).unwrap() {
            // There is no other metadata store.
            let on = row["stability"] == "required" || row["name"] == "khepri_db";
            assert_eq!(row["state"], if on { "enabled" } else { "disabled" }, "{row}");
        }
    };
    check(&cluster[0]);
    cluster[0].stop(Stop::Terminate);
    cluster[0].set_variable("RABBITMQ_FEATURE_FLAGS", "rabbitmq_4.3.0");
    cluster.start_all();
    check(&cluster[0]);
    cluster[0].ctl_ok(&["enable_feature_flag", "all"]);
    assert_eq!(state(&cluster[0], "topic_binding_projection_v5"), "enabled");
}

#[test]
fn a_flag_is_enabled_on_all_nodes_that_can_have_it_or_on_none() {
    let chain = [
        json!({"name": "a", "enable": {}}),
        json!({"name": "b", "depends_on": ["a"], "enable": {}}),
        json!({"name": "c", "depends_on": ["b"], "enable": {}}),
        json!({"name": "fails", "enable": {"fails_on": ["w2@localhost"]}, "post_enable": {}}),
        json!({"name": "panics", "enable": {"panics_on": ["w3@localhost"]}}),
        json!({"name": "needs_no_transient", "depends_on": ["transient_nonexcl_queues"]}),
    ];
    let mut most = chain.to_vec();
    most.push(json!({"name": "of_two"}));
    most.push(json!({"name": "of_plugin", "provided_by": "plugin", "enable": {}}));
    let two = json!({"providers": ["plugin"], "flags": most});
    let cluster = upgraded([&two, &two, &json!({"flags": chain})]);

    enable(&cluster[1], "c").status.success().then_some(()).expect("c is enabled");
    for node in cluster.iter() {
        assert_eq!(ran(node), ["a", "b", "c"], "on {}", node.name());
        for flag in ["a", "b", "c"] {
            assert_eq!(state(node, flag), "enabled");
            assert!(stored(node).contains(&flag.to_owned()));
        }
    }

    assert_eq!(state(&cluster[0], "of_two"), "unavailable");
    refused(&enable(&cluster[0], "of_two"), 64, &["unsupported", "w3@localhost"]);
    cluster[0].ctl_ok(&["enable_feature_flag", "of_plugin"]);
    wait_state(&[&cluster[0], &cluster[1]], "of_plugin", "enabled");
    assert!(!stored(&cluster[2]).contains(&"of_plugin".to_owned()));

    refused(&enable(&cluster[0], "fails"), 69, &["w2@localhost"]);
    for node in cluster.iter() {
        assert_eq!(state(node, "fails"), "disabled");
        let told = node.log().lines().any(|line| {
            line.contains("callback runs: post_enable") && line.contains("fails") && line.contains("enabled=false")
        });
        assert!(told, "{} is told that it was in vain", node.name());
    }
    refused(&enable(&cluster[2], "panics"), 69, &["w3@localhost", "panicked"]);
    assert!(cluster.iter().all(|node| state(node, "panics") == "disabled"));

    // A deprecated feature that is in use keeps off what needs it gone.
    let transient = runtime().block_on(async {
        let connection = amqp::connect(&cluster[1]).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        channel.queue_declare("passing".into(), Default::default(), Default::default()).await.unwrap();
        connection
    });
    refused(
        &enable(&cluster[0], "needs_no_transient"),
        69,
        &["failed_to_deny_deprecated_features", "transient_nonexcl_queues"],
    );
    assert!(cluster.iter().all(|node| state(node, "needs_no_transient") == "disabled"));
    cluster[0].ctl_ok(&["delete_queue", "passing"]);
    cluster[0].ctl_ok(&["enable_feature_flag", "needs_no_transient"]);
    let features = cluster[2].ctl_rows(&["list_deprecated_features"]).unwrap();
    let denied = features.iter().find(|row| row["name"] == "transient_nonexcl_queues").unwrap();
    assert_eq!(denied["state"], "denied");
    drop(transient);
}

#[test]
fn all_nodes_have_to_run() {
    let definitions = json!({"flags": [{"name": "new", "enable": {}}]});
    let mut cluster = upgraded([&definitions; 3]);
    cluster[2].stop(Stop::Kill);
    wait_for("the node to be missed", SOON, || {
        let output = enable(&cluster[0], "new");
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        (why.contains("missing_clustered_nodes") && why.contains("w3@localhost")).then_some(())
    });
    refused(&enable(&cluster[1], "new"), 69, &["missing_clustered_nodes", "w3@localhost"]);
    assert_eq!((state(&cluster[0], "new").as_str(), state(&cluster[1], "new").as_str()), ("disabled", "disabled"));
    cluster.restart(2);
    wait_for("all nodes to be there again", SOON, || enable(&cluster[0], "new").status.success().then_some(()));
    wait_state(&all(&cluster), "new", "enabled");
}

#[test]
fn while_a_flag_changes_clients_are_served_and_others_wait_their_turn() {
    let mut cluster = Cluster::start(3);
    let gate = gate(&cluster, "gate");
    let definitions = json!({"flags": [
        {"name": "slow", "enable": {"while_exists": gate}},
        {"name": "other", "enable": {"sleep_ms": 200}},
    ]});
    for index in 0..3 {
        cluster[index].stop(Stop::Terminate);
        define(&cluster, index, &definitions);
    }
    cluster.start_all();
    std::thread::scope(|scope| {
        let slow = scope.spawn(|| enable(&cluster[0], "slow"));
        wait_state(&all(&cluster), "slow", "state_changing");
        let other = scope.spawn(|| enable(&cluster[1], "other"));
        publish(&cluster[2], "served");
        let told = cluster[0].ctl_rows(&["feature_flag_status", "slow"]).unwrap();
        assert!(told.len() == 3 && told.iter().all(|row| row["step"] == "callback"), "{told:?}");
        assert_eq!(state(&cluster[1], "other"), "disabled");
        fs::remove_file(&gate).unwrap();
        assert!(slow.join().unwrap().status.success());
        assert!(other.join().unwrap().status.success());
    });
    for node in cluster.iter() {
        assert_eq!((state(node, "slow").as_str(), state(node, "other").as_str()), ("enabled", "enabled"));
        assert_eq!(ran(node), ["slow", "other"]);
        let log = node.log();
        let order: Vec<&str> =
            log.lines().filter(|line| line.contains("callback") && line.contains("enable")).collect();
        let place = |text: &str| order.iter().position(|line| line.contains(text)).unwrap();
        assert!(place("has run: enable feature_flag=slow") < place("runs: enable feature_flag=other"), "{order:#?}");
    }
}

/// The nodes of a cluster in which `held` is being decided, its callbacks held up on the first two and done on the third.
fn half_way(flags: &[Value]) -> (Cluster, PathBuf) {
    let mut cluster = Cluster::start(3);
    let gate = gate(&cluster, "gate");
    for index in 0..3 {
        let enable = if index < 2 { json!({"while_exists": gate}) } else { json!({}) };
        let mut flags = flags.to_vec();
        flags.push(json!({"name": "held", "enable": enable}));
        cluster[index].stop(Stop::Terminate);
        define(&cluster, index, &json!({"flags": flags}));
    }
    cluster.start_all();
    (cluster, gate)
}

fn wait_half_way(cluster: &Cluster) {
    wait_state(&[&cluster[0], &cluster[1], &cluster[2]], "held", "state_changing");
    wait_for("the callback to have run on the third node", SOON, || {
        ran(&cluster[2]).contains(&"held".into()).then_some(())
    });
}

/// Waits until no node has the flag undecided and all that run agree; gives back on what.
fn agreed(nodes: &[&Node], flag: &str) -> String {
    wait_for(&format!("the nodes to agree on {flag}"), SOON, || {
        let found: Vec<String> = nodes.iter().map(|node| state(node, flag)).collect();
        let first = found[0].clone();
        (matches!(first.as_str(), "enabled" | "disabled") && found.iter().all(|other| *other == first)).then_some(first)
    })
}

#[test]
fn a_controller_that_dies_leaves_nothing_undecided() {
    let (mut cluster, gate) = half_way(&[]);
    let mut ctl = cluster[0].start_ctl(&["enable_feature_flag", "held"]);
    wait_half_way(&cluster);
    cluster[0].stop(Stop::Kill);
    let _ = ctl.wait();
    assert_eq!(agreed(&[&cluster[1], &cluster[2]], "held"), "disabled");
    cluster.restart(0);
    assert_eq!(agreed(&all(&cluster), "held"), "disabled");
    fs::remove_file(&gate).unwrap();
    wait_for("all nodes to be there again", SOON, || enable(&cluster[1], "held").status.success().then_some(()));
    assert_eq!(agreed(&all(&cluster), "held"), "enabled");
    cluster.kill_all();
    cluster.start_all();
    assert!(cluster.iter().all(|node| state(node, "held") == "enabled"));
}

#[test]
fn a_member_that_dies_half_way_undoes_the_change() {
    let (mut cluster, gate) = half_way(&[]);
    let ctl = cluster[0].start_ctl(&["enable_feature_flag", "held"]);
    wait_half_way(&cluster);
    cluster[2].stop(Stop::Kill);
    fs::remove_file(&gate).unwrap();
    let output = ctl.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(69), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(agreed(&[&cluster[0], &cluster[1]], "held"), "disabled");
    cluster.restart(2);
    assert_eq!(agreed(&all(&cluster), "held"), "disabled");
    wait_for("all nodes to be there again", SOON, || enable(&cluster[1], "held").status.success().then_some(()));
    assert_eq!(agreed(&all(&cluster), "held"), "enabled");
}

#[test]
fn a_controller_that_is_cut_off_agrees_with_the_others_when_it_is_back() {
    let (cluster, gate) = half_way(&[]);
    let mut ctl = cluster[0].start_ctl(&["enable_feature_flag", "held"]);
    wait_half_way(&cluster);
    cluster[0].suspend();
    assert_eq!(agreed(&[&cluster[1], &cluster[2]], "held"), "disabled");
    cluster[0].resume();
    assert_eq!(agreed(&all(&cluster), "held"), "disabled");
    fs::remove_file(&gate).unwrap();
    let _ = ctl.wait();
    wait_for("all nodes to be there again", SOON, || enable(&cluster[0], "held").status.success().then_some(()));
    assert_eq!(agreed(&all(&cluster), "held"), "enabled");
}

/// Three of four nodes, which do not know the fourth.
fn three_of_four() -> Cluster {
    let cluster = Setup::new().lay_out(4);
    for index in 0..3 {
        cluster[index].configure(|text| {
            let kept = text.lines().filter(|line| !line.starts_with("cluster_formation.classic_config.nodes.4"));
            kept.flat_map(|line| [line, "\n"]).collect()
        });
    }
    cluster
}

fn start_three(cluster: &mut Cluster) {
    (0..3).for_each(|index| cluster[index].start());
    cluster.wait_ready();
}

#[test]
fn a_node_that_lacks_a_flag_of_the_cluster_is_not_taken_in_and_one_that_has_it_runs_its_callback_once() {
    let mut cluster = three_of_four();
    let flags = json!({"flags": [{"name": "new", "enable": {}}]});
    (0..3).for_each(|index| define(&cluster, index, &flags));
    start_three(&mut cluster);
    wait_state(&[&cluster[0], &cluster[1], &cluster[2]], "new", "enabled");
    publish(&cluster[0], "kept");

    let (code, log) = cluster[3].refused_start(READY);
    assert!(code == Some(69) && log.contains("incompatible_feature_flags") && log.contains("'new'"), "{code:?}: {log}");
    let identity: Value = serde_json::from_str(&cluster[3].own_file("node.json").unwrap()).unwrap();
    assert_eq!(identity["cluster"], Value::Null, "it belongs to nothing");
    assert!(cluster[3].own_file("feature_flags.json").is_none());
    assert_eq!(cluster[0].ctl_rows(&["cluster_status"]).unwrap()[0]["disk_nodes"].as_array().unwrap().len(), 3);

    // A newer one that has flags which the cluster lacks joins, and has them off.
    define(&cluster, 3, &json!({"flags": [{"name": "new", "enable": {}}, {"name": "newer"}]}));
    cluster.restart(3);
    assert_eq!((state(&cluster[3], "new").as_str(), ran(&cluster[3])), ("enabled", vec!["new".to_owned()]));
    assert_eq!(state(&cluster[3], "newer"), "unavailable");
    refused(&enable(&cluster[3], "newer"), 64, &["unsupported"]);
    assert!(stored(&cluster[3]).contains(&"new".to_owned()));

    // A node that was forgotten is refused with its old data, and joins without it.
    cluster[3].stop(Stop::Terminate);
    cluster[0].ctl_ok(&["forget_cluster_node", "w4@localhost"]);
    let (code, log) = cluster[3].refused_start(READY);
    assert!(code == Some(78) && log.contains("removed"), "{code:?}: {log}");
    cluster[3].wipe();
    cluster.restart(3);
    assert_eq!(state(&cluster[3], "new"), "enabled");
}

#[test]
fn a_node_that_joins_waits_while_a_flag_changes() {
    let mut cluster = three_of_four();
    let gate = gate(&cluster, "gate");
    // It is held up on the nodes of the cluster only.
    let flag = |enable: Value| json!({"flags": [{"name": "slow", "stability": "experimental", "enable": enable}]});
    (0..3).for_each(|index| define(&cluster, index, &flag(json!({"while_exists": gate}))));
    define(&cluster, 3, &flag(json!({})));
    start_three(&mut cluster);
    let ctl = cluster[0].start_ctl(&["enable_feature_flag", "--opt-in", "slow"]);
    wait_state(&[&cluster[0], &cluster[1], &cluster[2]], "slow", "state_changing");
    cluster[3].start();
    wait_for("the node to look for its cluster", SOON, || {
        let phase = cluster[3].ctl(&["is_booting"]);
        String::from_utf8_lossy(&phase.stdout).contains("looking for the cluster").then_some(())
    });
    publish(&cluster[1], "served");
    assert_eq!(cluster[0].ctl_rows(&["cluster_status"]).unwrap()[0]["disk_nodes"].as_array().unwrap().len(), 3);
    fs::remove_file(&gate).unwrap();
    assert!(ctl.wait_with_output().unwrap().status.success());
    cluster[3].wait_ready(READY);
    assert_eq!(agreed(&all(&cluster), "slow"), "enabled");
    assert_eq!(ran(&cluster[3]), ["slow"]);
}

#[test]
fn a_node_starts_only_with_flags_that_it_knows_and_with_all_that_are_required() {
    let mut cluster = Cluster::start(1);
    cluster[0].stop(Stop::Terminate);
    edit(&cluster[0], |enabled| enabled.push(json!({"name": "from_the_future", "provided_by": "rabbit"})));
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("unknown_enabled_feature_flags"), "{code:?}: {log}");
    assert!(log.contains("from_the_future") && log.contains("downgrade"), "{log}");

    // One of a plugin is kept.
    edit(&cluster[0], |enabled| enabled.last_mut().unwrap()["provided_by"] = json!("absent_plugin"));
    let soft = json!({"name": "soon_required", "stability": "required", "require_level": "soft", "enable": {}});
    define(&cluster, 0, &json!({"flags": [soft, {"name": "next"}]}));
    cluster.start_all();
    assert!(cluster[0].log().contains("absent_plugin"));
    assert_eq!(
        (state(&cluster[0], "soon_required").as_str(), ran(&cluster[0])),
        ("enabled", vec!["soon_required".into()])
    );
    cluster[0].ctl_ok(&["enable_feature_flag", "next"]);
    assert!(
        ["from_the_future", "next", "soon_required"].iter().all(|name| stored(&cluster[0]).contains(&(*name).into()))
    );

    cluster[0].stop(Stop::Terminate);
    edit(&cluster[0], |enabled| enabled.retain(|flag| flag["name"] != "quorum_queue"));
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("disabled_required_feature_flag"), "{code:?}: {log}");
    assert!(log.contains("quorum_queue"), "{log}");

    fs::remove_file(cluster[0].database("feature_flags.json")).unwrap();
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("--recreate-feature-flags"), "{code:?}: {log}");
    let mut told = cluster[0].server_command();
    told.args(["--recreate-feature-flags", "khepri_db,next"]).stdout(Stdio::null()).stderr(Stdio::null());
    let mut told = told.spawn().unwrap();
    let known = wait_for("the node to start", SOON, || states(&cluster[0]));
    told.kill().unwrap();
    told.wait().unwrap();
    assert_eq!((known["next"].as_str(), known["quorum_queue"].as_str()), ("enabled", "enabled"));
    assert_eq!(known["rabbitmq_4.3.0"], "disabled");
    cluster.start_all();
    assert_eq!(states(&cluster[0]), Some(known));
}

#[test]
fn a_flag_that_cannot_be_written_is_in_force_and_written_later() {
    let definitions = json!({"flags": [{"name": "new"}]});
    let cluster = upgraded([&definitions; 3]);
    // A folder in the place of the file that is written first.
    let obstacle = cluster[1].database("feature_flags.json.new");
    fs::create_dir(&obstacle).unwrap();
    cluster[0].ctl_ok(&["enable_feature_flag", "new"]);
    assert_eq!(agreed(&all(&cluster), "new"), "enabled");
    let written = |node: &Node| {
        let status: Value = serde_json::from_str(&node.ctl_ok(&["status", "--formatter", "json"])).unwrap();
        status["feature_flags_written_to_disk"].clone()
    };
    assert_eq!((written(&cluster[0]), written(&cluster[1])), (json!(true), json!(false)));
    assert!(cluster[1].log().contains("could not be written to disk"));
    assert!(!stored(&cluster[1]).contains(&"new".to_owned()));
    fs::remove_dir(&obstacle).unwrap();
    wait_for("the file to catch up", SOON, || stored(&cluster[1]).contains(&"new".to_owned()).then_some(()));
    assert_eq!(written(&cluster[1]), json!(true));
}

#[test]
fn a_node_without_its_file_takes_the_flags_of_the_others() {
    let definitions = json!({"flags": [{"name": "new"}]});
    let mut cluster = upgraded([&definitions; 3]);
    cluster[0].ctl_ok(&["enable_feature_flag", "new"]);
    cluster[2].stop(Stop::Terminate);
    fs::remove_file(cluster[2].database("feature_flags.json")).unwrap();
    cluster.restart(2);
    assert_eq!(states(&cluster[2]), states(&cluster[0]));
    assert_eq!(stored(&cluster[2]), stored(&cluster[0]));
}

#[test]
fn a_flag_that_promises_queue_behaviour_waits_for_the_last_old_member() {
    const OLD: &str = "quorum_queue.machine_version_limit = 1\n";
    const FLAG: &str = "rabbitmq_4.3.0";
    let mut cluster = Setup::new().lay_out(3);
    cluster[2].configure(|text| text + OLD);
    cluster.start_all();
    publish(&cluster[0], "promised");
    // A cluster of old and new nodes begins without it.
    assert!(cluster.iter().all(|node| state(node, FLAG) == "disabled"));
    let named = ["queue 'promised'", "w3@localhost"];
    refused(&enable(&cluster[0], FLAG), 69, &[&named[..], &["machine version 2"]].concat());
    cluster[2].stop(Stop::Kill);
    wait_for("the node to be missed", SOON, || {
        let output = enable(&cluster[0], FLAG);
        let why = String::from_utf8_lossy(&output.stderr).into_owned();
        let missed = why.contains("missing_clustered_nodes") && named.iter().all(|word| why.contains(word));
        (output.status.code() == Some(69) && missed).then_some(())
    });
    assert!(cluster[..2].iter().all(|node| state(node, FLAG) == "disabled"));
    publish(&cluster[1], "promised");

    // It works once the member is upgraded.
    cluster[2].configure(|text| text.replace(OLD, ""));
    cluster.restart(2);
    wait_for("the queue to be released", SOON, || enable(&cluster[0], FLAG).status.success().then_some(()));
    assert_eq!(agreed(&all(&cluster), FLAG), "enabled");

    // A node that cannot keep the promise is not taken in any more.
    cluster[2].stop(Stop::Kill);
    cluster[0].ctl_ok(&["forget_cluster_node", "w3@localhost"]);
    cluster[2].wipe();
    cluster[2].configure(|text| text + OLD);
    let (code, log) = cluster[2].refused_start(READY);
    assert!(code == Some(69) && log.contains("incompatible_feature_flags") && log.contains(FLAG), "{code:?}: {log}");
}

#[test]
fn a_flag_that_promises_queue_behaviour_works_once_the_old_member_is_removed() {
    const OLD: &str = "quorum_queue.machine_version_limit = 1\n";
    const FLAG: &str = "rabbitmq_4.3.0";
    let mut cluster = Setup::new().lay_out(3);
    cluster[2].configure(|text| text + OLD);
    cluster.start_all();
    publish(&cluster[0], "released");
    refused(&enable(&cluster[1], FLAG), 69, &["queue 'released'", "w3@localhost"]);
    cluster[2].stop(Stop::Kill);
    cluster[0].ctl_ok(&["forget_cluster_node", "w3@localhost"]);
    wait_for("the queue to be released", SOON, || enable(&cluster[1], FLAG).status.success().then_some(()));
    assert_eq!(agreed(&[&cluster[0], &cluster[1]], FLAG), "enabled");
    publish(&cluster[1], "released");
}

fn version(text: String, version: &str) -> String {
    let kept: String = text
        .lines()
        .filter(|line| !line.starts_with("feature_flags.test_product_version"))
        .flat_map(|line| [line, "\n"])
        .collect();
    format!("{kept}feature_flags.test_product_version = {version}\n")
}

#[test]
fn nodes_are_upgraded_one_by_one_under_load_and_the_way_back_is_open_until_the_first_new_flag() {
    let mut cluster = Setup::new().lay_out(3);
    (0..3).for_each(|index| cluster[index].configure(|text| version(text, "1.0.0")));
    cluster.start_all();
    let load = Load::start(&cluster, "upgraded");
    let new = json!({"flags": [{"name": "warren_1.1.0", "enable": {}}]});
    let upgrade = |cluster: &mut Cluster, index: usize| {
        cluster[index].stop(Stop::Terminate);
        define(cluster, index, &new);
        cluster[index].configure(|text| version(text, "1.1.0"));
        cluster.restart(index);
    };
    let roll_back = |cluster: &mut Cluster, index: usize| {
        cluster[index].stop(Stop::Terminate);
        cluster[index].configure(|text| {
            let kept = text.lines().filter(|line| !line.starts_with("feature_flags.test_definitions"));
            version(kept.flat_map(|line| [line, "\n"]).collect(), "1.0.0")
        });
    };
    upgrade(&mut cluster, 0);
    assert_eq!(state(&cluster[0], "warren_1.1.0"), "unavailable");
    roll_back(&mut cluster, 0);
    cluster.restart(0);
    (0..3).for_each(|index| upgrade(&mut cluster, index));
    assert_eq!(state(&cluster[0], "warren_1.1.0"), "disabled");
    wait_for("all nodes to be there", SOON, || enable(&cluster[1], "all").status.success().then_some(()));
    assert_eq!(agreed(&all(&cluster), "warren_1.1.0"), "enabled");
    roll_back(&mut cluster, 0);
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("unknown_enabled_feature_flags"), "{code:?}: {log}");
    upgrade_again(&mut cluster, &new);
    load.finish();

    // A version further away is none of theirs.
    cluster[2].stop(Stop::Terminate);
    cluster[2].configure(|text| version(text, "1.3.0"));
    let (code, log) = cluster[2].refused_start(READY);
    assert!(code == Some(69) && log.contains("incompatible_version"), "{code:?}: {log}");
    publish(&cluster[0], "upgraded");
}

fn upgrade_again(cluster: &mut Cluster, new: &Value) {
    define(cluster, 0, new);
    cluster[0].configure(|text| version(text, "1.1.0"));
    cluster.restart(0);
}

/// The reply code and text that ended a connection.
async fn declared(node: &Node, queue: &str, arguments: lapin::types::FieldTable) -> Result<(), (u16, String)> {
    let connection = amqp::connect(node).await.unwrap();
    let channel = connection.create_channel().await.unwrap();
    match channel.queue_declare(queue.into(), Default::default(), arguments).await {
        Ok(_) => Ok(()),
        Err(error) => match error.kind() {
            lapin::ErrorKind::ProtocolError(error) => Err((error.get_id(), error.get_message().to_string())),
            other => panic!("{other:?}"),
        },
    }
}

#[test]
fn transient_queues_are_permitted_with_one_warning_until_they_are_denied() {
    let cluster = Cluster::start(1);
    let used = |node: &Node| -> Vec<String> {
        let rows = node.ctl_rows(&["list_deprecated_features", "--used"]).unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect()
    };
    let check = |node: &Node| node.ctl(&["check_if_any_deprecated_features_are_used", "--formatter", "json"]);
    assert!(used(&cluster[0]).is_empty());
    assert_eq!(check(&cluster[0]).status.code(), Some(0));
    for queue in ["one", "two"] {
        runtime().block_on(declared(&cluster[0], queue, Default::default())).unwrap();
    }
    let log = cluster[0].log();
    let warnings: Vec<&str> =
        log.lines().filter(|line| line.contains("`transient_nonexcl_queues` is permitted by default")).collect();
    assert!(warnings.len() == 1 && warnings[0].contains("[warning]"), "{warnings:?}");
    assert!(warnings[0].contains("deprecated_features.permit.transient_nonexcl_queues = true"), "{warnings:?}");
    assert_eq!(used(&cluster[0]), ["transient_nonexcl_queues"]);
    let found = check(&cluster[0]);
    assert_eq!(found.status.code(), Some(69));
    let found: Value = serde_json::from_slice(&found.stdout).unwrap();
    assert_eq!(
        (&found["result"], &found["deprecated_features"]),
        (&json!("error"), &json!(["transient_nonexcl_queues"]))
    );
    ["one", "two"].iter().for_each(|queue| drop(cluster[0].ctl_ok(&["delete_queue", queue])));
    assert!(used(&cluster[0]).is_empty());
    assert_eq!(check(&cluster[0]).status.code(), Some(0));

    let rows = cluster[0].ctl_rows(&["list_deprecated_features", "name,deprecation_phase,state"]).unwrap();
    let found: Vec<(&str, &str, &str)> = rows
        .iter()
        .map(|row| {
            (row["name"].as_str().unwrap(), row["deprecation_phase"].as_str().unwrap(), row["state"].as_str().unwrap())
        })
        .collect();
    let permitted = "permitted_by_default";
    assert_eq!(
        found,
        [
            ("amqp_address_v1", permitted, "permitted"),
            ("amqp_filter_set_bug", permitted, "permitted"),
            ("classic_queue_mirroring", "removed", "denied"),
            ("global_qos", permitted, "permitted"),
            ("management_metrics_collection", permitted, "permitted"),
            ("queue_master_locator", permitted, "permitted"),
            ("ram_node_type", "removed", "denied"),
            ("transient_nonexcl_queues", permitted, "permitted"),
        ]
    );
}

#[test]
fn what_is_denied_is_refused_with_the_line_that_permits_it() {
    let setup = Setup::new()
        .line("deprecated_features.permit.transient_nonexcl_queues = false")
        .line("deprecated_features.permit.queue_master_locator = false")
        .line("deprecated_features.permit.ram_node_type = true")
        .line("deprecated_features.permit.no_such_feature = true");
    let cluster = setup.start(1);
    let log = cluster[0].log();
    assert!(log.lines().any(|line| line.contains("ram_node_type") && line.contains("cannot be permitted")), "{log}");
    assert!(log.lines().any(|line| line.contains("[warning]") && line.contains("no_such_feature")), "{log}");
    let (code, text) = runtime().block_on(declared(&cluster[0], "passing", Default::default())).unwrap_err();
    assert_eq!(code, 541);
    assert!(text.contains("deprecated_features.permit.transient_nonexcl_queues = true"), "{text}");
    assert!(text.contains("denied by configuration"), "{text}");
    let placed = || {
        let mut arguments = lapin::types::FieldTable::default();
        arguments.insert("x-queue-master-locator".into(), lapin::types::AMQPValue::LongString("min-masters".into()));
        arguments
    };
    let durable = |cluster: &Cluster| {
        let node = &cluster[0];
        runtime().block_on(async {
            let connection = amqp::connect(node).await.unwrap();
            let channel = connection.create_channel().await.unwrap();
            let options = lapin::options::QueueDeclareOptions::durable();
            channel.queue_declare("placed".into(), options, placed()).await.map(drop)
        })
    };
    let error = durable(&cluster).unwrap_err().to_string();
    assert!(error.contains("queue_master_locator"), "{error}");
    let policy = cluster[0].ctl(&["set_policy", "p", ".*", r#"{"queue-master-locator":"min-masters"}"#]);
    refused(&policy, 69, &["deprecated_features.permit.queue_master_locator = true"]);
    // Exclusive ones are another matter.
    runtime().block_on(async {
        let connection = amqp::connect(&cluster[0]).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        let options = lapin::options::QueueDeclareOptions { exclusive: true, ..Default::default() };
        channel.queue_declare("own".into(), options, Default::default()).await.unwrap();
    });

    let permitted = Cluster::start(1);
    durable(&permitted).expect("it is permitted by default");
    permitted[0].ctl_ok(&["set_policy", "p", ".*", r#"{"queue-master-locator":"min-masters"}"#]);
}

#[test]
fn a_node_that_denies_what_is_in_use_does_not_start() {
    let mut cluster = Cluster::start(3);
    // A transient queue lives as long as its node does.
    runtime().block_on(declared(&cluster[1], "passing", Default::default())).unwrap();
    cluster[0].stop(Stop::Terminate);
    const DENY: &str = "deprecated_features.permit.transient_nonexcl_queues = false\n";
    cluster[0].configure(|text| text + DENY);
    let (code, log) = cluster[0].refused_start(READY);
    assert!(code == Some(78) && log.contains("failed_to_deny_deprecated_features"), "{code:?}: {log}");
    assert!(log.contains("transient_nonexcl_queues"), "{log}");
    cluster[1].ctl_ok(&["delete_queue", "passing"]);
    cluster.restart(0);
    // It is denied on all nodes then, and permitted again when no node denies it any more.
    let denied = |node: &Node| {
        let rows = node.ctl_rows(&["list_deprecated_features"]).unwrap();
        rows.iter().any(|row| row["name"] == "transient_nonexcl_queues" && row["state"] == "denied")
    };
    assert!(cluster.iter().all(denied));
    let (code, _) = runtime().block_on(declared(&cluster[1], "passing", Default::default())).unwrap_err();
    assert_eq!(code, 541);
    cluster[0].stop(Stop::Terminate);
    cluster[0].configure(|text| text.replace(DENY, ""));
    cluster.restart(0);
    assert!(!cluster.iter().any(denied));
    runtime().block_on(declared(&cluster[2], "passing", Default::default())).unwrap();
}

/// What two consumers of one channel with a global prefetch of 1 are given before they answer, and after one answer.
async fn given(node: &Node) -> (usize, usize) {
    use futures_util::StreamExt as _;
    use lapin::options::{BasicAckOptions, BasicConsumeOptions, BasicQosOptions, QueueDeclareOptions};
    let (_connection, channel) = amqp::confirm_channel(node).await.unwrap();
    channel.queue_declare("shared".into(), QueueDeclareOptions::durable(), Default::default()).await.unwrap();
    channel.basic_qos(1, BasicQosOptions { global: true }).await.unwrap();
    let options = BasicConsumeOptions::default();
    let mut one = channel.basic_consume("shared".into(), "one".into(), options, Default::default()).await.unwrap();
    let mut two = channel.basic_consume("shared".into(), "two".into(), options, Default::default()).await.unwrap();
    for body in 0..20_u8 {
        assert_eq!(amqp::publish(&channel, "shared", &[body], amqp::ANSWER_LIMIT).await.unwrap(), Some(true));
    }
    // A delivery comes before the answer to what is asked after it.
    let settle = async || {
        channel.queue_declare("shared".into(), QueueDeclareOptions::durable(), Default::default()).await.unwrap();
    };
    let mut held = Vec::new();
    let mut gather = async |held: &mut Vec<lapin::message::Delivery>| {
        for _ in 0..20 {
            settle().await;
            while let Ok(Some(Ok(delivery))) = tokio::time::timeout(Duration::from_millis(20), one.next()).await {
                held.push(delivery);
            }
            while let Ok(Some(Ok(delivery))) = tokio::time::timeout(Duration::from_millis(20), two.next()).await {
                held.push(delivery);
            }
        }
    };
    gather(&mut held).await;
    let before = held.len();
    held.remove(0).ack(BasicAckOptions::default()).await.unwrap();
    gather(&mut held).await;
    let after = held.len();
    // Everything gets through in the end, each once.
    let mut bodies = vec![0];
    let mut left = held;
    while !left.is_empty() {
        for delivery in std::mem::take(&mut left) {
            bodies.push(delivery.data[0]);
            delivery.ack(BasicAckOptions::default()).await.unwrap();
        }
        gather(&mut left).await;
    }
    bodies.sort();
    assert_eq!(bodies, (0..20).collect::<Vec<u8>>());
    (before, after)
}

#[test]
fn a_global_prefetch_is_one_window_for_the_channel_or_where_denied_one_for_each_consumer() {
    let permitted = Cluster::start(1);
    assert_eq!(runtime().block_on(given(&permitted[0])), (1, 1));
    let log = permitted[0].log();
    assert!(log.lines().any(|line| line.contains("[warning]") && line.contains("global_qos")), "{log}");
    runtime().block_on(async {
        let (_connection, channel) = amqp::confirm_channel(&permitted[0]).await.unwrap();
        amqp::declare_quorum(&channel, "replicated").await.unwrap();
        channel.basic_qos(1, lapin::options::BasicQosOptions { global: true }).await.unwrap();
        let consumed =
            channel.basic_consume("replicated".into(), "".into(), Default::default(), Default::default()).await;
        let error = consumed.expect_err("quorum queues do not have it");
        assert!(error.to_string().contains("does not support global qos"), "{error}");
    });
    let denied = Setup::new().line("deprecated_features.permit.global_qos = false").start(1);
    assert_eq!(runtime().block_on(given(&denied[0])), (2, 2));
}
