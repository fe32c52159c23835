//! A publisher: numbers its messages, keeps each until it is confirmed, and sends what is pending again in order. While the
//! queue is over its limit, it refuses what its program publishes.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use warren_proto::ids::{GroupId, NodeId, SessionRef};
use warren_queues::quorum::{Command, Reply, Traits};

use super::aim::Aim;
use super::{Next, Turn};
use crate::message::{Ask, Outcome, QueueEvent, ToSession, uid};
use crate::plan::{Defect, GroupPlan, Plan};
use crate::queues::QueuePlan;
use crate::random::Random;

/// Messages that may wait for their confirm.
const WINDOW: usize = 200;
/// How often it asks whether it may go on.
const ASK_US: u64 = 800_000;
/// The first number of a refused message, which the queue never sees.
const REFUSED: u64 = 1 << 23;

/// See the module's head.
pub struct Publisher {
    group: GroupId,
    aim: Aim,
    random: Random,
    every_us: u64,
    burst: u64,
    body_bytes: u64,
    queue: QueuePlan,
    defect: Defect,
    session: SessionRef,
    /// Number of the first pending message.
    first_seq: u64,
    pending: VecDeque<(Traits, Bytes)>,
    /// How many of them, from the back, were never sent.
    unsent: usize,
    /// Whether the queue is over its limit, as far as it was told.
    blocked: bool,
    asked_us: u64,
    refused: u64,
}

