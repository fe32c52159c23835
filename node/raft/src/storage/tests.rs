//! The store on real directories: what is written comes back, now and after a restart.

mod damage;

use std::fs;
use std::ops::RangeInclusive;
use std::os::unix::fs::MetadataExt;

use tempfile::TempDir;
use warren_proto::ids::{MachineVersion, MemberUid, NodeId};

use super::*;
use crate::log_store::{EntryKind, HardState, Member, MemberRole, Membership};

const G: GroupId = GroupId(7);

fn small() -> StoreConfig {
    StoreConfig {
        segment_bytes: 64 << 10,
        block_cache: 1 << 20,
        idle_close: Duration::ZERO,
        background_jobs: 2,
        repair: WIPE,
    }
}

fn open(dir: &TempDir) -> RocksStore {
    RocksStore::open(dir.path(), small()).unwrap()
}

fn members(n: u64) -> Membership {
    let role = |i| match i {
        1 => MemberRole::Voter,
        2 => MemberRole::Promotable { target: 99 },
        _ => MemberRole::NonVoter,
    };
    Membership {
        members: (1..=n).map(|i| Member { uid: MemberUid(i), node: NodeId(10 + i), role: role(i) }).collect(),
        outgoing: vec![MemberUid(1)],
        learners_next: vec![MemberUid(3)],
        auto_leave: true,
        index: 4,
    }
}

fn record(group: GroupId) -> GroupRecord {
    GroupRecord {
        group,
        me: MemberUid(3),
        init: Bytes::from_static(b"queue"),
        founding: members(3),
        founding_version: MachineVersion(2),
        hard_state: HardState { term: 1, vote: 0, commit: 0 },
        membership: members(3),
        snapshot: None,
        last_index: 0,
    }
}

fn entry(index: u64, term: u64, size: usize) -> Entry {
    let kind = match index % 11 {
        3 => EntryKind::Membership,
        5 => EntryKind::Version,
        _ => EntryKind::Commands,
    };
    let mut data = format!("{index}.{term}.").into_bytes();
    data.resize(data.len() + size, index as u8);
    Entry { index, term, kind, data: data.into() }
}

fn entries(range: RangeInclusive<u64>, term: u64, size: usize) -> Vec<Entry> {
    range.map(|i| entry(i, term, size)).collect()
}

fn snapshot(index: u64, term: u64, live: Vec<RangeInclusive<u64>>, state: &[u8]) -> SnapshotMeta {
    SnapshotMeta {
        index,
        term,
        membership: members(2),
        version: MachineVersion(2),
        live,
        state_len: state.len() as u64,
        state_crc: crc32c::crc32c(state),
    }
}

fn append(store: &RocksStore, group: GroupId, entries: Vec<Entry>) {
    store.write(&[Write::Append(group, entries)]).unwrap();
}

/// Everything that can be read of a group, to compare before and after a restart.
fn dump(store: &RocksStore, group: GroupId) -> impl PartialEq + std::fmt::Debug + use<> {
    let record = store.groups().unwrap().into_iter().find(|r| r.group == group);
    let last = record.as_ref().map_or(0, |r| r.last_index);
    let indexes: Vec<u64> = (0..=last + 2).collect();
    let terms: Vec<_> = indexes.iter().map(|i| store.term(group, *i).unwrap()).collect();
    let read = store.read(group, &indexes).unwrap();
    (record, terms, read, store.entries(group, 0, u64::MAX, u64::MAX).unwrap(), store.snapshot(group).unwrap())
}

fn disk_usage(dir: &TempDir) -> u64 {
    fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().metadata().unwrap().blocks() * 512).sum()
}

fn newest_wal(dir: &TempDir) -> PathBuf {
    let logs = fs::read_dir(dir.path()).unwrap().map(|e| e.unwrap().path());
    logs.filter(|p| p.extension().is_some_and(|e| e == "log") && fs::metadata(p).unwrap().len() > 0).max().unwrap()
}

