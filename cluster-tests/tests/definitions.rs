//! Definitions: export, import, and the import at boot, on real nodes with files of RabbitMQ.

use std::path::{Path, PathBuf};
use std::time::Duration;

use lapin::{Connection, ConnectionProperties};
use serde_json::{Map, Value, json};
use warren_cluster_tests::{Cluster, Node, Setup, Stop, wait_for};

const SOON: Duration = Duration::from_secs(30);

/// Lists of a document, and the fields that name an object of each.
const LISTS: &[(&str, &[&str])] = &[
    ("users", &["name"]),
    ("vhosts", &["name"]),
    ("permissions", &["vhost", "user"]),
    ("topic_permissions", &["vhost", "user", "exchange"]),
    ("parameters", &["vhost", "component", "name"]),
    ("global_parameters", &["name"]),
    ("policies", &["vhost", "name"]),
    ("queues", &["vhost", "name"]),
    ("exchanges", &["vhost", "name"]),
    ("bindings", &["vhost", "source", "destination_type", "destination", "routing_key", "arguments"]),
];

fn data(file: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("data").join(file)
}

fn read(file: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(file).unwrap()).unwrap()
}

fn export(node: &Node) -> Value {
    let text = node.ctl_ok(&["export_definitions", "-"]);
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn import(node: &Node, file: &Path) -> String {
    let output = node.ctl(&["import_definitions", file.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{}: {errors}", output.status);
    assert!(String::from_utf8_lossy(&output.stdout).contains("Successfully imported definitions"));
    errors
}

fn write(cluster: &Cluster, name: &str, document: &Value) -> PathBuf {
    let path = cluster.folder().join(name);
    std::fs::write(&path, document.to_string()).unwrap();
    path
}

fn list<'d>(document: &'d Value, name: &str) -> &'d [Value] {
    document[name].as_array().map_or(&[], Vec::as_slice)
}

fn is_named(object: &Value, other: &Value, by: &[&str]) -> bool {
    by.iter().all(|field| object[field] == other[field])
}

/// How an object differs from the one of its name in a list; `None` where every field is there with the same value.
fn difference(object: &Value, of: &[Value], by: &[&str]) -> Option<String> {
    let Some(found) = of.iter().find(|other| is_named(object, other, by)) else {
        return Some(format!("{object} is missing"));
    };
    let fields = object.as_object().unwrap();
    let differing = fields.iter().find(|(name, value)| found[name.as_str()] != **value);
    differing.map(|(name, value)| format!("{object}: {name} is {} and was {value}", found[name.as_str()]))
}

/// A document without what changes from one to the next, its lists in one order.
fn settled(document: &Value) -> Value {
    let mut settled = document.clone();
    for (name, _) in LISTS {
        let mut all: Vec<Value> = list(document, name).to_vec();
        all.sort_by_key(ToString::to_string);
        settled[*name] = Value::Array(all);
    }
    settled
}

fn logs_in(node: &Node, user: &str, password: &str, vhost: &str) -> bool {
    let quoted = |text: &str| text.replace('%', "%25").replace('/', "%2f").replace(' ', "%20");
    let uri = format!("amqp://{}:{}@127.0.0.1:{}/{}", quoted(user), quoted(password), node.amqp_port(), quoted(vhost));
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        match Connection::connect(&uri, ConnectionProperties::default()).await {
            Ok(connection) => {
                connection.close(0, "".into()).await.unwrap();
                true
            }
            Err(_) => false,
        }
    })
}

