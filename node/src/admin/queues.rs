//! Queues, their consumers, and the Raft groups behind them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use warren_broker::field_json::encoded;
use warren_broker::policy::merged;
use warren_broker::queue::protocol::{ConsumerStats, QueueStats};
use warren_broker::{Broker, ConsumerStatus};
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{Policy, Queue, QueueKind, Stored};
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::driver::{GroupStatus, StopReason};
use warren_raft::log_store::MemberRole;
use warren_raft::machine::Role;

use super::clients::pid_of;
use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, Progress, at_once, no_vhost, peers, row, vhosts};

/// Queues asked at once.
const AT_ONCE: usize = 64;
/// How long one queue may take to answer.
const QUEUE: Duration = Duration::from_secs(10);

/// Columns that only the queue itself knows.
const LIVE: &[&str] = &[
    "messages",
    "messages_ready",
    "messages_unacknowledged",
    "messages_persistent",
    "message_bytes",
    "message_bytes_ready",
    "message_bytes_unacknowledged",
    "message_bytes_persistent",
    "messages_ready_high",
    "messages_ready_normal",
    "messages_ready_returned",
    "messages_by_priority",
    "messages_active_priorities",
    "messages_delayed",
    "next_delayed_at",
    "last_delayed_at",
    "messages_dlx",
    "message_bytes_dlx",
    "publishers",
    "delivery_limit",
    "single_active_consumer_tag",
    "single_active_consumer_pid",
    "consumers",
    "state",
];

/// What is known of a queue that was asked.
enum Asked {
    /// Its leader answered.
    Stats(QueueStats),
    /// It cannot answer: too few of its nodes run.
    Down,
    /// It should answer and did not.
    Silent,
}

fn targets(broker: &Broker, vhost: &str) -> Result<Vec<Arc<QueueTarget>>, Refusal> {
    let view = broker.metadata().projections().load();
    let mut targets: Vec<_> = view.vhost(vhost).ok_or_else(|| no_vhost(vhost))?.queues().cloned().collect();
    targets.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(targets)
}

pub(super) fn is_up(broker: &Broker, node: NodeId) -> bool {
    node == broker.me() || broker.links().is_up(node)
}

/// Nodes that hold the queue, and how many of them run.
fn holders(broker: &Broker, target: &QueueTarget) -> (Vec<NodeId>, Vec<NodeId>) {
    let all: Vec<NodeId> = match target.kind {
        QueueKind::Classic => vec![target.home],
        QueueKind::Quorum => target.members().iter().map(|member| member.node).collect(),
    };
    let online = all.iter().copied().filter(|node| is_up(broker, *node)).collect();
    (all, online)
}

fn can_answer(broker: &Broker, target: &QueueTarget) -> bool {
    let (all, online) = holders(broker, target);
    online.len() > all.len() / 2
}

/// Asks queues, at most [`AT_ONCE`] at a time, and keeps their order.
async fn ask_all(broker: &Arc<Broker>, targets: &[Arc<QueueTarget>], timeout: Duration) -> Vec<Asked> {
    let nobody = Progress::none();
    let asked = at_once(AT_ONCE, targets.iter().cloned(), &nobody, |target| {
        let broker = Arc::clone(broker);
        async move {
            if !can_answer(&broker, &target) {
                return Asked::Down;
            }
            broker.queue_stats(&target, timeout).await.map_or(Asked::Silent, Asked::Stats)
        }
    });
    asked.await.into_iter().map(|asked| asked.unwrap_or(Asked::Silent)).collect()
}

fn patience(request: &Request) -> Duration {
    let asked = Duration::from_millis(request.timeout_ms);
    if asked.is_zero() { QUEUE } else { (asked * 3 / 4).min(QUEUE) }
}

/// `list_queues`.
pub async fn list(broker: &Arc<Broker>, request: &Request) -> Outcome {
    let mut targets = targets(broker, &request.vhost)?;
    if request.flag("local") {
        targets.retain(|target| broker.leader_of(target) == Some(broker.me()));
    }
    if request.flag("online") {
        targets.retain(|target| can_answer(broker, target));
    }
    if request.flag("offline") {
        targets.retain(|target| !can_answer(broker, target));
    }
    let live = LIVE.iter().any(|column| request.wants(column));
    let answers = if live { ask_all(broker, &targets, patience(request)).await } else { Vec::new() };
    let mut rows = Vec::with_capacity(targets.len());
    let mut silent = Vec::new();
    for (index, target) in targets.iter().enumerate() {
        let asked = answers.get(index);
        if matches!(asked, Some(Asked::Silent)) {
            silent.push(target.name.to_string());
            continue;
        }
        rows.push(queue_row(broker, target, asked));
    }
    if silent.is_empty() {
        Ok(Answer::Rows(rows))
    } else {
        let text = format!("{} queues did not answer in time: {}", silent.len(), silent.join(", "));
        Ok(Answer::Partly(rows, Refusal::new(Code::Timeout, text)))
    }
}

