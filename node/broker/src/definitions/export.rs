//! Writing a document, piece by piece: it is never in memory as a whole.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::{Map, Value, json};
use warren_metastore::projections::View;
use warren_metastore::records::{
    Binding, Cluster, DestinationKind, Exchange, GlobalParameter, Invalid, OperatorPolicy, Parameter, Permission,
    Policy, TopicPermission, User, Vhost,
};

use crate::field_json::encoded;
use crate::identity;
use crate::operations::policy::OPERATOR_POLICY;

/// Octets of one piece, about.
const PIECE: usize = 256 << 10;
/// Global parameters that are the broker's own begin with this.
const INTERNAL: &str = "internal";
/// The hash of what was imported last: of this cluster's boots, and of no interest to others.
pub const IMPORTED_HASH: &str = "imported_definition_hash_value";
/// The one exchange of the broker itself that operators declare.
const LOG_EXCHANGE: &str = "amq.rabbitmq.log";

#[derive(Serialize)]
struct UserOut<'a> {
    name: &'a str,
    password_hash: String,
    hashing_algorithm: &'static str,
    tags: &'a [String],
    limits: Map<String, Value>,
}

#[derive(Serialize)]
struct VhostOut<'a> {
    name: &'a str,
    description: &'a str,
    metadata: VhostMetadata<'a>,
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    default_queue_type: Option<&'a str>,
    /// A list where there are none, as RabbitMQ writes it.
    limits: Value,
}

#[derive(Serialize)]
struct VhostMetadata<'a> {
    description: &'a str,
    tags: &'a [String],
    #[serde(skip_serializing_if = "Option::is_none")]
    default_queue_type: Option<&'a str>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    protected_from_deletion: bool,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    tracing: bool,
}

#[derive(Serialize)]
struct PermissionOut<'a> {
    user: &'a str,
    vhost: &'a str,
    configure: &'a str,
    write: &'a str,
    read: &'a str,
}

#[derive(Serialize)]
struct TopicPermissionOut<'a> {
    user: &'a str,
    vhost: &'a str,
    exchange: &'a str,
    write: &'a str,
    read: &'a str,
}

#[derive(Serialize)]
struct ParameterOut<'a> {
    vhost: &'a str,
    component: &'a str,
    name: &'a str,
    value: &'a Value,
}

#[derive(Serialize)]
struct GlobalParameterOut<'a> {
    name: &'a str,
    value: &'a Value,
}

#[derive(Serialize)]
struct PolicyOut<'a> {
    vhost: &'a str,
    name: &'a str,
    pattern: &'a str,
    #[serde(rename = "apply-to")]
    apply_to: &'a str,
    definition: &'a Map<String, Value>,
    priority: i64,
}

#[derive(Serialize)]
struct QueueOut<'a> {
    name: &'a str,
    vhost: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    durable: bool,
    auto_delete: bool,
    arguments: Value,
}

#[derive(Serialize)]
struct ExchangeOut<'a> {
    name: &'a str,
    vhost: &'a str,
    #[serde(rename = "type")]
    kind: &'a str,
    durable: bool,
    auto_delete: bool,
    internal: bool,
    arguments: Value,
}

#[derive(Serialize)]
struct BindingOut<'a> {
    source: &'a str,
    vhost: &'a str,
    destination: &'a str,
    destination_type: &'a str,
    routing_key: &'a str,
    arguments: Value,
}

