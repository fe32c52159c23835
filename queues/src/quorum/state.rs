//! The queue's state, and the one way to change it.

use bytes::Bytes;
use warren_proto::ids::{MachineVersion, Reference};

use super::Reply;
use super::codec::Decoder;
use super::command::Command;
use super::config::Config;
use super::consumer::Consumer;
use super::dispatch::MAX_WORK;
use super::dlx::Dlx;
use super::effects::{Effect, Effects, TimerKey};
use super::messages::{Compare, Messages, ReturnRule};
use super::version::MV2;
use crate::consumers::Consumers;
use crate::sessions::Sessions;

/// Log bytes that a command other than an enqueue frees when it is dead.
const CONFIG_BYTES: u64 = 512;
const ATTACH_BYTES: u64 = 300;
const REGISTER_BYTES: u64 = 200;
const OUTCOME_BYTES: u64 = 128;
const MODIFY_BYTES: u64 = 256;
const OTHER_BYTES: u64 = 64;

/// What an apply knows besides its command.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Meta {
    /// The command's place in the log; ascends from apply to apply.
    pub reference: Reference,
    /// The entry's term.
    pub term: u64,
    /// The leader's time stamp of the entry in ms; never goes backwards in a log.
    pub ts_ms: u64,
    /// The group's effective machine version at the entry.
    pub version: MachineVersion,
}

/// A quorum queue's replicated state. See the [module](super) for what it is and how it changes.
#[derive(Debug)]
pub struct Queue {
    pub(super) config: Config,
    /// The last command applied.
    pub(super) applied: Reference,
    /// When the queue was last used, or a consumer or session went.
    pub(super) last_active_ms: u64,
    pub(super) messages: Messages,
    pub(super) sessions: Sessions,
    pub(super) consumers: Consumers<Consumer>,
    pub(super) dlx: Dlx,
    /// Not state: when the timers of expiry and of consumers' deadlines go off; not later than they have to.
    pub(super) armed_expiry: Option<u64>,
    pub(super) armed_deadline: Option<u64>,
    /// Not state: commands that no binary could read.
    pub(super) undecodable: u64,
}

impl Queue {
    /// An empty queue. Every member of a group must start from an equal configuration.
    pub fn new(config: Config) -> Self {
        Queue {
            config,
            applied: Reference::default(),
            last_active_ms: 0,
            messages: Messages::default(),
            sessions: Sessions::default(),
            consumers: Consumers::default(),
            dlx: Dlx::default(),
            armed_expiry: None,
            armed_deadline: None,
            undecodable: 0,
        }
    }

