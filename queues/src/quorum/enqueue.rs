//! Publishing.

use warren_proto::ids::SessionRef;

use super::Reply;
use super::command::Enqueue;
use super::effects::{Effect, Effects};
use super::state::{Meta, Queue};
use crate::enqueuer::{Admission, Enqueuer, Origin};

impl Queue {
    pub(super) fn register(&mut self, session: SessionRef, fx: &mut Effects) -> Reply {
        self.sessions.enqueuer_or_insert(session, fx);
        if self.rejects() {
            self.sessions.block(session);
        }
        let &mut Enqueuer { next_seq, blocked } = self.sessions.enqueuer_or_insert(session, fx);
        if blocked {
            // It may have missed that it was told.
            fx.push(Effect::QueueStatus { session, reject: true });
        }
        Reply::Registered { next_seq, blocked }
    }

    pub(super) fn enqueue(&mut self, meta: &Meta, enqueue: &Enqueue, fx: &mut Effects) -> Reply {
        let size = enqueue.message.body_size();
        let refusal = match enqueue.origin {
            None => None,
            Some(origin) => self.admit(origin, fx),
        };
        match refusal {
            None => {
                let expiry = self.expiry(meta, enqueue.ttl_ms);
                let carried = enqueue.delivery_count;
                self.messages.enqueue(enqueue.priority, meta.version, meta.reference, size, carried, expiry);
                Reply::Ok
            }
            Some(reply) => {
                self.messages.refused(size);
                reply
            }
        }
    }

    /// Takes a publish's place in its sequence. `None` if it is to be enqueued, else its answer.
    fn admit(&mut self, origin: Origin, fx: &mut Effects) -> Option<Reply> {
        match self.sessions.admit(origin, fx) {
            None => Some(Reply::UnknownEnqueuer),
            Some(Admission::Next) => None,
            Some(Admission::Duplicate) => Some(Reply::Ok),
            Some(Admission::Ahead { expected }) => Some(Reply::OutOfSequence { expected }),
        }
    }
}
