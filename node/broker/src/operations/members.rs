//! Members of quorum queues, and who leads them (spec: quorum-queues.md, section 10.1).
//!
//! A member is first written into the queue's record, so that its node starts it, and then added to the group by the
//! group's leader, as one without a vote that gets one when it has caught up. To remove one goes the other way round:
//! its data is deleted when its node sees a record without it, which is after the group has removed it.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, stream};
use serde::{Deserialize, Serialize};
use tokio::time::Instant;
use warren_metastore::projections::QueueTarget;
use warren_metastore::records::{self, Queue, QueueKind, Stored};
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_raft::driver::{ChangeError, MemberChange};
use warren_raft::log_store::{Member, MemberRole};
use warren_raft::machine::Role;
use warren_raft::transport::{CallError, CallTarget};

use crate::cluster::identity_file::random_u64;
use crate::metadata::WriteError;
use crate::node::Broker;

/// The call by which a node has a queue's leader do something.
pub(crate) const ORDER: &str = "queues/order";
/// A member is added within this time, or the change is undone.
pub const ADD_TIME: Duration = Duration::from_secs(20);
/// A member is removed within this time.
pub const REMOVE_TIME: Duration = Duration::from_secs(15);
/// Leadership moves within this time.
pub const TRANSFER_TIME: Duration = Duration::from_secs(5);
/// Pause before a leader is asked again.
const PAUSE: Duration = Duration::from_millis(200);
/// Queues whose members are completed or repaired at once.
pub(super) const AT_ONCE: usize = 32;
/// How long a queue that is to be reduced by force is looked for a leader: longer than an election takes.
const LEADERLESS: Duration = Duration::from_secs(5);
/// How long a leader's node may take to answer.
const ANSWER: Duration = Duration::from_secs(10);

/// Why a queue's members or its leader were not changed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MemberError {
    /// No such queue.
    #[error("the queue does not exist")]
    NotFound,
    /// It has no members.
    #[error("the queue is not a quorum queue")]
    NotQuorum,
    /// The metadata does not name such a node.
    #[error("node {0} is not part of the cluster")]
    NoSuchNode(String),
    /// The new member's node has to take part.
    #[error("node {0} is not running")]
    NodeNotRunning(String),
    /// A queue needs a member.
    #[error("last_node: the queue's last member cannot be removed")]
    LastNode,
    /// A member is still catching up.
    #[error("non_voters_found: a member of the queue has not caught up yet")]
    NonVoters,
    /// Leadership can go to a voter only.
    #[error("the queue has no voting member on that node")]
    NotVoter,
    /// This node has no member of it.
    #[error("this node has no member of the queue")]
    NoMemberHere,
    /// Its member does not take part: it is stopped, or its binary is too old for the queue.
    #[error("this node's member of the queue is stopped: see quorum_status")]
    Stopped,
    /// Only a queue that has lost its majority is reduced by force.
    #[error("the queue has a leader: use delete_member or shrink")]
    HasLeader,
    /// It would stop at the queue's machine version.
    #[error("node {0} does not support the queue's machine version: upgrade it first")]
    TooOld(String),
    /// No leader, or it did not come about.
    #[error("timed out: the queue's leader did not make the change in time")]
    Timeout,
    /// The metadata store did not take it.
    #[error("{0}")]
    Metadata(String),
}

/// What a leader is to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Order {
    /// Add a member, in place of the one that its node has in the group, if it has one.
    Add {
        /// Its id.
        uid: u64,
        /// Its node.
        node: u64,
        /// Its part at first.
        part: Part,
    },
    /// Remove a member.
    Remove {
        /// Its id.
        uid: u64,
    },
    /// Hand leadership to the member on a node.
    Transfer {
        /// The node.
        to: u64,
    },
    /// Say whether all members vote.
    Settled,
}

impl Order {
    /// The name of the node that it is about.
    fn node_name(self, broker: &Broker) -> String {
        let node = match self {
            Order::Add { node, .. } => node,
            Order::Transfer { to } => to,
            Order::Remove { .. } | Order::Settled => return String::new(),
        };
        let known = broker.metadata.nodes().into_iter().find(|n| n.id == NodeId(node));
        known.map_or_else(|| NodeId(node).to_string(), |n| n.name.to_string())
    }
}

