//! The session's side of one queue: sequences publishes, keeps what is not applied yet, and resends it.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use warren_metastore::projections::QueueTarget;
use warren_proto::ids::{GroupId, NodeId, Reference, SessionRef};
use warren_queues::MsgIds;

use crate::queue::protocol::{EnqueueOutcome, QueueItem, QueueRequest, QueuedMessage, Settlement, ToQueue};

/// Requests without an answer after which the session reports itself blocked (`quorum_queue.commands_soft_limit`).
/// Everything that one read of the socket gives a queue is one request.
pub const REQUESTS_SOFT_LIMIT: usize = 32;
/// Bytes of bodies without an answer after which the session reports itself blocked.
pub const BYTES_SOFT_LIMIT: usize = 2 << 20;
/// Messages of one resent request; a long backlog of pending publishes goes out in several.
const RESEND_CHUNK: usize = 2048;
/// How long a publish may wait for a first leader before it is refused.
const FIRST_LEADER: Duration = Duration::from_secs(5);
/// Pending publishes and commands are sent again when nothing was heard for this long.
const RESEND_AFTER: Duration = Duration::from_secs(5);
/// Pause before asking for a leader again.
const RETRY_AFTER: Duration = Duration::from_millis(100);

/// Who answers: the consumer that the queue knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConsumerHandle {
    /// Tag at the queue.
    pub tag: Bytes,
    /// Key at the queue.
    pub key: Reference,
}

#[derive(Debug)]
struct PendingPublish {
    /// The confirm that is owed, if any.
    confirm: Option<u64>,
    message: QueuedMessage,
}

/// How far the queue knows its publisher.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Registration {
    /// The first publish makes it known.
    ByPublishing,
    /// It must be known before it publishes, since the queue may refuse.
    Needed,
    /// It was asked for, in a command of this correlation.
    Asked(u64),
    /// It is known.
    Done,
}

#[derive(Debug)]
struct PendingCommand {
    correlation: u64,
    request: QueueRequest,
}

#[derive(Debug)]
struct PendingSettlement {
    consumer: ConsumerHandle,
    settlement: Settlement,
    ids: MsgIds,
}

/// See the module's head.
#[derive(Debug)]
pub struct QueueClient {
    /// The queue.
    pub target: Arc<QueueTarget>,
    /// As whom it publishes; changes only if the queue forgot the enqueuer.
    pub enqueuer: SessionRef,
    session: SessionRef,
    leader: Option<NodeId>,
    /// Sequence number of the first pending publish.
    first_seq: u64,
    pending: VecDeque<PendingPublish>,
    /// How many of `pending`, from the back, were not sent yet.
    unsent: usize,
    pending_bytes: usize,
    /// Last sequence number of each request on its way.
    requests: VecDeque<u64>,
    commands: VecDeque<PendingCommand>,
    commands_unsent: usize,
    settlements: Vec<PendingSettlement>,
    /// The queue has applied something of this enqueuer.
    registered: bool,
    registration: Registration,
    /// The queue is over its limit: what is published now is refused.
    rejecting: bool,
    /// Whether it still is was asked, in a command of this correlation.
    rechecking: Option<u64>,
    rechecked: Instant,
    /// How often the first pending publish was sent without a refusal: each may have proposed it.
    attempts: u32,
    waiting_since: Option<Instant>,
    heard: Instant,
    retry_at: Option<Instant>,
    /// Rotates over members while nobody knows the leader.
    next_member: usize,
    /// The queue is gone; later publishes count as taken.
    pub gone: bool,
}

/// What [`QueueClient::enqueued`] and [`QueueClient::tick`] resolved: (confirm tag, taken).
pub type Resolutions<'a> = &'a mut dyn FnMut(u64, bool);

