use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use warren_proto::ids::MachineVersion;

use super::*;
use crate::random_writes::{Act, Log, act};
use crate::records::{Queue, Record, Vhost};
use crate::tree::{
    AbortCode, Answered, Assignment, Component, Condition, DeleteReason, EachOp, EachWatch, FieldTest, FieldValue,
    Guard, Keep, NameRegex, NameTest, Node, NodeInfo, Part, Path, Pattern, Payload, Predicate, Step, Template, Watch,
};

fn request(seq: u64, deadline_ms: u64) -> Request {
    Request { id: RequestId { origin: 9, seq }, deadline_ms, acked_below: 0 }
}

/// A write that shows how often it was done.
fn count() -> Write {
    Op::CounterAdd { path: Path::new(vec![Component::name("n")]), delta: 1, initial: 1 }.into()
}

fn old(outcome: &Outcome) -> Option<i64> {
    match outcome.reply.as_ref().unwrap().results[..] {
        [OpResult::Counter { old }] => old,
        _ => panic!("not a counter's answer"),
    }
}

#[test]
fn a_repeated_request_gets_its_first_answer_and_is_not_done_again_until_acknowledged() {
    let mut log = Log::default();
    let command = count().to_bytes(Some(&request(1, 60_000)));
    let first = {
        let meta = log.meta();
        log.machine.apply(meta, &command)
    };
    let second = {
        let meta = log.meta();
        log.machine.apply(meta, &command)
    };
    assert_eq!((old(&first), old(&second)), (None, None));
    assert_eq!(first.request, Some(RequestId { origin: 9, seq: 1 }));
    assert!(!first.changes.is_empty() && second.changes.is_empty());
    let mut ack = Vec::new();
    encode_dedup_ack(&[RequestId { origin: 9, seq: 1 }], &mut ack);
    let meta = log.meta();
    log.machine.apply(meta, &ack);
    let third = {
        let meta = log.meta();
        log.machine.apply(meta, &command)
    };
    assert_eq!(old(&third), Some(1));
}

#[test]
fn a_later_request_acknowledges_earlier_ones_of_its_origin_only() {
    let mut log = Log::default();
    for seq in 1..=3 {
        let meta = log.meta();
        log.machine.apply(meta, &count().to_bytes(Some(&request(seq, 60_000))));
    }
    let other = Request { id: RequestId { origin: 8, seq: 1 }, ..request(1, 60_000) };
    let meta = log.meta();
    log.machine.apply(meta, &count().to_bytes(Some(&other)));
    assert_eq!(log.machine.dedup_count(), 4);
    let meta = log.meta();
    log.machine.apply(meta, &count().to_bytes(Some(&Request { acked_below: 3, ..request(4, 60_000) })));
    assert_eq!(log.machine.dedup_count(), 3);
}

#[test]
fn a_reply_is_dropped_only_when_no_copy_of_its_command_can_be_done_any_more() {
    let mut log = Log::default();
    let command = count().to_bytes(Some(&request(1, 5_000)));
    let mut apply = |ts_ms, command: &[u8]| {
        let meta = Meta { ts_ms, ..log.meta() };
        log.machine.apply(meta, command)
    };
    apply(1_000, &command);
    let mut drop = Vec::new();
    encode_drop_dedups(&[RequestId { origin: 9, seq: 1 }], &mut drop);
    let last = 5_000 + DEDUP_GRACE_MS;
    apply(last, &drop);
    assert_eq!(old(&apply(last, &command)), None, "still remembered");
    apply(last + 1, &drop);
    assert_eq!(apply(last + 1, &command).reply, Err(MetaError::Expired));
    assert_eq!(log.machine.dedup_count(), 0);
}

#[test]
fn expired_replies_are_found_for_the_leader_to_drop() {
    let mut log = Log::default();
    for (seq, deadline) in [(1, 5_000), (2, 0), (3, 9_000)] {
        let meta = log.meta();
        log.machine.apply(meta, &count().to_bytes(Some(&request(seq, deadline))));
    }
    let expired = |now| log.machine.expired_dedups(now, 10).iter().map(|id| id.seq).collect::<Vec<_>>();
    assert_eq!(expired(DEDUP_GRACE_MS), [0u64; 0]);
    assert_eq!(expired(DEDUP_GRACE_MS + 9_000), [1]);
    assert_eq!(expired(DEDUP_GRACE_MS + 9_001), [1, 3]);
}