/// Why an export ended early.
#[derive(Debug, Clone, thiserror::Error)]
pub enum ExportError {
    /// A record cannot be read.
    #[error(transparent)]
    Unreadable(#[from] Invalid),
    /// Nobody takes the document any more.
    #[error("nobody takes the definitions any more")]
    Unwanted,
}

/// Writes the definitions of the cluster, at one point of its history, into `sink`; false ends the export.
pub fn export(view: &View, sink: impl FnMut(String) -> bool) -> Result<(), ExportError> {
    let tree = view.tree();
    let name = Cluster::name(tree)?.unwrap_or_default();
    let explanation = format!("Definitions of cluster '{name}'");
    let mut out = Out { text: String::from("{"), sink };
    for (key, value) in [
        ("rabbit_version", identity::CLIENT_VERSION),
        ("rabbitmq_version", identity::CLIENT_VERSION),
        ("product_name", identity::PRODUCT),
        ("product_version", identity::VERSION),
        ("rabbitmq_definition_format", "cluster"),
        ("original_cluster_name", name.as_str()),
        ("explanation", explanation.as_str()),
    ] {
        out.field(key, &json!(value));
    }
    let vhosts: Vec<Arc<_>> = {
        let mut vhosts: Vec<_> = view.vhosts().cloned().collect();
        vhosts.sort_by(|a, b| a.name.cmp(&b.name));
        vhosts
    };
    out.list("users", |out| User::list(tree)?.iter().try_for_each(|user| out.item(&user_out(user))))?;
    out.list("vhosts", |out| vhosts.iter().try_for_each(|vhost| out.item(&vhost_out(vhost))))?;
    let names: Vec<&str> = vhosts.iter().map(|vhost| &*vhost.name).collect();
    out.list_in(
        "permissions",
        &names,
        |vhost| Permission::list(tree, vhost),
        |out, p| {
            let (configure, write, read) = (&p.configure, &p.write, &p.read);
            out.item(&PermissionOut { user: &p.user, vhost: &p.vhost, configure, write, read })
        },
    )?;
    out.list_in(
        "topic_permissions",
        &names,
        |vhost| TopicPermission::list_in(tree, vhost),
        |out, p| {
            let (exchange, write, read) = (&p.exchange, &p.write, &p.read);
            out.item(&TopicPermissionOut { user: &p.user, vhost: &p.vhost, exchange, write, read })
        },
    )?;
    out.list("parameters", |out| {
        for vhost in &vhosts {
            let vhost = &*vhost.name;
            for policy in &OperatorPolicy::list(tree, vhost)? {
                let value = &json!({
                    "pattern": policy.pattern,
                    "apply-to": policy.apply_to.name(),
                    "priority": policy.priority,
                    "definition": policy.definition,
                });
                out.item(&ParameterOut { vhost, component: OPERATOR_POLICY, name: &policy.name, value })?;
            }
            for p in &Parameter::list(tree, vhost)? {
                out.item(&ParameterOut { vhost, component: &p.component, name: &p.name, value: &p.value })?;
            }
        }
        Ok(())
    })?;
    out.list("global_parameters", |out| {
        let all = GlobalParameter::list(tree)?;
        let shown = all.iter().filter(|(name, _)| is_shown(name));
        shown.into_iter().try_for_each(|(name, p)| out.item(&GlobalParameterOut { name, value: &p.value }))
    })?;
    out.list_in(
        "policies",
        &names,
        |vhost| Policy::list(tree, vhost),
        |out, policy| {
            out.item(&PolicyOut {
                vhost: &policy.vhost,
                name: &policy.name,
                pattern: &policy.pattern,
                apply_to: policy.apply_to.name(),
                definition: &policy.definition,
                priority: policy.priority,
            })
        },
    )?;
    out.list("queues", |out| {
        for vhost in vhosts.iter().filter_map(|vhost| view.vhost(&vhost.name)) {
            let mut queues: Vec<_> = vhost.queues().collect();
            queues.sort_by(|a, b| a.name.cmp(&b.name));
            for queue in
                queues.into_iter().map(|target| target.record()).filter(|queue| queue.exclusive_owner.is_none())
            {
                out.item(&QueueOut {
                    name: &queue.name,
                    vhost: &queue.vhost,
                    kind: queue.kind.name(),
                    durable: queue.durable,
                    auto_delete: queue.auto_delete,
                    arguments: encoded(&queue.arguments),
                })?;
            }
        }
        Ok(())
    })?;
    out.list_in(
        "exchanges",
        &names,
        |vhost| Exchange::list(tree, vhost),
        |out, exchange| {
            if !is_declared(&exchange.name) {
                return Ok(());
            }
            out.item(&ExchangeOut {
                name: &exchange.name,
                vhost: &exchange.vhost,
                kind: exchange.kind.name(),
                durable: exchange.durable,
                auto_delete: exchange.auto_delete,
                internal: exchange.internal,
                arguments: encoded(&exchange.arguments),
            })
        },
    )?;
    out.list("bindings", |out| vhosts.iter().try_for_each(|vhost| bindings(out, view, &vhost.name)))?;
    out.text.push_str("\n}\n");
    out.flush()
}

/// By exchange, so that only those of one are in memory.
fn bindings<S: FnMut(String) -> bool>(out: &mut List<'_, S>, view: &View, vhost: &str) -> Result<(), ExportError> {
    let Some(of) = view.vhost(vhost) else { return Ok(()) };
    let mut exchanges: Vec<&Arc<str>> = of.exchanges().map(|exchange| &exchange.record().name).collect();
    exchanges.sort();
    let lasts = |binding: &&Binding| match binding.destination_kind {
        DestinationKind::Queue => {
            of.queue(&binding.destination).is_some_and(|queue| queue.record().exclusive_owner.is_none())
        }
        DestinationKind::Exchange => true,
    };
    for exchange in exchanges {
        for binding in Binding::list_from(view.tree(), vhost, exchange)?.iter().filter(lasts) {
            out.item(&BindingOut {
                source: &binding.source,
                vhost,
                destination: &binding.destination,
                destination_type: match binding.destination_kind {
                    DestinationKind::Queue => "queue",
                    DestinationKind::Exchange => "exchange",
                },
                routing_key: &String::from_utf8_lossy(&binding.key),
                arguments: encoded(&binding.arguments),
            })?;
        }
    }
    Ok(())
}

fn user_out(user: &User) -> UserOut<'_> {
    UserOut {
        name: &user.name,
        password_hash: STANDARD.encode(&user.password_hash),
        hashing_algorithm: user.hashing_algorithm.name(),
        tags: &user.tags,
        limits: limits(&[("max-connections", user.max_connections), ("max-channels", user.max_channels)]),
    }
}

