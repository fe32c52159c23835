//! What a new leader, or a member that got its state from a snapshot, has to do.

use warren_proto::ids::{NodeId, SessionRef};

use super::consumer::{Consumer, delivered};
use super::effects::{Delivered, Effect, Effects, TimerKey};
use super::state::Queue;
use crate::consumer::ConsumerRef;
use crate::effects::Deliver;
use crate::sessions::Session;

impl Queue {
    /// The effects that follow from the state alone: the last leader's may have been lost with it.
    pub fn become_leader(&self, fx: &mut Effects) {
        for (session, state) in self.sessions.iter() {
            greet(*session, state, fx);
        }
        self.arm_timers(fx);
        let armed = [(TimerKey::ExpireMessages, self.armed_expiry), (TimerKey::ConsumerDeadlines, self.armed_deadline)];
        for (key, at) in armed {
            if let Some(at) = at {
                fx.push(Effect::Timer { key, at_ms: Some(at) });
            }
        }
        for consumer in self.consumers.iter().filter(|c| !c.timed_out.is_empty()) {
            // It waits for an answer that its session may not know it owes.
            fx.push(Effect::Released {
                session: consumer.seat.id.session,
                tag: consumer.seat.id.tag.clone(),
                key: consumer.seat.key,
                ids: consumer.timed_out.iter().copied().collect(),
                dequeue: false,
            });
        }
        if self.config.at_least_once() {
            fx.push(Effect::DlxWorker(true));
        }
    }

    /// Sets every timer of a consumer that is cut off to when it is due.
    pub(super) fn arm_timers(&self, fx: &mut Effects) {
        let (timeout, single) = (self.config.consumer_disconnected_timeout_ms, self.config.single_active);
        for consumer in self.consumers.iter() {
            if let Some(at_ms) = consumer.disconnected_deadline(timeout, single) {
                fx.push(Effect::Timer { key: TimerKey::ConsumerDisconnected(consumer.seat.key), at_ms: Some(at_ms) });
            }
        }
    }

    /// Hands all that a node's consumers hold to them again: their member was restored from a snapshot and has not
    /// seen it being handed out. Sessions drop what they know.
    pub fn redeliver(&self, node: NodeId, fx: &mut Effects) {
        for consumer in self.consumers.iter().filter(|c| c.seat.id.session.node == node && !c.held.is_empty()) {
            fx.push(Effect::Deliver(Deliver {
                session: consumer.seat.id.session,
                tag: consumer.seat.id.tag.clone(),
                key: consumer.seat.key,
                messages: held(consumer).collect(),
            }));
        }
    }

    /// What a consumer holds, from message id `from` on, ascending: for a session that missed a delivery.
    pub fn held(&self, consumer: &ConsumerRef, from: u64) -> impl Iterator<Item = Delivered> {
        let consumer = self.consumers.key_of(consumer).and_then(|key| self.consumers.get(key));
        consumer.into_iter().flat_map(held).filter(move |message| message.msg_id >= from)
    }
}

/// Tells a session that this is the leader, and whether its publishes are to be refused: it believes that they are not until
/// it is told.
pub(super) fn greet(session: SessionRef, state: &Session, fx: &mut Effects) {
    fx.push(Effect::Monitor(session));
    fx.push(Effect::LeaderChange(session));
    if state.enqueuer.is_some_and(|enqueuer| enqueuer.blocked) {
        fx.push(Effect::QueueStatus { session, reject: true });
    }
}

fn held(consumer: &Consumer) -> impl Iterator<Item = Delivered> {
    consumer.held.iter().map(|(msg_id, message)| delivered(msg_id, message))
}
