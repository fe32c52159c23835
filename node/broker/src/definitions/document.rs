//! A definitions document, read. What may be left out is optional here; what must be there is asked for by the import, which can
//! say of which object.

use serde::Deserialize;
use serde_json::{Map, Value};

/// Octets of a document, at most.
const MAX_BYTES: usize = 192 << 20;

/// Why a document cannot be used at all; nothing of it was applied.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Fault(pub String);

/// A definitions document.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub struct Document {
    pub(super) rabbitmq_definition_format: Option<String>,
    pub(super) users: Vec<User>,
    pub(super) vhosts: Vec<Vhost>,
    pub(super) permissions: Vec<Permission>,
    pub(super) topic_permissions: Vec<TopicPermission>,
    pub(super) parameters: Vec<Parameter>,
    pub(super) global_parameters: Vec<GlobalParameter>,
    pub(super) policies: Vec<Policy>,
    pub(super) exchanges: Vec<Exchange>,
    pub(super) queues: Vec<Queue>,
    pub(super) bindings: Vec<Binding>,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct User {
    pub name: String,
    pub password_hash: Option<String>,
    pub password: Option<String>,
    pub hashing_algorithm: Option<String>,
    /// A list, or a text with commas.
    pub tags: Value,
    /// An object; some versions write an empty list.
    pub limits: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Vhost {
    pub name: String,
    pub description: Option<String>,
    pub tags: Value,
    pub default_queue_type: Option<String>,
    pub protected_from_deletion: Option<bool>,
    pub tracing: Option<bool>,
    /// What newer versions write instead.
    pub metadata: Map<String, Value>,
    pub limits: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Permission {
    pub user: String,
    pub vhost: String,
    pub configure: String,
    pub write: String,
    pub read: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct TopicPermission {
    pub user: String,
    pub vhost: String,
    pub exchange: String,
    pub write: String,
    pub read: String,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Parameter {
    pub vhost: String,
    pub component: String,
    pub name: String,
    pub value: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct GlobalParameter {
    pub name: String,
    pub value: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Policy {
    pub vhost: String,
    pub name: String,
    pub pattern: String,
    #[serde(rename = "apply-to")]
    pub apply_to: Option<String>,
    pub definition: Value,
    pub priority: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Exchange {
    pub vhost: Option<String>,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: String,
    pub durable: Option<bool>,
    pub auto_delete: bool,
    pub internal: bool,
    pub arguments: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Queue {
    pub vhost: Option<String>,
    pub name: String,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub durable: Option<bool>,
    pub auto_delete: bool,
    pub arguments: Value,
}

#[derive(Debug, Clone, Default, Deserialize)]
#[serde(default)]
pub(super) struct Binding {
    pub vhost: Option<String>,
    pub source: String,
    pub destination: String,
    pub destination_type: String,
    pub routing_key: String,
    pub arguments: Value,
}

impl Document {
    /// Reads a document of a cluster. A byte order mark is no part of it.
    pub fn parse(text: &[u8]) -> Result<Self, Fault> {
        let text = text.strip_prefix(b"\xef\xbb\xbf").unwrap_or(text);
        if text.len() > MAX_BYTES {
            return Err(Fault(format!("the definitions are longer than {} MiB", MAX_BYTES >> 20)));
        }
        if text.iter().all(u8::is_ascii_whitespace) {
            return Err(Fault("the definitions are empty".to_owned()));
        }
        // An array would be taken for the fields of the document in their order.
        if !text.trim_ascii_start().starts_with(b"{") {
            let why = match serde_json::from_slice::<serde::de::IgnoredAny>(text) {
                Ok(_) => "they are not a JSON object".to_owned(),
                Err(error) => error.to_string(),
            };
            return Err(Fault(format!("the definitions cannot be read: {why}")));
        }
        let document: Document =
            serde_json::from_slice(text).map_err(|error| Fault(format!("the definitions cannot be read: {error}")))?;
        document.check()?;
        Ok(document)
    }

    /// What can be said of a document without knowing the cluster.
    fn check(&self) -> Result<(), Fault> {
        if self.rabbitmq_definition_format.as_deref() == Some("single_virtual_host") {
            return Err(Fault(
                "the definitions are those of a single virtual host, and cannot be imported for the whole cluster"
                    .to_owned(),
            ));
        }
        let lacks = |what: &str, name: &str| {
            Err(Fault(format!(
                "{what} '{name}' has no virtual host: definitions of a cluster name one with each object"
            )))
        };
        if let Some(queue) = self.queues.iter().find(|queue| queue.vhost.is_none()) {
            return lacks("queue", &queue.name);
        }
        if let Some(exchange) = self.exchanges.iter().find(|exchange| exchange.vhost.is_none()) {
            return lacks("exchange", &exchange.name);
        }
        if let Some(binding) = self.bindings.iter().find(|binding| binding.vhost.is_none()) {
            return lacks("binding to", &binding.destination);
        }
        Ok(())
    }

    /// The document without its queues and bindings, and these alone.
    pub(super) fn split(mut self) -> (Self, Self) {
        let later = Document {
            queues: std::mem::take(&mut self.queues),
            bindings: std::mem::take(&mut self.bindings),
            ..Document::default()
        };
        (self, later)
    }
}

/// Tags: a list of texts, or one text with commas.
pub(super) fn tags(value: &Value) -> Result<Vec<String>, String> {
    let mut tags: Vec<String> = Vec::new();
    let mut add = |tag: &str| {
        if !tag.is_empty() && !tags.iter().any(|have| have == tag) {
            tags.push(tag.to_owned());
        }
    };
    match value {
        Value::Null => {}
        Value::String(text) => text.split(',').map(str::trim).for_each(add),
        Value::Array(items) => {
            for item in items {
                add(item.as_str().ok_or_else(|| format!("the tag {item} is not a text"))?);
            }
        }
        other => return Err(format!("the tags {other} are not a list of texts")),
    }
    Ok(tags)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_document_may_begin_with_a_byte_order_mark_and_leave_out_what_has_a_default() {
        let text = "\u{feff}{\"queues\": [{\"name\": \"q\", \"vhost\": \"/\", \"arguments\": []}], \"unknown\": 1}";
        let document = Document::parse(text.as_bytes()).unwrap();
        assert_eq!(document.queues.len(), 1);
        assert_eq!(document.queues[0].durable, None);
    }

    #[test]
    fn what_is_not_a_document_says_why() {
        for (text, why) in [
            ("", "empty"),
            ("  \n", "empty"),
            ("[]", "not a JSON object"),
            ("xx", "cannot be read"),
            ("{", "cannot be read"),
            (r#"{"queues": [{"name": "q"}]}"#, "queue 'q' has no virtual host"),
            (r#"{"exchanges": [{"name": "x", "vhost": null}]}"#, "exchange 'x' has no virtual host"),
            (r#"{"bindings": [{"source": "x", "destination": "q"}]}"#, "binding to 'q' has no virtual host"),
            (
                r#"{"rabbitmq_definition_format": "single_virtual_host", "queues": [{"name": "q"}]}"#,
                "single virtual host",
            ),
        ] {
            let fault = Document::parse(text.as_bytes()).unwrap_err();
            assert!(fault.0.contains(why), "{text}: {fault}");
        }
    }

    #[test]
    fn tags_come_as_a_list_or_with_commas() {
        assert_eq!(tags(&json!(["a", "b c", "a"])).unwrap(), ["a", "b c"]);
        assert_eq!(tags(&json!("a, b,")).unwrap(), ["a", "b"]);
        assert!(tags(&json!(null)).unwrap().is_empty());
        assert!(tags(&json!([1])).is_err() && tags(&json!(1)).is_err());
    }
}
