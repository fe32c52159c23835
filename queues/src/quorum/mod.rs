//! The quorum queue: the machine that every member of a queue's Raft group runs.
//!
//! It holds a reference, a size and a few counts per message; bodies are read from the log by whoever delivers them.
//! [`Queue::apply`] is deterministic and total: every command has a result in every state, on every member the same.
//!
//! | Machine version | What changed |
//! |---|---|
//! | [`MV1`] | The first. Two lanes of priority, of which the higher gets two turns of three. The delivery limit compares how often a message was *acquired*; a rejected and requeued message counts as merely returned; when a node is cut off, what all its consumers hold is returned at once as failed. |
//! | [`MV2`] | 32 lanes of priority, the highest first. Returned messages may be delayed, consumers time out, a purge takes delayed and dead messages as well. The delivery limit compares failed *deliveries*; a rejected and requeued message counts as failed; a consumer that is cut off keeps its messages for [`Config::consumer_disconnected_timeout_ms`], then they are returned as not failed. |
//!
//! What a released version does is frozen: a fix that changes state is a new version.

mod codec;
mod command;
mod config;
mod consumer;
mod dispatch;
mod dlx;
mod effects;
mod encoder;
mod enqueue;
mod invariants;
mod leadership;
mod limits;
mod live;
mod messages;
mod outcome;
mod overview;
mod session_loss;
mod single_active;
mod snapshot;
mod state;
mod subscription;
mod time;
mod version;

pub use codec::{Decoder, stored_message};
pub use command::{Attach, Command, Enqueue, Mode, Modify, Request, Traits};
pub use config::{Config, DeadLetter, DeadLetterStrategy, DelayedRetry, Overflow, RetryOn};
pub use effects::{CreditReply, DeadReason, Delivered, Effect, Effects, TimerKey};
pub use encoder::{EncodeError, Encoder};
pub use messages::Annotations;
pub use overview::{ConsumerInfo, ConsumerStatus, Overview};
pub use state::{Meta, Queue};
pub use version::{LATEST, MV1, MV2, SUPPORTED};

/// The answer to a command of a quorum queue.
pub type Reply = crate::reply::Reply<Delivered>;

#[cfg(test)]
mod tests;
