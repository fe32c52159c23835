//! The server side of the command line: each verb, carried out by this node.
//!
//! [`protocol`] is what travels; [`state::NodeState`] is what the verbs work on. A verb that needs other nodes asks them
//! with a verb of its own (`local_...`), so that each node speaks only for itself.

mod clients;
mod feature_flags;
mod field_json;
mod forget;
mod groups;
mod members;
mod metrics;
mod node;
mod parameters;
mod peers;
mod policies;
pub mod protocol;
mod queues;
pub mod state;
mod topology;
mod users;
mod vhosts;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::sync::Semaphore;
use tokio::task::JoinSet;
use warren_broker::BrokerError;
use warren_broker::metadata::WriteError;
use warren_broker::policy::Kind;
use warren_metastore::tree::{AbortCode, MetaError};
use warren_raft::transport::{CallHandler, IncomingCall, Replies};

use protocol::{AREA, Code, PROGRESS, Refusal, Reply, Request, Row};
use state::NodeState;

/// Rows in one message of an answer.
const ROWS: usize = 500;

/// What a verb gives.
type Outcome = Result<Answer, Refusal>;

/// A verb's answer, before it is cut into messages.
enum Answer {
    /// A value.
    Value(Value),
    /// A listing.
    Rows(Vec<Row>),
    /// A listing that is not complete, and why.
    Partly(Vec<Row>, Refusal),
}

/// Answers calls of the command line.
pub struct Admin(pub Arc<NodeState>);

impl CallHandler for Admin {
    fn call(&self, call: IncomingCall, replies: Replies) -> Pin<Box<dyn Future<Output = ()> + Send + '_>> {
        Box::pin(async move {
            let Some(verb) = call.method.strip_prefix(AREA) else {
                replies.fail(Code::Unavailable.word(), format!("unknown method `{}`", call.method)).await;
                return;
            };
            let request: Request = match serde_json::from_slice(&call.payload) {
                Ok(request) => request,
                Err(error) => {
                    replies.fail(Code::Invalid.word(), format!("the request cannot be read: {error}")).await;
                    return;
                }
            };
            let own = self.0.configuration.node.as_str();
            if !request.node.is_empty() && request.node != own {
                let text = format!("node '{}' is not there: '{own}' answers at its address", request.node);
                replies.fail(Code::Unavailable.word(), text).await;
                return;
            }
            let progress = Progress::new(&request, &replies);
            match answer(&self.0, verb, &request, &progress).await {
                Ok(Answer::Value(value)) => {
                    send(&replies, &Reply::Ok(value)).await;
                }
                Ok(Answer::Rows(rows)) => send_rows(&replies, rows).await,
                Ok(Answer::Partly(rows, refusal)) => {
                    send_rows(&replies, rows).await;
                    replies.fail(refusal.code.word(), refusal.message).await;
                }
                Err(refusal) => replies.fail(refusal.code.word(), refusal.message).await,
            }
        })
    }
}

async fn send_rows(replies: &Replies, rows: Vec<Row>) {
    if rows.is_empty() {
        send(replies, &Reply::Rows(rows)).await;
        return;
    }
    let mut rest = rows;
    while !rest.is_empty() {
        let later = rest.split_off(rest.len().min(ROWS));
        if !send(replies, &Reply::Rows(rest)).await {
            return;
        }
        rest = later;
    }
}

async fn send(replies: &Replies, reply: &Reply) -> bool {
    match serde_json::to_vec(reply) {
        Ok(bytes) => replies.send(bytes).await,
        Err(error) => {
            replies.fail(Code::Internal.word(), error.to_string()).await;
            false
        }
    }
}

