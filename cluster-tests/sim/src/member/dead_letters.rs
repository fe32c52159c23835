//! Dead messages on their way to another queue: published once by the leader, or by a worker on the leader's node, which
//! publishes them as a session of its own and tells the queue when they have arrived.

use std::collections::VecDeque;

use bytes::Bytes;
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, SessionRef};
use warren_queues::MsgIds;
use warren_queues::quorum::{Command, DeadReason, Delivered, Traits};
use warren_raft::machine::GroupCx;

use super::Said;
use super::queue::QueueMember;
use crate::message::{Ask, Outcome, QueueEvent, ToSession, worker_id};
use crate::plan::Defect;

/// Dead messages that a worker holds, at most.
const PREFETCH: u32 = 32;
/// Silence after which a worker publishes again what is not confirmed.
const SILENCE_MS: u64 = 1_500;
/// Time after which a worker that has nothing, while there are dead messages, begins anew.
const IDLE_MS: u64 = 3_000;

/// The worker of one term.
pub(super) struct Worker {
    session: SessionRef,
    target: GroupId,
    /// Number of the first pending message.
    first_seq: u64,
    /// By their ids at the source, with their bodies.
    pending: VecDeque<(u64, Bytes)>,
    /// Handed to it, and not read yet.
    unread: VecDeque<Delivered>,
    sent_ms: u64,
}

impl QueueMember {
    /// The queue needs a worker, or needs none any more.
    pub(super) fn employ(&mut self, wanted: bool, cx: &GroupCx<'_>) {
        self.worker = None;
        if let Some(target) = self.dead_letters_to.filter(|_| wanted) {
            let session = SessionRef { node: self.desk.node, incarnation: cx.term, id: worker_id(self.group) };
            let (pending, unread) = (VecDeque::new(), VecDeque::new());
            self.worker = Some(Worker { session, target, first_seq: 1, pending, unread, sent_ms: cx.now_ms });
            self.owed.push(Command::DlxAttach { session, prefetch: PREFETCH });
        }
    }

    /// The worker is handed dead messages.
    pub(super) fn employ_with(
        &mut self,
        session: SessionRef,
        messages: Vec<(DeadReason, Delivered)>,
        cx: &GroupCx<'_>,
    ) {
        let Some(worker) = self.worker.as_mut().filter(|worker| worker.session == session) else { return };
        worker.unread.extend(messages.into_iter().map(|(_, message)| message));
        self.work(cx);
    }

    /// The worker reads what it was handed, and publishes it.
    fn work(&mut self, cx: &GroupCx<'_>) {
        let Some(mut worker) = self.worker.take() else { return };
        let mut messages = Vec::new();
        let first_seq = worker.first_seq + worker.pending.len() as u64;
        while let Some(message) = worker.unread.front() {
            let Some(uid) = self.body(message, cx) else { break };
            let body = Bytes::copy_from_slice(&uid.to_le_bytes());
            worker.pending.push_back((message.msg_id, body.clone()));
            messages.push((Traits::default(), body));
            worker.unread.pop_front();
        }
        if self.desk.defect == Defect::DeadLettersForgotten && !messages.is_empty() {
            let ids: MsgIds = worker.pending.iter().map(|(id, _)| *id).collect();
            self.owed.push(Command::DlxSettle { session: worker.session, ids });
        }
        if !messages.is_empty() {
            worker.sent_ms = cx.now_ms;
            self.ask_leader(worker.target, Ask::Publish { from: worker.session, first_seq, messages });
        }
        self.worker = Some(worker);
    }

    /// Time passes: what could not be read is tried again, and what nobody answers is sent again.
    pub(super) fn work_on(&mut self, cx: &GroupCx<'_>) {
        self.work(cx);
        let keeps = self.keeps_dead();
        let Some(worker) = &mut self.worker else { return };
        if worker.pending.is_empty() && worker.unread.is_empty() {
            if keeps && cx.now_ms >= worker.sent_ms + IDLE_MS {
                // What it said when it came, or of what has arrived, was refused: it is handed everything again.
                worker.sent_ms = cx.now_ms;
                self.owed.push(Command::DlxAttach { session: worker.session, prefetch: PREFETCH });
            }
            return;
        }
        if worker.pending.is_empty() || cx.now_ms < worker.sent_ms + SILENCE_MS {
            return;
        }
        worker.sent_ms = cx.now_ms;
        let (from, target, first_seq) = (worker.session, worker.target, worker.first_seq);
        let messages = worker.pending.iter().map(|(_, body)| (Traits::default(), body.clone())).collect();
        self.ask_leader(target, Ask::Publish { from, first_seq, messages });
    }

