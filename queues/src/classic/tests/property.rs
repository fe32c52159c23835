//! Random histories against a list: every message is at one place, and leaves in the order of publishing among what is
//! ready.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

#[derive(Debug, Clone)]
enum Op {
    Publish,
    Attach(u8, u8, bool, i8),
    Get(u8, bool),
    Outcome(u8, Vec<u8>, u8),
    Sent(u8, u8),
    Cancel(u8),
    Remove(u8),
    Purge,
    Down(u8),
    NodeDown(u8),
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        8 => Just(Op::Publish),
        4 => (any::<u8>(), 0u8..4, any::<bool>(), 0i8..3).prop_map(|(c, n, ack, p)| Op::Attach(c, n, ack, p)),
        3 => (any::<u8>(), any::<bool>()).prop_map(|(c, settled)| Op::Get(c, settled)),
        8 => (any::<u8>(), vec(0u8..12, 0..4), 0u8..4).prop_map(|(c, ids, how)| Op::Outcome(c, ids, how)),
        1 => (any::<u8>(), any::<u8>()).prop_map(|(c, n)| Op::Sent(c, n)),
        1 => any::<u8>().prop_map(Op::Cancel),
        1 => any::<u8>().prop_map(Op::Remove),
        1 => Just(Op::Purge),
        1 => any::<u8>().prop_map(Op::Down),
        1 => any::<u8>().prop_map(Op::NodeDown),
    ]
}

fn some_consumer(n: u8) -> ConsumerId {
    ConsumerId { session: session(u64::from(n % 2), u64::from(n / 2 % 2)), tag: vec![b'0' + n / 4 % 2].into() }
}

/// What the model knows: where each message is, by number.
#[derive(Default)]
struct Places {
    ready: BTreeSet<u64>,
    held: BTreeMap<(ConsumerKey, u64), u64>,
    ids: BTreeMap<ConsumerId, ConsumerKey>,
    seen: BTreeSet<u64>,
    published: u64,
}

impl Places {
    fn number(d: &Delivered) -> u64 {
        name(d).parse().unwrap()
    }

    /// A message is handed out: it must be the oldest that is ready, and know whether it was out before.
    fn out(&mut self, d: &Delivered) -> u64 {
        let number = Self::number(d);
        assert_eq!(self.ready.pop_first(), Some(number));
        assert_eq!(d.redelivered, !self.seen.insert(number));
        number
    }

    fn back(&mut self, belongs: impl Fn(ConsumerKey) -> bool) {
        let back: Vec<_> = self.held.keys().filter(|(key, _)| belongs(*key)).copied().collect();
        for at in back {
            self.ready.extend(self.held.remove(&at));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn every_message_is_at_one_place_and_leaves_in_order(ops in vec(op(), 1..120)) {
        let mut h = Home::default();
        let mut p = Places::default();
        for op in ops {
            let id = |n: u8| some_consumer(n);
            let before: Vec<_> = h.queue.consumers().map(|c| c.id).collect();
            match op {
                Op::Publish => {
                    p.ready.insert(p.published);
                    h.publish([p.published.to_string().as_str()]);
                    p.published += 1;
                }
                Op::Attach(c, prefetch, ack, priority) => {
                    let meta = ConsumerMeta { ack, ..ConsumerMeta::default() };
                    let attach = Attach { meta, priority: priority.into(), ..plain(&id(c), prefetch.into()) };
                    if let Reply::Attached { key, .. } = h.apply(Command::Attach(Box::new(attach))) {
                        p.ids.insert(id(c), key);
                    }
                }
                Op::Get(c, settled) => match h.apply(Command::Dequeue { consumer: id(c), settled }) {
                    Reply::Got { key, message, .. } if settled && !p.held.contains_key(&(key, message.msg_id)) => {
                        p.out(&message);
                    }
                    Reply::Got { key, message, .. } => match p.held.get(&(key, message.msg_id)) {
                        Some(number) => assert_eq!(*number, Places::number(&message)),
                        None => {
                            let number = p.out(&message);
                            p.held.insert((key, message.msg_id), number);
                            p.ids.insert(id(c), key);
                        }
                    },
                    Reply::Empty => assert!(p.ready.is_empty()),
                    other => assert_eq!(other, Reply::IdInUse),
                },
                Op::Outcome(c, ids, how) => {
                    let ids = MsgIds::from_iter(ids.into_iter().map(u64::from));
                    let consumer = id(c).into();
                    if let Some(key) = p.ids.get(&id(c)) {
                        for run in ids.runs() {
                            for n in run.start..run.start + run.count {
                                if let Some(number) = p.held.remove(&(*key, n)) && how < 2 {
                                    p.ready.insert(number);
                                }
                            }
                        }
                    }
                    h.apply(match how {
                        0 => Command::Return { consumer, ids, failed: false },
                        1 => Command::Return { consumer, ids, failed: true },
                        2 => Command::Settle { consumer, ids },
                        _ => Command::Discard { consumer, ids },
                    });
                }
                Op::Sent(c, count) => drop(h.apply(Command::Sent { consumer: id(c).into(), count: count.into() })),
                Op::Cancel(c) => drop(h.apply(Command::Cancel { consumer: id(c).into() })),
                Op::Remove(c) => {
                    if let Reply::Cancelled { key, .. } = h.apply(Command::Remove { consumer: id(c).into() }) {
                        p.back(|k| k == key);
                    }
                }
                Op::Purge => {
                    let reply = h.apply(Command::Purge);
                    assert_eq!(reply, Reply::Purged { count: p.ready.len() as u64 });
                    p.ready.clear();
                }
                Op::Down(c) => {
                    let session = id(c).session;
                    let keys: Vec<_> = p.ids.iter().filter(|(id, _)| id.session == session).map(|e| *e.1).collect();
                    p.back(|key| keys.contains(&key));
                    h.apply(Command::SessionDown { session });
                }
                Op::NodeDown(c) => {
                    let node = id(c).session.node;
                    let keys: Vec<_> = p.ids.iter().filter(|(id, _)| id.session.node == node).map(|e| *e.1).collect();
                    p.back(|key| keys.contains(&key));
                    h.apply(Command::NodeDown { node });
                }
            }
            // Deliveries are grouped by consumer: the order over all is that of the messages.
            let mut delivered = h.delivered();
            delivered.sort_by_key(|(_, d)| Places::number(d));
            for (key, d) in &delivered {
                let number = p.out(d);
                assert!(p.held.insert((*key, d.msg_id), number).is_none());
            }
            let o = h.queue.overview();
            assert_eq!((o.ready, o.unacked), (p.ready.len() as u64, p.held.len() as u64));
            let gone = !before.is_empty() && h.queue.consumers().count() == 0;
            assert_eq!(h.last_consumer_gone(), gone);
        }
    }
}
