//! One exchange with its routing table.

use std::sync::Arc;

use warren_proto::amqp091::TableRef;

use super::destinations::{Destination, Destinations};
use super::direct::Direct;
use super::fanout::Fanout;
use super::headers::{HeaderLookup, Headers};
use super::policies::Policies;
use super::topic::Topic;
use crate::records::{Exchange, ExchangeKind, Stored};

const ALTERNATE_EXCHANGE: &str = "alternate-exchange";

/// An exchange as publishers see it.
#[derive(Clone, Debug)]
pub struct ExchangeView {
    record: Arc<Stored<Exchange>>,
    alternate: Option<Arc<str>>,
    table: Table,
}

#[derive(Clone, Debug)]
enum Table {
    Direct(Direct),
    Fanout(Fanout),
    Topic(Topic),
    Headers(Headers),
    /// Of a type that this binary does not know.
    None,
}

impl ExchangeView {
    pub(super) fn new(record: Arc<Stored<Exchange>>, policies: &Policies) -> Self {
        let table = match record.kind {
            ExchangeKind::Direct => Table::Direct(Direct::default()),
            ExchangeKind::Fanout => Table::Fanout(Fanout::default()),
            ExchangeKind::Topic => Table::Topic(Topic::default()),
            ExchangeKind::Headers => Table::Headers(Headers::default()),
            ExchangeKind::Other(_) => Table::None,
        };
        ExchangeView { alternate: alternate(&record, policies), record, table }
    }

    /// The exchange.
    pub fn record(&self) -> &Arc<Stored<Exchange>> {
        &self.record
    }

    /// Where messages go that it routes nowhere.
    pub fn alternate_exchange(&self) -> Option<&Arc<str>> {
        self.alternate.as_ref()
    }

    pub(super) fn set_record(&mut self, record: Arc<Stored<Exchange>>, policies: &Policies) {
        self.alternate = alternate(&record, policies);
        self.record = record;
    }

    /// Whether other policies give it another alternate exchange.
    pub(super) fn is_rerouted_by(&self, policies: &Policies) -> bool {
        self.alternate != alternate(&self.record, policies)
    }

    pub(super) fn set_policies(&mut self, policies: &Policies) {
        self.alternate = alternate(&self.record, policies);
    }

    /// The bindings of one destination and key: their tables of arguments before and after. `known` where the
    /// destination is only replaced by a newer target of the same name.
    pub(super) fn bind(&mut self, key: &Arc<[u8]>, destination: Destination, old: &[Arc<[u8]>], new: &[Arc<[u8]>]) {
        let (was, is) = (!old.is_empty(), !new.is_empty());
        match &mut self.table {
            Table::Headers(headers) => headers.set(key, destination, new),
            Table::Direct(direct) if is => direct.insert(key, destination),
            Table::Direct(direct) => direct.remove(key, &destination),
            Table::Topic(topic) if is => topic.insert(key, destination),
            Table::Topic(topic) => topic.remove(key, &destination),
            Table::Fanout(fanout) if is => fanout.insert(destination, was),
            Table::Fanout(fanout) if was => fanout.remove(&destination),
            Table::Fanout(_) | Table::None => {}
        }
    }

    /// What a direct exchange has for a key.
    pub(super) fn direct(&self, key: &[u8]) -> Option<&Destinations> {
        match &self.table {
            Table::Direct(direct) => direct.get(key),
            Table::Fanout(_) | Table::Topic(_) | Table::Headers(_) | Table::None => None,
        }
    }

    /// Calls `found` for every destination of the message; the same one may come more than once.
    pub(super) fn for_each_match<'a>(
        &'a self,
        keys: &[&[u8]],
        headers: Option<&dyn HeaderLookup>,
        found: &mut impl FnMut(&'a Destination),
    ) {
        match &self.table {
            Table::Direct(direct) => {
                keys.iter().filter_map(|key| direct.get(key)).for_each(|there| there.for_each(found));
            }
            Table::Fanout(fanout) => fanout.iter().for_each(found),
            Table::Topic(topic) => keys.iter().for_each(|key| topic.for_each_match(key, found)),
            Table::Headers(bindings) => bindings.for_each_match(headers, found),
            Table::None => {}
        }
    }

    /// Size of the routing table, in units of its own.
    /// Keys of a direct exchange, destinations of a fanout, nodes of a topic exchange's trie.
    pub(super) fn size(&self) -> usize {
        match &self.table {
            Table::Direct(direct) => direct.keys(),
            Table::Fanout(fanout) => fanout.iter().count(),
            Table::Topic(topic) => topic.nodes(),
            Table::Headers(_) | Table::None => 0,
        }
    }
}

/// Its own argument counts before a policy.
fn alternate(record: &Exchange, policies: &Policies) -> Option<Arc<str>> {
    match TableRef::new(&record.arguments).get(ALTERNATE_EXCHANGE) {
        Some(own) => std::str::from_utf8(own.as_long_str()?).ok().map(Arc::from),
        None => policies.alternate_exchange(&record.name),
    }
}