#[test]
fn creating_what_exists_changes_nothing_and_answers_what_is_there() {
    let mut log = Log::default();
    log.write(&Vhost::named("v").create(None));
    let queue = Queue { vhost: "v".into(), name: "q".into(), durable: true, ..Queue::default() };
    log.write(&queue.create_or_get());
    let before = log.machine.tree();
    let again = log.write(&Queue { durable: false, ..queue.clone() }.create_or_get());
    assert!(again.changes.is_empty());
    assert!(log.machine.tree().same_version(&before));
    match Queue::created(again.reply).unwrap() {
        crate::records::CreateOrGet::Exists(stored) => assert_eq!(stored.record, queue),
        crate::records::CreateOrGet::Created => panic!("it was there"),
    }
}

#[test]
fn a_failed_operation_undoes_the_whole_command() {
    let mut log = Log::default();
    let failing = Op::Put {
        path: Path::new(vec![Component::name("m")]),
        condition: Condition::NodeExists(true),
        payload: None,
        keep_while: None,
    };
    let outcome = log.write(&count().and(failing.into()));
    assert!(matches!(outcome.reply, Err(MetaError::NodeNotFound { .. })));
    assert_eq!(log.machine.tree().count(), 1);
}

#[test]
fn a_command_with_a_part_that_nobody_knows_is_not_done_in_part() {
    let mut log = Log::default();
    let mut command = count().to_bytes(None);
    // The body again, with an operation of an unknown kind beside the known one.
    let unknown = [0x22, 0x05, 0x0a, 0x03, 0xba, 0x3e, 0x00];
    command.extend_from_slice(&unknown);
    let meta = log.meta();
    let outcome = log.machine.apply(meta, &command);
    assert_eq!(outcome.reply, Err(MetaError::UnknownCommand));
    assert_eq!(log.machine.tree().count(), 1);
}

#[test]
fn a_machine_version_that_this_binary_lacks_is_answered_and_not_applied() {
    let mut log = Log::default();
    let newer = MachineVersion(Machine::VERSIONS.end().0 + 1);
    let meta = Meta { version: newer, ..log.meta() };
    assert_eq!(log.machine.apply(meta, &count().to_bytes(None)).reply, Err(MetaError::UnknownCommand));
}

#[test]
fn a_damaged_snapshot_is_refused() {
    let mut log = Log::default();
    log.write(&Vhost::named("v").create(None));
    let good = log.machine.snapshot();
    for at in [4, 20, good.len() / 2, good.len() - 1] {
        let mut bad = good.clone();
        bad[at] ^= 1;
        assert_eq!(Machine::restore(&bad).unwrap_err(), RestoreError::Checksum);
    }
    assert_eq!(Machine::restore(&good[..10]).unwrap_err(), RestoreError::Format);
    assert!(Machine::restore(&good).is_ok());
}

/// Bytes under a right checksum in place of the one they end with.
fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - 32);
    let checksum = <sha2::Sha256 as sha2::Digest>::digest(&bytes);
    bytes.extend_from_slice(&checksum);
    bytes
}

/// The snapshot of a machine that applied nothing after reference 9 and whose tree is a root over one such node.
fn snapshot_of(node: Node) -> Vec<u8> {
    let mut root = Node::new(Reference(0), Keep::Always);
    root.children.insert(Component::name("n"), node.into());
    Machine { tree: Tree::from_root(root), applied: Reference(9), ..Machine::new() }.snapshot()
}

