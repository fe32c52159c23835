//! The command line against a node that runs: what scripts and people get of it.

use std::io::Write as _;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use warren_cluster_tests::{Cluster, Node, Setup, runtime, wait_for, warren_binary};

const SOON: Duration = Duration::from_secs(30);

fn fails(node: &Node, arguments: &[&str], code: i32) -> String {
    let output = node.ctl(arguments);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
    errors
}

#[test]
fn a_virtual_host_has_a_description_tags_a_default_type_and_protection() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_vhost", "v", "--description", "the first", "--tags", "a, b", "--default-queue-type", "quorum"]);
    let row = |node: &Node| {
        let rows = node.ctl_rows(&["list_vhosts", "name,description,tags", "default_queue_type", "metadata"]).unwrap();
        rows.into_iter().find(|row| row["name"] == "v").unwrap()
    };
    assert_eq!(
        row(node),
        json!({"name": "v", "description": "the first", "tags": ["a", "b"], "default_queue_type": "quorum",
               "metadata": {"description": "the first", "tags": ["a", "b"], "default_queue_type": "quorum"}})
    );
    // One that exists stays as it is.
    node.ctl_ok(&["add_vhost", "v", "--description", "another"]);
    assert_eq!(row(node)["description"], "the first");
    node.ctl_ok(&["update_vhost_metadata", "v", "--description", "another"]);
    assert_eq!((row(node)["description"].clone(), row(node)["tags"].clone()), (json!("another"), json!(["a", "b"])));
    node.ctl_ok(&["set_vhost_tags", "v", "x", "y,z"]);
    assert_eq!(row(node)["tags"], json!(["x", "y", "z"]));
    fails(node, &["add_vhost", "w", "--default-queue-type", "fast"], 64);
    fails(node, &["update_vhost_metadata", "v", "--default-queue-type", "fast"], 64);
    fails(node, &["update_vhost_metadata", "nowhere", "--description", "x"], 65);
    fails(node, &["set_vhost_tags", "nowhere", "x"], 65);
    node.ctl_ok(&["enable_vhost_deletion_protection", "v"]);
    assert!(fails(node, &["delete_vhost", "v"], 65).contains("protected"));
    node.ctl_ok(&["disable_vhost_deletion_protection", "v"]);
    node.ctl_ok(&["delete_vhost", "v"]);
    fails(node, &["delete_vhost", "v"], 65);
}

#[test]
fn tables_banners_and_machine_formats_are_those_of_rabbitmqctl() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    let nasty = "q\"\t, ü";
    let declare = json!({"queues": [{"vhost": "/", "name": "plain"}, {"vhost": "/", "name": nasty}]});
    let file = cluster.folder().join("queues.json");
    std::fs::write(&file, declare.to_string()).unwrap();
    node.ctl_ok(&["import_definitions", file.to_str().unwrap()]);
    let (header, rows) = ("name\tmessages", "plain\t0\nq\"\\t, ü\t0");
    assert_eq!(
        node.ctl_ok(&["list_queues"]),
        format!("Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n{header}\n{rows}\n")
    );
    assert_eq!(node.ctl_ok(&["-q", "list_queues"]), format!("{header}\n{rows}\n"));
    assert_eq!(node.ctl_ok(&["-s", "list_queues"]), format!("{rows}\n"));
    assert!(!node.ctl_ok(&["list_queues", "--no-table-headers"]).contains(header));
    let names: Vec<Value> = node.ctl_rows(&["list_queues", "name"]).unwrap();
    assert_eq!(names, [json!({"name": "plain"}), json!({"name": nasty})]);
    let stream = node.ctl_ok(&["list_queues", "name", "--formatter", "json_stream"]);
    let streamed: Vec<Value> = stream.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(streamed, names);
    let csv = node.ctl_ok(&["list_queues", "name", "--formatter", "csv"]);
    assert_eq!(csv, format!("\"name\"\n\"plain\"\n\"{}\"\n", nasty.replace('"', "\"\"")));
    assert!(node.ctl_ok(&["list_queues", "--formatter", "pretty_table"]).contains('│'));
    let output = node.ctl(&["list_queues", "bogus,name"]);
    assert_eq!(output.status.code(), Some(64));
    assert!(output.stdout.is_empty() && String::from_utf8_lossy(&output.stderr).contains("bogus"));
    let done: Value = serde_json::from_str(&node.ctl_ok(&["add_vhost", "j", "--formatter", "json"])).unwrap();
    assert_eq!(done, json!({"result": "ok", "node": node.name()}));
    let message: Value = serde_json::from_str(&node.ctl_ok(&["check_running", "--formatter", "json"])).unwrap();
    assert!(message["message"].as_str().unwrap().contains("fully booted"), "{message}");
    assert_eq!(node.ctl_ok(&["list_unresponsive_queues", "-s"]), "");
}