impl QueueClient {
    /// A client of `target` for `session`. `may_refuse`: the queue has a limit beyond which it refuses publishes, so that
    /// the first one waits until the queue has said that it takes them.
    pub fn new(target: Arc<QueueTarget>, session: SessionRef, may_refuse: bool, now: Instant) -> Self {
        QueueClient {
            target,
            enqueuer: session,
            session,
            leader: None,
            first_seq: 1,
            pending: VecDeque::new(),
            unsent: 0,
            pending_bytes: 0,
            requests: VecDeque::new(),
            commands: VecDeque::new(),
            commands_unsent: 0,
            settlements: Vec::new(),
            registered: false,
            registration: if may_refuse { Registration::Needed } else { Registration::ByPublishing },
            rejecting: false,
            rechecking: None,
            rechecked: now,
            attempts: 0,
            waiting_since: None,
            heard: now,
            retry_at: None,
            next_member: 0,
            gone: false,
        }
    }

    /// The queue's group.
    pub fn group(&self) -> GroupId {
        self.target.group
    }

    /// The leader this client last heard of.
    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// A node delivers for this queue; it leads, unless another is known to.
    pub fn heard_from(&mut self, node: NodeId) {
        self.leader.get_or_insert(node);
    }

    /// Whether the queue takes publishes now; what it does not take counts as refused.
    pub fn takes_publishes(&self) -> bool {
        !self.rejecting
    }

    /// The queue says whether it takes publishes.
    pub fn set_rejecting(&mut self, rejecting: bool) {
        self.rejecting = rejecting;
    }

    /// The queue knows the publisher. What waited for that is refused, or can be sent. False if nobody asked.
    pub fn registered(&mut self, correlation: u64, reject: bool, resolved: Resolutions<'_>) -> bool {
        if self.rechecking == Some(correlation) {
            self.rechecking = None;
            self.rejecting = reject;
            return true;
        }
        if self.registration != Registration::Asked(correlation) {
            return false;
        }
        self.registration = Registration::Done;
        self.registered = true;
        self.rejecting = reject;
        self.rechecked = self.heard;
        if reject {
            self.refuse_pending(resolved);
        }
        true
    }

    /// Word of the queue's limit may have been lost: asks again, with the next request.
    pub fn recheck(&mut self, correlation: u64, now: Instant) {
        // A limit may have come by a policy, after the first publish had made it known.
        let may_refuse = self.registration == Registration::Done || (self.rejecting && self.may_publish());
        if may_refuse && self.rechecking.is_none() && !self.gone {
            self.rechecking = Some(correlation);
            self.rechecked = now;
            self.command(correlation, QueueRequest::Register);
        }
    }

    /// Whether it is time to ask whether the queue still refuses.
    pub fn doubts_refusal(&self, now: Instant) -> bool {
        self.rejecting && now.duration_since(self.rechecked) >= RESEND_AFTER
    }

    /// Whether publishes are refused at the queue's word.
    pub fn is_rejecting(&self) -> bool {
        self.rejecting && !self.gone
    }

    fn refuse_pending(&mut self, resolved: Resolutions<'_>) {
        for publish in self.pending.drain(..) {
            if let Some(tag) = publish.confirm {
                resolved(tag, false);
            }
        }
        self.unsent = 0;
        self.pending_bytes = 0;
        self.requests.clear();
        if self.is_idle() {
            self.waiting_since = None;
        }
    }

    fn may_publish(&self) -> bool {
        matches!(self.registration, Registration::ByPublishing | Registration::Done)
    }

    /// Adds a publish to the next request.
    pub fn publish(&mut self, message: QueuedMessage, confirm: Option<u64>) {
        self.pending_bytes += message.len();
        self.pending.push_back(PendingPublish { confirm, message });
        self.unsent += 1;
    }

    /// Adds the answer to a delivery to the next request; answers of one kind to one consumer become one command.
    pub fn settle(&mut self, consumer: &ConsumerHandle, settlement: Settlement, msg_id: u64) {
        // Acknowledgements commute, so they may join an earlier run; the order of requeues is the client's.
        let joins = |p: &&mut PendingSettlement| p.settlement == settlement && p.consumer == *consumer;
        let run = match settlement {
            Settlement::Ack => self.settlements.iter_mut().rev().find(joins),
            Settlement::Requeue { .. } | Settlement::Discard { .. } => self.settlements.last_mut().filter(joins),
        };
        match run {
            Some(run) => run.ids.push(msg_id),
            None => {
                let mut ids = MsgIds::default();
                ids.push(msg_id);
                self.settlements.push(PendingSettlement { consumer: consumer.clone(), settlement, ids });
            }
        }
    }