/// The part of a new member.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Part {
    /// Votes once it has caught up.
    #[default]
    Promotable,
    /// Votes at once.
    Voter,
    /// Never votes.
    NonVoter,
}

impl Part {
    /// The part of a name, as the command line has it.
    pub fn from_name(name: &str) -> Option<Self> {
        match name {
            "promotable" => Some(Part::Promotable),
            "voter" => Some(Part::Voter),
            "non_voter" => Some(Part::NonVoter),
            _ => None,
        }
    }

    fn role(self) -> MemberRole {
        match self {
            // The leader sets the target.
            Part::Promotable => MemberRole::Promotable { target: 0 },
            Part::Voter => MemberRole::Voter,
            Part::NonVoter => MemberRole::NonVoter,
        }
    }
}

/// An order for the leader of a group.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct OrderFor {
    group: u64,
    order: Order,
}

/// Why an order was not carried out. What is not named here may be tried again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Refused {
    Again,
    /// The leader that was asked is the one to go, and has handed over.
    Moved,
    LastVoter,
    NoSuchMember,
    NonVoters,
    TooOld,
}

const WORDS: [(Refused, &str); 6] = [
    (Refused::Moved, "moved"),
    (Refused::Again, "again"),
    (Refused::LastVoter, "last_voter"),
    (Refused::NoSuchMember, "no_such_member"),
    (Refused::NonVoters, "non_voters"),
    (Refused::TooOld, "too_old"),
];

impl Refused {
    pub(crate) fn word(self) -> &'static str {
        WORDS.iter().find(|(refused, _)| *refused == self).map_or("again", |(_, word)| word)
    }
}

impl From<ChangeError> for Refused {
    fn from(error: ChangeError) -> Self {
        match error {
            ChangeError::LastVoter => Refused::LastVoter,
            ChangeError::NoSuchMember => Refused::NoSuchMember,
            ChangeError::NotLeader(_)
            | ChangeError::NotPermitted
            | ChangeError::NoSuchGroup
            | ChangeError::Unknown
            | ChangeError::Timeout => Refused::Again,
        }
    }
}

impl From<WriteError> for MemberError {
    fn from(error: WriteError) -> Self {
        MemberError::Metadata(error.to_string())
    }
}

impl Broker {
    /// Carries out another node's order.
    pub(crate) async fn take_order(&self, payload: &[u8]) -> Result<(), Refused> {
        let order: OrderFor = serde_json::from_slice(payload).map_err(|_| Refused::Again)?;
        self.carry_out(GroupId(order.group), order.order).await
    }

    async fn carry_out(&self, group: GroupId, order: Order) -> Result<(), Refused> {
        let status = self.queues.status(group).filter(|s| s.role == Role::Leader).ok_or(Refused::Again)?;
        let has = |uid: u64| status.membership.member(MemberUid(uid)).is_some();
        match order {
            Order::Add { uid, .. } if has(uid) => Ok(()),
            Order::Add { node, .. } if !self.knows_version(NodeId(node), status.version) => Err(Refused::TooOld),
            Order::Add { uid, node, part } => {
                let old = status.membership.on_node(NodeId(node)).map(|old| MemberChange::Remove(old.uid));
                // One that never votes is replaced by one that never votes.
                let before = status.membership.on_node(NodeId(node)).map(|old| old.role);
                let role = match (part, before) {
                    (Part::Promotable, Some(MemberRole::NonVoter)) => MemberRole::NonVoter,
                    _ => part.role(),
                };
                let new = MemberChange::Add(Member { uid: MemberUid(uid), node: NodeId(node), role });
                Ok(self.queues.change_members(group, old.into_iter().chain([new]).collect()).await?)
            }
            Order::Remove { uid } if !has(uid) => Ok(()),
            Order::Remove { uid } => {
                if status.me == MemberUid(uid) && status.membership.voters().count() > 1 {
                    // The next leader is asked again, so that it is sure to have the change. There may be nobody yet who
                    // is ready to lead.
                    let moved = self.queues.transfer_leadership(group, None, TRANSFER_TIME).await;
                    return Err(moved.map_or(Refused::Again, |()| Refused::Moved));
                }
                Ok(self.queues.change_members(group, vec![MemberChange::Remove(MemberUid(uid))]).await?)
            }
            Order::Transfer { to } => {
                Ok(self.queues.transfer_leadership(group, Some(NodeId(to)), TRANSFER_TIME).await?)
            }
            Order::Settled => {
                let all = status.membership.members.iter().all(|m| m.role == MemberRole::Voter);
                if all && !status.membership.is_joint() { Ok(()) } else { Err(Refused::NonVoters) }
            }
        }
    }

