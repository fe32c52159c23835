//! Programs that use the cluster: publishers, consumers and writers of metadata, each connected to one node.

mod aim;
mod consumer;
mod metadata;
mod publisher;
mod registers;

use warren_proto::ids::{GroupId, NodeId, SessionRef};

pub use consumer::{Consumer, Habits};
pub use metadata::MetadataClient;
pub use publisher::Publisher;
pub use registers::{Reading, RegisterClient};

use crate::judge::SharedJudge;
use crate::message::{Ask, ToSession};

/// What a client may use while it has its turn.
pub struct Turn<'a> {
    /// Now.
    pub now_us: u64,
    /// The judge.
    pub judge: &'a SharedJudge,
    /// Whether the faults are over: finish what is open, begin nothing.
    pub finishing: bool,
    /// What it sends: to the node, for the group's leader.
    pub out: &'a mut Vec<(NodeId, GroupId, Ask)>,
}

impl Turn<'_> {
    /// Sends a request towards a group's leader.
    pub fn send(&mut self, to: NodeId, group: GroupId, ask: Ask) {
        self.out.push((to, group, ask));
    }
}

/// What a client does next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Its next turn comes after this time.
    After(u64),
    /// It closes its session, and opens another later.
    Close,
}

/// A client of any kind.
pub enum Client {
    /// Publishes to a queue.
    Publisher(Box<Publisher>),
    /// Consumes from a queue.
    Consumer(Box<Consumer>),
    /// Writes metadata.
    Metadata(Box<MetadataClient>),
    /// Uses registers in the metadata tree that others use too.
    Registers(Box<RegisterClient>),
}

impl Client {
    /// It is connected to a node, with this session.
    pub fn connected(&mut self, session: SessionRef, turn: &mut Turn<'_>) {
        match self {
            Client::Publisher(c) => c.connected(session, turn),
            Client::Consumer(c) => c.connected(session, turn),
            Client::Metadata(c) => c.connected(),
            Client::Registers(c) => c.connected(),
        }
    }

    /// A queue says something.
    pub fn hear(&mut self, said: ToSession, turn: &mut Turn<'_>) {
        match self {
            Client::Publisher(c) => c.hear(said, turn),
            Client::Consumer(c) => c.hear(said, turn),
            Client::Metadata(_) | Client::Registers(_) => {}
        }
    }

    /// Whether everything that it began is finished.
    pub fn is_idle(&self) -> bool {
        match self {
            Client::Publisher(c) => c.is_idle(),
            Client::Consumer(c) => c.is_idle(),
            Client::Metadata(c) => c.is_idle(),
            Client::Registers(c) => c.is_idle(),
        }
    }

    /// What is open, for a report.
    pub fn describe(&self) -> String {
        match self {
            Client::Publisher(c) => c.describe(),
            Client::Consumer(c) => c.describe(),
            Client::Metadata(c) => c.describe(),
            Client::Registers(c) => c.describe(),
        }
    }

    /// The queue that it uses.
    pub fn group(&self) -> GroupId {
        match self {
            Client::Publisher(c) => c.group(),
            Client::Consumer(c) => c.group(),
            Client::Metadata(_) | Client::Registers(_) => GroupId::METADATA,
        }
    }

    /// Whom it takes for the leader.
    pub fn leader(&self) -> Option<NodeId> {
        match self {
            Client::Publisher(c) => c.leader(),
            Client::Consumer(c) => c.leader(),
            Client::Metadata(_) | Client::Registers(_) => None,
        }
    }
}
