//! Members of quorum queues: adding and removing them, one or many, and spreading leaders (spec: operations.md, section
//! 2.5; quorum-queues.md, section 10.1).

use std::collections::{BTreeMap, HashMap};
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use regex::Regex;
use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::operations::members::{MemberError, Part};
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::QueueKind;
use warren_proto::ids::{GroupId, NodeId};

use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, Progress, at_once, done, groups, peers, queues, row};

/// Queues worked on at once.
const AT_ONCE: usize = 64;
/// Leaders on the move at once.
const TRANSFERS_AT_ONCE: usize = 8;

impl From<MemberError> for Refusal {
    fn from(error: MemberError) -> Self {
        let code = match error {
            MemberError::NotFound => Code::NotFound,
            MemberError::NotQuorum => Code::Invalid,
            MemberError::Timeout | MemberError::Metadata(_) => Code::Timeout,
            MemberError::NoSuchNode(_)
            | MemberError::NodeNotRunning(_)
            | MemberError::LastNode
            | MemberError::NonVoters
            | MemberError::NoMemberHere
            | MemberError::TooOld(_)
            | MemberError::HasLeader
            | MemberError::Stopped
            | MemberError::NotVoter => Code::Unavailable,
        };
        Refusal::new(code, error.to_string())
    }
}

fn part(request: &Request) -> Result<Part, Refusal> {
    match request.text("membership") {
        "" => Ok(Part::default()),
        name => Part::from_name(name).ok_or_else(|| {
            Refusal::new(Code::Invalid, format!("membership '{name}' is none of promotable, voter and non_voter"))
        }),
    }
}

/// `add_member`.
pub async fn add(broker: &Arc<Broker>, request: &Request) -> Outcome {
    let (target, part) = (queues::find(broker, request)?, part(request)?);
    broker.add_member(&target, request.text("member"), part).await?;
    done()
}

/// `delete_member`.
pub async fn delete(broker: &Broker, request: &Request) -> Outcome {
    let target = queues::find(broker, request)?;
    broker.delete_member(&target, request.text("member")).await?;
    done()
}

/// `transfer_leadership`.
pub async fn transfer(broker: &Broker, request: &Request) -> Outcome {
    let target = queues::find(broker, request)?;
    broker.transfer_leadership(&target, request.text("member")).await?;
    done()
}

/// Quorum queues whose vhosts and names match the request's patterns.
pub(super) fn matching(broker: &Broker, request: &Request) -> Result<Vec<Arc<QueueTarget>>, Refusal> {
    let pattern = |name: &str| {
        let text = request.text(name);
        let text = if text.is_empty() { ".*" } else { text };
        Regex::new(text).map_err(|error| Refusal::new(Code::Invalid, format!("--{name} cannot be read: {error}")))
    };
    let (vhosts, names) = (pattern("vhost-pattern")?, pattern("queue-pattern")?);
    let view = broker.metadata().projections().load();
    let all = view.queues().filter(|t| t.kind == QueueKind::Quorum);
    let mut found: Vec<_> = all.filter(|t| vhosts.is_match(&t.vhost) && names.is_match(&t.name)).cloned().collect();
    found.sort_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    Ok(found)
}

/// Changes queues, some at a time, and tells of each: vhost, name, members afterwards, and `ok` or why not.
async fn change_all<F>(
    broker: &Arc<Broker>,
    targets: Vec<Arc<QueueTarget>>,
    errors_only: bool,
    progress: &Progress,
    change: impl Fn(Arc<Broker>, Arc<QueueTarget>) -> F,
) -> Outcome
where
    F: Future<Output = Result<(), MemberError>> + Send + 'static,
{
    let outcomes =
        at_once(AT_ONCE, targets.iter().cloned(), progress, |target| change(Arc::clone(broker), target)).await;
    let mut rows = Vec::new();
    for (target, outcome) in targets.iter().zip(outcomes) {
        let outcome = outcome.unwrap_or(Err(MemberError::Timeout));
        if errors_only && outcome.is_ok() {
            continue;
        }
        let now = broker.metadata().queue_target(&target.vhost, &target.name);
        let size = now.map_or(0, |target| target.members().len());
        let result = outcome.map_or_else(|error| error.to_string(), |()| "ok".to_owned());
        rows.push(row([
            ("vhost", json!(target.vhost.as_ref())),
            ("name", json!(target.name.as_ref())),
            ("size", json!(size)),
            ("result", json!(result)),
        ]));
    }
    Ok(Answer::Rows(rows))
}