#[test]
fn an_unsound_snapshot_is_refused_under_a_right_checksum() {
    let sound = || {
        let payload = Payload { kind: 1, schema: 1, bytes: Vec::new().into() };
        Node { payload: Some(payload), ..Node::new(Reference(7), Keep::Always) }
    };
    assert!(Machine::restore(&snapshot_of(sound())).is_ok());
    let while_nothing = Keep::While(KeepWhile(Vec::new()).into());
    let mut older_child = sound();
    older_child.children.insert(Component::name("older"), Node::new(Reference(6), Keep::Always).into());
    for unsound in [
        Node::new(Reference(7), Keep::Placeholder),
        Node { keep: while_nothing, ..sound() },
        Node { payload_version: 0, ..sound() },
        Node { child_list_version: 0, ..sound() },
        Node { mod_revision: Reference(6), ..sound() },
        Node { mod_revision: Reference(10), ..sound() },
        older_child,
    ] {
        let restored = Machine::restore(&snapshot_of(unsound));
        assert!(matches!(restored, Err(RestoreError::Unsound(_))), "{restored:?}");
    }
    let root = Node { payload: sound().payload, ..Node::new(Reference(0), Keep::Always) };
    let with_payload = Machine { tree: Tree::from_root(root), ..Machine::new() };
    assert!(matches!(Machine::restore(&with_payload.snapshot()), Err(RestoreError::Unsound(_))));
}

#[test]
fn a_snapshot_out_of_order_is_refused() {
    let mut log = Log::default();
    [Act::PutUser(0), Act::PutUser(1)].iter().for_each(|act| assert!(log.act(act).is_some()));
    for seq in [1, 2] {
        let meta = log.meta();
        log.machine.apply(meta, Write::new(vec![]).to_bytes(Some(&request(seq, 0))).as_slice());
    }
    let good = log.machine.snapshot();
    assert!(Machine::restore(&good).is_ok());
    let swapped = |one: &[u8], other: &[u8]| {
        let at = |part: &[u8]| good.windows(part.len()).position(|window| window == part).unwrap();
        let mut bad = good.clone();
        let (first, second) = (at(one), at(other));
        bad[first..first + one.len()].copy_from_slice(other);
        bad[second..second + one.len()].copy_from_slice(one);
        sealed(bad)
    };
    let id = |seq: u64| [9u64.to_le_bytes(), seq.to_le_bytes()].concat();
    let name = |n: u8| {
        let mut out = Vec::new();
        Component::name(format!("u{n}")).encode(&mut out);
        out
    };
    assert_eq!(Machine::restore(&swapped(&id(1), &id(2))).err(), Some(RestoreError::Content));
    assert_eq!(Machine::restore(&swapped(&name(0), &name(1))).err(), Some(RestoreError::Content));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(100))]

    #[test]
    fn a_restored_machine_goes_on_as_the_one_it_was_taken_from(
        acts in vec(act(), 1..80), cut in 0usize..80, requests: bool
    ) {
        let mut log = Log::default();
        let mut restored: Option<Log> = None;
        for (i, act) in acts.iter().enumerate() {
            if i == cut {
                let machine = Machine::restore(&log.machine.snapshot()).unwrap();
                restored = Some(Log { machine, index: log.index });
            }
            let outcome = log.act(act);
            if requests {
                let meta = log.meta();
                log.machine.apply(meta, &count().to_bytes(Some(&request(i as u64, 1_000_000))));
            }
            if let Some(other) = &mut restored {
                prop_assert_eq!(outcome, other.act(act));
                if requests {
                    let meta = other.meta();
                    other.machine.apply(meta, &count().to_bytes(Some(&request(i as u64, 1_000_000))));
                }
            }
            prop_assert_eq!(log.machine.check_invariants(), Ok(()));
        }
        if let Some(other) = restored {
            prop_assert_eq!(log.machine.snapshot(), other.machine.snapshot());
            prop_assert_eq!(other.machine.check_invariants(), Ok(()));
        }
    }

    #[test]
    fn changes_add_up(acts in vec(act(), 1..60), from in 0usize..60) {
        let mut log = Log::default();
        let (mut sum, mut old) = (Changes::default(), Tree::default());
        for (i, act) in acts.iter().enumerate() {
            if i == from {
                (sum, old) = (Changes::default(), log.machine.tree());
            }
            if let Some(outcome) = log.act(act) {
                sum.merge(outcome.changes);
            }
        }
        // Commands also name what they wrote without changing it; a difference of trees cannot.
        let content = |changes: &Changes| -> Vec<_> {
            let of = |node: &NodeInfo| {
                (node.payload.clone(), node.properties.create_revision, node.properties.mod_revision)
            };
            let both = changes.iter().map(|(path, c)| (path.clone(), c.old.as_ref().map(of), c.new.as_ref().map(of)));
            both.filter(|(_, old, new)| old != new).collect()
        };
        prop_assert_eq!(content(&sum), content(&log.machine.tree().changes_since(&old)));
    }

    #[test]
    fn arbitrary_bytes_are_answered_with_an_error_and_change_nothing(bytes: Vec<u8>) {
        let mut log = Log::default();
        let meta = log.meta();
        let outcome = log.machine.apply(meta, &bytes);
        prop_assert_eq!(log.machine.tree().count(), 1);
        prop_assert!(outcome.changes.is_empty());
        let _ = Machine::restore(&bytes);
    }

    #[test]
    fn damaged_commands_never_panic(acts in vec(act(), 1..20), flips in vec((any::<u16>(), any::<u8>()), 1..4)) {
        // Records of damaged commands may not be readable, so what to write is read elsewhere.
        let mut log = Log::default();
        let mut damaged = Log::default();
        let flip = |bytes: &mut Vec<u8>| {
            for (at, to) in &flips {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *to;
            }
        };
        for (i, act) in acts.iter().enumerate() {
            let Some(write) = log.compile(act) else { continue };
            let mut command = write.to_bytes(Some(&request(i as u64, 1)));
            flip(&mut command);
            // Most do nothing now, and the next is to find something.
            for command in [command, write.to_bytes(None)] {
                let meta = damaged.meta();
                damaged.machine.apply(meta, &command);
                prop_assert_eq!(damaged.machine.check_invariants(), Ok(()));
            }
            log.act(act);
        }
        // A snapshot whose content is damaged under a right checksum: refused, or sound and fit to go on.
        let mut bytes = damaged.machine.snapshot();
        flip(&mut bytes);
        if let Ok(machine) = Machine::restore(&sealed(bytes)) {
            prop_assert_eq!(machine.check_invariants(), Ok(()));
            prop_assert_eq!(Machine::restore(&machine.snapshot()).unwrap().digest(), machine.digest());
        }
    }
}

