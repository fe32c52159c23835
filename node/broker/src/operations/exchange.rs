//! Declaring and deleting exchanges (spec: amqp091.md, section 5).

use warren_metastore::records::CreateOrGet;
use warren_metastore::records::{DeleteExchange, Exchange, ExchangeKind, Record};
use warren_metastore::tree::{AbortCode, MetaError};
use warren_proto::amqp091::{FieldTable, FieldValue};

use super::arguments::show;
use super::{Context, clean_name, write_failed};
use crate::access::{Permission, Resource};
use crate::error::{BrokerError, no_exchange};
use crate::metadata::WriteError;
use crate::node::Broker;

/// An exchange to be.
#[derive(Debug, Clone)]
pub struct ExchangeSpec {
    /// Its name.
    pub name: String,
    /// Its type's name.
    pub kind: String,
    /// Only check that it exists.
    pub passive: bool,
    /// See [`Exchange::durable`].
    pub durable: bool,
    /// See [`Exchange::auto_delete`].
    pub auto_delete: bool,
    /// See [`Exchange::internal`].
    pub internal: bool,
    /// Its arguments.
    pub arguments: FieldTable,
}

const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

impl Broker {
    fn check_exchange_limit(&self, name: &str) -> Result<(), BrokerError> {
        let Some(limit) = self.config.limits.exchanges else { return Ok(()) };
        let view = self.metadata.projections().load();
        let vhosts = view.vhosts().filter_map(|vhost| view.vhost(&vhost.name));
        if vhosts.map(|vhost| vhost.exchanges().count()).sum::<usize>() < limit {
            return Ok(());
        }
        let text = format!("cannot declare exchange '{name}': exchange limit of {limit} is reached");
        Err(BrokerError::PreconditionFailed(text))
    }

    /// Declares an exchange, or checks that it exists.
    pub async fn exchange_declare(&self, cx: &Context, spec: ExchangeSpec) -> Result<(), BrokerError> {
        let name = clean_name(&spec.name);
        let existing = self.metadata.exchange(&cx.vhost, &name);
        if name.is_empty() {
            return Err(BrokerError::AccessRefused("operation not permitted on the default exchange".into()));
        }
        if spec.passive {
            self.check_any(&cx.user.name, &cx.vhost, Resource::Exchange(&name))?;
            return existing.map(|_| ()).ok_or_else(|| no_exchange(&cx.vhost, &name));
        }
        let kind = ExchangeKind::from_name(&spec.kind);
        if let ExchangeKind::Other(kind) = &kind {
            return Err(BrokerError::PreconditionFailed(format!("unknown exchange type '{kind}'")));
        }
        self.check(&cx.user.name, &cx.vhost, Permission::Configure, Resource::Exchange(&name))?;
        self.check_alternate(cx, &name, &spec.arguments)?;
        let wanted = Exchange {
            vhost: cx.vhost.clone(),
            name: name.as_str().into(),
            kind,
            durable: spec.durable,
            auto_delete: spec.auto_delete,
            internal: spec.internal,
            arguments: bare(&spec.arguments),
            user: cx.user.name.clone(),
            ..Exchange::default()
        };
        if let Some(existing) = existing {
            return equivalent(&existing, &wanted);
        }
        if name.starts_with("amq.") {
            return Err(BrokerError::AccessRefused(format!("exchange name '{name}' contains reserved prefix 'amq.*'")));
        }
        self.check_exchange_limit(&name)?;
        let reply = match self.metadata.write(wanted.create_or_get()).await {
            Ok(reply) => Ok(reply),
            Err(WriteError::Refused(error)) => Err(error),
            Err(error) => return Err(write_failed(error, "declaring exchange", &name)),
        };
        match Exchange::created(reply) {
            Ok(CreateOrGet::Created) => Ok(()),
            Ok(CreateOrGet::Exists(existing)) => equivalent(&existing, &wanted),
            Err(error) => Err(super::refused(&error, "declaring exchange", &name)),
        }
    }

