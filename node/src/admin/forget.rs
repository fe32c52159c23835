//! `forget_cluster_node`: a node that has ended for good leaves the cluster (spec: operations.md, section 2.1).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::operations::forget::ForgetError;
use warren_broker::operations::members::MemberError;
use warren_proto::ids::NodeId;

use super::protocol::{Code, Refusal, Request};
use super::state::NodeState;
use super::{Answer, Outcome, Progress, at_once, done, peers};
use crate::config::settings::NodeName;

/// The argument with which a node that is being reset has itself forgotten: queues that it alone has a member of are deleted
/// with everything else that it has.
pub const RESETS: &str = "resets";

/// Queues that lose their member at once.
const AT_ONCE: usize = 64;
/// Queues that are named where many could not be changed.
const NAMED: usize = 100;

impl From<ForgetError> for Refusal {
    fn from(error: ForgetError) -> Self {
        let code = match error {
            ForgetError::NotMember | ForgetError::StillRunning(_) | ForgetError::LastVoter => Code::Unavailable,
            ForgetError::NoMajority | ForgetError::Unfinished(_) => Code::Timeout,
        };
        Refusal::new(code, error.to_string())
    }
}

/// One node at a time leaves. It is done on the node that leads the metadata, so that this is so in the whole cluster.
static FORGETTING: AtomicBool = AtomicBool::new(false);

struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        (!FORGETTING.swap(true, Ordering::AcqRel)).then_some(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        FORGETTING.store(false, Ordering::Release);
    }
}

/// `forget_cluster_node`. Doing it again finishes what was interrupted.
pub async fn forget(state: &NodeState, broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let own = &state.configuration.node;
    let name = NodeName::parse(request.text("member"), own.host());
    let name = name.map_err(|why| Refusal::new(Code::Invalid, why))?;
    // Between nodes, it is the metadata's leader that is asked; then the one to go is sure to run.
    let asked_by_operator = !request.node.is_empty();
    if name == *own && asked_by_operator {
        let why =
            format!("node {own} cannot remove itself: stop it, and run this command on another node of its cluster");
        return Err(Refusal::new(Code::Unavailable, why));
    }
    broker.check_forgettable(name.as_str()).await?;
    match broker.metadata().leader() {
        Some(leader) if leader == broker.me() => {
            forget_here(broker, name.as_str(), request.flag(RESETS), progress).await
        }
        Some(leader) if asked_by_operator => {
            let mut request = request.clone();
            request.args.insert("member".to_owned(), json!(name.as_str()));
            peers::forward(broker, leader, "forget_cluster_node", &request, progress).await
        }
        Some(_) => {
            Err(Refusal::new(Code::Timeout, "the metadata store's leader has just changed: run the command again"))
        }
        None => Err(ForgetError::NoMajority.into()),
    }
}

async fn forget_here(broker: &Arc<Broker>, name: &str, resets: bool, progress: &Progress) -> Outcome {
    let busy = || Refusal::new(Code::Unavailable, "another node is being removed from the cluster");
    let _turn = Turn::take().ok_or_else(busy)?;
    // The one to go may be out of this node's reach alone.
    let mut question = Request::default();
    question.args.insert("member".to_owned(), json!(name));
    let views = peers::ask(broker, peers::all(broker), peers::LOCAL_SEES, &question).await;
    if views.iter().any(|(_, told)| told.value == true) {
        return Err(ForgetError::StillRunning(name.to_owned()).into());
    }
    leave_queues(broker, name, resets, progress).await.map_err(|left| {
        let why = format!(
            "node {name} was not removed, because these queues still have a member on it:\n{}\nStart the node and add members \
             elsewhere, or delete the queues; then run the command again",
            named(&left)
        );
        Refusal::new(Code::Unavailable, why)
    })?;
    broker.forget_node(name).await?;
    // Declared with a member on it while it was on its way out.
    leave_queues(broker, name, resets, progress).await.map_err(|left| {
        let why = format!("node {name} was removed, but these queues have a member on it:\n{}", named(&left));
        Refusal::new(Code::Unavailable, why)
    })?;
    done()
}

/// Removes the node's members from all quorum queues; answers which ones keep theirs, and why.
async fn leave_queues(broker: &Arc<Broker>, name: &str, resets: bool, progress: &Progress) -> Result<(), Vec<String>> {
    let targets = broker.queues_with_member(NodeId::of_name(name));
    let outcomes = at_once(AT_ONCE, targets.iter().cloned(), progress, |target| {
        let (broker, name) = (Arc::clone(broker), name.to_owned());
        async move {
            match broker.delete_member(&target, &name).await {
                Err(MemberError::LastNode) if resets => {
                    let deleted = broker.delete_queue(&target.record()).await;
                    deleted.map_err(|error| MemberError::Metadata(error.to_string()))
                }
                outcome => outcome,
            }
        }
    });
    let outcomes = outcomes.await.into_iter().map(|outcome| outcome.unwrap_or(Err(MemberError::Timeout)));
    let mut left: Vec<String> = targets
        .iter()
        .zip(outcomes)
        .filter_map(|(target, outcome)| match outcome {
            Ok(()) | Err(MemberError::NotFound) => None,
            Err(error) => Some(format!("queue '{}' in vhost '{}': {error}", target.name, target.vhost)),
        })
        .collect();
    left.sort();
    if left.is_empty() { Ok(()) } else { Err(left) }
}

fn named(queues: &[String]) -> String {
    let mut text = queues[..queues.len().min(NAMED)].join("\n");
    if queues.len() > NAMED {
        text.push_str(&format!("\nand {} more", queues.len() - NAMED));
    }
    text
}

/// Whether this node gets signs of life from another one.
pub async fn local_sees(broker: &Broker, request: &Request) -> Outcome {
    let node = NodeId::of_name(request.text("member"));
    Ok(Answer::Value(Value::Bool(broker.gives_signs_of_life(node).await)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_text_names_a_bounded_number_of_queues() {
        let queues = |count: usize| (0..count).map(|n| format!("queue '{n}'")).collect::<Vec<_>>();
        assert_eq!(named(&queues(2)), "queue '0'\nqueue '1'");
        let many = named(&queues(NAMED + 7));
        assert!(many.ends_with("queue '99'\nand 7 more"), "{many}");
    }
}
