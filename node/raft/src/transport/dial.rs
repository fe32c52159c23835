//! One attempt to reach a listener: connect, prove the secret, and check who answered.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use warren_proto::peer::{ChallengeReply, ChallengeRequest, Hello, Nonce, challenge_reply, challenge_request};

use super::secret::{self, NONCE_LEN, Side};
use super::wire::peer_client::PeerClient;
use super::{Introduction, KEEPALIVE_TIMEOUT, MAX_MESSAGE, MIN_PROTOCOL, PROTOCOL, QUIET_KEEPALIVE, WINDOW};

/// A lost SYN is sent again after a second by TCP; a dialer that tries again by itself is there first.
const CONNECT_TIME: Duration = Duration::from_millis(600);
/// For the challenge: two round trips.
const HANDSHAKE_TIME: Duration = Duration::from_secs(1);

/// How the dialer introduces itself.
#[derive(Debug, Clone)]
pub(crate) struct Identity {
    pub name: String,
    pub incarnation: u64,
    pub start: u64,
    pub introduction: Option<Arc<dyn Introduction>>,
}

impl Identity {
    /// A command-line client.
    pub(crate) fn client() -> Self {
        Identity { name: String::new(), incarnation: 0, start: 0, introduction: None }
    }

    /// The product version, and what is said beside it.
    pub(crate) fn introduce(&self) -> (String, Bytes) {
        match &self.introduction {
            Some(introduction) => (introduction.version(), introduction.say()),
            None => (env!("CARGO_PKG_VERSION").to_owned(), Bytes::new()),
        }
    }

    /// Whether this node goes together with another one; the reason if not.
    pub(crate) fn judge(&self, name: &str, version: &str, said: &[u8]) -> Result<(), String> {
        self.introduction.as_ref().map_or(Ok(()), |introduction| introduction.judge(name, version, said))
    }
}

#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum DialError {
    #[error("authentication failed: {0}")]
    AuthenticationFailed(String),
    #[error("{0}")]
    Unreachable(String),
    /// It is a node that does not go together with this one.
    #[error("{0}")]
    Incompatible(String),
    /// The machine answers, and nobody listens there.
    #[error("{0}")]
    Refused(String),
}

/// A connection that is ready for requests.
#[derive(Clone)]
pub(crate) struct Dialed {
    pub client: PeerClient<Channel>,
    /// What the listener said of itself; `None` over the admin socket.
    pub listener: Option<Nonce>,
}

fn endpoint(uri: String, keepalive: Duration) -> Result<Endpoint, DialError> {
    Ok(Endpoint::from_shared(uri)
        .map_err(|e| DialError::Unreachable(format!("not an address: {e}")))?
        .connect_timeout(CONNECT_TIME)
        .tcp_nodelay(true)
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .http2_keep_alive_interval(keepalive)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true))
}

async fn connect(uri: String, keepalive: Duration) -> Result<PeerClient<Channel>, DialError> {
    let channel = endpoint(uri, keepalive)?.connect().await.map_err(|e| not_connected(&e))?;
    Ok(PeerClient::new(channel).max_decoding_message_size(MAX_MESSAGE).max_encoding_message_size(MAX_MESSAGE))
}

/// Tells the innermost cause: "Connection refused" rather than "transport error".
fn not_connected(error: &(dyn std::error::Error + 'static)) -> DialError {
    let mut cause = error;
    while let Some(source) = cause.source() {
        cause = source;
    }
    match cause.downcast_ref::<io::Error>() {
        Some(io) if io.kind() == io::ErrorKind::ConnectionRefused => DialError::Refused(cause.to_string()),
        _ => DialError::Unreachable(cause.to_string()),
    }
}

/// The admin socket: whoever may open it is trusted.
pub(crate) async fn unix(path: &Path) -> Result<Dialed, DialError> {
    let path = path.to_str().ok_or_else(|| DialError::Unreachable("the socket's path is not UTF-8".into()))?;
    Ok(Dialed { client: connect(format!("unix://{path}"), QUIET_KEEPALIVE).await?, listener: None })
}

/// `host:port`, with the challenge passed both ways.
pub(crate) async fn tcp(address: &str, secret: &[u8], me: &Identity, keepalive: Duration) -> Result<Dialed, DialError> {
    let mut client = connect(format!("http://{address}"), keepalive).await?;
    let shaken = tokio::time::timeout(HANDSHAKE_TIME, challenge(&mut client, secret, me)).await;
    if let (Ok(Err(DialError::Incompatible(reason))), Some(introduction)) = (&shaken, &me.introduction) {
        introduction.refused(reason);
    }
    let listener = shaken.map_err(|_| DialError::Unreachable("no answer to the challenge".into()))??;
    Ok(Dialed { client, listener: Some(listener) })
}

async fn challenge(client: &mut PeerClient<Channel>, secret: &[u8], me: &Identity) -> Result<Nonce, DialError> {
    let (version, introduction) = me.introduce();
    let hello = Hello {
        protocol: PROTOCOL,
        nonce: secret::nonce().map_err(|e| DialError::Unreachable(format!("no random bytes: {e}")))?,
        name: me.name.clone(),
        incarnation: me.incarnation,
        start: me.start,
        version,
        introduction,
    };
    let step = challenge_request::Step::Hello(hello.clone());
    let reply = client.challenge(ChallengeRequest { step: Some(step) }).await.map_err(refused)?.into_inner();
    let ChallengeReply { step: Some(challenge_reply::Step::Nonce(nonce)) } = reply else {
        return Err(DialError::Unreachable("the listener did not answer the challenge".into()));
    };
    if nonce.nonce.len() != NONCE_LEN {
        return Err(DialError::AuthenticationFailed("the listener's challenge has the wrong length".into()));
    }
    if nonce.protocol < MIN_PROTOCOL {
        return Err(DialError::Unreachable(format!("peer protocol {} is too old", nonce.protocol)));
    }
    let proof = secret::prove(secret, Side::Dialer, &hello, &nonce);
    let step = challenge_request::Step::Proof(proof);
    let reply = client.challenge(ChallengeRequest { step: Some(step) }).await.map_err(refused)?.into_inner();
    match reply.step {
        Some(challenge_reply::Step::Proof(proof)) if secret::verify(secret, Side::Listener, &hello, &nonce, &proof) => {
            me.judge(&nonce.name, &nonce.version, &nonce.introduction).map_err(DialError::Incompatible)?;
            Ok(nonce)
        }
        _ => Err(DialError::AuthenticationFailed("the listener does not know the cluster's secret".into())),
    }
}

fn refused(status: Status) -> DialError {
    match status.code() {
        Code::Unauthenticated => DialError::AuthenticationFailed(status.message().to_owned()),
        Code::OutOfRange => DialError::Incompatible(status.message().to_owned()),
        _ => DialError::Unreachable(status.message().to_owned()),
    }
}