/// One write with everything that version 2 added.
fn newest() -> Write {
    let name = |name: &str| Path::new(vec![Component::name(name)]);
    let payload = || Some(Payload { kind: 99, schema: 1, bytes: Arc::from([1]) });
    let any = |condition| Pattern::new(vec![Step::Where(condition)]);
    let record = Vhost::named("v").encode();
    let field = |test| Predicate::Field("max-queues".into(), test);
    let tests = vec![
        FieldTest::IsSet,
        FieldTest::Eq(4.into()),
        FieldTest::Ne("x".into()),
        FieldTest::Lt(5.into()),
        FieldTest::Le(4.into()),
        FieldTest::Gt(3.into()),
        FieldTest::Ge(4.into()),
        FieldTest::In(vec![3.into(), 4.into(), FieldValue::List(vec![true.into()])]),
        FieldTest::Ne(FieldValue::Bytes(vec![7])),
    ];
    let all = Predicate::All(tests.into_iter().map(field).collect());
    let or = Predicate::Any(vec![Predicate::Not(Box::new(field(FieldTest::Prefix(b"x".to_vec())))), all.clone()]);
    let regex = Predicate::Field("name".into(), FieldTest::Regex(NameRegex::new("^v$")));
    let data = Condition::Data(Predicate::All(vec![all, or, regex]));
    let watch = EachWatch { path: Template(vec![Part::Name(0)]), condition: Condition::NodeExists(true) };
    let beneath = Template(vec![
        Part::Path,
        Part::Literal(Component::name("x")),
        Part::Parent,
        Part::Literal(Component::name("y")),
    ]);
    Write::new(vec![
        Op::create(name("v"), record),
        Op::Patch(
            name("v").into(),
            vec![
                Assignment::Set("description".into(), "d".into()),
                Assignment::Add("max-queues".into(), 4),
                Assignment::Unset("tags".into()),
            ],
        ),
        Op::PutMany {
            pattern: any(data).join([Step::Literal(Component::name("made"))]),
            payload: payload(),
            keep_while: Some(vec![]),
        },
        Op::ForEach(
            any(Condition::NameRegex(NameRegex::new("^v"))),
            vec![
                EachOp::Put {
                    path: beneath.clone(),
                    condition: Condition::always(),
                    payload: payload(),
                    keep_while: Some(vec![watch]),
                },
                EachOp::SetAdd {
                    path: Template::beneath([Component::name("s")]),
                    kind: 1,
                    schema: 1,
                    element: Arc::from([1]),
                },
                EachOp::SetRemove {
                    path: Template::beneath([Component::name("s")]),
                    kind: 1,
                    element: Arc::from([1]),
                    delete_if_empty: false,
                },
                EachOp::CounterAdd { path: Template::beneath([Component::name("n")]), delta: 1, initial: 7 },
                EachOp::Patch(Template::itself(), vec![Assignment::Set("tracing".into(), true.into())]),
                EachOp::ClearPayload(Template::beneath([Component::name("made")])),
                EachOp::Delete(Template::beneath([Component::name("s")])),
            ],
        ),
        Op::Count(Pattern::new(vec![Step::Where(Condition::PathMatches(NameTest::Regex(NameRegex::new("^[vy]$"))))])),
        Op::Count(Pattern::new(vec![Step::Where(Condition::PathMatches(NameTest::Any))])),
        Op::If(Guard::Exists(name("v").into()), vec![Op::Return(Answered::All)], vec![Op::Abort(AbortCode::InUse)]),
        Op::Abort(AbortCode::InUse),
    ])
    .reporting(Report { child_list: true, revisions: true, ..Report::default() })
}