    /// Adds a command to the next request and keeps it until it is applied. It must be safe to apply twice.
    pub fn command(&mut self, correlation: u64, request: QueueRequest) {
        self.commands.push_back(PendingCommand { correlation, request });
        self.commands_unsent += 1;
    }

    /// Whether the end of this subscription is on its way.
    pub fn is_cancelling(&self, tag: &Bytes) -> bool {
        self.commands.iter().any(|c| matches!(&c.request, QueueRequest::Cancel { tag: ending } if ending == tag))
    }

    /// The tag is in use again: a late copy of its cancel must not end the new subscription.
    pub fn keep(&mut self, tag: &Bytes) {
        let unsent_from = self.commands.len() - self.commands_unsent;
        let (mut at, mut unsent) = (0, self.commands_unsent);
        self.commands.retain(|c| {
            let ends = matches!(&c.request, QueueRequest::Cancel { tag: ending } if ending == tag);
            unsent -= usize::from(ends && at >= unsent_from);
            at += 1;
            !ends
        });
        self.commands_unsent = unsent;
    }

    /// Whether nothing waits for the queue's answer.
    pub fn is_idle(&self) -> bool {
        self.pending.is_empty() && self.commands.is_empty() && self.settlements.is_empty()
    }

    /// Whether the session should stop taking publishes for this queue.
    pub fn is_blocked(&self) -> bool {
        self.requests.len() >= REQUESTS_SOFT_LIMIT || self.pending_bytes >= BYTES_SOFT_LIMIT
    }

    /// What was added since the last call, as one request; `None` if nothing was or no leader is known to send it to.
    pub fn flush(
        &mut self,
        now: Instant,
        find_leader: &mut dyn FnMut(&QueueTarget, &mut usize) -> Option<NodeId>,
        next_correlation: &mut dyn FnMut() -> u64,
        out: &mut Vec<(NodeId, ToQueue)>,
    ) {
        for run in std::mem::take(&mut self.settlements) {
            let request = QueueRequest::Settle { key: run.consumer.key, settlement: run.settlement, ids: run.ids };
            self.command(next_correlation(), request);
        }
        if self.unsent > 0 && self.registration == Registration::Needed {
            let correlation = next_correlation();
            self.registration = Registration::Asked(correlation);
            self.command(correlation, QueueRequest::Register);
        }
        if self.unsent == 0 && self.commands_unsent == 0 {
            return;
        }
        if self.waiting_since.is_none() {
            self.waiting_since = Some(now);
            self.heard = now;
        }
        let leader = self.leader.or_else(|| find_leader(&self.target, &mut self.next_member));
        let Some(leader) = leader else {
            self.retry_at.get_or_insert(now + RETRY_AFTER);
            return;
        };
        if self.retry_at.is_some() {
            // A refusal is being waited out: what is new goes with the retry, or it would overtake.
            return;
        }
        self.leader = Some(leader);
        let mut items = Vec::with_capacity(2);
        if self.unsent > 0 && self.may_publish() {
            let start = self.pending.len() - self.unsent;
            let first_seq = self.first_seq + start as u64;
            let messages = self.pending.range(start..).map(|p| p.message.clone()).collect();
            items.push(QueueItem::Publishes { first_seq, messages });
            self.requests.push_back(self.first_seq + self.pending.len() as u64 - 1);
            self.unsent = 0;
            self.attempts += u32::from(start == 0);
        }
        let start = self.commands.len() - self.commands_unsent;
        for command in self.commands.range(start..) {
            items.push(QueueItem::Command { correlation: command.correlation, request: command.request.clone() });
        }
        self.commands_unsent = 0;
        if !items.is_empty() {
            self.push(leader, items, out);
        }
    }

