//! The log store under `kill -9` and power cuts: what a write has acknowledged is there afterwards, all of it and in order.
//!
//! A child process writes a history that is a function of the step's number, and prints the number of every step whose write
//! has returned. The parent kills it, throws away or garbles what no sync covered, opens the store and compares it with a
//! model of the same history: it must stand at the last acknowledged step, or at the one that was being written.

use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write as _};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use bytes::Bytes;
use tempfile::TempDir;
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};
use warren_raft::log_store::{
    Entry, EntryKind, GroupRecord, HardState, LogStore, Member, MemberRole, Membership, SnapshotMeta, Write,
};
use warren_raft::storage::{RocksStore, StoreConfig};

/// The child's directory and the number of the step it begins with.
const CHILD: &str = "WARREN_KILLED_STORE";

/// Segments are small, so that several close and die in a round.
fn open(dir: &Path) -> RocksStore {
    let config = StoreConfig {
        segment_bytes: 48 << 10,
        block_cache: 1 << 20,
        idle_close: Duration::ZERO,
        ..StoreConfig::queues()
    };
    RocksStore::open(dir, config).unwrap()
}

/// A small generator.
struct Random(u64);

impl Random {
    fn new(seed: u64) -> Self {
        Random((seed + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    fn below(&mut self, n: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % n
    }
}

/// What the store holds of a group.
#[derive(Debug, Clone, PartialEq)]
struct Group {
    record: GroupRecord,
    state: Bytes,
    /// All readable entries.
    log: BTreeMap<u64, Entry>,
}

/// All groups after a number of steps.
#[derive(Debug, Clone, Default, PartialEq)]
struct Model {
    groups: BTreeMap<u64, Group>,
}

/// One step: what is staged, and the write.
struct Step {
    staged: Option<(GroupId, u64, Vec<Entry>)>,
    writes: Vec<Write>,
    upkeep: bool,
}

fn membership(index: u64) -> Membership {
    let member = |n| Member { uid: MemberUid(n), node: NodeId(n), role: MemberRole::Voter };
    Membership { members: (1..=1 + index % 5).map(member).collect(), index, ..Membership::default() }
}

fn entry(index: u64, term: u64, size: u64) -> Entry {
    let mut data = format!("{index}.{term}.").into_bytes();
    data.resize(data.len() + size as usize, index as u8);
    Entry { index, term, kind: EntryKind::Commands, data: data.into() }
}

fn push_index(set: &mut Vec<RangeInclusive<u64>>, index: u64) {
    match set.last_mut() {
        Some(last) if *last.end() + 1 == index => *last = *last.start()..=index,
        _ => set.push(index..=index),
    }
}

impl Model {
    /// Does step `n`, which depends on the number and the state alone.
    fn step(&mut self, n: u64) -> Step {
        let mut random = Random::new(n);
        let mut step = Step { staged: None, writes: Vec::new(), upkeep: random.below(8) == 0 };
        // Several groups in one write: they become durable together or not at all.
        let first = random.below(4);
        for id in (first..=first + random.below(3)).map(|id| 1 + id % 4) {
            self.change(GroupId(id), n, &mut random, &mut step);
        }
        step
    }

    fn change(&mut self, id: GroupId, n: u64, random: &mut Random, step: &mut Step) {
        let group = self.groups.entry(id.0).or_insert_with(|| {
            let record = GroupRecord {
                group: id,
                me: MemberUid(n),
                init: Bytes::from_static(b"init"),
                founding: membership(0),
                founding_version: MachineVersion(1),
                hard_state: HardState::default(),
                membership: membership(0),
                snapshot: None,
                last_index: 0,
            };
            step.writes.push(Write::Create(record.clone()));
            Group { record, state: Bytes::new(), log: BTreeMap::new() }
        });
        let floor = group.record.snapshot.as_ref().map_or(0, |s| s.index);
        let last = group.record.last_index;
        match random.below(20) {
            0 => {
                step.writes.push(Write::Delete(id));
                self.groups.remove(&id.0);
                return;
            }
            1 | 2 if last > floor => {
                let index = floor + 1 + random.below(last - floor);
                let mut live = Vec::new();
                group.log.retain(|i, _| {
                    let keep = *i > index || random.below(4) == 0;
                    if keep && *i <= index {
                        push_index(&mut live, *i);
                    }
                    keep
                });
                step.writes.push(group.snapshot(id, index, live, n, Write::Snapshot));
            }
            3 if step.staged.is_none() && step.writes.is_empty() => {
                let index = last + 1 + random.below(30);
                let mut live = Vec::new();
                group.log.clear();
                for i in (1..=index).filter(|_| random.below(8) == 0) {
                    push_index(&mut live, i);
                    group.log.insert(i, entry(i, group.record.hard_state.term, 100));
                }
                step.staged = Some((id, index, group.log.values().cloned().collect()));
                group.record.last_index = index;
                step.writes.push(group.snapshot(id, index, live, n, Write::Install));
            }
            kind => {
                let back = if kind < 8 { random.below(5) } else { 0 };
                let from = (last + 1).saturating_sub(back).max(floor + 1);
                let state = &mut group.record.hard_state;
                state.term += u64::from(back > 0);
                state.vote = random.below(4);
                state.commit = from - 1;
                let to = from + random.below(12);
                let size = random.below(900);
                let new: Vec<Entry> = (from..=to).map(|i| entry(i, state.term, size)).collect();
                group.log.split_off(&from);
                group.log.extend(new.iter().map(|e| (e.index, e.clone())));
                group.record.last_index = to;
                step.writes.extend([Write::Append(id, new), Write::HardState(id, *state)]);
            }
        }
        if random.below(6) == 0 {
            group.record.membership = membership(n);
            step.writes.push(Write::Membership(id, membership(n)));
        }
    }

    /// What a store holds.
    fn of(store: &RocksStore) -> Model {
        let read = |record: GroupRecord| {
            let group = record.group;
            let floor = record.snapshot.as_ref().map_or(0, |s| s.index);
            let above = store.entries(group, 0, u64::MAX, u64::MAX).unwrap();
            // The store checks it too; this is the reader's own look.
            assert!(above.iter().map(|e| e.index).eq(floor + 1..=record.last_index), "{group}: a gap");
            let below: Vec<u64> = (1..=floor).collect();
            let below = store.read(group, &below).unwrap().into_iter().flatten();
            let log = below.chain(above).map(|e| (e.index, e)).collect();
            let state = store.snapshot(group).unwrap().map_or(Bytes::new(), |(_, state)| state);
            (group.0, Group { record, state, log })
        };
        Model { groups: store.groups().unwrap().into_iter().map(read).collect() }
    }
}

impl Group {
    fn snapshot(
        &mut self,
        id: GroupId,
        index: u64,
        live: Vec<RangeInclusive<u64>>,
        n: u64,
        write: fn(GroupId, SnapshotMeta, Bytes) -> Write,
    ) -> Write {
        self.state = Bytes::from(vec![n as u8; 50 + (n % 500) as usize]);
        let meta = SnapshotMeta {
            index,
            term: self.record.hard_state.term,
            membership: self.record.membership.clone(),
            version: MachineVersion(1),
            live,
            state_len: self.state.len() as u64,
            state_crc: crc32c::crc32c(&self.state),
        };
        self.record.snapshot = Some(meta.clone());
        write(id, meta, self.state.clone())
    }
}

/// The newest file of the write-ahead log that holds something, and its length.
fn newest_log(dir: &Path) -> Option<(PathBuf, u64)> {
    let files = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path());
    let logs = files.filter(|path| path.extension().is_some_and(|e| e == "log"));
    let lengths = logs.filter_map(|path| fs::metadata(&path).ok().map(|m| (path, m.len())));
    lengths.filter(|(_, length)| *length > 0).max()
}

#[test]
#[ignore = "the child of another test"]
fn writes_until_it_is_killed() {
    let Ok(argument) = std::env::var(CHILD) else {
        return;
    };
    let (begin, dir) = argument.split_once(' ').unwrap();
    let (begin, dir) = (begin.parse::<u64>().unwrap(), Path::new(dir));
    let mut model = Model::default();
    (1..begin).for_each(|n| drop(model.step(n)));
    let store = open(dir);
    let mut out = std::io::stdout();
    for n in begin.. {
        let step = model.step(n);
        if let Some((group, snapshot, entries)) = step.staged {
            store.stage(group, snapshot, &entries).unwrap();
        }
        store.write(&step.writes).unwrap();
        let (log, length) = newest_log(dir).unwrap();
        writeln!(out, "done {n} {length} {}", log.display()).unwrap();
        out.flush().unwrap();
        if step.upkeep {
            store.maintain().unwrap();
        }
    }
}

fn child(dir: &Path, begin: u64) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--ignored", "--exact", "--nocapture", "writes_until_it_is_killed"])
        .env(CHILD, format!("{begin} {}", dir.display()))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap()
}

/// Runs the child from step `begin` on, kills it at a random moment, and answers its last acknowledged step and the length
/// of the log file then.
fn killed(dir: &Path, begin: u64, random: &mut Random) -> Option<(u64, PathBuf, u64)> {
    let mut child = child(dir, begin);
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let mut last: Option<(u64, PathBuf, u64)> = None;
    let note = |line: String, last: &mut Option<(u64, PathBuf, u64)>| {
        if let Some(rest) = line.strip_prefix("done ") {
            let mut parts = rest.splitn(3, ' ');
            let mut next = || parts.next().unwrap();
            let (n, length) = (next().parse().unwrap(), next().parse().unwrap());
            *last = Some((n, PathBuf::from(next()), length));
        }
    };
    // Now and then it dies while it opens the store.
    let steps = if random.below(4) == 0 { 0 } else { 1 + random.below(120) };
    while steps > 0 && last.as_ref().is_none_or(|(n, ..)| *n < begin + steps) {
        note(lines.next().expect("the child goes on until it is killed").unwrap(), &mut last);
    }
    std::thread::sleep(Duration::from_micros(random.below(if steps == 0 { 60_000 } else { 3_000 })));
    child.kill().unwrap();
    // It may have acknowledged more; a last line may be cut short.
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    for line in rest {
        if line.starts_with("done ") && line.ends_with(".log") {
            note(line, &mut last);
        }
    }
    child.wait().unwrap();
    last
}

/// Where the last record begins of those from `at` on. Every record is synced before the next is written, so a power cut
/// reaches no other, whatever the child had come to report.
fn last_record(log: &[u8], mut at: usize) -> usize {
    const BLOCK: usize = 32 << 10;
    const HEADER: usize = 7;
    let mut begin = at;
    loop {
        let left = BLOCK - at % BLOCK;
        if left < HEADER {
            at += left;
        }
        let Some(header) = log.get(at..at + HEADER) else { return begin };
        // A full fragment, or the first of several.
        if matches!(header[6], 1 | 2) {
            begin = at;
        }
        at += HEADER + usize::from(u16::from_le_bytes([header[4], header[5]]));
    }
}

/// A power cut: of the write after the last sync, anything may be missing or different.
fn cut_power(dir: &Path, acknowledged: &Path, synced: u64, random: &mut Random) {
    let Some((log, length)) = newest_log(dir) else {
        return;
    };
    // A newer file than that has nothing in it that was acknowledged.
    let synced = if log == acknowledged { synced } else { 0 };
    if synced >= length {
        return;
    }
    let mut bytes = fs::read(&log).unwrap();
    let torn = last_record(&bytes, synced as usize);
    let from = torn + random.below(length - torn as u64) as usize;
    match random.below(3) {
        0 => bytes.truncate(from),
        1 => bytes[from..].fill(0),
        _ => bytes[from] ^= 1 << random.below(8),
    }
    fs::write(&log, bytes).unwrap();
}

fn survives(rounds: u64, power: bool) {
    let dir = TempDir::new().unwrap();
    let mut model = Model::default();
    let mut at = 0;
    let (mut acknowledged, mut more) = (0, 0);
    for round in 0..rounds {
        let random = &mut Random::new(1000 * u64::from(power) + round);
        let last = killed(dir.path(), at + 1, random);
        if let (true, Some((_, log, length))) = (power, &last) {
            cut_power(dir.path(), log, *length, random);
        }
        let done = last.map_or(at, |(n, ..)| n);
        (at + 1..=done).for_each(|n| drop(model.step(n)));
        acknowledged += done - at;
        at = done;
        let found = Model::of(&open(dir.path()));
        if found != model {
            // The write that was under way.
            at += 1;
            model.step(at);
            more += 1;
            assert_eq!(found, model, "round {round}: neither step {} nor step {at}", at - 1);
        }
    }
    println!("{acknowledged} acknowledged, {more} more found");
    assert!(acknowledged > rounds);
}

#[test]
fn what_was_acknowledged_survives_being_killed() {
    survives(12, false);
}

#[test]
fn what_was_acknowledged_survives_power_cuts() {
    survives(12, true);
}
