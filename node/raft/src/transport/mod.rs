//! Connections between nodes: four lanes to each peer, signs of life, and calls.
//!
//! A [`Transport`] listens on the peer port (and on the admin socket) and dials every peer it was told of. Frames flow from
//! the dialer to the listener, so a pair of nodes has two connections per lane. A lane keeps order; a frame is delivered at
//! most once, and where frames may have been lost both ends learn of it by a [`PeerEvent::Gap`].
//!
//! Every connection starts with a challenge (see `secret.rs`); until it is passed the listener answers nothing else. The
//! listener's [`Connection`](connection::Connection) is where a client certificate would be noted once peers speak TLS.

mod call;
mod connection;
mod dial;
mod lane;
mod link;
mod listener;
mod liveness;
mod secret;
mod serve;
mod threads;
pub(crate) mod wire;

#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use tokio::runtime::Handle;
use tokio::sync::{Notify, Semaphore, broadcast};
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;
use tracing::info;
use warren_proto::ids::NodeId;
use warren_proto::peer::Frame;

pub use call::{CallError, CallHandler, CallReplies, CallTarget, Caller, IncomingCall, Replies, client_call};
pub use lane::Lane;
pub use liveness::{BEAT_INTERVAL, Suspicion};

use dial::Identity;
use link::Link;
use listener::Inlet;
use liveness::{Change, Detector};
use threads::Threads;

/// Version of what this binary says on the peer port.
const PROTOCOL: u32 = 1;
/// Oldest version that it still understands.
const MIN_PROTOCOL: u32 = 1;
/// A dead path is noticed by HTTP/2 after these two together, even when nothing is sent.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(4);
/// Where the control lane's beats and pings notice sooner, pings only find connections whose other end is gone.
const QUIET_KEEPALIVE: Duration = Duration::from_secs(20);
/// A node's own beats are due so soon after the last that another's bring them forward.
const FOLLOW_AFTER: Duration = Duration::from_millis(80);
/// So much longer than the one that it follows does a node wait before it begins by itself.
const FOLLOWS_LATER: Duration = Duration::from_millis(10);
/// HTTP/2 flow control: what may be under way on a connection.
const WINDOW: u32 = 16 << 20;
/// Largest message taken from a peer. Callers keep frames below 8 MiB; this bounds what a fault can cost.
const MAX_MESSAGE: usize = 256 << 20;
/// Calls answered at once.
const MAX_CALLS: usize = 1024;
/// Connections accepted at once, those that proved nothing included.
const MAX_CONNECTIONS: usize = 4096;
/// Events that a slow receiver may be behind before it misses some.
const EVENTS: usize = 4096;
/// Refused strangers are logged at most this often.
const REFUSAL_LOG: Duration = Duration::from_millis(200);
/// A node that does not go together with this one is logged this often.
const INCOMPATIBLE_LOG: Duration = Duration::from_secs(60);
/// How long [`Transport::shutdown`] waits for connections to end by themselves.
const SHUTDOWN_TIME: Duration = Duration::from_secs(2);

/// What a transport needs to know.
#[derive(Debug, Clone)]
pub struct TransportConfig {
    /// This node; must be [`NodeId::of_name`] of `name`.
    pub me: NodeId,
    /// `name@host`.
    pub name: String,
    /// What peers are told in [`PeerEvent::Up`].
    pub incarnation: u64,
    /// Address of the peer port.
    pub listen: SocketAddr,
    /// Admin socket: created with mode 0600, so that whoever opens it needs no secret.
    pub unix_socket: Option<PathBuf>,
    /// The cluster's secret; not empty.
    pub secret: Bytes,
    /// When a silent peer counts as down.
    pub suspicion: Suspicion,
    /// What nodes say of themselves at the handshake, and which go together; without, all do.
    pub introduction: Option<Arc<dyn Introduction>>,
}

/// What a node says of itself at the handshake beside who it is, and whether another one that says such things goes together
/// with it. Asked at each connection: what is said may change.
pub trait Introduction: Send + Sync + fmt::Debug {
    /// The product version.
    fn version(&self) -> String;
    /// What else there is to say; 12 KiB at most.
    fn say(&self) -> Bytes;
    /// Whether a node of that name and version that says this goes together with this one; if not, a machine-readable word, a
    /// colon, and the reason for a person.
    fn judge(&self, name: &str, version: &str, said: &[u8]) -> Result<(), String>;
    /// A node that this one has dialled does not go together with it, whichever of the two says so.
    fn refused(&self, reason: &str);
}

