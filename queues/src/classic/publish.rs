//! Publishing.

use warren_proto::ids::SessionRef;

use super::Reply;
use super::effects::Effects;
use super::state::Queue;
use crate::enqueuer::{Admission, Origin};
use crate::message::StoredMessage;

impl Queue {
    pub(super) fn register(&mut self, session: SessionRef, fx: &mut Effects) -> Reply {
        let enqueuer = self.sessions.enqueuer_or_insert(session, fx);
        Reply::Registered { next_seq: enqueuer.next_seq, blocked: false }
    }

    pub(super) fn enqueue(&mut self, origin: Option<Origin>, message: StoredMessage, fx: &mut Effects) -> Reply {
        let admission = match origin {
            None => Some(Admission::Next),
            Some(origin) => self.sessions.admit(origin, fx),
        };
        match admission {
            None => Reply::UnknownEnqueuer,
            Some(Admission::Duplicate) => Reply::Ok,
            Some(Admission::Ahead { expected }) => Reply::OutOfSequence { expected },
            Some(Admission::Next) => {
                self.messages.enqueue(message);
                Reply::Ok
            }
        }
    }
}
