//! Documents for people: sections with a line per value.

use std::fmt::Write;

use serde_json::Value;

use super::format::cell;

/// A unit of bytes: its name and size.
pub type Unit = (&'static str, f64);

/// The unit of a name; gigabytes without one.
pub fn unit(name: &str) -> Option<Unit> {
    const UNITS: [Unit; 7] = [
        ("gb", 1e9),
        ("bytes", 1.0),
        ("mb", 1e6),
        ("tb", 1e12),
        ("mib", 1_048_576.0),
        ("gib", 1_073_741_824.0),
        ("tib", 1_099_511_627_776.0),
    ];
    UNITS.into_iter().find(|(known, _)| *known == name || name.is_empty())
}

/// The document of a verb. Values that are not known here follow in a section of their own, so nothing is hidden.
pub fn sections(verb: &str, value: &Value, unit: &Unit) -> String {
    match verb {
        "status" => status(value, unit),
        "cluster_status" => cluster_status(value),
        _ => plain(value),
    }
}

fn plain(value: &Value) -> String {
    let mut out = String::new();
    if let Value::Object(map) = value {
        for (key, value) in map {
            let _ = writeln!(out, "{key} = {}", cell("", value));
        }
    }
    out
}

fn heading(out: &mut String, text: &str) {
    let _ = write!(out, "{}{text}\n\n", if out.is_empty() { "" } else { "\n" });
}

fn line(out: &mut String, label: &str, value: &Value) {
    let _ = writeln!(out, "{label}: {}", cell("", value));
}

/// A list, or `(none)`.
fn list(out: &mut String, title: &str, items: &Value, text: impl Fn(&Value) -> String) {
    heading(out, title);
    match items.as_array() {
        Some(items) if !items.is_empty() => {
            for item in items {
                let _ = writeln!(out, "{}", text(item));
            }
        }
        _ => out.push_str("(none)\n"),
    }
}

fn listener(value: &Value) -> String {
    format!(
        "Node: {}, interface: {}, port: {}, protocol: {}, purpose: {}",
        cell("", &value["node"]),
        cell("", &value["interface"]),
        cell("", &value["port"]),
        cell("", &value["protocol"]),
        cell("", &value["purpose"]),
    )
}

fn status(value: &Value, (unit, size): &Unit) -> String {
    let mut out = String::new();
    heading(&mut out, "Runtime");
    for (label, key) in [
        ("OS PID", "pid"),
        ("OS", "os"),
        ("Uptime (seconds)", "uptime"),
        ("Is under maintenance?", "is_under_maintenance"),
        ("Product", "product_name"),
        ("Product version", "product_version"),
        ("RabbitMQ version", "rabbitmq_version"),
        ("State", "state"),
    ] {
        line(&mut out, label, &value[key]);
    }
    list(&mut out, "Plugins", &value["active_plugins"], |item| cell("", item));
    heading(&mut out, "Data directory");
    line(&mut out, "Node data directory", &value["data_directory"]);
    line(&mut out, "Raft data directory", &value["raft_data_directory"]);
    list(&mut out, "Config files", &value["config_files"], |item| format!(" * {}", cell("", item)));
    list(&mut out, "Log file(s)", &value["log_files"], |item| format!(" * {}", cell("", item)));
    list(&mut out, "Alarms", &value["alarms"], |item| cell("", item));
    list(&mut out, "Tags", &value["tags"], |item| cell("", item));
    heading(&mut out, "Memory");
    if let Some(bytes) = value["memory"]["total"]["rss"].as_u64() {
        let _ = writeln!(out, "Total memory used: {:.4} {unit}", bytes as f64 / size);
    }
    heading(&mut out, "Free Disk Space");
    if let Some(bytes) = value["disk_free"].as_u64() {
        let _ = writeln!(out, "Free disk space: {:.4} {unit}", bytes as f64 / size);
    }
    heading(&mut out, "Totals");
    line(&mut out, "Connection count", &value["totals"]["connection_count"]);
    line(&mut out, "Queue count", &value["totals"]["queue_count"]);
    line(&mut out, "Virtual host count", &value["totals"]["virtual_host_count"]);
    list(&mut out, "Listeners", &value["listeners"], |item| {
        format!(
            "Interface: {}, port: {}, protocol: {}, purpose: {}",
            cell("", &item["interface"]),
            cell("", &item["port"]),
            cell("", &item["protocol"]),
            cell("", &item["purpose"]),
        )
    });
    out
}

fn cluster_status(value: &Value) -> String {
    let mut out = String::new();
    heading(&mut out, "Basics");
    line(&mut out, "Cluster name", &value["cluster_name"]);
    line(&mut out, "Total CPU cores available cluster-wide", &value["cpu_cores"]);
    line(&mut out, "Metadata leader", &value["metadata_leader"]);
    list(&mut out, "Cluster Tags", &value["cluster_tags"], |item| cell("", item));
    list(&mut out, "Disk Nodes", &value["disk_nodes"], |item| cell("", item));
    list(&mut out, "Running Nodes", &value["running_nodes"], |item| cell("", item));
    heading(&mut out, "Versions");
    for (node, version) in value["versions"].as_object().into_iter().flatten() {
        let _ =
            writeln!(out, "{node}: {} {}", cell("", &version["rabbitmq_name"]), cell("", &version["rabbitmq_version"]));
    }
    heading(&mut out, "Maintenance status");
    for (node, status) in value["maintenance_status"].as_object().into_iter().flatten() {
        let _ = writeln!(out, "Node: {node}, status: {}", cell("", status));
    }
    list(&mut out, "Alarms", &value["alarms"], |item| cell("", item));
    heading(&mut out, "Network Partitions");
    out.push_str("(none)\n");
    heading(&mut out, "Listeners");
    for listeners in value["listeners"].as_object().into_iter().flat_map(|map| map.values()) {
        for item in listeners.as_array().into_iter().flatten() {
            let _ = writeln!(out, "{}", listener(item));
        }
    }
    list(&mut out, "Feature flags", &value["feature_flags"], feature_flag);
    out
}

fn feature_flag(item: &Value) -> String {
    format!("Flag: {}, state: {}", cell("", &item["name"]), cell("", &item["state"]))
}
