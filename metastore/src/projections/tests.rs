use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use warren_proto::amqp091::{FieldTable, FieldValue, TableRef};

use super::*;
use crate::machine::Machine;
use crate::random_writes::{Act, KEYS, Log, act, arguments, exchange_name, vhost_name};
use crate::records::{
    Binding, BindingNode, Cluster, DeleteExchange, DestinationKind, Exchange, ExchangeKind, Permission, Policy, Queue,
    Vhost,
};
use crate::tree::{Condition, Op, Path, Pattern, Step};

/// Whether a binding key matches a routing key, by trying everything.
fn topic_matches(pattern: &[&[u8]], words: &[&[u8]]) -> bool {
    match pattern.split_first() {
        None => words.is_empty(),
        Some((&b"#", rest)) => (0..=words.len()).any(|n| topic_matches(rest, &words[n..])),
        Some((&b"*", rest)) => words.split_first().is_some_and(|(_, words)| topic_matches(rest, words)),
        Some((word, rest)) => {
            words.split_first().is_some_and(|(first, words)| first == word && topic_matches(rest, words))
        }
    }
}

fn split(key: &[u8]) -> Vec<&[u8]> {
    if key.is_empty() { Vec::new() } else { key.split(|b| *b == b'.').collect() }
}

fn headers_match(binding: &TableRef<'_>, message: &TableRef<'_>) -> bool {
    let binding = binding.to_table().unwrap();
    let any = binding.get("x-match").is_some();
    let agrees =
        |(name, value): (&str, &FieldValue)| message.get(name).is_some_and(|v| v.to_value().unwrap() == *value);
    let mut tested = binding.iter().filter(|(name, _)| !name.starts_with("x-"));
    if any { tested.any(agrees) } else { tested.all(agrees) }
}

/// The alternate exchange by its argument, else by the first of the matching policies, which all have the same priority.
fn alternate_exchange(tree: &Tree, exchange: &Exchange) -> Option<String> {
    if let Some(alternate) = TableRef::new(&exchange.arguments).get("alternate-exchange") {
        return Some(String::from_utf8(alternate.as_long_str().unwrap().to_vec()).unwrap());
    }
    let policies = Policy::list(tree, &exchange.vhost).unwrap();
    let policy = policies.iter().find(|policy| regex::Regex::new(&policy.pattern).unwrap().is_match(&exchange.name));
    policy?.definition.get("alternate-exchange").map(|name| name.as_str().unwrap().to_owned())
}

/// Routing straight from the tree's bindings.
fn slow_route(tree: &Tree, vhost: &str, exchange: &str, keys: &[&[u8]], headers: &[u8]) -> BTreeSet<String> {
    let mut queues = BTreeSet::new();
    let (mut open, mut seen) = (vec![exchange.to_owned()], BTreeSet::new());
    while let Some(name) = open.pop() {
        let Some(exchange) = Exchange::get(tree, vhost, &name).unwrap() else { continue };
        if !seen.insert(name.clone()) {
            continue;
        }
        let matches = |binding: &Binding| {
            let any_key = |f: &dyn Fn(&[u8]) -> bool| keys.iter().any(|key| f(key));
            match exchange.kind {
                ExchangeKind::Direct => any_key(&|key| key == &binding.key[..]),
                ExchangeKind::Fanout => true,
                ExchangeKind::Topic => any_key(&|key| topic_matches(&split(&binding.key), &split(key))),
                ExchangeKind::Headers => headers_match(&TableRef::new(&binding.arguments), &TableRef::new(headers)),
                ExchangeKind::Other(_) => false,
            }
        };
        let mut none = true;
        for binding in Binding::list_from(tree, vhost, &name).unwrap().iter().filter(|b| matches(b)) {
            none = false;
            match binding.destination_kind {
                DestinationKind::Queue => {
                    queues.insert(binding.destination.to_string());
                }
                DestinationKind::Exchange => open.push(binding.destination.to_string()),
            }
        }
        if none && let Some(alternate) = alternate_exchange(tree, &exchange) {
            open.push(alternate);
        }
    }
    queues
}

fn names(routed: &Routed) -> Vec<String> {
    routed.iter().map(|queue| queue.name.to_string()).collect()
}