fn vhost_out(vhost: &Vhost) -> VhostOut<'_> {
    let limits = limits(&[("max-connections", vhost.max_connections), ("max-queues", vhost.max_queues)]);
    VhostOut {
        name: &vhost.name,
        description: &vhost.description,
        metadata: VhostMetadata {
            description: &vhost.description,
            tags: &vhost.tags,
            default_queue_type: vhost.default_queue_type.as_deref(),
            protected_from_deletion: vhost.protected_from_deletion,
            tracing: vhost.tracing,
        },
        tags: &vhost.tags,
        default_queue_type: vhost.default_queue_type.as_deref(),
        limits: if limits.is_empty() { json!([]) } else { Value::Object(limits) },
    }
}

/// The limits that are set, as an object.
pub fn limits(all: &[(&str, Option<i64>)]) -> Map<String, Value> {
    all.iter().filter_map(|(name, limit)| Some(((*name).to_owned(), json!((*limit)?)))).collect()
}

/// Whether a global parameter is an operator's.
pub fn is_shown(name: &str) -> bool {
    name != IMPORTED_HASH && !name.starts_with(INTERNAL)
}

/// Whether somebody declared the exchange, rather than that every virtual host has it.
fn is_declared(name: &str) -> bool {
    name == LOG_EXCHANGE || !(name.is_empty() || name.starts_with("amq."))
}

/// The document so far.
struct Out<S> {
    text: String,
    sink: S,
}

impl<S: FnMut(String) -> bool> Out<S> {
    fn field(&mut self, key: &str, value: &Value) {
        self.key(key);
        self.text.push_str(&value.to_string());
    }

    fn key(&mut self, key: &str) {
        self.text.push_str(if self.text == "{" { "\n" } else { ",\n" });
        self.text.push_str(&format!("  \"{key}\": "));
    }

    fn list(
        &mut self,
        key: &str,
        write: impl FnOnce(&mut List<'_, S>) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.key(key);
        self.text.push('[');
        let mut list = List { out: self, is_empty: true };
        write(&mut list)?;
        let end = if list.is_empty { "]" } else { "\n  ]" };
        self.text.push_str(end);
        Ok(())
    }

    /// A list of what each virtual host has, one virtual host after the other.
    fn list_in<T>(
        &mut self,
        key: &str,
        vhosts: &[&str],
        of: impl Fn(&str) -> Result<Vec<T>, Invalid>,
        write: impl Fn(&mut List<'_, S>, &T) -> Result<(), ExportError>,
    ) -> Result<(), ExportError> {
        self.list(key, |list| {
            vhosts.iter().try_for_each(|vhost| of(vhost)?.iter().try_for_each(|item| write(list, item)))
        })
    }

    fn flush(&mut self) -> Result<(), ExportError> {
        let piece = std::mem::take(&mut self.text);
        if (self.sink)(piece) { Ok(()) } else { Err(ExportError::Unwanted) }
    }
}

/// A list that is being written, an object a line.
struct List<'o, S> {
    out: &'o mut Out<S>,
    is_empty: bool,
}

impl<S: FnMut(String) -> bool> List<'_, S> {
    fn item(&mut self, item: &impl Serialize) -> Result<(), ExportError> {
        self.out.text.push_str(if self.is_empty { "\n    " } else { ",\n    " });
        self.is_empty = false;
        // A record of texts, numbers and JSON values has no way to fail.
        self.out.text.push_str(&serde_json::to_string(item).unwrap_or_default());
        if self.out.text.len() >= PIECE { self.out.flush() } else { Ok(()) }
    }
}
