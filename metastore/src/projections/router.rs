//! From an exchange, routing keys and headers to queues (spec: broker-model.md, section 3).

use std::collections::HashSet;
use std::sync::Arc;

use smallvec::SmallVec;

use super::destinations::{Destination, Destinations};
use super::exchange::ExchangeView;
use super::headers::HeaderLookup;
use super::queue_target::QueueTarget;
use super::vhost::VhostView;

/// The queues that a message reaches, each once. Up to four need no allocation.
pub type Routed = SmallVec<[Arc<QueueTarget>; 4]>;

/// Things remembered by a plain search before a hash set is worth it.
const SEARCHED: usize = 16;

impl VhostView {
    /// Adds to `out`, which must be empty, the queues that a message reaches. The default exchange is the queue of
    /// the routing key; a direct exchange with one key is one more look-up; neither allocates.
    pub fn route_into(&self, exchange: &str, keys: &[&[u8]], headers: Option<&dyn HeaderLookup>, out: &mut Routed) {
        if exchange.is_empty() {
            self.route_default(keys, out);
        } else if let Some(exchange) = self.exchange(exchange) {
            self.route_from(exchange, keys, headers, out);
        }
    }

    /// [`route_into`](Self::route_into) for an exchange already looked up in this view.
    pub fn route_from(
        &self,
        exchange: &ExchangeView,
        keys: &[&[u8]],
        headers: Option<&dyn HeaderLookup>,
        out: &mut Routed,
    ) {
        debug_assert!(out.is_empty());
        if let [key] = keys
            && let Some(Destinations::One(Destination::Queue(queue))) = exchange.direct(key)
        {
            out.push(queue.clone());
            return;
        }
        if exchange.record().name.is_empty() {
            self.route_default(keys, out);
            return;
        }
        let walk = Walk { vhost: self, keys, headers, queues: Seen::default(), exchanges: Seen::default(), out };
        walk.run(exchange);
    }

    fn route_default(&self, keys: &[&[u8]], out: &mut Routed) {
        let mut seen = Seen::default();
        for key in keys {
            if let Some(queue) = self.queues.get(*key)
                && (keys.len() == 1 || seen.insert(Arc::as_ptr(queue)))
            {
                out.push(queue.clone());
            }
        }
    }
}

/// The exchanges reached from one, breadth first, each once.
struct Walk<'v, 'm> {
    vhost: &'v VhostView,
    keys: &'m [&'m [u8]],
    headers: Option<&'m dyn HeaderLookup>,
    queues: Seen<QueueTarget>,
    exchanges: Seen<ExchangeView>,
    out: &'m mut Routed,
}

impl<'v> Walk<'v, '_> {
    fn run(mut self, first: &'v ExchangeView) {
        let mut open: SmallVec<[&'v ExchangeView; 4]> = SmallVec::new();
        self.exchanges.insert(first);
        open.push(first);
        let mut next = 0;
        while let Some(&exchange) = open.get(next) {
            next += 1;
            let mut none = true;
            if exchange.record().name.is_empty() {
                none = self.default_exchange();
            } else {
                exchange.for_each_match(self.keys, self.headers, &mut |destination| {
                    none = false;
                    match destination {
                        Destination::Queue(queue) => {
                            if self.queues.insert(Arc::as_ptr(queue)) {
                                self.out.push(queue.clone());
                            }
                        }
                        Destination::Exchange(name) => {
                            open.extend(self.vhost.exchange(name).map(|x| &**x).filter(|x| self.exchanges.insert(*x)));
                        }
                    }
                });
            }
            if none && let Some(alternate) = exchange.alternate_exchange() {
                open.extend(self.vhost.exchange(alternate).map(|x| &**x).filter(|x| self.exchanges.insert(*x)));
            }
        }
    }

    /// The default exchange as somebody's alternate. Answers whether it routed nowhere.
    fn default_exchange(&mut self) -> bool {
        let mut none = true;
        for queue in self.keys.iter().filter_map(|key| self.vhost.queues.get(*key)) {
            none = false;
            if self.queues.insert(Arc::as_ptr(queue)) {
                self.out.push(queue.clone());
            }
        }
        none
    }
}

/// A set of addresses that starts as a list.
struct Seen<T> {
    list: SmallVec<[*const T; SEARCHED]>,
    set: HashSet<*const T, foldhash::fast::RandomState>,
}

impl<T> Default for Seen<T> {
    fn default() -> Self {
        Seen { list: SmallVec::new(), set: HashSet::default() }
    }
}

impl<T> Seen<T> {
    /// Whether it is new.
    fn insert(&mut self, item: *const T) -> bool {
        if !self.set.is_empty() {
            return self.set.insert(item);
        }
        if self.list.contains(&item) {
            return false;
        }
        if self.list.len() < SEARCHED {
            self.list.push(item);
        } else {
            self.set.extend(self.list.drain(..));
            self.set.insert(item);
        }
        true
    }
}
