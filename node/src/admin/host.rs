//! The machine that the node runs on, and what the process was started with.

use serde_json::{Map, Value, json};
use warren_broker::Broker;

use super::node::resident_memory;
use super::protocol::{Code, Refusal, Request};
use super::state::NodeState;
use super::{Answer, Outcome, done};
use crate::allocator;
use crate::config::keys::log_level;
use crate::logging;

/// Environment variables that are not shown.
const SECRET: &[&str] = &["COOKIE", "PASS", "SECRET", "TOKEN"];

fn text(text: impl Into<String>) -> Outcome {
    Ok(Answer::Value(json!({"text": text.into()})))
}

/// `set_log_level`: until the next start.
pub fn set_log_level(request: &Request) -> Outcome {
    let word = request.text("level");
    let unknown = |_| {
        let known = "debug, info, warning, error, critical, none";
        Refusal::new(Code::Invalid, format!("level {word} is not supported. Try one of {known}"))
    };
    let level = log_level(word).map_err(unknown)?;
    logging::set_level(level).map_err(|why| Refusal::new(Code::Internal, why))?;
    tracing::info!(level = word, "the log level was set");
    done()
}

/// `log_location`: of the first log, or of all.
pub fn log_location(state: &NodeState, request: &Request) -> Outcome {
    let mut places = state.log_files.clone();
    if state.configuration.settings.log.console.enabled {
        places.push("<stdout>".to_owned());
    }
    match (places.is_empty(), request.flag("all")) {
        (true, _) => text("<none>"),
        (false, true) => text(places.join("\n")),
        (false, false) => text(places.swap_remove(0)),
    }
}

/// The names that clients of other protocols' tools have for a listener's protocol.
fn protocol(name: &str) -> String {
    let name = name.to_lowercase();
    match name.as_str() {
        "amqp091" | "amqp0.9.1" | "amqp0-9-1" | "amqp0_9_1" | "amqp09" | "amqp10" | "amqp1.0" | "amqp1-0"
        | "amqp1_0" => "amqp".to_owned(),
        "amqps" => "amqp/ssl".to_owned(),
        "cli" | "distribution" | "distributed" | "erlang" => "clustering".to_owned(),
        "management" => "http".to_owned(),
        _ => name,
    }
}

/// `check_protocol_listener`.
pub fn check_protocol_listener(state: &NodeState, request: &Request) -> Outcome {
    let wanted = protocol(request.text("protocol"));
    let found: Vec<&str> = state.listeners().iter().map(|listener| listener.protocol).collect();
    if found.contains(&wanted.as_str()) {
        return done();
    }
    let why = format!(
        "No listener for protocol {} is active on node {}. Found listeners for the following protocols: {}",
        request.text("protocol"),
        state.configuration.node,
        found.join(", ")
    );
    Err(Refusal::new(Code::Unavailable, why))
}

/// `resolve_hostname`.
pub async fn resolve_hostname(request: &Request) -> Outcome {
    let host = request.text("hostname");
    let family = match request.text("address-family") {
        "" => None,
        "ipv4" => Some(true),
        "ipv6" => Some(false),
        other => {
            return Err(Refusal::new(
                Code::Invalid,
                format!("`{other}` is no address family: there are ipv4 and ipv6"),
            ));
        }
    };
    let found = tokio::net::lookup_host((host, 0)).await;
    let found =
        found.map_err(|error| Refusal::new(Code::Unavailable, format!("{host} cannot be resolved: {error}")))?;
    let mut addresses: Vec<String> = Vec::new();
    for address in found.map(|address| address.ip()).filter(|ip| family.is_none_or(|v4| ip.is_ipv4() == v4)) {
        let address = address.to_string();
        if !addresses.contains(&address) {
            addresses.push(address);
        }
    }
    match addresses.is_empty() {
        true => Err(Refusal::new(Code::Unavailable, format!("{host} has no address of that family"))),
        false => text(addresses.join("\n")),
    }
}

/// `os_env`: without secrets.
pub fn os_env() -> Outcome {
    let mut lines: Vec<String> = Vec::new();
    for (name, value) in std::env::vars_os() {
        let name = name.to_string_lossy();
        if !name.starts_with("WARREN_") && !name.starts_with("RABBITMQ_") {
            continue;
        }
        let secret = SECRET.iter().any(|word| name.contains(word));
        lines.push(format!("{name}={}", if secret { "[redacted]".into() } else { value.to_string_lossy() }));
    }
    lines.sort();
    text(lines.join("\n"))
}

/// `command_line_arguments`: as the process was started. Secrets are not given on its command line.
pub fn command_line_arguments() -> Outcome {
    text(std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join("\n"))
}

/// Categories of memory by RabbitMQ's names, in their order; those that Warren does not tell apart are zero.
const CATEGORIES: &[&str] = &[
    "connection_readers",
    "connection_writers",
    "connection_channels",
    "connection_other",
    "queue_procs",
    "quorum_queue_procs",
    "quorum_queue_dlx_procs",
    "stream_queue_procs",
    "stream_queue_replica_reader_procs",
    "stream_queue_coordinator_procs",
    "plugins",
    "metadata_store",
    "other_proc",
    "metrics",
    "mgmt_db",
    "mnesia",
    "quorum_ets",
    "metadata_store_ets",
    "other_ets",
    "binary",
    "msg_index",
    "code",
    "atom",
    "other_system",
    "allocated_unused",
    "reserved_unallocated",
];

/// `memory_breakdown`: what the databases hold, what is allocated beside, and what the allocator and the system add. The parts sum
/// up to the resident memory.
pub async fn memory_breakdown(broker: &Broker) -> Outcome {
    let [metadata, queues] = broker.store_figures().await;
    let figures = allocator::figures();
    let figure = |name: &str| figures.iter().find(|(known, _)| *known == name).map_or(0, |(_, bytes)| *bytes);
    let rss = resident_memory().as_u64().unwrap_or_default();
    let mut left = rss;
    let mut take = |bytes: u64| {
        let taken = bytes.min(left);
        left -= taken;
        taken
    };
    let mut parts: Map<String, Value> = CATEGORIES.iter().map(|name| ((*name).to_owned(), json!(0))).collect();
    let databases = [("metadata_store_ets", metadata.memory_bytes), ("quorum_ets", queues.memory_bytes)];
    for (name, bytes) in databases {
        parts.insert(name.to_owned(), json!(take(bytes)));
    }
    let allocated = figure("allocated").saturating_sub(metadata.memory_bytes + queues.memory_bytes);
    parts.insert("other_proc".to_owned(), json!(take(allocated)));
    parts.insert("allocated_unused".to_owned(), json!(take(figure("resident").saturating_sub(figure("allocated")))));
    // What is resident and not the allocator's: the program itself and its stacks.
    parts.insert("other_system".to_owned(), json!(left));
    parts.insert("strategy".to_owned(), json!("rss"));
    let total = json!({"rss": rss, "allocated": figure("allocated"), "erlang": 0});
    parts.insert("total".to_owned(), total);
    Ok(Answer::Value(Value::Object(parts)))
}
