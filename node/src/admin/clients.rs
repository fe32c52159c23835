//! Client connections.

use std::time::Duration;

use serde_json::{Value, json};
use warren_broker::field_json::encoded;
use warren_broker::{Broker, Channel, CloseReason, Connection};

use super::protocol::{Code, Refusal, Request, Row};
use super::{Answer, Outcome, done, peers, row};

/// The id that operators see and give back: `<node.incarnation.number>`.
pub fn pid(broker: &Broker, incarnation: u64, number: u64) -> String {
    pid_of(broker.name(), incarnation, number)
}

/// The same for any node.
pub fn pid_of(node: &str, incarnation: u64, number: u64) -> String {
    format!("<{node}.{incarnation}.{number}>")
}

/// Node, incarnation and number of an id.
fn parse_pid(text: &str) -> Option<(&str, u64, u64)> {
    let inner = text.strip_prefix('<')?.strip_suffix('>')?;
    let (rest, number) = inner.rsplit_once('.')?;
    let (node, incarnation) = rest.rsplit_once('.')?;
    Some((node, incarnation.parse().ok()?, number.parse().ok()?))
}

/// `list_connections`, of all nodes.
pub async fn list(broker: &Broker) -> Outcome {
    let mut rows = local_rows(broker);
    for (_, told) in peers::ask(broker, peers::all(broker), peers::LOCAL_CONNECTIONS, &Request::default()).await {
        rows.extend(told.rows);
    }
    Ok(Answer::Rows(rows))
}

/// Those of this node.
pub fn list_local(broker: &Broker) -> Outcome {
    Ok(Answer::Rows(local_rows(broker)))
}

fn local_rows(broker: &Broker) -> Vec<Row> {
    broker.connections().list().iter().map(|connection| connection_row(broker, connection)).collect()
}

fn connection_row(broker: &Broker, connection: &Connection) -> Row {
    let info = &connection.info;
    row([
        ("pid", json!(pid(broker, broker.sessions().incarnation(), connection.id))),
        ("name", json!(connection.name())),
        ("port", json!(info.local.port())),
        ("host", json!(info.local.ip().to_canonical().to_string())),
        ("peer_port", json!(info.peer.port())),
        ("peer_host", json!(info.peer.ip().to_canonical().to_string())),
        ("ssl", json!(false)),
        ("state", json!(if connection.is_blocked() { "flow" } else { "running" })),
        ("channels", json!(connection.channel_count())),
        ("protocol", json!(info.protocol)),
        ("auth_mechanism", json!(info.auth_mechanism)),
        ("user", json!(info.user)),
        ("vhost", json!(info.vhost)),
        ("timeout", json!(info.heartbeat)),
        ("frame_max", json!(info.frame_max)),
        ("channel_max", json!(info.channel_max)),
        ("client_properties", encoded(&info.client_properties)),
        ("connected_at", json!(connection.connected_at)),
    ])
}

/// `list_channels`, of all nodes.
pub async fn list_channels(broker: &Broker) -> Outcome {
    let mut rows = local_channel_rows(broker);
    for (_, told) in peers::ask(broker, peers::all(broker), peers::LOCAL_CHANNELS, &Request::default()).await {
        rows.extend(told.rows);
    }
    Ok(Answer::Rows(rows))
}

/// Those of this node.
pub fn list_local_channels(broker: &Broker) -> Outcome {
    Ok(Answer::Rows(local_channel_rows(broker)))
}

fn local_channel_rows(broker: &Broker) -> Vec<Row> {
    let connections = broker.connections().list();
    let of = |connection: &Connection| {
        let channels = connection.channels();
        channels.iter().map(|channel| channel_row(broker, connection, channel)).collect::<Vec<_>>()
    };
    connections.iter().flat_map(|connection| of(connection)).collect()
}

fn channel_row(broker: &Broker, connection: &Connection, channel: &Channel) -> Row {
    let figures = channel.figures();
    row([
        ("pid", json!(pid(broker, channel.session.incarnation, channel.session.id))),
        ("connection", json!(pid(broker, broker.sessions().incarnation(), connection.id))),
        ("name", json!(format!("{} ({})", connection.name(), channel.number))),
        ("number", json!(channel.number)),
        ("user", json!(connection.info.user)),
        ("vhost", json!(connection.info.vhost)),
        // Warren has no transactions.
        ("transactional", json!(false)),
        ("messages_uncommitted", json!(0)),
        ("acks_uncommitted", json!(0)),
        ("confirm", json!(figures.confirm)),
        ("consumer_count", json!(figures.consumers)),
        ("messages_unacknowledged", json!(figures.unacknowledged)),
        ("messages_unconfirmed", json!(figures.unconfirmed)),
        ("prefetch_count", json!(figures.prefetch)),
    ])
}

