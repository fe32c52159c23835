//! Policies reach queues while these live, whoever leads them, and are set and shown as with rabbitmqctl.

use std::time::Duration;

use lapin::options::{
    BasicGetOptions, BasicPublishOptions, BasicRejectOptions, ExchangeDeclareOptions, QueueBindOptions,
    QueueDeclareOptions,
};
use lapin::types::{AMQPValue, FieldTable};
use lapin::{BasicProperties, Channel, Connection, ConnectionProperties, ExchangeKind};
use serde_json::{Value, json};
use warren_cluster_tests::{Cluster, Node, Stop, amqp, wait_for};

const SOON: Duration = Duration::from_secs(30);
/// Deliveries of a message that is rejected again and again, where nothing else is set.
const BY_DEFAULT: usize = 21;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Runtime::new().expect("a runtime can be made")
}

/// How often a message is delivered that is rejected every time.
async fn deliveries(channel: &Channel, queue: &str) -> usize {
    let confirmed = amqp::publish(channel, queue, b"poison", amqp::ANSWER_LIMIT).await;
    assert_eq!(confirmed.unwrap(), Some(true));
    let mut count = 0;
    while let Some(message) = channel.basic_get(queue.into(), BasicGetOptions::default()).await.unwrap() {
        count += 1;
        message.acker.reject(BasicRejectOptions { requeue: true }).await.unwrap();
        assert!(count < 100, "it is dropped at some time");
    }
    count
}

fn wait_for_deliveries(node: &Node, queue: &str, expected: usize) {
    let (_connection, channel) = runtime_channel(node);
    wait_for("the queue to have another delivery limit", SOON, || {
        (channel.0.block_on(deliveries(&channel.1, queue)) == expected).then_some(())
    });
}

/// A channel with the runtime that drives it.
fn runtime_channel(node: &Node) -> (Connection, (tokio::runtime::Runtime, Channel)) {
    let runtime = runtime();
    let (connection, channel) = runtime.block_on(amqp::confirm_channel(node)).unwrap();
    (connection, (runtime, channel))
}

fn declare(node: &Node, queue: &str) {
    let (_connection, channel) = runtime_channel(node);
    channel.0.block_on(amqp::declare_quorum(&channel.1, queue)).unwrap();
}

/// What `list_queues` shows of a queue's policies.
fn shown(node: &Node, queue: &str) -> Option<(Value, Value, Value)> {
    let columns = ["name", "policy", "operator_policy", "effective_policy_definition"];
    let rows = node.ctl_rows(&[&["list_queues"], &columns[..]].concat())?;
    let row = rows.into_iter().find(|row| row["name"] == queue)?;
    Some((row["policy"].clone(), row["operator_policy"].clone(), row["effective_policy_definition"].clone()))
}

fn exit(node: &Node, arguments: &[&str]) -> i32 {
    node.ctl(arguments).status.code().expect("it ends by itself")
}

