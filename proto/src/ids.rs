//! The identities that every layer shares: nodes, groups, members, sessions, and references into a log.

use std::fmt;

use sha2::{Digest, Sha256};

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $repr:ty) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $repr);

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    };
}

id!(
    /// A node, by its name: the first eight bytes of SHA-256 of `name@host`, so that every node computes the same
    /// number without asking anybody.
    NodeId,
    u64
);
id!(
    /// One life of a node's data directory. A wiped node has a new one; it is never zero.
    Incarnation,
    u64
);
id!(
    /// A Raft group. 1 is the metadata group; a re-created queue has a new id.
    GroupId,
    u64
);
id!(
    /// A member of a group: one node's copy of it in one incarnation. Never zero, never reused.
    MemberUid,
    u64
);
id!(
    /// How a group interprets its log (spec: quorum-queues.md, section 11).
    MachineVersion,
    u16
);

impl NodeId {
    /// The id of the node of this name, `name@host`.
    pub fn of_name(name: &str) -> Self {
        let digest = Sha256::digest(name.as_bytes());
        let mut first = [0; 8];
        first.copy_from_slice(&digest[..8]);
        NodeId(u64::from_be_bytes(first))
    }
}

impl GroupId {
    /// The group that holds the metadata tree.
    pub const METADATA: GroupId = GroupId(1);
}

/// A command's place in a group's log: log index and position in the batch, packed so that it sorts as the log does.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Reference(pub u64);

impl Reference {
    /// Bits that hold the position; a batch has at most `1 << POSITION_BITS` commands.
    pub const POSITION_BITS: u32 = 16;

    /// Packs a log index (below 2^48) and a position in that entry's batch.
    pub fn new(index: u64, position: u16) -> Self {
        debug_assert!(index < 1 << (64 - Self::POSITION_BITS));
        Reference(index << Self::POSITION_BITS | u64::from(position))
    }

    /// The log index.
    pub fn index(self) -> u64 {
        self.0 >> Self::POSITION_BITS
    }

    /// The position in the entry's batch.
    pub fn position(self) -> u16 {
        (self.0 & ((1 << Self::POSITION_BITS) - 1)) as u16
    }
}

impl fmt::Debug for Reference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index(), self.position())
    }
}

/// A session as queues see it: one AMQP 0.9.1 channel, one AMQP 1.0 session, one MQTT connection or one internal
/// client. The incarnation is that of the *process start*, so a restarted node's old sessions are known to be gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct SessionRef {
    /// The node that hosts the session.
    pub node: NodeId,
    /// The start of that node's process in which the session lives.
    pub incarnation: u64,
    /// Unique in that process.
    pub id: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nodes_id_is_the_beginning_of_its_names_digest() {
        assert_eq!(NodeId::of_name("a@h"), NodeId(0x157c6cff660c09ea));
    }
}