    fn check_alternate(&self, cx: &Context, name: &str, arguments: &FieldTable) -> Result<(), BrokerError> {
        let Some(value) = arguments.get(ALTERNATE_EXCHANGE) else { return Ok(()) };
        let Some(alternate) = value.as_str() else {
            return Err(BrokerError::PreconditionFailed(format!(
                "invalid type '{}' for arg '{ALTERNATE_EXCHANGE}' in exchange '{name}' in vhost '{}'",
                value.type_name(),
                cx.vhost
            )));
        };
        self.check(&cx.user.name, &cx.vhost, Permission::Read, Resource::Exchange(name))?;
        self.check(&cx.user.name, &cx.vhost, Permission::Write, Resource::Exchange(alternate))
    }

    /// Deletes an exchange. Deleting one that is not there is fine.
    pub async fn exchange_delete(&self, cx: &Context, name: &str, if_unused: bool) -> Result<(), BrokerError> {
        let name = clean_name(name);
        if name.is_empty() {
            return Err(BrokerError::AccessRefused("operation not permitted on the default exchange".into()));
        }
        if name.starts_with("amq.") {
            return Err(BrokerError::AccessRefused(format!(
                "deletion of system exchange '{name}' in vhost '{}' not allowed",
                cx.vhost
            )));
        }
        self.check(&cx.user.name, &cx.vhost, Permission::Configure, Resource::Exchange(&name))?;
        let mode = if if_unused { DeleteExchange::IfUnused } else { DeleteExchange::Always };
        match self.metadata.write(Exchange::delete(&cx.vhost, &name, mode)).await {
            Ok(_) => Ok(()),
            Err(WriteError::Refused(MetaError::Aborted { code: AbortCode::NoSuchExchange })) => Ok(()),
            Err(WriteError::Refused(MetaError::Aborted { code: AbortCode::InUse })) => {
                Err(BrokerError::PreconditionFailed(format!("exchange '{name}' in vhost '{}' in use", cx.vhost)))
            }
            Err(error) => Err(write_failed(error, "deleting exchange", &name)),
        }
    }
}

/// A table's fields without its length, as records keep them.
pub(crate) fn bare(table: &FieldTable) -> std::sync::Arc<[u8]> {
    let mut out = bytes::BytesMut::new();
    table.encode_bare(&mut out);
    out[..].into()
}

fn alternate(exchange: &Exchange) -> Option<FieldValue> {
    let table = FieldTable::decode_bare(&exchange.arguments).ok()?;
    table.get(ALTERNATE_EXCHANGE).cloned()
}

fn equivalent(existing: &Exchange, wanted: &Exchange) -> Result<(), BrokerError> {
    let differs = |field: &str, received: &str, current: &str| {
        Err(BrokerError::PreconditionFailed(format!(
            "inequivalent arg '{field}' for exchange '{}' in vhost '{}': received '{received}' but current is '{current}'",
            existing.name, existing.vhost
        )))
    };
    if existing.kind != wanted.kind {
        return differs("type", wanted.kind.name(), existing.kind.name());
    }
    let flags = [
        ("durable", wanted.durable, existing.durable),
        ("auto_delete", wanted.auto_delete, existing.auto_delete),
        ("internal", wanted.internal, existing.internal),
    ];
    for (field, received, current) in flags {
        if received != current {
            return differs(field, &received.to_string(), &current.to_string());
        }
    }
    let (received, current) = (alternate(wanted), alternate(existing));
    if received != current {
        return Err(BrokerError::PreconditionFailed(format!(
            "inequivalent arg '{ALTERNATE_EXCHANGE}' for exchange '{}' in vhost '{}': received {} but current is {}",
            existing.name,
            existing.vhost,
            show(received.as_ref()),
            show(current.as_ref())
        )));
    }
    Ok(())
}
