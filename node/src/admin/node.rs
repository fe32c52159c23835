//! The node and its cluster.

use std::path::Path;
use std::sync::Arc;

use serde_json::{Map, Value, json};
use warren_broker::{Broker, identity};
use warren_metastore::records::Cluster;
use warren_proto::ids::GroupId;

use super::protocol::{Code, Refusal, Request, Row};
use super::queues::group_status;
use super::state::{Listening, NodeState};
use super::{Answer, Outcome, done, feature_flags, peers, row, unreadable};
use crate::config::settings::{LeaderLocator, LogFormat, LogOutput, QueueType, Settings};

fn text(text: impl Into<String>) -> Outcome {
    Ok(Answer::Value(json!({"text": text.into()})))
}

/// `stop` and `shutdown`: answers with the process that is going to end.
pub fn stop(state: &NodeState) -> Outcome {
    tracing::info!("an operator asked the node to stop");
    state.request_stop();
    Ok(Answer::Value(json!({"pid": std::process::id()})))
}

/// `is_running`.
pub fn is_running(state: &NodeState) -> Outcome {
    let (node, running) = (&state.configuration.node, state.is_ready());
    let words = if running { "is fully booted and running" } else { "is not running or is still booting" };
    Ok(Answer::Value(json!({"running": running, "text": format!("Warren on node {node} {words}")})))
}

/// `is_booting`.
pub fn is_booting(state: &NodeState) -> Outcome {
    let node = &state.configuration.node;
    if state.is_ready() {
        text(format!("Node {node} is not booting"))
    } else {
        text(format!("Node {node} is booting: {}", state.phase()))
    }
}

/// `check_running`.
pub fn check_running(state: &NodeState) -> Outcome {
    if state.is_ready() {
        return done();
    }
    let node = &state.configuration.node;
    let why = format!("Warren on node {node} is not fully booted and running: {}", state.phase());
    Err(Refusal::new(Code::Unavailable, why))
}

/// `listeners`.
pub fn listeners(state: &NodeState) -> Outcome {
    let lines: Vec<String> = state
        .listeners()
        .iter()
        .map(|listener| {
            format!(
                "Interface: {}, port: {}, protocol: {}, purpose: {}",
                listener.interface, listener.port, listener.protocol, listener.purpose
            )
        })
        .collect();
    text(lines.join("\n"))
}

/// `check_port_listener`.
pub fn check_port_listener(state: &NodeState, request: &Request) -> Outcome {
    let wanted = request.text("port");
    let Ok(port) = wanted.parse::<u16>() else {
        return Err(Refusal::new(Code::Invalid, format!("`{wanted}` is not a port")));
    };
    let found: Vec<u16> = state.listeners().iter().map(|listener| listener.port).collect();
    if found.contains(&port) {
        return done();
    }
    let node = &state.configuration.node;
    let why =
        format!("No listener for port {port} is active on node {node}. Found listeners that use ports: {found:?}");
    Err(Refusal::new(Code::Unavailable, why))
}

/// `server_version`.
pub fn server_version() -> Outcome {
    text(identity::CLIENT_VERSION)
}

/// `status`.
pub async fn status(state: &NodeState) -> Outcome {
    let configuration = &state.configuration;
    let node = configuration.node.as_str();
    let data = crate::data_dir::node_dir(&configuration.data_dir, &configuration.node);
    let raft = configuration.settings.raft_data_dir.clone().unwrap_or_else(|| data.clone());
    let broker = state.broker().ok();
    let (queues, vhosts) = broker.map_or((0, 0), |broker| {
        let view = broker.metadata().projections().load();
        (view.queues().count(), view.vhosts().count())
    });
    let files: Vec<String> = configuration.files.iter().map(|file| file.display().to_string()).collect();
    Ok(Answer::Value(json!({
        "os": format!("Linux {}", rustix::system::uname().release().to_string_lossy()),
        "pid": std::process::id(),
        "product_name": identity::PRODUCT,
        "product_version": identity::VERSION,
        "rabbitmq_version": identity::CLIENT_VERSION,
        "erlang_version": "n/a",
        "crypto_lib_version": "n/a",
        "uptime": state.started.elapsed().as_secs(),
        "state": if state.is_ready() { "running".to_owned() } else { state.phase() },
        "is_under_maintenance": false,
        "processes": {"used": Value::Null, "limit": Value::Null},
        "run_queue": 0,
        "net_ticktime": Value::Null,
        "vm_memory_calculation_strategy": "rss",
        "vm_memory_high_watermark_setting": Value::Null,
        "vm_memory_high_watermark_limit": Value::Null,
        "disk_free_limit": Value::Null,
        "disk_free": disk_free(&data),
        "alarms": [],
        "tags": [],
        "listeners": listener_values(node, &state.listeners()),
        "memory": {"strategy": "rss", "total": {"rss": resident_memory()}},
        "data_directory": data.display().to_string(),
        "raft_data_directory": raft.display().to_string(),
        "config_files": files,
        "log_files": state.log_files,
        "active_plugins": [],
        "enabled_plugin_file": Value::Null,
        "feature_flags": match broker {
            Some(broker) => feature_flags::rows(broker).await,
            None => Vec::new(),
        },
        "feature_flags_written_to_disk": broker.map(|broker| broker.feature_flags().member().is_written()),
        "totals": {
            "connection_count": broker.map_or(0, |broker| broker.connections().len()),
            "queue_count": queues,
            "virtual_host_count": vhosts,
        },
    })))
}

