//! Stopping and starting the app, and which cluster the node is part of (spec: operations.md, sections 2.1 and 5.5). See
//! [`crate::app`] for how an app is stopped.
//!
//! A verb answers before its process begins anew. Whoever asked then waits for the node to say that it has the state, and
//! the incarnation, of the answer.

use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::cluster::formation::Peer;
use warren_broker::cluster::identity_file::IdentityError;
use warren_broker::cluster::join::{JoinError, Joined, join};
use warren_broker::cluster::next_life::{self, NextLife};
use warren_raft::transport::{CallError, CallTarget};

use super::forget::RESETS;
use super::protocol::{AREA, Code, Refusal, Request};
use super::state::{NodeState, address};
use super::{Answer, Outcome};
use crate::app::{App, Wish};
use crate::config::settings::{NodeName, PEER_PORT};

/// How long the others may take to let a node go, unless its operator says.
const LEAVE: Duration = Duration::from_secs(300);

impl From<JoinError> for Refusal {
    fn from(error: JoinError) -> Self {
        let code = match error {
            JoinError::Itself(_) => Code::Internal,
            JoinError::Unreachable { .. }
            | JoinError::NoCluster(_)
            | JoinError::Clustered
            | JoinError::Incompatible(_) => Code::Unavailable,
            JoinError::NoMajority { .. } => Code::Timeout,
        };
        Refusal::new(code, error.to_string())
    }
}

fn not_written(error: IdentityError) -> Refusal {
    Refusal::new(Code::Internal, format!("it cannot be written down what the node is to be: {error}"))
}

/// What is waited for.
fn awaited(app: App, incarnation: u64) -> Outcome {
    let app = word(app);
    Ok(Answer::Value(json!({"app": app, "incarnation": incarnation, "pid": std::process::id()})))
}

/// The state of an app in an answer.
pub fn word(app: App) -> &'static str {
    match app {
        App::Started => "started",
        App::Stopped => "stopped",
    }
}

/// `stop_app`.
pub fn stop(state: &NodeState) -> Outcome {
    if state.app == App::Started {
        tracing::info!("an operator stops the node's app");
        if let Ok(broker) = state.broker() {
            // So that it can be told to leave its cluster while it has no app.
            next_life::store_contacts(&state.data(), &all_nodes(broker)).map_err(not_written)?;
        }
        state.wish(Wish::Again(App::Stopped));
    }
    awaited(App::Stopped, state.identity.incarnation)
}

/// `start_app`.
pub fn start(state: &NodeState) -> Outcome {
    if state.app == App::Stopped {
        tracing::info!("an operator starts the node's app");
        state.wish(Wish::Again(App::Started));
    }
    awaited(App::Started, state.identity.incarnation)
}

fn all_nodes(broker: &Broker) -> Vec<Peer> {
    let nodes = broker.metadata().nodes();
    nodes.iter().map(|node| Peer { name: node.name.to_string(), address: node.address.clone() }).collect()
}

/// The other nodes of the node's cluster, as well as can be known; none: it is alone.
fn others(state: &NodeState) -> Vec<Peer> {
    let mut known = match (state.broker(), &state.identity.cluster) {
        (Ok(broker), _) => all_nodes(broker),
        (Err(_), None) => return Vec::new(),
        (Err(_), Some(cluster)) => {
            let founders = cluster.founders.iter();
            let founders = || founders.map(|f| Peer { name: f.name.clone(), address: f.address.clone() }).collect();
            Some(next_life::contacts(&state.data())).filter(|noted| !noted.is_empty()).unwrap_or_else(founders)
        }
    };
    let own = state.configuration.node.as_str();
    known.retain(|peer| peer.name != own);
    known
}

/// `reset`: leaves the cluster, and deletes all data.
pub async fn reset(state: &NodeState, request: &Request) -> Outcome {
    if state.app != App::Stopped {
        let text = format!("the app of node {} must be stopped for this: see stop_app", state.configuration.node);
        return Err(Refusal::new(Code::WrongState, text));
    }
    let others = others(state);
    if !others.is_empty() {
        leave(state, &others, request).await?;
    }
    let next = NextLife::blank(state.configuration.node.as_str());
    next.store(&state.data()).map_err(not_written)?;
    tracing::info!("an operator resets the node");
    state.wish(Wish::Again(App::Stopped));
    awaited(App::Stopped, next.incarnation())
}