#[test]
fn what_is_written_is_there_now_and_after_a_restart() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Create(record(GroupId(8)))]).unwrap();
    let hard = HardState { term: 3, vote: 2, commit: 20 };
    store
        .write(&[
            Write::Append(G, entries(1..=20, 1, 100)),
            Write::HardState(G, hard),
            Write::Append(G, entries(21..=30, 3, 10)),
            Write::Membership(G, members(1)),
            Write::Append(GroupId(8), entries(1..=2, 1, 0)),
        ])
        .unwrap();
    assert_eq!(store.entries(G, 5, 8, u64::MAX).unwrap(), entries(5..=7, 1, 100));
    assert_eq!(store.entries(G, 5, 30, 250).unwrap(), entries(5..=6, 1, 100));
    assert_eq!(store.entries(G, 5, 30, 1).unwrap(), entries(5..=5, 1, 100));
    assert_eq!(store.entries(G, 31, 40, u64::MAX).unwrap(), []);
    let terms: Vec<_> = [0, 1, 20, 21, 30, 31].iter().map(|i| store.term(G, *i).unwrap()).collect();
    assert_eq!(terms, [Some(0), Some(1), Some(1), Some(3), Some(3), None]);
    let read = store.read(G, &[30, 2, 31]).unwrap();
    assert_eq!(read, [Some(entry(30, 3, 10)), Some(entry(2, 1, 100)), None]);
    assert_eq!(store.read(GroupId(99), &[1]).unwrap(), [None]);
    let before = (dump(&store, G), dump(&store, GroupId(8)));
    drop(store);
    let store = open(&dir);
    assert_eq!((dump(&store, G), dump(&store, GroupId(8))), before);
    let groups = store.groups().unwrap();
    assert_eq!(groups.len(), 2);
    assert_eq!(groups[0].hard_state, hard);
    assert_eq!((groups[0].last_index, groups[0].membership.clone()), (30, members(1)));
    assert_eq!(groups[0].founding, members(3));
}

#[test]
fn a_superseded_suffix_stays_superseded() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=10, 1, 10));
    append(&store, G, entries(11..=15, 3, 10));
    // The new leader's log has an older term there, and is shorter.
    append(&store, G, entries(11..=12, 2, 10));
    assert_eq!(store.term(G, 13).unwrap(), None);
    // And back again: the same index and term as before.
    append(&store, G, entries(11..=14, 3, 10));
    append(&store, G, entries(14..=14, 4, 10));
    let before = dump(&store, G);
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    // Now 1..=14 lie in a closed segment.
    append(&store, G, entries(9..=9, 5, 10));
    assert_eq!(store.entries(G, 8, 20, u64::MAX).unwrap(), [entry(8, 1, 10), entry(9, 5, 10)]);
    let before = dump(&store, G);
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    assert!(store.write(&[Write::Append(G, entries(12..=12, 5, 0))]).is_err(), "a gap");
}

#[test]
fn live_entries_below_the_floor_are_read_and_dead_ones_never_again() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=50, 1, 10));
    let state = vec![9; 3 << 20];
    store.write(&[Write::Snapshot(G, snapshot(40, 1, vec![3..=5, 17..=17], &state), state.clone().into())]).unwrap();
    assert_eq!(store.term(G, 40).unwrap(), Some(1));
    assert_eq!(store.term(G, 17).unwrap(), None);
    assert_eq!(store.entries(G, 1, 43, u64::MAX).unwrap(), entries(41..=42, 1, 10));
    let read = store.read(G, &[2, 3, 5, 17, 18, 40, 41]).unwrap();
    assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, true, true, false, false, true]);
    let (meta, stored) = store.snapshot(G).unwrap().unwrap();
    assert_eq!((meta.live, stored.len()), (vec![3..=5, 17..=17], 3 << 20));
    let before = dump(&store, G);
    drop(store);

    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    let state = b"second".to_vec();
    // An index that was dead does not come back.
    store.write(&[Write::Snapshot(G, snapshot(50, 1, vec![5..=6, 45..=45], &state), state.clone().into())]).unwrap();
    let read = store.read(G, &[3, 5, 6, 17, 45, 50]).unwrap();
    assert_eq!(read.iter().map(Option::is_some).collect::<Vec<_>>(), [false, true, false, false, true, false]);
    append(&store, G, entries(51..=52, 2, 10));
    let before = dump(&store, G);
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    assert_eq!(store.snapshot(G).unwrap().unwrap().1, "second");
}

