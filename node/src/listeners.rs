//! The sockets that clients connect to. They are opened last when a node starts; an operator may close them for a while.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::task::JoinHandle;
use warren_amqp091::{Listener, TcpOptions};
use warren_broker::Broker;

use crate::config::settings::Listeners;
use crate::config::value::Listen;

/// A socket that the node listens on.
#[derive(Clone, Debug)]
pub struct Listening {
    /// The address, without its port.
    pub interface: String,
    /// The port.
    pub port: u16,
    /// `amqp`, `clustering`.
    pub protocol: &'static str,
    /// For people.
    pub purpose: &'static str,
}

/// Why a socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum ListenError {
    /// This version has no such listeners.
    #[error("listeners.tcp: Unix sockets such as {0} are not supported yet")]
    Unsupported(String),
    /// The address is not to be had.
    #[error("cannot listen on {0}: {1}")]
    Unusable(String, io::Error),
}

/// The client listeners of a node.
pub struct ClientListeners {
    wanted: Vec<Listen>,
    options: TcpOptions,
    amqp091: Arc<warren_amqp091::Settings>,
    broker: Arc<Broker>,
    open: Mutex<Vec<(Listening, JoinHandle<()>)>>,
    /// One change at a time.
    turn: tokio::sync::Mutex<()>,
}

impl ClientListeners {
    /// The listeners of the configuration, none of them open.
    pub fn new(settings: &Listeners, amqp091: warren_amqp091::Settings, broker: Arc<Broker>) -> Self {
        let options = TcpOptions {
            backlog: settings.backlog,
            nodelay: settings.nodelay,
            keepalive: settings.keepalive,
            sndbuf: bytes(settings.sndbuf),
            recbuf: bytes(settings.recbuf),
        };
        ClientListeners {
            wanted: settings.amqp(),
            options,
            amqp091: Arc::new(amqp091),
            broker,
            open: Mutex::default(),
            turn: tokio::sync::Mutex::default(),
        }
    }

    /// Opens them unless they are. All are bound before the first one serves.
    pub async fn open(&self) -> Result<(), ListenError> {
        let _turn = self.turn.lock().await;
        if !self.open.lock().is_empty() {
            return Ok(());
        }
        let mut bound = Vec::new();
        for listen in &self.wanted {
            let listener = bind(listen, &self.options)?;
            let address = listener.local_addr().map_err(|error| ListenError::Unusable(listen.to_string(), error))?;
            let listening = Listening {
                interface: address.ip().to_string(),
                port: address.port(),
                protocol: "amqp",
                purpose: "AMQP 0-9-1",
            };
            bound.push((listening, listener));
        }
        let serve = |listener: Listener| listener.serve(Arc::clone(&self.broker), Arc::clone(&self.amqp091));
        *self.open.lock() = bound.into_iter().map(|(listening, listener)| (listening, serve(listener))).collect();
        Ok(())
    }

    /// Closes them: nobody can connect once this returns. Connections stay.
    pub async fn close(&self) {
        let _turn = self.turn.lock().await;
        let open = std::mem::take(&mut *self.open.lock());
        for (_, task) in open {
            task.abort();
            // The socket is closed with its task.
            let _ = task.await;
        }
    }

    /// Those that are open.
    pub fn listening(&self) -> Vec<Listening> {
        self.open.lock().iter().map(|(listening, _)| listening.clone()).collect()
    }
}

fn bytes(limit: Option<u64>) -> Option<usize> {
    limit.map(|most| usize::try_from(most).unwrap_or(usize::MAX))
}

/// All addresses: of both families where the machine has IPv6.
pub fn any_address() -> IpAddr {
    match std::net::TcpListener::bind((Ipv6Addr::UNSPECIFIED, 0)) {
        Ok(_) => Ipv6Addr::UNSPECIFIED.into(),
        Err(_) => Ipv4Addr::UNSPECIFIED.into(),
    }
}

fn bind(listen: &Listen, options: &TcpOptions) -> Result<Listener, ListenError> {
    let address = match listen {
        Listen::Tcp { ip, port } => SocketAddr::new(ip.unwrap_or_else(any_address), *port),
        Listen::Unix(path) => return Err(ListenError::Unsupported(path.display().to_string())),
    };
    Listener::bind(address, options.clone()).map_err(|error| ListenError::Unusable(listen.to_string(), error))
}