#[test]
fn a_policy_reaches_a_live_queue_its_next_leaders_and_a_restarted_cluster_and_leaves_it_again() {
    let mut cluster = Cluster::start(3);
    declare(&cluster[0], "orders");
    wait_for_deliveries(&cluster[1], "orders", BY_DEFAULT);
    cluster[2].ctl_ok(&["set_policy", "limit", "^ord", r#"{"delivery-limit": 1}"#, "--apply-to", "queues"]);
    for node in cluster.iter() {
        wait_for("every node to show the policy", SOON, || {
            (shown(node, "orders")? == (json!("limit"), Value::Null, json!({"delivery-limit": 1}))).then_some(())
        });
    }
    wait_for_deliveries(&cluster[0], "orders", 2);
    // Each member has it, and leads with it.
    for _ in 0..2 {
        let leader = cluster.wait_leader("orders");
        cluster[leader].stop(Stop::Kill);
        let other = (leader + 1) % 3;
        wait_for_deliveries(&cluster[other], "orders", 2);
        cluster.restart(leader);
    }
    // A higher one counts instead, and the lower one again once that is gone.
    cluster[0].ctl_ok(&["set_policy", "--priority", "5", "higher", ".*", r#"{"delivery-limit": 3}"#]);
    wait_for_deliveries(&cluster[1], "orders", 4);
    cluster.kill_all();
    cluster.start_all();
    wait_for_deliveries(&cluster[2], "orders", 4);
    let listed = cluster[1].ctl_rows(&["list_policies"]).unwrap();
    let names: Vec<_> = listed.iter().map(|row| (row["name"].clone(), row["priority"].clone())).collect();
    assert_eq!(names, [(json!("higher"), json!(5)), (json!("limit"), json!(0))]);
    cluster[0].ctl_ok(&["clear_policy", "higher"]);
    wait_for_deliveries(&cluster[1], "orders", 2);
    cluster[0].ctl_ok(&["clear_policy", "limit"]);
    wait_for_deliveries(&cluster[1], "orders", BY_DEFAULT);
    assert_eq!(shown(&cluster[0], "orders").unwrap(), (Value::Null, Value::Null, json!({})));
}

#[test]
fn a_policy_set_while_a_queue_has_no_leader_applies_once_it_has_one() {
    let mut cluster = Cluster::start(5);
    declare(&cluster[0], "away");
    let rows = cluster[0].ctl_rows(&["list_queues", "name", "members"]).unwrap();
    let members: Vec<String> = serde_json::from_value(rows[0]["members"].clone()).unwrap();
    let index = |name: &str| cluster.iter().position(|node| node.name() == name).expect("a node of the cluster");
    let members: Vec<usize> = members.iter().map(|name| index(name)).collect();
    assert_eq!(members.len(), 3);
    for member in &members[..2] {
        cluster[*member].stop(Stop::Kill);
    }
    // Three nodes of five can still change the metadata; one member of three cannot change the queue.
    let elsewhere = (0..5).find(|node| !members.contains(node)).expect("five nodes");
    cluster[elsewhere].ctl_ok(&["set_policy", "limit", "away", r#"{"delivery-limit": 2}"#]);
    cluster[elsewhere].ctl_ok(&["set_operator_policy", "cap", "away", r#"{"delivery-limit": 1}"#]);
    for member in &members[..2] {
        cluster.restart(*member);
    }
    wait_for_deliveries(&cluster[elsewhere], "away", 2);
}

#[test]
fn a_queue_that_does_not_keep_dead_messages_although_it_was_to_is_named_in_the_log() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    let told = |queue: &str| {
        let log = node.log();
        let of_queue = |line: &&str| line.contains("at-most-once is used") && line.contains(&format!("queue={queue} "));
        log.lines().filter(of_queue).count()
    };
    let strategy = r#"{"dead-letter-exchange": "amq.fanout", "dead-letter-strategy": "at-least-once"}"#;
    let kept = r#"{"dead-letter-exchange": "amq.fanout", "dead-letter-strategy": "at-least-once", "overflow": "reject-publish"}"#;
    // A policy set on a queue that is there, one that does all that it takes, and a queue that comes later.
    declare(node, "before");
    declare(node, "kept");
    node.ctl_ok(&["set_policy", "whole", "^kept", kept]);
    node.ctl_ok(&["set_policy", "half", "^before|^after", strategy]);
    wait_for("the queue to be named", SOON, || (told("before") == 1).then_some(()));
    declare(node, "after");
    wait_for("the new queue to be named", SOON, || (told("after") == 1).then_some(()));
    // An argument without a policy, and with one that gives what it lacks.
    let asked = [
        ("x-queue-type", AMQPValue::LongString("quorum".into())),
        ("x-dead-letter-exchange", AMQPValue::LongString("amq.fanout".into())),
        ("x-dead-letter-strategy", AMQPValue::LongString("at-least-once".into())),
    ];
    let (connection, (runtime, _channel)) = runtime_channel(node);
    for queue in ["alone", "kept-by-both"] {
        assert_eq!(runtime.block_on(refusal(&connection, queue, &asked)), None);
    }
    wait_for("the queue with arguments to be named", SOON, || (told("alone") == 1).then_some(()));
    assert_eq!((told("kept"), told("kept-by-both"), told("before"), told("after")), (0, 0, 1, 1));
}

#[test]
fn policies_and_operator_policies_are_merged_listed_and_refused_as_with_rabbitmqctl() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    declare(node, "q");
    node.ctl_ok(&["set_policy", "p", "^q", r#"{"max-length": 10, "overflow": "drop-head", "expires": 600000}"#]);
    let set = node.ctl_ok(&["set_operator_policy", "o", "^q", r#"{"max-length": 5, "overflow": "reject-publish"}"#]);
    assert_eq!(
        set,
        "Setting operator policy override \"o\" for pattern \"^q\" to \"{\"max-length\": 5, \"overflow\": \
         \"reject-publish\"}\" with priority \"0\" for vhost \"/\" ...\n"
    );
    let merged = json!({"max-length": 5, "overflow": "reject-publish", "expires": 600_000});
    assert_eq!(shown(node, "q").unwrap(), (json!("p"), json!("o"), merged));
    // A policy with a key that quorum queues do not support does not apply to them at all.
    node.ctl_ok(&["set_policy", "--priority", "9", "other", "^q", r#"{"queue-mode": "lazy", "max-length": 1}"#]);
    assert_eq!(shown(node, "q").unwrap().0, json!("p"));
    assert_eq!(
        node.ctl_ok(&["-q", "list_operator_policies"]),
        "vhost\tname\tpattern\tapply-to\tdefinition\tpriority\n\
         /\to\t^q\tall\t{\"max-length\":5,\"overflow\":\"reject-publish\"}\t0\n"
    );

    let refused = |arguments: &[&str], words: &str| {
        let output = node.ctl(arguments);
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(69), "{arguments:?}: {text}");
        assert!(text.contains(words), "{arguments:?}: {text}");
    };
    refused(&["set_policy", "x", "[", r#"{"max-length": 1}"#], "pattern should be regular expression but is invalid");
    refused(&["set_policy", "x", ".*", r#"{"foo": 1}"#], "[{<<\"foo\">>,1}] are not recognised policy settings");
    refused(&["set_policy", "x", ".*", r#"{"message-ttl": "a"}"#], "<<\"a\">> is not a valid message TTL");
    refused(&["set_policy", "x", ".*", "{}"], "no policy provided");
    refused(&["set_policy", "x", ".*", "[1]"], "definition must be a dictionary");
    refused(&["set_policy", "x", ".*", "{"], "Could not parse JSON document");
    refused(
        &["set_policy", "x", ".*", r#"{"delayed-retry-min": 9, "delayed-retry-max": 8}"#],
        "delayed-retry-max (8) must not be less than delayed-retry-min (9)",
    );
    refused(
        &["set_policy", "--apply-to", "messages", "x", ".*", r#"{"expires": 1}"#],
        "apply-to 'messages' unrecognised",
    );
    refused(&["set_operator_policy", "x", ".*", r#"{"dead-letter-exchange": "d"}"#], "are not recognised");
    refused(&["set_parameter", "shovel", "s", "{}"], "component shovel not found");
    refused(&["set_parameter", "policy", "s", "{}"], "policies may not be set using this method");
    assert_eq!(exit(node, &["set_policy", "x", ".*"]), 64);
    assert_eq!(exit(node, &["set_policy", "--priority", "high", "x", ".*", r#"{"expires": 1}"#]), 64);
    assert_eq!(exit(node, &["set_policy", "-p", "nowhere", "x", ".*", r#"{"expires": 1}"#]), 65);
    assert_eq!(exit(node, &["clear_policy", "x"]), 65);
    assert_eq!(node.ctl_rows(&["list_policies"]).unwrap().len(), 2);

    node.ctl_ok(&[
        "set_parameter",
        "operator_policy",
        "as-parameter",
        r#"{"pattern":"z","priority":1,"definition":{"expires":9}}"#,
    ]);
    assert_eq!(node.ctl_rows(&["list_parameters"]).unwrap().len(), 2);
    node.ctl_ok(&["clear_parameter", "operator_policy", "as-parameter"]);
    node.ctl_ok(&["clear_operator_policy", "o"]);
    assert_eq!(shown(node, "q").unwrap().2["max-length"], json!(10));
    node.ctl_ok(&["set_global_parameter", "team", r#"{"name":"a","size":3}"#]);
    node.ctl_ok(&["set_global_parameter", "cluster_name", r#""renamed""#]);
    let global = node.ctl_rows(&["list_global_parameters"]).unwrap();
    let value = |name: &str| global.iter().find(|row| row["name"] == name).map(|row| row["value"].clone());
    assert_eq!(value("team"), Some(json!(r#"{"name":"a","size":3}"#)));
    assert_eq!(value("cluster_name"), Some(json!(r#""renamed""#)));
    assert!(node.ctl_ok(&["cluster_status"]).contains("renamed"));
    node.ctl_ok(&["clear_global_parameter", "team"]);
    assert_eq!(exit(node, &["clear_global_parameter", "team"]), 65);
}

/// The reply code of a refused declaration.
async fn refusal(connection: &Connection, queue: &str, arguments: &[(&str, AMQPValue)]) -> Option<u16> {
    let channel = connection.create_channel().await.unwrap();
    let mut table = FieldTable::default();
    table.insert("x-queue-type".into(), AMQPValue::LongString("quorum".into()));
    for (name, value) in arguments {
        table.insert((*name).into(), value.clone());
    }
    let declared = channel.queue_declare(queue.into(), QueueDeclareOptions::durable(), table).await;
    match declared.err()?.kind() {
        lapin::ErrorKind::ProtocolError(error) => Some(error.get_id()),
        other => panic!("{other:?}"),
    }
}

#[test]
fn declarations_are_checked_and_policies_route_what_an_exchange_cannot() {
    let cluster = Cluster::start(1);
    let node = &cluster[0];
    node.ctl_ok(&["add_user", "limited", "secret"]);
    node.ctl_ok(&["set_permissions", "limited", ".*", "^allowed$", ".*"]);
    node.ctl_ok(&["set_policy", "--apply-to", "exchanges", "rest", "^in$", r#"{"alternate-exchange": "amq.fanout"}"#]);
    node.ctl_ok(&["set_parameter", "vhost-limits", "limits", r#"{"max-queues": 3}"#]);
    runtime().block_on(async {
        let uri = format!("amqp://limited:secret@127.0.0.1:{}/%2f", node.amqp_port());
        let limited = Connection::connect(&uri, ConnectionProperties::default()).await.unwrap();
        let to = |name: &str| [("x-dead-letter-exchange", AMQPValue::LongString(name.into()))];
        assert_eq!(refusal(&limited, "a", &to("forbidden")).await, Some(403));
        assert_eq!(refusal(&limited, "a", &to("allowed")).await, None);
        let (connection, channel) = amqp::confirm_channel(node).await.unwrap();
        assert_eq!(refusal(&connection, "b", &[("x-max-length", AMQPValue::LongInt(-5))]).await, Some(406));
        let key = [("x-dead-letter-routing-key", AMQPValue::LongString("k".into()))];
        assert_eq!(refusal(&connection, "b", &key).await, Some(406));
        let overflow = [("x-overflow", AMQPValue::LongString("reject-publish-dlx".into()))];
        assert_eq!(refusal(&connection, "b", &overflow).await, None);
        assert_eq!(refusal(&connection, "b", &[]).await, Some(406), "another declaration than the first");

        let options = ExchangeDeclareOptions { durable: true, ..ExchangeDeclareOptions::default() };
        channel.exchange_declare("in".into(), ExchangeKind::Direct, options, FieldTable::default()).await.unwrap();
        amqp::declare_quorum(&channel, "rest").await.unwrap();
        assert_eq!(refusal(&connection, "fourth", &[]).await, Some(406), "one queue too many");
        let nothing = FieldTable::default();
        channel
            .queue_bind("rest".into(), "amq.fanout".into(), "".into(), QueueBindOptions::default(), nothing)
            .await
            .unwrap();
        let options = BasicPublishOptions { mandatory: true, ..BasicPublishOptions::default() };
        let publish = channel.basic_publish("in".into(), "k".into(), options, b"m", BasicProperties::default());
        let answer = publish.await.unwrap().await.unwrap();
        assert!(answer.is_ack(), "{answer:?}");
        assert_eq!(amqp::drain(&channel, "rest").await.unwrap(), [b"m".to_vec()]);
    });
    node.ctl_ok(&["clear_parameter", "vhost-limits", "limits"]);
    declare(node, "fourth");
    let rows = node.ctl_rows(&["list_exchanges", "name", "policy"]).unwrap();
    assert!(rows.iter().any(|row| row["name"] == "in" && row["policy"] == "rest"), "{rows:?}");
}
