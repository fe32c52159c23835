//! Bytes on disk that nobody should have written: refused with the repair, or what was written; nothing else, no panic.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use rocksdb::IteratorMode;

use super::*;
use crate::storage::keys::{EntryKey, GroupKey};

/// Keys, values and a log file as the store writes them.
static WRITTEN: LazyLock<Vec<Vec<u8>>> = LazyLock::new(|| {
    let stored = copy_of(&STORE);
    let db = open_database(stored.path(), &small()).unwrap();
    let mut written: Vec<Vec<u8>> = rows(&db).into_iter().flat_map(|(_, key, value)| [key, value]).collect();
    written.extend([values::live(&[3..=9, 11..=11, 1000..=1005]), crate::driver::encode_change(&[])]);
    let logs = files(stored.path(), "log");
    written.extend(logs.iter().map(|log| fs::read(log).unwrap()));
    written
});

/// A store with something of everything: two groups, one with a received snapshot; closed segments and an open one; some of
/// it in table files, some in the log.
static STORE: LazyLock<TempDir> = LazyLock::new(|| {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Create(record(GroupId(8)))]).unwrap();
    for first in (1..80).step_by(10) {
        append(&store, G, entries(first..=first + 9, 1, 1000));
    }
    store
        .write(&[Write::Snapshot(G, snapshot(40, 1, vec![3..=5, 17..=17], b"state"), Bytes::from_static(b"state"))])
        .unwrap();
    store.stage(GroupId(8), 100, &[entry(70, 5, 10), entry(72, 5, 10)]).unwrap();
    let received = snapshot(100, 6, vec![70..=70, 72..=72], b"received");
    store.write(&[Write::Install(GroupId(8), received, Bytes::from_static(b"received"))]).unwrap();
    store.flush(&mut store.writer.lock(), true).unwrap();
    append(&store, GroupId(8), entries(101..=105, 6, 50));
    store.write(&[Write::HardState(G, HardState { term: 3, vote: 2, commit: 60 })]).unwrap();
    assert!(store.usage().segments > 1, "{:?}", store.usage());
    drop(store);
    dir
});

fn copy_of(dir: &TempDir) -> TempDir {
    let copy = TempDir::new().unwrap();
    for entry in fs::read_dir(dir.path()).unwrap() {
        let entry = entry.unwrap();
        fs::copy(entry.path(), copy.path().join(entry.file_name())).unwrap();
    }
    copy
}

/// The files whose names end so, in order.
fn files(dir: &Path, extension: &str) -> Vec<PathBuf> {
    let mut files: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|e| e == extension) && fs::metadata(path).unwrap().len() > 0);
    files.sort();
    files
}

/// Column family, key and value.
type Row = (&'static str, Vec<u8>, Vec<u8>);

fn rows(db: &DB) -> Vec<Row> {
    let families = [keys::META, keys::SNAP, keys::LOG].into_iter();
    let of = |name| db.iterator_cf(family(db, name).unwrap(), IteratorMode::Start).map(move |row| (name, row.unwrap()));
    families.flat_map(of).map(|(name, (key, value))| (name, key.to_vec(), value.to_vec())).collect()
}

/// Everything that can be read, or the first error.
fn read_all(store: &RocksStore) -> Result<String, StoreError> {
    let mut out = String::new();
    for record in store.groups()? {
        let group = record.group;
        let indexes: Vec<u64> = (0..=110).collect();
        let read = (store.read(group, &indexes)?, store.entries(group, 0, u64::MAX, u64::MAX)?, store.snapshot(group)?);
        out += &format!("{record:?} {read:?}");
    }
    Ok(out)
}

fn names_the_repair(error: &StoreError) -> bool {
    matches!(error, StoreError::Corrupt(why) if why.contains(WIPE))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..120), versioned: bool) {
        let bytes = if versioned { [&[values::VERSION], &bytes[..]].concat() } else { bytes };
        decode(&bytes);
    }

    #[test]
    fn what_was_written_and_damaged_is_read_or_refused(
        which: Pick, damage in vec((any::<Pick>(), any::<u8>()), 0..4), cut in prop::option::of(any::<Pick>())
    ) {
        let mut bytes = which.get(&WRITTEN).clone();
        for (at, byte) in damage {
            if !bytes.is_empty() {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
        }
        bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
        decode(&bytes);
    }
}

