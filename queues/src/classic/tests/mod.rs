//! A queue with its host, for tests.

mod consuming;
mod property;
mod publishing;

use bytes::Bytes;
use warren_proto::ids::{NodeId, SessionRef};

use super::*;
use crate::consumer::{ConsumerId, ConsumerKey, ConsumerMeta};
use crate::enqueuer::Origin;
use crate::message::StoredMessage;
use crate::msg_ids::MsgIds;

#[derive(Default)]
pub(super) struct Home {
    pub queue: Queue,
    pub now_ms: u64,
    pub fx: Effects,
}

impl Home {
    pub fn apply(&mut self, command: Command) -> Reply {
        self.now_ms += 1;
        self.fx.clear();
        let reply = self.queue.apply(self.now_ms, command, &mut self.fx);
        self.queue.check_invariants().unwrap();
        reply
    }

    /// Publishes one message per name.
    pub fn publish<'a>(&mut self, names: impl IntoIterator<Item = &'a str>) {
        for name in names {
            assert_eq!(self.apply(publish(None, name)), Reply::Ok);
        }
    }

    pub fn attach(&mut self, id: &ConsumerId, prefetch: u32) -> ConsumerKey {
        match self.apply(attach(id, prefetch)) {
            Reply::Attached { key, .. } => key,
            other => panic!("{other:?}"),
        }
    }

    pub fn delivered(&self) -> Vec<(ConsumerKey, Delivered)> {
        let delivers = self.fx.iter().filter_map(|effect| match effect {
            Effect::Deliver(deliver) => Some(deliver),
            _ => None,
        });
        delivers.flat_map(|d| d.messages.iter().map(|m| (d.key, m.clone()))).collect()
    }

    /// Names of what the last command delivered.
    pub fn names(&self) -> Vec<String> {
        self.delivered().iter().map(|(_, d)| name(d)).collect()
    }

    pub fn last_consumer_gone(&self) -> bool {
        self.fx.iter().any(|effect| *effect == Effect::LastConsumerGone)
    }

    pub fn give_back(&mut self, key: ConsumerKey, ids: impl IntoIterator<Item = u64>, failed: bool) {
        self.apply(Command::Return { consumer: key.into(), ids: MsgIds::from_iter(ids), failed });
    }
}

pub(super) fn name(d: &Delivered) -> String {
    String::from_utf8(d.message.body().to_vec()).unwrap()
}

pub(super) fn session(node: u64, id: u64) -> SessionRef {
    SessionRef { node: NodeId(node), incarnation: 7, id }
}

pub(super) fn consumer(node: u64, tag: &str) -> ConsumerId {
    ConsumerId { session: session(node, 1), tag: Bytes::copy_from_slice(tag.as_bytes()) }
}

pub(super) fn publish(origin: Option<(SessionRef, u64)>, name: &str) -> Command {
    let message = StoredMessage::new(2, Bytes::from(format!("h:{name}"))).unwrap();
    Command::Enqueue { origin: origin.map(|(session, seq)| Origin { session, seq }), message }
}

pub(super) fn attach(id: &ConsumerId, prefetch: u32) -> Command {
    Command::Attach(Box::new(plain(id, prefetch)))
}

pub(super) fn plain(id: &ConsumerId, prefetch: u32) -> Attach {
    Attach {
        consumer: id.clone(),
        prefetch,
        exclusive: false,
        priority: 0,
        meta: ConsumerMeta { ack: true, ..ConsumerMeta::default() },
    }
}