#[test]
fn an_installed_snapshot_replaces_the_log() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=30, 1, 10));
    // A transfer that comes to nothing, then one that starts twice.
    store.stage(G, 90, &entries(60..=61, 2, 10)).unwrap();
    store.stage(G, 100, &entries(20..=25, 5, 10)).unwrap();
    store.stage(G, 100, &entries(20..=28, 5, 10)).unwrap();
    store.stage(G, 100, &[entry(70, 5, 10), entry(72, 5, 10)]).unwrap();
    assert_eq!(store.read(G, &[20, 60, 70]).unwrap(), [Some(entry(20, 1, 10)), None, None]);
    let live = vec![20..=26, 70..=70, 72..=72];
    let meta = snapshot(100, 6, live, b"state");
    store.write(&[Write::Install(G, meta.clone(), Bytes::from_static(b"state"))]).unwrap();
    append(&store, G, entries(101..=105, 6, 10));
    let check = |store: &RocksStore| {
        let read = store.read(G, &[1, 20, 26, 27, 60, 70, 71, 72, 101]).unwrap();
        assert_eq!(read[1], Some(entry(20, 5, 10)));
        let there: Vec<_> = read.iter().map(Option::is_some).collect();
        assert_eq!(there, [false, true, true, false, false, true, false, true, true]);
        assert_eq!(store.entries(G, 1, 200, u64::MAX).unwrap(), entries(101..=105, 6, 10));
    };
    check(&store);
    let before = dump(&store, G);
    drop(store);
    let store = open(&dir);
    check(&store);
    assert_eq!(dump(&store, G), before);
    // Staged and not installed when the process ends: gone.
    store.stage(G, 200, &entries(150..=160, 7, 10)).unwrap();
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    store.stage(G, 200, &entries(150..=160, 7, 10)).unwrap();
    let meta = snapshot(200, 7, vec![150..=160], b"");
    store.write(&[Write::Install(G, meta, Bytes::new())]).unwrap();
    assert_eq!(store.read(G, &[150, 20]).unwrap(), [Some(entry(150, 7, 10)), None]);
}

#[test]
fn staged_entries_survive_the_close_of_their_segment() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    for first in (1..200).step_by(10) {
        store.stage(G, 1000, &entries(first..=first + 9, 1, 2000)).unwrap();
    }
    assert!(store.usage().segments > 2);
    store.maintain().unwrap();
    let meta = snapshot(1000, 2, vec![1..=50, 150..=199], b"s");
    store.write(&[Write::Install(G, meta, Bytes::from_static(b"s"))]).unwrap();
    let before = dump(&store, G);
    let read = store.read(G, &[1, 50, 51, 150, 199]).unwrap();
    assert_eq!(read.iter().filter(|e| e.is_some()).count(), 4);
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
}

#[test]
fn a_transfer_that_a_crash_cut_off_leaves_nothing_that_the_next_one_would_meet() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    for first in (1..100).step_by(10) {
        store.stage(G, 500, &entries(first..=first + 9, 1, 2000)).unwrap();
    }
    assert!(store.usage().segments > 2);
    drop(store);
    let store = open(&dir);
    assert_eq!(store.usage().alive, 0);
    store.stage(G, 500, &entries(1..=100, 1, 2000)).unwrap();
    store.write(&[Write::Install(G, snapshot(500, 2, vec![1..=100], b"s"), Bytes::from_static(b"s"))]).unwrap();
    let before = dump(&store, G);
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    store.maintain().unwrap();
    assert_eq!(dump(&store, G), before);
}

