//! What the machine takes of memory, in allocated bytes, and that it allocates nothing as messages come and go:
//! `cargo test -p warren-queues --test memory -- --nocapture` shows the figures.

use bytes::Bytes;
use warren_proto::ids::{NodeId, Reference, SessionRef};
use warren_queues::quorum::{Attach, Command, Config, Effect, Effects, Enqueue, MV2, Meta, Mode, Queue};
use warren_queues::{ConsumerId, ConsumerKey, ConsumerMeta, MsgIds, Origin, Reply, StoredMessage};

/// Counts what this thread has allocated.
///
/// The only unsafe code: an allocator cannot be written without. It passes every call on to the system's.
#[allow(unsafe_code)]
mod counting {
    use std::alloc::{GlobalAlloc, Layout, System};
    use std::cell::Cell;

    thread_local! {
        static BYTES: Cell<isize> = const { Cell::new(0) };
        static CALLS: Cell<u64> = const { Cell::new(0) };
    }

    struct Counting;

    #[global_allocator]
    static ALLOCATOR: Counting = Counting;

    fn count(bytes: isize) {
        // A thread that ends has no counters any more.
        let _ = BYTES.try_with(|all| all.set(all.get() + bytes));
        if bytes > 0 {
            let _ = CALLS.try_with(|calls| calls.set(calls.get() + 1));
        }
    }

    // SAFETY: the system's allocator does the work, with the same arguments.
    unsafe impl GlobalAlloc for Counting {
        unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
            count(layout.size() as isize);
            unsafe { System.alloc(layout) }
        }

        unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
            count(-(layout.size() as isize));
            unsafe { System.dealloc(at, layout) }
        }

        unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
            count(size as isize - layout.size() as isize);
            unsafe { System.realloc(at, layout, size) }
        }
    }

    /// Bytes that this thread has allocated and not freed.
    pub fn bytes() -> isize {
        BYTES.get()
    }

    /// How often this thread has asked for memory, or for more of it.
    pub fn calls() -> u64 {
        CALLS.get()
    }
}

const SESSION: SessionRef = SessionRef { node: NodeId(1), incarnation: 1, id: 12 };

/// A queue and the place in its log.
struct Log {
    queue: Queue,
    fx: Effects,
    index: u64,
}

impl Log {
    fn new(config: Config) -> Self {
        Log { queue: Queue::new(config), fx: Effects::new(), index: 0 }
    }

    /// One command of a batch of 50.
    fn apply(&mut self, command: Command) -> Reply<warren_queues::quorum::Delivered> {
        self.index += 1;
        let reference = Reference::new(1 + self.index / 50, (self.index % 50) as u16);
        let meta = Meta { reference, term: 1, ts_ms: 1_900_000_000_000, version: MV2 };
        self.fx.clear();
        self.queue.apply(&meta, command, &mut self.fx)
    }

    fn fill(&mut self, count: usize, ttl_ms: Option<u64>) {
        let message = StoredMessage::new(0, Bytes::from_static(b"twelve bytes")).unwrap();
        for _ in 0..count {
            let message = message.clone();
            self.apply(Command::Enqueue(Enqueue { origin: None, delivery_count: 0, priority: None, ttl_ms, message }));
        }
    }

    fn attach(&mut self, session: SessionRef, tag: u64, prefetch: u32) -> ConsumerKey {
        let attach = Attach {
            consumer: ConsumerId { session, tag: Bytes::copy_from_slice(&tag.to_le_bytes()) },
            mode: Mode::SimplePrefetch(prefetch),
            priority: 0,
            timeout_ms: None,
            default_timeout_ms: None,
            meta: ConsumerMeta { ack: true, ..ConsumerMeta::default() },
        };
        let Reply::Attached { key, .. } = self.apply(Command::Attach(Box::new(attach))) else { panic!() };
        while self.queue.work_owed() {
            self.apply(Command::Continue);
        }
        key
    }
}

