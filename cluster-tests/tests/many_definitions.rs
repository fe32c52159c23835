//! Definitions with very many queues and bindings, and declares one after the other. `WARREN_TEST_IMPORT` says how many queues,
//! with four bindings each; what is measured is printed.

use std::time::{Duration, Instant};

use lapin::options::QueueDeclareOptions;
use serde_json::{Value, json};
use warren_cluster_tests::process::resident_megabytes;
use warren_cluster_tests::{Cluster, amqp, runtime, wait_for};

const SOON: Duration = Duration::from_secs(60);
const BINDINGS: usize = 4;

fn count() -> usize {
    std::env::var("WARREN_TEST_IMPORT").ok().and_then(|n| n.parse().ok()).unwrap_or(1_500)
}

fn document(queues: usize) -> Value {
    let binding = |n: usize| {
        json!({
            "source": if n.is_multiple_of(2) { "amq.topic" } else { "amq.direct" },
            "vhost": "/",
            "destination": format!("import.{}", n % queues),
            "destination_type": "queue",
            "routing_key": format!("key.{}.{}", n / queues, n % queues),
            "arguments": {},
        })
    };
    let queue = |n: usize| json!({"vhost": "/", "name": format!("import.{n}"), "durable": true, "arguments": {}});
    json!({
        "queues": (0..queues).map(queue).collect::<Vec<_>>(),
        "bindings": (0..queues * BINDINGS).map(binding).collect::<Vec<_>>(),
    })
}

/// Queues and bindings that a node exports.
fn exported(cluster: &Cluster, node: usize) -> (usize, usize) {
    let document: Value = serde_json::from_str(&cluster[node].ctl_ok(&["export_definitions", "-"])).unwrap();
    let len = |list: &str| document[list].as_array().unwrap().len();
    (len("queues"), len("bindings"))
}

fn imports(nodes: usize) {
    let (cluster, queues) = (Cluster::start(nodes), count());
    let bindings = queues * BINDINGS;
    let file = cluster.folder().join("many.json");
    std::fs::write(&file, document(queues).to_string()).unwrap();
    let import = |what: &str| {
        let began = Instant::now();
        let output = cluster[0].ctl(&["import_definitions", file.to_str().unwrap()]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let (took, objects) = (began.elapsed().as_secs_f64(), queues + bindings);
        println!("{nodes} nodes: {what}: {objects} objects in {took:.1} s, {:.0}/s", objects as f64 / took);
        String::from_utf8_lossy(&output.stderr).lines().filter(|line| line.ends_with(" done")).count()
    };
    let words = import("import");
    println!("{nodes} nodes: told {words} times how far it was");
    import("the same again");
    for node in 0..nodes {
        wait_for("every node to have all of it", SOON, || {
            (exported(&cluster, node) == (queues, bindings)).then_some(())
        });
        println!("node {}: {:.0} MB", node + 1, cluster[node].pid().map_or(0.0, resident_megabytes));
    }
    runtime().block_on(async {
        let (connection, channel) = amqp::confirm_channel(&cluster[0]).await.unwrap();
        let declares = queues.min(2_000);
        let mut took = Vec::with_capacity(declares);
        let began = Instant::now();
        for n in 0..declares {
            let one = Instant::now();
            let options = QueueDeclareOptions { durable: true, ..QueueDeclareOptions::default() };
            channel.queue_declare(format!("declared.{n}").into(), options, Default::default()).await.unwrap();
            took.push(one.elapsed());
        }
        let rate = declares as f64 / began.elapsed().as_secs_f64();
        took.sort_unstable();
        println!("{nodes} nodes: one declare after the other: {rate:.0}/s, p99 {:.1?}", took[declares * 99 / 100]);
        connection.close(0, "".into()).await.unwrap();
    });
}

#[test]
fn many_queues_and_bindings_are_imported_on_one_node() {
    imports(1);
}

#[test]
fn many_queues_and_bindings_are_imported_on_three_nodes() {
    imports(3);
}
