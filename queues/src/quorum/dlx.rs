//! Messages that left the queue unconsumed: dropped, published once elsewhere, or kept until they have arrived there.

use std::collections::{BTreeMap, VecDeque};

use warren_proto::ids::SessionRef;

use super::Reply;
use super::consumer::{delivered, shown};
use super::effects::{DeadReason, Delivered, Effect, Effects, push_dead, push_dropped, push_kept};
use super::messages::{Message, Messages};
use super::state::Queue;
use crate::checked_out::CheckedOut;
use crate::defect::{Defect, broken};
use crate::msg_ids::MsgIds;

/// A message that is dead and kept.
pub(super) type Dead = (DeadReason, Message);

/// Who takes dead messages to their new queues.
#[derive(Debug)]
pub(super) struct Worker {
    pub session: SessionRef,
    pub prefetch: u32,
    pub held: CheckedOut<Dead>,
}

/// The dead messages that are kept. They still count for the queue's limits.
#[derive(Debug, Default)]
pub(super) struct Dlx {
    discards: VecDeque<Dead>,
    worker: Option<Worker>,
    /// Without a worker: the id of the next message for one. Ids are never used again, so that what one worker answers
    /// late is not taken for the answer to another message.
    next_id: u64,
    /// Bytes of the bodies of all.
    bytes: u64,
}

impl Dlx {
    /// As decoded from a snapshot.
    pub fn restore(discards: VecDeque<Dead>, worker: Option<Worker>, next_id: u64) -> Self {
        let mut dlx = Dlx { discards, worker, next_id, bytes: 0 };
        dlx.bytes = dlx.iter().map(|(_, m)| u64::from(m.size)).sum();
        dlx
    }

    pub fn discards(&self) -> &VecDeque<Dead> {
        &self.discards
    }

    pub fn worker(&self) -> Option<&Worker> {
        self.worker.as_ref()
    }

    /// The id of the next message for a worker.
    pub fn next_id(&self) -> u64 {
        self.worker.as_ref().map_or(self.next_id, |worker| worker.held.next_id())
    }

    /// All of them.
    pub fn iter(&self) -> impl Iterator<Item = &Dead> {
        self.worker.iter().flat_map(|worker| worker.held.iter().map(|(_, dead)| dead)).chain(&self.discards)
    }

    pub fn len(&self) -> u64 {
        (self.discards.len() + self.worker.as_ref().map_or(0, |worker| worker.held.len())) as u64
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    fn push(&mut self, reason: DeadReason, message: Message) {
        self.bytes += u64::from(message.size);
        self.discards.push_back((reason, message));
    }

    /// Replaces the worker; what the old one held comes first again.
    fn attach(&mut self, session: SessionRef, prefetch: u32) {
        let next_id = if broken(Defect::WorkerIdsReused) { 0 } else { self.next_id() };
        if let Some(old) = self.worker.take() {
            let mut held = VecDeque::with_capacity(old.held.len());
            let mut old = old.held;
            old.take_all(|dead| held.push_back(dead));
            match broken(Defect::WorkerReturnsLast) {
                true => self.discards.append(&mut held),
                false => {
                    held.append(&mut self.discards);
                    self.discards = held;
                }
            }
        }
        let held = CheckedOut::restore(next_id, BTreeMap::new());
        self.worker = Some(Worker { session, prefetch: prefetch.max(1), held });
    }

    fn settle(&mut self, session: SessionRef, ids: &MsgIds, messages: &mut Messages) {
        let Some(worker) = self.worker.as_mut().filter(|worker| worker.session == session) else { return };
        for run in ids.runs() {
            worker.held.take_run(run.start, run.count, |(_, message)| {
                self.bytes -= u64::from(message.size);
                messages.gone(&message);
            });
        }
    }

    /// What the worker may be given now.
    fn checkout(&mut self) -> Option<(SessionRef, Vec<(DeadReason, Delivered)>)> {
        let worker = self.worker.as_mut()?;
        let room = (worker.prefetch as usize).saturating_sub(worker.held.len()).min(self.discards.len());
        if room == 0 {
            return None;
        }
        let mut out = Vec::with_capacity(room);
        for (reason, message) in self.discards.drain(..room) {
            out.push((reason, delivered(worker.held.next_id(), &message)));
            worker.held.push((reason, message));
        }
        Some((worker.session, out))
    }

    /// Forgets all messages, and the worker.
    fn stop(&mut self, messages: &mut Messages) {
        self.clear(messages);
        self.next_id = self.next_id();
        self.worker = None;
    }

    /// Forgets all messages. Answers how many.
    fn clear(&mut self, messages: &mut Messages) -> u64 {
        let count = self.len();
        self.iter().for_each(|(_, message)| messages.gone(message));
        self.discards = VecDeque::new();
        if let Some(worker) = &mut self.worker {
            worker.held.take_all(drop);
        }
        self.bytes = 0;
        count
    }
}

impl Queue {
    /// A message that is in no container any more has died.
    pub(super) fn bury(&mut self, reason: DeadReason, message: Message, fx: &mut Effects) {
        if self.config.at_least_once() {
            push_kept(fx, reason);
            self.dlx.push(reason, message);
            return;
        }
        self.messages.gone(&message);
        match self.config.dead_letter {
            Some(_) => push_dead(fx, reason, shown(&message)),
            None => push_dropped(fx, reason),
        }
    }

    pub(super) fn bury_all(&mut self, reason: DeadReason, mut messages: Vec<Message>, fx: &mut Effects) {
        if broken(Defect::DeathsReversed) {
            messages.reverse();
        }
        messages.into_iter().for_each(|message| self.bury(reason, message, fx));
    }

    pub(super) fn dlx_attach(&mut self, session: SessionRef, prefetch: u32) -> Reply {
        if !self.config.at_least_once() {
            return Reply::NotFound;
        }
        self.dlx.attach(session, prefetch);
        Reply::Ok
    }

    pub(super) fn dlx_settle(&mut self, session: SessionRef, ids: &MsgIds) -> Reply {
        self.dlx.settle(session, ids, &mut self.messages);
        Reply::Ok
    }

    /// Gives the worker what it may hold.
    pub(super) fn dlx_checkout(&mut self, fx: &mut Effects) {
        if let Some((session, messages)) = self.dlx.checkout() {
            fx.push(Effect::DlxDeliver { session, messages });
        }
    }

    /// Forgets the dead messages. Answers how many.
    pub(super) fn dlx_purge(&mut self) -> u64 {
        self.dlx.clear(&mut self.messages)
    }

    /// Dead messages are kept no longer, or from now on.
    pub(super) fn dlx_switched(&mut self, was: bool, fx: &mut Effects) {
        let is = self.config.at_least_once();
        if was && !is {
            self.dlx.stop(&mut self.messages);
        }
        if was != is {
            fx.push(Effect::DlxWorker(is));
        }
    }
}