/// Why a transport could not start.
#[derive(Debug, thiserror::Error)]
pub enum TransportError {
    /// The address or the admin socket could not be opened.
    #[error("cannot listen on {0}: {1}")]
    Listen(String, std::io::Error),
    /// A thread could not be made.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The configuration contradicts itself.
    #[error("{0}")]
    Config(&'static str),
}

/// What happened to a peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PeerEvent {
    /// It is alive; with the incarnation it announced. A restart that nobody saw gives `Down`, then `Up`.
    Up(NodeId, u64),
    /// It is silent, or its process ended.
    Down(NodeId),
    /// A connection broke: frames to or from the peer on this lane may have been lost. Those sent or received after this
    /// event are in order again.
    Gap(NodeId, Lane),
}

/// Takes frames of one lane. Called in order per peer, from the transport's threads: must not block.
pub type FrameHandler = Arc<dyn Fn(NodeId, Frame) + Send + Sync>;

/// Connections to all peers. Clones share them.
#[derive(Clone)]
pub struct Transport {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    me: NodeId,
    identity: Identity,
    secret: Bytes,
    suspicion: Suspicion,
    links: RwLock<HashMap<NodeId, Arc<Link>>>,
    /// Nodes that were forgotten: their lanes are refused until they are peers again.
    removed: RwLock<HashSet<NodeId>>,
    inlets: Mutex<HashMap<(NodeId, Lane), Arc<Inlet>>>,
    detectors: Mutex<HashMap<NodeId, Arc<Mutex<Detector>>>>,
    handlers: RwLock<[Option<FrameHandler>; 4]>,
    call_handler: RwLock<Option<Arc<dyn CallHandler>>>,
    calls: Arc<Semaphore>,
    events: broadcast::Sender<PeerEvent>,
    /// Numbers the proofs that were accepted.
    orders: AtomicU64,
    refusal_logged: Mutex<Option<Instant>>,
    /// When nodes that do not go together with this one were last logged.
    incompatible_logged: Mutex<HashMap<NodeId, Instant>>,
    stop: CancellationToken,
    /// Told of each beat that arrives.
    pulse: Notify,
    tasks: TaskTracker,
    threads: Threads,
    /// Where calls are answered: they may take long.
    main: Handle,
    unix_socket: Option<PathBuf>,
}

impl Transport {
    /// Listens and is ready for peers. Called within a tokio runtime.
    pub fn start(config: TransportConfig) -> Result<Transport, TransportError> {
        if config.secret.is_empty() {
            return Err(TransportError::Config("the cluster's secret is empty"));
        }
        if config.me != NodeId::of_name(&config.name) {
            return Err(TransportError::Config("the node's id is not that of its name"));
        }
        let mut start = [0; 8];
        getrandom::fill(&mut start).map_err(|_| TransportError::Config("the system gives no random bytes"))?;
        let threads = Threads::start().map_err(TransportError::Thread)?;
        let listeners = serve::Listeners::bind(config.listen, config.unix_socket.as_deref())?;
        let (events, _) = broadcast::channel(EVENTS);
        let inner = Arc::new(Inner {
            me: config.me,
            identity: Identity {
                name: config.name,
                incarnation: config.incarnation,
                start: u64::from_le_bytes(start),
                introduction: config.introduction,
            },
            secret: config.secret,
            suspicion: config.suspicion,
            links: RwLock::default(),
            removed: RwLock::default(),
            inlets: Mutex::default(),
            detectors: Mutex::default(),
            handlers: RwLock::new([const { None }; 4]),
            call_handler: RwLock::default(),
            calls: Arc::new(Semaphore::new(MAX_CALLS)),
            events,
            orders: AtomicU64::new(0),
            refusal_logged: Mutex::default(),
            incompatible_logged: Mutex::default(),
            stop: CancellationToken::new(),
            pulse: Notify::new(),
            tasks: TaskTracker::new(),
            threads,
            main: Handle::current(),
            unix_socket: config.unix_socket,
        });
        listeners.serve(&inner);
        let watched = inner.clone();
        let beating = async move {
            tokio::select! {
                () = watched.stop.cancelled() => {}
                () = watched.beat_and_judge() => {}
            }
        };
        inner.tasks.spawn_on(beating, inner.threads.first());
        Ok(Transport { inner })
    }

    /// This node.
    pub fn me(&self) -> NodeId {
        self.inner.me
    }

    /// Makes a peer known, or its new address: from now on it is dialled for ever. Ignored for this node itself.
    pub fn set_peer(&self, node: NodeId, name: &str, address: &str) {
        if node == self.inner.me || self.inner.stop.is_cancelled() {
            return;
        }
        self.inner.removed.write().remove(&node);
        let mut links = self.inner.links.write();
        if let Some(known) = links.get(&node) {
            if known.name == name && known.address == address {
                return;
            }
            known.close();
        }
        let link = Arc::new(Link::new(node, name.to_owned(), address.to_owned(), self.inner.stop.child_token()));
        link::start(&self.inner, &link);
        links.insert(node, link);
    }

