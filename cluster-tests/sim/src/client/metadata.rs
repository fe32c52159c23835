//! A client of the metadata tree: works in a virtual host of its own and knows what each answer must be.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use warren_metastore::machine::{Request, RequestId, Write};
use warren_metastore::records::{Binding, BindingNode, DestinationKind, Queue, QueueKind, Vhost};
use warren_metastore::tree::{Component, Op, OpResult, Path, Tree};
use warren_proto::ids::{GroupId, NodeId};

use super::{Next, Turn};
use crate::member::Answer;
use crate::message::Ask;
use crate::random::Random;

/// Pause before a request without an answer is sent again.
const RETRY_US: u64 = 250_000;
/// Pause between two operations, at most.
const PAUSE_US: u64 = 200_000;
/// How long a caller waits, for the machine's book-keeping.
const PATIENCE_MS: u64 = 60_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Act {
    CreateVhost,
    Count,
    Declare(u8),
    Delete(u8),
    Bind(u8, u8),
    Unbind(u8, u8),
}

struct Open {
    act: Act,
    seq: u64,
    command: Bytes,
    sent_us: Option<u64>,
}

/// See the module's head.
pub struct MetadataClient {
    origin: u64,
    members: Vec<NodeId>,
    next_member: usize,
    random: Random,
    vhost: Arc<str>,
    seq: u64,
    open: Option<Open>,
    created: bool,
    count: i64,
    /// Queues that exist, with the keys bound to each.
    queues: BTreeMap<u8, BTreeSet<u8>>,
    /// Whether the node that it is connected to has applied all that it was answered.
    caught_up: bool,
}

impl MetadataClient {
    /// A client by this number.
    pub fn new(number: u64, members: Vec<NodeId>, random: Random) -> Self {
        MetadataClient {
            origin: 0xc11e_0000 + number,
            members,
            next_member: 0,
            random,
            vhost: format!("v{number}").into(),
            seq: 0,
            open: None,
            created: false,
            count: 0,
            queues: BTreeMap::new(),
            caught_up: false,
        }
    }