    /// When the worker has something to do, if it has.
    pub(super) fn works_at(&self) -> Option<u64> {
        let worker = self.worker.as_ref()?;
        if !worker.unread.is_empty() {
            return Some(0);
        }
        match worker.pending.is_empty() {
            true => self.keeps_dead().then_some(worker.sent_ms + IDLE_MS),
            false => Some(worker.sent_ms + SILENCE_MS),
        }
    }

    fn keeps_dead(&self) -> bool {
        self.queue.dead_references().next().is_some()
    }

    /// The new queue says something to the worker, or to one that was.
    pub(super) fn worker_hears(&mut self, said: ToSession, out: &mut BatchBuilder) {
        if !self.employs(said.session) {
            return self.nobody_hears(&said);
        }
        match said.event {
            QueueEvent::Enqueued { first, last, outcome } => self.arrived(first, last, outcome, out),
            QueueEvent::LeaderChanged
            | QueueEvent::NotLeader { .. }
            | QueueEvent::Status { .. }
            | QueueEvent::Replied { .. }
            | QueueEvent::Deliver { .. }
            | QueueEvent::Released { .. } => {}
        }
    }

    /// Whether this session is the worker's.
    pub(super) fn employs(&self, session: SessionRef) -> bool {
        self.worker.as_ref().is_some_and(|worker| worker.session == session)
    }

    /// Whoever watches over a worker that is not there any more has to know.
    pub(super) fn nobody_hears(&self, said: &ToSession) {
        if matches!(said.event, QueueEvent::LeaderChanged) {
            let gone = Said::ToMember(said.from, said.group, Ask::SessionGone(said.session));
            self.desk.out.lock().push(gone);
        }
    }

    fn arrived(&mut self, first: u64, last: u64, outcome: Outcome, out: &mut BatchBuilder) {
        let Some(worker) = &mut self.worker else { return };
        match outcome {
            Outcome::Enqueued if first <= worker.first_seq => {
                let (session, target) = (worker.session, worker.target);
                let count = (last + 1).saturating_sub(worker.first_seq).min(worker.pending.len() as u64);
                worker.first_seq += count;
                let arrived: Vec<_> = worker.pending.drain(..count as usize).collect();
                let ids: MsgIds = arrived.iter().map(|(id, _)| *id).collect();
                for uid in arrived.iter().filter_map(|(_, body)| crate::message::uid_in(body)) {
                    self.desk.judge.lock().confirmed(target, uid);
                }
                if !ids.is_empty() {
                    self.append(&Command::DlxSettle { session, ids }, out);
                }
            }
            Outcome::UnknownEnqueuer if worker.first_seq > 1 && last >= worker.first_seq => {
                let session = worker.session;
                self.desk.wrong(|| format!("the queue of dead letters forgot {session:?}"));
            }
            // Sent again when nobody answers.
            Outcome::Enqueued | Outcome::OutOfSequence | Outcome::UnknownEnqueuer | Outcome::Refused => {}
        }
    }

    /// Messages died, and are published where the configuration says: once, and gone if that fails.
    pub(super) fn bury(&self, messages: &[Delivered], cx: &GroupCx<'_>) {
        let Some(target) = self.dead_letters_to else { return };
        let bodies = messages.iter().filter_map(|message| self.body(message, cx));
        let bodies: Vec<Bytes> = bodies.map(|uid| Bytes::copy_from_slice(&uid.to_le_bytes())).collect();
        if !bodies.is_empty() {
            self.ask_leader(target, Ask::DeadLetters(bodies));
        }
    }

    fn ask_leader(&self, group: GroupId, ask: Ask) {
        self.desk.out.lock().push(Said::ToLeader(group, ask));
    }
}
