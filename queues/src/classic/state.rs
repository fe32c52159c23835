//! The queue's state, and the one way to change it.

use super::Reply;
use super::command::Command;
use super::consumer::Consumer;
use super::effects::Effects;
use super::messages::Messages;
use crate::consumer::ConsumerKey;
use crate::consumers::Consumers;
use crate::sessions::Sessions;

/// A classic queue on its home node. See the [module](super).
#[derive(Debug, Default)]
pub struct Queue {
    pub(super) messages: Messages,
    pub(super) sessions: Sessions,
    pub(super) consumers: Consumers<Consumer>,
    pub(super) last_key: u64,
    /// Consumers that are attached and not cancelled.
    pub(super) attached: u64,
    pub(super) last_active_ms: u64,
}

impl Queue {
    /// An empty queue, created at `now_ms`.
    pub fn new(now_ms: u64) -> Self {
        Queue { last_active_ms: now_ms, ..Queue::default() }
    }

    /// Carries out one command at a time that never goes backwards. Total: there is an answer in every state, and no
    /// panic. What must happen outside is added to `fx`; it happens after the answer has been given.
    pub fn apply(&mut self, now_ms: u64, command: Command, fx: &mut Effects) -> Reply {
        let reply = match command {
            Command::RegisterEnqueuer { session } => self.register(session, fx),
            Command::Enqueue { origin, message } => self.enqueue(origin, message, fx),
            Command::Attach(attach) => self.attach(&attach, fx),
            Command::Dequeue { consumer, settled } => self.dequeue(now_ms, &consumer, settled, fx),
            Command::Settle { consumer, ids } => self.settle(&consumer, &ids, fx),
            Command::Return { consumer, ids, failed } => self.give_back(&consumer, &ids, failed, fx),
            Command::Discard { consumer, ids } => self.discard(&consumer, &ids, fx),
            Command::Sent { consumer, count } => self.sent(&consumer, count),
            Command::Cancel { consumer } => self.cancel(now_ms, &consumer, fx),
            Command::Remove { consumer } => self.remove(now_ms, &consumer, fx),
            Command::Purge => Reply::Purged { count: self.messages.purge() },
            Command::SessionDown { session } => self.session_down(now_ms, session, fx),
            Command::NodeDown { node } => self.node_down(now_ms, node, fx),
            Command::Continue => Reply::Ok,
        };
        self.checkout(fx);
        reply
    }

    pub(super) fn new_key(&mut self) -> ConsumerKey {
        self.last_key += 1;
        ConsumerKey(self.last_key)
    }
}
