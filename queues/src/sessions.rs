//! The sessions that a queue knows.

use std::collections::BTreeMap;

use warren_proto::ids::{NodeId, SessionRef};

use crate::effects::{Carries, Effects};
use crate::enqueuer::{Admission, Enqueuer, FIRST_SEQ, Origin};

/// One session: known while it has published, or has a consumer.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Session {
    pub enqueuer: Option<Enqueuer>,
    /// Whether its node cannot be reached.
    pub suspected: bool,
    /// How many consumers it has.
    pub consumers: u32,
}

#[derive(Debug, Default)]
pub(crate) struct Sessions(BTreeMap<SessionRef, Session>);

impl Sessions {
    pub fn iter(&self) -> impl Iterator<Item = (&SessionRef, &Session)> {
        self.0.iter()
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn restore(&mut self, session: SessionRef, state: Session) {
        self.0.insert(session, state);
    }

    pub fn get_mut(&mut self, session: SessionRef) -> Option<&mut Session> {
        self.0.get_mut(&session)
    }

    fn entry<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) -> &mut Session {
        self.0.entry(session).or_insert_with(|| {
            fx.push(E::monitor(session));
            Session::default()
        })
    }

    pub fn enqueuer_or_insert<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) -> &mut Enqueuer {
        self.entry(session, fx).enqueuer.get_or_insert_with(Enqueuer::new)
    }

    /// Takes a publish's place in its session's sequence; `None` if the sequence is not known and this is not its start.
    pub fn admit<E: Carries>(&mut self, origin: Origin, fx: &mut Effects<E>) -> Option<Admission> {
        if let Some(enqueuer) = self.0.get_mut(&origin.session).and_then(|session| session.enqueuer.as_mut()) {
            return Some(enqueuer.admit(origin.seq));
        }
        (origin.seq == FIRST_SEQ).then(|| self.enqueuer_or_insert(origin.session, fx).admit(origin.seq))
    }

    pub fn consumer_added<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        self.entry(session, fx).consumers += 1;
    }

    pub fn consumer_removed<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if let Some(state) = self.0.get_mut(&session) {
            state.consumers = state.consumers.saturating_sub(1);
            self.forget_unused(session, fx);
        }
    }

    fn forget_unused<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if self.0.get(&session).is_some_and(|state| state.consumers == 0 && state.enqueuer.is_none()) {
            self.0.remove(&session);
            fx.push(E::demonitor(session));
        }
    }

    pub fn drop_enqueuer<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if let Some(state) = self.0.get_mut(&session) {
            state.enqueuer = None;
            self.forget_unused(session, fx);
        }
    }

    pub fn of_node(&mut self, node: NodeId) -> impl Iterator<Item = (SessionRef, &mut Session)> {
        let first = SessionRef { node, incarnation: 0, id: 0 };
        self.0.range_mut(first..).take_while(move |(session, _)| session.node == node).map(|(s, state)| (*s, state))
    }
}