fn decode(bytes: &[u8]) {
    fuzzing::key(bytes);
    fuzzing::value(bytes);
    fuzzing::write_ahead_log(bytes);
    fuzzing::write_ahead_log_of(bytes);
    fuzzing::membership_change(bytes);
}

/// Puts a row into a copy of the store under right checksums, then opens and uses it.
fn use_with(changed: &[Row]) -> Result<String, StoreError> {
    let dir = copy_of(&STORE);
    let db = open_database(dir.path(), &small()).unwrap();
    for (name, key, value) in changed {
        db.put_cf(family(&db, name).unwrap(), key, value).unwrap();
    }
    drop(db);
    let store = RocksStore::open(dir.path(), small())?;
    let read = read_all(&store)?;
    for record in store.groups()? {
        store.write(&[Write::Append(record.group, entries(record.last_index + 1..=record.last_index + 3, 9, 10))])?;
        let last = store.index(record.group).unwrap().last();
        let meta = snapshot(last, 9, vec![], b"s");
        store.write(&[Write::Snapshot(record.group, meta, Bytes::from_static(b"s"))])?;
    }
    store.maintain()?;
    read_all(&store)?;
    Ok(read)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn a_store_with_damaged_rows_is_refused_or_works(
        damage in vec((any::<Pick>(), any::<Pick>(), any::<u8>(), prop::bool::weighted(0.2)), 1..3)
    ) {
        static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
            rows(&open_database(copy_of(&STORE).path(), &small()).unwrap())
        });
        let changed: Vec<_> = damage.into_iter().map(|(row, at, byte, in_key)| {
            let (name, mut key, mut value) = row.get(&ROWS).clone();
            let bytes = if in_key { &mut key } else { &mut value };
            let at = at.index(bytes.len());
            bytes[at] = byte;
            (name, key, value)
        }).collect();
        let _ = use_with(&changed);
    }
}

#[test]
fn numbers_that_no_log_reaches_are_refused() {
    use warren_proto::peer::{StoredRun, StoredRuns, StoredSegment, StoredSnapshot};
    let run = |first, last| StoredRuns { runs: vec![StoredRun { first, last, term: 1, staged: 0 }] };
    let row = |runs: StoredRuns| (keys::META, keys::runs(1, G).to_vec(), values::message(&runs));
    let snapshot = StoredSnapshot { index: u64::MAX, ..StoredSnapshot::default() };
    let snapshot = (keys::META, keys::group(keys::GroupKey::Snapshot, G).to_vec(), values::message(&snapshot));
    let open = (keys::META, keys::OPEN_SEGMENT.to_vec(), values::open_segment(u32::MAX).to_vec());
    let closed = values::message(&StoredSegment { entries: u64::MAX, bytes: u64::MAX });
    let closed = (keys::META, keys::segment(u32::MAX), closed);
    let entry = |segment, index, term| {
        let key = keys::EntryKey { segment, group: G, index, term, staged: 0 };
        (keys::LOG, key.encode(&mut [0; keys::ENTRY_KEY + 8]).to_vec(), vec![values::VERSION, 0])
    };
    let number = {
        let dir = copy_of(&STORE);
        let db = open_database(dir.path(), &small()).unwrap();
        let stored = db.get_cf(family(&db, keys::META).unwrap(), keys::OPEN_SEGMENT).unwrap().unwrap();
        values::parse_open_segment(&stored).unwrap()
    };
    for damage in [
        row(run(1, u64::MAX)),
        row(run(u64::MAX, u64::MAX)),
        row(run(0, 5)),
        snapshot,
        open,
        closed,
        entry(number, u64::MAX, 9),
        entry(number, 0, 9),
        entry(u32::MAX, 81, 9),
    ] {
        let error = use_with(std::slice::from_ref(&damage)).unwrap_err();
        assert!(names_the_repair(&error), "{damage:?}: {error}");
    }
}

