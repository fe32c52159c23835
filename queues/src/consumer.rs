//! How consumers are named.

use bytes::Bytes;
use warren_proto::ids::{Reference, SessionRef};

/// A consumer as its session names it: unique in a queue while the consumer, or anything that it holds, is there.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConsumerId {
    /// The session that consumes. First, so that a session's consumers are neighbours in an ordered map.
    pub session: SessionRef,
    /// The consumer tag, link handle or the like. Unique in the session.
    pub tag: Bytes,
}

impl ConsumerId {
    /// The same name in memory of its own: a tag decoded from a log entry would keep the whole entry in memory.
    pub(crate) fn detached(&self) -> Self {
        ConsumerId { session: self.session, tag: Bytes::copy_from_slice(&self.tag) }
    }
}

/// The short name of a consumer in later commands: the reference of the command that created it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConsumerKey(pub u64);

impl From<Reference> for ConsumerKey {
    fn from(reference: Reference) -> Self {
        ConsumerKey(reference.0)
    }
}

/// Either name of a consumer. A session that lost its state after a cancel knows only the long one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ConsumerRef {
    /// As answered to the attach.
    Key(ConsumerKey),
    /// As given in the attach.
    Id(ConsumerId),
}

impl From<ConsumerKey> for ConsumerRef {
    fn from(key: ConsumerKey) -> Self {
        ConsumerRef::Key(key)
    }
}

impl From<ConsumerId> for ConsumerRef {
    fn from(id: ConsumerId) -> Self {
        ConsumerRef::Id(id)
    }
}

/// What is only kept to be shown: it changes nothing that the machine does.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ConsumerMeta {
    /// Whether the client acknowledges. If not, the session settles each message when it has written it out.
    pub ack: bool,
    /// The client's arguments, in whatever encoding the frontend chose.
    pub args: Bytes,
    /// The user who consumes.
    pub username: Bytes,
}

impl ConsumerMeta {
    pub(crate) fn detached(&self) -> Self {
        ConsumerMeta {
            ack: self.ack,
            args: Bytes::copy_from_slice(&self.args),
            username: Bytes::copy_from_slice(&self.username),
        }
    }
}