    /// Forgets a peer: what waits for it is dropped, and its lanes are refused until it is set again.
    pub fn remove_peer(&self, node: NodeId) {
        if let Some(link) = self.inner.links.write().remove(&node) {
            link.close();
            info!(peer = %link.name, "peer removed");
        }
        self.inner.removed.write().insert(node);
        // Taking the inlets away from the streams that have them ends those.
        for lane in Lane::ALL {
            if let Some(inlet) = self.inner.inlets.lock().remove(&(node, lane)) {
                inlet.close();
            }
        }
    }

    /// The peers that are set: id, name, address.
    pub fn peers(&self) -> Vec<(NodeId, String, String)> {
        self.inner.links.read().values().map(|l| (l.node, l.name.clone(), l.address.clone())).collect()
    }

    /// Bytes that wait for each peer on each lane, in the order of [`Lane::ALL`].
    pub fn waiting(&self) -> Vec<(NodeId, [usize; 4])> {
        let links = self.inner.links.read();
        links.values().map(|link| (link.node, std::array::from_fn(|lane| link.lanes[lane].waiting_bytes()))).collect()
    }

    /// Puts a frame on a lane. Never waits; gives the frame back where the lane is full, has been without a connection
    /// for two seconds, or the peer is unknown.
    #[allow(clippy::result_large_err, reason = "giving the frame back is the point")]
    pub fn send(&self, peer: NodeId, lane: Lane, frame: Frame) -> Result<(), Frame> {
        match self.inner.links.read().get(&peer) {
            Some(link) => link.lanes[lane.number()].push(frame),
            None => Err(frame),
        }
    }

    /// Sets who takes a lane's frames. Lanes other than control are refused to peers until theirs is set, and frames on
    /// the control lane are dropped until then.
    pub fn on_frame(&self, lane: Lane, handler: FrameHandler) {
        self.inner.handlers.write()[lane.number()] = Some(handler);
    }

    /// Sets who answers calls.
    pub fn on_call(&self, handler: Arc<dyn CallHandler>) {
        *self.inner.call_handler.write() = Some(handler);
    }

    /// What happens to peers from now on.
    pub fn events(&self) -> broadcast::Receiver<PeerEvent> {
        self.inner.events.subscribe()
    }

    /// Whether the peer gives signs of life.
    pub fn is_up(&self, node: NodeId) -> bool {
        let detector = self.inner.detectors.lock().get(&node).cloned();
        detector.is_some_and(|d| d.lock().is_up())
    }

    /// Calls a method of another node. The time limit covers connecting and all replies.
    pub async fn call(
        &self,
        target: CallTarget,
        method: &str,
        payload: impl Into<Bytes>,
        timeout: Duration,
    ) -> Result<CallReplies, CallError> {
        let deadline = tokio::time::Instant::now() + timeout;
        let payload = payload.into();
        let inner = &self.inner;
        let node = match target {
            CallTarget::Node(node) => node,
            CallTarget::Address(address) => {
                let dialing = dial::tcp(&address, &inner.secret, &inner.identity, QUIET_KEEPALIVE);
                let dialed = call::within(deadline, timeout, dialing).await?;
                return call::start(dialed, method, payload, deadline, timeout).await;
            }
            CallTarget::Unix(_) => {
                return client_call(target, &inner.secret, method, payload, timeout).await;
            }
        };
        let link = inner.links.read().get(&node).cloned();
        let link = link.ok_or_else(|| CallError::Unreachable(format!("no address known for node {node}")))?;
        let kept = link.calls.lock().await.clone();
        if let Some(dialed) = kept {
            match call::start(dialed, method, payload.clone(), deadline, timeout).await {
                // The kept connection broke since and was made anew below us, without a challenge.
                Err(CallError::AuthenticationFailed(_)) => {}
                Err(error @ (CallError::Unreachable(_) | CallError::TimedOut(_))) => {
                    *link.calls.lock().await = None;
                    return Err(error);
                }
                outcome => return outcome,
            }
        }
        let dialing = dial::tcp(&link.address, &inner.secret, &inner.identity, QUIET_KEEPALIVE);
        let dialed = call::within(deadline, timeout, dialing).await?;
        if let Some(listener) = &dialed.listener
            && listener.name != link.name
        {
            let text = format!("node {} answers at the address of {}", listener.name, link.name);
            return Err(CallError::Unreachable(text));
        }
        *link.calls.lock().await = Some(dialed.clone());
        call::start(dialed, method, payload, deadline, timeout).await
    }

