//! The options of `warren perf amqp091` and the plan that they make: who publishes and consumes where.

use std::time::Duration;

use clap::{Args, ValueEnum};

use super::consumer::ConsumerPlan;
use super::producer::ProducerPlan;
use super::uri::Uri;

/// More workers or queues than this are a typing error, not a load.
const MAX_WORKERS: usize = 100_000;

/// Drives an AMQP 0-9-1 broker with producers and consumers and reports rates and latencies.
#[derive(Args, Clone, Debug)]
pub struct Options {
    /// Broker nodes; workers are spread over them. Repeatable, or separated by commas
    #[arg(long, short = 'H', value_delimiter = ',', default_value = "amqp://guest:guest@127.0.0.1:5672/%2f")]
    pub uri: Vec<String>,
    /// Producers, each with a connection of its own
    #[arg(long, short = 'x', default_value_t = 1)]
    pub producers: usize,
    /// Consumers, each with a connection of its own
    #[arg(long, short = 'y', default_value_t = 1)]
    pub consumers: usize,
    /// Number of queues
    #[arg(long, default_value_t = 1)]
    pub queues: usize,
    /// Name of the queues; %d is the queue's number, and is appended if there are several
    #[arg(long, short = 'u', default_value = "warren-perf-%d")]
    pub queue: String,
    /// Type of the queues
    #[arg(long, value_enum, default_value_t = QueueKind::Quorum)]
    pub queue_type: QueueKind,
    /// Body size in bytes; from 12 on, end-to-end latency is measured
    #[arg(long, short = 's', default_value_t = 12)]
    pub size: usize,
    /// Unconfirmed messages per producer; 0 publishes without confirms
    #[arg(long, short = 'c', default_value_t = 1000)]
    pub window: usize,
    /// Unacknowledged deliveries per consumer and queue; 0 is no limit
    #[arg(long, short = 'q', default_value_t = 1000)]
    pub prefetch: u16,
    /// Deliveries per acknowledgement; 0 consumes without acknowledgements
    #[arg(long, short = 'a', default_value_t = 100)]
    pub ack_every: u64,
    /// Messages per second of all producers together (open loop)
    #[arg(long, short = 'r')]
    pub rate: Option<f64>,
    /// Measured seconds; 10 unless --messages is given
    #[arg(long, short = 'z')]
    pub duration: Option<f64>,
    /// Seconds before the measured time; 2 unless --messages is given
    #[arg(long)]
    pub warmup: Option<f64>,
    /// Ends after this many messages
    #[arg(long, short = 'C')]
    pub messages: Option<u64>,
    /// Whether messages are persistent
    #[arg(long, default_value_t = true, action = clap::ArgAction::Set, num_args = 0..=1, default_missing_value = "true")]
    pub persistent: bool,
    /// Priorities that messages have in turn, from 0 on; 0: they have none
    #[arg(long, default_value_t = 0)]
    pub priorities: u8,
    /// Only publishes; the queues are kept
    #[arg(long, conflicts_with = "no_publish")]
    pub no_consume: bool,
    /// Only consumes what is there already
    #[arg(long)]
    pub no_publish: bool,
    /// Neither empties the queues before nor deletes them after
    #[arg(long)]
    pub keep: bool,
    /// Opens broken connections again, on the next node
    #[arg(long)]
    pub reconnect: bool,
    /// Threads of the load generator
    #[arg(long, default_value_t = 1)]
    pub threads: usize,
    /// Processes whose processor time and memory are reported too
    #[arg(long, value_delimiter = ',')]
    pub pids: Vec<u32>,
    /// One line of JSON instead of text
    #[arg(long)]
    pub json: bool,
    /// No live display
    #[arg(long)]
    pub quiet: bool,
}

/// The type that queues are declared with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum QueueKind {
    /// Replicated.
    Quorum,
    /// Not replicated.
    Classic,
    /// Whatever the broker's default is.
    Default,
}

impl QueueKind {
    /// The value of `x-queue-type`.
    pub fn argument(self) -> Option<&'static str> {
        match self {
            QueueKind::Quorum => Some("quorum"),
            QueueKind::Classic => Some("classic"),
            QueueKind::Default => None,
        }
    }
}

/// Who does what.
#[derive(Clone, Debug)]
pub struct Plan {
    /// The nodes.
    pub uris: Vec<Uri>,
    /// The queues' names.
    pub queues: Vec<String>,
    /// The queues' type.
    pub queue_type: QueueKind,
    /// Body size.
    pub size: usize,
    /// The producers.
    pub producers: Vec<ProducerPlan>,
    /// The consumers.
    pub consumers: Vec<ConsumerPlan>,
    /// Time before the measured time.
    pub warmup: Duration,
    /// The measured time; `None`: until all messages are through.
    pub duration: Option<Duration>,
    /// Messages in all.
    pub messages: Option<u64>,
    /// Messages per second in all.
    pub rate: Option<f64>,
    /// Queues are deleted first.
    pub delete_before: bool,
    /// Queues are deleted last.
    pub delete_after: bool,
    /// Broken connections are opened again.
    pub reconnect: bool,
    /// Threads of the load generator.
    pub threads: usize,
    /// Watched processes.
    pub pids: Vec<u32>,
    /// One line of JSON.
    pub json: bool,
    /// No live display.
    pub quiet: bool,
}

