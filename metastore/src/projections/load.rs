//! Parts of a view that are read from the tree, rather than from what changed in it.

use std::sync::Arc;

use super::View;
use crate::records::{self, Binding, BindingNode};
use crate::tree::Tree;

impl View {
    /// Reads a vhost that is not in the view with all that lies in it.
    pub(super) fn load_vhost(&mut self, vhost: &str, tree: &Tree) {
        self.update(&records::vhost_content(tree, vhost), tree);
    }

    /// Fills the empty routing table of an exchange.
    pub(super) fn reload_routes(&mut self, vhost: &Arc<str>, source: &Arc<str>, tree: &Tree) {
        let Some(vhost_view) = self.vhosts.get_mut(&**vhost).map(Arc::make_mut) else {
            return;
        };
        let bindings = Binding::list_from(tree, vhost, source).unwrap_or_default();
        let mut of: Vec<BindingNode> = bindings.iter().map(Binding::node).collect();
        of.dedup();
        for of in of {
            let arguments = of.arguments(tree);
            let destination = vhost_view.destination(of.destination_kind, &of.destination);
            if let (Some(destination), Some(exchange)) = (destination, vhost_view.exchanges.get_mut(&**source)) {
                Arc::make_mut(exchange).bind(&of.key, destination, &[], &arguments);
            }
        }
    }
}