/// Bytes that `change` has the queue take, per `count`, to be at most `most`.
fn per(what: &str, count: usize, most: f64, log: &mut Log, change: impl FnOnce(&mut Log)) {
    log.fx = Effects::new();
    let before = counting::bytes();
    change(log);
    log.fx = Effects::new();
    let each = (counting::bytes() - before) as f64 / count as f64;
    println!("{what}: {each:.1} bytes");
    assert!(each <= most, "{what}: {each:.1} bytes");
}

#[test]
fn a_ready_message_takes_eight_bytes_and_its_expiry_six_more() {
    for (what, ttl_ms, most) in [("ready", None, 10.0), ("ready with TTL", Some(60_000), 18.0)] {
        per(what, 1_000_000, most, &mut Log::new(Config::default()), |log| log.fill(1_000_000, ttl_ms));
    }
}

#[test]
fn five_million_ready_messages_take_less_than_80_mb() {
    let mut log = Log::new(Config::default());
    per("queue of 5 million ready messages, all", 1, 80e6, &mut log, |log| log.fill(5_000_000, None));
    let state = log.queue.encode_state().len();
    println!("state of 5 million ready messages, encoded: {state} bytes");
    assert!(state < 8 * 5_000_000 + 2048);
}

#[test]
fn messages_that_are_held_or_were_take_a_record_each() {
    // 2^20 fill the ring's capacity to the last.
    let count = 1 << 20;
    let mut log = Log::new(Config::default());
    log.fill(count, None);
    let (mut key, ready) = (ConsumerKey(0), 8.3);
    per("held, beyond ready", count, 48.0 - ready + 0.5, &mut log, |log| key = log.attach(SESSION, 1, u32::MAX));
    let mut log = Log::new(Config::default());
    per("returned", count, 40.5, &mut log, |log| {
        log.fill(count, None);
        let key = log.attach(SESSION, 1, u32::MAX);
        log.apply(Command::Remove { consumer: key.into() });
    });
}

#[test]
fn consumers_and_enqueuers_take_some_hundred_bytes() {
    let session = |id: u64| SessionRef { id, ..SESSION };
    for (what, single_active) in [("consumer", false), ("consumer that waits", true)] {
        let mut log = Log::new(Config { single_active, ..Config::default() });
        per(what, 10_000, 550.0, &mut log, |log| {
            for tag in 0..10_000 {
                log.attach(SESSION, tag, 10);
            }
        });
    }
    let mut log = Log::new(Config::default());
    per("enqueuer", 10_000, 112.0, &mut log, |log| {
        (0..10_000).for_each(|id| drop(log.apply(Command::RegisterEnqueuer { session: session(id) })));
    });
}

#[test]
fn nothing_is_allocated_as_messages_come_and_go() {
    for (what, priorities, ttl_ms) in [("plain", 1, None), ("ten priorities", 10, None), ("with TTL", 1, Some(60_000))]
    {
        let mut log = Log::new(Config::default());
        let key = log.attach(SESSION, 1, 1000);
        let message = StoredMessage::new(0, Bytes::from_static(b"twelve bytes")).unwrap();
        let mut before = 0;
        for seq in 1..=20_000 {
            if seq == 10_000 {
                before = counting::calls();
            }
            let priority = Some((seq % priorities) as u8);
            let origin = Some(Origin { session: SESSION, seq });
            let message = message.clone();
            log.apply(Command::Enqueue(Enqueue { origin, delivery_count: 0, priority, ttl_ms, message }));
            let Some(Effect::Deliver(deliver)) = log.fx.iter().find(|e| matches!(e, Effect::Deliver(_))) else {
                panic!()
            };
            let id = deliver.messages[0].msg_id;
            log.apply(Command::Settle { consumer: key.into(), ids: MsgIds::from(id) });
        }
        assert_eq!(counting::calls() - before, 0, "{what}");
    }
}