    /// Whether a node's binary can follow a group of that version. One that did not say is tried.
    pub(super) fn knows_version(&self, node: NodeId, version: MachineVersion) -> bool {
        let known = self.metadata.nodes().into_iter().find(|n| n.id == node).map_or(0, |n| n.machine_version);
        known == 0 || known >= version.0
    }

    /// Has a queue's leader carry out an order, asking again until it has or time is up.
    pub(super) async fn order(&self, target: &QueueTarget, order: Order, time: Duration) -> Result<(), MemberError> {
        let deadline = Instant::now() + time;
        let mut member = 0;
        let mut known = None;
        loop {
            let leader = known.take().or_else(|| self.find_leader(target, &mut member));
            let outcome = match leader {
                Some(leader) if leader == self.me => self.carry_out(target.group, order).await,
                Some(leader) => self.send_order(leader, target.group, order).await,
                None => Err(Refused::Again),
            };
            match outcome {
                Ok(()) => return Ok(()),
                Err(Refused::LastVoter) => return Err(MemberError::LastNode),
                Err(Refused::NoSuchMember) => return Err(MemberError::NotVoter),
                Err(Refused::NonVoters) => return Err(MemberError::NonVoters),
                Err(Refused::TooOld) => return Err(MemberError::TooOld(order.node_name(self))),
                Err(Refused::Again | Refused::Moved) if Instant::now() >= deadline => return Err(MemberError::Timeout),
                Err(Refused::Moved) => known = self.queue_leader(target).await,
                Err(Refused::Again) => {
                    // Two removals, each of the leader that the other made, must not go on in step.
                    let pause = PAUSE.as_millis() as u64;
                    tokio::time::sleep(Duration::from_millis(pause / 2 + random_u64() % pause)).await;
                    known = self.queue_leader(target).await;
                }
            }
        }
    }

    async fn send_order(&self, leader: NodeId, group: GroupId, order: Order) -> Result<(), Refused> {
        let payload = serde_json::to_vec(&OrderFor { group: group.0, order }).map_err(|_| Refused::Again)?;
        let replies = self.transport.call(CallTarget::Node(leader), ORDER, Bytes::from(payload), ANSWER).await;
        let answer = match replies {
            Ok(replies) => replies.one().await.map(|_| ()),
            Err(error) => Err(error),
        };
        answer.map_err(|error| match error {
            CallError::Failed { code, .. } => {
                WORDS.iter().find(|(_, word)| *word == code).map_or(Refused::Again, |(refused, _)| *refused)
            }
            _ => Refused::Again,
        })
    }

    /// The leader of a quorum queue, wherever it is: `None` if it does not say so within a second.
    pub async fn queue_leader(&self, target: &QueueTarget) -> Option<NodeId> {
        match self.leader_of(target) {
            Some(leader) => Some(leader),
            None => self.answering_leader(target, Duration::from_secs(1)).await,
        }
    }

    pub(super) fn stored(&self, target: &QueueTarget) -> Result<Stored<Queue>, MemberError> {
        if target.kind != QueueKind::Quorum {
            return Err(MemberError::NotQuorum);
        }
        let found = Queue::get(&self.metadata.tree(), &target.vhost, &target.name);
        let stored = found.map_err(|e| MemberError::Metadata(e.to_string()))?;
        stored.filter(|queue| queue.group == target.group).ok_or(MemberError::NotFound)
    }

    /// Writes a queue's record with other members, unless somebody else does at the same time: then again.
    pub(crate) async fn write_members(
        &self,
        target: &QueueTarget,
        change: impl Fn(&mut Vec<records::Member>),
    ) -> Result<(), MemberError> {
        self.write_record(target, |record| change(&mut record.members)).await
    }

