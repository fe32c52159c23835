//! A client of registers in the metadata tree that several clients share: reads, writes, transactions over several keys
//! and compare-and-swap. Its answers go into a book in which all clients' calls must be linearizable.

use std::sync::Arc;

use bytes::Bytes;
use warren_jepsen::check::registers::{Access, Part};
use warren_metastore::machine::{Request, RequestId, Write};
use warren_metastore::tree::{
    AbortCode, Comparison, Component, Condition, Guard, MetaError, Op, OpResult, Path, Pattern, Payload, Tree,
};
use warren_proto::ids::{GroupId, NodeId};

use super::{Next, Turn};
use crate::judge::RegisterBook;
use crate::member::Answer;
use crate::message::Ask;
use crate::random::Random;

/// Keys that one history is about.
pub const KEYS: u32 = 3;

const RETRY_US: u64 = 250_000;
const PAUSE_US: u64 = 150_000;
const PATIENCE_MS: u64 = 60_000;
/// Of a thousand calls, so many are given up after a retry: nobody knows then whether they took place.
const IMPATIENT: u64 = 30;
/// A payload kind that no record has.
const KIND: u16 = 0xfff0;

struct Open {
    access: Access,
    epoch: u32,
    called_us: u64,
    seq: u64,
    command: Bytes,
    sent_us: Option<u64>,
    sent: u32,
}

/// See the module's head.
pub struct RegisterClient {
    origin: u64,
    members: Vec<NodeId>,
    next_member: usize,
    random: Random,
    seq: u64,
    open: Option<Open>,
}

fn path(epoch: u32, key: u32) -> Path {
    Path::new(vec![Component::name(format!("registers{epoch}")), Component::name(format!("k{key}"))])
}

fn payload(value: u64) -> Payload {
    Payload { kind: KIND, schema: 1, bytes: Arc::from(value.to_be_bytes()) }
}

fn value(payload: &Payload) -> Option<u64> {
    payload.bytes.as_ref().try_into().ok().map(u64::from_be_bytes)
}

/// What a tree says of all keys of an epoch.
pub fn read_all(tree: &Tree, epoch: u32) -> Access {
    let held = |key| tree.node(&path(epoch, key)).and_then(|node| node.payload()).and_then(value);
    Access::All((0..KEYS).map(|key| Part::Read { key, found: Some(held(key)) }).collect())
}

impl RegisterClient {
    /// A client by this number.
    pub fn new(number: u64, members: Vec<NodeId>, random: Random) -> Self {
        let origin = 0x4e61_0000 + number;
        RegisterClient { origin, members, next_member: number as usize, random, seq: 0, open: None }
    }

    /// Its name in requests.
    pub fn origin(&self) -> u64 {
        self.origin
    }

    pub(super) fn is_idle(&self) -> bool {
        self.open.is_none()
    }

    pub(super) fn describe(&self) -> String {
        format!("register client {:x}: {:?}", self.origin, self.open.as_ref().map(|open| (&open.access, open.seq)))
    }

    /// It goes on at another node, with the request that it has open.
    pub(super) fn connected(&mut self) {
        if let Some(open) = &mut self.open {
            open.sent_us = None;
        }
    }

    /// Sends its request again, or makes the next one.
    pub fn step(&mut self, tree: &Tree, leader: Option<NodeId>, now_ms: u64, turn: &mut Turn<'_>) -> Next {
        if let Some(open) = self.open.take_if(|open| open.sent > 1 && self.random.chance(IMPATIENT)) {
            turn.judge.lock().registers().open(open.epoch, open.called_us, open.access);
        }
        if self.open.is_none() && !turn.finishing {
            let epoch = turn.judge.lock().registers().epoch();
            self.begin(tree, epoch, now_ms, turn.now_us);
        }
        if let Some(open) = &mut self.open
            && open.sent_us.is_none_or(|at| at + RETRY_US <= turn.now_us)
        {
            open.sent_us = Some(turn.now_us);
            open.sent += 1;
            let to = leader.unwrap_or_else(|| {
                self.next_member += 1;
                self.members[self.next_member % self.members.len()]
            });
            turn.send(to, GroupId::METADATA, Ask::Metadata(open.command.clone()));
        }
        Next::After(self.random.between(1, PAUSE_US))
    }

