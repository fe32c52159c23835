//! What the queue shows of itself.

use super::*;

/// A message as it is handed out.
pub(super) fn shown(id: u64, msg: &Msg) -> Delivered {
    Delivered {
        msg_id: id,
        reference: msg.reference,
        acquired_count: msg.acquired,
        delivery_count: msg.carried + msg.failed,
        size: msg.size,
        annotations: (!msg.annotations.is_empty()).then(|| msg.annotations.clone().into()),
    }
}

fn sum<'a>(messages: impl IntoIterator<Item = &'a Msg>) -> (u64, u64) {
    messages.into_iter().fold((0, 0), |(count, bytes), msg| (count + 1, bytes + u64::from(msg.size)))
}

impl Model {
    fn dead(&self) -> impl Iterator<Item = &Msg> {
        let held = self.worker.iter().flat_map(|worker| worker.held.iter().map(|(.., msg)| msg));
        held.chain(self.discards.iter().map(|(_, msg)| msg))
    }

    fn held(&self) -> impl Iterator<Item = &Msg> {
        self.consumers.iter().flat_map(|c| c.held.iter().map(|held| &held.msg))
    }

    fn handed_out_next(&self) -> impl Iterator<Item = &Msg> {
        self.ready.iter().map(|(_, msg)| msg).chain(&self.returns)
    }

    /// Log indexes of all messages.
    pub fn live(&self) -> BTreeSet<u64> {
        let delayed = self.delayed.iter().map(|(_, msg)| msg);
        let all = self.handed_out_next().chain(delayed).chain(self.held()).chain(self.dead());
        all.map(|msg| msg.reference.index()).collect()
    }

    pub fn sessions(&self) -> Vec<SessionRef> {
        let mut all: Vec<_> = self.consumers.iter().map(|c| c.id.session).collect();
        all.extend(self.enqueuers.keys());
        all.sort();
        all.dedup();
        all
    }

    pub fn overview(&self) -> Overview {
        let (ready, bytes_ready) = sum(self.handed_out_next());
        let (delayed, bytes_delayed) = sum(self.delayed.iter().map(|(_, msg)| msg));
        let (unacked, bytes_unacked) = sum(self.held());
        let (dead, bytes_dead) = sum(self.dead());
        Overview {
            messages: ready + delayed + unacked,
            ready,
            ready_returned: self.returns.len() as u64,
            ready_high: self.ready.iter().filter(|(priority, _)| *priority >= 5).count() as u64,
            delayed,
            dead,
            unacked,
            bytes: bytes_ready + bytes_delayed + bytes_unacked,
            bytes_ready,
            bytes_unacked,
            bytes_dead,
            consumers: self.consumers.iter().filter(|c| c.attached() && c.clear()).count() as u64,
            publishers: self.enqueuers.len() as u64,
            last_active_ms: self.last_active.unwrap_or(0),
        }
    }

    pub fn expires_at(&self) -> Option<u64> {
        let expires = self.config.expires_ms?;
        let used = self.consumers.iter().any(|c| c.suspected.is_none());
        (!used).then(|| self.last_active.unwrap_or(0) + expires)
    }

    /// Attached consumers: key, status, and how many messages each holds.
    pub fn listed(&self) -> Vec<(ConsumerKey, ConsumerStatus, usize)> {
        let status = |c: &Con| match (c.suspected.is_some(), !c.timed_out.is_empty(), c.waiting) {
            (true, ..) => ConsumerStatus::Suspected,
            (_, true, _) => ConsumerStatus::TimedOut,
            (.., true) => ConsumerStatus::Waiting,
            (.., false) if self.config.single_active => ConsumerStatus::SingleActive,
            (.., false) => ConsumerStatus::Up,
        };
        self.consumers.iter().filter(|c| c.attached()).map(|c| (c.key, status(c), c.held.len())).collect()
    }

    /// Attached consumers, and whether each has its turn.
    pub fn turns(&self) -> BTreeMap<ConsumerKey, bool> {
        self.consumers.iter().filter(|c| c.attached()).map(|c| (c.key, !c.waiting)).collect()
    }
}
