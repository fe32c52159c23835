//! AMQP 0-9-1 with RabbitMQ's extensions, as a codec that a server and a client can use.
//!
//! Bytes in: [`FrameLimits`] measures the whole frames of a read buffer and [`Frames`] walks them; a method frame's
//! payload is read with [`Method::decode`], or with [`PublishRef`] and [`DeliverRef`] where every message counts;
//! [`Assembly`] puts contents together. Bytes out: every method writes its own frame, contents go through
//! [`write_deliver`] and its kin, into a `BytesMut` or an [`Egress`].
//!
//! Nothing here panics on foreign bytes: what cannot be read is a [`ProtocolError`] with its reply code and scope.

mod content;
mod egress;
mod field;
mod frame;
mod method;
mod negotiation;
mod octets;
mod properties;
mod reply;
mod short_str;
mod transfer;

#[cfg(test)]
mod tests;

pub use content::{Assembly, BASIC_CLASS, Content, ContentHeader, MAX_BODY_SIZE};
pub use egress::{Egress, FrameSink, SHARE_BODY_ABOVE};
pub use field::{ArrayRef, FieldTable, FieldValue, MAX_DEPTH, TableError, TableRef, ValueRef};
pub use frame::{FRAME_END, FRAME_MIN_SIZE, FRAME_OVERHEAD, Frame, FrameKind, FrameLimits, Frames, write_heartbeat};
pub use method::*;
pub use negotiation::{Credentials, HEADER_0_9_1, HEADER_1_0_SASL, Mistake, Opening, Tuning};
pub use octets::{MalformedArguments, Reserved};
pub use properties::{Properties, PropertiesRef, Property};
pub use reply::{ProtocolError, ReplyCode, Scope};
pub use short_str::{ShortStr, ShortStrError};
pub use transfer::{
    DeliverRef, OutgoingContent, PublishRef, method_ids, verbatim, write_ack, write_content, write_deliver,
    write_get_ok, write_publish, write_return,
};
