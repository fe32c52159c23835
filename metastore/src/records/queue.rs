//! Queues.

use std::sync::Arc;

use prost::Message;
use warren_proto::ids::{GroupId, Incarnation, MemberUid, NodeId, Reference};

use super::stored::{self, Invalid, Record, Stored, Unknown};
use super::{layout, vhost};
use crate::machine::Write;
use crate::tree::{AbortCode, Comparison, Component, Condition, Guard, Op, Pattern, Payload, Step, Tree};

/// What runs a queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, Hash)]
pub enum QueueKind {
    /// On its home node alone.
    #[default]
    Classic,
    /// A Raft group.
    Quorum,
}

impl QueueKind {
    /// The name, as clients write it in `x-queue-type`.
    pub fn name(self) -> &'static str {
        match self {
            QueueKind::Classic => "classic",
            QueueKind::Quorum => "quorum",
        }
    }
}

/// The connection that an exclusive queue belongs to.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct SessionOwner {
    /// The node that the connection is on.
    pub node: NodeId,
    /// The start of that node's process: a restarted node's old connections are known to be gone.
    pub incarnation: u64,
    /// The connection, unique in that process.
    pub connection: u64,
}

/// One copy of a quorum queue.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
pub struct Member {
    /// Its id in the group.
    pub uid: MemberUid,
    /// The node that holds it.
    pub node: NodeId,
    /// The life of that node's data directory that holds it.
    pub node_incarnation: Incarnation,
    /// Added to a group that existed: it starts without a vote. The others founded the group.
    pub joined: bool,
}

/// A queue.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Queue {
    /// The vhost.
    pub vhost: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// What runs it.
    pub kind: QueueKind,
    /// Whether it survives its node's restart.
    pub durable: bool,
    /// Whether it goes with its last consumer.
    pub auto_delete: bool,
    /// The connection that it belongs to and goes with.
    pub exclusive_owner: Option<SessionOwner>,
    /// Its arguments: an AMQP 0.9.1 field table without its length.
    pub arguments: Arc<[u8]>,
    /// Its identity, never reused: the Raft group of a quorum queue, a unique number for a classic one.
    pub group: GroupId,
    /// The node that a classic queue lives on, or where a quorum queue was declared.
    pub home: NodeId,
    /// The copies of a quorum queue.
    pub members: Vec<Member>,
    /// Where a quorum queue's leader was when it last looked: a hint, behind what the group knows.
    pub leader: Option<NodeId>,
    /// The machine version that a quorum queue's group was founded with; 0 where it is not recorded.
    pub machine_version: u16,
    /// The user who created it.
    pub user: Arc<str>,
    /// When it was declared, wall clock ms.
    pub created_ms: u64,
    /// See [`Unknown`].
    pub unknown: Unknown,
}

