//! How a session is lost.

/// Why a queue stops hearing from a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionLoss {
    /// It ended, crashed, lost its connection, or its node restarted: it will never be heard of again.
    Gone,
    /// Its node cannot be reached: it may still be there, and come back.
    NoConnection,
}
