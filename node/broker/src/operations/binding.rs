//! Binding queues and exchanges to exchanges (spec: amqp091.md, sections 5 and 6; broker-model.md, section 3).

use std::sync::Arc;

use warren_metastore::projections::{MAX_HASH_WORDS, hash_words};
use warren_metastore::records::{Binding, DestinationKind, ExchangeKind};
use warren_metastore::tree::{AbortCode, MetaError};
use warren_proto::amqp091::FieldTable;

use super::arguments::show;
use super::exchange::bare;
use super::{Context, clean_name, write_failed};
use crate::access::{Permission, Resource, check_topics};
use crate::error::{BrokerError, no_exchange, no_queue};
use crate::metadata::WriteError;
use crate::node::Broker;

/// A binding to be made or removed.
#[derive(Debug, Clone)]
pub struct BindingSpec {
    /// The exchange that it leads from.
    pub source: String,
    /// What `destination` is.
    pub kind: DestinationKind,
    /// Where it leads.
    pub destination: String,
    /// The binding key.
    pub key: Vec<u8>,
    /// Its arguments.
    pub arguments: FieldTable,
}

impl Broker {
    /// Makes a binding. Making one that is there is fine.
    pub async fn bind(&self, cx: &Context, spec: BindingSpec) -> Result<(), BrokerError> {
        let spec = self.checked(cx, spec)?;
        let source =
            self.metadata.exchange(&cx.vhost, &spec.source).ok_or_else(|| no_exchange(&cx.vhost, &spec.source))?;
        fits(&source.kind, &spec)?;
        let binding = binding(&cx.vhost, &spec);
        match self.metadata.write(binding.put()).await {
            Ok(_) => Ok(()),
            Err(WriteError::Refused(MetaError::Aborted { code })) => Err(match code {
                AbortCode::NoSuchDestination => missing_destination(cx, &spec),
                _ => no_exchange(&cx.vhost, &spec.source),
            }),
            Err(error) => Err(write_failed(error, "binding", &spec.destination)),
        }
    }

    /// Removes a binding. Removing one that is not there is fine.
    pub async fn unbind(&self, cx: &Context, spec: BindingSpec) -> Result<(), BrokerError> {
        let spec = self.checked(cx, spec)?;
        match self.metadata.write(binding(&cx.vhost, &spec).delete()).await {
            Ok(_) => Ok(()),
            Err(error) => Err(write_failed(error, "unbinding", &spec.destination)),
        }
    }

    fn checked(&self, cx: &Context, spec: BindingSpec) -> Result<BindingSpec, BrokerError> {
        let spec = BindingSpec { source: clean_name(&spec.source), destination: clean_name(&spec.destination), ..spec };
        let default = || BrokerError::AccessRefused("operation not permitted on the default exchange".into());
        let destination = match spec.kind {
            DestinationKind::Queue => {
                if spec.destination.starts_with(crate::operations::queue::REPLY_TO) {
                    return Err(BrokerError::AccessRefused("a direct reply-to name cannot be bound".into()));
                }
                Resource::Queue(&spec.destination)
            }
            DestinationKind::Exchange => {
                if spec.destination.is_empty() {
                    return Err(default());
                }
                Resource::Exchange(&spec.destination)
            }
        };
        if spec.source.is_empty() {
            return Err(default());
        }
        self.check(&cx.user.name, &cx.vhost, Permission::Write, destination)?;
        self.check(&cx.user.name, &cx.vhost, Permission::Read, Resource::Exchange(&spec.source))?;
        if let Some(vhost) = self.metadata.projections().peek().vhost(&cx.vhost)
            && let Some(source) = vhost.exchange(&spec.source)
        {
            check_topics(vhost, &cx.user.name, source.record(), Permission::Read, &[&spec.key])?;
        }
        if spec.kind == DestinationKind::Queue
            && let Some(queue) = self.metadata.queue(&cx.vhost, &spec.destination)
        {
            self.check_exclusive(cx, &queue)?;
        }
        Ok(spec)
    }
}

fn missing_destination(cx: &Context, spec: &BindingSpec) -> BrokerError {
    match spec.kind {
        DestinationKind::Queue => no_queue(&cx.vhost, &spec.destination),
        DestinationKind::Exchange => no_exchange(&cx.vhost, &spec.destination),
    }
}

/// Whether an exchange of this type can have the binding.
pub(crate) fn fits(source: &ExchangeKind, spec: &BindingSpec) -> Result<(), BrokerError> {
    match source {
        ExchangeKind::Topic => check_topic_key(spec),
        ExchangeKind::Headers => check_x_match(spec),
        ExchangeKind::Direct | ExchangeKind::Fanout | ExchangeKind::Other(_) => Ok(()),
    }
}

pub(crate) fn binding(vhost: &Arc<str>, spec: &BindingSpec) -> Binding {
    Binding {
        vhost: Arc::clone(vhost),
        source: spec.source.as_str().into(),
        destination_kind: spec.kind,
        destination: spec.destination.as_str().into(),
        key: spec.key.as_slice().into(),
        arguments: bare(&spec.arguments.sorted()),
    }
}

fn check_topic_key(spec: &BindingSpec) -> Result<(), BrokerError> {
    if hash_words(&spec.key) > MAX_HASH_WORDS {
        return Err(BrokerError::PreconditionFailed(format!(
            "binding key '{}' has more than {MAX_HASH_WORDS} '#' words",
            String::from_utf8_lossy(&spec.key)
        )));
    }
    Ok(())
}

fn check_x_match(spec: &BindingSpec) -> Result<(), BrokerError> {
    match spec.arguments.get("x-match") {
        None => Ok(()),
        Some(value) if matches!(value.as_str(), Some("all" | "any" | "all-with-x" | "any-with-x")) => Ok(()),
        Some(value) => Err(BrokerError::PreconditionFailed(format!(
            "invalid x-match: expected 'all', 'any', 'all-with-x' or 'any-with-x', got {}",
            show(Some(value))
        ))),
    }
}
