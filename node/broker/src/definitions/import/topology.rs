//! Exchanges, queues and bindings: left as they are where they exist, left out where Warren does not have their like.

use std::sync::Arc;

use warren_metastore::records::{self, DestinationKind, ExchangeKind, QueueKind};
use warren_proto::amqp091::{FieldTable, FieldValue};

use super::{MAX_NAME, Made, Run, name, named_binding, vhost_of};
use crate::definitions::document;
use crate::definitions::unsupported::{is_foreign_exchange, queue_type};
use crate::error::{BrokerError, no_exchange, no_queue};
use crate::field_json;
use crate::operations::arguments::{self, Named};
use crate::operations::binding::{binding, fits};
use crate::operations::exchange::bare;
use crate::operations::queue::check_quorum_flags;
use crate::operations::{BindingSpec, QueueSpec};

impl Run<'_> {
    pub(super) fn exchange(&self, of: &document::Exchange) -> Made {
        let vhost = vhost_of(&of.vhost);
        if of.name.is_empty() || of.name.starts_with("amq.") {
            self.notice(format!(
                "exchange '{}' in virtual host '{vhost}' is left out: every virtual host has its own",
                of.name
            ));
            return Ok(None);
        }
        name(&of.name)?;
        if self.broker.metadata.exchange(vhost, &of.name).is_some() {
            return Ok(None);
        }
        let kind = ExchangeKind::from_name(&of.kind);
        if is_foreign_exchange(&kind) {
            self.leave_out(DestinationKind::Exchange, vhost, &of.name);
            self.notice(format!(
                "exchange '{}' in virtual host '{vhost}' is left out: exchanges of type {} are not available in this version",
                of.name, of.kind
            ));
            return Ok(None);
        }
        if let ExchangeKind::Other(kind) = &kind {
            return Err(format!("unknown exchange type '{kind}'"));
        }
        let arguments = field_json::table(&of.arguments)?;
        if arguments.get("alternate-exchange").is_some_and(|value| value.as_str().is_none()) {
            return Err("its alternate-exchange is not a text".to_owned());
        }
        let exchange = records::Exchange {
            durable: of.durable.unwrap_or(true),
            auto_delete: of.auto_delete,
            internal: of.internal,
            arguments: bare(&arguments),
            user: Arc::clone(&self.user),
            ..records::Exchange::named(vhost, &of.name, kind)
        };
        let bytes = 2 * (vhost.len() + of.name.len()) + exchange.arguments.len() + 50;
        Ok(Some((exchange.create_if_absent(), bytes)))
    }

    pub(super) fn queue(&self, of: &document::Queue) -> Made {
        let vhost = vhost_of(&of.vhost);
        if of.name.starts_with("amq.") {
            self.leave_out(DestinationKind::Queue, vhost, &of.name);
            self.notice(format!("queue '{}' in virtual host '{vhost}' is left out: the name is reserved", of.name));
            return Ok(None);
        }
        name(&of.name)?;
        let metadata = &self.broker.metadata;
        if metadata.queue_target(vhost, &of.name).is_some() {
            return Ok(None);
        }
        let mut arguments = field_json::table(&of.arguments)?;
        let asked = arguments.get("x-queue-type").and_then(FieldValue::as_str).map(queue_type).map(str::to_owned);
        let asked = asked.or_else(|| of.kind.as_deref().map(queue_type).map(str::to_owned));
        let named = Named { vhost, name: &of.name };
        let left_out = |why: String| {
            self.leave_out(DestinationKind::Queue, vhost, &of.name);
            self.notice(format!("queue '{}' in virtual host '{vhost}' is left out: {why}", of.name));
            Ok(None)
        };
        if asked.as_deref() == Some("stream") {
            return left_out("streams are not available in this version".to_owned());
        }
        let has_argument = arguments.get("x-queue-type").is_some();
        if let Some(asked) = &asked
            && (has_argument || asked != QueueKind::Classic.name())
        {
            arguments.set("x-queue-type", FieldValue::text(asked.as_str()));
        }
        let mut spec = QueueSpec {
            name: of.name.clone(),
            passive: false,
            durable: of.durable.unwrap_or(true),
            exclusive: false,
            auto_delete: of.auto_delete,
            nowait: true,
            arguments,
        };
        let kind = match arguments::queue_kind(&spec.arguments, named).map_err(|error| error.to_string())? {
            Some(kind) => kind,
            None if asked.is_some() => QueueKind::Classic,
            None => self.broker.default_kind(vhost, &spec),
        };
        if kind == QueueKind::Quorum && spec.arguments.get("x-queue-type").is_none() {
            spec.arguments.set("x-queue-type", FieldValue::text(kind.name()));
        }
        let idle = arguments::not_yet(kind, &spec.arguments);
        if !idle.is_empty() {
            let idle = idle.join(", ");
            return left_out(format!("{} queues do not have {idle} in this version", kind.name()));
        }
        arguments::check(kind, &spec.arguments, named).map_err(|error| error.to_string())?;
        if kind == QueueKind::Quorum {
            check_quorum_flags(&spec, named).map_err(|error| error.to_string())?;
        }
        let queue = self.broker.new_queue(&vhost.into(), &self.user, kind, &spec, None);
        let bytes = 2 * (vhost.len() + of.name.len()) + queue.arguments.len() + 50 * queue.members.len() + 80;
        Ok(Some((queue.create_if_absent(), bytes)))
    }

    pub(super) fn binding(&self, of: &document::Binding) -> Made {
        let vhost = vhost_of(&of.vhost);
        let kind = match of.destination_type.as_str() {
            "queue" => DestinationKind::Queue,
            "exchange" => DestinationKind::Exchange,
            other => return Err(format!("'{other}' is neither 'queue' nor 'exchange'")),
        };
        let left_out = |why: &str| {
            self.notice(format!("{} is left out: {why}", named_binding(of)));
            Ok(None)
        };
        if of.source.is_empty() {
            return left_out("the default exchange is bound to every queue as it is");
        }
        let metadata = &self.broker.metadata;
        let Some(source) = metadata.exchange(vhost, &of.source) else {
            if self.is_left_out(DestinationKind::Exchange, vhost, &of.source) {
                return left_out("its exchange is");
            }
            return Err(no_exchange(vhost, &of.source).to_string());
        };
        let missing: Option<BrokerError> = match kind {
            DestinationKind::Queue => {
                metadata.queue_target(vhost, &of.destination).is_none().then(|| no_queue(vhost, &of.destination))
            }
            DestinationKind::Exchange => {
                metadata.exchange(vhost, &of.destination).is_none().then(|| no_exchange(vhost, &of.destination))
            }
        };
        if let Some(missing) = missing {
            if self.is_left_out(kind, vhost, &of.destination) {
                return left_out("what it leads to is");
            }
            return Err(missing.to_string());
        }
        if of.routing_key.len() > MAX_NAME {
            return Err(format!("its routing key is longer than {MAX_NAME} bytes"));
        }
        let arguments: FieldTable = field_json::table(&of.arguments)?;
        let spec = BindingSpec {
            source: of.source.clone(),
            kind,
            destination: of.destination.clone(),
            key: of.routing_key.clone().into_bytes(),
            arguments,
        };
        fits(&source.kind, &spec).map_err(|error| error.to_string())?;
        let binding = binding(&source.vhost, &spec);
        if binding.exists(metadata.projections().peek().tree()).unwrap_or(false) {
            return Ok(None);
        }
        let names = vhost.len() + of.source.len() + of.destination.len();
        Ok(Some((binding.put(), 6 * names + of.routing_key.len() + binding.arguments.len() + 100)))
    }
}
