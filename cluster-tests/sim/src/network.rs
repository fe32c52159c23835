//! The network between nodes: per directed pair and stream ordered, slow, lossy, cut; in the wild profile without order.

use std::collections::{BTreeMap, VecDeque};

use crate::message::Envelope;
use crate::plan::NetworkPlan;
use crate::random::Random;

/// A connection whose peer is silent this long is given up: what it held is lost.
const GIVEN_UP_US: u64 = 4_000_000;
/// Messages that wait for a cut to end, for each stream; more are lost.
const MOST_HELD: usize = 4096;
/// What a dead process has sent arrives within this time or not at all.
const LAST_WORDS_US: u64 = 50_000;

/// A stream of one direction between two nodes. Streams overtake each other, messages of one do not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Stream {
    /// Heartbeats, votes, acknowledgements.
    Control,
    /// Entries.
    Append,
    /// Snapshots.
    Bulk,
    /// What sessions and queues say.
    Queue,
}

/// A message under way.
#[derive(Debug, Clone)]
pub struct Packet {
    /// Sender.
    pub from: usize,
    /// Receiver.
    pub to: usize,
    /// On which stream.
    pub stream: Stream,
    /// The connection that carries it.
    epoch: u64,
    sent_us: u64,
    /// The message.
    pub envelope: Envelope,
}

#[derive(Default)]
struct Link {
    /// When the last message arrives.
    last_us: u64,
    epoch: u64,
    /// Waiting for a cut to end.
    held: VecDeque<Packet>,
    /// The sender died then: what it sent before arrives by the second time or never.
    died: Option<(u64, u64)>,
}

/// What is to arrive, and when.
pub type Arrivals = Vec<(u64, Packet)>;

/// The state of all links.
pub struct Network {
    plan: NetworkPlan,
    random: Random,
    links: BTreeMap<(usize, usize, Stream), Link>,
    /// Directed pairs between which nothing passes.
    cut: Vec<(usize, usize)>,
    /// Whether faults are over.
    calm: bool,
}

impl Network {
    /// A network that is whole.
    pub fn new(plan: NetworkPlan, seed: u64) -> Self {
        Network { plan, random: Random::part(seed, "network"), links: BTreeMap::new(), cut: Vec::new(), calm: true }
    }

    /// From now on messages get lost, or not any more.
    pub fn set_calm(&mut self, calm: bool) {
        self.calm = calm;
    }

    /// Whether a message from one node would reach the other.
    pub fn is_open(&self, from: usize, to: usize) -> bool {
        !self.cut.contains(&(from, to))
    }

    /// Sends a message. Answers false if it is lost, which the sender does not notice.
    pub fn send(&mut self, now_us: u64, from: usize, to: usize, envelope: Envelope, out: &mut Arrivals) -> bool {
        use warren_raft::driver::Lane;
        let (stream, raft) = match &envelope {
            Envelope::Raft(Lane::Control, _) => (Stream::Control, true),
            Envelope::Raft(Lane::Append, _) => (Stream::Append, true),
            Envelope::Raft(Lane::Bulk, _) => (Stream::Bulk, true),
            Envelope::ToGroup(..) | Envelope::ToSession(_) => (Stream::Queue, false),
        };
        let open = self.is_open(from, to);
        let lost = !self.calm && self.random.below(1_000_000) < self.plan.loss_ppm;
        let link = self.links.entry((from, to, stream)).or_default();
        let size = envelope.size();
        let packet = Packet { from, to, stream, epoch: link.epoch, sent_us: now_us, envelope };
        if lost {
            return false;
        }
        if !open {
            let keeps = self.plan.holds && link.held.len() < MOST_HELD;
            if keeps {
                link.held.push_back(packet);
            }
            return keeps;
        }
        let delay = self.plan.least_us + self.random.below(self.plan.jitter_us) + size / self.plan.bytes_per_us.max(1);
        if self.plan.wild && raft && !self.calm {
            let copies = 1 + u64::from(self.random.chance(50));
            for copy in 0..copies {
                let late = if self.random.chance(100) { self.random.below(300_000) } else { 0 };
                out.push((now_us + delay + late + copy * self.random.below(500_000), packet.clone()));
            }
            return true;
        }
        let at = (now_us + delay).max(link.last_us);
        link.last_us = at;
        out.push((at, packet));
        true
    }

    /// Whether a packet that is due arrives.
    pub fn arrives(&self, now_us: u64, packet: &Packet) -> bool {
        if self.plan.wild && !self.calm && matches!(packet.envelope, Envelope::Raft(..)) {
            return true;
        }
        let Some(link) = self.links.get(&(packet.from, packet.to, packet.stream)) else { return false };
        let in_time = link.died.is_none_or(|(died, until)| packet.sent_us > died || now_us <= until);
        packet.epoch == link.epoch && in_time
    }

    /// Cuts these directed pairs.
    pub fn cut(&mut self, pairs: impl IntoIterator<Item = (usize, usize)>) {
        self.cut.extend(pairs);
    }

    /// Ends all cuts. What was held arrives now, in order, unless its connection was given up meanwhile. Answers the
    /// directed pairs that lost something.
    pub fn heal(&mut self, now_us: u64, out: &mut Arrivals) -> Vec<(usize, usize)> {
        self.cut.clear();
        let mut lost = Vec::new();
        for ((from, to, _), link) in &mut self.links {
            let held = std::mem::take(&mut link.held);
            let Some(oldest) = held.front() else { continue };
            if oldest.sent_us + GIVEN_UP_US < now_us {
                lost.push((*from, *to));
                continue;
            }
            for packet in held {
                let at = (now_us + self.plan.least_us + self.random.below(self.plan.jitter_us)).max(link.last_us);
                link.last_us = at;
                out.push((at, packet));
            }
        }
        lost.dedup();
        lost
    }

    /// The connections between two nodes break: what is under way on them is lost.
    pub fn reset(&mut self, from: usize, to: usize) {
        for (_, link) in self.links.iter_mut().filter(|((f, t, _), _)| (*f, *t) == (from, to)) {
            link.epoch += 1;
            link.held.clear();
        }
    }

    /// A node's process dies: what was on its way to it is lost, what it sent arrives soon or never.
    pub fn died(&mut self, now_us: u64, node: usize) {
        for ((from, to, _), link) in &mut self.links {
            if *to == node {
                link.epoch += 1;
                link.held.clear();
            } else if *from == node {
                link.held.clear();
                link.died = Some((now_us, now_us + self.random.below(LAST_WORDS_US)));
            }
        }
    }
}