fn is_member(target: &QueueTarget, node: NodeId) -> bool {
    target.members().iter().any(|m| m.node == node)
}

fn strategy(request: &Request) -> Result<bool, Refusal> {
    match request.text("strategy") {
        "all" => Ok(false),
        "even" => Ok(true),
        other => Err(Refusal::new(Code::Invalid, format!("the strategy is `all` or `even`, not `{other}`"))),
    }
}

/// `grow`.
pub async fn grow(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let (even, part) = (strategy(request)?, part(request)?);
    let name = request.text("member").to_owned();
    let node = broker.running_node(&name)?.id;
    let mut targets = matching(broker, request)?;
    targets.retain(|t| !is_member(t, node) && (!even || t.members().len().is_multiple_of(2)));
    change_all(broker, targets, request.flag("errors-only"), progress, move |broker, target| {
        let name = name.clone();
        async move {
            broker.check_settled(&target).await?;
            broker.add_member(&target, &name, part).await
        }
    })
    .await
}

/// `grow_to_count`.
pub async fn grow_to_count(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let (even, part) = (strategy(request)?, part(request)?);
    let count: usize = request.text("count").parse().ok().filter(|count| *count > 0).ok_or_else(|| {
        Refusal::new(Code::Invalid, format!("the count is a number above 0, not `{}`", request.text("count")))
    })?;
    let up: Vec<_> = up_nodes(broker);
    let count = count.min(up.len());
    let mut targets = matching(broker, request)?;
    targets.retain(|t| t.members().len() < count && (!even || t.members().len().is_multiple_of(2)));
    change_all(broker, targets, request.flag("errors-only"), progress, move |broker, target| {
        let up = up.clone();
        async move {
            for (_, name) in up.iter().filter(|(node, _)| !is_member(&target, *node)) {
                let now = broker.metadata().queue_target(&target.vhost, &target.name).ok_or(MemberError::NotFound)?;
                if now.members().len() >= count {
                    break;
                }
                broker.add_member(&now, name, part).await?;
            }
            Ok(())
        }
    })
    .await
}

fn up_nodes(broker: &Broker) -> Vec<(NodeId, String)> {
    let nodes = broker.metadata().nodes();
    let up = nodes.iter().filter(|n| queues::is_up(broker, n.id));
    up.map(|n| (n.id, n.name.to_string())).collect()
}

/// `shrink`.
pub async fn shrink(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let name = request.text("member").to_owned();
    let node = NodeId::of_name(&name);
    let mut targets = matching(broker, request)?;
    targets.retain(|t| is_member(t, node));
    change_all(broker, targets, request.flag("errors-only"), progress, move |broker, target| {
        let name = name.clone();
        async move { broker.delete_member(&target, &name).await }
    })
    .await
}

/// `force_shrink`: this node's members are made the only ones of queues that have lost their majority.
pub async fn force_shrink(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    if !request.flag("i-accept-data-loss") {
        return Err(Refusal::new(
            Code::Invalid,
            "what only the lost members had is lost, and their data is deleted if their nodes come back: say \
             --i-accept-data-loss if that is meant",
        ));
    }
    let mut targets = matching(broker, request)?;
    targets.retain(|t| is_member(t, broker.me()) && t.members().len() > 1);
    change_all(broker, targets, request.flag("errors-only"), progress, |broker, target| async move {
        broker.force_shrink(&target).await
    })
    .await
}

/// `force_checkpoint`: every member takes a snapshot.
pub async fn force_checkpoint(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let targets = matching(broker, request)?;
    let results = at_once(AT_ONCE, targets.iter().cloned(), progress, |target| {
        let broker = Arc::clone(broker);
        async move { checkpoint(&broker, &target).await }
    });
    let rows = targets.iter().zip(results.await).map(|(target, result)| {
        row([
            ("vhost", json!(target.vhost.as_ref())),
            ("name", json!(target.name.as_ref())),
            ("result", json!(result.unwrap_or_else(|| "not done".to_owned()))),
        ])
    });
    Ok(Answer::Rows(rows.collect()))
}

