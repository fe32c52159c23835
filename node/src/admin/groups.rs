//! What all nodes say of their members of quorum queues, in one question to each.

use std::collections::HashMap;
use std::sync::Arc;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use warren_broker::Broker;
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::log_store::MemberRole;

use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, members, peers, queues, row, unreadable};

/// The state of a member that leads.
pub const LEADER: &str = "leader";

/// The state of a member that was elected and does not lead yet.
pub const ELECTED: &str = "elected";

/// Whether a member in that state follows or leads.
pub fn takes_part(state: &str) -> bool {
    [LEADER, ELECTED, "follower"].contains(&state)
}

/// One node's member of a quorum queue, as that node tells it.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct LocalGroup {
    /// The queue's group.
    pub group: u64,
    /// As in `quorum_status`.
    pub state: String,
    /// Entries since the newest snapshot.
    pub log: u64,
    /// The effective machine version.
    pub effective: u16,
    /// The oldest and the newest machine version that it supports.
    pub supported: (u16, u16),
}

/// This node's members.
fn own(broker: &Broker) -> Vec<LocalGroup> {
    let statuses = broker.queues().groups().into_iter().filter_map(|group| broker.queues().status(group));
    statuses
        .map(|status| LocalGroup {
            group: status.group.0,
            state: queues::state_of(&status).to_owned(),
            log: status.last_index.saturating_sub(status.snapshot_index),
            effective: status.version.0,
            supported: (status.supported.0.0, status.supported.1.0),
        })
        .collect()
}

/// This node's part of [`everywhere`].
pub fn local(broker: &Broker) -> Outcome {
    let rows: Result<Vec<Row>, serde_json::Error> = own(broker)
        .into_iter()
        .map(|group| match serde_json::to_value(group)? {
            Value::Object(row) => Ok(row),
            _ => Ok(Row::new()),
        })
        .collect();
    Ok(Answer::Rows(rows.map_err(unreadable)?))
}

/// The members of all groups on all nodes that run.
pub async fn everywhere(broker: &Broker) -> HashMap<GroupId, Vec<(NodeId, LocalGroup)>> {
    let mut groups: HashMap<GroupId, Vec<(NodeId, LocalGroup)>> = HashMap::new();
    let mut add = |node: NodeId, group: LocalGroup| {
        groups.entry(GroupId(group.group)).or_default().push((node, group));
    };
    for (node, told) in peers::ask(broker, peers::all(broker), peers::LOCAL_GROUPS, &Request::default()).await {
        // A row that cannot be read is one that a newer node writes otherwise: it counts as not told.
        let readable = told.rows.into_iter().filter_map(|row| serde_json::from_value(Value::Object(row)).ok());
        readable.for_each(|group| add(node, group));
    }
    own(broker).into_iter().for_each(|group| add(broker.me(), group));
    groups
}

/// `versions`: the machine versions of quorum queues and of their members.
pub async fn versions(broker: &Broker, request: &Request) -> Outcome {
    let targets = members::matching(broker, request)?;
    let groups = everywhere(broker).await;
    let mut rows = Vec::new();
    for target in targets {
        let told = groups.get(&target.group).map(Vec::as_slice).unwrap_or_default();
        let mut nodes: Vec<(String, NodeId)> =
            target.members().iter().map(|m| (peers::name(broker, m.node), m.node)).collect();
        nodes.sort();
        for (name, node) in nodes {
            let member = told.iter().find(|(from, _)| *from == node).map(|(_, member)| member);
            rows.push(row([
                ("vhost", json!(target.vhost.as_ref())),
                ("name", json!(target.name.as_ref())),
                ("node", json!(name)),
                ("state", json!(member.map_or_else(|| queues::absent(broker, node), |m| m.state.as_str()))),
                ("effective", member.map_or(json!(""), |m| json!(m.effective))),
                ("supported", member.map_or(json!(""), |m| json!(format!("{}..{}", m.supported.0, m.supported.1)))),
            ]));
        }
    }
    Ok(Answer::Rows(rows))
}

/// `list_quarantined`: files of this node with queue data that is not used.
pub fn list_quarantined(broker: &Broker) -> Outcome {
    let files = broker.quarantined().map_err(|error| Refusal::new(Code::Unavailable, error.to_string()))?;
    let row = |(file, bytes): (std::path::PathBuf, u64)| {
        row([("file", json!(file.display().to_string())), ("bytes", json!(bytes))])
    };
    Ok(Answer::Rows(files.into_iter().map(row).collect()))
}

/// `check_for_quorum_queues_without_an_elected_leader`.
pub async fn check_leaders(broker: &Arc<Broker>, request: &Request) -> Outcome {
    let mut request = request.clone();
    let pattern = request.text("pattern").to_owned();
    request.args.insert("queue-pattern".to_owned(), Value::from(if pattern.is_empty() { ".*" } else { &pattern }));
    let mut targets = members::matching(broker, &request)?;
    if !request.flag("across-all-vhosts") {
        targets.retain(|t| *t.vhost == *request.vhost);
    }
    let groups = everywhere(broker).await;
    let led = |group: &GroupId| groups.get(group).is_some_and(|members| members.iter().any(|(_, m)| m.state == LEADER));
    let without: Vec<String> = targets
        .iter()
        .filter(|t| !led(&t.group))
        .map(|t| format!("queue '{}' in vhost '{}'", t.name, t.vhost))
        .collect();
    if without.is_empty() {
        let text = format!("Node {} reported all quorum queues as having responsive leader replicas", broker.name());
        return Ok(Answer::Value(json!({"text": text})));
    }
    Err(Refusal::new(Code::Unavailable, format!("Quorum queues without an elected leader:\n{}", without.join("\n"))))
}

/// `check_if_new_quorum_queue_replicas_have_finished_initial_sync`: whether a member on this node still catches up.
pub fn check_new_replicas(broker: &Broker) -> Outcome {
    let catching_up = |group: GroupId| {
        let status = broker.queues().status(group)?;
        let role = status.membership.member(status.me)?.role;
        matches!(role, MemberRole::Promotable { .. }).then_some(group)
    };
    let mut names: Vec<String> = broker
        .queues()
        .groups()
        .into_iter()
        .filter_map(catching_up)
        .filter_map(|group| broker.metadata().queue_of_group(group))
        .map(|q| format!("queue '{}' in vhost '{}'", q.name, q.vhost))
        .collect();
    if names.is_empty() {
        let text = format!("All quorum queue members on node {} have caught up", broker.name());
        return Ok(Answer::Value(json!({"text": text})));
    }
    names.sort();
    Err(Refusal::new(
        Code::Unavailable,
        format!("These still catch up on node {}:\n{}", broker.name(), names.join("\n")),
    ))
}
