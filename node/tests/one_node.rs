//! A running node as operators see it through the command line.

use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

struct Node {
    folder: tempfile::TempDir,
    process: Child,
    port: u16,
}

struct Ran {
    code: Option<i32>,
    stdout: String,
    stderr: String,
}

fn warren() -> PathBuf {
    assert_cmd::cargo::cargo_bin("warren")
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn start(folder: &Path, port: u16) -> Child {
    Command::new(warren())
        .args(["server", "--node", "t1@localhost", "--config"])
        .arg(folder.join("w.conf"))
        .arg("--data-dir")
        .arg(folder.join("data"))
        .env("HOME", folder)
        .env_remove("WARREN_NODE_PORT")
        .env_remove("RABBITMQ_NODE_PORT")
        .stdout(std::fs::File::create(folder.join(format!("log.{port}"))).unwrap())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

impl Node {
    fn start() -> Self {
        Node::start_with("")
    }

    /// With more lines in its configuration.
    fn start_with(more: &str) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let (port, peer_port) = (free_port(), free_port());
        let settings = format!(
            "listeners.tcp.1 = 127.0.0.1:{port}\npeer.ip = 127.0.0.1\npeer.port = {peer_port}\nlog.console.formatter = json\n{more}"
        );
        std::fs::write(folder.path().join("w.conf"), settings).unwrap();
        let process = start(folder.path(), port);
        let node = Node { folder, process, port };
        let ran = node.ctl(&["await_startup", "-t", "60"]);
        assert_eq!(ran.code, Some(0), "{}", ran.stderr);
        node
    }

    fn ctl(&self, arguments: &[&str]) -> Ran {
        self.ctl_with(arguments, "")
    }

    fn ctl_with(&self, arguments: &[&str], input: &str) -> Ran {
        let output = assert_cmd::Command::new(warren())
            .args(["ctl", "-n", "t1@localhost", "--data-dir"])
            .arg(self.folder.path().join("data"))
            .args(arguments)
            .env("HOME", self.folder.path())
            .write_stdin(input)
            .output()
            .unwrap();
        Ran {
            code: output.status.code(),
            stdout: String::from_utf8(output.stdout).unwrap(),
            stderr: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Publishes and consumes through the load generator; leaves `left` messages in queue `name`.
    fn fill(&self, name: &str, left: u64) {
        let uri = format!("amqp://guest:guest@127.0.0.1:{}", self.port);
        let count = left.to_string();
        let arguments = ["perf", "amqp091", "--uri", &uri, "--queue", name, "--no-consume", "--json", "-C", &count];
        let output = Command::new(warren()).args(arguments).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let report: Value = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(report["confirmed"], left, "{report}");
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn ends_within(process: &mut Child, limit: Duration) -> Option<i32> {
    let deadline = Instant::now() + limit;
    while Instant::now() < deadline {
        if let Some(status) = process.try_wait().unwrap() {
            return status.code();
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    None
}

#[test]
fn queues_are_listed_as_rabbitmqctl_lists_them() {
    let node = Node::start();
    node.fill("three", 3);
    node.fill("tab\there \"quoted\", größe", 1);
    let names = "tab\\there \"quoted\", größe\t1\nthree\t3\n";
    let banner = "Timeout: 60.0 seconds ...\nListing queues for vhost / ...\n";
    let header = "name\tmessages\n";
    assert_eq!(node.ctl(&["list_queues"]).stdout, format!("{banner}{header}{names}"));
    assert_eq!(node.ctl(&["-q", "list_queues"]).stdout, format!("{header}{names}"));
    assert_eq!(node.ctl(&["-s", "list_queues"]).stdout, names);
    assert_eq!(node.ctl(&["list_queues", "--no-table-headers"]).stdout, format!("{banner}{names}"));

    let json = node.ctl(&["list_queues", "name,messages", "type", "--formatter", "json"]);
    let rows: Vec<Value> = serde_json::from_str(&json.stdout).unwrap();
    let keys: Vec<Vec<&String>> = rows.iter().map(|row| row.as_object().unwrap().keys().collect()).collect();
    assert!(keys.iter().all(|keys| keys.len() == 3), "{}", json.stdout);
    assert_eq!(rows[0]["name"], "tab\there \"quoted\", größe");
    assert_eq!(rows[1]["type"], "quorum");
    let csv = node.ctl(&["list_queues", "name", "--formatter", "csv"]).stdout;
    assert_eq!(csv, "\"name\"\n\"tab\there \"\"quoted\"\", größe\"\n\"three\"\n");

    let status = node.ctl(&["quorum_status", "three", "--formatter", "json"]);
    let members: Vec<Value> = serde_json::from_str(&status.stdout).unwrap();
    assert_eq!(members[0]["Raft State"], "leader", "{}", status.stdout);
    assert!(node.ctl(&["-s", "purge_queue", "three"]).stdout.contains('3'));
    assert_eq!(
        node.ctl(&["-s", "list_queues", "name", "messages", "state"]).stdout.lines().last(),
        Some("three\t0\trunning")
    );
    assert_eq!(node.ctl(&["delete_queue", "three", "--if-empty"]).code, Some(0));
    assert_eq!(node.ctl(&["delete_queue", "three"]).code, Some(65));
    assert_eq!(node.ctl(&["quorum_status", "three"]).code, Some(65));
}

#[test]
fn limits_of_the_configuration_are_kept_to() {
    let node = Node::start_with("vhost_max = 2\ncluster_formation.target_cluster_size_hint = 2\n");
    assert_eq!(node.ctl(&["add_vhost", "second"]).code, Some(0));
    let third = node.ctl(&["add_vhost", "third"]);
    assert_eq!(third.code, Some(69));
    assert!(third.stderr.contains("limit of 2 is reached"), "{}", third.stderr);
    assert_eq!(node.ctl(&["add_vhost", "second"]).code, Some(0), "one that is there already");
    let reached = node.ctl(&["has_reached_target_cluster_size"]);
    assert!(reached.stdout.contains("1 of 2 nodes"), "{}", reached.stdout);
}

#[test]
fn users_and_permissions_are_managed_with_rabbitmqctls_exit_codes() {
    let node = Node::start();
    assert_eq!(node.ctl(&["delete_user", "nope"]).code, Some(67));
    assert_eq!(node.ctl(&["add_user", "guest", "x"]).code, Some(70));
    assert_eq!(node.ctl(&["authenticate_user", "guest", "bad"]).code, Some(65));
    assert_eq!(node.ctl_with(&["add_user", "bob"], "secret\n").code, Some(0));
    assert_eq!(node.ctl(&["authenticate_user", "bob", "secret"]).code, Some(0));
    assert_eq!(node.ctl_with(&["add_user", "eve"], "").code, Some(65));
    assert_eq!(node.ctl(&["set_user_tags", "bob", "monitoring", "management"]).code, Some(0));
    let users = node.ctl(&["-s", "list_users"]).stdout;
    assert_eq!(users, "bob\t[monitoring, management]\nguest\t[administrator]\n");

    assert_eq!(node.ctl(&["add_vhost", "v1", "--default-queue-type", "quorum"]).code, Some(0));
    assert_eq!(node.ctl(&["add_vhost", "v1"]).code, Some(0));
    assert_eq!(node.ctl(&["add_vhost", "v2", "--default-queue-type", "x"]).code, Some(64));
    assert_eq!(node.ctl(&["set_permissions", "-p", "v1", "bob", "^b", ".*", ""]).code, Some(0));
    assert_eq!(node.ctl(&["set_permissions", "-p", "v1", "bob", "[", ".*", ""]).code, Some(69));
    assert_eq!(node.ctl(&["set_permissions", "-p", "nope", "bob", "", "", ""]).code, Some(69));
    assert_eq!(node.ctl(&["set_permissions", "-p", "v1", "eve", "", "", ""]).code, Some(67));
    assert_eq!(node.ctl(&["-s", "list_user_permissions", "bob"]).stdout, "v1\t^b\t.*\t\n");
    assert_eq!(node.ctl(&["-s", "list_permissions", "-p", "v1"]).stdout, "bob\t^b\t.*\t\n");
    assert_eq!(node.ctl(&["change_password", "bob", "other"]).code, Some(0));
    assert_eq!(node.ctl(&["authenticate_user", "bob", "secret"]).code, Some(65));
    assert_eq!(node.ctl(&["delete_vhost", "v1"]).code, Some(0));
    assert_eq!(node.ctl(&["delete_vhost", "v1"]).code, Some(65));
    assert_eq!(node.ctl(&["-s", "list_user_permissions", "bob"]).stdout, "");
}

#[test]
fn a_node_stops_in_order_and_comes_back_with_its_queues() {
    let mut node = Node::start();
    node.fill("kept", 10);
    let data = node.folder.path().join("data");
    let pid_file = data.join("t1@localhost.pid");
    assert_eq!(std::fs::read_to_string(&pid_file).unwrap().trim(), node.process.id().to_string());

    // A second process must not touch the data.
    let mut second = start(node.folder.path(), 0);
    assert_eq!(ends_within(&mut second, Duration::from_secs(10)), Some(78));
    assert_eq!(node.ctl(&["-n", "other@localhost", "status"]).code, Some(69));

    assert_eq!(node.ctl(&["stop"]).code, Some(0));
    assert_eq!(ends_within(&mut node.process, Duration::from_secs(10)), Some(0));
    assert!(!pid_file.exists());
    assert_eq!(node.ctl(&["ping"]).code, Some(69));

    node.process = start(node.folder.path(), node.port);
    assert_eq!(node.ctl(&["await_startup", "-t", "60"]).code, Some(0));
    assert_eq!(node.ctl(&["-s", "list_queues"]).stdout, "kept\t10\n");
    let log = std::fs::read_to_string(node.folder.path().join(format!("log.{}", node.port))).unwrap();
    for line in log.lines() {
        let line: Value = serde_json::from_str(line).unwrap();
        assert!(line["time"].is_string() && line["level"].is_string() && line["msg"].is_string(), "{line}");
    }
    let process = i32::try_from(node.process.id()).unwrap();
    rustix::process::kill_process(rustix::process::Pid::from_raw(process).unwrap(), rustix::process::Signal::TERM)
        .unwrap();
    assert_eq!(ends_within(&mut node.process, Duration::from_secs(10)), Some(0));
}