/// Has one of the others take this node out of the cluster.
async fn leave(state: &NodeState, others: &[Peer], request: &Request) -> Result<(), Refusal> {
    let transport = state.transport()?;
    let time = match request.timeout_ms {
        0 => LEAVE,
        ms => Duration::from_millis(ms).min(LEAVE),
    };
    let mut why = "no other node was asked".to_owned();
    for peer in others {
        let mut forget = Request { node: peer.name.clone(), ..Request::default() };
        forget.args.insert("member".to_owned(), json!(state.configuration.node.as_str()));
        forget.args.insert(RESETS.to_owned(), Value::Bool(true));
        forget.timeout_ms = u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let payload = Bytes::from(serde_json::to_vec(&forget).unwrap_or_default());
        let method = format!("{AREA}forget_cluster_node");
        let asked = transport.call(CallTarget::Address(peer.address.clone()), &method, payload, time).await;
        let answer = match asked {
            Ok(replies) => replies.one().await,
            Err(error) => Err(error),
        };
        match answer {
            Ok(_) => return Ok(()),
            // It has left already: an earlier attempt ended here.
            Err(CallError::Failed { message, .. }) if message.starts_with("not_a_cluster_node") => return Ok(()),
            Err(CallError::Failed { code, message }) if Code::from_word(&code) == Code::Timeout => {
                return Err(Refusal::new(Code::Timeout, message));
            }
            Err(error) => why = format!("{}: {error}", peer.name),
        }
    }
    Err(Refusal::new(Code::Unavailable, format!("the cluster did not let the node go, and nothing was deleted: {why}")))
}

/// `join_cluster`: the node begins anew as a member of another one's cluster.
pub async fn join_cluster(state: &NodeState, request: &Request) -> Outcome {
    let member = named(state, request.text("member"))?;
    let transport = state.transport()?;
    let (me, alone) = (state.own(), others(state).is_empty());
    let timeout = state.configuration.settings.metadata.timeout;
    let mut identity = state.identity.clone();
    if let Ok(broker) = state.broker() {
        identity.cluster = Some(broker.cluster().clone());
    }
    let flags = state.blank_flags.inventory().as_reset();
    match join(&identity, alone, &flags, &me, &member, timeout, &transport).await? {
        Joined::Already => {
            Ok(Answer::Value(json!({"text": "already_member: the node is already a member of this cluster"})))
        }
        Joined::Now(next) => {
            next.store(&state.data()).map_err(not_written)?;
            tracing::info!(member = member.name, "an operator has the node join a cluster");
            state.wish(Wish::Again(state.app));
            awaited(state.app, next.incarnation())
        }
    }
}

/// A node as an operator names it: `name`, `name@host`, or `name@host:port` where its peer port is not the usual one.
fn named(state: &NodeState, text: &str) -> Result<Peer, Refusal> {
    let own = &state.configuration.node;
    let (name, port) = match text.rsplit_once(':').map(|(name, port)| (name, port.parse::<u16>())) {
        Some((name, Ok(port))) => (name, Some(port)),
        _ => (text, None),
    };
    let name = NodeName::parse(name, own.host()).map_err(|why| Refusal::new(Code::Invalid, why))?;
    let known = || {
        let seeds = &state.configuration.settings.cluster.seeds;
        let seed = seeds.iter().find(|seed| seed.node == name).map(|seed| address(name.host(), seed.port));
        let told = || others(state).into_iter().find(|peer| peer.name == name.as_str()).map(|peer| peer.address);
        seed.or_else(told)
    };
    let address = match port {
        Some(port) => address(name.host(), port),
        None => known().unwrap_or_else(|| address(name.host(), PEER_PORT)),
    };
    Ok(Peer { name: name.to_string(), address })
}
