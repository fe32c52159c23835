//! Limits on connections, channels and queues, and topic permissions, as clients meet them.

use serde_json::{Value, json};
use warren_cluster_tests::{Cluster, Node, Program, Setup, Verdict};

/// Runs pika against all nodes.
fn pika(cluster: &Cluster, what: &str, allowed: usize, user: &str, vhost: &str) -> Verdict {
    Program::python("vhost_and_user_limits.py")
        .arg("--ports", cluster.ports())
        .arg("--what", what)
        .arg("--allowed", allowed)
        .arg("--user", user)
        .arg("--password", if user == "guest" { "guest" } else { "secret" })
        .arg("--vhost", vhost)
        .pass()
}

fn add_user(node: &Node, user: &str, vhost: &str) {
    node.ctl_ok(&["add_user", user, "secret"]);
    node.ctl_ok(&["-p", vhost, "set_permissions", user, ".*", ".*", ".*"]);
}

/// What the server said: the reply code, and that the text has these words.
fn was_told(verdict: &Verdict, code: u64, words: &str) {
    let said = verdict.fact("said");
    assert_eq!(said[0], code, "{said}");
    assert!(said[1].as_str().unwrap_or_default().contains(words), "{said}");
}

fn fails(node: &Node, arguments: &[&str], code: i32) {
    let output = node.ctl(arguments);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(code), "{arguments:?}: {errors}");
}

