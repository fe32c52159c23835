//! A member of a queue's group: the machine, and what its leader does about the machine's effects.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::RangeInclusive;

use bytes::Bytes;
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::{GroupId, MachineVersion, NodeId, Reference, SessionRef};
use warren_queues::quorum::{
    Command, ConsumerStatus, Decoder, Delivered, Effect, Effects, Encoder, Enqueue, MV1, Meta, Queue, Reply, TimerKey,
    Traits, stored_message,
};
use warren_queues::{ConsumerId, ConsumerRef, Deliver, MsgIds, Origin, SessionLoss, StoredMessage};
use warren_raft::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, Role, StateMachine};

use super::dead_letters::Worker;
use super::{Desk, Said};
use crate::judge::Departures;
use crate::message::{Ask, Handed, Outcome, QueueEvent, ToSession, uid_in};
use crate::plan::Defect;
use crate::queues::QueuePlan;
use crate::random::digest;

/// How often a leader asks after the sessions that it knows.
const RECHECK_MS: u64 = 2_000;
/// The header of every message.
const HEAD: &[u8] = b"sim";

/// A command whose answer somebody waits for.
#[derive(Debug, Clone, Copy)]
struct Awaited {
    position: u16,
    session: SessionRef,
    correlation: u64,
}

#[derive(Debug)]
struct AwaitedEntry {
    index: u64,
    term: u64,
    replies: Vec<Awaited>,
}

/// The queue's machine on one node.
pub struct QueueMember {
    pub(super) desk: Desk,
    pub(super) group: GroupId,
    pub(super) queue: Queue,
    pub(super) fx: Effects,
    /// Where dead messages go.
    pub(super) dead_letters_to: Option<GroupId>,
    /// Leader: takes them there, if they are kept until they have arrived.
    pub(super) worker: Option<Worker>,
    /// Added to the batch that is being collected.
    staged: Vec<Awaited>,
    staged_publishers: Vec<SessionRef>,
    awaited: VecDeque<AwaitedEntry>,
    /// Leader: sessions with business here.
    monitored: BTreeSet<SessionRef>,
    timers: BTreeMap<TimerKey, u64>,
    /// Leader: which nodes it has said can be reached.
    told: BTreeMap<NodeId, bool>,
    /// Leader: nodes whose own member delivers to their sessions.
    delivering: Vec<NodeId>,
    /// Leader: commands that follow from what happened outside, to be appended with the next tick.
    pub(super) owed: Vec<Command>,
    rechecked_at: u64,
    force_snapshot: bool,
}

impl QueueMember {
    pub(super) fn new(group: GroupId, plan: &QueuePlan, desk: Desk) -> Self {
        QueueMember {
            desk,
            group,
            queue: Queue::new(plan.config.clone()),
            fx: Effects::new(),
            dead_letters_to: plan.dead_letters_to,
            worker: None,
            staged: Vec::new(),
            staged_publishers: Vec::new(),
            awaited: VecDeque::new(),
            monitored: BTreeSet::new(),
            timers: BTreeMap::new(),
            told: BTreeMap::new(),
            delivering: Vec::new(),
            owed: Vec::new(),
            rechecked_at: 0,
            force_snapshot: false,
        }
    }

    /// The replicated state.
    pub fn state(&self) -> &Queue {
        &self.queue
    }

    pub(super) fn digest(&self) -> u64 {
        self.queue.digest()
    }

    pub(super) fn check(&self) -> Result<(), String> {
        self.queue.check_invariants()
    }

    fn say(&self, session: SessionRef, event: QueueEvent) {
        let said = ToSession { session, group: self.group, from: self.desk.node, event };
        self.desk.out.lock().push(Said::ToSession(said));
    }

    pub(super) fn append(&self, command: &Command, out: &mut BatchBuilder) -> Option<u16> {
        Encoder::for_group(out.effective()).encode(command, out).ok()
    }

    fn is_down(&self, session: SessionRef) -> bool {
        self.desk.down.lock().contains(&session.node)
    }

