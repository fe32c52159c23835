//! Which node a verb is for and how it is reached: its admin socket in the data directory, else its peer port with the
//! cluster's secret.

use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::Value;
use warren_raft::transport::{CallError, CallTarget, client_call};

use super::arguments::Globals;
use crate::admin::protocol::{AREA, Code, Refusal, Reply, Request, Row};
use crate::config::environment::{self, Environment};
use crate::config::settings::{NodeName, PEER_PORT};
use crate::config::{self, Overrides};
use crate::data_dir;

/// Rows of one answer at most.
const MAX_ROWS: usize = 10_000_000;

/// A node and the way to it.
#[derive(Clone, Debug)]
pub struct Target {
    /// The node.
    pub node: NodeName,
    data_dir: PathBuf,
    address: Option<String>,
    /// The secret that was given; without one, each call looks for it, since a node that starts may just have made it.
    secret: Option<String>,
}

/// An answer.
#[derive(Clone, Debug, Default)]
pub struct Answer {
    /// What the verb says.
    pub value: Value,
    /// The rows of a listing.
    pub rows: Vec<Row>,
    /// A long text.
    pub text: String,
    /// Why it is not complete, if so.
    pub refusal: Option<Refusal>,
}

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum Failure {
    /// The node cannot be reached.
    Unreachable(String),
    /// The node does not accept the secret.
    Authentication(String),
    /// It took too long.
    Timeout,
}

impl Target {
    /// The node that options and environment name.
    pub fn new(globals: &Globals, environment: &Environment<'_>) -> Result<Self, String> {
        let long = globals.long_names || environment.flag("USE_LONGNAME");
        let name =
            globals.node.clone().or_else(|| environment.value("NODENAME")).unwrap_or_else(|| "rabbit".to_owned());
        let node = NodeName::parse(&name, &environment::host_name(long))?;
        let overrides = Overrides { data_dir: globals.data_dir.clone(), ..Overrides::default() };
        let data_dir = config::data_dir(&overrides, environment);
        let secret = match (&globals.secret, &globals.secret_file) {
            (Some(secret), _) => Some(secret.clone()),
            (None, Some(file)) => {
                let text = std::fs::read_to_string(file);
                Some(text.map_err(|error| format!("cannot read `{}`: {error}", file.display()))?.trim().to_owned())
            }
            (None, None) => environment.value("ERLANG_COOKIE"),
        };
        let address = globals.address.clone();
        Ok(Target { node, data_dir, address, secret })
    }

    /// The socket or address to call. A socket is taken only from the node's own folder.
    fn way(&self) -> (CallTarget, String) {
        let secret = self.secret.clone().or_else(|| data_dir::find_secret(&self.data_dir)).unwrap_or_default();
        if let Some(address) = &self.address {
            return (CallTarget::Address(address.clone()), secret);
        }
        let socket = data_dir::admin_socket(&self.data_dir, &self.node);
        if Path::new(&socket).exists() {
            return (CallTarget::Unix(socket), secret);
        }
        let host = self.node.host();
        let host = if host.contains(':') { format!("[{host}]") } else { host.to_owned() };
        (CallTarget::Address(format!("{host}:{PEER_PORT}")), secret)
    }

    /// Whether the node runs on this machine.
    pub fn is_local(&self) -> bool {
        matches!(self.way().0, CallTarget::Unix(_)) || matches!(self.node.host(), "localhost" | "127.0.0.1")
    }

    /// Asks the node.
    pub async fn call(&self, verb: &str, request: &Request, timeout: Duration) -> Result<Answer, Failure> {
        let (way, secret) = self.way();
        if secret.is_empty() && matches!(way, CallTarget::Address(_)) {
            let why = format!(
                "no admin socket in {} and no secret to connect over the network with",
                data_dir::node_dir(&self.data_dir, &self.node).display()
            );
            return Err(Failure::Unreachable(why));
        }
        let payload = serde_json::to_vec(request).unwrap_or_default();
        let mut replies = client_call(way, secret.as_bytes(), &format!("{AREA}{verb}"), payload, timeout)
            .await
            .map_err(Failure::from)?;
        let mut answer = Answer::default();
        while let Some(reply) = replies.next().await {
            match reply {
                Ok(bytes) => match serde_json::from_slice(&bytes) {
                    Ok(Reply::Ok(value)) => answer.value = value,
                    Ok(Reply::Rows(rows)) if answer.rows.len() + rows.len() <= MAX_ROWS => answer.rows.extend(rows),
                    Ok(Reply::Text(piece)) => answer.text.push_str(&piece),
                    Ok(Reply::Progress { done, total }) => complain!("{done} of {total} done"),
                    Ok(Reply::Rows(_)) => return Err(Failure::Unreachable("the answer is too long".to_owned())),
                    Err(error) => return Err(Failure::Unreachable(format!("the answer cannot be read: {error}"))),
                },
                Err(CallError::Failed { code, message }) => {
                    answer.refusal = Some(Refusal::new(Code::from_word(&code), message));
                    break;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(answer)
    }
}

impl From<CallError> for Failure {
    fn from(error: CallError) -> Self {
        match error {
            CallError::AuthenticationFailed(why) => Failure::Authentication(why),
            CallError::Unreachable(why) => Failure::Unreachable(why),
            CallError::TimedOut(_) => Failure::Timeout,
            CallError::Failed { code, message } => Failure::Unreachable(format!("{code}: {message}")),
        }
    }
}