#[test]
fn what_version_2_added_is_done_as_written_and_only_in_a_group_of_that_version() {
    let mut log = Log::default();
    assert_eq!((newest().min_version(), count().min_version()), (MachineVersion(2), MachineVersion(1)));
    let older = Meta { version: MachineVersion(1), ..log.meta() };
    let before = log.machine.snapshot();
    let refused = log.machine.apply(older, &newest().to_bytes(None));
    assert_eq!((refused.reply, refused.changes.is_empty()), (Err(MetaError::UnknownCommand), true));
    assert_eq!(log.machine.tree().count(), 1);
    assert_eq!(before[4..6], log.machine.snapshot()[4..6], "an older binary can read it");

    let command = newest().to_bytes(Some(&request(1, 1_000_000)));
    let meta = log.meta();
    let outcome = log.machine.apply(meta, &command);
    let reply = outcome.reply.clone().unwrap();
    let counts: Vec<u64> = reply
        .results
        .iter()
        .filter_map(|r| match r {
            OpResult::Count(n) => Some(*n),
            _ => None,
        })
        .collect();
    // Patched, written, visited; `v` and `y`; all: v, made, n, y.
    assert_eq!(counts, [1, 1, 1, 2, 4]);
    let touched: Vec<String> = reply.touched().iter().map(|touched| touched.path.to_string()).collect();
    assert_eq!(touched, ["/v", "/v/made", "/v/n", "/v/y"]);
    assert!(reply.touched().iter().all(|touched| touched.node.is_none()), "all of them are new");
    let vhost =
        Vhost::decode(log.machine.tree().node(&Path::new(vec![Component::name("v")])).unwrap().payload().unwrap());
    assert_eq!(
        vhost.unwrap(),
        Vhost { description: "d".into(), max_queues: Some(4), tracing: true, ..Vhost::named("v") }
    );
    assert_eq!(log.machine.snapshot()[4], 2);
    // The remembered reply survives a snapshot.
    let mut restored = Machine::restore(&log.machine.snapshot()).unwrap();
    let meta = log.meta();
    assert_eq!(restored.apply(meta, &command).reply, Ok(reply));
    assert_eq!(restored.check_invariants(), Ok(()));
}