    /// Carries out what the machine asked for. Each member delivers to the sessions of its own node; all else, also
    /// deliveries to nodes without a member that keeps up, is the leader's.
    fn perform(&mut self, cx: &GroupCx<'_>) {
        let mut fx = std::mem::take(&mut self.fx);
        let leads = cx.role == Role::Leader;
        for effect in fx.drain() {
            match effect {
                Effect::Deliver(deliver) => {
                    let node = deliver.session.node;
                    if node == self.desk.node || (leads && !self.delivering.contains(&node)) {
                        self.deliver(&deliver, cx);
                    }
                }
                Effect::ForceSnapshot => self.force_snapshot = true,
                _ if !leads => {}
                Effect::Monitor(session) => {
                    self.monitored.insert(session);
                    if self.is_down(session) {
                        self.owed.push(Command::SessionDown { session, loss: SessionLoss::NoConnection });
                    }
                }
                Effect::Demonitor(session) => {
                    self.monitored.remove(&session);
                }
                Effect::LeaderChange(session) => self.say(session, QueueEvent::LeaderChanged),
                Effect::Timer { key, at_ms: Some(at) } => {
                    self.timers.insert(key, at);
                }
                Effect::Timer { key, at_ms: None } => {
                    self.timers.remove(&key);
                }
                Effect::DeadLetter { messages, .. } => self.bury(&messages, cx),
                Effect::DlxWorker(wanted) => self.employ(wanted, cx),
                Effect::DlxDeliver { session, messages } => self.employ_with(session, messages, cx),
                Effect::QueueStatus { session, reject } => self.say(session, QueueEvent::Status { reject }),
                Effect::Released { session, key, ids, dequeue: false, .. } => {
                    self.say(session, QueueEvent::Released { key, ids });
                }
                // For figures; and for what simulated consumers do not ask for.
                Effect::Dropped { .. }
                | Effect::Kept { .. }
                | Effect::CreditReply(_)
                | Effect::ConsumerActive { .. }
                | Effect::Released { .. } => {}
            }
        }
        self.fx = fx;
    }

    fn deliver(&self, deliver: &Deliver<Delivered>, cx: &GroupCx<'_>) {
        let messages = self.handed(&deliver.messages, cx);
        if messages.is_empty() {
            return;
        }
        let event = QueueEvent::Deliver { key: deliver.key, messages, again: false };
        // Whoever does not know the consumer tells the leader.
        let from = cx.leader.unwrap_or(self.desk.node);
        let said = ToSession { session: deliver.session, group: self.group, from, event };
        self.desk.out.lock().push(Said::ToSession(said));
    }

    /// Puts into the log which of the sessions' nodes can be reached, where this leader has not said so yet. A change
    /// that comes while nobody leads is told to no one, so it is compared again by every leader and on every tick.
    fn watch_nodes(&mut self, out: &mut BatchBuilder) {
        let down = self.desk.down.lock().clone();
        let nodes: BTreeSet<NodeId> = self.monitored.iter().map(|s| s.node).collect();
        for node in nodes {
            let up = !down.contains(&node);
            if self.told.insert(node, up) == Some(up) {
                continue;
            }
            if up {
                self.append(&Command::NodeUp { node }, out);
            } else {
                for session in self.monitored.iter().filter(|s| s.node == node) {
                    let command = Command::SessionDown { session: *session, loss: SessionLoss::NoConnection };
                    self.append(&command, out);
                }
            }
        }
    }

    /// Reads the bodies of messages, up to the first that cannot be read yet: its consumer asks again.
    fn handed(&self, messages: &[Delivered], cx: &GroupCx<'_>) -> Vec<Handed> {
        let mut handed = Vec::with_capacity(messages.len());
        for message in messages {
            let Some(uid) = self.body(message, cx) else { break };
            handed.push(Handed {
                msg_id: message.msg_id,
                uid,
                reference: message.reference.0,
                acquired_count: if self.desk.defect == Defect::Unmarked { 0 } else { message.acquired_count },
            });
        }
        handed
    }

