//! Random histories: the machine and the naive model agree after every command, in both versions and across the switch,
//! and a machine restored from any snapshot goes on as if nothing had been.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::model::{Fate, Model, Outcome};
use super::ops::{OP_BYTES, Op, command, op, some_config};
use super::*;

/// One history: how the queue was declared, what happens, how long before each, and from when on at version 2.
#[derive(Debug, Clone)]
pub(super) struct History {
    pub config: Config,
    pub ops: Vec<(Op, u64)>,
    pub switch: usize,
}

/// Half of them start with the default configuration, a third with a single active consumer.
pub(super) fn history(length: usize) -> impl Strategy<Value = History> {
    let config = (any::<[u8; OP_BYTES]>(), any::<bool>(), 0u8..3).prop_map(|(bytes, plain, single)| Config {
        single_active: single == 0,
        ..if plain { Config::default() } else { some_config(&bytes) }
    });
    let pause = prop_oneof![3 => Just(0u64), 4 => 1u64..40, 1 => 40u64..900];
    let switch = prop_oneof![3 => Just(0), 1 => Just(length), 2 => 0..length];
    (config, vec((op(), pause), 1..length), switch).prop_map(|(config, ops, switch)| History { config, ops, switch })
}

/// What the effects of one command say, in the model's words.
fn outcome(fx: &Effects) -> Outcome {
    let mut out = Outcome::default();
    let times = |count: u64, reason: DeadReason, fate: Fate| (0..count).map(move |_| (reason, fate.clone()));
    for effect in fx.iter() {
        match effect {
            Effect::Deliver(deliver) => {
                assert!(out.credits.is_empty(), "a delivery comes after a credit reply");
                out.delivered.extend(deliver.messages.iter().map(|m| (deliver.key, m.clone())));
            }
            Effect::Dropped { reason, count } => out.dead.extend(times(*count, *reason, Fate::Dropped)),
            Effect::Kept { reason, count } => out.dead.extend(times(*count, *reason, Fate::Kept)),
            Effect::DeadLetter { reason, messages } => {
                out.dead.extend(messages.iter().map(|m| (*reason, Fate::Published(m.clone()))));
            }
            Effect::DlxDeliver { session, messages } => {
                out.to_worker.extend(messages.iter().map(|(reason, m)| (*session, *reason, m.clone())));
            }
            Effect::DlxWorker(wanted) => out.worker_wanted = Some(*wanted),
            Effect::QueueStatus { session, reject } => out.status.push((*session, *reject)),
            Effect::CreditReply(reply) => out.credits.push(reply.clone()),
            Effect::Released { key, ids, dequeue, .. } => {
                let ids = ids.runs().iter().flat_map(|run| run.start..run.start + run.count).collect();
                out.released.push((*key, ids, *dequeue));
            }
            Effect::ForceSnapshot => out.snapshot = true,
            Effect::Monitor(_)
            | Effect::Demonitor(_)
            | Effect::LeaderChange(_)
            | Effect::Timer { .. }
            | Effect::ConsumerActive { .. } => {}
        }
    }
    out.delivered.sort_by_key(|(key, d)| (*key, d.msg_id));
    out
}

/// A machine, the model beside it, and what a host has been told.
pub(super) struct Run {
    pub member: Member,
    pub model: Model,
    watched: BTreeSet<SessionRef>,
    /// Whose turn it is, as the sessions know it.
    turns: BTreeMap<ConsumerKey, bool>,
    timers: BTreeMap<TimerKey, u64>,
    ids_seen: BTreeSet<(ConsumerKey, u64)>,
    dead_ids_seen: BTreeSet<u64>,
}

impl Run {
    pub fn new(version: MachineVersion, config: Config) -> Self {
        Run {
            member: Member::with(version, config.clone()),
            model: Model::new(config),
            watched: BTreeSet::new(),
            turns: BTreeMap::new(),
            timers: BTreeMap::new(),
            ids_seen: BTreeSet::new(),
            dead_ids_seen: BTreeSet::new(),
        }
    }

