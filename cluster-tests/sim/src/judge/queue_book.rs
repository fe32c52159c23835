//! What is known of one queue: what was published, enqueued, confirmed, handed out and answered.

use std::collections::{BTreeMap, BTreeSet};

use warren_proto::ids::{Reference, SessionRef};
use warren_queues::quorum::Reply;
use warren_queues::{ConsumerKey, Origin};

use crate::message::{Handed, publisher_of, seq_of};

/// The book of one queue.
#[derive(Default)]
pub struct QueueBook {
    /// Sent by a publisher at least once.
    published: BTreeSet<u64>,
    /// The next number of each session that the queue knows.
    next: BTreeMap<SessionRef, u64>,
    /// Sessions that ended or died.
    gone: BTreeSet<SessionRef>,
    enqueued: BTreeMap<u64, Reference>,
    confirmed: BTreeSet<u64>,
    /// Settled or discarded by whoever held it.
    answered: BTreeSet<u64>,
    handed: BTreeMap<u64, HandedOut>,
    /// Messages that the queue dropped as it should: purged, or returned too often.
    pub excused: u64,
    /// Copies of publishes that came from sessions which the queue was told are gone.
    pub late_copies: u64,
}

/// What came of a publish that was applied.
#[derive(Debug, Clone, Copy)]
pub struct Enqueued<'a> {
    /// Whose publish it is.
    pub origin: Origin,
    /// Where it is in the log.
    pub reference: Reference,
    /// What the queue answers.
    pub reply: &'a Reply,
    /// Messages that the queue has more than before.
    pub added: u64,
}

#[derive(Default)]
struct HandedOut {
    reference: u64,
    /// Where each hand-out of it went, by how many came before.
    places: BTreeMap<u32, (ConsumerKey, u64)>,
}

impl QueueBook {
    /// A publisher sends a message.
    pub fn published(&mut self, uid: u64) {
        self.published.insert(uid);
    }

    /// The first member applied a publish of this message.
    pub fn enqueued(&mut self, uid: u64, enqueued: &Enqueued<'_>) -> Result<(), String> {
        let Enqueued { origin: Origin { session, seq }, reference, reply, added } = *enqueued;
        let before = self.enqueued.get(&uid).copied();
        if added > 0 && before.is_none() {
            self.enqueued.insert(uid, reference);
        }
        if (publisher_of(uid), seq_of(uid)) != (session.id, seq) {
            return Err(format!("message {uid:x} arrives as number {seq} of {session:?}"));
        }
        if !self.published.contains(&uid) {
            return Err(format!("message {uid:x} was never published"));
        }
        let next = self.next.get(&session).copied();
        let expected = match next {
            Some(next) if seq == next => 1,
            Some(next) if seq < next => 0,
            None if seq == 1 => 1,
            Some(_) | None => {
                return match reply {
                    Reply::OutOfSequence { expected } if Some(*expected) == next => Ok(()),
                    Reply::UnknownEnqueuer if next.is_none() => Ok(()),
                    other => Err(format!("number {seq} of {session:?}, next is {next:?}: {other:?}")),
                };
            }
        };
        if *reply != Reply::Ok || added != expected {
            return Err(format!("number {seq} of {session:?}, next is {next:?}: {reply:?}, {added} enqueued"));
        }
        if expected == 0 {
            return Ok(());
        }
        self.next.insert(session, seq + 1);
        match before {
            None => Ok(()),
            // Nothing that the queue remembers can tell a copy from a new session's first publish.
            Some(_) if self.gone.contains(&session) => {
                self.enqueued.insert(uid, reference);
                self.late_copies += 1;
                Ok(())
            }
            Some(other) => Err(format!("message {uid:x} is enqueued again, it was at {other:?}")),
        }
    }

    /// The queue forgets a session.
    pub fn session_gone(&mut self, session: SessionRef) {
        self.next.remove(&session);
        self.gone.insert(session);
    }

    /// A publisher got its confirm. Answers the log index of the message.
    pub fn confirmed(&mut self, uid: u64) -> Result<u64, String> {
        let Some(reference) = self.enqueued.get(&uid) else {
            return Err(format!("message {uid:x} is confirmed and not enqueued"));
        };
        if self.confirmed.insert(uid) {
            Ok(reference.index())
        } else {
            Err(format!("message {uid:x} is confirmed twice"))
        }
    }

    /// A consumer got a message that it had not seen.
    pub fn delivered(&mut self, key: ConsumerKey, message: &Handed) -> Result<(), String> {
        let uid = message.uid;
        let Some(reference) = self.enqueued.get(&uid) else {
            return Err(format!("message {uid:x} is delivered and was never enqueued"));
        };
        let out = self.handed.entry(uid).or_default();
        if out.places.is_empty() {
            out.reference = message.reference;
        }
        if (reference.0, out.reference) != (message.reference, message.reference) && self.late_copies == 0 {
            return Err(format!("message {uid:x} of {reference:?} comes from {:?}", Reference(message.reference)));
        }
        let place = (key, message.msg_id);
        match out.places.insert(message.acquired_count, place) {
            Some(other) if other != place && self.late_copies == 0 => Err(format!(
                "message {uid:x} is handed out for the {}th time to {place:?} and to {other:?}",
                message.acquired_count
            )),
            _ => Ok(()),
        }
    }

    /// A consumer settles or discards a message.
    pub fn answered(&mut self, uid: u64) {
        self.answered.insert(uid);
    }

    /// The queue is empty and nobody holds anything: every confirmed message found somebody who answered it.
    pub fn check_drained(&self) -> Result<(), String> {
        let lost: Vec<u64> = self.confirmed.difference(&self.answered).copied().collect();
        if lost.len() as u64 > self.excused {
            let some: Vec<_> = lost.iter().take(3).map(|uid| (format!("{uid:x}"), self.enqueued.get(uid))).collect();
            return Err(format!("{} confirmed messages are lost, {} excused: {some:?}", lost.len(), self.excused));
        }
        Ok(())
    }

    /// How many messages were confirmed.
    pub fn confirms(&self) -> u64 {
        self.confirmed.len() as u64
    }

    /// How many messages were answered.
    pub fn answers(&self) -> u64 {
        self.answered.len() as u64
    }
}