    pub(super) fn body(&self, message: &Delivered, cx: &GroupCx<'_>) -> Option<u64> {
        let index = message.reference.index();
        let batch = match cx.entries.read(cx.group, &[index]) {
            Ok(mut batches) => batches.pop().flatten(),
            Err(error) => {
                self.desk.wrong(|| format!("{} of {}: {error}", message.reference.0, cx.group));
                None
            }
        };
        let Some(batch) = batch else {
            // Committed by others, and on its way to this disk.
            if self.desk.disk.written(cx.group, self.desk.me) >= index {
                let (node, group) = (self.desk.node, cx.group);
                self.desk.wrong(|| format!("node {node} lost the body of {:?} in group {group}", message.reference));
            }
            return None;
        };
        let uid = batch.get(usize::from(message.reference.position())).as_ref().and_then(stored_message);
        let uid = uid.and_then(|stored| uid_in(&stored.body()));
        if uid.is_none() {
            self.desk.wrong(|| format!("{:?} of group {} is no message", message.reference, cx.group));
        }
        uid
    }

    fn redeliver(&self, consumer: ConsumerId, from_msg_id: u64, cx: &GroupCx<'_>) {
        let Some(info) = self.queue.consumers().find(|c| c.id == consumer) else { return };
        let (key, session) = (info.key, consumer.session);
        if info.status == ConsumerStatus::TimedOut {
            // It may not have heard of that.
            self.say(session, QueueEvent::Released { key, ids: MsgIds::new() });
        }
        let held: Vec<Delivered> = self.queue.held(&ConsumerRef::Id(consumer), from_msg_id).collect();
        let messages = self.handed(&held, cx);
        self.say(session, QueueEvent::Deliver { key, messages, again: true });
    }

    fn publish(&mut self, from: SessionRef, first_seq: u64, messages: &[(Traits, Bytes)], out: &mut BatchBuilder) {
        let encoder = Encoder::for_group(out.effective());
        for (seq, (traits, body)) in (first_seq..).zip(messages) {
            if encoder.encode_publish(Origin { session: from, seq }, traits, HEAD, body, out).is_err() {
                self.say(from, QueueEvent::NotLeader { leader: None, busy: true });
                return;
            }
        }
        self.staged_publishers.push(from);
    }

    /// Messages that died in another queue: who published them does not wait for an answer.
    fn publish_dead(&self, bodies: &[Bytes], out: &mut BatchBuilder) {
        for body in bodies {
            let container = Bytes::from([HEAD, body].concat());
            let Some(message) = StoredMessage::new(HEAD.len() as u32, container) else { continue };
            let Traits { delivery_count, priority, ttl_ms } = Traits::default();
            let enqueue = Enqueue { origin: None, delivery_count, priority, ttl_ms, message };
            self.append(&Command::Enqueue(enqueue), out);
        }
    }

    /// Applies one command, and tells the judge what came of it where nobody did so before.
    fn apply_command(&mut self, meta: &Meta, command: Command, departures: Option<&mut Departures>) -> Reply {
        match (command, departures) {
            (Command::Enqueue(enqueue), departures) => self.apply_enqueue(meta, enqueue, departures.is_some()),
            (other, Some(departures)) => self.apply_watched(meta, other, departures),
            (other, None) => self.queue.apply(meta, other, &mut self.fx),
        }
    }

    fn compare(&self, index: u64) {
        if let Err(what) = self.check() {
            self.desk.wrong(|| format!("group {} at {index}: {what}", self.group));
        }
        if index.is_multiple_of(self.desk.compare_every) {
            self.desk.judge.lock().state(self.desk.node, self.group, index, self.digest());
        }
    }

    fn answer(&self, waiting: Awaited, reply: Reply, cx: &GroupCx<'_>) {
        let uid = match &reply {
            Reply::Got { message, .. } => match self.body(message, cx) {
                Some(uid) => Some(uid),
                // Asked again, the same message is answered.
                None => return,
            },
            _ => None,
        };
        let event = QueueEvent::Replied { correlation: waiting.correlation, reply: Box::new(reply), uid };
        self.say(waiting.session, event);
    }
}

/// Joins the outcomes of one session's publishes into runs.
#[derive(Default)]
struct Confirms(Vec<(SessionRef, u64, u64, Outcome)>);

impl Confirms {
    fn add(&mut self, origin: Origin, reply: &Reply) {
        let outcome = match reply {
            Reply::Ok => Outcome::Enqueued,
            Reply::OutOfSequence { .. } => Outcome::OutOfSequence,
            Reply::UnknownEnqueuer => Outcome::UnknownEnqueuer,
            _ => Outcome::Refused,
        };
        match self.0.last_mut() {
            Some((session, _, last, same))
                if *session == origin.session && *last + 1 == origin.seq && *same == outcome =>
            {
                *last = origin.seq;
            }
            _ => self.0.push((origin.session, origin.seq, origin.seq, outcome)),
        }
    }
}

