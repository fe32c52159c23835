//! What an operation of the broker can fail with. Each variant says what a client can do about it; frontends map it to
//! their protocol's codes (the AMQP 0.9.1 reply code is given here because RabbitMQ's other protocols borrow it).

use thiserror::Error;

/// An operation that was not carried out.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum BrokerError {
    /// No such vhost, exchange, queue or user; 404.
    #[error("{0}")]
    NotFound(String),
    /// The user lacks a permission, or the name is reserved; 403.
    #[error("{0}")]
    AccessRefused(String),
    /// An exclusive queue of another connection; 405.
    #[error("{0}")]
    ResourceLocked(String),
    /// An argument, an equivalence check or a state forbids it; 406.
    #[error("{0}")]
    PreconditionFailed(String),
    /// Warren does not offer this; 540.
    #[error("{0}")]
    NotImplemented(String),
    /// A limit or a rule of the connection forbids it; 530.
    #[error("{0}")]
    NotAllowed(String),
    /// No majority answered in time; whether it happened is unknown; 541.
    #[error("{0}")]
    Timeout(String),
    /// A deprecated feature that is denied here; 541.
    #[error("{0}")]
    Deprecated(String),
    /// A fault inside the broker; 541.
    #[error("{0}")]
    Internal(String),
}

impl BrokerError {
    /// The AMQP 0.9.1 reply code, and whether it closes the connection rather than the channel.
    pub fn reply_code(&self) -> (u16, bool) {
        match self {
            BrokerError::NotFound(_) => (404, false),
            BrokerError::AccessRefused(_) => (403, false),
            BrokerError::ResourceLocked(_) => (405, false),
            BrokerError::PreconditionFailed(_) => (406, false),
            BrokerError::NotImplemented(_) => (540, true),
            BrokerError::NotAllowed(_) => (530, true),
            BrokerError::Timeout(_) | BrokerError::Deprecated(_) | BrokerError::Internal(_) => (541, true),
        }
    }
}

/// No queue of that name.
pub fn no_queue(vhost: &str, name: &str) -> BrokerError {
    BrokerError::NotFound(format!("no queue '{name}' in vhost '{vhost}'"))
}

/// No exchange of that name.
pub fn no_exchange(vhost: &str, name: &str) -> BrokerError {
    BrokerError::NotFound(format!("no exchange '{name}' in vhost '{vhost}'"))
}