    /// Its name in requests.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    pub(super) fn describe(&self) -> String {
        format!("metadata client {}: {:?}", self.vhost, self.open.as_ref().map(|open| (open.act, open.seq)))
    }

    /// It goes on at another node, with the request that it has open.
    pub(super) fn connected(&mut self) {
        self.caught_up = false;
        if let Some(open) = &mut self.open {
            open.sent_us = None;
        }
    }

    /// Sends its request again, or makes the next one. `leader` is whom its node takes for the leader.
    pub fn step(&mut self, tree: &Tree, leader: Option<NodeId>, now_ms: u64, turn: &mut Turn<'_>) -> Next {
        if self.open.is_none() && !turn.finishing {
            self.begin(tree, now_ms);
        }
        if let Some(open) = &mut self.open
            && open.sent_us.is_none_or(|at| at + RETRY_US <= turn.now_us)
        {
            open.sent_us = Some(turn.now_us);
            let to = leader.unwrap_or_else(|| {
                self.next_member += 1;
                self.members[self.next_member % self.members.len()]
            });
            turn.send(to, GroupId::METADATA, Ask::Metadata(open.command.clone()));
        }
        Next::After(self.random.between(1, PAUSE_US))
    }

    fn begin(&mut self, tree: &Tree, now_ms: u64) {
        let act = self.draw();
        let Some(write) = self.write(act, tree) else { return };
        self.seq += 1;
        let request = Request {
            id: RequestId { origin: self.origin, seq: self.seq },
            deadline_ms: now_ms + PATIENCE_MS,
            acked_below: 0,
        };
        let command = Bytes::from(write.to_bytes(Some(&request)));
        self.open = Some(Open { act, seq: self.seq, command, sent_us: None });
    }

    fn draw(&mut self) -> Act {
        if !self.created {
            return Act::CreateVhost;
        }
        let (queue, key) = (self.random.below(4) as u8, self.random.below(3) as u8);
        match self.random.below(10) {
            0..=2 => Act::Count,
            3..=4 => Act::Declare(queue),
            5 if self.caught_up => Act::Delete(queue),
            5..=7 => Act::Bind(queue, key),
            _ => Act::Unbind(queue, key),
        }
    }

    fn binding(&self, queue: u8, key: u8) -> Option<Binding> {
        let node = BindingNode {
            vhost: self.vhost.clone(),
            source: "amq.direct".into(),
            destination_kind: DestinationKind::Queue,
            destination: format!("q{queue}").into(),
            key: vec![b'k', key].into(),
        };
        Binding::new(&node, &[]).ok()
    }

    fn write(&self, act: Act, tree: &Tree) -> Option<Write> {
        Some(match act {
            Act::CreateVhost => Vhost::named(&self.vhost).create(None),
            Act::Count => {
                let path = Path::new(vec![Component::name(self.vhost.as_bytes())]);
                Op::CounterAdd { path, delta: 1, initial: 1 }.into()
            }
            Act::Declare(queue) => Queue {
                vhost: self.vhost.clone(),
                name: format!("q{queue}").into(),
                kind: QueueKind::Quorum,
                durable: true,
                // As in a cluster, no two queues have the same.
                group: GroupId(self.origin << 24 | self.seq),
                ..Queue::default()
            }
            .create_or_get(),
            Act::Delete(queue) => {
                let stored = Queue::get(tree, &self.vhost, &format!("q{queue}")).ok()??;
                Queue::delete(&self.vhost, &stored.name, stored.create_revision)
            }
            Act::Bind(queue, key) => self.binding(queue, key)?.put(),
            Act::Unbind(queue, key) => self.binding(queue, key)?.delete(),
        })
    }

    /// Its node applied one of its requests. True if that was the answer that it waits for.
    pub fn answered(&mut self, seq: u64, answer: &Answer, tree: &Tree, turn: &mut Turn<'_>) -> bool {
        let Some(open) = self.open.take_if(|open| open.seq == seq) else { return false };
        let changed = answer.as_ref().is_ok_and(warren_metastore::machine::Reply::changed);
        let refused = answer.is_err();
        let right = match open.act {
            Act::CreateVhost => {
                self.created = true;
                changed
            }
            Act::Count => {
                let before = (self.count > 0).then_some(self.count);
                self.count += 1;
                matches!(answer, Ok(reply) if reply.results == [OpResult::Counter { old: before }])
            }
            Act::Declare(queue) => match self.queues.entry(queue) {
                std::collections::btree_map::Entry::Occupied(_) => refused,
                std::collections::btree_map::Entry::Vacant(new) => {
                    new.insert(BTreeSet::new());
                    changed
                }
            },
            Act::Delete(queue) => self.queues.remove(&queue).is_some() == changed,
            Act::Bind(queue, key) => match self.queues.get_mut(&queue) {
                Some(keys) => keys.insert(key) == changed,
                None => refused,
            },
            Act::Unbind(queue, key) => {
                self.queues.get_mut(&queue).is_some_and(|keys| keys.remove(&key)) == changed && !refused
            }
        };
        self.caught_up = true;
        if !right {
            let vhost = self.vhost.clone();
            turn.judge.lock().wrong(|| format!("metadata of {vhost}: {:?} was answered {answer:?}", open.act));
        }
        if let Err(what) = self.compare(tree) {
            turn.judge.lock().wrong(|| format!("metadata after {:?}: {what}", open.act));
        }
        true
    }

    /// The tree that the client sees holds exactly what its requests made.
    pub fn compare(&self, tree: &Tree) -> Result<(), String> {
        let stored = Queue::list(tree, &self.vhost).map_err(|e| e.to_string())?;
        let names: Vec<String> = stored.iter().map(|q| q.name.to_string()).collect();
        let expected: Vec<String> = self.queues.keys().map(|q| format!("q{q}")).collect();
        if names != expected {
            return Err(format!("queues of {}: {names:?}, expected {expected:?}", self.vhost));
        }
        let bound = Binding::list(tree, &self.vhost).map_err(|e| e.to_string())?.len();
        let expected: usize = self.queues.values().map(BTreeSet::len).sum();
        if bound == expected { Ok(()) } else { Err(format!("{bound} bindings in {}, expected {expected}", self.vhost)) }
    }
}