/// Readers never take an entry that is dying for one that is lost.
#[test]
fn reading_goes_on_while_entries_die() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                while !done.load(std::sync::atomic::Ordering::Relaxed) {
                    let last = store.index(G).unwrap().last();
                    let indexes: Vec<u64> = (last.saturating_sub(60)..=last).collect();
                    for entry in store.read(G, &indexes).unwrap().into_iter().flatten() {
                        assert_eq!(entry, super::tests::entry(entry.index, 1, 500));
                    }
                    store.entries(G, last.saturating_sub(50), last, u64::MAX).unwrap();
                }
            });
        }
        for i in 1..300 {
            append(&store, G, entries(i * 10 - 9..=i * 10, 1, 500));
            let live = if i % 3 == 0 { vec![i * 5..=i * 5] } else { vec![] };
            let meta = snapshot(i * 10 - 5, 1, live, b"s");
            store.write(&[Write::Snapshot(G, meta, Bytes::from_static(b"s"))]).unwrap();
            if i % 20 == 0 {
                store.maintain().unwrap();
            }
        }
        done.store(true, std::sync::atomic::Ordering::Relaxed);
    });
}

#[test]
fn a_deleted_group_leaves_nothing_and_may_be_made_again() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    for first in (1..100).step_by(10) {
        append(&store, G, entries(first..=first + 9, 1, 2000));
    }
    store.write(&[Write::Snapshot(G, snapshot(30, 1, vec![3..=5], b"x"), Bytes::from_static(b"x"))]).unwrap();
    store.write(&[Write::Delete(G)]).unwrap();
    assert!(store.groups().unwrap().is_empty());
    assert_eq!(store.read(G, &[50]).unwrap(), [None]);
    assert_eq!(store.snapshot(G).unwrap(), None);
    store.write(&[Write::Delete(G), Write::Create(record(G)), Write::Append(G, entries(1..=3, 9, 10))]).unwrap();
    let before = dump(&store, G);
    assert_eq!(store.entries(G, 1, 100, u64::MAX).unwrap(), entries(1..=3, 9, 10));
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    assert!(store.write(&[Write::Create(record(G))]).is_err());
}

/// A table file may hold a dropped segment beside one that is still needed, so dropped keys can outlive their segment.
#[test]
fn what_is_left_of_a_dropped_segment_never_comes_back() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Append(G, entries(1..=5, 1, 10))]).unwrap();
    drop(store);
    let store = open(&dir);
    store.write(&[Write::Delete(G)]).unwrap();
    store.maintain().unwrap();
    store.write(&[Write::Create(record(G)), Write::Append(G, entries(1..=3, 2, 10))]).unwrap();
    assert_eq!(store.writer.lock().segments.keys().copied().collect::<Vec<_>>(), [2]);
    let before = dump(&store, G);
    let left = keys::EntryKey { segment: 1, group: G, index: 9, term: 1, staged: 0 };
    let left = left.encode(&mut [0; keys::ENTRY_KEY + 8]).to_vec();
    store.db.put_cf(store.family(keys::LOG).unwrap(), left, [values::VERSION, 0]).unwrap();
    drop(store);
    let store = open(&dir);
    assert_eq!(dump(&store, G), before);
    assert_eq!(store.writer.lock().open, 3);
}

