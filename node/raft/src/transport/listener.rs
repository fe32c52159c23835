//! The listening half: challenge, lanes in, calls in.

use std::convert::Infallible;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll};
use std::time::Instant;

use bytes::Bytes;
use futures_util::Stream;
use parking_lot::Mutex;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::codegen::{Service, http};
use tonic::{Request, Response, Status, Streaming};
use tracing::{debug, info, warn};
use warren_proto::ids::NodeId;
use warren_proto::peer::{
    Beat, CallReply, CallRequest, ChallengeReply, ChallengeRequest, Frame, Hello, LaneAck, Nonce, challenge_reply,
    challenge_request, frame,
};

use super::call::{CallHandler, Caller, IncomingCall, Replies};
use super::connection::{Connection, PeerIdentity, Standing};
use super::lane::Lane;
use super::liveness::Life;
use super::secret::{self, NONCE_LEN, Side};
use super::wire::peer_server::{Peer, PeerServer};
use super::{Inner, MAX_MESSAGE, MIN_PROTOCOL, PROTOCOL, PeerEvent};

/// Of how many beats one is answered, where this node's own do not: enough for a peer whose silence limit is ten.
const ANSWER_EVERY: u64 = 3;

/// What a stranger may send at once.
const MAX_CHALLENGE: usize = 16 << 10;
/// Longest node name: a DNS name and then some.
const MAX_NAME: usize = 512;

/// The stream that may deliver for one lane of one peer. Delivery happens under its lock, so that a stream never
/// delivers after its successor began.
#[derive(Default)]
pub(crate) struct Inlet {
    current: Mutex<Current>,
}

#[derive(Default, Clone, Copy, PartialEq, Eq)]
struct Current {
    order: u64,
    start: u64,
    sequence: u64,
}

impl Inlet {
    /// Makes a stream the one that delivers, and says whether it follows one of the same process. `None` if it is older
    /// than the one that delivers now.
    fn succeed(&self, peer: &PeerIdentity, sequence: u64) -> Option<(Current, bool)> {
        let mut current = self.current.lock();
        let same_process = current.start == peer.start && current.order > 0;
        if peer.order < current.order || (same_process && sequence <= current.sequence) {
            return None;
        }
        *current = Current { order: peer.order, start: peer.start, sequence };
        Some((*current, same_process))
    }

    /// Takes delivery away from the stream that has it.
    pub(crate) fn close(&self) {
        let mut current = self.current.lock();
        current.sequence = u64::MAX;
    }
}

/// The gRPC service.
#[derive(Clone)]
struct PeerService {
    inner: Arc<Inner>,
}

/// Sends strangers to the challenge and nowhere else, before a byte of their request is decoded.
#[derive(Clone)]
pub(crate) struct Gate {
    challenge: PeerServer<PeerService>,
    open: PeerServer<PeerService>,
}

impl Gate {
    pub(crate) fn new(inner: Arc<Inner>) -> Self {
        let service = Arc::new(PeerService { inner });
        Gate {
            challenge: PeerServer::from_arc(service.clone()).max_decoding_message_size(MAX_CHALLENGE),
            open: PeerServer::from_arc(service)
                .max_decoding_message_size(MAX_MESSAGE)
                .max_encoding_message_size(MAX_MESSAGE),
        }
    }
}

impl Service<http::Request<tonic::body::Body>> for Gate {
    type Response = http::Response<tonic::body::Body>;
    type Error = Infallible;
    type Future = Pin<Box<dyn Future<Output = Result<Self::Response, Infallible>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<tonic::body::Body>) -> Self::Future {
        if request.uri().path() == "/warren.peer.Peer/Challenge" {
            return self.challenge.call(request);
        }
        match request.extensions().get::<Connection>() {
            Some(connection) if !connection.is_stranger() => self.open.call(request),
            _ => {
                let refusal = Status::unauthenticated("the connection has not passed the challenge").into_http();
                Box::pin(std::future::ready(Ok(refusal)))
            }
        }
    }
}

fn connection<T>(request: &Request<T>) -> Result<Connection, Status> {
    request.extensions().get::<Connection>().cloned().ok_or_else(|| Status::internal("no connection"))
}