    /// Ends all connections and tasks, waiting a bounded time.
    pub async fn shutdown(&self) {
        self.inner.stop.cancel();
        for link in self.inner.links.write().drain().map(|(_, link)| link) {
            link.close();
        }
        self.inner.tasks.close();
        let _ = tokio::time::timeout(SHUTDOWN_TIME, self.inner.tasks.wait()).await;
        self.inner.threads.end();
        if let Some(path) = &self.inner.unix_socket {
            let _ = std::fs::remove_file(path);
        }
    }
}

impl Inner {
    fn handler(&self, lane: Lane) -> Option<FrameHandler> {
        self.handlers.read()[lane.number()].clone()
    }

    fn call_handler(&self) -> Option<Arc<dyn CallHandler>> {
        self.call_handler.read().clone()
    }

    fn is_removed(&self, node: NodeId) -> bool {
        self.removed.read().contains(&node)
    }

    fn inlet(&self, node: NodeId, lane: Lane) -> Arc<Inlet> {
        self.inlets.lock().entry((node, lane)).or_default().clone()
    }

    fn detector(&self, node: NodeId) -> Arc<Mutex<Detector>> {
        self.detectors.lock().entry(node).or_default().clone()
    }

    /// Redials a peer now instead of after its backoff.
    fn poke(&self, node: NodeId) {
        if let Some(link) = self.links.read().get(&node) {
            link.poke.notify_one();
        }
    }

    fn emit(&self, event: PeerEvent) {
        // Nobody listening is no error.
        let _ = self.events.send(event);
    }

    fn changed(&self, node: NodeId, change: Change) {
        let name = self.links.read().get(&node).map(|l| l.name.clone()).unwrap_or_default();
        match change {
            Change::Up(incarnation) => {
                info!(peer = %name, node = node.0, incarnation, "peer is up");
                self.emit(PeerEvent::Up(node, incarnation));
            }
            Change::Down => {
                info!(peer = %name, node = node.0, "peer is down");
                if let Some(link) = self.links.read().get(&node) {
                    link.silences.send_modify(|n| *n += 1);
                }
                self.emit(PeerEvent::Down(node));
            }
        }
    }

    /// Sends signs of life and judges those of others. Whoever's timer is first has the others follow at once, so that an
    /// idle node is woken for all of it in one go.
    async fn beat_and_judge(&self) {
        let mut last = Instant::now();
        let mut next = last;
        for sequence in 1.. {
            let leads = loop {
                tokio::select! {
                    () = tokio::time::sleep_until(next.into()) => break true,
                    () = self.pulse.notified() => {}
                }
                if last.elapsed() >= FOLLOW_AFTER {
                    break false;
                }
            };
            let now = Instant::now();
            next = now + if leads { BEAT_INTERVAL } else { BEAT_INTERVAL + FOLLOWS_LATER };
            let late = now.saturating_duration_since(last).saturating_sub(BEAT_INTERVAL);
            // Scheduling noise is part of what the detector measures; a suspended process is not.
            let stalled = if late > BEAT_INTERVAL { late } else { Duration::ZERO };
            last = now;
            for link in self.links.read().values() {
                link.beat(sequence);
                link.judge_answers(now, self.suspicion.max, stalled);
            }
            let detectors: Vec<_> = self.detectors.lock().iter().map(|(n, d)| (*n, d.clone())).collect();
            for (node, detector) in detectors {
                let change = detector.lock().judge(now, self.suspicion, stalled);
                if let Some(change) = change {
                    self.changed(node, change);
                }
            }
        }
    }

    fn may_log_refusal(&self) -> bool {
        let mut last = self.refusal_logged.lock();
        if last.is_some_and(|at| at.elapsed() < REFUSAL_LOG) {
            return false;
        }
        *last = Some(Instant::now());
        true
    }

    fn may_log_incompatible(&self, node: NodeId) -> bool {
        let mut logged = self.incompatible_logged.lock();
        logged.retain(|_, at| at.elapsed() < INCOMPATIBLE_LOG);
        if logged.contains_key(&node) {
            return false;
        }
        logged.insert(node, Instant::now());
        true
    }

    /// A number in 0..1, to spread redials.
    fn jitter(&self) -> f64 {
        let mut byte = [0; 2];
        if getrandom::fill(&mut byte).is_err() {
            return 0.5;
        }
        f64::from(u16::from_le_bytes(byte)) / f64::from(u16::MAX)
    }
}