impl Publisher {
    /// A publisher to a queue with members on these nodes.
    pub fn new(group: &GroupPlan, members: Vec<NodeId>, random: Random, plan: &Plan) -> Self {
        Publisher {
            group: group.group,
            aim: Aim::new(members),
            random,
            every_us: plan.publish_every_ms * 1000,
            burst: plan.burst,
            body_bytes: plan.body_bytes,
            queue: group.queue.clone(),
            defect: plan.defect,
            session: SessionRef::default(),
            first_seq: 1,
            pending: VecDeque::new(),
            unsent: 0,
            blocked: false,
            asked_us: 0,
            refused: 0,
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

    pub(super) fn is_idle(&self) -> bool {
        self.pending.is_empty()
    }

    pub(super) fn describe(&self) -> String {
        format!("publisher {:?}: {} pending from {}", self.session, self.pending.len(), self.first_seq)
    }

    /// A new session: nobody will ever know what became of the old one's pending messages.
    pub(super) fn connected(&mut self, session: SessionRef, turn: &Turn<'_>) {
        self.session = session;
        self.first_seq = 1;
        self.pending.clear();
        self.unsent = 0;
        self.blocked = false;
        self.refused = 0;
        self.aim.reset(turn.now_us);
    }

    /// Publishes a few, and sends again what nobody answers.
    pub fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if !turn.finishing && self.pending.is_empty() && self.random.chance(4) {
            return Next::Close;
        }
        if !turn.finishing && self.pending.len() < WINDOW {
            for _ in 0..self.random.between(1, self.burst) {
                if self.blocked { self.refuse(turn) } else { self.add(turn) }
            }
        }
        self.ask_to_go_on(turn);
        if !self.pending.is_empty() && self.aim.is_due(turn.now_us) {
            self.resend(turn);
        }
        self.flush(turn);
        Next::After(self.random.between(1, 2 * self.every_us))
    }

    fn add(&mut self, turn: &Turn<'_>) {
        let seq = self.first_seq + self.pending.len() as u64;
        let uid = uid(self.session.id, seq);
        let traits = self.traits();
        turn.judge.lock().seen(self.group, |book| book.published(uid, traits.priority));
        let padding = self.random.below(self.body_bytes) as usize;
        let mut body = BytesMut::with_capacity(8 + padding);
        body.put_u64_le(uid);
        body.put_bytes(seq as u8, padding);
        self.pending.push_back((traits, body.freeze()));
        self.unsent += 1;
    }

    /// What the queue is told of a message. A queue for which the plan has one choice costs no draw.
    fn traits(&mut self) -> Traits {
        let priority = match self.queue.priorities.as_slice() {
            [] => None,
            [only] => *only,
            several => self.random.pick(several),
        };
        let ttl_ms = self.queue.ttl_ms.filter(|_| self.random.chance(300)).map(|most| self.random.below(most + 1));
        Traits { priority, ttl_ms, ..Traits::default() }
    }

    /// The program publishes, and is told at once that it may not.
    fn refuse(&mut self, turn: &Turn<'_>) {
        let seq = self.first_seq + self.pending.len() as u64;
        let sends = self.defect == Defect::SentThoughRefused;
        let uid = uid(self.session.id, if sends { seq } else { REFUSED + self.refused });
        self.refused += 1;
        if sends {
            self.add(turn);
        } else {
            turn.judge.lock().seen(self.group, |book| book.published(uid, None));
        }
        turn.judge.lock().seen(self.group, |book| book.refused(uid));
    }

    /// It may have missed that the queue has room again.
    fn ask_to_go_on(&mut self, turn: &mut Turn<'_>) {
        if self.blocked && turn.now_us >= self.asked_us + ASK_US {
            self.asked_us = turn.now_us;
            let command = Box::new(Command::RegisterEnqueuer { session: self.session });
            let ask = Ask::Command { from: self.session, correlation: 0, command };
            turn.send(self.aim.target(), self.group, ask);
        }
    }

    fn flush(&mut self, turn: &mut Turn<'_>) {
        if self.unsent == 0 || self.aim.is_waiting() {
            return;
        }
        let start = self.pending.len() - self.unsent;
        self.unsent = 0;
        let messages = self.pending.range(start..).cloned().collect();
        let first_seq = self.first_seq + start as u64;
        turn.send(self.aim.target(), self.group, Ask::Publish { from: self.session, first_seq, messages });
    }

    fn resend(&mut self, turn: &mut Turn<'_>) {
        self.unsent = self.pending.len();
        self.flush(turn);
    }

    pub(super) fn hear(&mut self, said: ToSession, turn: &mut Turn<'_>) {
        match said.event {
            QueueEvent::Enqueued { first, last, outcome } => self.enqueued(said.from, first, last, outcome, turn),
            QueueEvent::LeaderChanged => {
                let moved = self.aim.leader() != Some(said.from);
                self.aim.moved(said.from, turn.now_us);
                if moved {
                    // The new leader says so if it is otherwise.
                    self.blocked = false;
                    self.resend(turn);
                }
            }
            QueueEvent::NotLeader { leader, busy } => {
                if self.aim.refused(said.from, leader, busy, turn.now_us) {
                    self.resend(turn);
                }
            }
            QueueEvent::Status { reject } => self.blocked = reject,
            QueueEvent::Replied { reply, .. } => {
                if let Reply::Registered { blocked, .. } = *reply {
                    self.blocked = blocked;
                }
            }
            QueueEvent::Deliver { .. } | QueueEvent::Released { .. } => {}
        }
    }

    fn enqueued(&mut self, from: NodeId, first: u64, last: u64, outcome: Outcome, turn: &mut Turn<'_>) {
        match outcome {
            Outcome::Enqueued if last < self.first_seq => self.aim.heard(from, turn.now_us),
            // Answers to earlier ones were lost on the way.
            Outcome::Enqueued if first > self.first_seq => self.aim.retry(turn.now_us),
            Outcome::Enqueued => {
                self.aim.heard(from, turn.now_us);
                while self.first_seq <= last && self.pending.pop_front().is_some() {
                    turn.judge.lock().confirmed(self.group, uid(self.session.id, self.first_seq));
                    self.first_seq += 1;
                }
                self.unsent = self.unsent.min(self.pending.len());
            }
            Outcome::OutOfSequence => self.aim.retry(turn.now_us),
            Outcome::UnknownEnqueuer if last < self.first_seq => {}
            // The session's first publish was lost on the way.
            Outcome::UnknownEnqueuer if self.first_seq == 1 => self.aim.retry(turn.now_us),
            Outcome::UnknownEnqueuer | Outcome::Refused => {
                let session = self.session;
                turn.judge.lock().wrong(|| format!("{first}..={last} of living session {session:?}: {outcome:?}"));
            }
        }
    }
}
