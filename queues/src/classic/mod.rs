//! The classic queue: one node's memory, with the bodies.
//!
//! It is not replicated and not in a log, so it may change from release to release. Its commands and answers are those
//! of the quorum queue wherever the meaning is the same. What differs: a message that is given back returns to its
//! *original* position; a consumer can be exclusive; the host learns when the last consumer has gone (auto-delete).
//!
//! A client without a prefetch limit, or without acknowledgements, must not make a queue pour its whole backlog into one
//! session's buffers. So no more than [`UNSENT_WINDOW`] messages are on their way to such a consumer: the session says
//! that it has written messages out with [`Command::Sent`], or, where the client does not acknowledge, with
//! [`Command::Settle`].

mod command;
mod consumer;
mod dispatch;
mod effects;
mod invariants;
mod messages;
mod outcome;
mod overview;
mod publish;
mod session_loss;
mod state;
mod subscription;

pub use command::{Attach, Command};
pub use consumer::UNSENT_WINDOW;
pub use effects::{Delivered, Effect, Effects};
pub use overview::{ConsumerInfo, Overview};
pub use state::Queue;

/// The answer to a command of a classic queue.
pub type Reply = crate::reply::Reply<Delivered>;

#[cfg(test)]
mod tests;
