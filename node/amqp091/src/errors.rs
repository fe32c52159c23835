//! What the broker's errors are in AMQP 0-9-1.

use warren_broker::BrokerError;
use warren_proto::amqp091::{ProtocolError, ReplyCode, Scope};

/// The error that a client is told.
pub fn from_broker(error: BrokerError) -> ProtocolError {
    let (code, closes_connection) = error.reply_code();
    let code = ReplyCode::from_code(code).unwrap_or(ReplyCode::InternalError);
    let mut told = ProtocolError::new(code, error.to_string());
    told.scope = if closes_connection { Scope::Connection } else { Scope::Channel };
    told
}
