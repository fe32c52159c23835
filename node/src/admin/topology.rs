//! Exchanges and bindings.

use serde_json::{Value, json};
use warren_broker::Broker;
use warren_broker::field_json::encoded;
use warren_metastore::records::{Binding, DestinationKind, Exchange};

use super::protocol::Request;
use super::queues::name_of;
use super::{Answer, Outcome, no_vhost, row, unreadable, vhosts};

/// `list_exchanges`.
pub fn list_exchanges(broker: &Broker, request: &Request) -> Outcome {
    vhosts::find(broker, &request.vhost)?;
    let exchanges = Exchange::list(&broker.metadata().tree(), &request.vhost).map_err(unreadable)?;
    let mut rows: Vec<_> = exchanges
        .iter()
        .map(|exchange| {
            row([
                ("name", json!(exchange.name.as_ref())),
                ("type", json!(exchange.kind.name())),
                ("durable", json!(exchange.durable)),
                ("auto_delete", json!(exchange.auto_delete)),
                ("internal", json!(exchange.internal)),
                ("arguments", encoded(&exchange.arguments)),
                ("policy", name_of(&broker.metadata().exchange_policies(&request.vhost, &exchange.name).policy)),
            ])
        })
        .collect();
    // The default exchange is nowhere stored: every virtual host has it.
    if !exchanges.iter().any(|exchange| exchange.name.is_empty()) {
        rows.insert(
            0,
            row([
                ("name", json!("")),
                ("type", json!("direct")),
                ("durable", json!(true)),
                ("auto_delete", json!(false)),
                ("internal", json!(false)),
                ("arguments", json!({})),
                ("policy", Value::Null),
            ]),
        );
    }
    Ok(Answer::Rows(rows))
}

/// `list_bindings`, with those from the default exchange to every queue.
pub fn list_bindings(broker: &Broker, request: &Request) -> Outcome {
    let view = broker.metadata().projections().load();
    let Some(vhost) = view.vhost(&request.vhost) else { return Err(no_vhost(&request.vhost)) };
    let mut queues: Vec<String> = vhost.queues().map(|queue| queue.name.to_string()).collect();
    queues.sort();
    let mut rows: Vec<_> = queues
        .into_iter()
        .map(|queue| {
            row([
                ("source_name", json!("")),
                ("source_kind", json!("exchange")),
                ("destination_name", json!(queue)),
                ("destination_kind", json!("queue")),
                ("routing_key", json!(queue)),
                ("arguments", json!({})),
            ])
        })
        .collect();
    for binding in Binding::list(view.tree(), &request.vhost).map_err(unreadable)? {
        let kind = match binding.destination_kind {
            DestinationKind::Queue => "queue",
            DestinationKind::Exchange => "exchange",
        };
        rows.push(row([
            ("source_name", json!(binding.source.as_ref())),
            ("source_kind", json!("exchange")),
            ("destination_name", json!(binding.destination.as_ref())),
            ("destination_kind", json!(kind)),
            ("routing_key", json!(String::from_utf8_lossy(&binding.key))),
            ("arguments", encoded(&binding.arguments)),
        ]));
    }
    Ok(Answer::Rows(rows))
}