/// Everything of a file of RabbitMQ 3.10 is there afterwards, field by field; what is not is named.
fn comes_through(file: &str, expected_left_out: &[&str]) {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    let before = read(&data(file));
    let warnings = import(node, &data(file));
    let after = export(node);
    let mut left_out = Vec::new();
    for (name, by) in LISTS {
        for object in list(&before, name) {
            if *name == "global_parameters" && object["name"] == "internal_cluster_id" {
                continue;
            }
            let Some(difference) = difference(object, list(&after, name), by) else { continue };
            assert!(difference.ends_with("is missing"), "{difference}");
            // Whatever is missing was named, with the reason.
            let (kind, what) = match *name {
                "bindings" => ("binding", object["routing_key"].as_str().unwrap()),
                "queues" => ("queue", object["name"].as_str().unwrap()),
                "exchanges" => ("exchange", object["name"].as_str().unwrap()),
                "policies" => ("policy", object["name"].as_str().unwrap()),
                _ => panic!("{difference}"),
            };
            let named = warnings.lines().any(|line| line.contains(&format!("Warning: {kind}")) && line.contains(what));
            assert!(named, "{difference}, and nobody said so:\n{warnings}");
            if *name != "bindings" {
                left_out.push(what.to_owned());
            }
        }
    }
    left_out.sort();
    assert_eq!(left_out, expected_left_out, "{warnings}");
    for (component, name) in [("shovel", "shov é"), ("federation-upstream", "up1")] {
        let named = warnings.lines().any(|line| line.contains(component) && line.contains(name));
        assert!(named, "{component}:\n{warnings}");
    }
    // Old hashes of all three kinds are still passwords.
    for (user, password) in [("alice", "alice-secret"), ("carol", "carol-secret")] {
        assert!(logs_in(node, user, password, "/"), "{user}");
        assert!(!logs_in(node, user, "wrong", "/"), "{user}");
    }
    assert!(logs_in(node, "bob", "bob-secret", "prod"));
    assert!(!logs_in(node, "nopass", "", "prod"));
    // Again, and nothing changes.
    import(node, &data(file));
    assert_eq!(settled(&export(node)), settled(&after));
}

#[test]
fn the_definitions_of_a_node_of_rabbitmq_come_through() {
    comes_through("definitions-3.10-node.json", &["chx", "jx", "mhx", "q.full", "q.prio", "rhx", "rx", "s.stream"]);
}

#[test]
fn the_definitions_of_a_cluster_of_rabbitmq_come_through_without_its_mirroring() {
    comes_through(
        "definitions-3.10-cluster.json",
        &["chx", "ha", "jx", "mhx", "q.full", "q.prio", "rhx", "rx", "s.stream"],
    );
}

/// A document with one object of each kind.
fn document() -> Value {
    json!({
        "users": [{"name": "app", "password": "secret", "tags": "monitoring,custom", "limits": {"max-connections": 5}}],
        "vhosts": [{"name": "v/1", "limits": [], "metadata": {
            "description": "the first", "tags": ["a", "b c"], "default_queue_type": "quorum", "protected_from_deletion": true
        }}],
        "permissions": [{"user": "app", "vhost": "v/1", "configure": "^app", "write": ".*", "read": ".*"}],
        "topic_permissions": [{"user": "app", "vhost": "v/1", "exchange": "later", "write": "^{username}", "read": ".*"}],
        "parameters": [
            {"vhost": "v/1", "component": "vhost-limits", "name": "limits", "value": {"max-queues": 10}},
            {"vhost": "v/1", "component": "operator_policy", "name": "cap", "value": {
                "pattern": ".*", "apply-to": "queues", "priority": 2, "definition": {"max-length": 100}
            }}
        ],
        "global_parameters": [{"name": "cluster_name", "value": "imported"}, {"name": "any", "value": {"x": [1, null]}}],
        "policies": [{"vhost": "v/1", "name": "p", "pattern": "^q", "definition": {"delivery-limit": 3}, "priority": -1}],
        "queues": [
            {"vhost": "v/1", "name": "typed", "type": "classic", "durable": false, "auto_delete": true, "arguments": {}},
            {"vhost": "v/1", "name": "by default", "arguments": []}
        ],
        "exchanges": [
            {"vhost": "v/1", "name": "h", "type": "headers", "arguments": {"alternate-exchange": "amq.fanout"}},
            {"vhost": "v/1", "name": "t", "type": "topic", "durable": false, "internal": true}
        ],
        "bindings": [
            {"vhost": "v/1", "source": "h", "destination": "by default", "destination_type": "queue", "routing_key": "",
             "arguments": {"x-match": "any", "n": 1, "f": 0.5, "s": "ü", "t": {"a": [true]}}},
            {"vhost": "v/1", "source": "h", "destination": "t", "destination_type": "exchange", "routing_key": "k\"\t"}
        ]
    })
}

