//! From the protocol header to `connection.open-ok`.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tracing::{debug, info, warn};
use warren_broker::limits::Admission;
use warren_broker::{Broker, identity};
use warren_metastore::records::{Stored, User};
use warren_proto::amqp091::{
    ConnectionClose, ConnectionCloseOk, ConnectionOpen, ConnectionOpenOk, ConnectionStart, ConnectionStartOk,
    ConnectionTuneOk, Credentials, FieldTable, FrameKind, FrameSink, Method, Mistake, Opening, ProtocolError,
    ReplyCode, Tuning,
};

use super::link::{Link, LinkError};
use crate::errors::from_broker;
use crate::settings::Settings;

/// How long a client that was refused may take to read why.
const REFUSAL_DELAY: Duration = Duration::from_secs(3);

/// A client that may use a virtual host.
pub struct Opened {
    /// Its user.
    pub user: Arc<Stored<User>>,
    /// The virtual host.
    pub vhost: String,
    /// SASL mechanism used.
    pub mechanism: Mechanism,
    /// What was negotiated.
    pub tuning: Tuning,
    /// What the client said of itself.
    pub client: ClientProperties,
    /// Has it count until it is registered.
    pub admission: Admission,
}

/// How a client logs in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mechanism {
    /// NUL user NUL password.
    Plain,
    /// A field table.
    AmqPlain,
    /// As the configured user.
    Anonymous,
}

impl Mechanism {
    /// Its SASL name.
    pub const fn name(self) -> &'static str {
        match self {
            Mechanism::Plain => "PLAIN",
            Mechanism::AmqPlain => "AMQPLAIN",
            Mechanism::Anonymous => "ANONYMOUS",
        }
    }

    fn offered(settings: &Settings) -> impl Iterator<Item = Self> + '_ {
        let can = |mechanism: &Mechanism| *mechanism != Mechanism::Anonymous || settings.anonymous.is_some();
        settings.mechanisms.iter().copied().filter(can)
    }

    fn chosen(name: &str, settings: &Settings) -> Option<Self> {
        Mechanism::offered(settings).find(|mechanism| mechanism.name() == name)
    }
}

/// What a client said of itself in `connection.start-ok`.
#[derive(Debug, Clone, Default)]
pub struct ClientProperties {
    /// The whole table, encoded.
    pub encoded: Bytes,
    /// `connection_name`.
    pub name: Option<String>,
    /// Whether it understands a `basic.cancel` from the server.
    pub consumer_cancel_notify: bool,
    /// Whether it wants to be told of a failed login.
    pub authentication_failure_close: bool,
}

impl ClientProperties {
    /// Picks what the server uses out of the table.
    pub fn read(table: &FieldTable) -> Self {
        let capabilities = table.get("capabilities").and_then(|c| c.as_table());
        let can = |name| {
            let value = capabilities.and_then(|c| c.get(name));
            value.and_then(|v| v.as_bool()).unwrap_or(false)
        };
        ClientProperties {
            encoded: table.to_bytes(),
            name: table.get("connection_name").and_then(|n| n.as_str()).map(str::to_owned),
            consumer_cancel_notify: can("consumer_cancel_notify"),
            authentication_failure_close: can("authentication_failure_close"),
        }
    }
}

