//! Operators look at the metadata tree as each node has it; nobody sees what a password is hashed to.

use std::time::Duration;

use serde_json::Value;
use warren_cluster_tests::{Cluster, wait_for};

const SOON: Duration = Duration::from_secs(30);

#[test]
fn the_tree_is_shown_on_every_node_without_hashes_of_passwords() {
    let cluster = Cluster::start(3);
    cluster[0].ctl_ok(&["add_vhost", "pro/d", "--description", "for orders"]);
    cluster[0].ctl_ok(&["add_user", "alice", "s3cret"]);
    cluster[0].ctl_ok(&["set_permissions", "-p", "pro/d", "alice", ".*", ".*", ".*"]);
    for node in cluster.iter() {
        wait_for("every node to have the permission", SOON, || {
            let listed = node.ctl_ok(&["metadata", "list", ":vhosts/*/:user_permissions/alice"]);
            (listed == "/:warren/:vhosts/pro%2Fd/:user_permissions/alice [permission]\n").then_some(())
        });
        let vhost: Value = serde_json::from_str(&node.ctl_ok(&["metadata", "get", ":vhosts/pro%2Fd"])).unwrap();
        assert_eq!((&vhost["record"], &vhost["fields"]["description"]), (&"virtual host".into(), &"for orders".into()));
        assert_eq!(vhost["children"], serde_json::json!([":exchanges", ":user_permissions"]));
        let user: Value = serde_json::from_str(&node.ctl_ok(&["metadata", "get", "/:warren/:users/alice"])).unwrap();
        assert!(user["fields"].get("password_hash").is_none() && user.get("payload").is_none(), "{user}");
        let tree = node.ctl_ok(&["metadata", "tree"]);
        assert!(tree.starts_with("/:warren\n") && tree.contains("\n        amq.topic [exchange]\n"), "{tree}");
    }
    // An export has a line for each node and one that says what it is.
    let export = cluster[1].ctl_ok(&["metadata", "export"]);
    let mut lines = export.lines().map(|line| serde_json::from_str::<Value>(line).expect("each line is JSON"));
    let head = lines.next().unwrap();
    assert_eq!(head["format"], "warren-metadata");
    let nodes: Vec<Value> = lines.collect();
    assert_eq!(Some(nodes.len() as u64), head["nodes"].as_u64());
    let user = nodes.iter().find(|node| node["path"] == "/:warren/:users/alice").unwrap();
    assert!(user.get("payload").is_none());
    // What is wrong is said with RabbitMQ's exit codes.
    let exit = |arguments: &[&str]| {
        let output = cluster[2].ctl(arguments);
        (output.status.code().unwrap(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let (code, text) = exit(&["metadata", "get", ":vhosts/none"]);
    assert!(code == 65 && text.contains("does not exist"), "{code} {text}");
    let (code, text) = exit(&["metadata", "get", ":vhosts/*"]);
    assert!(code == 65 && text.contains("possibly_matching_many_nodes"), "{code} {text}");
    let (code, text) = exit(&["metadata", "drop", ":vhosts"]);
    assert!(code == 65 && text.contains("unknown action"), "{code} {text}");
    assert_eq!(exit(&["metadata"]).0, 64);
}