/// `list_unresponsive_queues`: those that have enough of their nodes and do not answer.
pub async fn list_unresponsive(broker: &Arc<Broker>, request: &Request) -> Outcome {
    let targets = targets(broker, &request.vhost)?;
    let answers = ask_all(broker, &targets, patience(request)).await;
    let silent = targets.iter().zip(&answers).filter(|(_, asked)| matches!(asked, Asked::Silent));
    Ok(Answer::Rows(silent.map(|(target, asked)| queue_row(broker, target, Some(asked))).collect()))
}

/// What a column has of a policy.
pub(super) fn name_of(policy: &Option<Arc<Stored<Policy>>>) -> Value {
    policy.as_ref().map_or(Value::Null, |policy| json!(policy.name.as_ref()))
}

fn queue_row(broker: &Broker, target: &QueueTarget, asked: Option<&Asked>) -> Row {
    let record = target.record();
    let (all, online) = holders(broker, target);
    let names = |nodes: &[NodeId]| -> Value { nodes.iter().map(|node| peers::name(broker, *node)).collect() };
    let leader = broker.leader_of(target).filter(|node| is_up(broker, *node));
    let owner = record.exclusive_owner.as_ref();
    let policies = broker.metadata().queue_policies(&target.vhost, &target.name, target.kind);
    let mut row = row([
        ("name", json!(target.name.as_ref())),
        ("durable", json!(record.durable)),
        ("auto_delete", json!(record.auto_delete)),
        ("arguments", encoded(&record.arguments)),
        ("policy", name_of(&policies.policy)),
        ("operator_policy", name_of(&policies.operator_policy)),
        ("effective_policy_definition", Value::Object(merged(&policies))),
        ("pid", json!(pid_of(&peers::name(broker, leader.unwrap_or(target.home)), 0, target.group.0))),
        (
            "owner_pid",
            owner.map_or(Value::Null, |owner| {
                json!(pid_of(&peers::name(broker, owner.node), owner.incarnation, owner.connection))
            }),
        ),
        ("exclusive", json!(owner.is_some())),
        ("type", json!(target.kind.name())),
        ("leader", leader.map_or(Value::Null, |node| json!(peers::name(broker, node)))),
        ("members", names(&all)),
        ("online", names(&online)),
    ]);
    match asked {
        Some(Asked::Stats(stats)) => {
            row.extend(counts(broker, target.kind, stats));
            row.insert("state".to_owned(), json!("running"));
        }
        _ => {
            let state = match (target.kind, can_answer(broker, target)) {
                (_, true) => "running",
                (QueueKind::Classic, false) => "down",
                (QueueKind::Quorum, false) => "minority",
            };
            row.insert("state".to_owned(), json!(state));
        }
    }
    row
}

/// What the queue itself knows.
fn counts(broker: &Broker, kind: QueueKind, stats: &QueueStats) -> Row {
    let messages = stats.ready + stats.unacknowledged + stats.delayed + stats.dead;
    let bytes = stats.ready_bytes + stats.unacknowledged_bytes + stats.delayed_bytes + stats.dead_bytes;
    let active = stats.consumers.iter().filter(|consumer| is_active(consumer.status)).count();
    let waiting = stats.consumers.iter().filter(|consumer| consumer.status == ConsumerStatus::Waiting).count();
    let mut counts = row([
        ("messages", json!(messages)),
        ("messages_ready", json!(stats.ready)),
        ("messages_unacknowledged", json!(stats.unacknowledged)),
        ("messages_persistent", json!(messages)),
        ("message_bytes", json!(bytes)),
        ("message_bytes_ready", json!(stats.ready_bytes)),
        ("message_bytes_unacknowledged", json!(stats.unacknowledged_bytes)),
        ("message_bytes_persistent", json!(bytes)),
        ("publishers", json!(stats.publishers)),
        ("consumers", json!(active + waiting)),
    ]);
    if kind == QueueKind::Quorum {
        let high: u64 = stats.by_priority.iter().filter(|(priority, _)| *priority >= 5).map(|(_, n)| n).sum();
        let by_priority: serde_json::Map<String, Value> =
            stats.by_priority.iter().map(|(priority, n)| (priority.to_string(), json!(n))).collect();
        let single = stats.consumers.iter().find(|consumer| consumer.status == ConsumerStatus::SingleActive);
        counts.extend(row([
            ("messages_ready_high", json!(high)),
            ("messages_ready_normal", json!(stats.ready.saturating_sub(high + stats.returned))),
            ("messages_ready_returned", json!(stats.returned)),
            ("messages_by_priority", Value::Object(by_priority)),
            ("messages_active_priorities", json!(stats.by_priority.len())),
            ("messages_delayed", json!(stats.delayed)),
            ("next_delayed_at", json!(stats.delayed_until.map(|(next, _)| next))),
            ("last_delayed_at", json!(stats.delayed_until.map(|(_, last)| last))),
            ("messages_dlx", json!(stats.dead)),
            ("message_bytes_dlx", json!(stats.dead_bytes)),
            ("delivery_limit", stats.delivery_limit.map_or(json!("unlimited"), |limit| json!(limit))),
            ("single_active_consumer_tag", json!(single.map(|consumer| String::from_utf8_lossy(&consumer.tag)))),
            ("single_active_consumer_pid", json!(single.map(|consumer| channel_pid(broker, consumer)))),
        ]));
    }
    counts
}