fn check_routes(view: &View) {
    let keys: Vec<&[u8]> = KEYS.iter().map(|key| key.as_bytes()).chain([&b"b.a"[..], b"a.b.c", b"x.a.y"]).collect();
    for vhost in (0..2).map(vhost_name) {
        for exchange in (0..5).map(exchange_name) {
            for (i, key) in keys.iter().enumerate() {
                let table = arguments((i % 4) as u8);
                let both = [*key, keys[(i * 7) % keys.len()]];
                for keys in [&both[..1], &both[..]] {
                    let routed = view.route(&vhost, &exchange, keys, Some(&TableRef::new(&table)));
                    let fast = names(&routed);
                    let set: BTreeSet<_> = fast.iter().cloned().collect();
                    assert_eq!(set.len(), fast.len(), "a queue twice: {fast:?}");
                    assert_eq!(set, slow_route(view.tree(), &vhost, &exchange, keys, &table), "{exchange} {keys:?}");
                    for queue in &routed {
                        let stored = Queue::get(view.tree(), &vhost, &queue.name).unwrap().unwrap();
                        assert_eq!((&*queue.record(), queue.group), (&stored, stored.group));
                    }
                }
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn a_view_fed_with_changes_equals_one_built_from_the_tree(
        acts in vec(act(), 1..120), install_at in 0usize..120
    ) {
        let mut log = Log::default();
        let (fed, late) = (Projections::new(), Projections::new());
        for (i, act) in acts.iter().enumerate() {
            if i == install_at {
                late.install(log.machine.tree(), log.machine.applied());
            }
            if let Some(outcome) = log.act(act) {
                fed.apply(&outcome.changes, log.machine.tree(), log.machine.applied());
            }
        }
        late.install(log.machine.tree(), log.machine.applied());
        prop_assert_eq!(fed.load().check_against_rebuild(), Ok(()));
        prop_assert_eq!(late.load().check_against_rebuild(), Ok(()));
        check_routes(&fed.load());
        check_routes(&late.load());
    }

    #[test]
    fn after_every_step_a_view_equals_one_built_from_the_tree(steps in vec((act(), 0u8..8), 1..50)) {
        let mut log = Log::default();
        let projections = Projections::new();
        let mut behind = false;
        for (act, sync) in &steps {
            let Some(outcome) = log.act(act) else { continue };
            let (tree, applied) = (log.machine.tree(), log.machine.applied());
            match (sync, behind) {
                // It misses commands, until a snapshot brings it up to date.
                (0, _) => behind = true,
                (1 | 2, true) => {
                    let restored = Machine::restore(&log.machine.snapshot()).unwrap();
                    projections.install(restored.tree(), restored.applied());
                    behind = false;
                }
                (_, true) => {}
                (_, false) => projections.apply(&outcome.changes, tree, applied),
            }
            if !behind {
                prop_assert_eq!(projections.load().check_against_rebuild(), Ok(()), "after {:?}", act);
                prop_assert_eq!(projections.load().applied(), applied);
            }
        }
    }

    #[test]
    fn a_generation_that_has_not_risen_means_that_no_route_changed(acts in vec(act(), 1..60)) {
        let mut log = Log::default();
        let projections = Projections::new();
        for act in &acts {
            let before = projections.load();
            let Some(outcome) = log.act(act) else { continue };
            projections.apply(&outcome.changes, log.machine.tree(), log.machine.applied());
            let after = projections.load();
            prop_assert_eq!(after.generation(), projections.generation());
            if before.generation() == after.generation() {
                for (exchange, key) in (0..5).zip(KEYS.iter().cycle()) {
                    let route = |view: &View| {
                        let routed = view.route("v0", &exchange_name(exchange), &[key.as_bytes()], None);
                        routed.iter().map(|q| Arc::as_ptr(q) as usize).collect::<BTreeSet<_>>()
                    };
                    prop_assert_eq!(route(&before), route(&after));
                }
            }
        }
    }

    #[test]
    fn records_that_cannot_be_read_do_no_harm_to_the_others(
        acts in vec(act(), 1..60), damage in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<u8>()), 1..6)
    ) {
        let mut log = Log::default();
        let fed = Projections::new();
        let feed = |outcome: crate::machine::Outcome, log: &Log| {
            fed.apply(&outcome.changes, log.machine.tree(), log.machine.applied());
        };
        for act in &acts {
            if let Some(outcome) = log.act(act) {
                feed(outcome, &log);
            }
        }
        for (node, at, byte) in damage {
            let tree = log.machine.tree();
            let mut payloads = Vec::new();
            let everything = Pattern::new(vec![Step::AnyDepth]);
            tree.visit(&everything, &mut |path, node| {
                payloads.extend(node.payload().map(|payload| (Path::new(path.to_vec()), payload.clone())));
                true
            });
            if payloads.is_empty() {
                continue;
            }
            let (path, mut payload) = node.get(&payloads).clone();
            let mut bytes = payload.bytes.to_vec();
            if let Some(place) = at.index(bytes.len() + 1).checked_sub(1) {
                bytes[place] = byte;
            }
            payload.bytes = bytes.into();
            let put = Op::Put { path, condition: Condition::always(), payload: Some(payload), keep_while: None };
            feed(log.write(&put.into()), &log);
        }
        let rebuilt = Projections::new();
        rebuilt.install(log.machine.tree(), log.machine.applied());
        for view in [fed.load(), rebuilt.load()] {
            for (vhost, exchange) in (0..2).flat_map(|vhost| (0..5).map(move |exchange| (vhost, exchange))) {
                let table = arguments(exchange);
                for key in KEYS {
                    let headers = TableRef::new(&table);
                    view.route(&vhost_name(vhost), &exchange_name(exchange), &[key.as_bytes()], Some(&headers));
                }
            }
            for vhost in (0..2).filter_map(|vhost| view.vhost(&vhost_name(vhost))) {
                for queue in vhost.queues() {
                    let _ = vhost.bindings_to(view.tree(), DestinationKind::Queue, &queue.name);
                }
            }
            let _ = (Cluster::name(view.tree()), Binding::list(view.tree(), "v0"));
        }
    }

    #[test]
    fn the_trie_matches_as_trying_everything_does(
        patterns in vec(vec(prop::sample::select(vec!["", "a", "b", "*", "#"]), 0..6), 1..30),
        keys in vec(vec(prop::sample::select(vec!["", "a", "b", "*", "#"]), 0..6), 1..120),
        removed in vec(any::<prop::sample::Index>(), 0..10),
    ) {
        let mut trie = topic::Topic::default();
        let mut patterns: Vec<String> = patterns.iter().map(|words| words.join(".")).collect();
        let to = |pattern: &str| Destination::Exchange(pattern.into());
        for pattern in &patterns {
            trie.insert(pattern.as_bytes(), to(pattern));
        }
        for index in removed {
            let pattern = index.get(&patterns).clone();
            trie.remove(pattern.as_bytes(), &to(&pattern));
            patterns.retain(|p| *p != pattern);
            if patterns.is_empty() {
                break;
            }
        }
        for key in keys.iter().map(|words| words.join(".")) {
            let mut found = BTreeSet::new();
            trie.for_each_match(key.as_bytes(), &mut |destination| {
                found.insert(destination.name().to_owned());
            });
            let expected: BTreeSet<_> = patterns
                .iter()
                .filter(|pattern| topic_matches(&split(pattern.as_bytes()), &split(key.as_bytes())))
                .cloned()
                .collect();
            prop_assert_eq!(found, expected, "{}", key);
        }
        for pattern in &patterns {
            trie.remove(pattern.as_bytes(), &to(pattern));
        }
        prop_assert_eq!(trie.nodes(), 1);
    }
}

#[test]
fn an_installed_tree_brings_the_revision_of_what_changed_and_changed_back() {
    let mut log = Log::default();
    let late = Projections::new();
    let start = [
        Act::CreateVhost(1),
        Act::PutUser(0),
        Act::DeclareQueue { vhost: 1, name: 3 },
        Act::SetPermission { vhost: 1, user: 0, read: 0 },
    ];
    start.iter().for_each(|act| assert!(log.act(act).unwrap().reply.is_ok()));
    late.install(log.machine.tree(), log.machine.applied());
    let there_and_back = [
        Act::ChangeMembers { vhost: 1, name: 3, members: 2 },
        Act::ChangeMembers { vhost: 1, name: 3, members: 0 },
        Act::SetPermission { vhost: 1, user: 0, read: 1 },
        Act::SetPermission { vhost: 1, user: 0, read: 0 },
    ];
    there_and_back.iter().for_each(|act| assert!(log.act(act).unwrap().reply.is_ok()));
    late.install(log.machine.tree(), log.machine.applied());
    assert_eq!(late.load().check_against_rebuild(), Ok(()));
    // What reads the record there and writes it back is not refused for ever.
    let stored = late.load().queue("v1", "q3").unwrap().record();
    let update = Queue { user: "someone".into(), ..stored.record.clone() }.update(stored.mod_revision);
    assert!(log.write(&update).reply.is_ok());
}

/// A vhost `v` with projections that follow its log.
struct Broker {
    log: Log,
    projections: Projections,
}

impl Broker {
    fn new() -> Self {
        let mut broker = Broker { log: Log::default(), projections: Projections::new() };
        broker.write(&Vhost::named("v").create(None));
        broker
    }

    fn write(&mut self, write: &crate::machine::Write) {
        let outcome = self.log.write(write);
        assert!(outcome.reply.is_ok(), "{:?}", outcome.reply);
        self.projections.apply(&outcome.changes, self.log.machine.tree(), self.log.machine.applied());
    }

    fn queue(&mut self, name: &str) {
        let group = warren_proto::ids::GroupId(self.log.index);
        self.write(&Queue { vhost: "v".into(), name: name.into(), group, ..Queue::default() }.create_or_get());
    }

    fn exchange(&mut self, name: &str, kind: ExchangeKind) {
        self.write(&Exchange::named("v", name, kind).create_or_get());
    }

    fn bind(&mut self, source: &str, destination: &str, key: &str, table: FieldTable) {
        let kind = if destination.starts_with('q') { DestinationKind::Queue } else { DestinationKind::Exchange };
        let of = BindingNode {
            vhost: "v".into(),
            source: source.into(),
            destination_kind: kind,
            destination: destination.into(),
            key: key.as_bytes().into(),
        };
        self.write(&Binding::new(&of, &table.to_bytes()).unwrap().put());
    }

    fn route(&self, exchange: &str, key: &str) -> Vec<String> {
        let mut names = names(&self.projections.load().route("v", exchange, &[key.as_bytes()], None));
        names.sort();
        names
    }
}

#[test]
fn the_default_exchange_leads_to_the_queue_of_the_key() {
    let mut broker = Broker::new();
    broker.queue("q1");
    assert_eq!(broker.route("", "q1"), ["q1"]);
    assert!(broker.route("", "q2").is_empty());
    assert!(broker.route("nowhere", "q1").is_empty());
}

#[test]
fn topic_edge_cases_hold() {
    let mut broker = Broker::new();
    broker.queue("q");
    for (pattern, key, expected) in [
        ("", "", true),
        ("#", "", true),
        ("#.#", "", true),
        ("*", "", false),
        ("a.*.b", "a..b", true),
        ("*.*", ".", true),
        ("#", "a.b.c", true),
        ("a.#", "a", true),
        ("#.a", "a", true),
        ("a*", "ab", false),
        ("a*", "a*", true),
        ("*.a", "a", false),
        ("a", "A", false),
    ] {
        broker.exchange("x", ExchangeKind::Topic);
        broker.bind("x", "q", pattern, FieldTable::new());
        assert_eq!(!broker.route("x", key).is_empty(), expected, "{pattern} {key}");
        broker.write(&Exchange::delete("v", "x", DeleteExchange::Always));
    }
}

#[test]
fn an_empty_binding_key_matches_on_its_own_exchange_only() {
    let mut broker = Broker::new();
    broker.queue("q1");
    broker.exchange("x", ExchangeKind::Topic);
    broker.bind("amq.topic", "q1", "", FieldTable::new());
    assert!(broker.route("x", "").is_empty());
    assert_eq!(broker.route("amq.topic", ""), ["q1"]);
}

#[test]
fn a_long_key_against_many_hashes_takes_no_exponential_time() {
    let mut trie = topic::Topic::default();
    let pattern = "#.a.".repeat(20) + "#.b";
    trie.insert(pattern.as_bytes(), Destination::Exchange("x".into()));
    let key = ["a"; 120].join(".");
    let mut found = 0;
    trie.for_each_match(key.as_bytes(), &mut |_| found += 1);
    assert_eq!(found, 0);
    assert_eq!(hash_words(pattern.as_bytes()), 21);
}

#[test]
fn exchanges_are_followed_once_each_and_alternates_where_nothing_matched() {
    let mut broker = Broker::new();
    for queue in ["q1", "q2", "q3"] {
        broker.queue(queue);
    }
    let alternate = FieldTable::new().with("alternate-exchange", "fallback").to_bytes()[..].into();
    let first = Exchange { arguments: alternate, ..Exchange::named("v", "first", ExchangeKind::Direct) };
    broker.write(&first.create_or_get());
    broker.exchange("second", ExchangeKind::Direct);
    broker.exchange("fallback", ExchangeKind::Fanout);
    broker.bind("first", "second", "k", FieldTable::new());
    broker.bind("second", "first", "k", FieldTable::new());
    broker.bind("second", "q1", "k", FieldTable::new());
    broker.bind("first", "q1", "k", FieldTable::new());
    broker.bind("fallback", "q2", "", FieldTable::new());
    broker.bind("fallback", "q2", "other", FieldTable::new());
    broker.bind("fallback", "q3", "", FieldTable::new());
    assert_eq!(broker.route("first", "k"), ["q1"]);
    assert_eq!(broker.route("first", "unknown"), ["q2", "q3"]);
    assert!(broker.route("second", "unknown").is_empty());
}

#[test]
fn a_fanout_destination_stays_until_its_last_key_is_unbound() {
    let mut broker = Broker::new();
    broker.queue("q1");
    broker.bind("amq.fanout", "q1", "a", FieldTable::new());
    broker.bind("amq.fanout", "q1", "b", FieldTable::new());
    let bindings = Binding::list(&broker.log.machine.tree(), "v").unwrap();
    broker.write(&bindings[0].delete());
    assert_eq!(broker.route("amq.fanout", "x"), ["q1"]);
    broker.write(&bindings[1].delete());
    assert!(broker.route("amq.fanout", "x").is_empty());
}

#[test]
fn headers_compare_by_value_and_presence() {
    let all = || FieldTable::new();
    let any = || FieldTable::new().with("x-match", "any");
    for (binding, message, expected) in [
        (all(), all(), true),
        (any(), all().with("a", 1i64), false),
        (all().with("a", 1i64), all().with("a", FieldValue::U8(1)), true),
        (all().with("a", 1i64), all().with("a", "1"), false),
        (all().with("a", 1i64), all().with("a", FieldValue::F64(1.0)), false),
        (all().with("a", FieldValue::Void), all().with("a", "anything"), true),
        (all().with("a", FieldValue::Void), all(), false),
        (all().with("a", 1i64).with("b", 2i64), all().with("a", 1i64), false),
        (any().with("a", 1i64).with("b", 2i64), all().with("a", 1i64), true),
        (all().with("x-a", 1i64), all(), true),
        (FieldTable::new().with("x-match", "all-with-x").with("x-a", 1i64), all(), false),
        (FieldTable::new().with("x-match", "any-with-x").with("x-a", 1i64), all().with("x-a", 1i64), true),
        (all().with("a", FieldValue::Timestamp(5)), all().with("a", FieldValue::Timestamp(5)), true),
        (all().with("a", FieldTable::new()), all().with("a", 1i64), true),
    ] {
        let mut broker = Broker::new();
        broker.queue("q1");
        broker.bind("amq.headers", "q1", "", binding.clone());
        let bytes = message.to_bytes();
        let headers = TableRef::new(&bytes);
        let routed = broker.projections.load().route("v", "amq.headers", &[b""], Some(&headers));
        assert_eq!(!routed.is_empty(), expected, "{binding:?} {message:?}");
    }
}

#[test]
fn a_change_of_members_reaches_targets_already_routed_to() {
    let mut log = Log::default();
    let projections = Projections::new();
    let mut act = |act: Act| {
        let outcome = log.act(&act).unwrap();
        projections.apply(&outcome.changes, log.machine.tree(), log.machine.applied());
    };
    act(Act::CreateVhost(0));
    act(Act::DeclareQueue { vhost: 0, name: 0 });
    let routed = projections.load().route("v0", "", &[b"q0"], None);
    act(Act::ChangeMembers { vhost: 0, name: 0, members: 3 });
    assert_eq!(routed[0].members().len(), 3);
    act(Act::ReplaceQueue { vhost: 0, name: 0 });
    let again = projections.load().route("v0", "", &[b"q0"], None);
    assert_ne!(routed[0].group, again[0].group);
    assert!(projections.load().queue_of_group(routed[0].group).is_none());
    assert!(projections.load().queue_of_group(again[0].group).is_some());
}

#[test]
fn permissions_are_checked_on_names_with_the_default_exchange_called_amq_default() {
    let mut broker = Broker::new();
    broker.write(&crate::records::User::with_password("u", b"p", [0; 4], vec![]).create());
    let permission = Permission { write: "^amq\\.default$".into(), read: String::new(), ..Permission::full("u", "v") };
    broker.write(&permission.set());
    let view = broker.projections.load();
    let permission = view.permission("v", "u").unwrap();
    assert!(permission.allows(Access::Configure, "anything"));
    assert!(permission.allows(Access::Write, "") && !permission.allows(Access::Write, "x"));
    assert!(!permission.allows(Access::Read, "x") && permission.allows_any("x"));
    assert!(view.permission("v", "nobody").is_none());
}
