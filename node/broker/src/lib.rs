//! The broker: what every protocol shares.
//!
//! [`Broker`](node::Broker) is one node's broker. A frontend authenticates a client, opens a connection, and one
//! [`Session`](session::Session) per channel; [`operations`] declares, binds and deletes; [`session`] publishes and
//! consumes. [`policy`] says what operators' settings make of queues. [`metadata`] is the replicated tree, [`queue`] the way to queues, [`cluster`] how nodes find each other.

mod abandon;
pub mod access;
pub mod cluster;
pub mod connections;
pub mod dead_letter;
pub mod error;
pub mod feature_flags;
pub mod identity;
pub mod metadata;
pub mod node;
pub mod operations;
pub mod policy;
pub mod queue;
pub mod session;
pub mod start;

pub use connections::{Channel, ChannelFigures, Connection, ConnectionInfo};
pub use error::BrokerError;
pub use node::{Broker, LeaderLocator, Limits, NodeConfig, Retry};
pub use queue::protocol::{ConsumerStatus, QueuedMessage, Settlement, Traits};
pub use session::registry::{CloseReason, EventReceiver, EventSender, SessionEvent};
pub use session::{ConsumerSpec, Delivered, Output, Session};
pub use warren_queues::quorum::SUPPORTED as MACHINE_VERSIONS;