fn channel_pid(broker: &Broker, consumer: &ConsumerStats) -> String {
    let session = &consumer.session;
    pid_of(&peers::name(broker, session.node), session.incarnation, session.id)
}

fn is_active(status: ConsumerStatus) -> bool {
    matches!(status, ConsumerStatus::Up | ConsumerStatus::SingleActive)
}

/// A consumer's status in RabbitMQ's words.
fn activity(status: ConsumerStatus) -> &'static str {
    match status {
        ConsumerStatus::Up => "up",
        ConsumerStatus::SingleActive => "single_active",
        ConsumerStatus::Waiting => "waiting",
        ConsumerStatus::Suspected => "suspected_down",
        ConsumerStatus::TimedOut => "timeout",
    }
}

/// `list_consumers`.
pub async fn list_consumers(broker: &Arc<Broker>, request: &Request) -> Outcome {
    let targets = targets(broker, &request.vhost)?;
    let answers = ask_all(broker, &targets, patience(request)).await;
    let mut rows = Vec::new();
    for (target, asked) in targets.iter().zip(&answers) {
        let Asked::Stats(stats) = asked else { continue };
        for consumer in &stats.consumers {
            rows.push(row([
                ("queue_name", json!(target.name.as_ref())),
                ("channel_pid", json!(channel_pid(broker, consumer))),
                ("consumer_tag", json!(String::from_utf8_lossy(&consumer.tag))),
                ("ack_required", json!(consumer.ack_required)),
                ("prefetch_count", json!(consumer.prefetch)),
                ("active", json!(is_active(consumer.status))),
                ("activity_status", json!(activity(consumer.status))),
                (
                    "arguments",
                    if consumer.priority == 0 { json!({}) } else { json!({"x-priority": consumer.priority}) },
                ),
            ]));
        }
    }
    Ok(Answer::Rows(rows))
}

pub(super) fn find(broker: &Broker, request: &Request) -> Result<Arc<QueueTarget>, Refusal> {
    let (vhost, name) = (&request.vhost, request.text("queue"));
    vhosts::find(broker, vhost)?;
    broker
        .metadata()
        .queue_target(vhost, name)
        .ok_or_else(|| Refusal::new(Code::NotFound, format!("Queue '{name}' in vhost '{vhost}' does not exist")))
}

/// `purge_queue`.
pub async fn purge(broker: &Broker, request: &Request) -> Outcome {
    let target = find(broker, request)?;
    let messages = broker.purge(&target).await?;
    Ok(Answer::Value(json!({"messages": messages})))
}

/// `delete_queue`.
pub async fn delete(broker: &Broker, request: &Request) -> Outcome {
    let target = find(broker, request)?;
    let careful = request.flag("if-empty") || request.flag("if-unused");
    let stats = match broker.queue_stats(&target, patience(request)).await {
        Ok(stats) => stats,
        // A queue without a leader can still be deleted, unless its content decides.
        Err(error) if careful => return Err(error.into()),
        Err(_) => QueueStats::default(),
    };
    let (name, vhost) = (&target.name, &target.vhost);
    if request.flag("if-empty") && stats.ready > 0 {
        return Err(Refusal::new(Code::Invalid, format!("Queue '{name}' in vhost '{vhost}' is not empty")));
    }
    if request.flag("if-unused") && !stats.consumers.is_empty() {
        return Err(Refusal::new(Code::Invalid, format!("Queue '{name}' in vhost '{vhost}' is in use")));
    }
    let record: Arc<Stored<Queue>> = target.record();
    broker.delete_queue(&record).await?;
    Ok(Answer::Value(json!({"messages": stats.ready})))
}

