use proptest::collection::vec;
use proptest::prelude::*;
use warren_proto::ids::MachineVersion;

use super::*;
use crate::random_writes::{Log, act};
use crate::records::{Queue, Record, Vhost};
use crate::tree::{Component, Condition, Op, Path};

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
    fn changes_add_up(acts in vec(act(), 1..40)) {
        let mut log = Log::default();
        let mut sum = Changes::default();
        for act in &acts {
            if let Some(outcome) = log.act(act) {
                sum.merge(outcome.changes);
            }
        }
        let whole = log.machine.tree().changes_since(&Tree::default());
        let content = |changes: &Changes| -> Vec<_> {
            let there = changes.iter().filter_map(|(path, c)| Some((path.clone(), c.new.as_ref()?.payload.clone())));
            there.collect()
        };
        prop_assert_eq!(content(&sum), content(&whole));
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
        let mut log = Log::default();
        for act in &acts {
            log.act(act);
        }
        let mut command = Vhost::named("v0").create(Some("u0")).to_bytes(Some(&request(1, 1)));
        let flip = |bytes: &mut Vec<u8>| {
            for (at, to) in &flips {
                let at = usize::from(*at) % bytes.len();
                bytes[at] = *to;
            }
        };
        flip(&mut command);
        let meta = log.meta();
        log.machine.apply(meta, &command);
        prop_assert_eq!(log.machine.check_invariants(), Ok(()));
        // A snapshot whose content is damaged under a right checksum.
        let mut bytes = log.machine.snapshot();
        bytes.truncate(bytes.len() - 32);
        flip(&mut bytes);
        let checksum = <sha2::Sha256 as sha2::Digest>::digest(&bytes);
        bytes.extend_from_slice(&checksum);
        let _ = Machine::restore(&bytes);
    }
}