    fn push(&self, leader: NodeId, items: Vec<QueueItem>, out: &mut Vec<(NodeId, ToQueue)>) {
        // Publishes are the enqueuer's, commands the session's; they differ only after the queue forgot the enqueuer.
        if self.enqueuer == self.session {
            out.push((leader, ToQueue { group: self.group(), from: self.session, items }));
            return;
        }
        let is_enqueuers = |item: &QueueItem| match item {
            QueueItem::Publishes { .. } => true,
            QueueItem::Command { request, .. } => *request == QueueRequest::Register,
            _ => false,
        };
        let (publishes, commands): (Vec<_>, Vec<_>) = items.into_iter().partition(is_enqueuers);
        for (from, items) in [(self.enqueuer, publishes), (self.session, commands)] {
            if !items.is_empty() {
                out.push((leader, ToQueue { group: self.group(), from, items }));
            }
        }
    }

    /// Sends everything that is pending again, in order.
    pub fn resend(&mut self, leader: NodeId, now: Instant, out: &mut Vec<(NodeId, ToQueue)>) {
        self.leader = Some(leader);
        self.retry_at = None;
        self.heard = now;
        let publishes = if self.may_publish() { self.pending.len() } else { 0 };
        self.unsent = self.pending.len() - publishes;
        self.commands_unsent = 0;
        self.requests.clear();
        let mut at = 0;
        while at < publishes {
            let end = (at + RESEND_CHUNK).min(publishes);
            let messages = self.pending.range(at..end).map(|p| p.message.clone()).collect();
            let first_seq = self.first_seq + at as u64;
            self.requests.push_back(self.first_seq + end as u64 - 1);
            self.attempts += u32::from(at == 0);
            self.push(leader, vec![QueueItem::Publishes { first_seq, messages }], out);
            at = end;
        }
        let items: Vec<_> = self
            .commands
            .iter()
            .map(|c| QueueItem::Command { correlation: c.correlation, request: c.request.clone() })
            .collect();
        if !items.is_empty() {
            self.push(leader, items, out);
        }
    }

    /// The queue applied publishes `first..=last`. True if everything pending must be sent again.
    pub fn enqueued(
        &mut self,
        first: u64,
        last: u64,
        outcome: EnqueueOutcome,
        leader: NodeId,
        now: Instant,
        resolved: Resolutions<'_>,
    ) -> bool {
        self.heard = now;
        match outcome {
            EnqueueOutcome::Enqueued | EnqueueOutcome::Rejected => {
                self.registered = true;
                if last < self.first_seq {
                    // Known already: a late word of whoever led then says nothing about now.
                    return false;
                }
                let mut resend = false;
                if first > self.first_seq {
                    // An answer to later publishes while earlier ones have none: theirs was lost on the way, and they
                    // were applied before, or these could not have been.
                    resend = true;
                } else {
                    while self.first_seq <= last {
                        let Some(publish) = self.pending.pop_front() else { break };
                        self.first_seq += 1;
                        self.pending_bytes -= publish.message.len();
                        self.unsent = self.unsent.min(self.pending.len());
                        if let Some(tag) = publish.confirm {
                            resolved(tag, outcome == EnqueueOutcome::Enqueued);
                        }
                    }
                }
                while self.requests.front().is_some_and(|last| *last < self.first_seq) {
                    self.requests.pop_front();
                }
                if self.is_idle() {
                    self.waiting_since = None;
                }
                let moved = self.leader != Some(leader);
                self.leader = Some(leader);
                resend || (moved && !self.pending.is_empty())
            }
            EnqueueOutcome::OutOfSequence => {
                // Sent in order, so an earlier request was refused or lost on the way. One resend repairs it; the
                // answers to the others that were on their way say the same again and must not start one each.
                if last >= self.first_seq && self.retry_at.is_none() {
                    self.retry_at = Some(now + RETRY_AFTER);
                }
                false
            }
            EnqueueOutcome::UnknownEnqueuer => last >= self.first_seq,
            EnqueueOutcome::Unsupported => {
                self.retry_at.get_or_insert(now + RETRY_AFTER * 10);
                false
            }
        }
    }

