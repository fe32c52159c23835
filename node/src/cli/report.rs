//! `report`: what somebody who helps would ask for, in one text. Secrets are in none of it.

use serde_json::Value;

use super::format::{self, Formatter};
use super::verbs::{self, Kind};
use super::{Call, Tool, document};
use crate::admin::protocol::Row;
use crate::exit::Exit;
use crate::output::print;

/// Documents that come first.
const DOCUMENTS: &[&str] = &["status", "cluster_status", "environment", "memory_breakdown"];
/// Lists of the node and its cluster.
const OF_NODE: &[&str] = &["list_connections", "list_channels", "list_users", "list_vhosts", "list_global_parameters"];
/// Lists of each virtual host.
const OF_VHOST: &[&str] = &[
    "list_queues",
    "list_exchanges",
    "list_bindings",
    "list_consumers",
    "list_permissions",
    "list_topic_permissions",
    "list_policies",
    "list_operator_policies",
    "list_parameters",
];

/// Asks for everything and prints it as it comes. What cannot be had is said in its place.
pub async fn report(call: &Call) -> Exit {
    for name in DOCUMENTS {
        match call.call(name, call.timeout).await {
            Ok(answer) => match answer.refusal {
                None => {
                    let unit = document::unit("").unwrap_or(("bytes", 1.0));
                    section(
                        &format!("{name} of node {}", call.target.node),
                        &document::sections(name, &answer.value, &unit),
                    );
                }
                Some(refusal) => section(name, &format!("Error: {}\n", refusal.message)),
            },
            // Nobody is there: there is nothing to report.
            Err(failure) => return call.failed(&failure),
        }
    }
    for name in OF_NODE {
        list(call, name, "").await;
    }
    let vhosts = match call.call("list_vhosts", call.timeout).await {
        Ok(answer) => answer.rows,
        Err(failure) => return call.failed(&failure),
    };
    for vhost in vhosts.iter().filter_map(|row: &Row| row.get("name").and_then(Value::as_str)) {
        for name in OF_VHOST {
            list(call, name, vhost).await;
        }
    }
    Exit::Ok
}

async fn list(call: &Call, name: &'static str, vhost: &str) {
    let title = if vhost.is_empty() { name.to_owned() } else { format!("{name} of vhost {vhost}") };
    let Some(Kind::Listing { columns, .. }) = verbs::find(Tool::Ctl, name).map(|verb| verb.kind) else { return };
    let columns: Vec<String> = columns.iter().map(|column| (*column).to_owned()).collect();
    let text = match call.list(name, vhost, &columns).await {
        Ok(answer) => {
            let rows = format::rows(Formatter::Table, &columns, &answer.rows, true);
            match answer.refusal {
                None => rows,
                Some(refusal) => format!("{rows}Error: {}\n", refusal.message),
            }
        }
        Err(failure) => format!("Error: {failure:?}\n"),
    };
    section(&title, &text);
}

fn section(title: &str, text: &str) {
    print(&format!("\n{title}\n{}\n{text}", "-".repeat(title.chars().count())));
}