async fn answer(state: &Arc<NodeState>, verb: &str, request: &Request, progress: &Progress) -> Outcome {
    // These answer while the node is still starting.
    match verb {
        "ping" => return done(),
        "stop" => return node::stop(state),
        "is_running" => return node::is_running(state),
        "is_booting" => return node::is_booting(state),
        "check_running" => return node::check_running(state),
        "listeners" => return node::listeners(state),
        "check_port_listener" => return node::check_port_listener(state, request),
        "server_version" => return node::server_version(),
        "environment" => return node::environment(state),
        "status" => return node::status(state).await,
        peers::LOCAL_FACTS => return node::local_facts(state),
        _ => {}
    }
    let broker = state.broker()?;
    match verb {
        "cluster_status" => node::cluster_status(state, broker).await,
        "list_feature_flags" => feature_flags::list(broker).await,
        "enable_feature_flag" => feature_flags::enable(broker, request).await,
        "feature_flag_status" => feature_flags::status(broker, request),
        "list_deprecated_features" => feature_flags::list_deprecated(broker, request).await,
        "check_if_any_deprecated_features_are_used" => feature_flags::check_used(broker),
        "set_cluster_name" => node::set_cluster_name(broker, request).await,
        "metadata_store_status" => node::metadata_store_status(broker).await,
        "list_users" => users::list(broker),
        "add_user" => users::add(broker, request).await,
        "change_password" => users::change_password(broker, request).await,
        "clear_password" => users::clear_password(broker, request).await,
        "delete_user" => users::delete(broker, request).await,
        "authenticate_user" => users::authenticate(broker, request),
        "set_user_tags" => users::set_tags(broker, request).await,
        "set_permissions" => vhosts::set_permissions(broker, request).await,
        "clear_permissions" => vhosts::clear_permissions(broker, request).await,
        "list_permissions" => vhosts::list_permissions(broker, request),
        "list_user_permissions" => vhosts::list_user_permissions(broker, request),
        "add_vhost" => vhosts::add(broker, request).await,
        "delete_vhost" => vhosts::delete(broker, request).await,
        "list_vhosts" => vhosts::list(broker),
        "set_policy" => policies::set(broker, request, Kind::Policy).await,
        "clear_policy" => policies::clear(broker, request, Kind::Policy).await,
        "list_policies" => policies::list(broker, request, Kind::Policy),
        "set_operator_policy" => policies::set(broker, request, Kind::Operator).await,
        "clear_operator_policy" => policies::clear(broker, request, Kind::Operator).await,
        "list_operator_policies" => policies::list(broker, request, Kind::Operator),
        "set_parameter" => parameters::set(broker, request).await,
        "clear_parameter" => parameters::clear(broker, request).await,
        "list_parameters" => parameters::list(broker, request),
        "set_global_parameter" => parameters::set_global(broker, request).await,
        "clear_global_parameter" => parameters::clear_global(broker, request).await,
        "list_global_parameters" => parameters::list_global(broker),
        "list_exchanges" => topology::list_exchanges(broker, request),
        "list_bindings" => topology::list_bindings(broker, request),
        "list_queues" => queues::list(broker, request).await,
        "list_consumers" => queues::list_consumers(broker, request).await,
        "purge_queue" => queues::purge(broker, request).await,
        "delete_queue" => queues::delete(broker, request).await,
        "quorum_status" => queues::quorum_status(broker, request).await,
        "add_member" => members::add(broker, request).await,
        "delete_member" => members::delete(broker, request).await,
        "grow" => members::grow(broker, request, progress).await,
        "grow_to_count" => members::grow_to_count(broker, request, progress).await,
        "shrink" => members::shrink(broker, request, progress).await,
        "rebalance" => members::rebalance(broker, request, progress).await,
        "transfer_leadership" => members::transfer(broker, request).await,
        "force_checkpoint" => members::force_checkpoint(broker, request, progress).await,
        "check_if_node_is_quorum_critical" => members::check_critical(broker).await,
        "force_shrink" => members::force_shrink(broker, request, progress).await,
        "metrics" => metrics::metrics(broker).await,
        "list_quarantined" => groups::list_quarantined(broker),
        "versions" => groups::versions(broker, request).await,
        "check_for_quorum_queues_without_an_elected_leader" => groups::check_leaders(broker, request).await,
        "check_if_new_quorum_queue_replicas_have_finished_initial_sync" => groups::check_new_replicas(broker),
        peers::LOCAL_GROUPS => groups::local(broker),
        peers::LOCAL_CHECKPOINT => members::local_checkpoint(broker, request),
        "forget_cluster_node" => forget::forget(state, broker, request, progress).await,
        peers::LOCAL_SEES => forget::local_sees(broker, request).await,
        "has_reached_target_cluster_size" => node::has_reached_target_cluster_size(state, broker),
        "list_channels" => clients::list_channels(broker).await,
        "list_connections" => clients::list(broker).await,
        "close_connection" => clients::close(broker, request).await,
        "close_all_connections" => clients::close_all(broker, request).await,
        peers::LOCAL_CONNECTIONS => clients::list_local(broker),
        peers::LOCAL_CHANNELS => clients::list_local_channels(broker),
        peers::LOCAL_CLOSE => clients::close_local(broker, request),
        peers::LOCAL_MEMBER => queues::local_member(broker, request),
        _ => Err(Refusal::new(Code::Unavailable, format!("node {} does not know `{verb}`", broker.name()))),
    }
}