    /// Applies one command of the log. Total: there is an answer in every state, and no panic. What must happen outside
    /// is added to `fx`; it happens after the answer has been given.
    pub fn apply(&mut self, meta: &Meta, command: Command, fx: &mut Effects) -> Reply {
        if meta.reference <= self.applied {
            return Reply::AlreadyApplied;
        }
        self.applied = meta.reference;
        if self.last_active_ms == 0 {
            self.last_active_ms = meta.ts_ms;
        }
        // A publish changes no consumer, so nobody's turn either.
        let turns_may_change = !matches!(command, Command::Enqueue(_));
        // Of what is left of an earlier command, drains may be finished now.
        let owed = self.work_owed();
        let mut budget = MAX_WORK;
        let mut granted = None;
        let reply = match command {
            Command::RegisterEnqueuer { session } => {
                self.messages.reclaimed(REGISTER_BYTES);
                self.register(session, fx)
            }
            Command::Enqueue(enqueue) => self.enqueue(meta, &enqueue, fx),
            Command::Attach(attach) => {
                self.messages.reclaimed(ATTACH_BYTES);
                self.attach(meta, &attach, fx)
            }
            Command::Dequeue { consumer, settled, default_timeout_ms } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.dequeue(meta, &consumer, settled, default_timeout_ms, &mut budget, fx)
            }
            Command::Settle { consumer, ids } => {
                self.messages.reclaimed(OUTCOME_BYTES);
                self.settle(meta, &consumer, &ids, fx)
            }
            Command::Return { consumer, ids, failed } => {
                self.messages.reclaimed(OUTCOME_BYTES);
                // Version 1 counts a rejected message as merely returned.
                let rule = self.return_rule(meta, failed && meta.version >= MV2);
                self.give_back(meta, &consumer, &ids, &rule, &[], fx)
            }
            Command::Discard { consumer, ids } => {
                self.messages.reclaimed(OUTCOME_BYTES);
                self.discard(meta, &consumer, &ids, true, &[], fx)
            }
            Command::Modify(modify) => {
                self.messages.reclaimed(MODIFY_BYTES);
                self.modify(meta, &modify, fx)
            }
            Command::Credit { consumer, credit, delivery_count, drain } => {
                self.messages.reclaimed(OUTCOME_BYTES);
                granted = self.credit(&consumer, credit, delivery_count, drain);
                Reply::Ok
            }
            Command::Cancel { consumer } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.cancel(meta, &consumer, fx)
            }
            Command::Remove { consumer } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.remove(meta, &consumer, fx)
            }
            Command::Purge => {
                self.messages.reclaimed(OTHER_BYTES);
                self.purge(meta, fx)
            }
            Command::SessionDown { session, loss } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.session_down(meta, session, loss, fx)
            }
            Command::NodeUp { node } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.node_up(node, fx)
            }
            Command::PurgeNodes { nodes } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.purge_nodes(meta, &nodes, fx)
            }
            Command::UpdateConfig(config) => {
                self.messages.reclaimed(CONFIG_BYTES);
                self.update_config(config, fx)
            }
            Command::Timeout(TimerKey::ConsumerDisconnected(key)) => {
                self.messages.reclaimed(OTHER_BYTES);
                self.consumer_disconnected(meta, key, fx)
            }
            Command::Timeout(TimerKey::ConsumerDeadlines) => {
                self.messages.reclaimed(OTHER_BYTES);
                self.consumer_deadlines(meta, fx)
            }
            Command::Timeout(TimerKey::ExpireMessages) => {
                self.messages.reclaimed(OTHER_BYTES);
                self.armed_expiry = None;
                Reply::Ok
            }
            Command::DlxAttach { session, prefetch } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.dlx_attach(session, prefetch)
            }
            Command::DlxSettle { session, ids } => {
                self.messages.reclaimed(OUTCOME_BYTES);
                self.dlx_settle(session, &ids)
            }
            Command::DelayedRetryNow { count } => {
                self.messages.reclaimed(OTHER_BYTES);
                self.retry_now(meta, count, &mut budget, fx)
            }
            Command::Continue => {
                self.messages.reclaimed(OTHER_BYTES);
                Reply::Ok
            }
        };
        self.pass_time(meta, &mut budget, fx);
        if turns_may_change {
            self.activate(fx);
        }
        self.checkout(meta, &mut budget, fx);
        if let Some(key) = granted {
            self.credited(key, fx);
        }
        if owed {
            self.finish_drains(fx);
        }
        self.dlx_checkout(fx);
        self.enforce_limits(meta, &mut budget, fx);
        self.arm_expiry(fx);
        reply
    }

    /// Decodes and applies one command of the entry that `decoder` reads. Bytes that are none at the group's version change
    /// nothing and are counted.
    pub fn apply_encoded(&mut self, meta: &Meta, decoder: &mut Decoder, command: Bytes, fx: &mut Effects) -> Reply {
        match decoder.decode(command) {
            Ok(command) => self.apply(meta, command, fx),
            Err(_) => {
                self.undecodable += 1;
                Reply::Unsupported
            }
        }
    }

    /// The configuration in force.
    pub fn config(&self) -> &Config {
        &self.config
    }

    /// The last command applied.
    pub fn applied(&self) -> Reference {
        self.applied
    }

    /// How many commands could not be read, since this process started.
    pub fn undecodable(&self) -> u64 {
        self.undecodable
    }

    /// Estimated log bytes that a snapshot taken now would free since the last one.
    pub fn reclaimable_bytes(&self) -> u64 {
        self.messages.reclaimable()
    }

    /// A snapshot was taken.
    pub fn reset_reclaimable_bytes(&mut self) {
        self.messages.reset_reclaimable();
    }

    /// How messages come back under the configuration and version in force.
    pub(super) fn return_rule(&self, meta: &Meta, failed: bool) -> ReturnRule {
        let new = meta.version >= MV2;
        ReturnRule {
            failed,
            limit: self.config.delivery_limit,
            compare: if new { Compare::Deliveries } else { Compare::Acquired },
            retry: self.config.delayed_retry.filter(|_| new),
            deliver_at: None,
            now_ms: meta.ts_ms,
        }
    }

    fn purge(&mut self, meta: &Meta, fx: &mut Effects) -> Reply {
        fx.push(Effect::ForceSnapshot);
        let mut count = self.messages.purge();
        if meta.version >= MV2 {
            count += self.messages.purge_delayed() + self.dlx_purge();
        }
        Reply::Purged { count }
    }

    fn update_config(&mut self, config: Config, fx: &mut Effects) -> Reply {
        let kept_dead = self.config.at_least_once();
        let rearm = config.consumer_disconnected_timeout_ms != self.config.consumer_disconnected_timeout_ms;
        // What a queue was declared as, it stays.
        let single_active = self.config.single_active;
        self.config = Config { single_active, ..config };
        self.dlx_switched(kept_dead, fx);
        if rearm {
            self.arm_timers(fx);
        }
        Reply::Ok
    }
}