async fn checkpoint(broker: &Broker, target: &QueueTarget) -> String {
    let mut ask = Request::default();
    ask.args.insert("group".to_owned(), Value::from(target.group.0));
    let nodes: Vec<NodeId> = target.members().iter().map(|m| m.node).collect();
    let own = nodes.contains(&broker.me()) && broker.queues().force_snapshot(target.group).is_ok();
    let count = nodes.len();
    let heard = usize::from(own) + peers::ask(broker, nodes, peers::LOCAL_CHECKPOINT, &ask).await.len();
    if heard == count { "ok".to_owned() } else { format!("{heard} of {count} members were told") }
}

/// This node's part of [`force_checkpoint`].
pub fn local_checkpoint(broker: &Broker, request: &Request) -> Outcome {
    let group = GroupId(request.args.get("group").and_then(Value::as_u64).unwrap_or_default());
    match broker.queues().force_snapshot(group) {
        Ok(()) => done(),
        Err(error) => Err(Refusal::new(Code::Unavailable, error.to_string())),
    }
}

/// One rebalance at a time. It runs on the node that leads the metadata, so that this is so in the whole cluster.
static REBALANCING: AtomicBool = AtomicBool::new(false);

struct Turn;

impl Turn {
    fn take() -> Option<Self> {
        (!REBALANCING.swap(true, Ordering::AcqRel)).then_some(Turn)
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        REBALANCING.store(false, Ordering::Release);
    }
}

/// `rebalance`.
pub async fn rebalance(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    match request.text("type") {
        "all" | "quorum" => {}
        // There are no streams to rebalance, and classic queues have one place.
        "stream" | "classic" => return Ok(Answer::Rows(Vec::new())),
        other => {
            let text = format!("the type is `all`, `quorum` or `stream`, not `{other}`");
            return Err(Refusal::new(Code::Invalid, text));
        }
    }
    match broker.metadata().leader() {
        Some(leader) if leader == broker.me() => rebalance_here(broker, request, progress).await,
        Some(leader) => peers::forward(broker, leader, "rebalance", request, progress).await,
        None => Err(Refusal::new(Code::Timeout, "the metadata store has no leader")),
    }
}

/// `post_upgrade`: what is to be done once all nodes are upgraded.
pub async fn post_upgrade(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let mut request = request.clone();
    request.args.insert("type".to_owned(), json!("all"));
    rebalance(broker, &request, progress).await
}

async fn rebalance_here(broker: &Arc<Broker>, request: &Request, progress: &Progress) -> Outcome {
    let busy = || Refusal::new(Code::Unavailable, "rebalance_in_progress: another rebalance is running");
    let _turn = Turn::take().ok_or_else(busy)?;
    let targets = matching(broker, request)?;
    let away = broker.nodes_in_maintenance();
    let nodes: Vec<_> = up_nodes(broker).into_iter().filter(|(node, _)| !away.contains(node)).collect();
    let leaders = leaders(broker, &targets).await;
    let most = targets.len().div_ceil(nodes.len().max(1));
    let moves = plan(&targets, &leaders, &nodes, most);
    at_once(TRANSFERS_AT_ONCE, moves, progress, |(at, to)| {
        let (broker, target) = (Arc::clone(broker), Arc::clone(&targets[at]));
        async move {
            if let Err(error) = broker.transfer_leadership(&target, &to).await {
                tracing::warn!(queue = %target.name, vhost = %target.vhost, %error, "the queue's leader stays where it is");
            }
        }
    })
    .await;
    let mut counts: BTreeMap<String, u64> = nodes.iter().map(|(_, name)| (name.clone(), 0)).collect();
    for (leader, _) in self::leaders(broker, &targets).await.into_iter().flatten() {
        *counts.entry(peers::name(broker, leader)).or_default() += 1;
    }
    let rows: Vec<Row> = counts
        .into_iter()
        .map(|(node, count)| row([("Node name", json!(node)), ("Number of quorum queue leaders", json!(count))]))
        .collect();
    Ok(Answer::Rows(rows))
}

/// Where each queue's leader is, and how long its log is.
async fn leaders(broker: &Broker, targets: &[Arc<QueueTarget>]) -> Vec<Option<(NodeId, u64)>> {
    let groups = groups::everywhere(broker).await;
    let leader = |target: &Arc<QueueTarget>| {
        let members = groups.get(&target.group)?;
        // One that has just been elected counts where nobody leads yet.
        let of = |state: &str| members.iter().find(|(_, m)| m.state == state);
        of(groups::LEADER).or_else(|| of(groups::ELECTED)).map(|(node, m)| (*node, m.log))
    };
    targets.iter().map(leader).collect()
}

