//! The way in for AMQP 0-9-1 clients, with RabbitMQ's extensions.
//!
//! [`Listener`] accepts sockets; each connection is one task that reads, handles and writes, and owns its channels with
//! their broker sessions. Everything that one read of the socket brought is one batch: publishes go to each queue as one
//! request, answers as ranges, confirms as few frames, output with one vectored write.
//!
//! The codec is `warren_proto::amqp091`, what is behind it `warren_broker`; this crate translates.

mod channel;
mod connection;
mod errors;
mod listener;
mod settings;

pub use listener::Listener;
pub use settings::{AnonymousLogin, Mechanism, Settings, TcpOptions};