#[test]
fn a_report_tells_the_old_payload_the_new_versions_and_why_a_node_went() {
    let mut log = Log::default();
    let name = |name: &str| Path::new(vec![Component::name(name)]);
    let put = |path: &str, byte: u8, watched: Option<&str>| Op::Put {
        path: name(path),
        condition: Condition::always(),
        payload: Some(Payload { kind: 99, schema: 1, bytes: Arc::from([byte]) }),
        keep_while: watched.map(|watched| vec![Watch::exists(name(watched))]),
    };
    let write = |log: &mut Log, ops: Vec<Op>, report: Report| {
        log.write(&Write::new(ops).reporting(report)).reply.unwrap().touched().to_vec()
    };
    write(&mut log, vec![put("a", 1, None), put("b", 1, Some("a")), put("c", 1, None)], Report::default());
    let ops = vec![put("c", 2, None), Op::Delete(name("a").into()), put("d", 1, None)];
    let all = write(&mut log.clone(), ops.clone(), Report::default());
    let of = |t: &Touched| {
        let node = t.node.as_ref();
        let payload = node.and_then(|node| node.payload.as_ref()).map(|payload| payload.bytes[0]);
        (t.path.to_string(), payload, node.map(|node| node.properties.payload_version), t.delete_reason)
    };
    assert_eq!(
        all.iter().map(of).collect::<Vec<_>>(),
        [
            ("/a".to_owned(), Some(1), Some(1), Some(DeleteReason::Explicit)),
            ("/b".to_owned(), Some(1), Some(1), Some(DeleteReason::KeepWhile)),
            ("/c".to_owned(), Some(1), Some(2), None),
            ("/d".to_owned(), None, None, None),
        ]
    );
    assert_eq!(all[2].node.as_ref().unwrap().properties.mod_revision, Reference(0), "not asked for");
    let less =
        Report { payload: false, payload_version: false, revisions: true, child_list: false, indirect_deletes: false };
    let less = write(&mut log, ops, less);
    assert_eq!(
        less.iter().map(of).collect::<Vec<_>>(),
        [
            ("/a".to_owned(), None, Some(0), Some(DeleteReason::Explicit)),
            ("/c".to_owned(), None, Some(0), None),
            ("/d".to_owned(), None, None, None),
        ]
    );
    assert_eq!(less[1].node.as_ref().unwrap().properties.mod_revision, log.machine.applied());
}

#[test]
fn a_command_has_limits() {
    let mut log = Log::default();
    let regex =
        |n: usize| Op::Count(Pattern::new(vec![Step::Where(Condition::NameRegex(NameRegex::new(&n.to_string())))]));
    assert!(log.write(&Write::new((0..MAX_REGEXES).map(regex).collect())).reply.is_ok());
    assert_eq!(log.write(&Write::new((0..=MAX_REGEXES).map(regex).collect())).reply, Err(MetaError::TxnTooLarge));
    let noop = || Op::Count(Pattern::new(vec![]));
    assert!(log.write(&Write::new((0..MAX_OPS).map(|_| noop()).collect())).reply.is_ok());
    let many = Write::new((0..MAX_OPS).map(|_| noop()).chain([noop()]).collect());
    assert_eq!(log.write(&many).reply, Err(MetaError::TxnTooLarge));
    let huge = Payload { kind: 99, schema: 1, bytes: vec![0; crate::tree::MAX_PAYLOAD + 1].into() };
    let put = |payload| Write::from(Op::create(Path::new(vec![Component::name("p")]), payload));
    assert_eq!(log.write(&put(huge)).reply, Err(MetaError::PayloadTooLarge));
    let huge = Payload { kind: 99, schema: 1, bytes: vec![0; MAX_COMMAND].into() };
    assert_eq!(log.write(&put(huge)).reply, Err(MetaError::TxnTooLarge));
    assert_eq!(log.write(&Write::new(vec![])).reply, Ok(Reply::default()));
}

#[test]
fn expressions_that_cannot_be_used_are_named_before_the_write_is_proposed() {
    let step = Step::Where(Condition::Not(Box::new(Condition::NameRegex(NameRegex::new("(?!a)")))));
    let write = Write::new(vec![Op::If(Guard::Exists(Pattern::new(vec![step])), vec![], vec![])]);
    let unusable = write.unusable_regexes();
    assert_eq!(unusable.len(), 1);
    assert_eq!(unusable[0].0, "(?!a)");
    assert!(Log::default().write(&write).reply.is_ok(), "it is false, and harms nothing");
}
