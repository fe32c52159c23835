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
pub(crate) struct Sessions {
    all: BTreeMap<SessionRef, Session>,
    /// How many have an enqueuer, and how many of those are blocked.
    enqueuers: usize,
    blocked: usize,
}

impl Sessions {
    pub fn iter(&self) -> impl Iterator<Item = (&SessionRef, &Session)> {
        self.all.iter()
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn restore(&mut self, session: SessionRef, state: Session) {
        if let Some(enqueuer) = &state.enqueuer {
            self.enqueuers += 1;
            self.blocked += usize::from(enqueuer.blocked);
        }
        self.all.insert(session, state);
    }

    pub fn any_blocked(&self) -> bool {
        self.blocked > 0
    }

    /// Blocks every enqueuer that is not yet; `each` is told of those.
    pub fn block_enqueuers(&mut self, mut each: impl FnMut(SessionRef)) {
        if self.blocked < self.enqueuers {
            self.set_blocked(true, &mut each);
            self.blocked = self.enqueuers;
        }
    }

    /// Blocks one enqueuer.
    pub fn block(&mut self, session: SessionRef) {
        if let Some(enqueuer) = self.all.get_mut(&session).and_then(|state| state.enqueuer.as_mut()) {
            self.blocked += usize::from(!enqueuer.blocked);
            enqueuer.blocked = true;
        }
    }

    /// Unblocks every enqueuer that is blocked; `each` is told of those.
    pub fn unblock_enqueuers(&mut self, mut each: impl FnMut(SessionRef)) {
        if self.blocked > 0 {
            self.set_blocked(false, &mut each);
            self.blocked = 0;
        }
    }

    fn set_blocked(&mut self, blocked: bool, each: &mut impl FnMut(SessionRef)) {
        for (session, state) in &mut self.all {
            if let Some(enqueuer) = state.enqueuer.as_mut().filter(|enqueuer| enqueuer.blocked != blocked) {
                enqueuer.blocked = blocked;
                each(*session);
            }
        }
    }

    /// How many enqueuers there are, and how many of them are blocked, as counted and as recounted.
    pub fn check_blocked(&self) -> bool {
        let enqueuers = self.all.values().filter_map(|state| state.enqueuer.as_ref());
        let (all, blocked) = enqueuers.fold((0, 0), |(all, blocked), e| (all + 1, blocked + usize::from(e.blocked)));
        (self.enqueuers, self.blocked) == (all, blocked)
    }

    pub fn get_mut(&mut self, session: SessionRef) -> Option<&mut Session> {
        self.all.get_mut(&session)
    }

    fn entry<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) -> &mut Session {
        self.all.entry(session).or_insert_with(|| {
            fx.push(E::monitor(session));
            Session::default()
        })
    }

    pub fn enqueuer_or_insert<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) -> &mut Enqueuer {
        let is_new = self.all.get(&session).is_none_or(|state| state.enqueuer.is_none());
        self.enqueuers += usize::from(is_new);
        self.entry(session, fx).enqueuer.get_or_insert_with(Enqueuer::new)
    }

    /// Takes a publish's place in its session's sequence; `None` if the sequence is not known and this is not its start.
    pub fn admit<E: Carries>(&mut self, origin: Origin, fx: &mut Effects<E>) -> Option<Admission> {
        if let Some(enqueuer) = self.all.get_mut(&origin.session).and_then(|session| session.enqueuer.as_mut()) {
            return Some(enqueuer.admit(origin.seq));
        }
        (origin.seq == FIRST_SEQ).then(|| self.enqueuer_or_insert(origin.session, fx).admit(origin.seq))
    }

    pub fn consumer_added<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        self.entry(session, fx).consumers += 1;
    }

    pub fn consumer_removed<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if let Some(state) = self.all.get_mut(&session) {
            state.consumers = state.consumers.saturating_sub(1);
            self.forget_unused(session, fx);
        }
    }

    fn forget_unused<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if self.all.get(&session).is_some_and(|state| state.consumers == 0 && state.enqueuer.is_none()) {
            self.all.remove(&session);
            fx.push(E::demonitor(session));
        }
    }

    pub fn drop_enqueuer<E: Carries>(&mut self, session: SessionRef, fx: &mut Effects<E>) {
        if let Some(state) = self.all.get_mut(&session) {
            if let Some(enqueuer) = state.enqueuer.take() {
                self.enqueuers -= 1;
                self.blocked -= usize::from(enqueuer.blocked);
            }
            self.forget_unused(session, fx);
        }
    }

    pub fn of_node(&mut self, node: NodeId) -> impl Iterator<Item = (SessionRef, &mut Session)> {
        let first = SessionRef { node, incarnation: 0, id: 0 };
        self.all.range_mut(first..).take_while(move |(session, _)| session.node == node).map(|(s, state)| (*s, state))
    }
}
