//! Why a write did not happen. In each case the tree is unchanged.

use super::node::NodeInfo;
use super::path::Path;

/// Reason that a transaction itself gives for aborting.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash, PartialOrd, Ord)]
pub enum AbortCode {
    /// The virtual host does not exist.
    NoSuchVhost,
    /// The user does not exist.
    NoSuchUser,
    /// The exchange (for a binding: its source) does not exist.
    NoSuchExchange,
    /// The binding's destination does not exist.
    NoSuchDestination,
    /// Neither the binding's source nor its destination exists.
    NoSuchSourceAndDestination,
    /// The exchange still has bindings.
    InUse,
    /// A code of a newer binary.
    Other(u32),
}

impl MetaError {
    /// The word that RabbitMQ's store has for it, or one like it.
    pub fn word(&self) -> &'static str {
        match self {
            MetaError::NodeNotFound { .. } => "node_not_found",
            MetaError::MismatchingNode { .. } => "mismatching_node",
            MetaError::KeepWhileConditionsNotMet { .. } => "keep_while_conditions_not_met",
            MetaError::Aborted { .. } => "aborted",
            MetaError::PayloadTooLarge => "payload_too_large",
            MetaError::TxnTooLarge => "txn_too_large",
            MetaError::InvalidPath => "invalid_path",
            MetaError::WrongKind { .. } => "wrong_kind",
            MetaError::InvalidField { .. } => "invalid_field",
            MetaError::UpdateInReadOnlyTransaction => "denied_update_in_readonly_tx",
            MetaError::Expired => "expired",
            MetaError::UnknownCommand => "unknown_command",
        }
    }
}

impl AbortCode {
    pub(crate) fn number(self) -> u32 {
        match self {
            AbortCode::NoSuchVhost => 1,
            AbortCode::NoSuchUser => 2,
            AbortCode::NoSuchExchange => 3,
            AbortCode::NoSuchDestination => 4,
            AbortCode::NoSuchSourceAndDestination => 5,
            AbortCode::InUse => 6,
            AbortCode::Other(number) => number,
        }
    }

    pub(crate) fn from_number(number: u32) -> Self {
        match number {
            1 => AbortCode::NoSuchVhost,
            2 => AbortCode::NoSuchUser,
            3 => AbortCode::NoSuchExchange,
            4 => AbortCode::NoSuchDestination,
            5 => AbortCode::NoSuchSourceAndDestination,
            6 => AbortCode::InUse,
            other => AbortCode::Other(other),
        }
    }
}

/// A write was refused by the state machine, on every member alike.
#[derive(Clone, PartialEq, Debug, thiserror::Error)]
pub enum MetaError {
    /// The node to update does not exist.
    #[error("{path} does not exist")]
    NodeNotFound {
        /// The node.
        path: Path,
    },
    /// The node exists and does not meet the condition; carries what is stored.
    #[error("{path} exists and does not meet the condition")]
    MismatchingNode {
        /// The node.
        path: Path,
        /// What is stored there.
        node: Box<NodeInfo>,
    },
    /// A condition that the node was to depend on does not hold.
    #[error("a keep-while condition of {path} does not hold: number {watch}")]
    KeepWhileConditionsNotMet {
        /// The node that was to be written.
        path: Path,
        /// Which of its conditions, from zero.
        watch: u32,
    },
    /// The transaction aborted itself.
    #[error("transaction aborted: {code:?}")]
    Aborted {
        /// Its reason.
        code: AbortCode,
    },
    /// The payload exceeds [`MAX_PAYLOAD`](super::MAX_PAYLOAD).
    #[error("payload too large")]
    PayloadTooLarge,
    /// The command has more operations, or would visit more nodes, than one command may.
    #[error("transaction too large")]
    TxnTooLarge,
    /// The path is the root or deeper than [`MAX_DEPTH`](super::MAX_DEPTH).
    #[error("invalid path")]
    InvalidPath,
    /// The node holds something other than the set or the counter that the operation works on.
    #[error("{path} holds another kind of payload")]
    WrongKind {
        /// The node.
        path: Path,
    },
    /// A field that the record does not have, or that cannot have such a value.
    #[error("{path} has no field `{field}` that could be set so")]
    InvalidField {
        /// The node.
        path: Path,
        /// The field.
        field: Box<str>,
    },
    /// A transaction that only reads was to write.
    #[error("an update in a read-only transaction")]
    UpdateInReadOnlyTransaction,
    /// The command reached the log long after its caller had given up; whether an earlier copy of it was done is not
    /// known any more.
    #[error("the request had expired")]
    Expired,
    /// Not a command that the machine's version defines.
    #[error("unknown command")]
    UnknownCommand,
}
