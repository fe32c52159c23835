//! Costs that publishers and declarers feel: finding a route, taking in a binding, losing a queue with many bindings.
//!
//! `cargo bench -p warren-metastore`

use std::hint::black_box;
use std::sync::Arc;

use criterion::{BatchSize, Criterion, criterion_group, criterion_main};
use warren_metastore::machine::{Machine, Meta, Write};
use warren_metastore::projections::{Projections, Routed};
use warren_metastore::records::{Binding, DestinationKind, Queue, Vhost};
use warren_proto::ids::{GroupId, Reference};

const VHOST: &str = "/";

/// A machine with its projections.
struct Broker {
    machine: Machine,
    projections: Projections,
    index: u64,
}

impl Broker {
    fn new() -> Self {
        let mut broker = Broker { machine: Machine::new(), projections: Projections::new(), index: 0 };
        broker.write(&Vhost::named(VHOST).create(None));
        broker
    }

    fn apply(&mut self, write: &Write) -> warren_metastore::machine::Outcome {
        self.index += 1;
        let reference = Reference::new(self.index, 0);
        let meta = Meta { reference, ts_ms: self.index, version: *Machine::VERSIONS.end() };
        self.machine.apply(meta, &write.to_bytes(None))
    }

    fn write(&mut self, write: &Write) {
        let outcome = self.apply(write);
        assert!(outcome.reply.is_ok());
        self.projections.apply(&outcome.changes, self.machine.tree(), self.machine.applied());
    }

    fn queue(&mut self, name: &str) {
        let group = GroupId(self.index + 1);
        self.write(&Queue { vhost: VHOST.into(), name: name.into(), group, ..Queue::default() }.create_or_get());
    }

    fn bind(&mut self, source: &str, queue: &str, key: &str) {
        self.write(&binding(source, queue, key).put());
    }
}

fn binding(source: &str, queue: &str, key: &str) -> Binding {
    Binding {
        vhost: VHOST.into(),
        source: source.into(),
        destination_kind: DestinationKind::Queue,
        destination: queue.into(),
        key: key.as_bytes().into(),
        arguments: Arc::default(),
    }
}

/// Whether a binding key matches a routing key, word by word.
fn matches(pattern: &[&str], words: &[&str]) -> bool {
    match pattern.split_first() {
        None => words.is_empty(),
        Some((&"#", rest)) => (0..=words.len()).any(|used| matches(rest, &words[used..])),
        Some((word, rest)) => {
            words.split_first().is_some_and(|(first, words)| (*word == "*" || word == first) && matches(rest, words))
        }
    }
}

fn routing(c: &mut Criterion) {
    let mut broker = Broker::new();
    let mut keys = Vec::new();
    for n in 0..1000 {
        broker.queue(&format!("queue-{n}"));
        broker.bind("amq.direct", &format!("queue-{n}"), &format!("key-{n}"));
    }
    for n in 0..100_000 {
        let key = format!("region{}.site{}.device{n}.temperature.#", n % 10, n % 1000);
        broker.bind("amq.topic", &format!("queue-{}", n % 1000), &key);
        keys.push(key);
    }
    for n in 0..9 {
        let key = ["#.value", "region3.#", "*.site3.#", "*.*.*.temperature.value", "region3.*.*.*.value"][n % 5];
        broker.bind("amq.topic", &format!("queue-{}", 500 + n), key);
        keys.push(key.to_owned());
    }
    let view = broker.projections.load();
    let vhost = view.vhost(VHOST).unwrap();
    let mut route = |name: &str, exchange: &str, key: &[u8]| {
        let mut found = Routed::new();
        vhost.route_into(exchange, &[key], None, &mut found);
        c.bench_function(&format!("{name} ({} hits)", found.len()), |b| {
            b.iter(|| {
                let mut out = Routed::new();
                vhost.route_into(black_box(exchange), &[black_box(key)], None, &mut out);
                black_box(out)
            })
        });
    };
    route("default exchange", "", b"queue-500");
    route("direct exchange", "amq.direct", b"key-500");
    route("topic exchange, 100,000 bindings", "amq.topic", b"region3.site3.device3.temperature.value");
    let patterns: Vec<Vec<&str>> = keys.iter().map(|key| key.split('.').collect()).collect();
    let words: Vec<&str> = "region3.site3.device3.temperature.value".split('.').collect();
    c.bench_function("the same by trying every binding key", |b| {
        b.iter(|| patterns.iter().filter(|pattern| matches(pattern, black_box(&words))).count())
    });
    c.bench_function("whole look-up from the newest view, direct exchange", |b| {
        b.iter(|| broker.projections.peek().route(VHOST, "amq.direct", &[black_box(&b"key-500"[..])], None))
    });
}

fn writing(c: &mut Criterion) {
    let mut broker = Broker::new();
    broker.queue("q");
    for n in 0..100_000 {
        broker.bind("amq.topic", "q", &format!("a.b.{n}"));
    }
    let mut n = 0;
    c.bench_function("one more binding beside 100,000, applied and projected", |b| {
        b.iter(|| {
            n += 1;
            broker.bind("amq.topic", "q", &format!("c.d.{n}"));
        })
    });
    let machine = broker.machine.clone();
    c.bench_function("snapshot of 100,000 bindings", |b| b.iter(|| machine.snapshot().len()));
    let snapshot = machine.snapshot();
    let mut group = c.benchmark_group("slow");
    group.sample_size(10);
    group.bench_function("restore of 100,000 bindings", |b| b.iter(|| Machine::restore(&snapshot).unwrap()));
    group.bench_function("projections of 100,000 bindings from a tree", |b| {
        b.iter(|| Projections::new().install(machine.tree(), machine.applied()))
    });
    let mut start = Broker::new();
    start.queue("q");
    for n in 0..10_000 {
        start.bind("amq.topic", "q", &format!("a.b.{n}"));
    }
    let revision = Queue::get(&start.machine.tree(), VHOST, "q").unwrap().unwrap().create_revision;
    group.bench_function("deleting a queue with 10,000 bindings, applied and projected", |b| {
        b.iter_batched(
            || {
                let projections = Projections::new();
                projections.install(start.machine.tree(), start.machine.applied());
                Broker { machine: start.machine.clone(), projections, index: start.index }
            },
            |mut broker| {
                broker.write(&Queue::delete(VHOST, "q", revision));
                broker
            },
            BatchSize::LargeInput,
        )
    });
}

criterion_group!(benches, routing, writing);
criterion_main!(benches);