    fn begin(&mut self, tree: &Tree, epoch: u32, now_ms: u64, now_us: u64) {
        self.seq += 1;
        // No two writes of a run have one value.
        let value = (self.origin << 32) + (self.seq << 4);
        let key = self.random.below(u64::from(KEYS)) as u32;
        let (access, write) = match self.random.below(4) {
            0 => swap(tree, epoch, key, value),
            _ => self.transaction(epoch, value),
        };
        let request = Request {
            id: RequestId { origin: self.origin, seq: self.seq },
            deadline_ms: now_ms + PATIENCE_MS,
            acked_below: 0,
        };
        let command = Bytes::from(write.to_bytes(Some(&request)));
        let (seq, sent_us, sent) = (self.seq, None, 0);
        self.open = Some(Open { access, epoch, called_us: now_us, seq, command, sent_us, sent });
    }

    /// One to four parts, over any keys.
    fn transaction(&mut self, epoch: u32, value: u64) -> (Access, Write) {
        let (mut parts, mut ops) = (Vec::new(), Vec::new());
        for part in 0..self.random.between(1, 4) {
            let key = self.random.below(u64::from(KEYS)) as u32;
            let path = path(epoch, key);
            if self.random.chance(500) {
                parts.push(Part::Read { key, found: None });
                ops.push(Op::Get(path.into()));
            } else {
                let value = value + part;
                parts.push(Part::Write { key, value });
                ops.push(put(path, value));
            }
        }
        (Access::All(parts), Write::new(ops))
    }

    /// Its node applied one of its requests. True if that was the answer that it waits for.
    pub fn answered(&mut self, seq: u64, answer: &Answer, turn: &mut Turn<'_>) -> bool {
        let Some(mut open) = self.open.take_if(|open| open.seq == seq) else { return false };
        let fits = match (&mut open.access, answer) {
            (Access::Swap { done, .. }, Ok(_)) => done.replace(true).is_none(),
            (Access::Swap { done, .. }, Err(MetaError::Aborted { .. })) => done.replace(false).is_none(),
            (Access::All(parts), Ok(reply)) => fill(parts, &reply.results),
            (_, Err(_)) => false,
        };
        let mut judge = turn.judge.lock();
        match fits {
            true => judge.registers().answered(open.epoch, open.called_us, turn.now_us, open.access),
            false => judge.wrong(|| format!("registers: {:?} was answered {answer:?}", open.access)),
        }
        true
    }
}

fn put(path: Path, value: u64) -> Op {
    Op::Put { path, condition: Condition::always(), payload: Some(payload(value)), keep_while: None }
}

/// Sets a key if it still holds what `tree`, which may be old, says that it does.
fn swap(tree: &Tree, epoch: u32, key: u32, new: u64) -> (Access, Write) {
    let path = path(epoch, key);
    let node = tree.node(&path);
    let expected = node.and_then(|node| node.payload()).and_then(value);
    let guard = match node {
        Some(node) => {
            let revision = node.properties().mod_revision;
            Guard::Test(path.clone(), Condition::ModRevision(Comparison::Eq, revision))
        }
        None => Guard::Absent(Pattern::from(path.clone())),
    };
    let op = Op::If(guard, vec![put(path, new)], vec![Op::Abort(AbortCode::Other(1))]);
    (Access::Swap { key, expected, value: new, done: None }, op.into())
}

/// Puts what was read into the parts; whether the answers are those of such a transaction.
fn fill(parts: &mut [Part], results: &[OpResult]) -> bool {
    parts.len() == results.len()
        && parts.iter_mut().zip(results).all(|(part, result)| match (part, result) {
            (Part::Read { found, .. }, OpResult::Nodes(nodes)) => {
                *found = Some(nodes.first().and_then(|(_, node)| node.payload.as_ref()).and_then(value));
                nodes.len() <= 1
            }
            (Part::Write { .. }, OpResult::Put { .. }) => true,
            _ => false,
        })
}

/// A read of all keys at one node, while it is under way.
#[derive(Debug, Clone, Copy)]
pub struct Reading {
    epoch: u32,
    called_us: u64,
}

impl Reading {
    /// It begins now.
    pub fn begin(book: &RegisterBook, now_us: u64) -> Self {
        Reading { epoch: book.epoch(), called_us: now_us }
    }

    /// The node may answer from what it has applied.
    pub fn end(self, tree: &Tree, book: &mut RegisterBook, now_us: u64) {
        book.answered(self.epoch, self.called_us, now_us, read_all(tree, self.epoch));
    }
}
