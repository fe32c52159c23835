//! What is known of one queue: what was published, enqueued, confirmed, handed out and answered.
//!
//! What clients see is judged by the checkers of [`warren_jepsen`]; what only the log shows is judged here: sequence numbers,
//! references, and that each message leaves in a way that the queue has said.

use std::collections::{BTreeMap, BTreeSet};

use warren_jepsen::check::history::{Consumer, Event, Operation, Process, Reason, Value};
use warren_jepsen::check::order::Order;
use warren_jepsen::check::redelivery::Redelivery;
use warren_jepsen::check::single_active::SingleActive;
use warren_jepsen::check::total_queue::{TotalQueue, Until};
use warren_proto::ids::{GroupId, Reference, SessionRef};
use warren_queues::quorum::{DeadReason, Reply};
use warren_queues::{ConsumerKey, Origin};

use super::ledger::Ledger;
use crate::message::{Handed, publisher_of, seq_of};
use crate::queues::QueuePlan;

/// The book of one queue.
pub struct QueueBook {
    group: GroupId,
    takes_dead: bool,
    single_active: bool,
    /// Where its dead messages go.
    pub dead_letters_to: Option<GroupId>,
    total: TotalQueue,
    redelivery: Redelivery,
    order: Order,
    active: SingleActive,
    /// Sent by a publisher at least once.
    published: BTreeSet<u64>,
    /// The next number of each session that the queue knows.
    next: BTreeMap<SessionRef, u64>,
    /// Sessions that ended or died.
    gone: BTreeSet<SessionRef>,
    /// Where each message is in the log; copies come later.
    enqueued: BTreeMap<u64, Vec<Reference>>,
    confirmed: BTreeSet<u64>,
    /// Settled or discarded by whoever held it.
    answered: BTreeSet<u64>,
    /// Left unconsumed.
    left: BTreeSet<u64>,
    /// Died, and must arrive in another queue.
    owed: BTreeSet<u64>,
    /// Where the messages are in the order of the log.
    pub ledger: Ledger,
    /// Copies of publishes that came from sessions which the queue was told are gone.
    pub late_copies: u64,
}

/// What came of a publish that was applied.
#[derive(Debug, Clone, Copy)]
pub struct Enqueued<'a> {
    /// Whose publish it is; `None` = untracked.
    pub origin: Option<Origin>,
    /// Where it is in the log.
    pub reference: Reference,
    /// What the queue answers.
    pub reply: &'a Reply,
    /// Whether the queue has a message more than before.
    pub added: bool,
}

/// A message's identity, as the checkers know it.
fn value(uid: u64) -> Value {
    Value::new(publisher_of(uid), seq_of(uid))
}

/// A consumer, as the checkers know it.
fn consumer(key: ConsumerKey) -> Consumer {
    Consumer(key.0)
}

/// A reason, as the checkers know it.
pub fn reason(reason: DeadReason) -> Reason {
    match reason {
        DeadReason::Rejected => Reason::Rejected,
        DeadReason::DeliveryLimit => Reason::DeliveryLimit,
        DeadReason::Expired => Reason::Expired,
        DeadReason::MaxLen => Reason::MaxLen,
    }
}

/// At no particular time: the checkers that need one are told of nothing that does.
fn operation(group: GroupId, event: Event) -> Operation {
    Operation { at_ns: 0, process: Process(0), queue: warren_jepsen::check::Queue(group.0), event }
}

impl QueueBook {
    /// The empty book of a queue.
    pub fn new(group: GroupId, plan: &QueuePlan) -> Self {
        QueueBook {
            group,
            takes_dead: plan.takes_dead,
            single_active: plan.config.single_active,
            dead_letters_to: plan.dead_letters_to,
            total: TotalQueue::new(Until::Answered),
            redelivery: Redelivery::new(),
            order: Order::new(),
            active: SingleActive::new(),
            published: BTreeSet::new(),
            next: BTreeMap::new(),
            gone: BTreeSet::new(),
            enqueued: BTreeMap::new(),
            confirmed: BTreeSet::new(),
            answered: BTreeSet::new(),
            left: BTreeSet::new(),
            owed: BTreeSet::new(),
            ledger: Ledger::default(),
            late_copies: 0,
        }
    }

