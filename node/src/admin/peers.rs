//! Questions from one node to the others.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::task::JoinSet;
use warren_broker::Broker;
use warren_proto::ids::NodeId;
use warren_raft::transport::{CallError, CallTarget};

use super::protocol::{AREA, Code, Refusal, Reply, Request, Row};
use super::{Answer, Outcome, Progress, unreadable};

/// A node's connections.
pub const LOCAL_CONNECTIONS: &str = "local_connections";
/// A node's channels.
pub const LOCAL_CHANNELS: &str = "local_channels";
/// Closes connections of a node.
pub const LOCAL_CLOSE: &str = "local_close";
/// A node's member of a Raft group.
pub const LOCAL_MEMBER: &str = "local_member";
/// A node's members of quorum queues.
pub const LOCAL_GROUPS: &str = "local_groups";
/// Has a node's member of a group take a snapshot.
pub const LOCAL_CHECKPOINT: &str = "local_checkpoint";
/// What a node tells about itself for `cluster_status`.
pub const LOCAL_FACTS: &str = "local_facts";
/// Whether a node gets signs of life from another one.
pub const LOCAL_SEES: &str = "local_sees";

/// How long other nodes may take.
const PEER: Duration = Duration::from_secs(5);

/// How long a verb may take that another node carries out, unless the caller says.
const FORWARDED: Duration = Duration::from_secs(300);

/// What a node answered.
#[derive(Debug, Default)]
pub struct Told {
    /// A value.
    pub value: Value,
    /// Rows.
    pub rows: Vec<Row>,
}

/// Asks the given nodes at once, this one not among them. Those that do not answer in time are left out.
pub async fn ask(broker: &Broker, nodes: Vec<NodeId>, verb: &str, request: &Request) -> Vec<(NodeId, Told)> {
    let request = Request { node: String::new(), ..request.clone() };
    let payload = Bytes::from(serde_json::to_vec(&request).unwrap_or_default());
    let mut asking = JoinSet::new();
    for node in nodes {
        if node == broker.me() || !broker.links().is_up(node) {
            continue;
        }
        let (transport, payload, method) = (broker.transport().clone(), payload.clone(), format!("{AREA}{verb}"));
        asking.spawn(async move {
            let replies = transport.call(CallTarget::Node(node), &method, payload, PEER).await.ok()?;
            let mut told = Told::default();
            for bytes in replies.collect().await.ok()? {
                match serde_json::from_slice(&bytes).ok()? {
                    Reply::Ok(value) => told.value = value,
                    Reply::Rows(rows) => told.rows.extend(rows),
                    Reply::Progress { .. } | Reply::Text(_) => {}
                }
            }
            Some((node, told))
        });
    }
    let mut answers = Vec::new();
    while let Some(answer) = asking.join_next().await {
        answers.extend(answer.ok().flatten());
    }
    answers
}

/// Has another node carry out a verb, with its answer and its refusal.
pub(super) async fn forward(
    broker: &Broker,
    node: NodeId,
    verb: &str,
    request: &Request,
    progress: &Progress,
) -> Outcome {
    let request = Request { node: String::new(), ..request.clone() };
    let payload = Bytes::from(serde_json::to_vec(&request).map_err(unreadable)?);
    let time = if request.timeout_ms == 0 { FORWARDED } else { Duration::from_millis(request.timeout_ms) };
    let refused = |error: CallError| match error {
        CallError::Failed { code, message } => Refusal::new(Code::from_word(&code), message),
        other => Refusal::new(Code::Unavailable, format!("{}: {other}", name(broker, node))),
    };
    let replies = broker.transport().call(CallTarget::Node(node), &format!("{AREA}{verb}"), payload, time).await;
    let mut rows = Vec::new();
    let mut replies = replies.map_err(refused)?;
    while let Some(bytes) = replies.next().await {
        match serde_json::from_slice(&bytes.map_err(refused)?).map_err(unreadable)? {
            Reply::Ok(value) => return Ok(Answer::Value(value)),
            Reply::Rows(more) => rows.extend::<Vec<Row>>(more),
            Reply::Text(_) => {}
            Reply::Progress { done, total } => progress.tell(done, total).await,
        }
    }
    Ok(Answer::Rows(rows))
}

/// All nodes of the cluster.
pub fn all(broker: &Broker) -> Vec<NodeId> {
    broker.metadata().nodes().iter().map(|node| node.id).collect()
}

/// A node's name; its number if the metadata does not have it yet.
pub fn name(broker: &Broker, node: NodeId) -> String {
    let nodes = broker.metadata().nodes();
    nodes.iter().find(|known| known.id == node).map_or_else(|| node.to_string(), |known| known.name.to_string())
}
