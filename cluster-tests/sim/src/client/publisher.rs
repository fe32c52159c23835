//! A publisher: numbers its messages, keeps each until it is confirmed, and sends what is pending again in order.

use std::collections::VecDeque;

use bytes::{BufMut, Bytes, BytesMut};
use warren_proto::ids::{GroupId, NodeId, SessionRef};

use super::aim::Aim;
use super::{Next, Turn};
use crate::message::{Ask, Outcome, QueueEvent, ToSession, uid};
use crate::random::Random;

/// Messages that may wait for their confirm.
const WINDOW: usize = 200;

/// See the module's head.
pub struct Publisher {
    group: GroupId,
    aim: Aim,
    random: Random,
    every_us: u64,
    burst: u64,
    body_bytes: u64,
    session: SessionRef,
    /// Number of the first pending message.
    first_seq: u64,
    pending: VecDeque<Bytes>,
    /// How many of them, from the back, were never sent.
    unsent: usize,
}

impl Publisher {
    /// A publisher to a queue with members on these nodes.
    pub fn new(group: GroupId, members: Vec<NodeId>, random: Random, every_ms: u64, burst: u64, body: u64) -> Self {
        Publisher {
            group,
            aim: Aim::new(members),
            random,
            every_us: every_ms * 1000,
            burst,
            body_bytes: body,
            session: SessionRef::default(),
            first_seq: 1,
            pending: VecDeque::new(),
            unsent: 0,
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
        self.aim.reset(turn.now_us);
    }

    /// Publishes a few, and sends again what nobody answers.
    pub fn step(&mut self, turn: &mut Turn<'_>) -> Next {
        if !turn.finishing && self.pending.is_empty() && self.random.chance(4) {
            return Next::Close;
        }
        if !turn.finishing && self.pending.len() < WINDOW {
            for _ in 0..self.random.between(1, self.burst) {
                self.add(turn);
            }
        }
        if !self.pending.is_empty() && self.aim.is_due(turn.now_us) {
            self.resend(turn);
        }
        self.flush(turn);
        Next::After(self.random.between(1, 2 * self.every_us))
    }

    fn add(&mut self, turn: &Turn<'_>) {
        let seq = self.first_seq + self.pending.len() as u64;
        let uid = uid(self.session.id, seq);
        turn.judge.lock().queue(self.group).published(uid);
        let padding = self.random.below(self.body_bytes) as usize;
        let mut body = BytesMut::with_capacity(8 + padding);
        body.put_u64_le(uid);
        body.put_bytes(seq as u8, padding);
        self.pending.push_back(body.freeze());
        self.unsent += 1;
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
                    self.resend(turn);
                }
            }
            QueueEvent::NotLeader { leader, busy } => {
                if self.aim.refused(said.from, leader, busy, turn.now_us) {
                    self.resend(turn);
                }
            }
            QueueEvent::Replied { .. } | QueueEvent::Deliver { .. } => {}
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
