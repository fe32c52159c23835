use proptest::collection::vec;
use proptest::prelude::*;
use warren_proto::ids::MachineVersion;

use super::*;
use crate::random_writes::{Act, Log, act};
use crate::records::{Queue, Record, Vhost};
use crate::tree::{Component, Condition, Keep, KeepWhile, Node, NodeInfo, Op, Path, Payload};

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
    let meta = Meta { version: MachineVersion(2), ..log.meta() };
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
