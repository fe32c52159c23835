//! An accepted connection: TCP or the admin socket, and what is known of who is at its other end.

use std::future::Future;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::OwnedSemaphorePermit;
use tokio::time::Sleep;
use tonic::transport::server::Connected;
use warren_proto::ids::NodeId;
use warren_proto::peer::{Hello, Nonce};

/// How long a connection may stay without having proved that it knows the secret.
const HANDSHAKE_TIME: Duration = Duration::from_secs(10);

/// Another node, as it introduced itself and proved.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct PeerIdentity {
    pub node: NodeId,
    pub name: String,
    pub incarnation: u64,
    /// Its process start.
    pub start: u64,
    /// Grows with each proof that this listener accepted: a connection with a lower one is older.
    pub order: u64,
}

/// Who is at the other end.
#[derive(Debug, Clone)]
pub(crate) enum Standing {
    /// Nothing is proved yet; perhaps a challenge is out.
    Stranger(Option<Box<(Hello, Nonce)>>),
    /// Knows the secret, is no node: the command line over TCP.
    Client,
    /// Came over the admin socket, which only the owner of the process may open.
    Local,
    /// Another node.
    Peer(Arc<PeerIdentity>),
}

/// One connection's standing, shared by all its requests. Lives exactly as long as the connection does, so that a proof
/// can never be used by another.
#[derive(Debug, Clone)]
pub(crate) struct Connection {
    pub remote: Option<SocketAddr>,
    pub standing: Arc<Mutex<Standing>>,
}

impl Connection {
    pub(crate) fn is_stranger(&self) -> bool {
        matches!(*self.standing.lock(), Standing::Stranger(_))
    }

    /// For logs.
    pub(crate) fn remote(&self) -> String {
        self.remote.map_or_else(|| "admin socket".to_owned(), |a| a.to_string())
    }
}

pub(crate) enum Socket {
    Tcp(TcpStream),
    Unix(UnixStream),
}

/// The socket of an accepted connection.
pub(crate) struct Accepted {
    socket: Socket,
    connection: Connection,
    /// Set until the other end has proved itself.
    deadline: Option<Pin<Box<Sleep>>>,
    _permit: OwnedSemaphorePermit,
}

impl Accepted {
    pub(crate) fn new(socket: Socket, remote: Option<SocketAddr>, permit: OwnedSemaphorePermit) -> Self {
        let (standing, deadline) = match socket {
            Socket::Tcp(_) => (Standing::Stranger(None), Some(Box::pin(tokio::time::sleep(HANDSHAKE_TIME)))),
            Socket::Unix(_) => (Standing::Local, None),
        };
        let connection = Connection { remote, standing: Arc::new(Mutex::new(standing)) };
        Accepted { socket, connection, deadline, _permit: permit }
    }
}

impl Connected for Accepted {
    type ConnectInfo = Connection;

    fn connect_info(&self) -> Connection {
        self.connection.clone()
    }
}

impl AsyncRead for Accepted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(deadline) = &mut this.deadline {
            if !this.connection.is_stranger() {
                this.deadline = None;
            } else if deadline.as_mut().poll(cx).is_ready() {
                return Poll::Ready(Err(io::Error::new(
                    io::ErrorKind::TimedOut,
                    "the peer did not prove itself in time",
                )));
            }
        }
        match &mut this.socket {
            Socket::Tcp(s) => Pin::new(s).poll_read(cx, buf),
            Socket::Unix(s) => Pin::new(s).poll_read(cx, buf),
        }
    }
}

impl AsyncWrite for Accepted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(s) => Pin::new(s).poll_write(cx, buf),
            Socket::Unix(s) => Pin::new(s).poll_write(cx, buf),
        }
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(s) => Pin::new(s).poll_write_vectored(cx, bufs),
            Socket::Unix(s) => Pin::new(s).poll_write_vectored(cx, bufs),
        }
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(s) => Pin::new(s).poll_flush(cx),
            Socket::Unix(s) => Pin::new(s).poll_flush(cx),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match &mut self.get_mut().socket {
            Socket::Tcp(s) => Pin::new(s).poll_shutdown(cx),
            Socket::Unix(s) => Pin::new(s).poll_shutdown(cx),
        }
    }
}
