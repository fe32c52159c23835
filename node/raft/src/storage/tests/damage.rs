//! Bytes on disk that nobody should have written: refused with the repair, or what was written; nothing else, no panic.

use std::sync::LazyLock;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index as Pick;
use rocksdb::IteratorMode;

use super::*;
use crate::storage::values::REPAIR;

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
    matches!(error, StoreError::Corrupt(why) if why.contains(REPAIR))
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