#[test]
fn exit_codes_of_users_are_those_of_rabbitmqctl() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    fails(node, &["delete_user", "nope"], 67);
    fails(node, &["add_user", "guest", "x"], 70);
    fails(node, &["authenticate_user", "guest", "bad"], 65);
    fails(node, &["add_user", ""], 65);
    fails(node, &["add_user", "silent"], 65);
    assert!(!node.ctl_ok(&["-s", "list_users"]).contains("silent"));
    fails(node, &["set_policy", "p", "[", r#"{"max-length":1}"#], 69);
    fails(node, &["set_policy", "p", ".*", r#"{"max-lenght":1}"#], 69);
    assert_eq!(node.ctl_ok(&["-s", "list_policies"]), "");
    node.ctl_ok(&["add_user", "hashed", "plain"]);
    node.ctl_ok(&["authenticate_user", "hashed", "plain"]);
    let began = Instant::now();
    fails(node, &["-n", "no@localhost", "status"], 69);
    assert!(began.elapsed() < Duration::from_secs(30), "nobody waits for a node that is not there");
}

#[test]
fn the_connections_of_a_user_are_closed_on_all_nodes_and_no_others() {
    let cluster = Cluster::start(2);
    cluster[0].ctl_ok(&["add_user", "app", "secret"]);
    cluster[0].ctl_ok(&["set_permissions", "app", ".*", ".*", ".*"]);
    runtime().block_on(async {
        let mut open = Vec::new();
        for (node, user) in [(0, "app:secret"), (1, "app:secret"), (1, "guest:guest")] {
            let uri = format!("amqp://{user}@127.0.0.1:{}/%2f", cluster[node].amqp_port());
            open.push(lapin::Connection::connect(&uri, Default::default()).await.unwrap());
        }
        let closed = cluster[0].ctl_ok(&["-q", "close_all_user_connections", "app", "enough of it"]);
        assert_eq!(closed, "Closed 2 connections\n");
        wait_for("the connections to end", SOON, || {
            let users = cluster[0].ctl_rows(&["list_connections", "user"])?;
            (users == [json!({"user": "guest"})]).then_some(())
        });
        let closed = cluster[0].ctl_ok(&["-q", "close_all_connections", "--global", "--limit", "1", "bye"]);
        assert_eq!(closed, "Closed 1 connections\n");
    });
    fails(&cluster[0], &["close_all_connections", "--limit", "many", "bye"], 64);
}

#[test]
fn checks_and_facts_of_a_node_are_told() {
    let cluster = Setup::new().line("log.file = true").start(1);
    let node = &cluster[0];
    let port = node.amqp_port().to_string();
    node.ctl_ok(&["check_port_listener", &port]);
    fails(node, &["check_port_listener", "1"], 69);
    for protocol in ["amqp", "amqp091", "AMQP0-9-1", "clustering"] {
        node.ctl_ok(&["check_protocol_listener", protocol]);
    }
    assert!(fails(node, &["check_protocol_listener", "mqtt"], 69).contains("amqp"));
    assert!(node.ctl_ok(&["check_port_connectivity"]).contains(&port));
    // An address where nobody listens: from the range that is kept for documents.
    fails(node, &["check_port_connectivity", "--address", "192.0.2.1", "-t", "1"], 69);
    assert!(node.ctl_ok(&["check_virtual_hosts"]).contains("All virtual hosts"));
    let log = node.ctl_ok(&["-s", "log_location"]);
    assert!(std::path::Path::new(log.trim()).is_file(), "{log}");
    assert_eq!(node.ctl_ok(&["-s", "log_location", "--all"]).lines().nth(1), Some("<stdout>"));
    assert_eq!(node.ctl_ok(&["-s", "discover_peers"]), "w1@localhost\n");
    assert!(node.ctl_ok(&["-s", "resolve_hostname", "localhost", "--address-family", "ipv4"]).contains("127.0.0.1"));
    fails(node, &["resolve_hostname", "nowhere.invalid"], 69);
    let environment = node.ctl_ok(&["-s", "os_env"]);
    assert!(environment.contains("WARREN_DATA_DIR=") && environment.contains("WARREN_ERLANG_COOKIE=[redacted]"));
    assert!(!environment.contains("secret-of"), "{environment}");
    assert!(node.ctl_ok(&["-s", "command_line_arguments"]).contains("--config"));
    let memory: Value = serde_json::from_str(&node.ctl_ok(&["memory_breakdown", "--formatter", "json"])).unwrap();
    let parts = memory.as_object().unwrap().values().filter_map(Value::as_u64).sum::<u64>();
    assert_eq!(Some(parts), memory["total"]["rss"].as_u64(), "{memory}");
    assert_eq!(memory["mnesia"], 0);
    assert!(node.ctl_ok(&["memory_breakdown", "--unit", "mb"]).contains("other_proc: "));
    let report = node.ctl_ok(&["report"]);
    for part in ["status of node", "cluster_status of node", "list_users", "list_queues of vhost /"] {
        assert!(report.contains(part), "{part}");
    }
    assert!(!report.contains("secret-of") && !report.contains("guest\tguest"));
}

#[test]
fn the_log_level_is_set_while_the_node_runs() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    let lines = |mark: &str| node.log().lines().filter(|line| line.contains(mark)).count();
    node.ctl_ok(&["set_log_level", "error"]);
    node.ctl_ok(&["set_policy", "unheard", ".*", r#"{"delivery-limit": 5}"#]);
    node.ctl_ok(&["set_log_level", "info"]);
    node.ctl_ok(&["set_policy", "heard", ".*", r#"{"delivery-limit": 5}"#]);
    wait_for("the line to be there", SOON, || (lines("policy=heard") == 1).then_some(()));
    assert_eq!(lines("policy=unheard"), 0);
    fails(node, &["set_log_level", "loud"], 64);
}

#[test]
fn definitions_pass_through_a_pipe() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_user", "piped", "secret"]);
    let exported = node.ctl_ok(&["export_definitions", "-"]);
    node.ctl_ok(&["delete_user", "piped"]);
    let mut child = Command::new(warren_binary())
        .args(["ctl", "-n", node.name(), "--data-dir", node.data_dir().to_str().unwrap(), "import_definitions"])
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(exported.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success());
    node.ctl_ok(&["authenticate_user", "piped", "secret"]);
    assert_eq!(node.ctl_ok(&["export_definitions", "-"]), exported);
}

#[test]
fn a_password_that_was_encrypted_for_the_configuration_logs_in() {
    let encrypt = Command::new(warren_binary()).args(["ctl", "-s", "encrypt_conf_value", "wonderland", "key"]).output();
    let encrypted = String::from_utf8(encrypt.unwrap().stdout).unwrap();
    let cluster = Setup::new()
        .line(&format!("default_pass = {}", encrypted.trim()))
        .line("config_entry_decoder.passphrase = key")
        .start(1);
    cluster[0].ctl_ok(&["authenticate_user", "guest", "wonderland"]);
    assert!(!cluster[0].ctl_ok(&["environment"]).contains("wonderland"));
}
