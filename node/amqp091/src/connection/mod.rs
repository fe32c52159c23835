//! One connection: a task that reads, handles and writes, and owns the channels.

pub mod handshake;
mod heartbeat;
mod inbound;
mod link;
mod running;

use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpStream;
use tracing::info;
use warren_broker::Broker;
use warren_proto::amqp091::{ConnectionClose, ProtocolError};

use crate::settings::Settings;
use handshake::{Opened, handshake};
use link::{Link, LinkError};
use running::Running;

/// The two ends of a socket.
#[derive(Debug, Clone, Copy)]
pub struct Ends {
    /// The client's address.
    pub peer: SocketAddr,
    /// This node's address.
    pub local: SocketAddr,
}

/// Serves a client until it or the node ends the connection.
pub async fn serve(stream: TcpStream, ends: Ends, broker: Arc<Broker>, settings: Arc<Settings>) {
    let mut link = Link::new(stream, settings.initial_frame_max);
    let opening = handshake(&mut link, &broker, &settings, ends.peer);
    let opened = match tokio::time::timeout(settings.handshake_timeout, opening).await {
        Ok(Ok(opened)) => opened,
        Ok(Err(failed)) => {
            failed.log(ends.peer);
            return;
        }
        Err(_) => {
            info!(peer = %ends.peer, "connection dropped: the handshake took too long");
            link.abort();
            return;
        }
    };
    let Opened { user, vhost, .. } = &opened;
    info!(peer = %ends.peer, user = %user.name, vhost, name = opened.client.name, "connection opened");
    match Running::new(link, opened, ends, broker, settings).run().await {
        Ok(()) => info!(peer = %ends.peer, "connection closed"),
        Err(LinkError::Eof) => {
            info!(peer = %ends.peer, "client closed the socket without saying goodbye")
        }
        Err(error) => info!(peer = %ends.peer, %error, "connection lost"),
    }
}

/// What the client is told when the connection ends with an error.
pub(crate) fn close_method(error: &ProtocolError) -> ConnectionClose {
    ConnectionClose {
        reply_code: error.code.code(),
        reply_text: error.reply_text(),
        class_id: error.class_id,
        method_id: error.method_id,
    }
}