    /// Publishes from now on under another identity, because the queue forgot the old one.
    pub fn renew(&mut self, enqueuer: SessionRef) {
        self.enqueuer = enqueuer;
        self.first_seq = 1;
        self.registered = false;
        self.attempts = 0;
        if self.registration != Registration::ByPublishing {
            self.registration = Registration::Needed;
            self.unsent = self.pending.len();
        }
    }

    /// A command was applied.
    pub fn replied(&mut self, correlation: u64, leader: NodeId, now: Instant) {
        self.heard = now;
        self.leader = Some(leader);
        if let Some(at) = self.commands.iter().position(|c| c.correlation == correlation) {
            self.commands.remove(at);
            self.commands_unsent = self.commands_unsent.min(self.commands.len());
        }
        if self.is_idle() {
            self.waiting_since = None;
        }
    }

    /// The node that was asked cannot append. True if `leader` should be asked at once.
    pub fn refused(
        &mut self,
        leader: Option<NodeId>,
        asked: NodeId,
        busy: bool,
        first_seq: Option<u64>,
        now: Instant,
    ) -> bool {
        self.heard = now;
        if first_seq.is_some_and(|seq| seq <= self.first_seq) {
            // Nothing of what is pending was appended by this attempt. Earlier ones may have been.
            self.attempts = self.attempts.saturating_sub(1);
        }
        match leader {
            // Of several refusals on their way the first moves everything; the others name a leader that has it.
            Some(leader) if leader != asked && !busy => {
                let moved = self.leader != Some(leader);
                self.leader = Some(leader);
                moved
            }
            _ => {
                if !busy {
                    self.leader = None;
                }
                self.retry_at.get_or_insert(now + RETRY_AFTER);
                false
            }
        }
    }

    /// Time passed: answers whether to send everything again, and refuses publishes that never found a leader.
    pub fn tick(&mut self, now: Instant, resolved: Resolutions<'_>) -> bool {
        if self.is_idle() {
            return false;
        }
        let waited = self.waiting_since.is_some_and(|since| now.duration_since(since) >= FIRST_LEADER);
        let unasked = self.leader.is_none() || matches!(self.registration, Registration::Asked(_));
        if waited && !self.registered && self.attempts == 0 && unasked && !self.pending.is_empty() {
            self.refuse_pending(resolved);
            self.waiting_since = None;
        }
        if self.retry_at.is_some_and(|at| now >= at) {
            return true;
        }
        now.duration_since(self.heard) >= RESEND_AFTER
    }

    /// Where to send when no leader is known.
    pub fn find_leader(
        &mut self,
        find_leader: &mut dyn FnMut(&QueueTarget, &mut usize) -> Option<NodeId>,
    ) -> Option<NodeId> {
        find_leader(&self.target, &mut self.next_member)
    }

    /// Nobody to send to: try again soon.
    pub fn retry_later(&mut self, now: Instant) {
        self.retry_at = Some(now + RETRY_AFTER);
    }

    /// Answers on their way are lost: send what is pending again soon.
    pub fn hurry(&mut self, now: Instant) {
        if !self.is_idle() {
            self.retry_later(now);
        }
    }

