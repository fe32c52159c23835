//! Maintenance mode, and the client listeners alone (spec: operations.md, sections 2.1, 2.7 and 6.4).

use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use tokio::time::Instant;
use warren_broker::{Broker, CloseReason};

use super::protocol::{Code, Refusal};
use super::state::NodeState;
use super::{Answer, Outcome, done};

/// What clients are told.
const REASON: &str = "Node was put into maintenance mode";
/// How long clients may take to say goodbye.
const GOODBYE: Duration = Duration::from_secs(5);

/// `drain`: once the node is marked, the rest is done as well as it can be.
pub async fn drain(state: &NodeState, broker: &Arc<Broker>) -> Outcome {
    let clients = state.clients()?;
    broker.begin_maintenance().await?;
    tracing::info!("the node is put into maintenance mode");
    clients.close().await;
    broker.sessions().close_all(&CloseReason::Operator(REASON.to_owned()));
    let deadline = Instant::now() + GOODBYE;
    while broker.sessions().connection_count() > 0 && Instant::now() < deadline {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let connections = broker.sessions().connection_count();
    let leaders = broker.hand_over().await;
    tracing::info!(moved = leaders.moved, kept = leaders.kept, connections, "the node is in maintenance mode");
    Ok(Answer::Value(json!({"moved": leaders.moved, "kept": leaders.kept, "connections": connections})))
}

/// `revive`.
pub async fn revive(state: &NodeState, broker: &Broker) -> Outcome {
    let clients = state.clients()?;
    broker.end_maintenance().await?;
    open(clients).await?;
    tracing::info!("the node is taken out of maintenance mode");
    done()
}

/// `suspend_listeners`: nobody can connect any more; connections stay.
pub async fn suspend(state: &NodeState) -> Outcome {
    state.clients()?.close().await;
    tracing::info!("the client listeners are suspended");
    done()
}

/// `resume_listeners`.
pub async fn resume(state: &NodeState) -> Outcome {
    open(state.clients()?).await?;
    tracing::info!("the client listeners are open again");
    done()
}

async fn open(clients: &crate::listeners::ClientListeners) -> Result<(), Refusal> {
    clients.open().await.map_err(|error| Refusal::new(Code::Unavailable, error.to_string()))
}
