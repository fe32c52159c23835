//! Questions from one node to the others.

use std::time::Duration;

use bytes::Bytes;
use serde_json::Value;
use tokio::task::JoinSet;
use warren_broker::Broker;
use warren_proto::ids::NodeId;
use warren_raft::transport::CallTarget;

use super::protocol::{AREA, Reply, Request, Row};

/// A node's connections.
pub const LOCAL_CONNECTIONS: &str = "local_connections";
/// A node's channels.
pub const LOCAL_CHANNELS: &str = "local_channels";
/// Closes connections of a node.
pub const LOCAL_CLOSE: &str = "local_close";
/// A node's member of a Raft group.
pub const LOCAL_MEMBER: &str = "local_member";
/// What a node tells about itself for `cluster_status`.
pub const LOCAL_FACTS: &str = "local_facts";

/// How long other nodes may take.
const PEER: Duration = Duration::from_secs(5);

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

/// All nodes of the cluster.
pub fn all(broker: &Broker) -> Vec<NodeId> {
    broker.metadata().nodes().iter().map(|node| node.id).collect()
}

/// A node's name; its number if the metadata does not have it yet.
pub fn name(broker: &Broker, node: NodeId) -> String {
    let nodes = broker.metadata().nodes();
    nodes.iter().find(|known| known.id == node).map_or_else(|| node.to_string(), |known| known.name.to_string())
}