#[test]
fn an_export_that_is_imported_elsewhere_is_exported_the_same() {
    let first = Cluster::start(1);
    import(&first[0], &write(&first, "in.json", &document()));
    let exported = export(&first[0]);
    assert_eq!(exported["rabbitmq_definition_format"], "cluster");
    assert_eq!(exported["original_cluster_name"], "imported");
    let queue = |name: &str| list(&exported, "queues").iter().find(|queue| queue["name"] == name).unwrap();
    assert_eq!(queue("by default")["arguments"], json!({"x-queue-type": "quorum"}));
    assert_eq!(queue("by default")["type"], "quorum");
    assert_eq!(queue("typed")["type"], "classic");
    assert_eq!(queue("typed")["arguments"], json!({}));
    let second = Cluster::start(3);
    let file = second.folder().join("out.json");
    first[0].ctl_ok(&["export_definitions", file.to_str().unwrap()]);
    assert_eq!(settled(&read(&file)), settled(&exported));
    import(&second[1], &file);
    for node in second.iter() {
        wait_for("every node to have all of it", SOON, || (settled(&export(node)) == settled(&exported)).then_some(()));
    }
}

#[test]
fn what_exists_stays_where_it_cannot_change_and_is_overwritten_where_it_can() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    import(node, &write(&cluster, "in.json", &document()));
    let mut other = document();
    other["exchanges"][0]["type"] = json!("fanout");
    other["queues"][0]["durable"] = json!(true);
    other["policies"][0]["definition"] = json!({"delivery-limit": 7});
    other["permissions"][0]["read"] = json!("^x");
    other["vhosts"][0]["metadata"]["description"] = json!("another");
    import(node, &write(&cluster, "other.json", &other));
    let exported = export(node);
    assert_eq!(list(&exported, "exchanges").iter().find(|x| x["name"] == "h").unwrap()["type"], "headers");
    assert_eq!(list(&exported, "queues").iter().find(|q| q["name"] == "typed").unwrap()["durable"], false);
    assert_eq!(exported["policies"][0]["definition"], json!({"delivery-limit": 7}));
    assert_eq!(list(&exported, "permissions").iter().find(|p| p["user"] == "app").unwrap()["read"], "^x");
    assert_eq!(list(&exported, "vhosts").iter().find(|v| v["name"] == "v/1").unwrap()["description"], "another");
}

/// The import fails with this exit code and names the object.
fn fails(cluster: &Cluster, document: &Value, code: i32, named: &str) {
    let file = write(cluster, "wrong.json", document);
    let output = cluster[0].ctl(&["import_definitions", file.to_str().unwrap()]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(code), "{document}: {errors}");
    assert!(errors.contains(named), "{document}: {errors}");
}

