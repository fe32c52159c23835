//! Listening sockets.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tracing::{info, warn};
use warren_broker::Broker;

use crate::connection;
use crate::settings::{Settings, TcpOptions};

/// Pause after accepting failed, which is usually for lack of file descriptors.
const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A socket that accepts AMQP 0-9-1 clients.
#[derive(Debug)]
pub struct Listener {
    listener: TcpListener,
    options: TcpOptions,
}

impl Listener {
    /// Binds an address. Must be called inside a tokio runtime.
    pub fn bind(address: SocketAddr, options: TcpOptions) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
        if address.is_ipv6() {
            // `[::]` serves IPv4 clients too.
            socket.set_only_v6(false)?;
        }
        socket.set_reuse_address(true)?;
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(i32::try_from(options.backlog).unwrap_or(i32::MAX))?;
        Ok(Listener { listener: TcpListener::from_std(socket.into())?, options })
    }

    /// The address it is bound to.
    pub fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Accepts connections in a task of its own until that is aborted. Connections live on; the broker closes them.
    pub fn serve(self, broker: Arc<Broker>, settings: Arc<Settings>) -> JoinHandle<()> {
        tokio::spawn(async move {
            if let Ok(address) = self.local_addr() {
                info!(%address, "listening for AMQP 0-9-1");
            }
            loop {
                match self.listener.accept().await {
                    Ok((stream, peer)) => self.start(stream, peer, &broker, &settings),
                    Err(error) => {
                        warn!(%error, "a connection could not be accepted");
                        tokio::time::sleep(ACCEPT_RETRY).await;
                    }
                }
            }
        })
    }

    fn start(&self, stream: TcpStream, peer: SocketAddr, broker: &Arc<Broker>, settings: &Arc<Settings>) {
        if let Err(error) = self.configure(&stream) {
            // The options are wishes; a socket that refuses them may still work.
            info!(%peer, %error, "a TCP option could not be set");
        }
        let Ok(local) = stream.local_addr() else {
            return;
        };
        let (broker, settings) = (Arc::clone(broker), Arc::clone(settings));
        tokio::spawn(connection::serve(stream, connection::Ends { peer, local }, broker, settings));
    }

    fn configure(&self, stream: &TcpStream) -> io::Result<()> {
        stream.set_nodelay(self.options.nodelay)?;
        let socket = socket2::SockRef::from(stream);
        socket.set_keepalive(self.options.keepalive)?;
        if let Some(bytes) = self.options.sndbuf {
            socket.set_send_buffer_size(bytes)?;
        }
        if let Some(bytes) = self.options.recbuf {
            socket.set_recv_buffer_size(bytes)?;
        }
        Ok(())
    }
}
