//! A consumer: attaches, or gets one message after another; acknowledges, gives back, rejects; ends when it likes.

use std::collections::VecDeque;

use bytes::Bytes;
use warren_proto::ids::{GroupId, NodeId, SessionRef};
use warren_queues::quorum::{Attach, Command, Mode, Reply};
use warren_queues::{ConsumerId, ConsumerKey, ConsumerMeta, ConsumerRef, MsgIds};

use super::aim::Aim;
use super::{Next, Turn};
use crate::message::{Ask, Handed, QueueEvent, ToSession};
use crate::random::Random;

/// Pause between two turns, at most.
const PAUSE_US: u64 = 60_000;
/// The same when all that is left is to be worked off.
const HASTE_US: u64 = 4_000;
/// How often it asks for what it may have missed.
const ASK_AGAIN_US: u64 = 700_000;

/// How a consumer behaves.
#[derive(Debug, Clone, Copy)]
pub struct Habits {
    /// Messages that it takes at once; 0 = it gets them one by one.
    pub prefetch: u32,
    /// Of a thousand messages, how many it gives back.
    pub returns: u64,
    /// Of a thousand, how many it rejects for good.
    pub discards: u64,
    /// Of a thousand turns, after how many it goes.
    pub leaves: u64,
    /// Of a thousand turns, in how many it purges the queue.
    pub purges: u64,
}

struct PendingCommand {
    correlation: u64,
    command: Command,
    sent: bool,
}

/// See the module's head.
pub struct Consumer {
    group: GroupId,
    aim: Aim,
    random: Random,
    habits: Habits,
    session: SessionRef,
    key: Option<ConsumerKey>,
    /// The next message id that it has not seen.
    next_msg_id: u64,
    /// Messages in hand.
    inbox: VecDeque<(ConsumerKey, Handed)>,
    commands: VecDeque<PendingCommand>,
    correlation: u64,
    cancelled: bool,
    asked_us: u64,
}

impl Consumer {
    /// A consumer of a queue with members on these nodes.
    pub fn new(group: GroupId, members: Vec<NodeId>, random: Random, habits: Habits) -> Self {
        Consumer {
            group,
            aim: Aim::new(members),
            random,
            habits,
            session: SessionRef::default(),
            key: None,
            next_msg_id: 0,
            inbox: VecDeque::new(),
            commands: VecDeque::new(),
            correlation: 0,
            cancelled: false,
            asked_us: 0,
        }
    }

    /// The queue.
    pub fn group(&self) -> GroupId {
        self.group
    }

    /// Whom it takes for the leader.
    pub fn leader(&self) -> Option<NodeId> {
        self.aim.leader()
    }

    fn gets(&self) -> bool {
        self.habits.prefetch == 0
    }

    pub(super) fn is_idle(&self) -> bool {
        self.inbox.is_empty() && (self.gets() || self.commands.is_empty())
    }

    pub(super) fn describe(&self) -> String {
        format!(
            "consumer {:?} as {:?}: {} in hand, {} commands open, next id {}",
            self.session,
            self.key,
            self.inbox.len(),
            self.commands.len(),
            self.next_msg_id
        )
    }

    pub(super) fn connected(&mut self, session: SessionRef, turn: &mut Turn<'_>) {
        self.session = session;
        self.key = None;
        self.next_msg_id = 0;
        self.inbox.clear();
        self.commands.clear();
        self.cancelled = false;
        self.asked_us = turn.now_us;
        self.aim.reset(turn.now_us);
        if !self.gets() {
            let attach = Attach {
                consumer: self.id(),
                mode: Mode::SimplePrefetch(self.habits.prefetch),
                priority: self.random.pick(&[0, 0, 0, 5]),
                timeout_ms: None,
                default_timeout_ms: None,
                meta: ConsumerMeta { ack: true, args: Bytes::new(), username: Bytes::from_static(b"guest") },
            };
            self.command(Command::Attach(Box::new(attach)));
            self.flush(false, turn);
        }
    }