#[test]
fn what_is_wrong_is_named_and_a_document_that_is_no_document_changes_nothing() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    let before = settled(&export(node));
    let user = json!([{"name": "new", "password": "x", "tags": []}]);
    // Refused as a whole.
    fails(&cluster, &json!([]), 65, "not a JSON object");
    fails(&cluster, &json!({"users": user, "queues": [{"name": "homeless"}]}), 65, "homeless");
    fails(&cluster, &json!({"users": user, "queues": "none"}), 65, "cannot be read");
    let output = node.ctl(&["import_definitions"]);
    assert_eq!(output.status.code(), Some(65), "standard input is empty");
    assert_eq!(settled(&export(node)), before);
    // Refused at an object.
    for (object, named) in [
        (json!({"users": [{"name": "u", "password_hash": "!"}]}), "user 'u'"),
        (
            json!({"users": [{"name": "u", "password_hash": "AAAA", "hashing_algorithm": "rabbit_password_hashing_sha256"}]}),
            "user 'u'",
        ),
        (json!({"users": [{"name": "u", "password_hash": "", "hashing_algorithm": "rot13"}]}), "rot13"),
        (json!({"vhosts": [{"name": "v", "default_queue_type": "fast"}]}), "virtual host 'v'"),
        (
            json!({"permissions": [{"user": "nobody", "vhost": "/", "configure": "", "write": "", "read": ""}]}),
            "'nobody'",
        ),
        (
            json!({"permissions": [{"user": "guest", "vhost": "/", "configure": "(", "write": "", "read": ""}]}),
            "regular expression",
        ),
        (json!({"exchanges": [{"name": "x", "vhost": "/", "type": "x-unheard-of"}]}), "x-unheard-of"),
        (json!({"exchanges": [{"name": "x", "vhost": "nowhere", "type": "direct"}]}), "virtual host 'nowhere'"),
        (
            json!({"policies": [{"vhost": "/", "name": "p", "pattern": "", "definition": {"max-lenght": 1}}]}),
            "max-lenght",
        ),
        (json!({"parameters": [{"vhost": "/", "component": "unheard", "name": "p", "value": 1}]}), "unheard"),
        (json!({"queues": [{"name": "q", "vhost": "/", "type": "quorum", "durable": false}]}), "queue 'q'"),
        (json!({"queues": [{"name": "q", "vhost": "/", "arguments": {"x-queue-type": "odd"}}]}), "queue 'q'"),
        (
            json!({"bindings": [{"source": "amq.topic", "vhost": "/", "destination": "none", "destination_type": "queue", "routing_key": ""}]}),
            "'none'",
        ),
        (
            json!({"bindings": [{"source": "none", "vhost": "/", "destination": "amq.topic", "destination_type": "exchange", "routing_key": ""}]}),
            "'none'",
        ),
    ] {
        fails(&cluster, &object, 69, named);
    }
    // Of many in one command, the one at fault is named, and those before it are there.
    let many: Vec<Value> =
        (0..40).map(|n| json!({"name": format!("q{n:02}"), "vhost": if n == 23 { "gone" } else { "/" }})).collect();
    fails(&cluster, &json!({"queues": many}), 69, "queue 'q23' in virtual host 'gone'");
    assert_eq!(node.ctl_rows(&["list_queues", "name"]).unwrap().len(), 23);
}