    /// Something that clients see happens.
    fn note(&mut self, event: Event) -> Result<(), String> {
        let operation = operation(self.group, event);
        self.total.observe(&operation);
        self.redelivery.observe(&operation);
        if let Some(violation) = self.total.violation() {
            return Err(violation.to_string());
        }
        if let Some(violation) = self.redelivery.violation() {
            return Err(violation.to_string());
        }
        // Dead messages come in the order of their deaths.
        if !self.takes_dead {
            self.order.observe(&operation);
        }
        self.order.violation().map_or(Ok(()), |violation| Err(violation.to_string()))
    }

    /// Something happens in a single active queue's log.
    fn note_active(&mut self, event: Event) -> Result<(), String> {
        if !self.single_active {
            return Ok(());
        }
        self.active.observe(&operation(self.group, event));
        self.active.violation().map_or(Ok(()), |violation| Err(violation.to_string()))
    }

    /// A publisher sends a message, or means to.
    pub fn published(&mut self, uid: u64, priority: Option<u8>) -> Result<(), String> {
        self.published.insert(uid);
        self.note(Event::Publish { value: value(uid), priority, may_expire: false })
    }

    /// A publisher was told that a message is refused.
    pub fn refused(&mut self, uid: u64) -> Result<(), String> {
        self.note(Event::Refuse { value: value(uid) })
    }

    /// The first member applied a publish of this message.
    pub fn enqueued(&mut self, uid: u64, enqueued: &Enqueued<'_>) -> Result<(), String> {
        let Enqueued { origin, reference, reply, added } = *enqueued;
        let copy = self.enqueued.contains_key(&uid);
        if added {
            self.ledger.entered(reference, uid);
            if !copy {
                self.enqueued.insert(uid, vec![reference]);
            }
        }
        if !self.published.contains(&uid) {
            return Err(format!("message {uid:x} was never published"));
        }
        let Some(Origin { session, seq }) = origin else {
            // Untracked: a message that died, published by one leader or by two.
            return if copy { self.copied(uid, reference) } else { Ok(()) };
        };
        if !self.takes_dead && (publisher_of(uid), seq_of(uid)) != (session.id, seq) {
            return Err(format!("message {uid:x} arrives as number {seq} of {session:?}"));
        }
        let next = self.next.get(&session).copied();
        let expected = match next {
            Some(next) if seq == next => true,
            Some(next) if seq < next => false,
            None if seq == 1 => true,
            Some(_) | None => {
                return match reply {
                    Reply::OutOfSequence { expected } if Some(*expected) == next => Ok(()),
                    Reply::UnknownEnqueuer if next.is_none() => Ok(()),
                    other => Err(format!("number {seq} of {session:?}, next is {next:?}: {other:?}")),
                };
            }
        };
        if *reply != Reply::Ok || added != expected {
            return Err(format!("number {seq} of {session:?}, next is {next:?}: {reply:?}, enqueued: {added}"));
        }
        if !expected {
            return Ok(());
        }
        self.next.insert(session, seq + 1);
        match copy {
            false => Ok(()),
            // Nothing that the queue remembers can tell a copy from a new session's first publish.
            true if self.gone.contains(&session) => {
                self.late_copies += 1;
                self.copied(uid, reference)
            }
            // A worker that does not know what the one before it has done.
            true if self.takes_dead => self.copied(uid, reference),
            true => Err(format!("message {uid:x} is enqueued again, it was at {:?}", self.enqueued.get(&uid))),
        }
    }

    fn copied(&mut self, uid: u64, reference: Reference) -> Result<(), String> {
        self.enqueued.entry(uid).or_default().push(reference);
        self.note(Event::Copy { value: value(uid) })
    }

    /// The queue knows a session that has not published yet.
    pub fn registered(&mut self, session: SessionRef) {
        self.next.entry(session).or_insert(1);
    }

    /// The queue forgets a session.
    pub fn session_gone(&mut self, session: SessionRef) {
        self.next.remove(&session);
        self.gone.insert(session);
    }

    /// A publisher got its confirm. Answers the log index of the message.
    pub fn confirmed(&mut self, uid: u64) -> Result<u64, String> {
        let Some(index) = self.enqueued.get(&uid).and_then(|references| references.first()).map(|r| r.index()) else {
            return Err(format!("message {uid:x} is confirmed and not enqueued"));
        };
        if !self.confirmed.insert(uid) && !self.takes_dead {
            return Err(format!("message {uid:x} is confirmed twice"));
        }
        self.note(Event::Confirm { value: value(uid) }).map(|()| index)
    }

