//! What would lose its majority if this node stopped (spec: operations.md, sections 2.7 and 4).

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_metastore::records::QueueKind;
use warren_proto::ids::{GroupId, NodeId};
use warren_raft::log_store::{Member, MemberRole};

use super::groups::{LocalGroup, takes_part};
use super::protocol::{Code, Refusal, Request};
use super::{Answer, Outcome, peers};

/// A group that needs this node.
struct Critical {
    name: String,
    /// `None` for the metadata store.
    vhost: Option<String>,
}

impl Critical {
    fn readable(&self) -> String {
        match &self.vhost {
            Some(vhost) => format!("queue '{}' in vhost '{vhost}'", self.name),
            None => self.name.clone(),
        }
    }

    fn row(&self) -> Value {
        json!({
            "readable_name": self.readable(),
            "name": self.name,
            "virtual_host": self.vhost,
            "type": if self.vhost.is_some() { "rabbit_quorum_queue" } else { "rabbitmq_metadata" },
        })
    }
}

/// The groups whose members take part on each of the other nodes that serve.
async fn online(broker: &Broker) -> HashMap<NodeId, HashSet<GroupId>> {
    let told = peers::ask(broker, peers::all(broker), peers::LOCAL_GROUPS, &Request::default()).await;
    let groups = |rows: Vec<super::protocol::Row>| {
        let readable = rows.into_iter().filter_map(|row| serde_json::from_value::<LocalGroup>(Value::Object(row)).ok());
        readable.filter(|group| takes_part(&group.state)).map(|group| GroupId(group.group)).collect()
    };
    told.into_iter().map(|(node, told)| (node, groups(told.rows))).collect()
}

/// Whether the group of these members loses its majority with `me`. One that runs nowhere else always does.
fn needs(members: &[Member], me: NodeId, is_online: impl Fn(NodeId) -> bool) -> bool {
    let voters: Vec<&Member> = members.iter().filter(|m| m.role == MemberRole::Voter).collect();
    let running = voters.iter().filter(|m| m.node == me || is_online(m.node)).count();
    voters.iter().any(|m| m.node == me) && running <= voters.len() / 2 + 1
}

async fn critical(broker: &Broker) -> Vec<Critical> {
    let (me, online) = (broker.me(), online(broker).await);
    let mut found = Vec::new();
    let metadata = broker.metadata().host().and_then(|host| host.status(GroupId::METADATA));
    // A node that answers serves, and so does its member.
    if metadata.is_some_and(|status| needs(&status.membership.members, me, |node| online.contains_key(&node))) {
        found.push(Critical { name: "rabbitmq_metadata".to_owned(), vhost: None });
    }
    let view = broker.metadata().projections().load();
    let mut queues: Vec<Critical> = view
        .queues()
        .filter(|t| t.kind == QueueKind::Quorum)
        .filter(|t| {
            let runs = |node: NodeId| online.get(&node).is_some_and(|groups| groups.contains(&t.group));
            broker.queues().status(t.group).is_some_and(|s| needs(&s.membership.members, me, runs))
        })
        .map(|t| Critical { name: t.name.to_string(), vhost: Some(t.vhost.to_string()) })
        .collect();
    queues.sort_by(|a, b| (&a.vhost, &a.name).cmp(&(&b.vhost, &b.name)));
    found.append(&mut queues);
    found
}

fn passes(text: String) -> Outcome {
    Ok(Answer::Value(json!({"text": text})))
}

/// `check_if_node_is_quorum_critical`.
pub async fn check(broker: &Arc<Broker>) -> Outcome {
    let name = broker.name();
    if broker.metadata().nodes().len() == 1 {
        return passes(format!("Node {name} is the only one of its cluster: nothing loses more than it by its end"));
    }
    if broker.is_in_maintenance() {
        return passes(format!("Node {name} is in maintenance mode, it is taken as not being quorum critical"));
    }
    let critical = critical(broker).await;
    if critical.is_empty() {
        return passes(format!(
            "There are no quorum queues or metadata that would lose their majority without node {name}"
        ));
    }
    let mut lines = vec![format!("The following would lose their majority if node {name} stopped:")];
    lines.extend(critical.iter().map(Critical::readable));
    let rows: Vec<Value> = critical.iter().map(Critical::row).collect();
    Ok(Answer::Failed(json!({"queues": rows}), Refusal::new(Code::Unavailable, lines.join("\n"))))
}

/// For `await_online_quorum_plus_one`: the groups for which one more member has to run.
pub async fn waits_for(broker: &Arc<Broker>) -> Outcome {
    let alone = broker.metadata().nodes().len() == 1;
    let critical = if alone { Vec::new() } else { critical(broker).await };
    let names: Vec<String> = critical.iter().map(Critical::readable).collect();
    Ok(Answer::Value(json!({"waits_for": names})))
}

#[cfg(test)]
mod tests {
    use warren_proto::ids::MemberUid;

    use super::*;

    fn members(roles: &[MemberRole]) -> Vec<Member> {
        let member = |(at, role): (usize, &MemberRole)| {
            let number = at as u64 + 1;
            Member { uid: MemberUid(number), node: NodeId(number), role: *role }
        };
        roles.iter().enumerate().map(member).collect()
    }

    #[test]
    fn a_group_needs_a_node_when_a_bare_majority_runs() {
        let voter = MemberRole::Voter;
        let me = NodeId(1);
        let up = |nodes: &'static [u64]| move |node: NodeId| nodes.contains(&node.0);
        assert!(!needs(&members(&[voter; 3]), me, up(&[2, 3])));
        assert!(needs(&members(&[voter; 3]), me, up(&[2])));
        assert!(needs(&members(&[voter; 2]), me, up(&[2])));
        assert!(needs(&members(&[voter; 1]), me, up(&[])));
        assert!(!needs(&members(&[voter; 5]), me, up(&[2, 3, 4])));
        assert!(needs(&members(&[voter; 5]), me, up(&[2, 3])));
    }

    #[test]
    fn members_without_a_vote_do_not_count_and_need_no_node() {
        let (voter, learns) = (MemberRole::Voter, MemberRole::NonVoter);
        let all = |_: NodeId| true;
        assert!(needs(&members(&[voter, voter, learns]), NodeId(1), all));
        assert!(!needs(&members(&[voter, voter, learns]), NodeId(3), all));
        let catches_up = MemberRole::Promotable { target: 9 };
        assert!(needs(&members(&[voter, catches_up]), NodeId(1), all));
    }
}