    /// Writes a queue's record changed, unless somebody else does at the same time: then again.
    pub(super) async fn write_record(
        &self,
        target: &QueueTarget,
        change: impl Fn(&mut Queue),
    ) -> Result<(), MemberError> {
        for _ in 0..10 {
            let stored = self.stored(target)?;
            let mut record = stored.record.clone();
            change(&mut record);
            if record == stored.record {
                return Ok(());
            }
            match self.metadata.write(record.update(stored.mod_revision)).await {
                Ok(_) => return Ok(()),
                Err(WriteError::Refused(_)) => self.metadata.fence(PAUSE * 10).await?,
                Err(error) => return Err(error.into()),
            }
        }
        Err(MemberError::Metadata("the queue's record is changed by others all the time".into()))
    }

    fn known_node(&self, name: &str) -> Result<Arc<Stored<records::Node>>, MemberError> {
        let id = NodeId::of_name(name);
        let found = self.metadata.nodes().into_iter().find(|known| known.id == id);
        found.ok_or_else(|| MemberError::NoSuchNode(name.to_owned()))
    }

    /// A node of the cluster that runs.
    pub fn running_node(&self, name: &str) -> Result<Arc<Stored<records::Node>>, MemberError> {
        let node = self.known_node(name)?;
        if node.id == self.me || self.links.is_up(node.id) {
            Ok(node)
        } else {
            Err(MemberError::NodeNotRunning(name.to_owned()))
        }
    }

    /// Adds a member on a running node. One that is there already is fine; one whose node has lost its data is replaced.
    /// Resolves once the group has applied the change; it may still be catching up then. What cannot be completed is
    /// undone.
    pub async fn add_member(&self, target: &QueueTarget, node: &str, part: Part) -> Result<(), MemberError> {
        let node = self.running_node(node)?;
        let id = node.id;
        let before = self.stored(target)?.members.iter().any(|m| m.node == id);
        let new = records::Member {
            uid: MemberUid(random_u64()),
            node: id,
            node_incarnation: node.incarnation,
            joined: true,
        };
        // Whoever comes second takes the member that the first has written.
        self.write_members(target, |members| {
            if !members.iter().any(|m| m.node == id && m.node_incarnation == new.node_incarnation) {
                members.retain(|m| m.node != id);
                members.push(new);
            }
        })
        .await?;
        let stored = self.stored(target)?;
        let member = stored.members.iter().find(|m| m.node == id).copied().ok_or(MemberError::NotFound)?;
        if id == self.me {
            self.start_here(&stored).await;
        }
        let order = Order::Add { uid: member.uid.0, node: id.0, part };
        let added = self.order(target, order, ADD_TIME).await;
        if added.is_err() && !before && member == new {
            self.undo_add(target, member).await;
        }
        added
    }

    /// Takes a member back that could not be added in time. Where it is not known whether the group has it, it stays:
    /// a member that the group counts must not lose its data.
    async fn undo_add(&self, target: &QueueTarget, member: records::Member) {
        let removed = self.order(target, Order::Remove { uid: member.uid.0 }, ANSWER).await;
        let undone = match removed {
            Ok(()) => self.write_members(target, |members| members.retain(|m| m.uid != member.uid)).await,
            Err(error) => Err(error),
        };
        if let Err(error) = undone {
            tracing::warn!(queue = %target.name, vhost = %target.vhost, %error, "a member that was not added is not removed either");
        }
    }

    /// Removes the member on a node, which may be down. One that is not there is fine.
    pub async fn delete_member(&self, target: &QueueTarget, node: &str) -> Result<(), MemberError> {
        let id = NodeId::of_name(node);
        let stored = self.stored(target)?;
        let Some(member) = stored.members.iter().find(|m| m.node == id).copied() else { return Ok(()) };
        if stored.members.len() == 1 {
            return Err(MemberError::LastNode);
        }
        self.remove_member(target, member.uid).await
    }

    /// Removes a member from the group, and then from the record.
    pub(super) async fn remove_member(&self, target: &QueueTarget, uid: MemberUid) -> Result<(), MemberError> {
        self.order(target, Order::Remove { uid: uid.0 }, REMOVE_TIME).await?;
        self.write_members(target, |members| members.retain(|m| m.uid != uid)).await
    }