/// `close_connection`.
pub async fn close(broker: &Broker, request: &Request) -> Outcome {
    let text = request.text("pid");
    let unknown = || Refusal::new(Code::NotFound, format!("there is no connection {text}"));
    let (node, incarnation, number) = parse_pid(text)
        .ok_or_else(|| Refusal::new(Code::Invalid, format!("`{text}` is not the id of a connection")))?;
    if node == broker.name() {
        if incarnation != broker.sessions().incarnation() {
            return Err(unknown());
        }
        let reason = CloseReason::Operator(request.text("reason").to_owned());
        return if broker.sessions().close_connection(number, reason) { done() } else { Err(unknown()) };
    }
    let nodes = broker.metadata().nodes();
    let id = nodes.iter().find(|known| known.name.as_ref() == node).map(|known| known.id).ok_or_else(unknown)?;
    let answers = peers::ask(broker, vec![id], "close_connection", request).await;
    if answers.is_empty() { Err(unknown()) } else { done() }
}

/// Connections that are to be closed.
#[derive(Clone, Copy, Debug, Default)]
pub struct Chosen<'a> {
    /// Those to a virtual host; `None`: to any.
    pub vhost: Option<&'a str>,
    /// Those of a user; `None`: of anybody.
    pub user: Option<&'a str>,
}

impl Chosen<'_> {
    fn has(&self, connection: &Connection) -> bool {
        self.vhost.is_none_or(|vhost| connection.info.vhost == vhost)
            && self.user.is_none_or(|user| connection.info.user == user)
    }
}

/// `close_all_connections`: of a virtual host, or with `--global` of all; `--limit` of them at most, one after the other where
/// `--per-connection-delay` says so.
pub async fn close_all(broker: &Broker, request: &Request) -> Outcome {
    let vhost = (!request.flag("global")).then_some(request.vhost.as_str());
    let number = |name: &str| request.text(name).parse::<u64>().ok().filter(|number| *number > 0);
    let (limit, delay) = (number("limit"), number("per-connection-delay").map(Duration::from_millis));
    let reason = CloseReason::Operator(request.text("reason").to_owned());
    if limit.is_none() && delay.is_none() {
        let closed = close_everywhere(broker, Chosen { vhost, user: None }, &reason).await;
        return Ok(Answer::Value(json!({"closed": closed})));
    }
    let Answer::Rows(rows) = list(broker).await? else { return done() };
    let of_vhost = rows.iter().filter(|row| vhost.is_none_or(|vhost| row.get("vhost") == Some(&json!(vhost))));
    let pids = of_vhost.filter_map(|row| row.get("pid").and_then(Value::as_str));
    let mut closed = 0;
    for pid in pids.take(limit.map_or(usize::MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX))) {
        let mut one = request.clone();
        one.args.insert("pid".to_owned(), Value::from(pid));
        // One that has ended meanwhile is closed as it was to be.
        closed += u64::from(close(broker, &one).await.is_ok());
        tokio::time::sleep(delay.unwrap_or_default()).await;
    }
    Ok(Answer::Value(json!({"closed": closed})))
}

/// `close_all_user_connections`.
pub async fn close_all_of_user(broker: &Broker, request: &Request) -> Outcome {
    let chosen = Chosen { vhost: None, user: Some(request.text("user")) };
    let closed = close_everywhere(broker, chosen, &CloseReason::Operator(request.text("reason").to_owned())).await;
    Ok(Answer::Value(json!({"closed": closed})))
}

/// Closes connections on all nodes. Returns how many.
pub async fn close_everywhere(broker: &Broker, chosen: Chosen<'_>, reason: &CloseReason) -> u64 {
    let mut request = Request::default();
    for (name, value) in [("vhost", chosen.vhost), ("user", chosen.user)] {
        if let Some(value) = value {
            request.args.insert(name.to_owned(), Value::from(value));
        }
    }
    let (kind, text) = match reason {
        CloseReason::VhostDeleted(name) => ("vhost_deleted", name.as_str()),
        CloseReason::Operator(text) => ("operator", text.as_str()),
        CloseReason::Shutdown => ("operator", "shutdown"),
    };
    request.args.insert("kind".to_owned(), Value::from(kind));
    request.args.insert("text".to_owned(), Value::from(text));
    let mut closed = close_here(broker, chosen, reason);
    for (_, told) in peers::ask(broker, peers::all(broker), peers::LOCAL_CLOSE, &request).await {
        closed += told.value["closed"].as_u64().unwrap_or_default();
    }
    closed
}

/// Closes connections of this node, as another node asked.
pub fn close_local(broker: &Broker, request: &Request) -> Outcome {
    let text = request.text("text").to_owned();
    let reason = match request.text("kind") {
        "vhost_deleted" => CloseReason::VhostDeleted(text),
        _ => CloseReason::Operator(text),
    };
    let named = |name: &str| request.args.get(name).and_then(Value::as_str);
    let chosen = Chosen { vhost: named("vhost"), user: named("user") };
    Ok(Answer::Value(json!({"closed": close_here(broker, chosen, &reason)})))
}

fn close_here(broker: &Broker, chosen: Chosen<'_>, reason: &CloseReason) -> u64 {
    let connections = broker.connections().list();
    let chosen = connections.iter().filter(|connection| chosen.has(connection));
    chosen.filter(|connection| broker.sessions().close_connection(connection.id, reason.clone())).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_survive_names_with_dots() {
        let pid = pid_of("w1@a.b.example", 77, 3);
        assert_eq!(parse_pid(&pid), Some(("w1@a.b.example", 77, 3)));
        assert_eq!(parse_pid("w1.1.2"), None);
        assert_eq!(parse_pid("<x>"), None);
    }
}
