//! Random commands that fit what there is when their turn comes.

use proptest::prelude::*;

use super::model::Model;
use super::*;

/// Bytes that make up one operation.
pub(super) const OP_BYTES: usize = 12;

/// A command to be made when its turn comes: bytes that say what kind and with which of the things that there are then.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Op(pub [u8; OP_BYTES]);

impl std::fmt::Debug for Op {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Op({:?})", self.0)
    }
}

pub(super) fn op() -> impl Strategy<Value = Op> {
    any::<[u8; OP_BYTES]>().prop_map(Op)
}

pub(super) fn some_session(n: u8) -> SessionRef {
    session(u64::from(n % 3), u64::from(n / 3 % 2))
}

/// Workers are sessions of their own; two of them, so that one replaces the other or attaches again.
pub(super) fn some_worker(n: u8) -> SessionRef {
    session(u64::from(n % 2), 50)
}

fn sometimes(byte: u8, of: u8, value: u64) -> Option<u64> {
    (byte % 16 < of).then_some(value)
}

/// A configuration of everything that there is to configure.
pub(super) fn some_config(b: &[u8; OP_BYTES]) -> Config {
    let [_, limit, cut_off, timeout, length, bytes, overflow, ttl, expires, dead, retry, ..] = b.map(u64::from);
    let dead_letter = |strategy| DeadLetter { exchange: "dead".to_owned(), routing_key: None, strategy };
    Config {
        delivery_limit: sometimes(b[1], 11, limit % 4).map(|limit| limit as u32),
        consumer_disconnected_timeout_ms: cut_off * 4,
        consumer_timeout_ms: sometimes(b[3], 5, timeout / 16 * 20),
        max_length: sometimes(b[4], 6, length / 16 % 9),
        max_length_bytes: sometimes(b[5], 3, bytes / 16 * 10),
        overflow: if overflow.is_multiple_of(2) { Overflow::DropHead } else { Overflow::RejectPublish },
        message_ttl_ms: sometimes(b[7], 5, ttl / 16 * 15),
        expires_ms: sometimes(b[8], 8, 500),
        single_active: expires.is_multiple_of(2),
        dead_letter: match dead % 4 {
            0 => None,
            1 => Some(dead_letter(DeadLetterStrategy::AtMostOnce)),
            _ => Some(dead_letter(DeadLetterStrategy::AtLeastOnce)),
        },
        delayed_retry: sometimes(b[10], 8, 1 + retry / 16 * 10).map(|min_ms| DelayedRetry {
            on: [RetryOn::All, RetryOn::Failed, RetryOn::Returned][(dead / 4 % 3) as usize],
            min_ms,
            max_ms: min_ms + u64::from(b[11]),
        }),
    }
}

fn some_consumer(model: &Model, n: u8, by_id: bool) -> ConsumerRef {
    if model.consumers.is_empty() {
        return ConsumerKey(77).into();
    }
    let c = &model.consumers[usize::from(n) % model.consumers.len()];
    if by_id { c.id.clone().into() } else { c.key.into() }
}

/// Some of the ids that are held, mixed with others.
fn some_ids(held: &[u64], bytes: &[u8]) -> MsgIds {
    let mut ids = MsgIds::new();
    for byte in bytes {
        let (kind, count, n) = (byte % 4, byte / 4 % 4, byte / 16);
        let start = match held.len() {
            0 => u64::from(n),
            _ if kind == 0 => u64::from(n),
            len => held[usize::from(n) % len],
        };
        ids.push_run(crate::Run { start, count: u64::from(count) });
    }
    ids
}

fn outcome(b: &[u8; OP_BYTES], model: &Model, now: u64) -> Command {
    let consumer = some_consumer(model, b[1], b[2] % 2 == 1);
    let held = model.held_by(&consumer);
    let ids = some_ids(&held, &b[4..5 + usize::from(b[3] % 4)]);
    match b[8] % 8 {
        0 | 1 => Command::Settle { consumer, ids },
        2 => Command::Return { consumer, ids, failed: false },
        3 | 4 => Command::Return { consumer, ids, failed: true },
        5 => Command::Discard { consumer, ids },
        _ => Command::Modify(Box::new(Modify {
            consumer,
            ids,
            failed: b[9] % 2 == 1,
            undeliverable_here: b[9] % 8 == 2,
            deliver_at_ms: sometimes(b[10], 5, (now + u64::from(b[11])).saturating_sub(60)),
            annotations: (0..b[9] / 64).map(|n| (Bytes::from(vec![b'x', n]), Bytes::from(vec![b[11]]))).collect(),
        })),
    }
}

