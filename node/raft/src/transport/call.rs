//! Calls: a method with a payload, answered by any number of payloads. For forming clusters, joining, and the command
//! line; never for the hot path.

use std::future::Future;
use std::path::PathBuf;
use std::pin::Pin;
use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};
use warren_proto::ids::NodeId;
use warren_proto::peer::{self, CallReply, CallRequest};

use super::QUIET_KEEPALIVE;
use super::dial::{self, DialError, Dialed, Identity};

/// Where a call goes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CallTarget {
    /// A peer made known by [`Transport::set_peer`](super::Transport::set_peer).
    Node(NodeId),
    /// `host:port`.
    Address(String),
    /// A node's admin socket on this machine.
    Unix(PathBuf),
}

/// Who calls.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Caller {
    /// Another node that knows the secret.
    Node {
        /// Its id.
        node: NodeId,
        /// Its name.
        name: String,
        /// Which life of its data directory it is in.
        incarnation: u64,
    },
    /// A command-line client over TCP that knows the secret.
    Client,
    /// Over the admin socket.
    Local,
}

/// A call that arrived.
#[derive(Debug)]
pub struct IncomingCall {
    /// Who calls.
    pub caller: Caller,
    /// What is asked, `area.verb`.
    pub method: String,
    /// Its argument.
    pub payload: Bytes,
}

/// Why a call has no (further) reply.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The other side does not accept the secret, or this side not its proof.
    #[error("authentication failed: {0}")]
    AuthenticationFailed(String),
    /// The other side cannot be reached, or the connection broke.
    #[error("unreachable: {0}")]
    Unreachable(String),
    /// No reply within the time given.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// The other side answered with an error.
    #[error("{code}: {message}")]
    Failed {
        /// A machine-readable word.
        code: String,
        /// For a person.
        message: String,
    },
}

impl CallError {
    /// An error that the method answers with.
    pub fn failed(code: impl Into<String>, message: impl Into<String>) -> Self {
        CallError::Failed { code: code.into(), message: message.into() }
    }
}

/// Answers calls.
pub trait CallHandler: Send + Sync + 'static {
    /// Answers one call through `replies`; the call ends when the future does.
    fn call(&self, call: IncomingCall, replies: Replies) -> Pin<Box<dyn Future<Output = ()> + Send + '_>>;
}

/// Where a call's replies go.
#[derive(Debug, Clone)]
pub struct Replies {
    to: mpsc::Sender<Result<CallReply, Status>>,
}

impl Replies {
    /// Replies that may wait for a slow caller.
    const WAITING: usize = 16;

    pub(crate) fn channel() -> (Replies, mpsc::Receiver<Result<CallReply, Status>>) {
        let (to, from) = mpsc::channel(Self::WAITING);
        (Replies { to }, from)
    }

    /// Sends one reply, waiting while the caller is slow. False: the caller is gone, nothing more need be done.
    pub async fn send(&self, payload: impl Into<Bytes>) -> bool {
        self.to.send(Ok(CallReply { payload: payload.into(), last: false, error: None })).await.is_ok()
    }

    /// Ends the call with an error.
    pub async fn fail(&self, code: impl Into<String>, message: impl Into<String>) {
        let error = Some(peer::CallError { code: code.into(), message: message.into() });
        let _ = self.to.send(Ok(CallReply { payload: Bytes::new(), last: true, error })).await;
    }

    pub(crate) async fn finish(&self) {
        let _ = self.to.send(Ok(CallReply { payload: Bytes::new(), last: true, error: None })).await;
    }

    /// Waits until the caller is gone: for calls that follow something for as long as somebody looks.
    pub async fn closed(&self) {
        self.to.closed().await;
    }
}

/// The replies to a call, as they arrive.
pub struct CallReplies {
    stream: Streaming<CallReply>,
    deadline: Instant,
    timeout: Duration,
    done: bool,
    /// Keeps the connection.
    _dialed: Dialed,
}