#[test]
fn definitions_that_would_exceed_a_limit_are_refused_before_the_first_queue() {
    let cluster = Cluster::start(1);
    cluster[0].ctl_ok(&["set_vhost_limits", r#"{"max-queues": 3}"#]);
    let queues: Vec<Value> = (0..4).map(|n| json!({"name": format!("q{n}"), "vhost": "/"})).collect();
    fails(&cluster, &json!({"queues": queues}), 69, "limit of 3");
    assert!(cluster[0].ctl_rows(&["list_queues", "name"]).unwrap().is_empty());
    import(&cluster[0], &write(&cluster, "three.json", &json!({"queues": queues[..3]})));
    // Those that exist do not count again.
    import(&cluster[0], &write(&cluster, "three.json", &json!({"queues": queues[..3]})));
}

fn boot_with(file: &Path, more: &str) -> Setup {
    Setup::new().line(&format!("load_definitions = {}", file.display())).line(more)
}

#[test]
fn a_blank_node_that_loads_definitions_has_no_default_user_and_skips_those_that_it_knows() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boot.json");
    let mut boot = document();
    std::fs::write(&file, boot.to_string()).unwrap();
    let mut cluster = boot_with(&file, "definitions.skip_if_unchanged = true").start(1);
    let users: Vec<Value> = cluster[0].ctl_rows(&["list_users"]).unwrap();
    assert_eq!(users, [json!({"user": "app", "tags": ["monitoring", "custom"]})]);
    let vhosts = cluster[0].ctl_rows(&["list_vhosts", "name"]).unwrap();
    assert_eq!(vhosts, [json!({"name": "v/1"})]);
    assert!(logs_in(&cluster[0], "app", "secret", "v/1"));
    // The note of the import is nobody's business.
    let parameters = cluster[0].ctl_rows(&["list_global_parameters"]).unwrap();
    assert!(!parameters.iter().any(|p| p["name"] == "imported_definition_hash_value"), "{parameters:?}");
    cluster[0].ctl_ok(&["-p", "v/1", "delete_queue", "typed"]);
    let queues = |cluster: &Cluster| {
        let rows = cluster[0].ctl_rows(&["-p", "v/1", "list_queues", "name"]).unwrap();
        rows.iter().map(|row| row["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    cluster[0].stop(Stop::Terminate);
    cluster.restart(0);
    assert_eq!(queues(&cluster), ["by default"], "what is known is left alone");
    boot["queues"][0]["arguments"] = json!({"x-queue-mode": "lazy"});
    std::fs::write(&file, boot.to_string()).unwrap();
    cluster[0].stop(Stop::Terminate);
    cluster.restart(0);
    assert_eq!(queues(&cluster), ["by default", "typed"], "what changed is imported");
}

#[test]
fn nodes_of_a_new_cluster_load_the_same_definitions_at_the_same_time() {
    let folder = tempfile::tempdir().unwrap();
    for (name, list) in
        [("1.json", json!({"vhosts": document()["vhosts"], "users": document()["users"]})), ("2.json", document())]
    {
        std::fs::write(folder.path().join(name), list.to_string()).unwrap();
    }
    std::fs::write(folder.path().join("notes.txt"), "no JSON").unwrap();
    let setup = Setup::new()
        .line("definitions.import_backend = local_filesystem")
        .line(&format!("definitions.local.path = {}", folder.path().display()))
        .line("cluster_formation.target_cluster_size_hint = 3");
    let cluster = setup.start(3);
    for node in cluster.iter() {
        wait_for("all queues and bindings to be there", SOON, || {
            let exported = export(node);
            (list(&exported, "queues").len() == 2 && list(&exported, "bindings").len() == 2).then_some(())
        });
        assert_eq!(list(&export(node), "users").len(), 1);
    }
}

#[test]
fn a_node_does_not_serve_where_its_definitions_cannot_be_imported() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("boot.json");
    std::fs::write(&file, json!({"permissions": [{"user": "ghost", "vhost": "v"}]}).to_string()).unwrap();
    let mut cluster = boot_with(&file, "").lay_out(1);
    cluster[0].start();
    let status = wait_for("the node to end", SOON, || cluster[0].exited());
    assert_eq!(status.code(), Some(78));
    let log = cluster[0].log();
    assert!(log.contains("ghost") && !log.contains(" started"), "{log}");
}

#[test]
fn queues_wait_for_the_nodes_that_the_cluster_is_meant_to_have() {
    let cluster = Setup::new().line("cluster_formation.target_cluster_size_hint = 2").start(1);
    let warnings = import(&cluster[0], &write(&cluster, "in.json", &document()));
    assert!(warnings.contains("wait until 2 nodes have joined"), "{warnings}");
    let exported = export(&cluster[0]);
    assert_eq!(list(&exported, "exchanges").len(), 2);
    assert!(list(&exported, "queues").is_empty() && list(&exported, "bindings").is_empty());
}

#[test]
fn exclusive_queues_and_what_leads_to_them_are_in_no_export() {
    let cluster = Cluster::start(1);
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let uri = format!("amqp://127.0.0.1:{}/%2f", cluster[0].amqp_port());
        let connection = Connection::connect(&uri, ConnectionProperties::default()).await.unwrap();
        let channel = connection.create_channel().await.unwrap();
        for (name, exclusive) in [("mine", true), ("ours", false)] {
            let options = lapin::options::QueueDeclareOptions { exclusive, ..Default::default() };
            channel.queue_declare(name.into(), options, Default::default()).await.unwrap();
            channel
                .queue_bind(name.into(), "amq.fanout".into(), "".into(), Default::default(), Default::default())
                .await
                .unwrap();
        }
        let exported = export(&cluster[0]);
        let names = |list_name: &str, field: &str| -> Vec<Value> {
            list(&exported, list_name).iter().map(|object: &Value| object[field].clone()).collect()
        };
        assert_eq!(names("queues", "name"), [json!("ours")]);
        assert_eq!(names("bindings", "destination"), [json!("ours")]);
        assert!(names("exchanges", "name").is_empty(), "those that every virtual host has are not exported");
        assert_eq!(exported["vhosts"][0]["limits"], json!([]));
        let hidden: Map<String, Value> = exported.as_object().unwrap().clone();
        assert!(!hidden["global_parameters"].to_string().contains("internal"), "{hidden:?}");
    });
}