#[test]
fn segments_close_and_their_files_go_when_they_are_dead() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    let groups: Vec<GroupId> = (1..=5).map(GroupId).collect();
    store.write(&groups.iter().map(|g| Write::Create(record(*g))).collect::<Vec<_>>()).unwrap();
    for first in (1..400).step_by(4) {
        let writes: Vec<_> = groups.iter().map(|g| Write::Append(*g, entries(first..=first + 3, 1, 3000))).collect();
        store.write(&writes).unwrap();
        if first % 40 == 1 {
            store.maintain().unwrap();
        }
    }
    assert!(store.usage().segments > 20);
    let names = |level| -> Vec<String> {
        let files = store.db.live_files().unwrap().into_iter();
        files.filter(|f| f.column_family_name == keys::LOG && f.level == level).map(|f| f.name).collect()
    };
    store.await_flush().unwrap();
    let flushed = names(0);
    store.maintain().unwrap();
    let moved = names(1);
    assert!(!flushed.is_empty() && flushed.iter().all(|f| moved.contains(f)), "files were rewritten");
    let full = disk_usage(&dir);
    assert!(full > 5 << 20, "{full}");
    // Every entry is where it was, in files that were moved and not rewritten.
    for g in &groups {
        assert_eq!(store.entries(*g, 1, 500, u64::MAX).unwrap(), entries(1..=400, 1, 3000));
    }
    // All but a few entries die; the few lie in the oldest and in the middle segments.
    let live = vec![2..=3, 200..=201];
    for g in &groups {
        store.write(&[Write::Snapshot(*g, snapshot(400, 1, live.clone(), b"s"), Bytes::from_static(b"s"))]).unwrap();
    }
    let before: Vec<_> = groups.iter().map(|g| dump(&store, *g)).collect();
    std::thread::sleep(Duration::from_millis(50));
    for _ in 0..4 {
        store.maintain().unwrap();
    }
    assert_eq!(groups.iter().map(|g| dump(&store, *g)).collect::<Vec<_>>(), before);
    let left = disk_usage(&dir);
    assert!(left < full / 4, "{left} of {full} left, {:?}", store.usage());
    drop(store);
    let store = open(&dir);
    assert_eq!(groups.iter().map(|g| dump(&store, *g)).collect::<Vec<_>>(), before);
    // The rest dies too.
    for g in &groups {
        append(&store, *g, entries(401..=402, 2, 10));
        store.write(&[Write::Snapshot(*g, snapshot(402, 2, vec![], b"s"), Bytes::from_static(b"s"))]).unwrap();
    }
    store.maintain().unwrap();
    assert_eq!(store.usage().alive, 0);
    assert!(store.usage().segments <= 2, "{:?}", store.usage());
}