impl StateMachine for QueueMember {
    type Request = Ask;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        MV1..=MachineVersion(self.desk.max_version)
    }

    fn prepare(&mut self, request: Ask, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        match request {
            Ask::Publish { from, first_seq, messages } => self.publish(from, first_seq, &messages, out),
            Ask::Command { from, correlation, command } => {
                if let Some(position) = self.append(&command, out) {
                    self.staged.push(Awaited { position, session: from, correlation });
                }
            }
            Ask::Redeliver { consumer, from_msg_id } => self.redeliver(consumer, from_msg_id, cx),
            Ask::SessionGone(session) => {
                self.append(&Command::SessionDown { session, loss: SessionLoss::Gone }, out);
            }
            Ask::NodesChanged => self.watch_nodes(out),
            Ask::DeadLetters(bodies) => self.publish_dead(&bodies, out),
            Ask::WorkerHears(said) => self.worker_hears(said, out),
            Ask::Metadata(_) => {}
        }
    }

    fn proposed(&mut self, outcome: Result<(u64, u64), Refusal>, _: &GroupCx<'_>) {
        let publishers = std::mem::take(&mut self.staged_publishers);
        let replies = std::mem::take(&mut self.staged);
        match outcome {
            Ok((index, term)) if !replies.is_empty() => {
                self.awaited.push_back(AwaitedEntry { index, term, replies });
            }
            Ok(_) => {}
            Err(why) => {
                self.told.clear();
                let waiting = replies.into_iter().map(|awaited| awaited.session);
                for session in publishers.into_iter().chain(waiting) {
                    self.say(session, not_leader(why));
                }
            }
        }
    }

    fn refuse(&mut self, request: Ask, why: Refusal, _: &GroupCx<'_>) {
        match request {
            Ask::Publish { from, .. } | Ask::Command { from, .. } => self.say(from, not_leader(why)),
            Ask::Redeliver { consumer, .. } => self.say(consumer.session, not_leader(why)),
            Ask::WorkerHears(said) if !self.employs(said.session) => self.nobody_hears(&said),
            Ask::WorkerHears(_) | Ask::SessionGone(_) | Ask::NodesChanged | Ask::DeadLetters(_) | Ask::Metadata(_) => {}
        }
    }

    fn apply(&mut self, entry: Applied, cx: &GroupCx<'_>) {
        let first = self.desk.applying(cx.group, &entry);
        let speaks = entry.live && cx.role == Role::Leader;
        while self.awaited.front().is_some_and(|a| a.index < entry.index) {
            self.awaited.pop_front();
        }
        let awaited = self.awaited.pop_front_if(|a| a.index == entry.index && a.term == entry.term);
        let mut awaited = awaited.map_or_else(Vec::new, |a| a.replies).into_iter().peekable();
        let mut confirms = Confirms::default();
        let mut departures = first.then(Departures::default);
        let mut decoder = Decoder::new(entry.version);
        for (position, bytes) in entry.batch.iter().enumerate() {
            let meta = Meta {
                reference: Reference::new(entry.index, position as u16),
                term: entry.term,
                ts_ms: entry.batch.ts_ms(),
                version: entry.version,
            };
            let command = match decoder.decode(bytes) {
                Ok(command) => command,
                Err(error) => {
                    self.desk.wrong(|| format!("{:?} of group {}: {error}", meta.reference, cx.group));
                    continue;
                }
            };
            let origin = match &command {
                Command::Enqueue(enqueue) => enqueue.origin,
                _ => None,
            };
            let reply = self.apply_command(&meta, command, departures.as_mut());
            if !speaks {
                continue;
            }
            if let Some(origin) = origin {
                confirms.add(origin, &reply);
            } else if let Some(waiting) = awaited.next_if(|a| usize::from(a.position) == position) {
                self.answer(waiting, reply, cx);
            }
        }
        for (session, first, last, outcome) in confirms.0 {
            self.say(session, QueueEvent::Enqueued { first, last, outcome });
        }
        if let Some(departures) = departures {
            self.tell_departures(departures);
        }
        if entry.live {
            self.perform(cx);
            if speaks && self.queue.work_owed() && !self.owed.contains(&Command::Continue) {
                self.owed.push(Command::Continue);
            }
        } else {
            self.fx.clear();
        }
        self.compare(entry.index);
    }

    fn role_changed(&mut self, cx: &GroupCx<'_>) {
        self.delivering.clear();
        match cx.role {
            Role::Leader => {
                self.monitored.clear();
                self.timers.clear();
                self.told.clear();
                self.owed.clear();
                self.fx.clear();
                self.queue.become_leader(&mut self.fx);
                self.perform(cx);
            }
            Role::Follower => {
                for entry in std::mem::take(&mut self.awaited) {
                    for awaited in entry.replies {
                        self.say(awaited.session, QueueEvent::NotLeader { leader: cx.leader, busy: false });
                    }
                }
                self.monitored.clear();
                self.timers.clear();
                self.told.clear();
                self.owed.clear();
                self.worker = None;
            }
            Role::Elected => {}
        }
    }

    fn tick(&mut self, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        for command in std::mem::take(&mut self.owed) {
            self.append(&command, out);
        }
        self.watch_nodes(out);
        self.work_on(cx);
        let due: Vec<TimerKey> = self.timers.iter().filter(|(_, at)| **at <= cx.now_ms).map(|(key, _)| *key).collect();
        for key in due {
            self.timers.remove(&key);
            self.append(&Command::Timeout(key), out);
        }
        if cx.now_ms.saturating_sub(self.rechecked_at) >= RECHECK_MS {
            self.rechecked_at = cx.now_ms;
            // Whoever is asked and does not exist is reported as gone by its node.
            for session in &self.monitored {
                self.say(*session, QueueEvent::LeaderChanged);
            }
        }
    }

    fn followers(&mut self, keeping_up: &[NodeId], cx: &GroupCx<'_>) {
        let before = std::mem::replace(&mut self.delivering, keeping_up.to_vec());
        for node in before.into_iter().filter(|node| !keeping_up.contains(node)) {
            // What its member did not come to hand out. Sessions drop what they have.
            self.queue.redeliver(node, &mut self.fx);
        }
        self.perform(cx);
    }

    fn wake_at(&self) -> Option<u64> {
        if !self.owed.is_empty() {
            return Some(0);
        }
        let recheck = (!self.monitored.is_empty()).then_some(self.rechecked_at + RECHECK_MS);
        self.timers.values().min().copied().into_iter().chain(recheck).chain(self.works_at()).min()
    }

    fn reclaimable_bytes(&self) -> u64 {
        if self.force_snapshot { u64::MAX } else { self.queue.reclaimable_bytes() }
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.force_snapshot = false;
        self.queue.reset_reclaimable_bytes();
        let state = self.queue.encode_state();
        match Queue::decode_state(&state) {
            Ok(copy) if copy.digest() == self.queue.digest() && copy.live() == self.queue.live() => {}
            Ok(_) => self.desk.wrong(|| format!("a snapshot of group {} restores to another state", self.group)),
            Err(error) => self.desk.wrong(|| format!("a snapshot of group {} is not readable: {error}", self.group)),
        }
        MachineSnapshot { state: Bytes::from(state), live: self.queue.live() }
    }

    fn restore(&mut self, state: &[u8], index: u64, _: MachineVersion, cx: &GroupCx<'_>) -> Result<(), RestoreError> {
        self.queue = Queue::decode_state(state).map_err(|e| RestoreError(e.to_string()))?;
        self.fx.clear();
        let mut judge = self.desk.judge.lock();
        if digest(state) != self.queue.digest() {
            judge.wrong(|| format!("group {} was restored at {index} to another state", self.group));
        }
        judge.state(self.desk.node, self.group, index, self.queue.digest());
        drop(judge);
        // Handed out between the last entry applied here and the snapshot.
        self.queue.redeliver(self.desk.node, &mut self.fx);
        self.perform(cx);
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}

fn not_leader(why: Refusal) -> QueueEvent {
    match why {
        Refusal::NotLeader(leader) => QueueEvent::NotLeader { leader, busy: false },
        Refusal::Busy => QueueEvent::NotLeader { leader: None, busy: true },
        Refusal::Stopped => QueueEvent::NotLeader { leader: None, busy: false },
    }
}