fn listener_values(node: &str, listeners: &[Listening]) -> Vec<Value> {
    listeners
        .iter()
        .map(|listener| {
            json!({
                "node": node,
                "protocol": listener.protocol,
                "interface": listener.interface,
                "port": listener.port,
                "purpose": listener.purpose,
            })
        })
        .collect()
}

fn disk_free(path: &Path) -> Value {
    match rustix::fs::statvfs(path) {
        Ok(stat) => Value::from(stat.f_bavail.saturating_mul(stat.f_frsize)),
        Err(_) => Value::Null,
    }
}

pub(super) fn resident_memory() -> Value {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
    kilobytes.map_or(Value::Null, |kilobytes| Value::from(kilobytes * 1024))
}

/// What this node adds to `cluster_status`.
pub fn local_facts(state: &NodeState) -> Outcome {
    Ok(Answer::Value(facts(state)))
}

fn facts(state: &NodeState) -> Value {
    json!({
        "cpu_cores": std::thread::available_parallelism().map_or(1, usize::from),
        "listeners": listener_values(state.configuration.node.as_str(), &state.listeners()),
        "rabbitmq_version": identity::CLIENT_VERSION,
        "ready": state.is_ready(),
    })
}

/// `cluster_status`.
pub async fn cluster_status(state: &NodeState, broker: &Broker) -> Outcome {
    let nodes = broker.metadata().nodes();
    let answers = peers::ask(broker, peers::all(broker), peers::LOCAL_FACTS, &Request::default()).await;
    let mut running = Vec::new();
    let (mut versions, mut maintenance, mut listeners) = (Map::new(), Map::new(), Map::new());
    let mut cores = 0;
    for node in &nodes {
        let name = node.name.to_string();
        let own = node.id == broker.me();
        let told = answers.iter().find(|(from, _)| *from == node.id).map(|(_, told)| told.value.clone());
        let Some(facts) = (if own { Some(facts(state)) } else { told }) else {
            maintenance.insert(name, json!("unknown"));
            continue;
        };
        cores += facts["cpu_cores"].as_u64().unwrap_or_default();
        versions.insert(
            name.clone(),
            json!({
                "rabbitmq_name": identity::PRODUCT,
                "rabbitmq_version": facts["rabbitmq_version"],
                "erlang_version": "n/a",
            }),
        );
        maintenance.insert(name.clone(), json!("not under maintenance"));
        listeners.insert(name.clone(), facts["listeners"].clone());
        running.push(name);
    }
    let tree = broker.metadata().tree();
    let cluster_name = Cluster::name(&tree).map_err(unreadable)?;
    let leader = broker.metadata().leader().map(|node| peers::name(broker, node));
    let names: Vec<String> = nodes.iter().map(|node| node.name.to_string()).collect();
    Ok(Answer::Value(json!({
        "cluster_name": cluster_name,
        "cluster_tags": [],
        "disk_nodes": names,
        "running_nodes": running,
        "versions": versions,
        "cpu_cores": cores,
        "maintenance_status": maintenance,
        "alarms": [],
        "partitions": {},
        "listeners": listeners,
        "feature_flags": feature_flags::rows(broker).await,
        "metadata_leader": leader,
    })))
}

/// `has_reached_target_cluster_size`: whether the cluster has the nodes that the configuration hints at.
pub fn has_reached_target_cluster_size(state: &NodeState, broker: &Broker) -> Outcome {
    let target = state.configuration.settings.cluster.target_size_hint;
    let nodes = broker.metadata().nodes().len() as u64;
    let reached = nodes >= target;
    let text = match reached {
        true => format!("The cluster has reached its target size: it has {nodes} of {target} nodes"),
        false => format!("The cluster has not reached its target size yet: it has {nodes} of {target} nodes"),
    };
    Ok(Answer::Value(json!({"text": text, "reached": reached, "nodes": nodes, "target": target})))
}

/// `set_cluster_name`.
pub async fn set_cluster_name(broker: &Broker, request: &Request) -> Outcome {
    broker.metadata().write(Cluster::set_name(request.text("name"))).await?;
    done()
}

/// `metadata_store_status`.
pub async fn metadata_store_status(broker: &Arc<Broker>) -> Outcome {
    group_status(broker, GroupId::METADATA, peers::all(broker).into_iter().collect()).await
}

