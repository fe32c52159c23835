//! Every method of AMQP 0-9-1 and of RabbitMQ's extensions, as plain structs and one enum over them.
//!
//! Fields are named as in the standard; `type` is called `kind`. Reserved fields have the type [`Reserved`], so that
//! `..Default::default()` fills them.

use bytes::{Buf, BufMut, Bytes, BytesMut};

use super::field::FieldTable;
use super::frame::{FRAME_END, FrameKind};
use super::octets::{Argument, ArgumentReader, ArgumentWriter, MalformedArguments, Reserved};
use super::reply::{ProtocolError, ReplyCode};
use super::short_str::ShortStr;

/// A long string: arbitrary bytes.
pub type LongStr = Bytes;

macro_rules! methods {
    ($($name:ident = ($class:literal, $id:literal) { $($field:ident: $ty:ty),* $(,)? })*) => {
        $(
            #[allow(missing_docs, reason = "the standard documents each method and field under the same name")]
            #[derive(Debug, Clone, Default, PartialEq)]
            pub struct $name { $(pub $field: $ty,)* }

            impl $name {
                /// Class and method id.
                pub const IDS: (u16, u16) = ($class, $id);

                fn read(#[allow(unused)] r: &mut ArgumentReader<'_>) -> Result<Self, MalformedArguments> {
                    Ok($name { $($field: Argument::read(r)?,)* })
                }

                fn write(&self, #[allow(unused)] w: &mut ArgumentWriter<'_>) {
                    $(self.$field.write(w);)*
                }

                /// Appends the method's frame to `out`.
                pub fn write_frame(&self, channel: u16, out: &mut BytesMut) {
                    frame(channel, Self::IDS, out, |w| self.write(w));
                }
            }

            impl From<$name> for Method {
                fn from(method: $name) -> Self {
                    Method::$name(method)
                }
            }
        )*

        /// Any method.
        #[allow(missing_docs, reason = "each variant is the method of that name")]
        #[derive(Debug, Clone, PartialEq)]
        pub enum Method { $($name($name),)* }

        impl Method {
            /// Class and method id.
            pub fn ids(&self) -> (u16, u16) {
                match self { $(Method::$name(_) => $name::IDS,)* }
            }

            /// Appends the method's frame to `out`.
            pub fn write_frame(&self, channel: u16, out: &mut BytesMut) {
                match self { $(Method::$name(method) => method.write_frame(channel, out),)* }
            }

            fn read(ids: (u16, u16), r: &mut ArgumentReader<'_>) -> Option<Result<Self, MalformedArguments>> {
                match ids {
                    $(($class, $id) => Some($name::read(r).map(Method::$name)),)*
                    _ => None,
                }
            }
        }
    };
}