#[test]
fn a_sparse_segment_is_copied_forward() {
    let dir = TempDir::new().unwrap();
    let config = StoreConfig { segment_bytes: 4 << 20, ..small() };
    let store = RocksStore::open(dir.path(), config.clone()).unwrap();
    store.write(&[Write::Create(record(G)), Write::Create(record(GroupId(8)))]).unwrap();
    for first in (1..2000).step_by(20) {
        append(&store, G, entries(first..=first + 19, 1, 5000));
        append(&store, GroupId(8), entries(first..=first + 19, 1, 10));
    }
    store.maintain().unwrap();
    let segments = store.usage().segments;
    assert!(segments >= 3);
    let live = vec![1..=10, 500..=500, 1000..=1005];
    store.write(&[Write::Snapshot(G, snapshot(1500, 1, live.clone(), b"s"), Bytes::from_static(b"s"))]).unwrap();
    store.write(&[Write::Snapshot(GroupId(8), snapshot(1500, 1, live, b"s"), Bytes::from_static(b"s"))]).unwrap();
    let before = (dump(&store, G), dump(&store, GroupId(8)));
    for _ in 0..5 {
        store.maintain().unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    assert!(store.usage().segments < segments, "{:?} of {segments}", store.usage());
    assert_eq!((dump(&store, G), dump(&store, GroupId(8))), before);
    drop(store);
    let store = RocksStore::open(dir.path(), config).unwrap();
    assert_eq!((dump(&store, G), dump(&store, GroupId(8))), before);
}

#[test]
fn a_torn_last_record_is_cut_and_everything_before_it_is_there() {
    for damage in 0..3 {
        let dir = TempDir::new().unwrap();
        let store = open(&dir);
        store.write(&[Write::Create(record(G))]).unwrap();
        append(&store, G, entries(1..=10, 1, 500));
        let before = dump(&store, G);
        let wal = newest_wal(&dir);
        let whole = fs::metadata(&wal).unwrap().len();
        append(&store, G, entries(11..=20, 1, 500));
        drop(store);
        let mut bytes = fs::read(&wal).unwrap();
        match damage {
            0 => bytes.truncate(whole as usize + 300),
            1 => bytes[whole as usize + 300..].fill(0),
            _ => bytes[whole as usize + 300] ^= 0x40,
        }
        fs::write(&wal, bytes).unwrap();
        let store = open(&dir);
        assert_eq!(dump(&store, G), before, "damage {damage}");
        append(&store, G, entries(11..=12, 2, 5));
        let before = dump(&store, G);
        drop(store);
        assert_eq!(dump(&open(&dir), G), before);
    }
}

#[test]
fn damage_before_the_tail_is_refused_and_names_the_file_and_the_repair() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=10, 1, 500));
    let wal = newest_wal(&dir);
    let middle = fs::metadata(&wal).unwrap().len() as usize;
    append(&store, G, entries(11..=20, 1, 500));
    append(&store, G, entries(21..=30, 1, 500));
    drop(store);
    let mut bytes = fs::read(&wal).unwrap();
    bytes[middle + 300] ^= 0x40;
    fs::write(&wal, bytes).unwrap();
    let error = RocksStore::open(dir.path(), small()).err().unwrap();
    assert!(matches!(&error, StoreError::Corrupt(why) if why.contains("delete its data directory")), "{error}");
    assert!(error.to_string().contains(&wal.display().to_string()), "{error}");
}

#[test]
fn unknown_versions_and_missing_entries_are_refused() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Append(G, entries(1..=10, 1, 5))]).unwrap();
    let meta = store.family(keys::META).unwrap();
    store.db.put_cf(meta, keys::FORMAT, [2]).unwrap();
    drop(store);
    let error = RocksStore::open(dir.path(), small()).err().unwrap();
    assert!(error.to_string().contains("newer version"), "{error}");

    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Append(G, entries(1..=10, 1, 5))]).unwrap();
    let key = keys::EntryKey { segment: 1, group: G, index: 5, term: 1, staged: 0 };
    let key = key.encode(&mut [0; keys::ENTRY_KEY + 8]).to_vec();
    store.db.delete_cf(store.family(keys::LOG).unwrap(), key).unwrap();
    assert!(matches!(store.entries(G, 4, 8, u64::MAX), Err(StoreError::Corrupt(_))));
    assert!(matches!(store.read(G, &[5]), Err(StoreError::Corrupt(_))));
    drop(store);
    let error = RocksStore::open(dir.path(), small()).err().unwrap();
    assert!(error.to_string().contains("entries 5..6 are missing"), "{error}");

    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Append(G, entries(1..=10, 1, 5))]).unwrap();
    store.write(&[Write::Snapshot(G, snapshot(5, 1, vec![], b"state"), Bytes::from_static(b"other"))]).unwrap();
    assert!(matches!(store.snapshot(G), Err(StoreError::Corrupt(_))));
}

fn push_index(set: &mut ranges::Ranges, index: u64) {
    match set.last_mut() {
        Some(last) if *last.end() + 1 == index => *last = *last.start()..=index,
        _ => set.push(index..=index),
    }
}

