//! Random histories: the machine and the naive model agree after every command, in both versions and across the switch,
//! and a machine restored from any snapshot goes on as if nothing had been.

use std::collections::BTreeSet;

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

use super::model::Model;
use super::*;

/// A command to be made of what there is when its turn comes.
#[derive(Debug, Clone)]
pub(super) enum Op {
    Register(u8),
    /// Distance from the expected sequence number; no session = untracked.
    Publish(Option<u8>, i8, u16, u8),
    Attach(u8, u8, u8, i8),
    Get(u8, u8, bool),
    Outcome(u8, bool, Vec<(u8, u8)>, Outcome),
    Cancel(u8, bool),
    Remove(u8, bool),
    Purge,
    Down(u8, bool),
    NodeUp(u8),
    PurgeNodes(Vec<u8>),
    Config(Option<u8>, u16),
    Timeout(u8),
    Continue,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Outcome {
    Settle,
    Nack,
    Reject,
    Discard,
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    let outcome =
        prop_oneof![Just(Outcome::Settle), Just(Outcome::Nack), Just(Outcome::Reject), Just(Outcome::Discard)];
    prop_oneof![
        1 => any::<u8>().prop_map(Op::Register),
        8 => (option::of(any::<u8>()), -1i8..3, any::<u16>(), 0u8..2).prop_map(|(s, d, z, c)| Op::Publish(s, d, z, c)),
        4 => (any::<u8>(), any::<u8>(), 0u8..5, -1i8..2).prop_map(|(s, t, p, o)| Op::Attach(s, t, p, o)),
        3 => (any::<u8>(), any::<u8>(), any::<bool>()).prop_map(|(s, t, b)| Op::Get(s, t, b)),
        8 => (any::<u8>(), any::<bool>(), vec((0u8..12, 1u8..4), 0..4), outcome)
            .prop_map(|(c, b, ids, o)| Op::Outcome(c, b, ids, o)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(c, b)| Op::Cancel(c, b)),
        1 => (any::<u8>(), any::<bool>()).prop_map(|(c, b)| Op::Remove(c, b)),
        1 => Just(Op::Purge),
        2 => (any::<u8>(), any::<bool>()).prop_map(|(s, b)| Op::Down(s, b)),
        2 => any::<u8>().prop_map(Op::NodeUp),
        1 => vec(any::<u8>(), 0..3).prop_map(Op::PurgeNodes),
        1 => (option::of(0u8..4), 0u16..3000).prop_map(|(l, t)| Op::Config(l, t)),
        2 => any::<u8>().prop_map(Op::Timeout),
        1 => Just(Op::Continue),
    ]
}

fn some_session(n: u8) -> SessionRef {
    session(u64::from(n % 3), u64::from(n / 3 % 2))
}

fn some_consumer(model: &Model, n: u8, by_id: bool) -> ConsumerRef {
    if model.consumers.is_empty() {
        return ConsumerKey(77).into();
    }
    let c = &model.consumers[usize::from(n) % model.consumers.len()];
    if by_id { c.id.clone().into() } else { c.key.into() }
}

pub(super) fn command(op: &Op, model: &Model) -> Command {
    let id = |s: u8, tag: String| ConsumerId { session: some_session(s), tag: tag.into() };
    match op {
        Op::Register(s) => Command::RegisterEnqueuer { session: some_session(*s) },
        Op::Publish(s, distance, size, carried) => {
            let origin = s.map(some_session).map(|s| {
                let next = model.enqueuers.get(&s).copied().unwrap_or(1);
                (s, next.saturating_add_signed(i64::from(*distance)))
            });
            let Command::Enqueue(mut enqueue) = publish(origin, usize::from(size % 40)) else { unreachable!() };
            enqueue.delivery_count = u32::from(*carried);
            Command::Enqueue(enqueue)
        }
        Op::Attach(s, tag, prefetch, priority) => {
            attach(&id(*s, format!("c{}", tag % 2)), u32::from(*prefetch), i32::from(*priority))
        }
        Op::Get(s, tag, settled) => {
            let consumer = id(*s, String::from(if *tag < 200 { "g" } else { "c0" }));
            Command::Dequeue { consumer, settled: *settled, default_timeout_ms: None }
        }
        Op::Outcome(c, by_id, runs, outcome) => {
            let consumer = some_consumer(model, *c, *by_id);
            let mut ids = MsgIds::new();
            for (start, count) in runs {
                ids.push_run(crate::Run { start: u64::from(*start), count: u64::from(*count) });
            }
            match outcome {
                Outcome::Settle => Command::Settle { consumer, ids },
                Outcome::Nack => Command::Return { consumer, ids, failed: false },
                Outcome::Reject => Command::Return { consumer, ids, failed: true },
                Outcome::Discard => Command::Discard { consumer, ids },
            }
        }
        Op::Cancel(c, by_id) => Command::Cancel { consumer: some_consumer(model, *c, *by_id) },
        Op::Remove(c, by_id) => Command::Remove { consumer: some_consumer(model, *c, *by_id) },
        Op::Purge => Command::Purge,
        Op::Down(s, gone) => down(some_session(*s), if *gone { SessionLoss::Gone } else { SessionLoss::NoConnection }),
        Op::NodeUp(n) => Command::NodeUp { node: NodeId(u64::from(n % 3)) },
        Op::PurgeNodes(nodes) => {
            Command::PurgeNodes { nodes: nodes.iter().map(|n| NodeId(u64::from(n % 4))).collect() }
        }
        Op::Config(limit, timeout) => Command::UpdateConfig(Config {
            delivery_limit: limit.map(u32::from),
            consumer_disconnected_timeout_ms: u64::from(*timeout),
            ..Config::default()
        }),
        Op::Timeout(c) => match some_consumer(model, *c, false) {
            ConsumerRef::Key(key) => Command::Timeout(TimerKey::ConsumerDisconnected(key)),
            ConsumerRef::Id(_) => unreachable!(),
        },
        Op::Continue => Command::Continue,
    }
}

/// The model's deliveries in the order of the machine's: by consumer.
fn by_consumer(delivered: &[(ConsumerKey, Delivered)]) -> Vec<(ConsumerKey, Delivered)> {
    let mut sorted = delivered.to_vec();
    sorted.sort_by_key(|(key, d)| (*key, d.msg_id));
    sorted
}

fn live(references: &[Reference]) -> BTreeSet<u64> {
    references.iter().map(|r| r.index()).collect()
}

struct Run {
    member: Member,
    model: Model,
    watched: BTreeSet<SessionRef>,
    ids_seen: BTreeSet<(ConsumerKey, u64)>,
}

impl Run {
    fn step(&mut self, op: &Op) {
        let m = &mut self.member;
        let command = command(op, &self.model);
        if command.min_version() > m.version {
            return;
        }
        let reply = m.apply(command.clone());
        let expected = self.model.apply(&m.meta(), &command);
        assert_eq!(reply, expected, "{command:?}");
        let delivered = m.delivered();
        assert_eq!(by_consumer(&delivered), by_consumer(&self.model.delivered), "{command:?}");
        for (key, d) in &delivered {
            assert!(self.ids_seen.insert((*key, d.msg_id)), "id {} of {key:?} is used again", d.msg_id);
        }
        let mut dropped = 0;
        for effect in m.fx.iter() {
            match effect {
                Effect::Monitor(session) => drop(self.watched.insert(*session)),
                Effect::Demonitor(session) => assert!(self.watched.remove(session)),
                Effect::Dropped { count, .. } => dropped += count,
                _ => {}
            }
        }
        assert_eq!(dropped, self.model.dropped, "{command:?}");
        assert!(self.watched.iter().eq(self.model.sessions().iter()));
        let overview = m.queue.overview();
        assert_eq!(overview, self.model.overview(overview.last_active_ms), "{command:?}");
        let ranges = m.queue.live();
        assert!(ranges.windows(2).all(|pair| *pair[0].end() + 1 < *pair[1].start()));
        assert_eq!(ranges.into_iter().flatten().collect::<BTreeSet<_>>(), live(&self.model.messages()));
        assert!(!m.queue.work_owed());
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn the_machine_agrees_with_the_naive_model(
        ops in vec((op(), 0u64..900), 1..120),
        switch in 0usize..120,
    ) {
        let mut run = Run {
            member: Member::new(MV1),
            model: Model::default(),
            watched: BTreeSet::new(),
            ids_seen: BTreeSet::new(),
        };
        for (i, (op, pause)) in ops.iter().enumerate() {
            run.member.version = if i < switch { MV1 } else { MV2 };
            run.member.ts_ms += pause;
            run.step(op);
        }
    }

    #[test]
    fn a_restored_machine_goes_on_as_the_first_one_does(
        ops in vec((op(), 0u64..900, any::<bool>()), 1..100),
        version in 1u16..3,
    ) {
        let mut straight = Member::new(MachineVersion(version));
        let mut restored = Member::new(MachineVersion(version));
        let mut model = Model::default();
        for (op, pause, restore) in &ops {
            let command = command(op, &model);
            if command.min_version() > straight.version {
                continue;
            }
            straight.ts_ms += pause;
            restored.ts_ms += pause;
            let reply = straight.apply(command.clone());
            assert_eq!(restored.apply(command.clone()), reply);
            assert_eq!(restored.effects(), straight.effects());
            let state = straight.queue.encode_state();
            assert_eq!(restored.queue.encode_state(), state);
            if *restore {
                restored.queue = Queue::decode_state(&state).unwrap();
                assert_eq!(restored.queue.digest(), straight.queue.digest());
                assert_eq!(restored.queue.live(), straight.queue.live());
                let (mut a, mut b) = (Effects::new(), Effects::new());
                straight.queue.become_leader(&mut a);
                restored.queue.become_leader(&mut b);
                assert!(a.iter().eq(b.iter()));
            }
            model.apply(&straight.meta(), &command);
        }
    }
}

/// A queue with something of everything in it.
pub(super) fn busy(ops: &[Op], version: MachineVersion) -> Member {
    let mut member = Member::new(version);
    let mut model = Model::default();
    for op in ops {
        let command = command(op, &model);
        if command.min_version() <= version {
            member.apply(command.clone());
            model.apply(&member.meta(), &command);
        }
    }
    member
}
