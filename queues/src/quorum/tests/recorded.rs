//! Recorded logs: what a machine version does is frozen, so a log that was written under it must have the same outcome in
//! every later binary. Here are logs with their outcomes, as files in `recorded/`.
//!
//! A recording of a released version is **never** made again: where its test fails, the binary would make members of one
//! group differ, and the change belongs into a new version with a recording of its own. As long as no release has a
//! version, its recording may be made anew, by the ignored test below, if the change of its behaviour is meant; the new
//! digests go into [`RECORDED`].
//!
//! A file is, with numbers in little-endian: `WQR1`; the number of entries, u32; for each entry its version, u16, its term,
//! u32, the length of its batch, u32, the batch as it lies in the log, and for each command [what came of it](outcome), u32;
//! then the length of the encoded state at the end, u32, and the state.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;

use bytes::{Buf, BufMut, BytesMut};

use super::model::Model;
use super::ops::{OP_BYTES, Op, command};
use super::*;

/// File, and the [digest](Queue::digest) of the state that its log leads to.
const RECORDED: [(&str, u64); 4] = [
    ("mv1.log", 0xb5f7_7b00_92cb_fced),
    ("mv2.log", 0x734b_f3e0_c65a_9fbf),
    ("mv1-to-mv2.log", 0x8a20_3183_030a_b541),
    ("single-active.log", 0x2242_5eb6_ef8b_63a2),
];

const MAGIC: &[u8] = b"WQR1";

/// Log entries of a recording.
const ENTRIES: u64 = 500;

/// What the queue of a recording is declared as.
fn declared(file: &str) -> Config {
    Config { single_active: file.starts_with("single-active"), ..Config::default() }
}

fn path(file: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("src/quorum/tests/recorded").join(file)
}

/// Numbers that stand for an answer, a delivery or a drop; a new one gets new numbers, and none is ever changed.
fn outcome(reply: &Reply, effects: &Effects) -> u32 {
    let mut hash = 0x811c_9dc5u32;
    let mut note = |numbers: &[u64]| {
        for byte in numbers.iter().flat_map(|n| n.to_le_bytes()) {
            hash = (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193);
        }
    };
    let message = |m: &Delivered| {
        [m.msg_id, m.reference.0, u64::from(m.acquired_count), u64::from(m.delivery_count), u64::from(m.size)]
    };
    match reply {
        Reply::Ok => note(&[1]),
        Reply::Registered { next_seq, blocked } => note(&[2, *next_seq, u64::from(*blocked)]),
        Reply::OutOfSequence { expected } => note(&[3, *expected]),
        Reply::UnknownEnqueuer => note(&[4]),
        Reply::Attached { key, next_msg_id, credit, delivery_count, num_checked_out, active } => {
            let (credit, delivery_count) = (u64::from(*credit), u64::from(*delivery_count));
            note(&[5, key.0, *next_msg_id, credit, delivery_count, *num_checked_out as u64, u64::from(*active)]);
        }
        Reply::ExclusiveUse => note(&[6]),
        Reply::Got { key, message: got, ready } => {
            note(&[7, key.0, *ready]);
            note(&message(got));
        }
        Reply::Empty => note(&[8]),
        Reply::IdInUse => note(&[9]),
        Reply::Cancelled { key, num_checked_out } => note(&[10, key.0, *num_checked_out as u64]),
        Reply::NotFound => note(&[11]),
        Reply::Purged { count } => note(&[12, *count]),
        Reply::Unsupported => note(&[13]),
        Reply::AlreadyApplied => note(&[14]),
        Reply::SingleActive => note(&[15]),
        Reply::Retried { count } => note(&[16, *count]),
    }
    for effect in effects.iter() {
        match effect {
            Effect::Deliver(deliver) => {
                note(&[101, deliver.key.0]);
                deliver.messages.iter().for_each(|m| note(&message(m)));
            }
            Effect::Dropped { reason, count } => note(&[102, *reason as u64, *count]),
            Effect::Kept { reason, count } => note(&[103, *reason as u64, *count]),
            Effect::DeadLetter { reason, messages } => {
                note(&[104, *reason as u64]);
                messages.iter().for_each(|m| note(&message(m)));
            }
            Effect::DlxDeliver { messages, .. } => {
                note(&[105]);
                for (reason, m) in messages {
                    note(&[*reason as u64]);
                    note(&message(m));
                }
            }
            Effect::QueueStatus { reject, .. } => note(&[106, u64::from(*reject)]),
            Effect::CreditReply(credit) => {
                let CreditReply { key, delivery_count, credit, available, drain, active, .. } = credit;
                let (drain, active) = (u64::from(*drain), u64::from(*active));
                note(&[107, key.0, u64::from(*delivery_count), u64::from(*credit), *available, drain, active]);
            }
            Effect::ConsumerActive { key, active, .. } => note(&[108, key.0, u64::from(*active)]),
            Effect::Released { key, ids, .. } => {
                note(&[109, key.0]);
                ids.runs().iter().for_each(|run| note(&[run.start, run.count]));
            }
            // Not part of what a version promises: each can be had again from the state.
            Effect::Monitor(_)
            | Effect::Demonitor(_)
            | Effect::LeaderChange(_)
            | Effect::Timer { .. }
            | Effect::DlxWorker(_)
            | Effect::ForceSnapshot => {}
        }
    }
    hash
}