    /// A consumer got a message that it had not seen.
    pub fn delivered(&mut self, key: ConsumerKey, message: &Handed, got: bool) -> Result<(), String> {
        let uid = message.uid;
        let Some(references) = self.enqueued.get(&uid) else {
            return Err(format!("message {uid:x} is delivered and was never enqueued"));
        };
        if !references.iter().any(|reference| reference.0 == message.reference) {
            let from = Reference(message.reference);
            return Err(format!("message {uid:x} of {references:?} comes from {from:?}"));
        }
        self.note(Event::Deliver {
            value: value(uid),
            consumer: consumer(key),
            redelivered: message.acquired_count > 0,
            acquired: Some(message.acquired_count),
            got,
        })
    }

    /// A consumer settles or discards a message.
    pub fn answered(&mut self, key: ConsumerKey, uid: u64) -> Result<(), String> {
        self.answered.insert(uid);
        self.note(Event::Settle { value: value(uid), consumer: consumer(key), proven: false })
    }

    /// A message left the queue unconsumed, as it should.
    pub fn gone(&mut self, uid: u64, reason: Reason) -> Result<(), String> {
        self.left.insert(uid);
        self.note(Event::Gone { value: value(uid), reason })
    }

    /// A message died, and must arrive in another queue.
    pub fn owes(&mut self, uid: u64) {
        self.owed.insert(uid);
    }

    /// A message that died does not have to arrive any more: it was purged.
    pub fn owes_not(&mut self, uid: u64) {
        self.owed.remove(&uid);
    }

    /// Whether a message is in the queue, or was.
    pub fn has_enqueued(&self, uid: u64) -> bool {
        self.enqueued.contains_key(&uid)
    }

    /// In the log of a single active queue: a consumer is the active one from here on, or is not.
    pub fn activated(&mut self, key: ConsumerKey, active: bool) -> Result<(), String> {
        let consumer = consumer(key);
        self.note_active(if active { Event::Activate { consumer } } else { Event::Deactivate { consumer } })
    }

    /// The same: it was cancelled, or its session is gone.
    pub fn ended(&mut self, key: ConsumerKey) -> Result<(), String> {
        self.note_active(Event::End { consumer: consumer(key) })
    }

    /// The same: it held messages too long.
    pub fn timed_out(&mut self, key: ConsumerKey) -> Result<(), String> {
        self.note_active(Event::TimedOut { consumer: consumer(key) })
    }

    /// The same: it is given a message.
    pub fn assigned(&mut self, key: ConsumerKey, reference: Reference, acquired: u32) -> Result<(), String> {
        let Some(uid) = self.ledger.uid(reference).filter(|_| self.single_active) else { return Ok(()) };
        let (value, consumer) = (value(uid), consumer(key));
        let redelivered = acquired > 0;
        self.note_active(Event::Deliver { value, consumer, redelivered, acquired: Some(acquired), got: false })
    }

    /// The queue is empty and nobody holds anything: every confirmed message found somebody who answered it, or left as it
    /// may.
    pub fn check_drained(&self, looks_inside: bool) -> Result<(), String> {
        if let Some(violation) = self.total.verdict().violation() {
            return Err(violation.to_string());
        }
        if looks_inside && !self.ledger.is_empty() {
            return Err(format!("{} messages vanished", self.ledger.len()));
        }
        Ok(())
    }

    /// Every message that died here and had to arrive in that queue was answered there, or has left it.
    pub fn check_dead_letters(&self, target: &QueueBook) -> Result<(), String> {
        let lost = || self.owed.difference(&target.answered).filter(|uid| !target.left.contains(uid));
        match lost().next() {
            Some(first) => Err(format!("{} dead letters are lost, the first is {}", lost().count(), value(*first))),
            None => Ok(()),
        }
    }

    /// How many messages were confirmed.
    pub fn confirms(&self) -> u64 {
        self.confirmed.len() as u64
    }

    /// How many messages left unconsumed.
    pub fn deaths(&self) -> u64 {
        self.left.len() as u64
    }

    /// How many messages were answered.
    pub fn answers(&self) -> u64 {
        self.answered.len() as u64
    }
}