methods! {
    ConnectionStart = (10, 10) {
        version_major: u8, version_minor: u8, server_properties: FieldTable, mechanisms: LongStr, locales: LongStr,
    }
    ConnectionStartOk = (10, 11) {
        client_properties: FieldTable, mechanism: ShortStr, response: LongStr, locale: ShortStr,
    }
    ConnectionSecure = (10, 20) { challenge: LongStr }
    ConnectionSecureOk = (10, 21) { response: LongStr }
    ConnectionTune = (10, 30) { channel_max: u16, frame_max: u32, heartbeat: u16 }
    ConnectionTuneOk = (10, 31) { channel_max: u16, frame_max: u32, heartbeat: u16 }
    ConnectionOpen = (10, 40) { virtual_host: ShortStr, capabilities: Reserved<ShortStr>, insist: Reserved<bool> }
    ConnectionOpenOk = (10, 41) { known_hosts: Reserved<ShortStr> }
    ConnectionClose = (10, 50) { reply_code: u16, reply_text: ShortStr, class_id: u16, method_id: u16 }
    ConnectionCloseOk = (10, 51) {}
    ConnectionBlocked = (10, 60) { reason: ShortStr }
    ConnectionUnblocked = (10, 61) {}
    ConnectionUpdateSecret = (10, 70) { new_secret: LongStr, reason: ShortStr }
    ConnectionUpdateSecretOk = (10, 71) {}

    ChannelOpen = (20, 10) { out_of_band: Reserved<ShortStr> }
    ChannelOpenOk = (20, 11) { channel_id: Reserved<LongStr> }
    ChannelFlow = (20, 20) { active: bool }
    ChannelFlowOk = (20, 21) { active: bool }
    ChannelClose = (20, 40) { reply_code: u16, reply_text: ShortStr, class_id: u16, method_id: u16 }
    ChannelCloseOk = (20, 41) {}

    AccessRequest = (30, 10) {
        realm: ShortStr, exclusive: bool, passive: bool, active: bool, write: bool, read: bool,
    }
    AccessRequestOk = (30, 11) { ticket: u16 }

    ExchangeDeclare = (40, 10) {
        ticket: Reserved<u16>, exchange: ShortStr, kind: ShortStr, passive: bool, durable: bool, auto_delete: bool,
        internal: bool, nowait: bool, arguments: FieldTable,
    }
    ExchangeDeclareOk = (40, 11) {}
    ExchangeDelete = (40, 20) { ticket: Reserved<u16>, exchange: ShortStr, if_unused: bool, nowait: bool }
    ExchangeDeleteOk = (40, 21) {}
    ExchangeBind = (40, 30) {
        ticket: Reserved<u16>, destination: ShortStr, source: ShortStr, routing_key: ShortStr, nowait: bool,
        arguments: FieldTable,
    }
    ExchangeBindOk = (40, 31) {}
    ExchangeUnbind = (40, 40) {
        ticket: Reserved<u16>, destination: ShortStr, source: ShortStr, routing_key: ShortStr, nowait: bool,
        arguments: FieldTable,
    }
    ExchangeUnbindOk = (40, 51) {}

    QueueDeclare = (50, 10) {
        ticket: Reserved<u16>, queue: ShortStr, passive: bool, durable: bool, exclusive: bool, auto_delete: bool,
        nowait: bool, arguments: FieldTable,
    }
    QueueDeclareOk = (50, 11) { queue: ShortStr, message_count: u32, consumer_count: u32 }
    QueueBind = (50, 20) {
        ticket: Reserved<u16>, queue: ShortStr, exchange: ShortStr, routing_key: ShortStr, nowait: bool,
        arguments: FieldTable,
    }
    QueueBindOk = (50, 21) {}
    QueuePurge = (50, 30) { ticket: Reserved<u16>, queue: ShortStr, nowait: bool }
    QueuePurgeOk = (50, 31) { message_count: u32 }
    QueueDelete = (50, 40) { ticket: Reserved<u16>, queue: ShortStr, if_unused: bool, if_empty: bool, nowait: bool }
    QueueDeleteOk = (50, 41) { message_count: u32 }
    QueueUnbind = (50, 50) {
        ticket: Reserved<u16>, queue: ShortStr, exchange: ShortStr, routing_key: ShortStr, arguments: FieldTable,
    }
    QueueUnbindOk = (50, 51) {}

    BasicQos = (60, 10) { prefetch_size: u32, prefetch_count: u16, global: bool }
    BasicQosOk = (60, 11) {}
    BasicConsume = (60, 20) {
        ticket: Reserved<u16>, queue: ShortStr, consumer_tag: ShortStr, no_local: bool, no_ack: bool, exclusive: bool,
        nowait: bool, arguments: FieldTable,
    }
    BasicConsumeOk = (60, 21) { consumer_tag: ShortStr }
    BasicCancel = (60, 30) { consumer_tag: ShortStr, nowait: bool }
    BasicCancelOk = (60, 31) { consumer_tag: ShortStr }
    BasicPublish = (60, 40) {
        ticket: Reserved<u16>, exchange: ShortStr, routing_key: ShortStr, mandatory: bool, immediate: bool,
    }
    BasicReturn = (60, 50) { reply_code: u16, reply_text: ShortStr, exchange: ShortStr, routing_key: ShortStr }
    BasicDeliver = (60, 60) {
        consumer_tag: ShortStr, delivery_tag: u64, redelivered: bool, exchange: ShortStr, routing_key: ShortStr,
    }
    BasicGet = (60, 70) { ticket: Reserved<u16>, queue: ShortStr, no_ack: bool }
    BasicGetOk = (60, 71) {
        delivery_tag: u64, redelivered: bool, exchange: ShortStr, routing_key: ShortStr, message_count: u32,
    }
    BasicGetEmpty = (60, 72) { cluster_id: Reserved<ShortStr> }
    BasicAck = (60, 80) { delivery_tag: u64, multiple: bool }
    BasicReject = (60, 90) { delivery_tag: u64, requeue: bool }
    BasicRecoverAsync = (60, 100) { requeue: bool }
    BasicRecover = (60, 110) { requeue: bool }
    BasicRecoverOk = (60, 111) {}
    BasicNack = (60, 120) { delivery_tag: u64, multiple: bool, requeue: bool }

    ConfirmSelect = (85, 10) { nowait: bool }
    ConfirmSelectOk = (85, 11) {}

    TxSelect = (90, 10) {}
    TxSelectOk = (90, 11) {}
    TxCommit = (90, 20) {}
    TxCommitOk = (90, 21) {}
    TxRollback = (90, 30) {}
    TxRollbackOk = (90, 31) {}
}

impl Method {
    /// Reads a method frame's payload. An unknown method is `COMMAND_INVALID`, arguments that cannot be read are
    /// `FRAME_ERROR`, or `SYNTAX_ERROR` when a table is at fault.
    pub fn decode(payload: &Bytes) -> Result<Method, ProtocolError> {
        let mut head = &payload[..];
        if head.len() < 4 {
            return Err(ProtocolError::new(ReplyCode::FrameError, "method frame without a method"));
        }
        let ids = (head.get_u16(), head.get_u16());
        let mut reader = ArgumentReader::new(payload, 4);
        let Some(method) = Method::read(ids, &mut reader) else {
            let text = format!("unknown method {}.{}", ids.0, ids.1);
            return Err(ProtocolError::new(ReplyCode::CommandInvalid, text).in_method(ids));
        };
        method.and_then(|method| reader.finish().map(|()| method)).map_err(|e| ProtocolError::from(e).in_method(ids))
    }

    /// Whether a content header and body follow the method.
    pub fn has_content(&self) -> bool {
        matches!(
            self,
            Method::BasicPublish(_) | Method::BasicReturn(_) | Method::BasicDeliver(_) | Method::BasicGetOk(_)
        )
    }
}

fn frame(channel: u16, ids: (u16, u16), out: &mut BytesMut, write: impl FnOnce(&mut ArgumentWriter<'_>)) {
    out.put_u8(FrameKind::Method.octet());
    out.put_u16(channel);
    let size_at = out.len();
    out.put_u32(0);
    out.put_u16(ids.0);
    out.put_u16(ids.1);
    write(&mut ArgumentWriter::new(out));
    let size = (out.len() - size_at - 4) as u32;
    out[size_at..size_at + 4].copy_from_slice(&size.to_be_bytes());
    out.put_u8(FRAME_END);
}