impl PeerService {
    fn hello(&self, connection: &Connection, hello: Hello) -> Result<Nonce, Status> {
        if hello.nonce.len() != NONCE_LEN || hello.name.len() > MAX_NAME {
            return Err(Status::invalid_argument("malformed hello"));
        }
        if hello.protocol < MIN_PROTOCOL {
            return Err(Status::failed_precondition(format!("peer protocol {} is too old", hello.protocol)));
        }
        let me = &self.inner.identity;
        let (version, introduction) = me.introduce();
        let nonce = Nonce {
            protocol: PROTOCOL,
            nonce: secret::nonce().map_err(|e| Status::unavailable(format!("no random bytes: {e}")))?,
            name: me.name.clone(),
            incarnation: me.incarnation,
            start: me.start,
            version,
            introduction,
        };
        let mut standing = connection.standing.lock();
        if !matches!(*standing, Standing::Stranger(_)) {
            return Err(Status::failed_precondition("the connection has passed the challenge already"));
        }
        *standing = Standing::Stranger(Some(Box::new((hello, nonce.clone()))));
        Ok(nonce)
    }

    fn proof(&self, connection: &Connection, proof: &[u8]) -> Result<Bytes, Status> {
        let mut standing = connection.standing.lock();
        // A challenge is good for one try.
        let (hello, nonce) = match std::mem::replace(&mut *standing, Standing::Stranger(None)) {
            Standing::Stranger(Some(said)) => *said,
            Standing::Stranger(None) => return Err(Status::failed_precondition("say hello first")),
            passed => {
                *standing = passed;
                return Err(Status::failed_precondition("the connection has passed the challenge already"));
            }
        };
        if !secret::verify(&self.inner.secret, Side::Dialer, &hello, &nonce, proof) {
            if self.inner.may_log_refusal() {
                warn!(peer = %hello.name, remote = %connection.remote(), "authentication failed: wrong cluster secret");
            }
            return Err(Status::unauthenticated("wrong cluster secret"));
        }
        if !hello.name.is_empty()
            && let Err(reason) = self.inner.identity.judge(&hello.name, &hello.version, &hello.introduction)
        {
            if self.inner.may_log_incompatible(NodeId::of_name(&hello.name)) {
                warn!(peer = %hello.name, remote = %connection.remote(), %reason, "a node was refused");
            }
            return Err(Status::out_of_range(reason));
        }
        *standing = if hello.name.is_empty() {
            Standing::Client
        } else {
            let order = self.inner.orders.fetch_add(1, Ordering::Relaxed) + 1;
            let node = NodeId::of_name(&hello.name);
            Standing::Peer(Arc::new(PeerIdentity {
                node,
                name: hello.name.clone(),
                incarnation: hello.incarnation,
                start: hello.start,
                order,
            }))
        };
        Ok(secret::prove(&self.inner.secret, Side::Listener, &hello, &nonce))
    }

    /// Reads a lane until it ends, is succeeded, or the transport stops.
    async fn deliver(
        self,
        peer: Arc<PeerIdentity>,
        lane: Lane,
        inlet: Arc<Inlet>,
        mine: Current,
        mut frames: Streaming<Frame>,
        acks: mpsc::Sender<Result<LaneAck, Status>>,
    ) {
        let life = Life { incarnation: peer.incarnation, start: peer.start };
        loop {
            let frame = tokio::select! {
                frame = frames.message() => frame,
                () = self.inner.stop.cancelled() => break,
            };
            let frame = match frame {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(status) => {
                    debug!(peer = %peer.name, ?lane, reason = %status.message(), "lane from peer ended");
                    break;
                }
            };
            self.inner.heard(peer.node, life);
            if let Some(frame::Kind::Beat(beat)) = &frame.kind
                && !self.inner.answers_by_beat(peer.node, beat)
                && beat.sequence % ANSWER_EVERY == 0
            {
                // An answer that still waits to be sent says as much.
                let _ = acks.try_send(Ok(LaneAck {}));
            }
            if matches!(frame.kind, Some(frame::Kind::Beat(_) | frame::Kind::Open(_)) | None) {
                continue;
            }
            let Some(handler) = self.inner.handler(lane) else {
                continue;
            };
            let current = inlet.current.lock();
            if *current != mine {
                break;
            }
            handler(peer.node, frame);
        }
        if lane == Lane::Control {
            self.inner.control_broke(peer.node);
        }
    }
}

#[tonic::async_trait]
impl Peer for PeerService {
    async fn challenge(&self, request: Request<ChallengeRequest>) -> Result<Response<ChallengeReply>, Status> {
        let connection = connection(&request)?;
        let step = match request.into_inner().step {
            Some(challenge_request::Step::Hello(hello)) => {
                challenge_reply::Step::Nonce(self.hello(&connection, hello)?)
            }
            Some(challenge_request::Step::Proof(proof)) => {
                challenge_reply::Step::Proof(self.proof(&connection, &proof)?)
            }
            None => return Err(Status::invalid_argument("unknown step of the challenge")),
        };
        Ok(Response::new(ChallengeReply { step: Some(step) }))
    }