    /// Runs a history and compares after every command.
    pub fn of(history: &History) -> Self {
        let mut run = Run::new(MV1, history.config.clone());
        for (i, (op, pause)) in history.ops.iter().enumerate() {
            run.member.version = if i < history.switch { MV1 } else { MV2 };
            run.member.ts_ms += pause;
            run.step(op);
        }
        run
    }

    fn step(&mut self, op: &Op) {
        let m = &mut self.member;
        let command = command(op, &self.model, m.ts_ms);
        if command.min_version() > m.version {
            return;
        }
        if let Command::Timeout(key) = &command {
            self.timers.remove(key);
        }
        let reply = m.apply(command.clone());
        let expected = self.model.apply(&m.meta(), &command);
        assert_eq!(reply, expected, "{command:?}");
        let outcome = outcome(&m.fx);
        assert_eq!(outcome, self.model.out, "{command:?}");
        for (key, d) in &outcome.delivered {
            assert!(self.ids_seen.insert((*key, d.msg_id)), "id {} of {key:?} is used again", d.msg_id);
        }
        for (.., d) in &outcome.to_worker {
            assert!(self.dead_ids_seen.insert(d.msg_id), "id {} of a dead message is used again", d.msg_id);
        }
        self.check_shown(&command);
        self.hear(&reply);
        self.check_told(&command);
    }

    /// What the host takes from the answer and the effects.
    fn hear(&mut self, reply: &Reply) {
        if let Reply::Attached { key, active, .. } = reply {
            self.turns.insert(*key, *active);
        }
        for effect in self.member.fx.iter() {
            match effect {
                Effect::Monitor(session) => drop(self.watched.insert(*session)),
                Effect::Demonitor(session) => assert!(self.watched.remove(session)),
                Effect::ConsumerActive { key, active, .. } => drop(self.turns.insert(*key, *active)),
                Effect::Timer { key, at_ms: Some(at) } => drop(self.timers.insert(*key, *at)),
                Effect::Timer { key, at_ms: None } => drop(self.timers.remove(key)),
                _ => {}
            }
        }
    }

    /// The host knows whom to watch, whose turn it is, and when to wake the queue.
    fn check_told(&mut self, command: &Command) {
        assert!(self.watched.iter().eq(self.model.sessions().iter()), "{command:?}");
        let turns = self.model.turns();
        self.turns.retain(|key, _| turns.contains_key(key));
        assert_eq!(self.turns, turns, "{command:?}");
        let in_time = |key: TimerKey, due: Option<u64>| {
            let timer = self.timers.get(&key);
            assert!(due.is_none_or(|due| timer.is_some_and(|at| *at <= due)), "{command:?}: {timer:?} for {due:?}");
        };
        in_time(TimerKey::ExpireMessages, self.model.next_due());
        in_time(TimerKey::ConsumerDeadlines, self.model.next_deadline());
        for c in &self.model.consumers {
            let (key, due) = (TimerKey::ConsumerDisconnected(c.key), self.model.disconnected_at(c));
            in_time(key, due.filter(|_| self.member.version >= MV2));
        }
    }

    /// The queue shows what the model shows.
    fn check_shown(&self, command: &Command) {
        let queue = &self.member.queue;
        assert_eq!(queue.overview(), self.model.overview(), "{command:?}");
        assert_eq!(queue.expires_at(), self.model.expires_at(), "{command:?}");
        let listed: Vec<_> = queue.consumers().map(|c| (c.key, c.status, c.num_checked_out)).collect();
        assert_eq!(listed, self.model.listed(), "{command:?}");
        let ranges = queue.live();
        assert!(ranges.windows(2).all(|pair| *pair[0].end() + 1 < *pair[1].start()));
        assert_eq!(ranges.into_iter().flatten().collect::<BTreeSet<_>>(), self.model.live(), "{command:?}");
        assert!(!queue.work_owed());
    }
}