/// Applies one entry; what came of each command.
fn apply(queue: &mut Queue, index: u64, term: u64, version: MachineVersion, batch: Bytes) -> Vec<u32> {
    let batch = Batch::parse(batch).unwrap();
    let mut fx = Effects::new();
    let mut decoder = Decoder::new(version);
    let commands = batch.iter().enumerate();
    commands
        .map(|(position, bytes)| {
            fx.clear();
            let reference = Reference::new(index, position as u16);
            let meta = Meta { reference, term, ts_ms: batch.ts_ms(), version };
            let reply = queue.apply_encoded(&meta, &mut decoder, bytes, &mut fx);
            outcome(&reply, &fx)
        })
        .collect()
}

#[test]
fn recorded_logs_have_the_outcome_that_they_had() {
    for (file, digest) in RECORDED {
        let recording = Bytes::from(fs::read(path(file)).unwrap());
        let mut rest = recording.strip_prefix(MAGIC).map(Bytes::copy_from_slice).expect("a recording");
        let mut queue = Queue::new(declared(file));
        let mut tags = BTreeSet::new();
        for index in 1..=u64::from(rest.get_u32_le()) {
            let (version, term) = (MachineVersion(rest.get_u16_le()), u64::from(rest.get_u32_le()));
            let length = rest.get_u32_le() as usize;
            let batch = rest.split_to(length);
            tags.extend(Batch::parse(batch.clone()).unwrap().iter().filter_map(|command| command.first().copied()));
            for (position, outcome) in apply(&mut queue, index, term, version, batch).into_iter().enumerate() {
                assert_eq!(outcome, rest.get_u32_le(), "{file}: command {position} of entry {index} acts otherwise");
            }
        }
        let length = rest.get_u32_le() as usize;
        assert_eq!(rest.len(), length, "{file}");
        // The stored state is read as any old snapshot is: a later format of states needs no new recording.
        let stored = Queue::decode_state(&rest).unwrap();
        assert_eq!(queue.encode_state(), stored.encode_state(), "{file}: the state at the end differs");
        assert_eq!(queue.digest(), digest, "{file}: the digest of the state differs");
        assert!((1..=26).all(|tag| tags.contains(&tag)), "{file}: not every command is in it: {tags:?}");
    }
}

/// `cargo test -p warren-queues recordings_are_made -- --ignored --nocapture`; see the module about when.
#[test]
#[ignore = "overwrites the recordings"]
fn recordings_are_made() {
    let versions = |file: &str, index: u64| match file {
        "mv1.log" => MV1,
        "mv2.log" | "single-active.log" => MV2,
        _ if index <= ENTRIES / 2 => MV1,
        _ => MV2,
    };
    fs::create_dir_all(path("")).unwrap();
    for (seed, (file, _)) in RECORDED.into_iter().enumerate() {
        let (bytes, digest) = record(declared(file), seed as u64 + 1, |index| versions(file, index));
        println!("(\"{file}\", {digest:#018x}) in {} bytes", bytes.len());
        fs::write(path(file), bytes).unwrap();
    }
}

fn record(config: Config, seed: u64, version: impl Fn(u64) -> MachineVersion) -> (Vec<u8>, u64) {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mut random = move |n: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % n
    };
    let mut out = MAGIC.to_vec();
    out.put_u32_le(ENTRIES as u32);
    let (mut queue, mut model) = (Queue::new(config.clone()), Model::new(config));
    let mut ts_ms = 1_700_000_000_000;
    for index in 1..=ENTRIES {
        let version = version(index);
        let term = 1 + index / 100;
        ts_ms += random(400);
        let mut batch = BatchBuilder::new(version);
        for _ in 0..1 + random(4) {
            let position = batch.len() as u16;
            let command = command(&random_op(&mut random), &model, ts_ms);
            // Forms that the version does not know are recorded too: they are answered, and change nothing.
            let written = if random(8) == 0 { MV2 } else { version };
            let mut bytes = BytesMut::new();
            command.encode(written, &mut bytes);
            batch.push(MV1, |out| out.put_slice(&bytes)).unwrap();
            if let Ok(command) = Command::decode(version, bytes.freeze()) {
                let meta = Meta { reference: Reference::new(index, position), term, ts_ms, version };
                model.apply(&meta, &command);
            }
        }
        if random(20) == 0 {
            batch.push(MV1, |bytes| bytes.put_slice(b"\xf0 not a command")).unwrap();
        }
        let batch = batch.finish(ts_ms);
        out.put_u16_le(version.0);
        out.put_u32_le(term as u32);
        out.put_u32_le(batch.len() as u32);
        out.put_slice(&batch);
        apply(&mut queue, index, term, version, batch).into_iter().for_each(|outcome| out.put_u32_le(outcome));
        queue.check_invariants().unwrap();
    }
    let state = queue.encode_state();
    out.put_u32_le(state.len() as u32);
    out.put_slice(&state);
    (out, queue.digest())
}

/// Rare kinds a little more often than in the property tests: a recording has all of them.
fn random_op(random: &mut impl FnMut(u64) -> u64) -> Op {
    let mut bytes = [0; OP_BYTES];
    bytes.iter_mut().for_each(|byte| *byte = random(256) as u8);
    if random(4) == 0 {
        bytes[0] = 198 + bytes[0] % 58;
    }
    Op(bytes)
}