impl CallReplies {
    /// The next reply; `None` after the last. The call's time limit covers all replies together.
    pub async fn next(&mut self) -> Option<Result<Bytes, CallError>> {
        if self.done {
            return None;
        }
        let message = match tokio::time::timeout_at(self.deadline, self.stream.message()).await {
            Ok(Ok(Some(reply))) => reply,
            Ok(Ok(None)) => {
                self.done = true;
                return Some(Err(CallError::Unreachable("the call was cut off".into())));
            }
            Ok(Err(status)) => {
                self.done = true;
                return Some(Err(from_status(status)));
            }
            Err(_) => {
                self.done = true;
                return Some(Err(CallError::TimedOut(self.timeout)));
            }
        };
        if let Some(error) = message.error {
            self.done = true;
            return Some(Err(CallError::Failed { code: error.code, message: error.message }));
        }
        if message.last {
            self.done = true;
            return None;
        }
        Some(Ok(message.payload))
    }

    /// All replies, or the error that ended the call.
    pub async fn collect(mut self) -> Result<Vec<Bytes>, CallError> {
        let mut all = Vec::new();
        while let Some(reply) = self.next().await {
            all.push(reply?);
        }
        Ok(all)
    }

    /// The first reply of a method that gives exactly one.
    pub async fn one(mut self) -> Result<Bytes, CallError> {
        match self.next().await {
            Some(reply) => reply,
            None => Err(CallError::failed("no_reply", "the method gave no reply")),
        }
    }
}

/// Calls `method` without being a node: for the command line. `secret` is not used for the admin socket, and
/// [`CallTarget::Node`] is unreachable: only a [`Transport`](super::Transport) knows addresses.
pub async fn client_call(
    target: CallTarget,
    secret: &[u8],
    method: &str,
    payload: impl Into<Bytes>,
    timeout: Duration,
) -> Result<CallReplies, CallError> {
    let deadline = Instant::now() + timeout;
    let dialed = match &target {
        CallTarget::Node(node) => {
            return Err(CallError::Unreachable(format!("no address known for node {node}")));
        }
        CallTarget::Address(address) => {
            within(deadline, timeout, dial::tcp(address, secret, &Identity::client(), QUIET_KEEPALIVE)).await?
        }
        CallTarget::Unix(path) => within(deadline, timeout, dial::unix(path)).await?,
    };
    start(dialed, method, payload.into(), deadline, timeout).await
}

pub(crate) async fn within<T>(
    deadline: Instant,
    timeout: Duration,
    dialing: impl Future<Output = Result<T, DialError>>,
) -> Result<T, CallError> {
    match tokio::time::timeout_at(deadline, dialing).await {
        Ok(Ok(dialed)) => Ok(dialed),
        Ok(Err(DialError::AuthenticationFailed(why))) => Err(CallError::AuthenticationFailed(why)),
        Ok(Err(DialError::Incompatible(why))) => {
            let (word, _) = why.split_once(':').unwrap_or(("incompatible", ""));
            Err(CallError::failed(word, &*why))
        }
        Ok(Err(DialError::Unreachable(why) | DialError::Refused(why))) => Err(CallError::Unreachable(why)),
        Err(_) => Err(CallError::TimedOut(timeout)),
    }
}

pub(crate) async fn start(
    mut dialed: Dialed,
    method: &str,
    payload: Bytes,
    deadline: Instant,
    timeout: Duration,
) -> Result<CallReplies, CallError> {
    let request = CallRequest { method: method.to_owned(), payload };
    let stream = match tokio::time::timeout_at(deadline, dialed.client.call(request)).await {
        Ok(Ok(response)) => response.into_inner(),
        Ok(Err(status)) => return Err(from_status(status)),
        Err(_) => return Err(CallError::TimedOut(timeout)),
    };
    Ok(CallReplies { stream, deadline, timeout, done: false, _dialed: dialed })
}

fn from_status(status: Status) -> CallError {
    match status.code() {
        Code::Unauthenticated => CallError::AuthenticationFailed(status.message().to_owned()),
        Code::ResourceExhausted => CallError::failed("busy", status.message()),
        Code::Unimplemented | Code::FailedPrecondition => CallError::failed("not_ready", status.message()),
        _ => CallError::Unreachable(status.message().to_owned()),
    }
}
