//! What the judge is told of an entry when the first member applies it: who publishes, which messages leave and why, and who
//! is the active consumer.

use warren_proto::ids::Reference;
use warren_queues::quorum::{Command, Effect, Enqueue, Meta, Reply};
use warren_queues::{ConsumerKey, ConsumerRef, MsgIds, SessionLoss};

use super::queue::QueueMember;
use crate::judge::{Departures, Enqueued};
use crate::message::uid_in;

/// What only the state before a command shows of what it will do.
#[derive(Default)]
struct Before {
    settled: Vec<Reference>,
    /// Dead messages that are kept, if the worker says that some have arrived.
    dead: Vec<Reference>,
    /// Consumers that go.
    ended: Vec<ConsumerKey>,
    /// Effects that are there already.
    effects: usize,
}

impl QueueMember {
    /// Applies a command that is no publish, and tells the judge what came of it.
    pub(super) fn apply_watched(&mut self, meta: &Meta, command: Command, departures: &mut Departures) -> Reply {
        let before = self.look_before(&command);
        let told = match &command {
            Command::RegisterEnqueuer { session } => Some((*session, true)),
            Command::SessionDown { session, loss: SessionLoss::Gone } => Some((*session, false)),
            _ => None,
        };
        let reply = self.queue.apply(meta, command, &mut self.fx);
        if let Reply::Purged { count } = &reply {
            departures.purged += count;
        }
        let remain: Vec<Reference> =
            if before.dead.is_empty() { Vec::new() } else { self.queue.dead_references().collect() };
        departures.arrived.extend(before.dead.iter().filter(|reference| !remain.contains(reference)));
        departures.settled.extend(&before.settled);
        if let Some((session, comes)) = told {
            let mut judge = self.desk.judge.lock();
            let book = judge.queue(self.group);
            if comes { book.registered(session) } else { book.session_gone(session) }
        }
        if self.queue.config().single_active {
            self.tell_active(&before, &reply);
        }
        reply
    }

    fn look_before(&self, command: &Command) -> Before {
        let mut before = Before { effects: self.fx.len(), ..Before::default() };
        match command {
            Command::Settle { consumer, ids } => before.settled = self.held_among(consumer, ids),
            Command::DlxSettle { .. } => before.dead = self.queue.dead_references().collect(),
            Command::SessionDown { session, loss: SessionLoss::Gone } if self.queue.config().single_active => {
                let of_session = self.queue.consumers().filter(|c| c.id.session == *session);
                before.ended = of_session.map(|c| c.key).collect();
            }
            _ => {}
        }
        before
    }

    fn held_among(&self, consumer: &ConsumerRef, ids: &MsgIds) -> Vec<Reference> {
        let named = |id: u64| ids.runs().iter().any(|run| (run.start..run.start + run.count).contains(&id));
        self.queue.held(consumer, 0).filter(|m| named(m.msg_id)).map(|m| m.reference).collect()
    }

    /// Who ended, who is active, and who was given messages, in the order of the log.
    fn tell_active(&self, before: &Before, reply: &Reply) {
        let mut judge = self.desk.judge.lock();
        let group = self.group;
        let new = || self.fx.iter().skip(before.effects);
        for key in &before.ended {
            judge.seen(group, |book| book.ended(*key));
        }
        match reply {
            Reply::Cancelled { key, .. } => judge.seen(group, |book| book.ended(*key)),
            // Attached again: no notice tells it.
            Reply::Attached { key, active: true, .. } => {
                let noticed = new().any(|e| matches!(e, Effect::ConsumerActive { key: other, .. } if other == key));
                if !noticed {
                    judge.seen(group, |book| book.activated(*key, true));
                }
            }
            _ => {}
        }
        for effect in new() {
            match effect {
                Effect::ConsumerActive { key, active, .. } => judge.seen(group, |book| book.activated(*key, *active)),
                Effect::Released { key, .. } => judge.seen(group, |book| book.timed_out(*key)),
                Effect::Deliver(deliver) => {
                    for m in &deliver.messages {
                        judge.seen(group, |book| book.assigned(deliver.key, m.reference, m.acquired_count));
                    }
                }
                _ => {}
            }
        }
    }

    /// Applies a publish, and tells the judge what came of it if nobody has done so.
    pub(super) fn apply_enqueue(&mut self, meta: &Meta, mut enqueue: Enqueue, first: bool) -> Reply {
        let origin = enqueue.origin;
        let uid = uid_in(&enqueue.message.body());
        if self.desk.defect == crate::plan::Defect::DroppedDedup {
            enqueue.origin = None;
        }
        if !first {
            return self.queue.apply(meta, Command::Enqueue(enqueue), &mut self.fx);
        }
        let before = self.ever_there();
        let effects = self.fx.len();
        let reply = self.queue.apply(meta, Command::Enqueue(enqueue), &mut self.fx);
        let added = self.ever_there() > before;
        let Some(uid) = uid else {
            self.desk.wrong(|| format!("{:?} of group {}: no identity", meta.reference, self.group));
            return reply;
        };
        self.desk.judge.lock().enqueued(
            self.group,
            uid,
            &Enqueued { origin, reference: meta.reference, reply: &reply, added },
        );
        if self.queue.config().single_active {
            self.tell_active(&Before { effects, ..Before::default() }, &reply);
        }
        reply
    }

    /// Messages that are in the queue, or have left it unconsumed since the effects were carried out.
    fn ever_there(&self) -> u64 {
        let left = |effect: &Effect| match effect {
            Effect::Dropped { count, .. } => *count,
            Effect::DeadLetter { messages, .. } => messages.len() as u64,
            _ => 0,
        };
        let overview = self.queue.overview();
        overview.messages + overview.dead + self.fx.iter().map(left).sum::<u64>()
    }

    /// The entry is applied: tells the judge which messages are gone.
    pub(super) fn tell_departures(&self, mut departures: Departures) {
        for effect in self.fx.iter() {
            match effect {
                Effect::Dropped { reason, count } => {
                    departures.dropped += count;
                    departures.dropped_for = Some(*reason);
                }
                Effect::DeadLetter { reason, messages } => {
                    departures.dead_letters.extend(messages.iter().map(|m| (*reason, m.reference)));
                }
                Effect::Kept { .. } => departures.kept = true,
                Effect::DlxDeliver { messages, .. } => {
                    departures.handed.extend(messages.iter().map(|(_, m)| m.reference));
                }
                _ => {}
            }
        }
        self.desk.judge.lock().departed(self.group, &self.queue, &departures);
    }
}