fn enqueue(b: &[u8; OP_BYTES], model: &Model) -> Command {
    let origin = (b[1] >= 64).then(|| some_session(b[1])).map(|session| {
        let distance = if b[2] < 230 { 0 } else { i64::from(b[2] % 4) - 1 };
        (session, model.expected_seq(session).saturating_add_signed(distance))
    });
    let Command::Enqueue(mut enqueue) = publish(origin, usize::from(b[3] % 40)) else { unreachable!() };
    enqueue.delivery_count = u32::from(b[4] / 200);
    enqueue.priority = sometimes(b[5], 9, u64::from(b[5] / 6)).map(|priority| priority as u8);
    enqueue.ttl_ms = sometimes(b[6], 5, u64::from(b[6] / 16) * 20);
    Command::Enqueue(enqueue)
}

fn some_attach(b: &[u8; OP_BYTES]) -> Command {
    let id = ConsumerId { session: some_session(b[1]), tag: format!("c{}", b[2] % 2).into() };
    let Command::Attach(mut attach) = attach(&id, 0, i32::from(b[4] % 3) - 1) else { unreachable!() };
    attach.mode = match b[3] % 8 {
        0..=4 => Mode::SimplePrefetch(u32::from(b[3] % 8)),
        5 => Mode::Credited { initial_delivery_count: 0 },
        _ => Mode::Credited { initial_delivery_count: u32::MAX - 2 },
    };
    attach.timeout_ms = sometimes(b[5], 5, u64::from(b[5] / 16) * 30);
    attach.default_timeout_ms = sometimes(b[6], 3, 100);
    Command::Attach(attach)
}

/// What an operation is at `now`, with what the model has.
pub(super) fn command(op: &Op, model: &Model, now: u64) -> Command {
    let b = &op.0;
    let odd = b[2] % 2 == 1;
    match b[0] {
        0..=89 => enqueue(b, model),
        90..=113 => some_attach(b),
        114..=127 => Command::Dequeue {
            consumer: ConsumerId {
                session: some_session(b[1]),
                tag: Bytes::from_static(if b[2] < 200 { b"g" } else { b"c0" }),
            },
            settled: b[3] % 2 == 1,
            default_timeout_ms: sometimes(b[4], 5, 80),
        },
        128..=179 => outcome(b, model, now),
        180..=197 => {
            let consumer = some_consumer(model, b[1], odd);
            let seen = model.delivery_count(&consumer).wrapping_add(u32::from(b[3] % 5)).wrapping_sub(3);
            let credit = [0, 1, 2, 3, 5, 8, u32::MAX][usize::from(b[4] % 7)];
            Command::Credit { consumer, credit, delivery_count: seen, drain: b[5].is_multiple_of(3) }
        }
        198..=201 => Command::RegisterEnqueuer { session: some_session(b[1]) },
        202..=204 => Command::Cancel { consumer: some_consumer(model, b[1], odd) },
        205..=207 => Command::Remove { consumer: some_consumer(model, b[1], odd) },
        208 => Command::Purge,
        209..=210 => down(some_session(b[1]), SessionLoss::Gone),
        211..=214 => down(some_session(b[1]), SessionLoss::NoConnection),
        215..=218 => Command::NodeUp { node: NodeId(u64::from(b[1] % 3)) },
        219 => Command::PurgeNodes {
            nodes: b[2..][..usize::from(b[1] % 3)].iter().map(|n| NodeId(u64::from(n % 4))).collect(),
        },
        220..=226 => Command::UpdateConfig(some_config(b)),
        227..=231 => match some_consumer(model, b[1], false) {
            ConsumerRef::Key(key) => Command::Timeout(TimerKey::ConsumerDisconnected(key)),
            ConsumerRef::Id(_) => unreachable!(),
        },
        232..=237 => Command::Timeout(TimerKey::ConsumerDeadlines),
        238..=240 => Command::Timeout(TimerKey::ExpireMessages),
        241..=243 => Command::DlxAttach { session: some_worker(b[1]), prefetch: u32::from(b[2] % 4) },
        244..=249 => {
            let (session, held) = model.worker().unwrap_or((some_worker(b[1]), Vec::new()));
            let session = if b[2] < 230 { session } else { some_worker(b[1]) };
            Command::DlxSettle { session, ids: some_ids(&held, &b[4..5 + usize::from(b[3] % 2)]) }
        }
        250..=252 => Command::DelayedRetryNow { count: sometimes(b[1], 10, u64::from(b[2] % 3)) },
        253..=255 => Command::Continue,
    }
}

/// A queue with something of everything in it.
pub(super) fn busy(ops: &[Op], version: MachineVersion, config: Config) -> Member {
    let mut member = Member::with(version, config.clone());
    let mut model = Model::new(config);
    for op in ops {
        let command = command(op, &model, member.ts_ms);
        if command.min_version() <= version {
            member.apply(command.clone());
            model.apply(&member.meta(), &command);
            member.ts_ms += u64::from(op.0[11] % 16);
        }
    }
    member
}
