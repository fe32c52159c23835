//! Reply codes and the errors that carry them.

use std::borrow::Cow;
use std::fmt;

use super::short_str::ShortStr;

/// What an error ends: the channel it happened on, or the whole connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Scope {
    /// Answered by `channel.close`.
    Channel,
    /// Answered by `connection.close` on channel 0.
    Connection,
}

macro_rules! reply_codes {
    ($($(#[$doc:meta])* $name:ident = $code:literal $text:literal $scope:ident,)*) => {
        /// A reply code of the standard, with the scope that Warren gives it.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ReplyCode { $($(#[$doc])* $name,)* }

        impl ReplyCode {
            /// Every code that Warren knows.
            pub const ALL: &'static [ReplyCode] = &[$(ReplyCode::$name,)*];

            /// The number on the wire.
            pub const fn code(self) -> u16 {
                match self { $(ReplyCode::$name => $code,)* }
            }

            /// The name that reply texts begin with.
            pub const fn name(self) -> &'static str {
                match self { $(ReplyCode::$name => $text,)* }
            }

            /// What the code ends where nothing else is said.
            pub const fn scope(self) -> Scope {
                match self { $(ReplyCode::$name => Scope::$scope,)* }
            }

            /// The code for a number, if Warren knows it.
            pub fn from_code(code: u16) -> Option<Self> {
                match code { $($code => Some(ReplyCode::$name),)* _ => None }
            }
        }
    };
}

reply_codes! {
    /// A clean close.
    Success = 200 "REPLY_SUCCESS" Connection,
    /// Not sent; oversized publishes get [`ReplyCode::PreconditionFailed`].
    ContentTooLarge = 311 "CONTENT_TOO_LARGE" Channel,
    /// In `basic.return`: mandatory and unroutable.
    NoRoute = 312 "NO_ROUTE" Channel,
    /// Never sent: immediate delivery is not supported.
    NoConsumers = 313 "NO_CONSUMERS" Channel,
    /// The operator or the node ends the connection.
    ConnectionForced = 320 "CONNECTION_FORCED" Connection,
    /// Reserved by the standard.
    InvalidPath = 402 "INVALID_PATH" Connection,
    /// Permissions, reserved names, exclusive consumers; with connection scope, a failed login.
    AccessRefused = 403 "ACCESS_REFUSED" Channel,
    /// A missing queue or exchange.
    NotFound = 404 "NOT_FOUND" Channel,
    /// A queue that belongs to another connection.
    ResourceLocked = 405 "RESOURCE_LOCKED" Channel,
    /// Arguments, equivalence and state.
    PreconditionFailed = 406 "PRECONDITION_FAILED" Channel,
    /// A frame that cannot be read.
    FrameError = 501 "FRAME_ERROR" Connection,
    /// A field table that cannot be read.
    SyntaxError = 502 "SYNTAX_ERROR" Connection,
    /// A method that does not exist or must not be sent now.
    CommandInvalid = 503 "COMMAND_INVALID" Connection,
    /// A channel that is open twice, or not open.
    ChannelError = 504 "CHANNEL_ERROR" Connection,
    /// A frame out of turn.
    UnexpectedFrame = 505 "UNEXPECTED_FRAME" Connection,
    /// The node lacks a resource.
    ResourceError = 506 "RESOURCE_ERROR" Connection,
    /// Limits, virtual host access, consumer tags in use.
    NotAllowed = 530 "NOT_ALLOWED" Connection,
    /// A part of the protocol that Warren does not serve.
    NotImplemented = 540 "NOT_IMPLEMENTED" Connection,
    /// A fault of the node.
    InternalError = 541 "INTERNAL_ERROR" Connection,
}

impl fmt::Display for ReplyCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// An error that the peer is told about: what `channel.close` or `connection.close` will say.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{code} - {explanation}")]
pub struct ProtocolError {
    /// The reply code.
    pub code: ReplyCode,
    /// What it ends; usually the code's own scope.
    pub scope: Scope,
    /// The text after the code's name.
    pub explanation: Cow<'static, str>,
    /// Class of the method at fault, or 0.
    pub class_id: u16,
    /// Id of the method at fault, or 0.
    pub method_id: u16,
}

impl ProtocolError {
    /// An error with the code's own scope and no method.
    pub fn new(code: ReplyCode, explanation: impl Into<Cow<'static, str>>) -> Self {
        ProtocolError { code, scope: code.scope(), explanation: explanation.into(), class_id: 0, method_id: 0 }
    }

    /// The same error ending the connection whatever its code's own scope is (a failed login, say).
    pub fn on_connection(mut self) -> Self {
        self.scope = Scope::Connection;
        self
    }

    /// The same error blamed on a method, unless it already names one.
    pub fn in_method(mut self, (class_id, method_id): (u16, u16)) -> Self {
        if self.class_id == 0 {
            self.class_id = class_id;
            self.method_id = method_id;
        }
        self
    }

    /// The reply text: `NAME - explanation`, cut at a character's end to the 255 bytes of a short string.
    pub fn reply_text(&self) -> ShortStr {
        ShortStr::truncated(&self.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_numbers_are_one_to_one() {
        for code in ReplyCode::ALL {
            assert_eq!(ReplyCode::from_code(code.code()), Some(*code));
        }
        assert_eq!(ReplyCode::from_code(999), None);
    }

    #[test]
    fn a_long_reply_text_is_cut_between_characters() {
        let text = ProtocolError::new(ReplyCode::NotFound, "ä".repeat(300)).reply_text();
        assert!(text.as_str().len() <= 255 && text.as_str().len() > 250);
        assert!(text.as_str().starts_with("NOT_FOUND - ä"));
    }
}