/// Many random histories, each compared with a model after every restart.
#[test]
fn random_histories_survive_restarts() {
    use std::collections::BTreeMap;
    for seed in 1..=12u64 {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
        let mut random = move |n: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % n
        };
        let dir = TempDir::new().unwrap();
        let mut store = open(&dir);
        // Floor, and all readable entries.
        let mut model: BTreeMap<GroupId, (u64, BTreeMap<u64, Entry>)> = BTreeMap::new();
        let mut term = 1;
        for _ in 0..150 {
            let group = GroupId(1 + random(3));
            let mut writes = Vec::new();
            let (floor, log) = model.entry(group).or_insert_with(|| {
                writes.push(Write::Create(record(group)));
                (0, BTreeMap::new())
            });
            let last = log.keys().next_back().copied().unwrap_or(0).max(*floor);
            match random(12) {
                0 => term += 1,
                1..=6 => {
                    let back = if random(4) == 0 { random(5) } else { 0 };
                    let first = (last + 1).saturating_sub(back).max(*floor + 1);
                    if back > 0 {
                        term += 1;
                    }
                    let new = entries(first..=first + random(20), term, random(3000) as usize);
                    log.split_off(&first);
                    log.extend(new.iter().map(|e| (e.index, e.clone())));
                    writes.push(Write::Append(group, new));
                }
                7 | 8 if last > *floor => {
                    let index = *floor + 1 + random(last - *floor);
                    let mut live = ranges::Ranges::new();
                    log.retain(|i, _| {
                        let keep = *i > index || random(4) == 0;
                        if keep && *i <= index {
                            push_index(&mut live, *i);
                        }
                        keep
                    });
                    *floor = index;
                    let meta = snapshot(index, 1, live, b"state");
                    writes.push(Write::Snapshot(group, meta, Bytes::from_static(b"state")));
                }
                9 => {
                    let index = last + 1 + random(50);
                    let mut live = ranges::Ranges::new();
                    log.clear();
                    for i in (1..=index).filter(|_| random(8) == 0) {
                        push_index(&mut live, i);
                        log.insert(i, entry(i, 1, 100));
                    }
                    if !writes.is_empty() {
                        store.write(&writes).unwrap();
                        writes.clear();
                    }
                    let staged: Vec<Entry> = log.values().cloned().collect();
                    store.stage(group, index, &staged).unwrap();
                    *floor = index;
                    writes.push(Write::Install(group, snapshot(index, 1, live, b"s"), Bytes::from_static(b"s")));
                }
                10 => {
                    writes.push(Write::Delete(group));
                    model.remove(&group);
                }
                _ => store.maintain().unwrap(),
            }
            store.write(&writes).unwrap();
            if random(10) == 0 {
                drop(store);
                store = open(&dir);
            }
            for (group, (floor, log)) in &model {
                let last = log.keys().next_back().copied().unwrap_or(0).max(*floor);
                let indexes: Vec<u64> = (1..=last + 1).collect();
                let expected: Vec<_> = indexes.iter().map(|i| log.get(i).cloned()).collect();
                assert_eq!(store.read(*group, &indexes).unwrap(), expected, "seed {seed}");
                let above: Vec<_> = log.range(*floor + 1..).map(|(_, e)| e.clone()).collect();
                assert_eq!(store.entries(*group, 1, u64::MAX, u64::MAX).unwrap(), above);
            }
            assert_eq!(store.groups().unwrap().len(), model.len());
        }
    }
}

