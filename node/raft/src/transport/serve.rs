//! Opens the peer port and the admin socket, and serves what is accepted.

use std::io;
use std::net::SocketAddr;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{Stream, StreamExt};
use tokio::net::{TcpListener, TcpStream, UnixListener};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc};
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Server;
use tracing::{error, warn};

use super::connection::{Accepted, Socket};
use super::listener::Gate;
use super::{Inner, KEEPALIVE_TIMEOUT, MAX_CONNECTIONS, QUIET_KEEPALIVE, TransportError, WINDOW};

/// Largest HTTP/2 frame taken: fewer, bigger pieces for appends.
const HTTP2_FRAME: u32 = 1 << 20;
/// Requests at once on one connection.
const STREAMS: u32 = 256;
/// After a failed accept (no more descriptors), so that the loop does not spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Sockets that are bound and not yet served.
pub(crate) struct Listeners {
    tcp: std::net::TcpListener,
    unix: Option<UnixListener>,
}

/// A TCP connection on its way to the thread that will serve it.
struct Fresh {
    socket: std::net::TcpStream,
    remote: SocketAddr,
    permit: OwnedSemaphorePermit,
}

impl Listeners {
    pub(crate) fn bind(address: SocketAddr, admin: Option<&Path>) -> Result<Self, TransportError> {
        let tcp = bind_tcp(address).map_err(|e| TransportError::Listen(address.to_string(), e))?;
        let unix = match admin {
            Some(path) => Some(bind_unix(path).map_err(|e| TransportError::Listen(path.display().to_string(), e))?),
            None => None,
        };
        Ok(Listeners { tcp, unix })
    }

    /// Accepts until the transport stops: peers on the transport's own threads, the admin socket on the caller's runtime.
    pub(crate) fn serve(self, inner: &Arc<Inner>) {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let Listeners { tcp, unix } = self;
        let mut threads = Vec::new();
        for runtime in inner.threads.all() {
            let (to, from) = mpsc::channel::<Fresh>(16);
            threads.push(to);
            // A socket belongs to the runtime in whose task it is opened.
            let incoming = ReceiverStream::new(from).map(|fresh| {
                let socket = TcpStream::from_std(fresh.socket)?;
                Ok(Accepted::new(Socket::Tcp(socket), Some(fresh.remote), fresh.permit))
            });
            inner.tasks.spawn_on(serve(inner.clone(), incoming), runtime);
        }
        let (accepting, limit) = (inner.clone(), permits.clone());
        let accept = async move {
            tokio::select! {
                () = accepting.stop.cancelled() => {}
                () = accept_tcp(&accepting, tcp, &threads, limit) => {}
            }
        };
        inner.tasks.spawn_on(accept, inner.threads.first());
        if let Some(unix) = unix {
            let (accepted, incoming) = mpsc::channel(16);
            inner.tasks.spawn(serve(inner.clone(), ReceiverStream::new(incoming)));
            let stop = inner.stop.clone();
            inner.tasks.spawn(async move {
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = accept_unix(unix, accepted, permits) => {}
                }
            });
        }
    }
}

async fn serve(inner: Arc<Inner>, incoming: impl Stream<Item = io::Result<Accepted>>) {
    let stop = inner.stop.clone();
    let served = Server::builder()
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_frame_size(HTTP2_FRAME)
        .max_concurrent_streams(STREAMS)
        .http2_keepalive_interval(Some(QUIET_KEEPALIVE))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .serve_with_incoming_shutdown(Gate::new(inner), incoming, stop.cancelled_owned())
        .await;
    if let Err(error) = served {
        error!(%error, "the peer port is not served any more");
    }
}

fn bind_tcp(address: SocketAddr) -> io::Result<std::net::TcpListener> {
    // The standard library sets SO_REUSEADDR, so that a restart need not wait for old connections to be forgotten.
    let listener = std::net::TcpListener::bind(address)?;
    listener.set_nonblocking(true)?;
    Ok(listener)
}

/// Binds under another name, so that the socket never exists under its own with a wider mode.
fn bind_unix(path: &Path) -> io::Result<UnixListener> {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(".new");
    let early = path.with_file_name(name);
    for stale in [&early, path] {
        match std::fs::symlink_metadata(stale) {
            Ok(meta) if meta.file_type().is_socket() => std::fs::remove_file(stale)?,
            Ok(_) => {
                return Err(io::Error::new(io::ErrorKind::AlreadyExists, "exists and is not a socket"));
            }
            Err(e) if e.kind() == io::ErrorKind::NotFound => {}
            Err(e) => return Err(e),
        }
    }
    let listener = std::os::unix::net::UnixListener::bind(&early)?;
    std::fs::set_permissions(&early, std::fs::Permissions::from_mode(0o600))?;
    std::fs::rename(&early, path)?;
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

type Incoming = mpsc::Sender<Result<Accepted, io::Error>>;

async fn permit(permits: &Arc<Semaphore>) -> Option<OwnedSemaphorePermit> {
    permits.clone().acquire_owned().await.ok()
}

async fn accept_tcp(
    inner: &Inner,
    listener: std::net::TcpListener,
    threads: &[mpsc::Sender<Fresh>],
    permits: Arc<Semaphore>,
) {
    let listener = match TcpListener::from_std(listener) {
        Ok(listener) => listener,
        Err(error) => {
            error!(%error, "the peer port cannot be served");
            return;
        }
    };
    while let Some(permit) = permit(&permits).await {
        let accepted = match listener.accept().await {
            Ok((socket, remote)) => {
                if let Err(error) = socket.set_nodelay(true) {
                    warn!(%error, "cannot switch Nagle's algorithm off");
                }
                socket.into_std().map(|socket| Fresh { socket, remote, permit })
            }
            Err(error) => Err(error),
        };
        match accepted {
            Ok(fresh) => {
                if threads[inner.threads.next()].send(fresh).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "accept failed on the peer port");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn accept_unix(listener: UnixListener, to: Incoming, permits: Arc<Semaphore>) {
    while let Some(permit) = permit(&permits).await {
        match listener.accept().await {
            Ok((socket, _)) => {
                if to.send(Ok(Accepted::new(Socket::Unix(socket), None, permit))).await.is_err() {
                    return;
                }
            }
            Err(error) => {
                warn!(%error, "accept failed on the admin socket");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}
