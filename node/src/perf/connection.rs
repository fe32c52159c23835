//! A connection with one channel: the handshake, and requests whose answers are awaited one by one. The hot loops of
//! producers and consumers then use its socket and inbox directly.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::net::TcpStream;
use tokio::time::timeout;
use warren_proto::amqp091::{
    BasicConsume, BasicQos, BasicQosOk, ChannelOpen, ChannelOpenOk, ConfirmSelect, ConfirmSelectOk, ConnectionClose,
    ConnectionOpen, ConnectionOpenOk, ConnectionStartOk, ConnectionTuneOk, FieldTable, FieldValue, FrameKind, Method,
    QueueBind, QueueBindOk, QueueDeclare, QueueDeclareOk, QueueDelete, QueueDeleteOk, ShortStr,
};

use super::inbox::Inbox;
use super::uri::Uri;

/// How long a broker may take to answer a request. Declaring queues on a loaded cluster takes seconds.
const ANSWER: Duration = Duration::from_secs(30);
/// The channel that is used.
pub const CHANNEL: u16 = 1;
/// Frames larger than this are not asked for.
const FRAME_MAX: u32 = 131_072;

/// An open connection with an open channel.
#[derive(Debug)]
pub struct Connection {
    /// The socket.
    pub stream: TcpStream,
    /// What was read from it.
    pub inbox: Inbox,
    /// The negotiated largest frame.
    pub frame_max: u32,
    out: BytesMut,
}

impl Connection {
    /// Connects, logs in, and opens the channel.
    pub async fn open(uri: &Uri) -> io::Result<Self> {
        let stream = timeout(ANSWER, TcpStream::connect((uri.host.as_str(), uri.port))).await??;
        stream.set_nodelay(true)?;
        let mut connection = Connection { stream, inbox: Inbox::new(), frame_max: FRAME_MAX, out: BytesMut::new() };
        connection.out.extend_from_slice(b"AMQP\x00\x00\x09\x01");
        connection.login(uri).await?;
        connection
            .request(ChannelOpen::default(), CHANNEL, |method| match method {
                Method::ChannelOpenOk(ChannelOpenOk { .. }) => Some(()),
                _ => None,
            })
            .await?;
        Ok(connection)
    }

    async fn login(&mut self, uri: &Uri) -> io::Result<()> {
        self.send().await?;
        let Method::ConnectionStart(_) = self.receive().await? else {
            return Err(unexpected());
        };
        let capabilities = FieldTable::new()
            .with("publisher_confirms", true)
            .with("basic.nack", true)
            .with("consumer_cancel_notify", true)
            .with("connection.blocked", true)
            .with("authentication_failure_close", true);
        let properties = FieldTable::new()
            .with("product", FieldValue::text("warren perf"))
            .with("version", FieldValue::text(env!("CARGO_PKG_VERSION")))
            .with("capabilities", capabilities);
        let start = ConnectionStartOk {
            client_properties: properties,
            mechanism: ShortStr::from_static("PLAIN"),
            response: Bytes::from(format!("\0{}\0{}", uri.user, uri.password)),
            locale: ShortStr::from_static("en_US"),
        };
        let tune = self
            .request(start, 0, |method| match method {
                Method::ConnectionTune(tune) => Some(tune),
                _ => None,
            })
            .await?;
        self.frame_max = if tune.frame_max == 0 { FRAME_MAX } else { tune.frame_max.min(FRAME_MAX) };
        // No heartbeats: a load run notices a dead broker by its missing progress.
        ConnectionTuneOk { channel_max: tune.channel_max, frame_max: self.frame_max, heartbeat: 0 }
            .write_frame(0, &mut self.out);
        let open = ConnectionOpen { virtual_host: ShortStr::truncated(&uri.vhost), ..Default::default() };
        self.request(open, 0, |method| match method {
            Method::ConnectionOpenOk(ConnectionOpenOk { .. }) => Some(()),
            _ => None,
        })
        .await
    }

    /// Declares a durable queue of the given type.
    pub async fn declare(&mut self, queue: &str, kind: Option<&str>) -> io::Result<QueueDeclareOk> {
        let mut arguments = FieldTable::new();
        if let Some(kind) = kind {
            arguments.push("x-queue-type", FieldValue::text(kind));
        }
        let declare =
            QueueDeclare { queue: ShortStr::truncated(queue), durable: true, arguments, ..Default::default() };
        self.request(declare, CHANNEL, |method| match method {
            Method::QueueDeclareOk(ok) => Some(ok),
            _ => None,
        })
        .await
    }

