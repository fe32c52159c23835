//! The queue state machines: pure, deterministic, without I/O, clock or randomness.
//!
//! [`quorum::Queue`] is replicated: every member of a Raft group applies the same commands and gets the same state;
//! bodies stay in the log. [`classic::Queue`] lives in the memory of one node and holds its bodies. Both take a
//! command, change their state, answer a [`Reply`] and push what must happen outside into an [`Effects`] buffer.

pub mod classic;
pub mod quorum;

mod checked_out;
mod consumer;
mod consumers;
mod defect;
mod effects;
mod enqueuer;
mod message;
mod msg_ids;
mod reply;
mod service;
mod session;
mod sessions;
mod wire;

#[cfg(feature = "defects")]
pub use defect::{Defect, break_rule};

pub use consumer::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef};
pub use effects::{Carries, Deliver, Effects};
pub use enqueuer::Origin;
pub use message::StoredMessage;
pub use msg_ids::{MsgIds, Run};
pub use reply::Reply;
pub use session::SessionLoss;
pub use wire::DecodeError;