/// Time between two words on how far long work is.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// Tells the caller how far long work is, if it wants to know.
struct Progress(Option<Replies>);

impl Progress {
    fn new(request: &Request, replies: &Replies) -> Self {
        Progress(request.flag(PROGRESS).then(|| replies.clone()))
    }

    /// For work that is done quickly, or for nobody.
    fn none() -> Self {
        Progress(None)
    }

    async fn tell(&self, done: usize, total: usize) {
        if let Some(replies) = &self.0 {
            send(replies, &Reply::Progress { done, total }).await;
        }
    }
}

/// Works on all items, so many at a time, and keeps their order. `None` where the work panicked.
async fn at_once<T, R, F>(
    most: usize,
    items: impl IntoIterator<Item = T>,
    progress: &Progress,
    work: impl Fn(T) -> F,
) -> Vec<Option<R>>
where
    R: Send + 'static,
    F: Future<Output = R> + Send + 'static,
{
    let turns = Arc::new(Semaphore::new(most));
    let mut working = JoinSet::new();
    let mut results = Vec::new();
    for (at, item) in items.into_iter().enumerate() {
        let (turns, work) = (Arc::clone(&turns), work(item));
        working.spawn(async move {
            let _turn = turns.acquire().await;
            (at, work.await)
        });
        results.push(None);
    }
    let (mut done, mut told) = (0, Instant::now());
    while let Some(ended) = working.join_next().await {
        done += 1;
        if let Ok((at, result)) = ended {
            results[at] = Some(result);
        }
        if told.elapsed() >= PROGRESS_EVERY {
            told = Instant::now();
            progress.tell(done, results.len()).await;
        }
    }
    results
}

fn done() -> Outcome {
    Ok(Answer::Value(Value::Null))
}

/// A row from pairs.
fn row<const N: usize>(pairs: [(&str, Value); N]) -> Row {
    pairs.into_iter().map(|(name, value)| (name.to_owned(), value)).collect()
}

impl From<WriteError> for Refusal {
    fn from(error: WriteError) -> Self {
        let text = error.to_string();
        match error {
            WriteError::Timeout => Refusal::new(Code::Timeout, text),
            WriteError::Refused(MetaError::Aborted { code: AbortCode::NoSuchUser }) => {
                Refusal::new(Code::NoSuchUser, "the user does not exist")
            }
            WriteError::Refused(MetaError::Aborted { code: AbortCode::NoSuchVhost }) => {
                Refusal::new(Code::NoSuchVhost, "the virtual host does not exist")
            }
            WriteError::Refused(_) => Refusal::new(Code::Internal, text),
        }
    }
}

impl From<BrokerError> for Refusal {
    fn from(error: BrokerError) -> Self {
        let code = match &error {
            BrokerError::NotFound(_) => Code::NotFound,
            BrokerError::AccessRefused(_) => Code::AccessRefused,
            BrokerError::Timeout(_) => Code::Timeout,
            BrokerError::Internal(_) => Code::Internal,
            BrokerError::ResourceLocked(_)
            | BrokerError::PreconditionFailed(_)
            | BrokerError::NotImplemented(_)
            | BrokerError::Deprecated(_)
            | BrokerError::NotAllowed(_) => Code::Invalid,
        };
        Refusal::new(code, error.to_string())
    }
}

/// A record that this binary cannot read.
fn unreadable(error: impl std::fmt::Display) -> Refusal {
    Refusal::new(Code::Internal, error.to_string())
}

fn no_user(name: &str) -> Refusal {
    Refusal::new(Code::NoSuchUser, format!("User \"{name}\" does not exist"))
}

fn no_vhost(name: &str) -> Refusal {
    Refusal::new(Code::NoSuchVhost, format!("Virtual host '{name}' does not exist"))
}