    /// The queue is gone: what is pending counts as taken.
    pub fn end(&mut self, resolved: Resolutions<'_>) {
        self.gone = true;
        for publish in self.pending.drain(..) {
            if let Some(tag) = publish.confirm {
                resolved(tag, true);
            }
        }
        self.unsent = 0;
        self.pending_bytes = 0;
        self.requests.clear();
        self.commands.clear();
        self.commands_unsent = 0;
        self.settlements.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use warren_metastore::machine::{Machine, Meta};
    use warren_metastore::projections::Projections;
    use warren_metastore::records::{Queue, QueueKind, Vhost};
    use warren_proto::ids::MachineVersion;

    const A: NodeId = NodeId(1);
    const B: NodeId = NodeId(2);

    fn target() -> Arc<QueueTarget> {
        let mut machine = Machine::new();
        let queue = Queue {
            vhost: "/".into(),
            name: "q".into(),
            kind: QueueKind::Quorum,
            group: GroupId(7),
            ..Queue::default()
        };
        for (index, write) in [Vhost::named("/").create(None), queue.create_or_get()].into_iter().enumerate() {
            let reference = Reference::new(index as u64 + 1, 0);
            let meta = Meta { reference, ts_ms: 0, version: MachineVersion(1) };
            machine.apply(meta, &write.to_bytes(None)).reply.unwrap();
        }
        let projections = Projections::new();
        projections.install(machine.tree(), machine.applied());
        let target = projections.load().queue("/", "q").cloned();
        target.unwrap()
    }

    struct Fixture {
        client: QueueClient,
        now: Instant,
        sent: Vec<(NodeId, ToQueue)>,
        resolved: Vec<(u64, bool)>,
    }

    impl Fixture {
        fn new() -> Self {
            let now = Instant::now();
            let client = QueueClient::new(target(), SessionRef::default(), false, now);
            Fixture { client, now, sent: Vec::new(), resolved: Vec::new() }
        }

        fn publish(&mut self, confirms: std::ops::RangeInclusive<u64>) {
            for tag in confirms {
                let message = QueuedMessage {
                    head: Bytes::from_static(b"h"),
                    body: Bytes::from_static(b"b"),
                    ..QueuedMessage::default()
                };
                self.client.publish(message, Some(tag));
            }
        }

        fn flush(&mut self, leader: Option<NodeId>) {
            self.client.flush(self.now, &mut |_, _| leader, &mut || 1, &mut self.sent);
        }

        fn enqueued(&mut self, first: u64, last: u64, outcome: EnqueueOutcome) -> bool {
            let resolved = &mut self.resolved;
            self.client.enqueued(first, last, outcome, A, self.now, &mut |tag, taken| resolved.push((tag, taken)))
        }

        fn tick(&mut self, later: Duration) -> bool {
            self.now += later;
            let resolved = &mut self.resolved;
            self.client.tick(self.now, &mut |tag, taken| resolved.push((tag, taken)))
        }

        /// First sequence number and number of messages of each request sent since the last call.
        fn publishes(&mut self) -> Vec<(NodeId, u64, usize)> {
            let mut all = Vec::new();
            for (node, to) in self.sent.drain(..) {
                for item in to.items {
                    if let QueueItem::Publishes { first_seq, messages } = item {
                        all.push((node, first_seq, messages.len()));
                    }
                }
            }
            all
        }
    }

    #[test]
    fn a_queue_that_may_refuse_is_asked_before_the_first_publish_is_sent() {
        let mut f = Fixture::new();
        f.client = QueueClient::new(target(), SessionRef::default(), true, f.now);
        f.publish(1..=2);
        f.flush(Some(A));
        assert!(f.publishes().is_empty());
        // A resend asks again and sends no more than that.
        f.client.resend(B, f.now, &mut f.sent);
        assert!(f.publishes().is_empty());
        let resolved = &mut f.resolved;
        assert!(!f.client.registered(7, false, &mut |tag, taken| resolved.push((tag, taken))));
        assert!(f.client.registered(1, false, &mut |tag, taken| resolved.push((tag, taken))));
        f.client.replied(1, B, f.now);
        f.flush(None);
        assert_eq!(f.publishes(), [(B, 1, 2)]);
        assert!(f.resolved.is_empty());
    }

    #[test]
    fn a_refusal_whose_end_was_not_heard_is_asked_about_however_the_publisher_became_known() {
        let mut f = Fixture::new();
        f.publish(1..=1);
        f.flush(Some(A));
        f.enqueued(1, 1, EnqueueOutcome::Enqueued);
        f.client.set_rejecting(true);
        let later = f.now + RESEND_AFTER;
        assert!(f.client.doubts_refusal(later));
        f.client.recheck(5, later);
        assert!(!f.client.doubts_refusal(later) && !f.client.is_idle());
        let resolved = &mut f.resolved;
        assert!(f.client.registered(5, false, &mut |tag, taken| resolved.push((tag, taken))));
        assert!(f.client.takes_publishes());
    }

    #[test]
    fn a_queue_that_refuses_gets_nothing() {
        let mut f = Fixture::new();
        f.client = QueueClient::new(target(), SessionRef::default(), true, f.now);
        f.publish(1..=2);
        f.flush(Some(A));
        let resolved = &mut f.resolved;
        assert!(f.client.registered(1, true, &mut |tag, taken| resolved.push((tag, taken))));
        f.client.replied(1, A, f.now);
        assert_eq!(f.resolved, [(1, false), (2, false)]);
        assert!(f.client.is_idle() && !f.client.takes_publishes());
        f.client.set_rejecting(false);
        f.publish(3..=3);
        f.flush(Some(A));
        assert_eq!(f.publishes(), [(A, 1, 1)]);
    }

    #[test]
    fn publishes_are_sent_once_in_order_and_confirmed_when_applied() {
        let mut f = Fixture::new();
        f.publish(1..=3);
        f.flush(Some(A));
        f.publish(4..=4);
        f.flush(Some(A));
        assert_eq!(f.publishes(), [(A, 1, 3), (A, 4, 1)]);
        assert!(!f.enqueued(1, 4, EnqueueOutcome::Enqueued));
        assert_eq!(f.resolved, [(1, true), (2, true), (3, true), (4, true)]);
        assert!(f.client.is_idle());
        assert!(!f.tick(RESEND_AFTER * 2));
    }

    #[test]
    fn a_new_leader_gets_everything_that_is_pending_and_a_second_answer_confirms_nothing() {
        let mut f = Fixture::new();
        f.publish(1..=5);
        f.flush(Some(A));
        assert!(!f.enqueued(1, 2, EnqueueOutcome::Enqueued));
        f.sent.clear();
        f.client.resend(B, f.now, &mut f.sent);
        assert_eq!(f.publishes(), [(B, 3, 3)]);
        assert!(!f.enqueued(1, 2, EnqueueOutcome::Enqueued));
        f.enqueued(3, 5, EnqueueOutcome::Enqueued);
        f.enqueued(3, 5, EnqueueOutcome::Enqueued);
        assert_eq!(f.resolved.len(), 5);
    }

    #[test]
    fn an_answer_to_later_publishes_only_makes_the_earlier_ones_be_asked_for() {
        let mut f = Fixture::new();
        f.publish(1..=4);
        f.flush(Some(A));
        assert!(f.enqueued(3, 4, EnqueueOutcome::Enqueued));
        assert!(f.resolved.is_empty());
    }

    #[test]
    fn of_several_refusals_that_name_the_leader_the_first_moves_everything() {
        let mut f = Fixture::new();
        f.publish(1..=2);
        f.flush(Some(A));
        assert!(f.client.refused(Some(B), A, false, Some(1), f.now));
        assert!(!f.client.refused(Some(B), A, false, Some(2), f.now));
    }

    #[test]
    fn a_first_publish_that_finds_no_leader_is_refused_after_five_seconds() {
        let mut f = Fixture::new();
        f.publish(1..=2);
        f.flush(None);
        assert!(f.tick(Duration::from_secs(4)));
        assert!(f.resolved.is_empty());
        f.tick(Duration::from_secs(2));
        assert_eq!(f.resolved, [(1, false), (2, false)]);
        assert!(f.client.is_idle());
    }

    #[test]
    fn a_first_publish_that_an_unanswered_attempt_may_have_proposed_is_not_refused() {
        let mut f = Fixture::new();
        f.publish(1..=1);
        f.flush(Some(A));
        // The leader was cut off with it. Asked again, it knows that it leads no more.
        assert!(f.tick(RESEND_AFTER));
        f.client.resend(A, f.now, &mut f.sent);
        f.client.refused(None, A, false, Some(1), f.now);
        f.tick(FIRST_LEADER * 2);
        assert!(f.resolved.is_empty());
        assert!(!f.enqueued(1, 1, EnqueueOutcome::Enqueued));
        assert_eq!(f.resolved, [(1, true)]);
    }

    #[test]
    fn a_publisher_that_the_queue_knows_waits_for_a_leader_instead() {
        let mut f = Fixture::new();
        f.publish(1..=1);
        f.flush(Some(A));
        f.enqueued(1, 1, EnqueueOutcome::Enqueued);
        f.resolved.clear();
        f.publish(2..=2);
        f.flush(Some(A));
        assert!(!f.client.refused(None, A, false, Some(2), f.now));
        assert!(f.tick(Duration::from_secs(60)));
        assert!(f.resolved.is_empty());
        f.client.resend(B, f.now, &mut f.sent);
        assert_eq!(f.publishes().last(), Some(&(B, 2, 1)));
    }

    #[test]
    fn publishes_to_a_queue_that_is_deleted_count_as_taken() {
        let mut f = Fixture::new();
        f.publish(1..=2);
        f.flush(Some(A));
        let resolved = &mut f.resolved;
        f.client.end(&mut |tag, taken| resolved.push((tag, taken)));
        assert_eq!(f.resolved, [(1, true), (2, true)]);
        assert!(f.client.is_idle() && f.client.gone);
    }

    #[test]
    fn acknowledgements_of_one_consumer_become_one_command_and_requeues_keep_their_order() {
        let mut f = Fixture::new();
        let one = ConsumerHandle { tag: Bytes::from_static(b"1"), key: Reference(1) };
        let two = ConsumerHandle { tag: Bytes::from_static(b"2"), key: Reference(2) };
        for id in 0..4 {
            f.client.settle(&one, Settlement::Ack, id);
            f.client.settle(&two, Settlement::Ack, id);
        }
        f.client.settle(&one, Settlement::Requeue { failed: false }, 9);
        f.client.settle(&two, Settlement::Requeue { failed: false }, 9);
        f.client.settle(&one, Settlement::Requeue { failed: false }, 8);
        f.flush(Some(A));
        let keys: Vec<_> = f
            .sent
            .iter()
            .flat_map(|(_, to)| &to.items)
            .filter_map(|item| match item {
                QueueItem::Command { request: QueueRequest::Settle { key, ids, .. }, .. } => {
                    Some((key.0, ids.runs().iter().map(|r| (r.start, r.count)).collect::<Vec<_>>()))
                }
                _ => None,
            })
            .collect();
        let expected = [(1, vec![(0, 4)]), (2, vec![(0, 4)]), (1, vec![(9, 1)]), (2, vec![(9, 1)]), (1, vec![(8, 1)])];
        assert_eq!(keys, expected);
    }

    #[test]
    fn too_much_without_an_answer_blocks_and_the_answer_unblocks() {
        let mut f = Fixture::new();
        for tag in 1..=REQUESTS_SOFT_LIMIT as u64 {
            f.publish(tag..=tag);
            f.flush(Some(A));
        }
        assert!(f.client.is_blocked());
        f.enqueued(1, REQUESTS_SOFT_LIMIT as u64, EnqueueOutcome::Enqueued);
        assert!(!f.client.is_blocked());
    }

    #[test]
    fn a_tag_that_is_used_again_is_not_ended_by_an_old_cancel() {
        let mut f = Fixture::new();
        let tag = Bytes::from_static(b"t");
        let cancel = |tag: &Bytes| QueueRequest::Cancel { tag: tag.clone() };
        f.client.command(1, cancel(&tag));
        f.flush(Some(A));
        f.client.command(2, cancel(&Bytes::from_static(b"other")));
        f.client.command(3, cancel(&tag));
        assert!(f.client.is_cancelling(&tag));
        f.client.keep(&tag);
        assert!(!f.client.is_cancelling(&tag));
        f.sent.clear();
        f.flush(Some(A));
        f.client.resend(B, f.now, &mut f.sent);
        let sent: Vec<_> = f
            .sent
            .iter()
            .flat_map(|(node, to)| to.items.iter().map(move |item| (*node, item)))
            .filter_map(|(node, item)| match item {
                QueueItem::Command { correlation, .. } => Some((node, *correlation)),
                _ => None,
            })
            .collect();
        assert_eq!(sent, [(A, 2), (B, 2)]);
    }
}