/// `cargo test --release -p warren-raft storage -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn how_fast_batches_are_written() {
    let dir = TempDir::new_in(std::env::var("WARREN_BENCH_DIR").unwrap_or_else(|_| ".".into())).unwrap();
    let store = RocksStore::open(dir.path(), StoreConfig::queues()).unwrap();
    let groups: Vec<GroupId> = (1..=10).map(GroupId).collect();
    store.write(&groups.iter().map(|g| Write::Create(record(*g))).collect::<Vec<_>>()).unwrap();
    let mut next = 1;
    for (what, per_write, size) in [
        ("500 commands of 12 B in one entry", 1, 500 * 40),
        ("the same in each of 10 groups", 10, 500 * 40),
        ("500 commands of 1 KiB in one entry", 1, 500 * 1060),
    ] {
        let data = Bytes::from(vec![1; size]);
        let (start, cpu) = (Instant::now(), cpu_seconds());
        let mut writes = 0;
        let mut upkeep = Instant::now();
        let first = next;
        while start.elapsed() < Duration::from_secs(4) {
            let one = Entry { index: next, term: 1, kind: EntryKind::Commands, data: data.clone() };
            let mut all: Vec<_> = groups.iter().map(|g| Write::Append(*g, vec![one.clone()])).collect();
            if per_write == 1 {
                all = vec![Write::Append(groups[0], vec![one])];
            }
            if next % 1000 == 0 && per_write == 1 {
                let meta = snapshot(next - 1, 1, vec![], b"s");
                all.push(Write::Snapshot(groups[0], meta, Bytes::from_static(b"s")));
            }
            store.write(&all).unwrap();
            next += 1;
            writes += 1;
            if upkeep.elapsed() > Duration::from_secs(1) {
                store.maintain().unwrap();
                upkeep = Instant::now();
            }
        }
        let took = start.elapsed().as_secs_f64();
        println!(
            "{what}: {:.0} syncs/s, {:.0} commands/s, {:.1} MB/s, {:.2} CPU s in {took:.1} s, {:?}, {} MB on disk",
            f64::from(writes) / took,
            f64::from(writes * per_write * 500) / took,
            f64::from(writes * per_write) * size as f64 / took / 1e6,
            cpu_seconds() - cpu,
            store.usage(),
            disk_usage(&dir) >> 20,
        );
        // Make the groups equal again.
        for g in &groups[1..] {
            if per_write == 1 {
                let all =
                    (first..next).map(|i| Entry { index: i, term: 1, kind: EntryKind::Commands, data: Bytes::new() });
                append(&store, *g, all.collect());
            }
        }
    }
}

/// `cargo test --release -p warren-raft storage -- --ignored --nocapture`
#[test]
#[ignore = "a measurement"]
fn how_much_memory_an_idle_store_takes() {
    let rss = || {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        status.lines().find(|l| l.starts_with("VmRSS")).unwrap_or_default().to_owned()
    };
    let dirs = (TempDir::new().unwrap(), TempDir::new().unwrap());
    println!("nothing open: {}", rss());
    let queues = RocksStore::open(dirs.0.path(), StoreConfig::queues()).unwrap();
    let metadata = RocksStore::open(dirs.1.path(), StoreConfig::metadata()).unwrap();
    metadata.write(&[Write::Create(record(GroupId(1)))]).unwrap();
    println!("two stores: {}, {} + {} KiB on disk", rss(), disk_usage(&dirs.0) >> 10, disk_usage(&dirs.1) >> 10);
    let groups: Vec<_> = (1..=10_000).map(|g| Write::Create(record(GroupId(g)))).collect();
    queues.write(&groups).unwrap();
    println!("and 10,000 groups: {}", rss());
    for first in (1..6000).step_by(100) {
        append(&queues, GroupId(1), entries(first..=first + 99, 1, 100_000));
    }
    println!("after 600 MB: {}, {} MiB on disk", rss(), disk_usage(&dirs.0) >> 20);
    queues.write(&[Write::Snapshot(GroupId(1), snapshot(6000, 1, vec![], b"s"), Bytes::from_static(b"s"))]).unwrap();
    {
        let mut writer = queues.writer.lock();
        writer.idle_mark = (Instant::now() - Duration::from_secs(61), writer.unflushed);
    }
    queues.maintain().unwrap();
    queues.maintain().unwrap();
    println!("drained and idle: {}, {} MiB on disk, {:?}", rss(), disk_usage(&dirs.0) >> 20, queues.usage());
}

fn cpu_seconds() -> f64 {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |i: usize| fields.get(i).and_then(|f| f.parse::<f64>().ok()).unwrap_or_default();
    (ticks(11) + ticks(12)) / 100.0
}
