//! What a view holds, in a form that can be compared, and whether it is what its tree says.

use std::collections::BTreeSet;

use super::{Projections, View};
use crate::records::DestinationKind;

impl View {
    /// Everything that the view holds, a line for each.
    fn description(&self) -> BTreeSet<String> {
        let mut out = BTreeSet::new();
        out.extend(self.users().map(|user| format!("{user:?}")));
        out.extend(self.nodes().map(|node| format!("{node:?}")));
        out.extend(self.groups.iter().map(|(id, queue)| format!("group {id} {:?}", queue.record())));
        for (name, vhost) in &self.vhosts {
            out.insert(format!("{name} {:?} {}", vhost.record(), vhost.bindings.len()));
            out.extend(vhost.queues().map(|queue| format!("{name} {queue:?} {:?}", queue.record())));
            out.extend(vhost.permissions().map(|permission| format!("{permission:?}")));
            out.insert(format!("{name} {:?}", vhost.policies()));
            for exchange in vhost.exchanges() {
                let (record, alternate) = (exchange.record(), exchange.alternate_exchange());
                out.insert(format!("{name} {record:?} {alternate:?} {}", exchange.size()));
            }
            for queue in vhost.queues() {
                match vhost.bindings_to(self.tree(), DestinationKind::Queue, &queue.name) {
                    Ok(bindings) => out.extend(bindings.iter().map(|binding| format!("{binding:?}"))),
                    Err(unreadable) => drop(out.insert(format!("{name} {}: {unreadable}", queue.name))),
                }
            }
        }
        out
    }

    /// Whether the view equals one built from its tree; the first difference where it does not. Walks all of both: for
    /// tests and simulations.
    pub fn check_against_rebuild(&self) -> Result<(), String> {
        let rebuilt = Projections::new();
        rebuilt.install(self.tree().clone(), self.applied());
        let (own, expected) = (self.description(), rebuilt.load().description());
        if let Some(extra) = own.difference(&expected).next() {
            return Err(format!("the projections have what the tree does not: {extra}"));
        }
        match expected.difference(&own).next() {
            Some(missing) => Err(format!("the projections lack what the tree has: {missing}")),
            None => Ok(()),
        }
    }
}
