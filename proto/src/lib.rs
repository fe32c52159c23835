//! Everything of Warren's that crosses a wire or reaches a disk, as pure codecs: no sockets, no clock, no runtime.

pub mod amqp091;
pub mod batch;
pub mod ids;
pub mod message;
pub mod peer;