impl Options {
    /// Spreads the work: worker i starts at node i, and queue or worker i takes every n-th of what there is.
    pub fn plan(&self) -> Result<Plan, String> {
        for (name, value) in [("producers", self.producers), ("consumers", self.consumers), ("queues", self.queues)] {
            if value > MAX_WORKERS {
                return Err(format!("--{name} is at most {MAX_WORKERS}"));
            }
        }
        let producers = if self.no_publish { 0 } else { self.producers };
        let consumers = if self.no_consume { 0 } else { self.consumers };
        if self.queues == 0 || producers + consumers == 0 || self.threads == 0 {
            return Err("there is nothing to do: queues, threads and workers must not be 0".to_owned());
        }
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate <= 0.0) {
            return Err("--rate must be above 0".to_owned());
        }
        let seconds = |value: Option<f64>, otherwise: f64| {
            Duration::try_from_secs_f64(value.unwrap_or(otherwise)).map_err(|error| error.to_string())
        };
        let uris = self.uri.iter().map(|uri| Uri::parse(uri)).collect::<Result<Vec<_>, _>>()?;
        let from = |index: usize| {
            let mut nodes = uris.clone();
            nodes.rotate_left(index % uris.len());
            nodes
        };
        let queues: Vec<String> = (1..=self.queues).map(|number| self.name(number)).collect();
        let share = |index: usize, workers: usize| -> Vec<String> {
            if workers >= queues.len() {
                vec![queues[index % queues.len()].clone()]
            } else {
                queues.iter().skip(index).step_by(workers).cloned().collect()
            }
        };
        let producer = |index: usize| ProducerPlan {
            uris: from(index),
            queues: share(index, producers),
            size: self.size,
            persistent: self.persistent,
            priorities: self.priorities,
            window: self.window,
            interval: self.rate.map(|rate| producers as f64 * 1e9 / rate),
            messages: self.messages.map(|messages| part(messages, index, producers)),
            reconnect: self.reconnect,
        };
        let consumer = |index: usize| ConsumerPlan {
            uris: from(index),
            queues: share(index, consumers),
            prefetch: self.prefetch,
            // More than half the prefetch would let the broker run dry.
            ack_every: match self.prefetch {
                0 => self.ack_every,
                prefetch => self.ack_every.min((u64::from(prefetch) / 2).max(1)),
            },
            reconnect: self.reconnect,
        };
        let otherwise = if self.messages.is_some() { 0.0 } else { 2.0 };
        Ok(Plan {
            producers: (0..producers).map(producer).collect(),
            consumers: (0..consumers).map(consumer).collect(),
            warmup: seconds(self.warmup, otherwise)?,
            duration: match (self.duration, self.messages) {
                (None, Some(_)) => None,
                (duration, _) => Some(seconds(duration, 10.0)?),
            },
            messages: self.messages,
            rate: self.rate,
            delete_before: !self.keep && !self.no_publish,
            delete_after: !self.keep && !self.no_consume,
            reconnect: self.reconnect,
            threads: self.threads.min(64),
            pids: self.pids.clone(),
            json: self.json,
            quiet: self.quiet,
            queue_type: self.queue_type,
            size: self.size,
            uris,
            queues,
        })
    }

    fn name(&self, number: usize) -> String {
        match self.queue.split_once("%d") {
            Some((before, after)) => format!("{before}{number}{after}"),
            None if self.queues == 1 => self.queue.clone(),
            None => format!("{}-{number}", self.queue),
        }
    }
}

/// Worker `index`'s part of `total`.
fn part(total: u64, index: usize, workers: usize) -> u64 {
    let (index, workers) = (index as u64, workers as u64);
    total / workers + u64::from(index < total % workers)
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        options: Options,
    }

    fn plan(arguments: &str) -> Result<Plan, String> {
        let arguments = std::iter::once("perf").chain(arguments.split_whitespace());
        Command::try_parse_from(arguments).map_err(|error| error.to_string())?.options.plan()
    }

    #[test]
    fn workers_are_spread_over_nodes_and_queues() {
        let plan = plan("--uri amqp://a,amqp://b -x 4 -y 2 --queues 3 -C 10").unwrap();
        let nodes: Vec<&str> = plan.producers.iter().map(|producer| producer.uris[0].host.as_str()).collect();
        assert_eq!(nodes, ["a", "b", "a", "b"]);
        let messages: Vec<u64> = plan.producers.iter().filter_map(|producer| producer.messages).collect();
        assert_eq!(messages, [3, 3, 2, 2]);
        assert_eq!(plan.producers[3].queues, ["warren-perf-1"]);
        assert_eq!(plan.consumers[0].queues, ["warren-perf-1", "warren-perf-3"]);
        assert_eq!(plan.consumers[1].queues, ["warren-perf-2"]);
        assert_eq!(plan.duration, None);
    }

    #[test]
    fn impossible_loads_are_refused() {
        for wrong in
            ["--queues 0", "-x 0 -y 0", "--rate 0", "--duration -1", "--uri http://x", "--no-publish --no-consume"]
        {
            assert!(plan(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn acknowledgements_never_let_the_prefetch_run_dry() {
        assert_eq!(plan("-q 10 -a 100").unwrap().consumers[0].ack_every, 5);
        assert_eq!(plan("-q 1 -a 100").unwrap().consumers[0].ack_every, 1);
        assert_eq!(plan("-q 0 -a 100").unwrap().consumers[0].ack_every, 100);
        assert_eq!(plan("-a 0").unwrap().consumers[0].ack_every, 0);
    }
}