#[test]
fn connections_of_a_vhost_and_of_a_user_count_over_all_nodes_until_the_limit_is_cleared() {
    let cluster = Cluster::start(3);
    let node = &cluster[0];
    node.ctl_ok(&["add_vhost", "v"]);
    add_user(node, "app", "v");
    node.ctl_ok(&["-p", "v", "set_vhost_limits", r#"{"max-connections": 4}"#]);
    let verdict = pika(&cluster, "connections", 4, "app", "v");
    assert_eq!(verdict.number("opened"), 4.0);
    was_told(&verdict, 530, "access to vhost 'v' refused for user 'app': connection limit (4) is reached");
    assert_eq!(verdict.fact("again"), true, "one that ends makes room for another");
    cluster[1].ctl_ok(&["set_user_limits", "app", r#"{"max-connections": 2}"#]);
    let verdict = pika(&cluster, "connections", 2, "app", "v");
    assert_eq!(verdict.number("opened"), 2.0);
    was_told(&verdict, 530, "connection refused for user 'app': user connection limit (2) is reached");
    // None at all.
    cluster[2].ctl_ok(&["set_user_limits", "app", r#"{"max-connections": 0}"#]);
    assert_eq!(pika(&cluster, "connections", 0, "app", "v").number("opened"), 0.0);
    // Cleared, or negative: no limit.
    cluster[2].ctl_ok(&["clear_user_limits", "app", "all"]);
    cluster[2].ctl_ok(&["-p", "v", "set_vhost_limits", r#"{"max-connections": -1}"#]);
    assert_eq!(pika(&cluster, "connections", 9, "app", "v").number("opened"), 10.0);
}

#[test]
fn channels_of_a_user_count_over_all_nodes() {
    let cluster = Cluster::start(2);
    add_user(&cluster[0], "app", "/");
    cluster[0].ctl_ok(&["set_user_limits", "app", r#"{"max-channels": 3}"#]);
    let verdict = pika(&cluster, "channels", 3, "app", "/");
    assert_eq!(verdict.number("opened"), 3.0);
    was_told(
        &verdict,
        530,
        "number of channels opened for user 'app' has reached the maximum allowed user limit of (3)",
    );
    cluster[0].ctl_ok(&["clear_user_limits", "app", "max-channels"]);
    assert_eq!(pika(&cluster, "channels", 5, "app", "/").number("opened"), 6.0);
}

#[test]
fn queues_of_a_vhost_and_of_the_cluster_are_limited_and_existing_ones_may_be_declared_again() {
    let cluster = Setup::new().line("cluster_queue_limit = 3").line("vhost_max = 2").start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_vhost", "v"]);
    add_user(node, "app", "v");
    node.ctl_ok(&["-p", "v", "set_vhost_limits", r#"{"max-queues": 2}"#]);
    let verdict = pika(&cluster, "queues", 2, "app", "v");
    assert_eq!(verdict.number("declared"), 2.0);
    was_told(&verdict, 406, "queue limit in vhost 'v' (2) is reached");
    assert_eq!(verdict.fact("again"), "limited-0");
    let verdict = pika(&cluster, "queues", 1, "guest", "/");
    assert_eq!(verdict.number("declared"), 1.0);
    was_told(&verdict, 406, "queue limit in cluster (3) is reached");
    fails(node, &["add_vhost", "third"], 69);
}

#[test]
fn limits_of_a_node_are_told_to_whoever_meets_them() {
    let cluster = Setup::new().line("max_connections = 3").start(1);
    let verdict = pika(&cluster, "connections", 3, "guest", "/");
    assert_eq!(verdict.number("opened"), 3.0);
    was_told(&verdict, 530, "node connection limit (3) is reached");
    let cluster = Setup::new().line("channel_max_per_node = 2").start(1);
    let verdict = pika(&cluster, "channels", 2, "guest", "/");
    assert_eq!(verdict.number("opened"), 2.0);
    was_told(&verdict, 530, "maximum allowed limit of (2)");
}

#[test]
fn topics_are_checked_at_publish_and_at_bind_with_the_users_name_in_the_expression() {
    let cluster = Cluster::start(2);
    let node = &cluster[0];
    add_user(node, "a.b", "/");
    node.ctl_ok(&["set_topic_permissions", "a.b", "amq.topic", r"^{username}\.", "^allowed"]);
    let verdict = pika(&cluster, "topics", 0, "a.b", "/");
    assert_eq!(verdict.fact("own"), "confirmed");
    assert_eq!(verdict.fact("elsewhere"), "confirmed", "exchanges of other types have no topics");
    assert_eq!(verdict.fact("bind"), "bound");
    assert_eq!(verdict.fact("bind_elsewhere"), "bound");
    for refused in ["other", "cc", "bcc", "remembered", "bind_other"] {
        let said = verdict.fact(refused);
        assert_eq!(said[0], 403, "{refused}: {said}");
        assert!(said[1].as_str().unwrap().contains("access to topic"), "{refused}: {said}");
    }
    // Without one, everything is allowed; the other node knows.
    cluster[1].ctl_ok(&["clear_topic_permissions", "a.b"]);
    let verdict = pika(&cluster, "topics", 0, "a.b", "/");
    for allowed in ["own", "other", "cc", "remembered"] {
        assert_eq!(verdict.fact(allowed), "confirmed", "{allowed}");
    }
    assert_eq!(verdict.fact("bind_other"), "bound");
}

#[test]
fn limits_are_set_shown_and_refused_as_with_rabbitmqctl() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_vhost", "v"]);
    assert_eq!(node.ctl_ok(&["-q", "list_vhost_limits"]), "");
    assert_eq!(node.ctl_ok(&["-q", "list_vhost_limits", "--global"]), "");
    node.ctl_ok(&["-p", "v", "set_vhost_limits", r#"{"max-queues": 7, "max-connections": 5}"#]);
    let shown = r#"{"max-connections":5,"max-queues":7}"#;
    assert_eq!(node.ctl_ok(&["-q", "-p", "v", "list_vhost_limits"]), format!("{shown}\n"));
    assert_eq!(node.ctl_ok(&["-q", "list_vhost_limits", "--global"]), format!("vhost\tlimits\nv\t{shown}\n"));
    let rows = node.ctl_rows(&["list_vhost_limits", "--global"]).unwrap();
    assert_eq!(rows, [json!({"vhost": "v", "limits": shown})]);
    let parameters = node.ctl_rows(&["-p", "v", "list_parameters"]).unwrap();
    assert_eq!(parameters[0]["component"], "vhost-limits");
    node.ctl_ok(&["-p", "v", "clear_vhost_limits"]);
    assert_eq!(node.ctl_ok(&["-q", "-p", "v", "list_vhost_limits"]), "");
    for wrong in [r#"{"max-queues": "7"}"#, r#"{"max-channels": 7}"#, "[]", "7", "{"] {
        fails(node, &["-p", "v", "set_vhost_limits", wrong], 69);
    }
    fails(node, &["-p", "nowhere", "set_vhost_limits", "{}"], 65);
    fails(node, &["-p", "nowhere", "list_vhost_limits"], 65);

    node.ctl_ok(&["set_user_limits", "guest", r#"{"max-channels": 9}"#]);
    node.ctl_ok(&["set_user_limits", "guest", r#"{"max-connections": 3}"#]);
    let shown = r#"{"max-channels":9,"max-connections":3}"#;
    assert_eq!(node.ctl_ok(&["-q", "list_user_limits", "--user", "guest"]), format!("{shown}\n"));
    assert_eq!(node.ctl_ok(&["-q", "list_user_limits", "--global"]), format!("user\tlimits\nguest\t{shown}\n"));
    node.ctl_ok(&["clear_user_limits", "guest", "max-connections"]);
    assert_eq!(node.ctl_ok(&["-q", "list_user_limits"]), "{\"max-channels\":9}\n");
    fails(node, &["set_user_limits", "guest", r#"{"max-queues": 1}"#], 69);
    fails(node, &["set_user_limits", "nobody", "{}"], 67);
    fails(node, &["clear_user_limits", "guest", "max-everything"], 65);
    fails(node, &["list_user_limits", "--user", "nobody"], 67);
}

#[test]
fn topic_permissions_are_set_listed_and_go_with_their_user() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_vhost", "v"]);
    add_user(node, "app", "v");
    node.ctl_ok(&["-p", "v", "set_topic_permissions", "app", "not.there", "^w", "^r"]);
    node.ctl_ok(&["-p", "v", "set_topic_permissions", "app", "amq.topic", "", ".*"]);
    assert_eq!(
        node.ctl_ok(&["-q", "-p", "v", "list_topic_permissions"]),
        "user\texchange\twrite\tread\napp\tamq.topic\t\t.*\napp\tnot.there\t^w\t^r\n"
    );
    assert_eq!(
        node.ctl_ok(&["-s", "list_user_topic_permissions", "app"]),
        "v\tamq.topic\t\t.*\nv\tnot.there\t^w\t^r\n"
    );
    // The exchange is still not one.
    let exchanges = node.ctl_rows(&["-p", "v", "list_exchanges", "name"]).unwrap();
    assert!(!exchanges.contains(&json!({"name": "not.there"})), "{exchanges:?}");
    node.ctl_ok(&["-p", "v", "clear_topic_permissions", "app", "not.there"]);
    assert_eq!(node.ctl_rows(&["-p", "v", "list_topic_permissions"]).map(|rows| rows.len()), Some(1));
    fails(node, &["-p", "v", "set_topic_permissions", "app", "x", "(", ""], 69);
    fails(node, &["-p", "v", "set_topic_permissions", "nobody", "x", "", ""], 67);
    fails(node, &["-p", "nowhere", "set_topic_permissions", "app", "x", "", ""], 69);
    fails(node, &["list_user_topic_permissions", "nobody"], 67);
    node.ctl_ok(&["delete_user", "app"]);
    assert_eq!(node.ctl_rows(&["-p", "v", "list_topic_permissions"]), Some(Vec::<Value>::new()));
}