    fn id(&self) -> ConsumerId {
        ConsumerId { session: self.session, tag: Bytes::from_static(b"c") }
    }

    fn command(&mut self, command: Command) {
        self.correlation += 1;
        self.commands.push_back(PendingCommand { correlation: self.correlation, command, sent: false });
    }

    fn flush(&mut self, again: bool, turn: &mut Turn<'_>) {
        if self.aim.is_waiting() || self.commands.iter().all(|c| c.sent && !again) {
            return;
        }
        let to = self.aim.target();
        for pending in self.commands.iter_mut().filter(|c| !c.sent || again) {
            pending.sent = true;
            let command = Box::new(pending.command.clone());
            let correlation = pending.correlation;
            turn.send(to, self.group, Ask::Command { from: self.session, correlation, command });
        }
    }

    /// Works on what is in hand, and sends again what nobody answers.
    pub fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if !turn.finishing && self.random.chance(self.habits.leaves) {
            if self.gets() || self.cancelled || self.random.chance(500) {
                return Next::Close;
            }
            self.cancelled = true;
            self.command(Command::Cancel { consumer: ConsumerRef::Id(self.id()) });
        }
        if turn.finishing && self.gets() && self.inbox.is_empty() {
            // A get that is applied twice holds a message that this session does not know of.
            return Next::Close;
        }
        if self.cancelled && self.is_idle() {
            return Next::Close;
        }
        if !turn.finishing && self.random.chance(self.habits.purges) {
            self.command(Command::Purge);
        }
        self.work(turn);
        if self.gets() && self.commands.is_empty() && self.inbox.is_empty() && !turn.finishing {
            let tag = Bytes::copy_from_slice(&self.correlation.to_le_bytes());
            let consumer = ConsumerId { session: self.session, tag };
            self.command(Command::Dequeue { consumer, settled: false, default_timeout_ms: None });
        }
        let again = !self.commands.is_empty() && self.aim.is_due(turn.now_us);
        self.flush(again, turn);
        if self.key.is_some() && turn.now_us >= self.asked_us + ASK_AGAIN_US {
            self.ask_again(turn);
        }
        Next::After(self.random.between(1, if turn.finishing { HASTE_US } else { PAUSE_US }))
    }

    fn ask_again(&mut self, turn: &mut Turn<'_>) {
        self.asked_us = turn.now_us;
        let ask = Ask::Redeliver { consumer: self.id(), from_msg_id: self.next_msg_id };
        turn.send(self.aim.target(), self.group, ask);
    }

    /// Answers some of the messages in hand, one command for each kind of answer.
    fn work(&mut self, turn: &mut Turn<'_>) {
        let count = if turn.finishing { self.inbox.len() } else { self.random.index(self.inbox.len() + 1) };
        let mut answers: [Vec<(ConsumerKey, u64)>; 4] = Default::default();
        for (key, message) in self.inbox.drain(..count) {
            let dice = self.random.below(1000);
            let kind = if turn.finishing || dice >= self.habits.returns + self.habits.discards {
                0
            } else if dice < self.habits.discards {
                1
            } else {
                2 + self.random.index(2)
            };
            if kind < 2 {
                turn.judge.lock().seen(self.group, |book| book.answered(key, message.uid));
            }
            answers[kind].push((key, message.msg_id));
        }
        for (kind, answered) in answers.into_iter().enumerate() {
            let Some((key, _)) = answered.first().copied() else { continue };
            let consumer = ConsumerRef::Key(key);
            let ids: MsgIds = answered.iter().map(|(_, id)| *id).collect();
            self.command(match kind {
                0 => Command::Settle { consumer, ids },
                1 => Command::Discard { consumer, ids },
                _ => Command::Return { consumer, ids, failed: kind == 3 },
            });
        }
    }

    pub(super) fn hear(&mut self, said: ToSession, turn: &mut Turn<'_>) {
        match said.event {
            QueueEvent::Replied { correlation, reply, uid } => {
                self.aim.heard(said.from, turn.now_us);
                self.replied(correlation, *reply, uid, turn);
            }
            QueueEvent::Deliver { key, messages, again } => self.deliver(key, &messages, again, turn),
            QueueEvent::LeaderChanged => {
                let moved = self.aim.leader() != Some(said.from);
                self.aim.moved(said.from, turn.now_us);
                if moved {
                    self.flush(true, turn);
                    if self.key.is_some() {
                        self.ask_again(turn);
                    }
                }
            }
            QueueEvent::NotLeader { leader, busy } => {
                if self.aim.refused(said.from, leader, busy, turn.now_us) {
                    self.flush(true, turn);
                }
            }
            QueueEvent::Released { key, ids } => self.released(key, ids),
            QueueEvent::Enqueued { .. } | QueueEvent::Status { .. } => {}
        }
    }

    /// Messages were taken away: it answers them and goes on, or it is cancelled, answers what it has, and ends.
    fn released(&mut self, key: ConsumerKey, ids: MsgIds) {
        if self.key != Some(key) || self.cancelled {
            return;
        }
        if !ids.is_empty() && self.random.chance(500) {
            self.command(Command::Settle { consumer: ConsumerRef::Key(key), ids });
            return;
        }
        self.cancelled = true;
        self.command(Command::Cancel { consumer: ConsumerRef::Key(key) });
    }

    fn replied(&mut self, correlation: u64, reply: Reply, uid: Option<u64>, turn: &mut Turn<'_>) {
        let at = self.commands.iter().position(|c| c.correlation == correlation);
        let known = at.and_then(|at| self.commands.remove(at)).is_some();
        match reply {
            Reply::Attached { key, .. } => match self.key {
                // The attach was applied again after the cancel; the session is about to end.
                Some(old) if old != key && !self.cancelled => {
                    let session = self.session;
                    turn.judge.lock().wrong(|| format!("consumer of living {session:?} was {old:?}, is {key:?}"));
                }
                Some(_) => {}
                None => {
                    self.key = Some(key);
                    self.ask_again(turn);
                }
            },
            Reply::Got { key, message, .. } => {
                let Some(uid) = uid else { return };
                if !known {
                    // The get was applied twice: nobody waits for this one.
                    let ids = MsgIds::from(message.msg_id);
                    self.command(Command::Return { consumer: ConsumerRef::Key(key), ids, failed: false });
                    return;
                }
                let handed = Handed {
                    msg_id: message.msg_id,
                    uid,
                    reference: message.reference.0,
                    acquired_count: message.acquired_count,
                };
                self.take(key, handed, turn);
            }
            Reply::Ok | Reply::Empty | Reply::Cancelled { .. } | Reply::NotFound | Reply::Purged { .. } => {}
            other => turn.judge.lock().wrong(|| format!("a command of a consumer was answered {other:?}")),
        }
    }

    fn deliver(&mut self, key: ConsumerKey, messages: &[Handed], again: bool, turn: &mut Turn<'_>) {
        match self.key {
            Some(known) if known == key => {}
            // An attach that was applied again after the cancel made a consumer that the session does not know.
            Some(_) => {
                let consumer = ConsumerRef::Key(key);
                let ids: MsgIds = messages.iter().map(|m| m.msg_id).collect();
                self.command(Command::Cancel { consumer: consumer.clone() });
                self.command(Command::Return { consumer, ids, failed: false });
                return;
            }
            // The answer to the attach was lost; what is held is asked for when it is repeated.
            None => return,
        }
        for message in messages {
            if message.msg_id < self.next_msg_id {
                continue;
            }
            if message.msg_id > self.next_msg_id && !again {
                self.ask_again(turn);
                return;
            }
            self.next_msg_id = message.msg_id + 1;
            self.take(key, *message, turn);
        }
    }

    fn take(&mut self, key: ConsumerKey, message: Handed, turn: &mut Turn<'_>) {
        let got = self.gets();
        turn.judge.lock().seen(self.group, |book| book.delivered(key, &message, got));
        self.inbox.push_back((key, message));
    }
}
