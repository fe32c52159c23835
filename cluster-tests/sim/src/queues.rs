//! What a seed decides of each queue: its configuration, what is published to it, and where its dead messages go.

use warren_proto::ids::GroupId;
use warren_queues::quorum::{Config, DeadLetter, DeadLetterStrategy, DelayedRetry, Overflow, RetryOn};

use crate::random::Random;

/// The group of the queue that takes dead messages.
pub const DEAD_LETTERS: GroupId = GroupId(90);

/// Priorities that mean the same to each version of the machine: a queue that changes its version keeps their order.
const COMMON_PRIORITIES: [Option<u8>; 6] = [None, None, None, Some(4), Some(5), Some(9)];
/// Others, which the newest version tells apart.
const ALL_PRIORITIES: [Option<u8>; 8] = [None, None, Some(0), Some(3), Some(9), Some(10), Some(31), Some(200)];

/// See the module's head.
#[derive(Debug, Clone, Default)]
pub struct QueuePlan {
    /// Its configuration.
    pub config: Config,
    /// Priorities of what is published.
    pub priorities: Vec<Option<u8>>,
    /// The longest time to live of a message that has one of its own.
    pub ttl_ms: Option<u64>,
    /// Where dead messages go.
    pub dead_letters_to: Option<GroupId>,
    /// Whether it is the one that takes them.
    pub takes_dead: bool,
    /// Whether it may have times in which nobody publishes: publishers are blocked, or nothing dies.
    pub idles: bool,
}

impl QueuePlan {
    /// A queue without limits but these.
    pub fn plain(delivery_limit: Option<u32>, disconnected_ms: u64) -> Self {
        let config = Config { delivery_limit, consumer_disconnected_timeout_ms: disconnected_ms, ..Config::default() };
        QueuePlan { config, priorities: vec![None], ..QueuePlan::default() }
    }

    /// The queue that takes dead messages.
    pub fn of_dead_letters(&self) -> Self {
        let config = Config { delivery_limit: None, ..self.config.clone() };
        QueuePlan { config, priorities: vec![None], takes_dead: true, idles: true, ..QueuePlan::default() }
    }

    /// In half of the runs queues are full ones: each has some of the properties that a queue can have.
    pub fn full(self, seed: u64, group: GroupId, is_newest: bool) -> Self {
        let mut r = Random::part(seed, "full queues");
        if !r.chance(500) {
            return self;
        }
        let mut r = Random::part(seed ^ group.0, "full queue");
        let mut config = self.config;
        if r.chance(300) {
            config.message_ttl_ms = Some(r.spread(100, 4_000));
        }
        if r.chance(400) {
            config.max_length = Some(r.spread(2, 200));
            config.overflow = r.pick(&[Overflow::DropHead, Overflow::RejectPublish]);
        }
        config.single_active = r.chance(300);
        if r.chance(300) {
            config.consumer_timeout_ms = Some(r.spread(300, 3_000));
        }
        if r.chance(300) {
            config.delivery_limit = Some(r.between(1, 4) as u32);
        }
        if r.chance(300) {
            let min_ms = r.spread(20, 500);
            let on = r.pick(&[RetryOn::All, RetryOn::Failed, RetryOn::Returned]);
            config.delayed_retry = Some(DelayedRetry { on, min_ms, max_ms: min_ms * r.between(1, 3) });
        }
        let dead_letters_to = r.chance(600).then_some(DEAD_LETTERS);
        if dead_letters_to.is_some() {
            let strategy = r.pick(&[DeadLetterStrategy::AtMostOnce, DeadLetterStrategy::AtLeastOnce]);
            if strategy == DeadLetterStrategy::AtLeastOnce {
                config.overflow = Overflow::RejectPublish;
            }
            config.dead_letter = Some(DeadLetter { exchange: "dead".into(), routing_key: None, strategy });
        }
        let priorities = match (r.chance(400), is_newest) {
            (false, _) => vec![None],
            (true, false) => COMMON_PRIORITIES.to_vec(),
            (true, true) => ALL_PRIORITIES.to_vec(),
        };
        let ttl_ms = r.chance(200).then(|| r.spread(20, 2_000));
        QueuePlan { config, priorities, ttl_ms, dead_letters_to, takes_dead: false, idles: true }
    }
}
