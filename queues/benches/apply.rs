//! What applying, encoding and decoding cost: one iteration is one message.

use std::hint::black_box;

use bytes::Bytes;
use criterion::{BatchSize, Criterion, Throughput, criterion_group, criterion_main};
use warren_proto::batch::{Batch, BatchBuilder};
use warren_proto::ids::{NodeId, Reference, SessionRef};
use warren_queues::quorum::{
    self, Command, Config, DeadLetter, DeadLetterStrategy, Effect, Effects, Encoder, Enqueue, MV2, Meta, Mode,
    Overflow, Queue,
};
use warren_queues::{ConsumerId, ConsumerKey, ConsumerMeta, MsgIds, Origin, Reply, StoredMessage, classic};

const SESSION: SessionRef = SessionRef { node: NodeId(1 << 60), incarnation: 1 << 61, id: 12 };

fn meta(n: u64) -> Meta {
    Meta { reference: Reference::new(1 + n / 100, (n % 100) as u16), term: 1, ts_ms: 1, version: MV2 }
}

fn message(size: usize) -> StoredMessage {
    StoredMessage::new(40, Bytes::from(vec![0; 40 + size])).expect("a message")
}

fn enqueue(seq: u64, message: &StoredMessage) -> Command {
    Command::Enqueue(Enqueue {
        origin: Some(Origin { session: SESSION, seq }),
        delivery_count: 0,
        priority: None,
        ttl_ms: None,
        message: message.clone(),
    })
}

fn id(tag: &'static str) -> ConsumerId {
    ConsumerId { session: SESSION, tag: Bytes::from_static(tag.as_bytes()) }
}

fn attach(queue: &mut Queue, n: u64, tag: &'static str) -> ConsumerKey {
    attach_with(queue, n, tag, 1000)
}

fn attach_with(queue: &mut Queue, n: u64, tag: &'static str, prefetch: u32) -> ConsumerKey {
    let attach = quorum::Attach {
        consumer: id(tag),
        mode: Mode::SimplePrefetch(prefetch),
        priority: 0,
        timeout_ms: None,
        default_timeout_ms: None,
        meta: ConsumerMeta { ack: true, ..ConsumerMeta::default() },
    };
    match queue.apply(&meta(n), Command::Attach(Box::new(attach)), &mut Effects::new()) {
        Reply::Attached { key, .. } => key,
        other => panic!("{other:?}"),
    }
}

fn quorum_apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("quorum");
    group.throughput(Throughput::Elements(1));
    let message = message(12);

    group.bench_function("enqueue", |b| {
        let (mut queue, mut fx, mut n) = (Queue::new(Config::default()), Effects::new(), 0);
        b.iter(|| {
            n += 1;
            black_box(queue.apply(&meta(n), enqueue(n, &message), &mut fx))
        });
    });

    for consumers in [1usize, 10] {
        group.bench_function(format!("enqueue, deliver, settle, {consumers} consumers"), |b| {
            let (mut queue, mut fx, mut n, mut seq) = (Queue::new(Config::default()), Effects::new(), 0, 0);
            for tag in ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9"].iter().take(consumers) {
                n += 1;
                attach(&mut queue, n, tag);
            }
            b.iter(|| {
                (n, seq) = (n + 1, seq + 1);
                queue.apply(&meta(n), enqueue(seq, &message), &mut fx);
                n += 1;
                let settle = match fx.iter().next() {
                    Some(Effect::Deliver(d)) => {
                        Command::Settle { consumer: d.key.into(), ids: MsgIds::from(d.messages[0].msg_id) }
                    }
                    other => panic!("{other:?}"),
                };
                fx.clear();
                queue.apply(&meta(n), settle, &mut fx)
            });
        });
    }

    group.bench_function("encode an enqueue", |b| {
        let encoder = Encoder::for_group(MV2);
        let mut batch = BatchBuilder::new(MV2);
        let command = enqueue(100_000, &message);
        b.iter(|| {
            if batch.is_full() {
                batch = BatchBuilder::new(MV2);
            }
            black_box(encoder.encode(&command, &mut batch))
        });
    });

    group.bench_function("decode an enqueue", |b| {
        let mut batch = BatchBuilder::new(MV2);
        Encoder::for_group(MV2).encode(&enqueue(100_000, &message), &mut batch).expect("it fits");
        let batch = Batch::parse(batch.finish(1)).expect("a batch");
        b.iter(|| black_box(batch.get(0).map(|bytes| Command::decode(MV2, bytes))));
    });

    group.bench_function("find a body in an enqueue", |b| {
        let mut batch = BatchBuilder::new(MV2);
        Encoder::for_group(MV2).encode(&enqueue(100_000, &message), &mut batch).expect("it fits");
        let command = Batch::parse(batch.finish(1)).ok().and_then(|batch| batch.get(0)).expect("a command");
        b.iter(|| black_box(quorum::stored_message(&command)));
    });
    group.finish();
}