/// How a handshake ends short of an open connection.
#[derive(Debug, thiserror::Error)]
pub enum Failed {
    /// A load balancer's probe: not a byte was sent.
    #[error("closed without a byte")]
    Probe,
    /// The socket failed or was closed.
    #[error(transparent)]
    Link(#[from] LinkError),
    /// Wrong protocol.
    #[error("not an AMQP 0-9-1 client: {0:?}")]
    NotAmqp091(Mistake),
    /// Wrong user or password, or from the wrong place.
    #[error("login refused")]
    Login,
    /// The client was told.
    #[error(transparent)]
    Refused(#[from] ProtocolError),
    /// The client said goodbye.
    #[error("the client closed the connection before opening it")]
    ClosedByClient,
}

/// Runs the handshake. The caller bounds its time.
pub async fn handshake(
    link: &mut Link,
    broker: &Arc<Broker>,
    settings: &Settings,
    peer: SocketAddr,
) -> Result<Opened, Failed> {
    protocol_header(link).await?;
    match negotiate(link, broker, settings, peer).await {
        Err(Failed::Refused(error)) => {
            refuse(link, &error).await?;
            link.part().await;
            Err(Failed::Refused(error))
        }
        Err(Failed::ClosedByClient) => {
            link.send(0, &ConnectionCloseOk::default().into());
            link.flush().await?;
            link.part().await;
            Err(Failed::ClosedByClient)
        }
        outcome => outcome,
    }
}

async fn protocol_header(link: &mut Link) -> Result<(), Failed> {
    let header = match link.read_exact(8).await {
        Ok(header) => header,
        Err(LinkError::Eof) if link.unread().is_empty() => return Err(Failed::Probe),
        Err(error) => return Err(error.into()),
    };
    let mut octets = [0; 8];
    octets.copy_from_slice(&header);
    let (answer, mistake) = match Opening::judge(&octets) {
        Opening::Amqp091 => return Ok(()),
        Opening::Amqp10Sasl => (warren_proto::amqp091::HEADER_0_9_1, Mistake::OtherVersion),
        Opening::Refuse { answer, mistake } => (answer, mistake),
    };
    link.egress.buffer().extend_from_slice(&answer);
    link.flush().await?;
    link.part().await;
    Err(Failed::NotAmqp091(mistake))
}

async fn negotiate(
    link: &mut Link,
    broker: &Arc<Broker>,
    settings: &Settings,
    peer: SocketAddr,
) -> Result<Opened, Failed> {
    link.send(0, &start(settings).into());
    link.flush().await?;
    let start_ok = match method(link).await? {
        Method::ConnectionStartOk(start_ok) => start_ok,
        other => return Err(out_of_turn(&other)),
    };
    let client = ClientProperties::read(&start_ok.client_properties);
    let (mechanism, user) = login(broker, settings, peer, &start_ok, &client).await?;

    link.send(0, &settings.tuning.offer().into());
    link.flush().await?;
    let tuning = match method(link).await? {
        Method::ConnectionTuneOk(tune_ok) => agree(settings, &tune_ok)?,
        other => return Err(out_of_turn(&other)),
    };
    link.tuned(tuning.frame_max, tuning.heartbeat);

    let open: ConnectionOpen = match method(link).await? {
        Method::ConnectionOpen(open) => open,
        other => return Err(out_of_turn(&other)),
    };
    let vhost = open.virtual_host.to_string();
    let admission = admit(broker, settings, &user.name, &vhost).await.map_err(|e| e.in_method(ConnectionOpen::IDS))?;
    link.send(0, &ConnectionOpenOk::default().into());
    link.flush().await?;
    Ok(Opened { user, vhost, mechanism, tuning, client, admission })
}

fn agree(settings: &Settings, answer: &ConnectionTuneOk) -> Result<Tuning, ProtocolError> {
    settings.tuning.agree(answer)
}

/// The next method on channel 0; everything else is out of turn before the connection is open.
async fn method(link: &mut Link) -> Result<Method, Failed> {
    let frame = link.read_frame().await??;
    if frame.channel != 0 || frame.kind != FrameKind::Method {
        let text = "frame on a channel before the connection is open";
        return Err(ProtocolError::new(ReplyCode::UnexpectedFrame, text).into());
    }
    match Method::decode(&frame.payload)? {
        Method::ConnectionClose(_) => Err(Failed::ClosedByClient),
        method => Ok(method),
    }
}

fn out_of_turn(method: &Method) -> Failed {
    let (class, id) = method.ids();
    let text = format!("method {class}.{id} is out of turn");
    ProtocolError::new(ReplyCode::CommandInvalid, text).in_method(method.ids()).into()
}

/// Says `connection.close` and gives the client a moment to read it.
async fn refuse(link: &mut Link, error: &ProtocolError) -> Result<(), LinkError> {
    link.send(0, &super::close_method(error).into());
    link.flush().await?;
    let read_on = async {
        loop {
            match link.read_frame().await {
                Ok(Ok(frame)) if frame.channel == 0 && frame.kind == FrameKind::Method => {
                    match Method::decode(&frame.payload) {
                        Ok(Method::ConnectionCloseOk(_)) => return,
                        Ok(Method::ConnectionClose(ConnectionClose { .. })) => {
                            link.send(0, &ConnectionCloseOk::default().into());
                            let _ = link.flush().await;
                            return;
                        }
                        Ok(_) | Err(_) => {}
                    }
                }
                Ok(Ok(_)) => {}
                // Unreadable bytes: nothing that follows means anything, so only time is given.
                Ok(Err(_)) => std::future::pending().await,
                Err(_) => return,
            }
        }
    };
    let _ = tokio::time::timeout(REFUSAL_DELAY, read_on).await;
    Ok(())
}

async fn login(
    broker: &Arc<Broker>,
    settings: &Settings,
    peer: SocketAddr,
    start_ok: &ConnectionStartOk,
    client: &ClientProperties,
) -> Result<(Mechanism, Arc<Stored<User>>), Failed> {
    let Some(mechanism) = Mechanism::chosen(&start_ok.mechanism, settings) else {
        warn!(%peer, mechanism = %start_ok.mechanism, "client asked for an authentication mechanism that is not offered");
        tokio::time::sleep(settings.auth_failure_delay).await;
        return Err(Failed::Login);
    };
    let credentials = match (mechanism, &settings.anonymous) {
        (Mechanism::Plain, _) => Credentials::from_plain(&start_ok.response),
        (Mechanism::AmqPlain, _) => Credentials::from_amqplain(&start_ok.response),
        (Mechanism::Anonymous, Some(login)) => {
            Some(Credentials { user: &login.user, password: login.password.as_bytes() })
        }
        (Mechanism::Anonymous, None) => None,
    };
    let Some(credentials) = credentials else {
        warn!(%peer, mechanism = mechanism.name(), "client sent an authentication response that cannot be read");
        tokio::time::sleep(settings.auth_failure_delay).await;
        return Err(Failed::Login);
    };
    let loopback = peer.ip().to_canonical().is_loopback();
    match broker.authenticate(credentials.user, credentials.password, loopback) {
        Ok(user) => Ok((mechanism, user)),
        Err(error) if client.authentication_failure_close => {
            let text = format!(
                "Login was refused using authentication mechanism {}. For details see the broker logfile.",
                mechanism.name()
            );
            warn!(%peer, user = credentials.user, mechanism = mechanism.name(), %error, "login refused");
            Err(ProtocolError::new(ReplyCode::AccessRefused, text).on_connection().into())
        }
        Err(error) => {
            warn!(%peer, user = credentials.user, mechanism = mechanism.name(), %error, "login refused");
            tokio::time::sleep(settings.auth_failure_delay).await;
            Err(Failed::Login)
        }
    }
}

/// The checks of `connection.open`, in order: the node's limit, the virtual host, its limit and the user's.
async fn admit(broker: &Arc<Broker>, settings: &Settings, user: &str, vhost: &str) -> Result<Admission, ProtocolError> {
    if let Some(limit) = settings.max_connections
        && broker.connections().len() >= limit
    {
        let text = format!("connection refused: node connection limit ({limit}) is reached");
        return Err(ProtocolError::new(ReplyCode::NotAllowed, text));
    }
    broker.check_vhost_access(user, vhost).map_err(|error| from_broker(error).on_connection())?;
    broker.admit_connection(user, vhost).await.map_err(|error| from_broker(error).on_connection())
}

fn start(settings: &Settings) -> ConnectionStart {
    let mut capabilities = FieldTable::new();
    for name in [
        "publisher_confirms",
        "exchange_exchange_bindings",
        "basic.nack",
        "consumer_cancel_notify",
        "connection.blocked",
        "consumer_priorities",
        "authentication_failure_close",
        "per_consumer_qos",
        "direct_reply_to",
    ] {
        capabilities.push(name, true);
    }
    let mut properties = FieldTable::new()
        .with("capabilities", capabilities)
        .with("cluster_name", settings.cluster_name.as_str())
        .with("copyright", "Copyright (c) the Warren authors")
        .with("information", "Licensed under the Apache License 2.0")
        .with("platform", identity::PRODUCT)
        .with("product", identity::CLIENT_PRODUCT)
        .with("version", identity::CLIENT_VERSION)
        .with("warren_version", identity::VERSION);
    for (name, value) in settings.server_properties.iter() {
        properties.set(name, value.clone());
    }
    ConnectionStart {
        version_major: 0,
        version_minor: 9,
        server_properties: properties,
        mechanisms: Bytes::from(Mechanism::offered(settings).map(Mechanism::name).collect::<Vec<_>>().join(" ")),
        locales: Bytes::from_static(b"en_US"),
    }
}

impl Failed {
    /// Writes the one log line that this end deserves.
    pub fn log(&self, peer: SocketAddr) {
        match self {
            Failed::Probe => debug!(%peer, "connection closed without a byte"),
            Failed::NotAmqp091(Mistake::Tls) => {
                warn!(%peer, "a TLS client connected to the plain AMQP port")
            }
            Failed::NotAmqp091(Mistake::Http) => {
                warn!(%peer, "an HTTP client connected to the AMQP port")
            }
            Failed::NotAmqp091(mistake) => {
                warn!(%peer, ?mistake, "client does not speak AMQP 0-9-1")
            }
            // Said with its reason where it happened.
            Failed::Login => {}
            Failed::ClosedByClient => debug!(%peer, "{self}"),
            Failed::Link(error) => info!(%peer, %error, "connection lost during the handshake"),
            Failed::Refused(error) => warn!(%peer, %error, "connection refused"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::settings::AnonymousLogin;

    #[test]
    fn the_nine_capabilities_are_announced_and_the_operator_may_override_entries() {
        let mut settings = Settings::default();
        settings.server_properties.push("product", "Custom");
        settings.server_properties.push("site", "here");
        let start = start(&settings);
        let table = start.server_properties;
        assert_eq!(table.get("capabilities").and_then(|c| c.as_table()).map(FieldTable::len), Some(9));
        assert_eq!(table.get("product").and_then(|p| p.as_str()), Some("Custom"));
        assert_eq!(table.get("site").and_then(|p| p.as_str()), Some("here"));
        assert_eq!((start.version_major, start.version_minor), (0, 9));
    }

    #[test]
    fn anonymous_is_offered_only_when_it_is_configured() {
        let mut settings = Settings::default();
        assert_eq!(start(&settings).mechanisms, "PLAIN AMQPLAIN");
        assert_eq!(Mechanism::chosen("ANONYMOUS", &settings), None);
        settings.anonymous = Some(AnonymousLogin { user: "guest".into(), password: "guest".into() });
        assert_eq!(start(&settings).mechanisms, "PLAIN AMQPLAIN ANONYMOUS");
        assert_eq!(Mechanism::chosen("ANONYMOUS", &settings), Some(Mechanism::Anonymous));
        assert_eq!(Mechanism::chosen("EXTERNAL", &settings), None);
    }

    #[test]
    fn a_mechanism_that_is_not_listed_is_neither_offered_nor_taken() {
        let settings = Settings { mechanisms: vec![Mechanism::AmqPlain], ..Settings::default() };
        assert_eq!(start(&settings).mechanisms, "AMQPLAIN");
        assert_eq!(Mechanism::chosen("AMQPLAIN", &settings), Some(Mechanism::AmqPlain));
        assert_eq!(Mechanism::chosen("PLAIN", &settings), None);
    }

    #[test]
    fn what_the_server_uses_is_picked_out_of_the_clients_properties() {
        let table = FieldTable::new()
            .with("connection_name", "worker")
            .with("capabilities", FieldTable::new().with("consumer_cancel_notify", true).with("other", 1));
        let client = ClientProperties::read(&table);
        assert_eq!(client.name.as_deref(), Some("worker"));
        assert!(client.consumer_cancel_notify);
        assert!(!client.authentication_failure_close);
        assert_eq!(client.encoded, table.to_bytes());
    }
}