#[derive(Clone, PartialEq, Message)]
struct Wire {
    #[prost(string, tag = "1")]
    vhost: String,
    #[prost(string, tag = "2")]
    name: String,
    /// 0 classic, 1 quorum.
    #[prost(uint32, tag = "3")]
    kind: u32,
    #[prost(bool, tag = "4")]
    durable: bool,
    #[prost(bool, tag = "5")]
    auto_delete: bool,
    #[prost(message, optional, tag = "6")]
    exclusive_owner: Option<WireOwner>,
    #[prost(bytes = "vec", tag = "7")]
    arguments: Vec<u8>,
    #[prost(fixed64, tag = "8")]
    group: u64,
    #[prost(fixed64, tag = "9")]
    home: u64,
    #[prost(message, repeated, tag = "10")]
    members: Vec<WireMember>,
    #[prost(string, tag = "11")]
    user: String,
    #[prost(uint64, tag = "12")]
    created_ms: u64,
    #[prost(fixed64, optional, tag = "13")]
    leader: Option<u64>,
    #[prost(uint32, tag = "14")]
    machine_version: u32,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireOwner {
    #[prost(fixed64, tag = "1")]
    node: u64,
    #[prost(fixed64, tag = "2")]
    incarnation: u64,
    #[prost(uint64, tag = "3")]
    connection: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct WireMember {
    #[prost(fixed64, tag = "1")]
    uid: u64,
    #[prost(fixed64, tag = "2")]
    node: u64,
    #[prost(fixed64, tag = "3")]
    node_incarnation: u64,
    #[prost(bool, tag = "4")]
    joined: bool,
}

impl Record for Queue {
    const KIND: u16 = 8;
    const WHAT: &'static str = "queue";

    fn encode(&self) -> Payload {
        let owner = |owner: SessionOwner| WireOwner {
            node: owner.node.0,
            incarnation: owner.incarnation,
            connection: owner.connection,
        };
        let member = |member: &Member| WireMember {
            uid: member.uid.0,
            node: member.node.0,
            node_incarnation: member.node_incarnation.0,
            joined: member.joined,
        };
        let wire = Wire {
            vhost: self.vhost.to_string(),
            name: self.name.to_string(),
            kind: match self.kind {
                QueueKind::Classic => 0,
                QueueKind::Quorum => 1,
            },
            durable: self.durable,
            auto_delete: self.auto_delete,
            exclusive_owner: self.exclusive_owner.map(owner),
            arguments: self.arguments.to_vec(),
            group: self.group.0,
            home: self.home.0,
            members: self.members.iter().map(member).collect(),
            user: self.user.to_string(),
            created_ms: self.created_ms,
            leader: self.leader.map(|node| node.0),
            machine_version: self.machine_version.into(),
        };
        stored::encode::<Self>(&wire, &self.unknown)
    }

    fn decode(payload: &Payload) -> Result<Self, Invalid> {
        let (wire, unknown) = stored::decode::<Self, Wire>(payload, 14)?;
        let owner = |owner: WireOwner| SessionOwner {
            node: NodeId(owner.node),
            incarnation: owner.incarnation,
            connection: owner.connection,
        };
        let member = |member: &WireMember| Member {
            uid: MemberUid(member.uid),
            node: NodeId(member.node),
            node_incarnation: Incarnation(member.node_incarnation),
            joined: member.joined,
        };
        Ok(Queue {
            vhost: wire.vhost.into(),
            name: wire.name.into(),
            kind: match wire.kind {
                0 => QueueKind::Classic,
                1 => QueueKind::Quorum,
                _ => return Err(Invalid { what: Self::WHAT }),
            },
            durable: wire.durable,
            auto_delete: wire.auto_delete,
            exclusive_owner: wire.exclusive_owner.map(owner),
            arguments: wire.arguments.into(),
            group: GroupId(wire.group),
            home: NodeId(wire.home),
            members: wire.members.iter().map(member).collect(),
            user: wire.user.into(),
            created_ms: wire.created_ms,
            leader: wire.leader.map(NodeId),
            machine_version: u16::try_from(wire.machine_version).map_err(|_| Invalid { what: Self::WHAT })?,
            unknown,
        })
    }
}

impl Queue {
    /// The queue of a name.
    pub fn get(tree: &Tree, vhost: &str, name: &str) -> Result<Option<Stored<Self>>, Invalid> {
        stored::get(tree, &layout::queue(vhost, name))
    }

    /// All queues of a vhost, in order of their names.
    pub fn list(tree: &Tree, vhost: &str) -> Result<Vec<Stored<Self>>, Invalid> {
        stored::list(tree, &layout::queues(vhost), &[])
    }

    /// Creates the queue; aborts with `NoSuchVhost`. Read the reply with [`Record::created`].
    pub fn create_or_get(&self) -> Write {
        let create = Op::Put {
            path: layout::queue(&self.vhost, &self.name),
            condition: Condition::NodeExists(false),
            payload: Some(self.encode()),
            keep_while: None,
        };
        Op::If(vhost::exists(&self.vhost), vec![create], vec![Op::Abort(AbortCode::NoSuchVhost)]).into()
    }

    /// Creates the queue unless there is one of its name, whatever it is like; aborts with `NoSuchVhost`.
    pub fn create_if_absent(&self) -> Write {
        let path = layout::queue(&self.vhost, &self.name);
        let (condition, payload) = (Condition::NodeExists(false), Some(self.encode()));
        let create = vec![Op::Put { path: path.clone(), condition, payload, keep_while: None }];
        let create = vec![Op::If(Guard::Exists(path.into()), Vec::new(), create)];
        Op::If(vhost::exists(&self.vhost), create, vec![Op::Abort(AbortCode::NoSuchVhost)]).into()
    }

    /// Replaces the record if it has not changed since it was read.
    pub fn update(&self, mod_revision: Reference) -> Write {
        let condition = Condition::ModRevision(Comparison::Eq, mod_revision);
        let path = layout::queue(&self.vhost, &self.name);
        Op::Put { path, condition, payload: Some(self.encode()), keep_while: None }.into()
    }

    /// Deletes the incarnation of the queue that `create_revision` names, with the bindings to it. One declared again
    /// under the same name stays; to delete nothing is no error.
    pub fn delete(vhost: &str, name: &str, create_revision: Reference) -> Write {
        let target = Condition::All(vec![
            Condition::Is(Component::name(name)),
            Condition::CreateRevision(Comparison::Eq, create_revision),
        ]);
        Op::Delete(Pattern::from(layout::queues(vhost)).join([Step::Where(target)])).into()
    }
}