/// `environment`: what the configuration came to, without secrets.
pub fn environment(state: &NodeState) -> Outcome {
    let configuration = &state.configuration;
    let settings = &configuration.settings;
    let listeners: Vec<String> = settings.listeners.amqp().iter().map(ToString::to_string).collect();
    let seeds: Vec<String> = settings.cluster.seeds.iter().map(|seed| format!("{}:{}", seed.node, seed.port)).collect();
    let mechanisms: Vec<&str> = settings.auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
    let log = |output: &LogOutput| {
        json!({
            "enabled": output.enabled,
            "level": format!("{:?}", output.level).to_lowercase(),
            "formatter": if output.format == LogFormat::Json { "json" } else { "plaintext" },
        })
    };
    let reconciliation = &settings.queues.reconciliation;
    let mut all = json!({
        "node": configuration.node.as_str(),
        "data_dir": configuration.data_dir.display().to_string(),
        "config_files": configuration.files.iter().map(|file| file.display().to_string()).collect::<Vec<_>>(),
        "listeners.tcp": listeners,
        "handshake_timeout": millis(settings.amqp091.handshake_timeout),
        "auth_failure_delay": millis(settings.amqp091.auth_failure_delay),
        "heartbeat": settings.amqp091.heartbeat.as_secs(),
        "frame_max": settings.amqp091.frame_max,
        "initial_frame_max": settings.amqp091.initial_frame_max,
        "channel_max": settings.amqp091.channel_max,
        "default_user": settings.defaults.user,
        "default_pass": "[redacted]",
        "default_vhost": settings.defaults.vhost,
        "default_permissions": settings.defaults.permissions,
        "default_user_tags": settings.defaults.tags,
        "loopback_users": settings.auth.loopback_users,
        "anonymous_login_user": settings.auth.anonymous.as_ref().map_or("none", |(user, _)| user.as_str()),
        "auth_mechanisms": mechanisms,
        "cluster_name": settings.cluster.name,
        "cluster_formation.classic_config.nodes": seeds,
        "cluster_formation.discovery_retry_limit": settings.cluster.retry_limit.map_or(json!("unlimited"), Value::from),
        "cluster_formation.discovery_retry_interval": millis(settings.cluster.retry_interval),
        "cluster_formation.target_cluster_size_hint": settings.cluster.target_size_hint,
        "metadata_store.default_timeout": millis(settings.metadata.timeout),
        "metadata_store.khepri.snapshot_interval": settings.metadata.snapshot_interval,
        "metadata_store.leader_wait_timeout": millis(settings.metadata.leader_wait_timeout),
        "default_queue_type": if settings.queues.default_type == QueueType::Quorum { "quorum" } else { "classic" },
        "queue_leader_locator": match settings.queues.leader_locator {
            LeaderLocator::ClientLocal => "client-local",
            LeaderLocator::Balanced => "balanced",
        },
        "quorum_queue.initial_cluster_size": settings.queues.initial_cluster_size,
        "quorum_queue.commands_soft_limit": settings.queues.commands_soft_limit,
        "quorum_queue.machine_version_limit": settings.queues.machine_version,
        "quorum_queue.continuous_membership_reconciliation.enabled": reconciliation.enabled,
        "quorum_queue.continuous_membership_reconciliation.auto_remove": reconciliation.auto_remove,
        "quorum_queue.continuous_membership_reconciliation.target_group_size": reconciliation.target_size,
        "quorum_queue.continuous_membership_reconciliation.interval": millis(reconciliation.interval),
        "quorum_queue.continuous_membership_reconciliation.trigger_interval": millis(reconciliation.trigger_interval),
        "peer.ip": settings.peer.ip.map(|ip| ip.to_string()),
        "peer.port": settings.peer.port,
        "shutdown.timeout": settings.shutdown_timeout.as_secs(),
        "log.console": log(&settings.log.console),
        "log.file": log(&settings.log.file),
    });
    if let Value::Object(all) = &mut all {
        all.extend(limits(settings));
        all.extend(flags(settings));
    }
    Ok(Answer::Value(all))
}

/// Feature flags and deprecated features.
fn flags(settings: &Settings) -> Row {
    let flags = &settings.flags;
    row([
        ("feature_flags.forced_on_init", json!(flags.forced)),
        ("feature_flags.test_definitions", json!(flags.test_definitions)),
        ("feature_flags.test_product_version", json!(flags.test_product_version)),
        ("deprecated_features.permit", json!(flags.permits)),
    ])
}

/// Limits, and what else has a row of its own in the specification.
fn limits(settings: &Settings) -> Row {
    let limits = &settings.limits;
    let properties: Row =
        settings.amqp091.server_properties.iter().map(|(name, value)| (name.clone(), json!(value))).collect();
    row([
        ("max_message_size", json!(limits.max_message_size)),
        ("max_connections", limit(limits.max_connections)),
        ("channel_max_per_node", limit(limits.channels_of_node)),
        ("consumer_max_per_channel", limit(limits.consumers_of_channel)),
        ("vhost_max", limit(limits.vhosts)),
        ("cluster_queue_limit", limit(limits.queues)),
        ("cluster_exchange_limit", limit(limits.exchanges)),
        ("server_properties", json!(properties)),
        ("raft.disk_stall_timeout", json!(millis(settings.disk_stall))),
    ])
}

fn limit(most: Option<u64>) -> Value {
    most.map_or(json!("infinity"), Value::from)
}

fn millis(duration: std::time::Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
