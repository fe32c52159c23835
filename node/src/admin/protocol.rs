//! What the command line and a node say to each other: a call of the method `admin/<verb>`, both ways JSON.
//!
//! A node answers with any number of [`Reply`]s; several carry parts of one list. A refusal ends the call with a
//! [`Code`] and a text for a person.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::exit::Exit;

/// Method names start with this.
pub const AREA: &str = "admin/";

/// The argument of a call.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Request {
    /// The node that is meant; another one refuses. Empty between nodes, which know whom they call.
    #[serde(default)]
    pub node: String,
    /// The verb's arguments by name.
    #[serde(default)]
    pub args: Map<String, Value>,
    /// The virtual host, for verbs that work in one.
    #[serde(default)]
    pub vhost: String,
    /// The columns that a listing should have.
    #[serde(default)]
    pub columns: Vec<String>,
    /// How long the caller waits.
    #[serde(default)]
    pub timeout_ms: u64,
}

impl Request {
    /// A text argument; empty if absent.
    pub fn text(&self, name: &str) -> &str {
        self.args.get(name).and_then(Value::as_str).unwrap_or_default()
    }

    /// Whether a flag was given.
    pub fn flag(&self, name: &str) -> bool {
        self.args.get(name).and_then(Value::as_bool).unwrap_or_default()
    }

    /// A list argument.
    pub fn list(&self, name: &str) -> Vec<String> {
        let items = self.args.get(name).and_then(Value::as_array).into_iter().flatten();
        items.filter_map(Value::as_str).map(str::to_owned).collect()
    }

    /// Whether the caller wants a column.
    pub fn wants(&self, column: &str) -> bool {
        self.columns.iter().any(|wanted| wanted == column)
    }
}

/// A row of a listing: values by column.
pub type Row = Map<String, Value>;

/// One part of an answer.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Reply {
    /// The verb was carried out; what it has to say.
    Ok(Value),
    /// Rows of a listing.
    Rows(Vec<Row>),
    /// A piece of a long text.
    Text(String),
    /// How far long work is; only to those who asked with [`PROGRESS`].
    Progress {
        /// Items done.
        done: usize,
        /// Of so many.
        total: usize,
    },
}

/// The column of an answer that is lines to be printed as they are.
pub const LINE: &str = "line";

/// The argument with which a caller asks for [`Reply::Progress`].
pub const PROGRESS: &str = "progress";

/// Why a verb was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Code {
    /// The object does not exist.
    NotFound,
    /// The object exists already.
    Exists,
    /// The user does not exist.
    NoSuchUser,
    /// The virtual host does not exist.
    NoSuchVhost,
    /// The password is wrong.
    AccessRefused,
    /// Time ran out, or there is no majority.
    Timeout,
    /// The node is not ready, or the state forbids it.
    Unavailable,
    /// An argument is wrong.
    Invalid,
    /// The app of the node must be stopped for this, or must run.
    WrongState,
    /// A fault inside the node.
    Internal,
}

const CODES: [(Code, &str, Exit); 10] = [
    (Code::NotFound, "not_found", Exit::Data),
    (Code::Exists, "exists", Exit::Software),
    (Code::NoSuchUser, "no_such_user", Exit::NoUser),
    (Code::NoSuchVhost, "no_such_vhost", Exit::Data),
    (Code::AccessRefused, "access_refused", Exit::Data),
    (Code::Timeout, "timeout", Exit::Timeout),
    (Code::Unavailable, "unavailable", Exit::Unavailable),
    (Code::Invalid, "invalid", Exit::Data),
    (Code::WrongState, "wrong_state", Exit::Usage),
    (Code::Internal, "internal", Exit::Software),
];

impl Code {
    /// The word on the wire.
    pub fn word(self) -> &'static str {
        CODES.iter().find(|(code, ..)| *code == self).map_or("internal", |(_, word, _)| word)
    }

    /// The code of a word; words of newer nodes, and those of the transport, count as unavailable.
    pub fn from_word(word: &str) -> Self {
        CODES.iter().find(|(_, known, _)| *known == word).map_or(Code::Unavailable, |(code, ..)| *code)
    }

    /// How the command line ends.
    pub fn exit(self) -> Exit {
        CODES.iter().find(|(code, ..)| *code == self).map_or(Exit::Software, |(.., exit)| *exit)
    }
}

/// A refusal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// Why.
    pub code: Code,
    /// For a person.
    pub message: String,
}

impl Refusal {
    /// A refusal.
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Refusal { code, message: message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_survive_the_wire() {
        for (code, word, _) in CODES {
            assert_eq!(Code::from_word(code.word()), code);
            assert_eq!(code.word(), word);
        }
        assert_eq!(Code::from_word("from_the_future"), Code::Unavailable);
    }

    #[test]
    fn replies_read_as_documented() {
        let ok = serde_json::to_string(&Reply::Ok(Value::from("x"))).unwrap();
        assert_eq!(ok, r#"{"ok":"x"}"#);
        let rows: Reply = serde_json::from_str(r#"{"rows":[{"name":"q"}]}"#).unwrap();
        assert!(matches!(rows, Reply::Rows(rows) if rows.len() == 1));
    }
}