/// Timers of messages and deadlines may go off early: a restored machine sets them anew, and so perhaps more exactly.
fn without_lazy_timers(effects: Vec<Effect>) -> Vec<Effect> {
    let lazy = |effect: &Effect| {
        matches!(effect, Effect::Timer { key: TimerKey::ExpireMessages | TimerKey::ConsumerDeadlines, .. })
    };
    effects.into_iter().filter(|effect| !lazy(effect)).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_agrees_with_the_naive_model(history in history(120)) {
        Run::of(&history);
    }

    #[test]
    fn a_restored_machine_goes_on_as_the_first_one_does(history in history(100), restore in vec(any::<bool>(), 100)) {
        let mut straight = Member::with(MV1, history.config.clone());
        let mut restored = Member::with(MV1, history.config.clone());
        let mut model = Model::new(history.config);
        for (i, (op, pause)) in history.ops.iter().enumerate() {
            let command = command(op, &model, straight.ts_ms + pause);
            for member in [&mut straight, &mut restored] {
                member.version = if i < history.switch { MV1 } else { MV2 };
                member.ts_ms += pause;
            }
            if command.min_version() > straight.version {
                continue;
            }
            let reply = straight.apply(command.clone());
            assert_eq!(restored.apply(command.clone()), reply);
            assert_eq!(without_lazy_timers(restored.effects()), without_lazy_timers(straight.effects()));
            let state = straight.queue.encode_state();
            assert_eq!(restored.queue.encode_state(), state);
            if restore[i] {
                restored.queue = Queue::decode_state(&state).unwrap();
                assert_eq!(restored.queue.digest(), straight.queue.digest());
                assert_eq!(restored.queue.live(), straight.queue.live());
                let (mut a, mut b) = (Effects::new(), Effects::new());
                straight.queue.become_leader(&mut a);
                restored.queue.become_leader(&mut b);
                let effects = |fx: Effects| without_lazy_timers(fx.iter().cloned().collect());
                assert_eq!(effects(a), effects(b));
            }
            model.apply(&straight.meta(), &command);
        }
    }

    /// One member's host empties the buffer of effects after every command, another's after a few, the third's state goes
    /// through a snapshot now and then: the states are the same, and every session is told the same in the same order.
    #[test]
    fn members_whose_effects_are_run_at_different_times_stay_the_same(
        history in history(80),
        pauses in vec(0u8..4, 80),
    ) {
        let mut members: Vec<_> = (0..3).map(|_| Member::with(MV1, history.config.clone())).collect();
        let mut buffers: Vec<_> = (0..3).map(|_| Effects::new()).collect();
        let mut told: Vec<Vec<Effect>> = vec![Vec::new(); 3];
        let mut model = Model::new(history.config.clone());
        for (i, (op, pause)) in history.ops.iter().enumerate() {
            let command = command(op, &model, members[0].ts_ms + pause);
            let version = if i < history.switch { MV1 } else { MV2 };
            for (n, m) in members.iter_mut().enumerate() {
                (m.version, m.index) = (version, m.index + 1);
                m.ts_ms += pause;
                let meta = m.meta();
                if command.min_version() <= version {
                    m.queue.apply(&meta, command.clone(), &mut buffers[n]);
                }
                if n == 0 || pauses[i] == n as u8 {
                    told[n].extend(buffers[n].drain());
                }
                if n == 2 && pauses[i] == 3 {
                    m.queue = Queue::decode_state(&m.queue.encode_state()).unwrap();
                }
            }
            if command.min_version() <= version {
                model.apply(&members[0].meta(), &command);
            }
            let states: Vec<_> = members.iter().map(|m| m.queue.encode_state()).collect();
            assert!(states.iter().all(|state| *state == states[0]), "{command:?}");
        }
        for n in 0..3 {
            told[n].extend(buffers[n].drain());
        }
        let told: Vec<_> = told.into_iter().map(by_consumer).collect();
        assert_eq!(told[0], told[1]);
        assert_eq!(told[0], told[2]);
    }
}

/// What each consumer is told, in order: messages by id, and the state of its credit.
fn by_consumer(effects: Vec<Effect>) -> BTreeMap<ConsumerKey, Vec<String>> {
    let mut told = BTreeMap::<_, Vec<_>>::new();
    for effect in effects {
        match effect {
            Effect::Deliver(deliver) => {
                told.entry(deliver.key).or_default().extend(deliver.messages.iter().map(|m| format!("{m:?}")));
            }
            Effect::CreditReply(reply) => told.entry(reply.key).or_default().push(format!("{reply:?}")),
            _ => {}
        }
    }
    told
}