/// `quorum_status`: every member, as its own node sees it.
pub async fn quorum_status(broker: &Broker, request: &Request) -> Outcome {
    let target = find(broker, request)?;
    if target.kind != QueueKind::Quorum {
        return Err(Refusal::new(Code::Invalid, format!("queue '{}' is not a quorum queue", target.name)));
    }
    let members = target.members().iter().map(|member| member.node).collect();
    let status = group_status(broker, target.group, members).await?;
    let Answer::Rows(mut rows) = status else { return Ok(status) };
    // Beside the columns of the table, with the member that knows: how many messages there are of which kind.
    if let Some(leader) = rows.iter_mut().find(|row| row.get("Raft State") == Some(&json!("leader")))
        && let Ok(stats) = broker.queue_stats(&target, patience(request)).await
    {
        leader.extend(counts(broker, target.kind, &stats));
    }
    Ok(Answer::Rows(rows))
}

/// The members of a Raft group, in order of their nodes' names.
pub async fn group_status(broker: &Broker, group: GroupId, members: BTreeSet<NodeId>) -> Outcome {
    let mut request = Request::default();
    request.args.insert("group".to_owned(), Value::from(group.0));
    let answers = peers::ask(broker, members.iter().copied().collect(), peers::LOCAL_MEMBER, &request).await;
    let mut rows: Vec<Row> = Vec::new();
    for node in members {
        let told = answers.iter().find(|(from, _)| *from == node).and_then(|(_, told)| told.rows.first().cloned());
        let own = (node == broker.me()).then(|| member_row(broker, group)).flatten();
        let mut found = told.or(own).unwrap_or_else(|| row([("Raft State", json!(absent(broker, node)))]));
        found.insert("Node Name".to_owned(), json!(peers::name(broker, node)));
        rows.push(found);
    }
    rows.sort_by(|a, b| a["Node Name"].as_str().cmp(&b["Node Name"].as_str()));
    Ok(Answer::Rows(rows))
}

/// This node's member of a group, as another node asked.
pub fn local_member(broker: &Broker, request: &Request) -> Outcome {
    let group = request.args.get("group").and_then(Value::as_u64).unwrap_or_default();
    Ok(Answer::Rows(member_row(broker, GroupId(group)).into_iter().collect()))
}

fn member_row(broker: &Broker, group: GroupId) -> Option<Row> {
    let status = if group == GroupId::METADATA {
        broker.metadata().host().and_then(|host| host.status(group))
    } else {
        broker.queues().status(group)
    }?;
    Some(status_row(broker, &status))
}

/// The state of a member that does not tell one.
pub(super) fn absent(broker: &Broker, node: NodeId) -> &'static str {
    if is_up(broker, node) { "noproc" } else { "nodedown" }
}

/// The state of a member, as `quorum_status` has it.
pub(super) fn state_of(status: &GroupStatus) -> &'static str {
    match (&status.stopped, status.role) {
        (Some(StopReason::BlockedOnVersion(_)), _) => "blocked_on_version",
        (Some(_), _) => "stopped",
        (None, Role::Leader) => "leader",
        (None, Role::Elected) => "elected",
        (None, Role::Follower) => "follower",
    }
}

fn status_row(broker: &Broker, status: &GroupStatus) -> Row {
    let own = status.membership.members.iter().find(|member| member.uid == status.me);
    let membership = match own.map(|member| member.role) {
        Some(MemberRole::Voter) => "voter",
        Some(MemberRole::Promotable { .. }) => "promotable",
        Some(MemberRole::NonVoter) => "non_voter",
        None => "unknown",
    };
    let state = state_of(status);
    row([
        ("Node Name", json!(broker.name())),
        ("Raft State", json!(state)),
        ("Membership", json!(membership)),
        ("Last Log Index", json!(status.last_index)),
        ("Last Written", json!(status.last_written)),
        ("Last Applied", json!(status.applied)),
        ("Commit Index", json!(status.commit)),
        ("Snapshot Index", json!(status.snapshot_index)),
        ("Term", json!(status.term)),
        ("Machine Version", json!(status.version.0)),
        // Index up to which its disk lost what the member had acknowledged: it does not vote until it has it again.
        ("lost_up_to", json!(status.amnesia)),
        ("supported_machine_version", json!(status.supported.1.0)),
    ])
}