    type LaneStream = ReceiverStream<Result<LaneAck, Status>>;

    async fn lane(&self, request: Request<Streaming<Frame>>) -> Result<Response<Self::LaneStream>, Status> {
        let connection = connection(&request)?;
        let Standing::Peer(peer) = connection.standing.lock().clone() else {
            return Err(Status::permission_denied("lanes are for nodes"));
        };
        if self.inner.is_removed(peer.node) {
            return Err(Status::permission_denied("not a peer of this node any more"));
        }
        let mut frames = request.into_inner();
        let Some(Frame { kind: Some(frame::Kind::Open(open)) }) = frames.message().await? else {
            return Err(Status::invalid_argument("a lane starts with `open`"));
        };
        let Some(lane) = Lane::from_number(open.lane) else {
            return Err(Status::invalid_argument("unknown lane"));
        };
        if lane != Lane::Control && self.inner.handler(lane).is_none() {
            return Err(Status::unavailable("not ready for this lane yet"));
        }
        let inlet = self.inner.inlet(peer.node, lane);
        let Some((mine, follows)) = inlet.succeed(&peer, open.sequence) else {
            return Err(Status::aborted("a newer stream has this lane"));
        };
        if lane == Lane::Control {
            info!(peer = %peer.name, remote = %connection.remote(), "peer connected");
            self.inner.control_opened(peer.node, Life { incarnation: peer.incarnation, start: peer.start });
        }
        if follows {
            self.inner.emit(PeerEvent::Gap(peer.node, lane));
        }
        // Dropped when the reader ends, which ends the response and tells the dialer.
        let (acks, response) = mpsc::channel(1);
        let service = self.clone();
        tokio::spawn(service.deliver(peer, lane, inlet, mine, frames, acks));
        Ok(Response::new(ReceiverStream::new(response)))
    }

    type CallStream = Pin<Box<dyn Stream<Item = Result<CallReply, Status>> + Send>>;

    async fn call(&self, request: Request<CallRequest>) -> Result<Response<Self::CallStream>, Status> {
        let connection = connection(&request)?;
        let caller = match &*connection.standing.lock() {
            Standing::Stranger(_) => {
                return Err(Status::unauthenticated("the connection has not passed the challenge"));
            }
            Standing::Client => Caller::Client,
            Standing::Local => Caller::Local,
            Standing::Peer(peer) => {
                Caller::Node { node: peer.node, name: peer.name.clone(), incarnation: peer.incarnation }
            }
        };
        let handler: Arc<dyn CallHandler> =
            self.inner.call_handler().ok_or_else(|| Status::unimplemented("this node does not answer calls yet"))?;
        let permit = self
            .inner
            .calls
            .clone()
            .try_acquire_owned()
            .map_err(|_| Status::resource_exhausted("too many calls at once"))?;
        let CallRequest { method, payload } = request.into_inner();
        let (replies, stream) = Replies::channel();
        let stop = self.inner.stop.clone();
        self.inner.main.spawn(async move {
            let _permit = permit;
            let answering = async {
                handler.call(IncomingCall { caller, method, payload }, replies.clone()).await;
                replies.finish().await;
            };
            tokio::select! {
                () = answering => {}
                () = replies.closed() => {}
                () = stop.cancelled() => {}
            }
        });
        Ok(Response::new(Box::pin(ReceiverStream::new(stream))))
    }
}

/// What the listener notes about a lane's peer.
impl Inner {
    fn heard(&self, node: NodeId, life: Life) {
        if let Some(change) = self.detector(node).lock().heard(life, Instant::now()) {
            self.changed(node, change);
        }
    }

    /// Notes a peer's beat. Answers whether the beats to the peer will tell it so.
    fn answers_by_beat(&self, node: NodeId, beat: &Beat) -> bool {
        self.pulse.notify_one();
        self.links.read().get(&node).is_some_and(|link| {
            link.beaten(beat);
            link.beats()
        })
    }

    fn control_opened(&self, node: NodeId, life: Life) {
        let detector = self.detector(node);
        let changes = detector.lock().opened(life, Instant::now());
        for change in changes {
            self.changed(node, change);
        }
        // It reaches us, so we may well reach it: no need to sit out the rest of a backoff.
        self.poke(node);
    }

    /// Nobody listens at a peer's address.
    pub(super) fn refused(&self, node: NodeId) {
        let change = self.detector(node).lock().refused();
        if let Some(change) = change {
            self.changed(node, change);
        }
    }

    fn control_broke(&self, node: NodeId) {
        self.detector(node).lock().broke(Instant::now());
    }
}