/// Acknowledged records are behind the damage, so the store must not open without them.
#[test]
fn any_damage_before_the_last_record_of_the_log_is_refused() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    let mut ends = Vec::new();
    let wal = newest_wal(&dir);
    for i in 1..=5 {
        append(&store, G, entries(i..=i, 1, 100));
        ends.push(fs::metadata(&wal).unwrap().len() as usize);
    }
    drop(store);
    let good = fs::read(&wal).unwrap();
    let starts = [0, ends[0], ends[2], ends[3]];
    // Each byte of headers, and some of what they cover.
    let places = starts.iter().flat_map(|start| (0..7).chain([8, 60, 100]).map(move |offset| start + offset));
    for at in places.filter(|at| *at < ends[3]) {
        for flip in [0x01, 0x80] {
            let mut bad = good.clone();
            bad[at] ^= flip;
            fs::write(&wal, bad).unwrap();
            let error = RocksStore::open(dir.path(), small()).err().expect("refused");
            assert!(names_the_repair(&error), "{flip:#x} at {at}: {error}");
        }
    }
    let mut bad = good.clone();
    bad[ends[1] - 50..ends[2]].fill(0);
    fs::write(&wal, bad).unwrap();
    assert!(names_the_repair(&RocksStore::open(dir.path(), small()).err().expect("refused")));
    fs::write(&wal, good).unwrap();
    assert_eq!(open(&dir).entries(G, 1, 9, u64::MAX).unwrap(), entries(1..=5, 1, 100));
}

/// The last record may have been cut off at any byte, and was not acknowledged then.
#[test]
fn a_log_cut_within_its_last_record_opens_with_everything_before_it() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=10, 1, 500));
    let (wal, before) = (newest_wal(&dir), dump(&store, G));
    let whole = fs::metadata(&wal).unwrap().len() as usize;
    store
        .write(&[
            Write::Append(G, entries(11..=12, 2, 100)),
            Write::HardState(G, HardState { term: 2, vote: 1, commit: 10 }),
        ])
        .unwrap();
    drop(store);
    let length = fs::metadata(&wal).unwrap().len() as usize;
    for end in (whole..length).step_by(9).chain([whole + 1, length - 1]) {
        let copy = copy_of(&dir);
        let wal = newest_wal(&copy);
        fs::write(&wal, &fs::read(&wal).unwrap()[..end]).unwrap();
        let store = open(&copy);
        assert_eq!(dump(&store, G), before, "cut at {end}");
        append(&store, G, entries(11..=11, 3, 10));
        let after = dump(&store, G);
        drop(store);
        assert_eq!(dump(&open(&copy), G), after);
    }
}