    /// Whether every member of a queue votes: only then is another added to many queues at once.
    pub async fn check_settled(&self, target: &QueueTarget) -> Result<(), MemberError> {
        self.order(target, Order::Settled, TRANSFER_TIME).await
    }

    /// Makes this node's member the only one of a queue that has lost its majority for good. What this member does not
    /// have is lost; the other members' data is deleted as soon as their nodes see the queue's new record.
    pub async fn force_shrink(&self, target: &QueueTarget) -> Result<(), MemberError> {
        let stored = self.stored(target)?;
        let own = stored.members.iter().find(|m| m.node == self.me).ok_or(MemberError::NoMemberHere)?;
        let status = self.queues.status(target.group).filter(|s| s.me == own.uid).ok_or(MemberError::NoMemberHere)?;
        if status.stopped.is_some() {
            return Err(MemberError::Stopped);
        }
        // Cut off from the others, this node cannot know that they are lost, nor write down that they are.
        self.metadata.fence(ANSWER).await?;
        if status.leader.is_some() || self.answering_leader(target, LEADERLESS).await.is_some() {
            return Err(MemberError::HasLeader);
        }
        self.queues.make_alone(target.group).await.map_err(|error| match error {
            ChangeError::NotPermitted => MemberError::HasLeader,
            _ => MemberError::NoMemberHere,
        })?;
        let leads = tokio::time::timeout(TRANSFER_TIME, self.queues.wait_leader(target.group)).await;
        leads.map_err(|_| MemberError::Timeout)?.map_err(|_| MemberError::Timeout)?;
        self.write_record(target, |record| {
            record.members.retain(|m| m.uid == own.uid);
            record.leader = Some(self.me);
        })
        .await
    }

    /// Hands a queue's leadership to its member on a node.
    pub async fn transfer_leadership(&self, target: &QueueTarget, node: &str) -> Result<(), MemberError> {
        self.stored(target)?;
        let to = self.known_node(node)?.id.0;
        self.order(target, Order::Transfer { to }, TRANSFER_TIME).await
    }

    /// Members of this node that are lost with its old data, or cannot be read, are replaced by new ones, and those that the
    /// group does not know yet are named to it again.
    pub(crate) async fn complete_members(&self) {
        let quorum = self.metadata.queues().into_iter().filter(|q| q.kind == QueueKind::Quorum);
        // One without a leader takes its time, and keeps no other waiting.
        stream::iter(quorum)
            .for_each_concurrent(AT_ONCE, |queue| async move { self.complete_member(&queue).await })
            .await;
    }

    async fn complete_member(&self, queue: &Queue) {
        let Some(own) = queue.members.iter().find(|m| m.node == self.me) else { return };
        let lost = own.node_incarnation.0 != self.incarnation;
        let damaged = self.quarantine.is_damaged(queue.group);
        if !lost && !damaged && !self.waits_to_join(queue.group, own.uid) {
            return;
        }
        if damaged && let Err(error) = self.replace_damaged(queue, own).await {
            tracing::warn!(
                queue = %queue.name, vhost = %queue.vhost, %error,
                "this node's damaged member is not replaced yet; its data is kept and not used"
            );
            return;
        }
        let Some(target) = self.metadata.queue_target(&queue.vhost, &queue.name) else { return };
        match self.add_member(&target, &self.config.name, Part::Promotable).await {
            Ok(()) => tracing::info!(queue = %queue.name, vhost = %queue.vhost, "this node's member joins the queue"),
            Err(error) => {
                tracing::warn!(queue = %queue.name, vhost = %queue.vhost, %error, "this node's member does not join the queue yet");
            }
        }
    }

    /// Whether the local member still believes what it was started with: nobody has told it anything.
    fn waits_to_join(&self, group: GroupId, own: MemberUid) -> bool {
        let status = self.queues.status(group).filter(|s| s.me == own && s.leader.is_none());
        let begun = MemberRole::Promotable { target: u64::MAX };
        status.is_some_and(|s| s.membership.member(own).is_some_and(|m| m.role == begun))
    }
}
