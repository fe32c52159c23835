//! Sessions are lost, and come back.

use warren_proto::ids::{NodeId, SessionRef};

use super::Reply;
use super::effects::{Effect, Effects, TimerKey};
use super::leadership::{greet, remind};
use super::state::{Meta, Queue};
use super::version::MV2;
use crate::consumer::ConsumerKey;
use crate::session::SessionLoss;

impl Queue {
    /// The sessions that the queue knows, those of one node together, and whether it believes each to be cut off.
    pub fn sessions(&self) -> impl Iterator<Item = (SessionRef, bool)> {
        self.sessions.iter().map(|(session, state)| (*session, state.suspected))
    }

    pub(super) fn session_down(
        &mut self,
        meta: &Meta,
        session: SessionRef,
        loss: SessionLoss,
        fx: &mut Effects,
    ) -> Reply {
        match loss {
            SessionLoss::Gone => self.session_gone(meta, session, fx),
            SessionLoss::NoConnection if meta.version >= MV2 => self.session_cut_off(meta, session, fx),
            SessionLoss::NoConnection => self.node_cut_off(meta, session.node, fx),
        }
        self.last_active_ms = self.last_active_ms.max(meta.ts_ms);
        Reply::Ok
    }

    fn session_gone(&mut self, meta: &Meta, session: SessionRef, fx: &mut Effects) {
        let rule = self.return_rule(meta, true);
        for key in self.consumers.of_session(session) {
            self.return_all(key, &rule, fx);
            self.remove_consumer(meta, key, fx);
        }
        self.sessions.drop_enqueuer(session, fx);
        self.last_active_ms = self.last_active_ms.max(meta.ts_ms);
    }

    /// From version 2: the session's consumers keep what they hold until it is back, or a time has passed.
    fn session_cut_off(&mut self, meta: &Meta, session: SessionRef, fx: &mut Effects) {
        if let Some(state) = self.sessions.get_mut(session) {
            state.suspected = true;
        }
        for key in self.consumers.of_session(session) {
            self.suspect(meta, key, fx);
        }
    }

    /// Version 1: one lost session stands for its whole node, and what is held there comes back at once.
    fn node_cut_off(&mut self, meta: &Meta, node: NodeId, fx: &mut Effects) {
        self.sessions.of_node(node).for_each(|(_, state)| state.suspected = true);
        let rule = self.return_rule(meta, true);
        for key in self.consumers.of_node(node) {
            if self.consumers.get(key).is_some_and(|consumer| consumer.suspected.is_none()) {
                self.return_all(key, &rule, fx);
                self.suspect(meta, key, fx);
                self.make_way(key, fx);
                self.remove_if_finished(meta, key, fx);
            }
        }
    }

    fn suspect(&mut self, meta: &Meta, key: ConsumerKey, fx: &mut Effects) {
        let Some(consumer) = self.consumers.get_mut(key) else {
            return;
        };
        if consumer.suspected.is_some() {
            return;
        }
        consumer.suspected = Some(meta.ts_ms);
        self.consumers.reschedule(key);
        if let Some(at_ms) = self.disconnected_deadline(key) {
            fx.push(Effect::Timer { key: TimerKey::ConsumerDisconnected(key), at_ms: Some(at_ms) });
        }
    }

    fn disconnected_deadline(&self, key: ConsumerKey) -> Option<u64> {
        let (timeout, single) = (self.config.consumer_disconnected_timeout_ms, self.config.single_active);
        self.consumers.get(key)?.disconnected_deadline(timeout, single)
    }

    /// Single active: a consumer that was cut off leaves its turn to others.
    fn make_way(&mut self, key: ConsumerKey, fx: &mut Effects) {
        if self.config.single_active && self.consumers.get(key).is_some_and(|c| c.attached()) {
            self.set_waiting(key, fx);
        }
    }

    /// The consumer's session is heard of again.
    pub(super) fn unsuspect(&mut self, key: ConsumerKey, fx: &mut Effects) {
        let Some(consumer) = self.consumers.get_mut(key) else {
            return;
        };
        if consumer.suspected.take().is_some() {
            fx.push(Effect::Timer { key: TimerKey::ConsumerDisconnected(key), at_ms: None });
            self.consumers.reschedule(key);
        }
    }

    pub(super) fn node_up(&mut self, node: NodeId, fx: &mut Effects) -> Reply {
        for (session, state) in self.sessions.of_node(node) {
            state.suspected = false;
            greet(session, state, fx);
        }
        for key in self.consumers.of_node(node) {
            self.unsuspect(key, fx);
            if let Some(consumer) = self.consumers.get(key) {
                remind(consumer, fx);
            }
        }
        Reply::Ok
    }

    pub(super) fn purge_nodes(&mut self, meta: &Meta, nodes: &[NodeId], fx: &mut Effects) -> Reply {
        for node in nodes {
            let sessions: Vec<_> = self.sessions.of_node(*node).map(|(session, _)| session).collect();
            for session in sessions {
                self.session_gone(meta, session, fx);
            }
        }
        Reply::Ok
    }

    pub(super) fn consumer_disconnected(&mut self, meta: &Meta, key: ConsumerKey, fx: &mut Effects) -> Reply {
        if meta.version < MV2 {
            return Reply::Unsupported;
        }
        match self.disconnected_deadline(key) {
            // Answered late, or not any more of interest.
            None => {}
            // It was back meanwhile, and is lost again since: too early.
            Some(at_ms) if at_ms > meta.ts_ms => {
                fx.push(Effect::Timer { key: TimerKey::ConsumerDisconnected(key), at_ms: Some(at_ms) });
            }
            Some(_) => {
                let rule = self.return_rule(meta, false);
                self.return_all(key, &rule, fx);
                self.make_way(key, fx);
                self.remove_if_finished(meta, key, fx);
            }
        }
        Reply::Ok
    }
}