/// Enqueue, deliver and settle under other conditions: the queue's configuration, how many priorities are in use, how long
/// each message may wait, and how many are ready already.
fn quorum_kinds(c: &mut Criterion) {
    let mut group = c.benchmark_group("quorum, enqueue, deliver, settle");
    group.throughput(Throughput::Elements(1));
    for (name, priorities, ttl_ms, backlog) in [
        ("one priority", 1, None, 0),
        ("ten priorities", 10, None, 0),
        ("ten priorities, 10,000 ready", 10, None, 10_000),
        ("TTL", 1, Some(60_000), 0),
        ("TTL, ten priorities, 10,000 ready", 10, Some(60_000), 10_000),
    ] {
        group.bench_function(name, |b| {
            let (mut queue, mut fx, mut n, mut seq) = (Queue::new(Config::default()), Effects::new(), 0, 0);
            let message = message(12);
            let publish = |seq: u64| {
                let Command::Enqueue(mut enqueue) = enqueue(seq, &message) else { unreachable!() };
                (enqueue.priority, enqueue.ttl_ms) = (Some((seq % priorities) as u8), ttl_ms);
                Command::Enqueue(enqueue)
            };
            for _ in 0..backlog {
                (n, seq) = (n + 1, seq + 1);
                queue.apply(&meta(n), publish(seq), &mut fx);
            }
            n += 1;
            let key = attach_with(&mut queue, n, "c", 1);
            // The first message that it holds, if there is a backlog.
            let mut held = (backlog > 0).then_some(0);
            b.iter(|| {
                (n, seq) = (n + 1, seq + 1);
                queue.apply(&meta(n), publish(seq), &mut fx);
                held = held.or_else(|| delivered(&fx));
                n += 1;
                let ids = MsgIds::from(held.expect("a delivery"));
                fx.clear();
                let reply = queue.apply(&meta(n), Command::Settle { consumer: key.into(), ids }, &mut fx);
                held = delivered(&fx);
                fx.clear();
                reply
            });
        });
    }
    group.finish();
}

/// The id of the message that was handed out.
fn delivered(fx: &Effects) -> Option<u64> {
    fx.iter().find_map(|effect| match effect {
        Effect::Deliver(deliver) => Some(deliver.messages[0].msg_id),
        _ => None,
    })
}

/// Enqueue, reject, hand to the worker, settle there.
fn quorum_dead_letters(c: &mut Criterion) {
    let mut group = c.benchmark_group("quorum, dead letters");
    group.throughput(Throughput::Elements(1));
    let to = |strategy| DeadLetter { exchange: "dead".to_owned(), routing_key: None, strategy };
    for (name, strategy) in
        [("at most once", DeadLetterStrategy::AtMostOnce), ("at least once", DeadLetterStrategy::AtLeastOnce)]
    {
        group.bench_function(name, |b| {
            let overflow = Overflow::RejectPublish;
            let config = Config { overflow, dead_letter: Some(to(strategy)), ..Config::default() };
            let (mut queue, mut fx, mut n, mut seq) = (Queue::new(config), Effects::new(), 2, 0);
            let message = message(12);
            let key = attach(&mut queue, 1, "c");
            queue.apply(&meta(2), Command::DlxAttach { session: SESSION, prefetch: 32 }, &mut fx);
            b.iter(|| {
                (n, seq) = (n + 3, seq + 1);
                fx.clear();
                queue.apply(&meta(n), enqueue(seq, &message), &mut fx);
                let ids = MsgIds::from(delivered(&fx).expect("a delivery"));
                fx.clear();
                queue.apply(&meta(n + 1), Command::Discard { consumer: key.into(), ids }, &mut fx);
                let dead = fx.iter().find_map(|effect| match effect {
                    Effect::DlxDeliver { messages, .. } => Some(messages[0].1.msg_id),
                    _ => None,
                });
                if let Some(id) = dead {
                    let settle = Command::DlxSettle { session: SESSION, ids: MsgIds::from(id) };
                    queue.apply(&meta(n + 2), settle, &mut fx);
                }
            });
        });
    }
    group.finish();
}

fn quorum_snapshot(c: &mut Criterion) {
    let mut queue = Queue::new(Config::default());
    let (mut fx, message) = (Effects::new(), message(12));
    for n in 1..=1_000_000 {
        queue.apply(&meta(n), enqueue(n, &message), &mut fx);
    }
    let state = queue.encode_state();
    let mut group = c.benchmark_group("quorum, a million ready");
    group.sample_size(10);
    group.bench_function("encode the state", |b| b.iter(|| black_box(queue.encode_state())));
    group.bench_function("decode the state", |b| b.iter(|| black_box(Queue::decode_state(&state))));
    group.bench_function("find what is live", |b| b.iter(|| black_box(queue.live())));
    group.bench_function("hand out 1000, get them back", |b| {
        b.iter_batched(
            || Queue::decode_state(&state).expect("a state"),
            |mut queue| {
                let key = attach(&mut queue, 2_000_000, "c");
                queue.apply(&meta(2_000_001), Command::Remove { consumer: key.into() }, &mut Effects::new())
            },
            BatchSize::PerIteration,
        );
    });
    group.finish();
}

fn classic_apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("classic");
    group.throughput(Throughput::Elements(1));
    group.bench_function("enqueue, deliver, settle", |b| {
        let (mut queue, mut fx, message) = (classic::Queue::new(1), classic::Effects::new(), message(12));
        let attach = classic::Attach {
            consumer: id("c"),
            prefetch: 1000,
            exclusive: false,
            priority: 0,
            meta: ConsumerMeta { ack: true, ..ConsumerMeta::default() },
        };
        queue.apply(1, classic::Command::Attach(Box::new(attach)), &mut fx);
        fx.clear();
        b.iter(|| {
            queue.apply(1, classic::Command::Enqueue { origin: None, message: message.clone() }, &mut fx);
            let settle = match fx.iter().next() {
                Some(classic::Effect::Deliver(d)) => {
                    classic::Command::Settle { consumer: d.key.into(), ids: MsgIds::from(d.messages[0].msg_id) }
                }
                other => panic!("{other:?}"),
            };
            fx.clear();
            queue.apply(1, settle, &mut fx)
        });
    });
    group.finish();
}

criterion_group!(benches, quorum_apply, quorum_kinds, quorum_dead_letters, quorum_snapshot, classic_apply);
criterion_main!(benches);