    /// Binds a queue.
    pub async fn bind(&mut self, queue: &str, exchange: &str, key: &str) -> io::Result<()> {
        let bind = QueueBind {
            queue: ShortStr::truncated(queue),
            exchange: ShortStr::truncated(exchange),
            routing_key: ShortStr::truncated(key),
            ..Default::default()
        };
        self.request(bind, CHANNEL, |method| match method {
            Method::QueueBindOk(QueueBindOk { .. }) => Some(()),
            _ => None,
        })
        .await
    }

    /// Deletes a queue; one that does not exist is fine too.
    pub async fn delete(&mut self, queue: &str) -> io::Result<()> {
        let delete = QueueDelete { queue: ShortStr::truncated(queue), ..Default::default() };
        self.request(delete, CHANNEL, |method| match method {
            Method::QueueDeleteOk(QueueDeleteOk { .. }) => Some(()),
            _ => None,
        })
        .await
    }

    /// Turns publisher confirms on.
    pub async fn confirm(&mut self) -> io::Result<()> {
        self.request(ConfirmSelect::default(), CHANNEL, |method| match method {
            Method::ConfirmSelectOk(ConfirmSelectOk { .. }) => Some(()),
            _ => None,
        })
        .await
    }

    /// Limits unacknowledged deliveries to each consumer; 0 means no limit.
    pub async fn prefetch(&mut self, count: u16) -> io::Result<()> {
        let qos = BasicQos { prefetch_count: count, ..Default::default() };
        self.request(qos, CHANNEL, |method| match method {
            Method::BasicQosOk(BasicQosOk { .. }) => Some(()),
            _ => None,
        })
        .await
    }

    /// Asks for deliveries. The answer may come after the first of them, so it is left to the caller's loop.
    pub async fn consume(&mut self, queue: &str, no_ack: bool) -> io::Result<()> {
        BasicConsume { queue: ShortStr::truncated(queue), no_ack, ..Default::default() }
            .write_frame(CHANNEL, &mut self.out);
        self.send().await
    }

    /// Says goodbye. A broker that does not answer within a second is left.
    pub async fn close(mut self) {
        let close = ConnectionClose { reply_code: 200, reply_text: ShortStr::from_static("bye"), ..Default::default() };
        close.write_frame(0, &mut self.out);
        let _ = timeout(Duration::from_secs(1), async {
            self.send().await?;
            while !matches!(self.receive().await?, Method::ConnectionCloseOk(_)) {}
            io::Result::Ok(())
        })
        .await;
    }

    async fn request<T>(
        &mut self,
        method: impl Into<Method>,
        channel: u16,
        answer: impl Fn(Method) -> Option<T>,
    ) -> io::Result<T> {
        method.into().write_frame(channel, &mut self.out);
        self.send().await?;
        let received = timeout(ANSWER, self.receive()).await??;
        answer(received).ok_or_else(unexpected)
    }

    async fn send(&mut self) -> io::Result<()> {
        let mut at = 0;
        while at < self.out.len() {
            self.stream.writable().await?;
            match self.stream.try_write(&self.out[at..]) {
                Ok(count) => at += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        self.out.clear();
        Ok(())
    }

    /// The next method. A close by the broker is an error with its text.
    async fn receive(&mut self) -> io::Result<Method> {
        loop {
            while let Some(frame) = self.inbox.next()? {
                if FrameKind::from_octet(frame.kind) == Some(FrameKind::Method) {
                    return checked(frame.payload);
                }
            }
            self.stream.readable().await?;
            self.inbox.fill(&self.stream)?;
        }
    }
}

/// Decodes a method that the hot loops do not know; what ends the connection or channel is an error.
pub fn checked(payload: &[u8]) -> io::Result<Method> {
    let method = Method::decode(&Bytes::copy_from_slice(payload))
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidData, error.to_string()))?;
    match method {
        Method::ConnectionClose(close) => Err(refused(close.reply_code, close.reply_text.as_str())),
        Method::ChannelClose(close) => Err(refused(close.reply_code, close.reply_text.as_str())),
        Method::BasicCancel(_) => Err(io::Error::other("the broker cancelled the consumer")),
        method => Ok(method),
    }
}

fn refused(code: u16, text: &str) -> io::Error {
    io::Error::other(format!("the broker closed it: {code} {text}"))
}

fn unexpected() -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, "the broker sent an unexpected method")
}