/// A byte of a table file is found when the file is opened or its block is read; never is something else read.
#[test]
fn a_flipped_byte_of_a_table_file_is_refused_or_of_no_consequence() {
    let good = read_all(&open(&copy_of(&STORE))).unwrap();
    let tables = files(STORE.path(), "sst");
    assert!(tables.len() >= 3, "{tables:?}");
    let mut refused = 0;
    for table in &tables {
        let length = fs::metadata(table).unwrap().len() as usize;
        for at in (0..length).step_by((length / 12).max(1)).chain([length - 60, length - 9, length - 1]) {
            let copy = copy_of(&STORE);
            let damaged = copy.path().join(table.file_name().unwrap());
            let mut bytes = fs::read(&damaged).unwrap();
            bytes[at] ^= 0x10;
            fs::write(&damaged, bytes).unwrap();
            match RocksStore::open(copy.path(), small()).and_then(|store| read_all(&store)) {
                Ok(read) => assert_eq!(read, good, "{table:?} at {at}"),
                Err(error) => {
                    assert!(names_the_repair(&error), "{table:?} at {at}: {error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused >= tables.len() * 3, "{refused}");
}

#[test]
fn a_missing_file_or_a_damaged_manifest_is_refused_and_names_the_repair() {
    let manifest = fs::read_to_string(STORE.path().join("CURRENT")).unwrap();
    let table = files(STORE.path(), "sst")[0].file_name().unwrap().to_owned();
    for damage in 0..4 {
        let copy = copy_of(&STORE);
        match damage {
            0 => fs::remove_file(copy.path().join(&table)).unwrap(),
            1 => fs::remove_file(copy.path().join(manifest.trim())).unwrap(),
            2 => fs::write(copy.path().join("CURRENT"), "nothing\n").unwrap(),
            _ => {
                let manifest = copy.path().join(manifest.trim());
                let mut bytes = fs::read(&manifest).unwrap();
                bytes[20] ^= 0x10;
                fs::write(&manifest, bytes).unwrap();
            }
        }
        let error = RocksStore::open(copy.path(), small()).err().expect("refused");
        assert!(names_the_repair(&error), "damage {damage}: {error}");
    }
}

/// The rows of a file of set aside data, each with a right checksum.
fn rows_of(file: &Path) -> Vec<Row> {
    let bytes = fs::read(file).unwrap();
    let mut rest = bytes.strip_prefix(quarantine::MAGIC).unwrap();
    let mut rows = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_le_bytes(rest[at..at + 4].try_into().unwrap());
        let (key, value) = (number(1) as usize, number(5) as usize);
        let end = 9 + key + value;
        assert_eq!(crc32c::crc32c(&rest[..end]), number(end));
        let family = [keys::META, keys::SNAP, keys::LOG][usize::from(rest[0])];
        rows.push((family, rest[9..9 + key].to_vec(), rest[9 + key..end].to_vec()));
        rest = &rest[end + 4..];
    }
    rows
}

#[test]
fn a_group_that_is_set_aside_leaves_all_its_rows_and_nothing_of_others() {
    let copy = copy_of(&STORE);
    let store = open(&copy);
    for group in [G, GroupId(8)] {
        let set = store.set_aside(group, &copy.path().join("aside")).unwrap();
        let stored = rows_of(&set.file);
        assert_eq!((stored.len() as u64, set.unreadable), (set.rows, 0));
        let of_group = |name: &str, key: &[u8]| match name {
            keys::META => key.len() == 9 && key[0] != GroupKey::Tombstone as u8 && key[1..] == group.0.to_be_bytes(),
            keys::SNAP => key[..8] == group.0.to_be_bytes(),
            _ => EntryKey::parse(key).is_some_and(|key| key.group == group),
        };
        let mut expected = rows(&store.db);
        expected.retain(|(name, key, _)| of_group(name, key));
        // Rows of the log that are in no run are dead, and may be left out.
        let index = store.index(group).unwrap();
        expected.retain(|(name, key, _)| {
            let dead = |key: &EntryKey| index.run_of(key.index).is_none_or(|run| run.segment != key.segment);
            *name != keys::LOG || !EntryKey::parse(key).is_some_and(|key| dead(&key))
        });
        assert_eq!(stored, expected);
        assert_eq!(store.member(group), Some(record(group).me));
    }
    assert_eq!(store.member(GroupId(99)), None);
}

#[test]
fn damage_of_a_closed_segment_is_told_of_its_group_and_stops_neither_writes_nor_upkeep() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Create(record(GroupId(8)))]).unwrap();
    append(&store, G, entries(1..=200, 1, 1000));
    store.flush(&mut store.writer.lock(), true).unwrap();
    drop(store);
    // What was open is a closed segment now. Little of it stays alive, so that upkeep wants to copy it.
    let store = open(&dir);
    let few = snapshot(200, 1, vec![3..=3, 100..=100, 198..=198], b"s");
    store.write(&[Write::Snapshot(G, few, Bytes::from_static(b"s"))]).unwrap();
    let file = store.log_files().unwrap().into_iter().max_by_key(|f| f.size).unwrap();
    drop(store);
    let file = dir.path().join(file.name.trim_start_matches('/'));
    let mut bytes = fs::read(&file).unwrap();
    bytes[20] ^= 1;
    fs::write(&file, bytes).unwrap();

    let store = open(&dir);
    let told = Arc::new(Mutex::new(Vec::new()));
    let hook = told.clone();
    store.on_damage(move |group, error| hook.lock().push((group, error.to_string())));
    assert!(matches!(store.read(G, &[3]), Err(StoreError::Corrupt(_))));
    assert_eq!(store.read(G, &[100]).unwrap().iter().flatten().count(), 1);
    let said = std::mem::take(&mut *told.lock());
    let name = file.display().to_string();
    assert!(said.iter().all(|(group, why)| *group == G && why.contains(&name) && why.contains(WIPE)), "{said:?}");
    assert_eq!(said.len(), 1);

    store.compact(1, 1).unwrap();
    let mut budget = u64::MAX;
    store.copy_segment(1, &mut budget).unwrap();
    assert_eq!(told.lock().len(), 1);
    append(&store, GroupId(8), entries(1..=5, 1, 10));
    store.maintain().unwrap();

    let set = store.set_aside(G, &dir.path().join("aside")).unwrap();
    let stored = rows_of(&set.file);
    let held: Vec<u64> =
        stored.iter().filter(|r| r.0 == keys::LOG).filter_map(|r| EntryKey::parse(&r.1)).map(|k| k.index).collect();
    assert!(set.unreadable > 0 && held.contains(&100) && held.contains(&198) && !held.contains(&3), "{held:?} {set:?}");
    store.write(&[Write::Delete(G)]).unwrap();
    store.write(&[Write::Create(record(G))]).unwrap();
    append(&store, G, entries(1..=5, 1, 10));
}

#[test]
fn a_damaged_file_that_stops_background_work_is_named_and_refused_at_the_next_start() {
    let dir = TempDir::new().unwrap();
    let store = open(&dir);
    store.write(&[Write::Create(record(G)), Write::Create(record(GroupId(8)))]).unwrap();
    append(&store, G, entries(1..=5, 1, 10));
    // Chunks of their own blocks, which nothing makes smaller: no start reads more than the first.
    let mut seed = 1u32;
    let state: Bytes = std::iter::repeat_with(|| {
        seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (seed >> 24) as u8
    })
    .take(3 << 20)
    .collect();
    store.write(&[Write::Snapshot(G, snapshot(5, 1, vec![], &state), state.clone())]).unwrap();
    store.flush(&mut store.writer.lock(), true).unwrap();
    let files = store.db.live_files().unwrap();
    let file = files.iter().find(|f| f.column_family_name == keys::SNAP).unwrap();
    let file = dir.path().join(file.name.trim_start_matches('/'));
    drop(store);
    let mut bytes = fs::read(&file).unwrap();
    let at = bytes.len() / 10 * 8;
    bytes[at] ^= 1;
    fs::write(&file, bytes).unwrap();

    let store = open(&dir);
    assert!(matches!(store.snapshot(G), Err(StoreError::Corrupt(_))));
    append(&store, GroupId(8), entries(1..=5, 1, 10));
    // A file around the damaged one, so that the two are merged.
    store.write(&[Write::Create(record(GroupId(6)))]).unwrap();
    append(&store, GroupId(6), entries(1..=5, 1, 10));
    for group in [GroupId(6), GroupId(8)] {
        store.write(&[Write::Snapshot(group, snapshot(5, 1, vec![], b"s"), Bytes::from_static(b"s"))]).unwrap();
    }
    store.flush(&mut store.writer.lock(), true).unwrap();
    store.db.compact_range_cf(store.family(keys::SNAP).unwrap(), None::<&[u8]>, None::<&[u8]>);
    std::thread::sleep(Duration::from_millis(200));
    let failed = store.write(&[Write::Append(GroupId(8), entries(6..=6, 1, 10))]).unwrap_err().to_string();
    assert!(failed.contains(&file.display().to_string()), "{failed}");
    drop(store);
    let error = RocksStore::open(dir.path(), small()).err().unwrap();
    assert!(names_the_repair(&error) && error.to_string().contains(&file.display().to_string()), "{error}");
}

#[test]
fn an_empty_newest_log_is_what_a_crash_leaves_and_does_not_matter() {
    let before = read_all(&open(&copy_of(&STORE))).unwrap();
    let copy = copy_of(&STORE);
    let newest = files(copy.path(), "log").pop().unwrap();
    let number: u64 = newest.file_stem().unwrap().to_str().unwrap().parse().unwrap();
    fs::write(copy.path().join(format!("{:06}.log", number + 1)), "").unwrap();
    assert_eq!(read_all(&open(&copy)).unwrap(), before);
}