/// Which queues' leaders go where, so that no node leads more than `most`.
fn plan(
    targets: &[Arc<QueueTarget>],
    leaders: &[Option<(NodeId, u64)>],
    nodes: &[(NodeId, String)],
    most: usize,
) -> Vec<(usize, String)> {
    let members: Vec<Vec<NodeId>> = targets.iter().map(|t| t.members().iter().map(|m| m.node).collect()).collect();
    let moves = moves(&members, leaders, &nodes.iter().map(|(node, _)| *node).collect::<Vec<_>>(), most);
    let name = |to: NodeId| nodes.iter().find(|(node, _)| *node == to).map(|(_, name)| name.clone());
    moves.into_iter().filter_map(|(at, to)| Some((at, name(to)?))).collect()
}

fn moves(
    members: &[Vec<NodeId>],
    leaders: &[Option<(NodeId, u64)>],
    nodes: &[NodeId],
    most: usize,
) -> Vec<(usize, NodeId)> {
    let mut counts: HashMap<NodeId, usize> = nodes.iter().map(|node| (*node, 0)).collect();
    for (leader, _) in leaders.iter().flatten() {
        *counts.entry(*leader).or_default() += 1;
    }
    // Those with the shortest logs move first: it costs least.
    let mut order: Vec<(u64, usize)> =
        leaders.iter().enumerate().filter_map(|(at, leader)| leader.map(|(_, log)| (log, at))).collect();
    order.sort_unstable();
    let mut moves = Vec::new();
    for (_, at) in order {
        let Some((leader, _)) = &leaders[at] else { continue };
        let load = counts.get(leader).copied().unwrap_or_default();
        let to = members[at].iter().filter(|node| nodes.contains(*node)).min_by_key(|node| (counts[*node], **node));
        // One that is over the limit gives to whoever is below it, or clearly has less.
        if let Some(to) = to.copied().filter(|to| load > most || counts[to] + 1 < load)
            && counts[&to] < load.saturating_sub(1)
        {
            counts.entry(*leader).and_modify(|n| *n -= 1);
            counts.entry(to).and_modify(|n| *n += 1);
            moves.push((at, to));
        }
    }
    moves
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);
    const C: NodeId = NodeId(3);

    fn after(leaders: &[Option<(NodeId, u64)>], moves: &[(usize, NodeId)]) -> Vec<usize> {
        let mut leaders: Vec<_> = leaders.iter().map(|leader| leader.map(|(node, _)| node)).collect();
        for (at, to) in moves {
            leaders[*at] = Some(*to);
        }
        [A, B, C].iter().map(|node| leaders.iter().filter(|l| **l == Some(*node)).count()).collect()
    }

    fn led_by(node: NodeId) -> Option<(NodeId, u64)> {
        Some((node, 0))
    }

    #[test]
    fn the_leaders_with_the_shortest_logs_move() {
        let members = vec![vec![A, B]; 4];
        let leaders: Vec<_> = [40, 10, 30, 20].into_iter().map(|log| Some((A, log))).collect();
        let moved: Vec<usize> = moves(&members, &leaders, &[A, B], 2).into_iter().map(|(at, _)| at).collect();
        assert_eq!(moved, [1, 3]);
    }

    #[test]
    fn leaders_of_one_node_are_spread_over_all() {
        let members = vec![vec![A, B, C]; 30];
        let leaders = vec![led_by(A); 30];
        let moves = moves(&members, &leaders, &[A, B, C], 10);
        assert_eq!(after(&leaders, &moves), [10, 10, 10]);
        assert!(super::moves(&members, &[A, B, C].map(led_by).repeat(10), &[A, B, C], 10).is_empty());
    }

    #[test]
    fn a_leader_goes_only_where_its_queue_has_a_member_that_runs() {
        let members = vec![vec![A, B], vec![A, B], vec![A], vec![A, C]];
        let leaders = vec![led_by(A); 4];
        let moves = moves(&members, &leaders, &[A, B], 2);
        assert_eq!(after(&leaders, &moves), [2, 2, 0]);
    }

    #[test]
    fn a_queue_without_a_leader_is_left_alone() {
        assert!(moves(&[vec![A, B]], &[None], &[A, B], 1).is_empty());
    }
}
