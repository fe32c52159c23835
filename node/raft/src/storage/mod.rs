//! Logs of many groups in one RocksDB.
//!
//! Every entry is written once, into the **segment** that is open when it is appended, and the segment's number leads its
//! key. A segment is flushed as a whole when it closes, so its files overlap no other's; when nothing in it is alive they
//! are dropped as files. What dies before its segment closes never reaches a table file. No entry is ever compacted level
//! by level. The layout is described in `docs/storage-format.md`.
//!
//! - [`index`]: where each entry of a group is, in memory.
//! - [`batch`]: one write of the driver as one RocksDB batch.
//! - [`recovery`]: from the disk to the index.
//! - [`upkeep`]: closing segments, dropping dead ones, copying what a sparse one still holds.
//! - [`quarantine`]: setting a group's data aside.

mod batch;
#[cfg(any(test, fuzzing))]
pub mod fuzzing;
mod index;
mod keys;
mod options;
mod quarantine;
mod ranges;
mod read;
mod recovery;
mod upkeep;
mod values;
mod wal_tail;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use parking_lot::{Mutex, RwLock};
use rocksdb::{ColumnFamily, DB, FlushOptions, WriteBatch, WriteOptions, properties};
use rustc_hash::{FxHashMap, FxHashSet};
use warren_proto::ids::GroupId;

use crate::log_store::{Entry, GroupRecord, LogStore, SnapshotMeta, StoreError, StoreFigures, Write};
use index::Index;
pub use quarantine::Quarantined;

/// What an operator does about a damaged store of queues.
const WIPE: &str = "stop this node, delete its data directory and start it again: it rejoins as a new member and is filled \
                    from its peers";
/// What an operator does about a damaged store of the metadata.
const MOVE_AWAY: &str = "stop this node, move that folder away and start the node again: it joins the metadata group as a \
                         new member and is filled from its peers, and the queues' data stays";

/// Sizes and times of a store.
#[derive(Debug, Clone)]
pub struct StoreConfig {
    /// Bytes of entries after which a segment closes. It is one memtable, so twice this is what a busy store holds in
    /// memory: one segment open, one being flushed.
    pub segment_bytes: usize,
    /// Cache of table file blocks.
    pub block_cache: usize,
    /// A segment that hardly grew for this long is closed, so that what died in it frees its disk space.
    pub idle_close: Duration,
    /// Threads that flush and compact.
    pub background_jobs: i32,
    /// What somebody has to do when it is damaged; said in the error.
    pub repair: &'static str,
}

impl StoreConfig {
    /// For the queues of a node.
    pub fn queues() -> Self {
        StoreConfig {
            segment_bytes: 256 << 20,
            block_cache: 16 << 20,
            idle_close: Duration::from_secs(20),
            background_jobs: 2,
            repair: WIPE,
        }
    }

    /// For the metadata group.
    pub fn metadata() -> Self {
        StoreConfig { segment_bytes: 16 << 20, block_cache: 4 << 20, repair: MOVE_AWAY, ..StoreConfig::queues() }
    }
}

/// What is known of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Segment {
    /// Entries and bytes appended to it.
    entries: u64,
    bytes: u64,
    /// Entries that must stay readable.
    alive: u64,
    /// Its files were moved to where they can be dropped.
    settled: bool,
}

/// What only the writer and upkeep use.
struct Writer {
    /// Number of the segment that takes entries.
    open: u32,
    /// All segments, the open one included.
    segments: BTreeMap<u32, Segment>,
    /// Groups with entries in the open segment.
    open_groups: FxHashSet<GroupId>,
    /// Bytes written since the last flush, of all column families.
    unflushed: usize,
    /// When the last idle check was, and what was unflushed then.
    idle_mark: (Instant, usize),
    /// A write failed: nothing is written any more.
    failed: Option<String>,
    /// Table files may hold segments that are not in `segments` any more.
    sweep: bool,
    errors_checked: Instant,
}

/// The store of one RocksDB.
pub struct RocksStore {
    path: PathBuf,
    config: StoreConfig,
    writer: Mutex<Writer>,
    groups: RwLock<FxHashMap<GroupId, Arc<Index>>>,
    /// Held while [`LogStore::maintain`] runs.
    upkeep: Mutex<()>,
    on_damage: OnceLock<OnDamage>,
    db: DB,
}

/// Told which group's data cannot be read, and why.
type OnDamage = Box<dyn Fn(GroupId, &StoreError) + Send + Sync>;

/// Errors of RocksDB while writing.
fn write_error(error: rocksdb::Error) -> StoreError {
    StoreError::Write(error.to_string())
}

/// Errors of RocksDB while reading.
fn read_error(error: rocksdb::Error) -> StoreError {
    // What the C library calls EIO: a sector that the disk cannot read. Other errors of files may pass.
    const UNREADABLE: &str = "Input/output error";
    match error.kind() {
        rocksdb::ErrorKind::Corruption => values::corrupt(error),
        rocksdb::ErrorKind::IOError if error.as_ref().contains(UNREADABLE) => values::corrupt(error),
        _ => StoreError::Read(error.to_string()),
    }
}

impl RocksStore {
    /// Opens or creates a store and recovers its index. The caller holds the data directory's lock.
    pub fn open(path: impl AsRef<Path>, config: StoreConfig) -> Result<RocksStore, StoreError> {
        let path = path.as_ref();
        let opened = open_database(path, &config);
        let opened = opened.and_then(|db| recovery::recover(&db).map(|recovered| (db, recovered)));
        let (db, recovered) = opened.map_err(|error| with_repair(path, &config, error))?;
        let now = Instant::now();
        let store = RocksStore {
            path: path.to_owned(),
            config,
            writer: Mutex::new(Writer {
                open: recovered.open,
                segments: recovered.segments,
                open_groups: FxHashSet::default(),
                unflushed: 0,
                idle_mark: (now, 0),
                failed: None,
                sweep: true,
                errors_checked: now,
            }),
            groups: RwLock::new(recovered.groups),
            upkeep: Mutex::new(()),
            on_damage: OnceLock::new(),
            db,
        };
        Ok(store)
    }

    /// From now on `hook` hears of every group that has data which cannot be read, each time that somebody wants it. It is
    /// called from whatever thread reads and must not block. Set once.
    pub fn on_damage(&self, hook: impl Fn(GroupId, &StoreError) + Send + Sync + 'static) {
        let _ = self.on_damage.set(Box::new(hook));
    }

    /// What was read of a group; what is damaged is reported, and the error names the folder and the repair.
    fn of_group<T>(&self, group: GroupId, read: Result<T, StoreError>) -> Result<T, StoreError> {
        read.map_err(|error| {
            let error = with_repair(&self.path, &self.config, error);
            if let (StoreError::Corrupt(_), Some(hook)) = (&error, self.on_damage.get()) {
                hook(group, &error);
            }
            error
        })
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Number of segments and of entries in them that must stay readable, for metrics.
    pub fn usage(&self) -> StoreUsage {
        let writer = self.writer.lock();
        StoreUsage {
            segments: writer.segments.len() as u64,
            entries: writer.segments.values().map(|s| s.entries).sum(),
            alive: writer.segments.values().map(|s| s.alive).sum(),
            bytes: writer.segments.values().map(|s| s.bytes).sum(),
        }
    }

    fn family(&self, name: &'static str) -> Result<&ColumnFamily, StoreError> {
        family(&self.db, name)
    }

    fn index(&self, group: GroupId) -> Option<Arc<Index>> {
        self.groups.read().get(&group).cloned()
    }

    /// Refuses everything after the first failure, the failures of background work included.
    fn check_failed(&self, writer: &mut Writer) -> Result<(), StoreError> {
        const ERRORS_CHECKED_EVERY: Duration = Duration::from_millis(100);
        if let Some(why) = &writer.failed {
            return Err(StoreError::Write(format!("an earlier write failed: {why}")));
        }
        if writer.errors_checked.elapsed() >= ERRORS_CHECKED_EVERY {
            writer.errors_checked = Instant::now();
            let errors = self.db.property_int_value(properties::BACKGROUND_ERRORS).map_err(write_error)?;
            if errors.unwrap_or(0) > 0 {
                let mut why = "a background flush or compaction failed".to_owned();
                if let Some(damage) = self.damage_of_small_families() {
                    // It would fail again after each start.
                    let marked = std::fs::write(self.path.join(DAMAGED), &damage);
                    why = format!("{why}: {damage}");
                    if let Err(error) = marked {
                        tracing::error!(%error, "the damage cannot be noted for the next start");
                    }
                }
                return Err(fail(writer, why));
            }
        }
        Ok(())
    }

    /// What cannot be read of the families that RocksDB compacts by itself.
    fn damage_of_small_families(&self) -> Option<String> {
        let all = || ([0u8; 0], vec![0xff; 32]);
        let read = |name| recovery::for_each(&self.db, name, all(), |_, _| Ok(()));
        [keys::META, keys::SNAP].into_iter().find_map(|name| match read(name) {
            Err(StoreError::Corrupt(why)) => Some(why),
            _ => None,
        })
    }

    /// Writes a batch; after a failure the store takes nothing more. Synced in any case: so a power cut can tear no record
    /// but the last, and everything before that which does not read is damage.
    fn commit(&self, writer: &mut Writer, batch: WriteBatch) -> Result<(), StoreError> {
        let mut options = WriteOptions::default();
        options.set_sync(true);
        writer.unflushed += batch.size_in_bytes();
        self.db.write_opt(batch, &options).map_err(|e| fail(writer, e.to_string()))
    }

    /// Starts a flush of all column families; memtables end here. Waits for it if asked.
    fn flush(&self, writer: &mut Writer, wait: bool) -> Result<(), StoreError> {
        let mut options = FlushOptions::default();
        options.set_wait(wait);
        let families = [self.family(keys::LOG)?, self.family(keys::META)?, self.family(keys::SNAP)?];
        self.db.flush_cfs_opt(&families, &options).map_err(|e| fail(writer, e.to_string()))?;
        writer.unflushed = 0;
        Ok(())
    }
}

/// Figures of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StoreUsage {
    /// Segments, the open one included.
    pub segments: u64,
    /// Entries appended to them.
    pub entries: u64,
    /// Entries that must stay readable.
    pub alive: u64,
    /// Bytes appended to them.
    pub bytes: u64,
}

fn fail(writer: &mut Writer, why: String) -> StoreError {
    writer.failed = Some(why.clone());
    StoreError::Write(why)
}

fn family<'a>(db: &'a DB, name: &'static str) -> Result<&'a ColumnFamily, StoreError> {
    db.cf_handle(name).ok_or_else(|| StoreError::Read(format!("column family {name} is missing")))
}

/// Says which database is damaged, and what to do about it.
fn with_repair(path: &Path, config: &StoreConfig, error: StoreError) -> StoreError {
    match error {
        StoreError::Corrupt(why) => {
            StoreError::Corrupt(format!("{}: {why}; repair: {}", path.display(), config.repair))
        }
        other => other,
    }
}

/// File beside those of RocksDB: what made its background work fail.
const DAMAGED: &str = "DAMAGED";

fn open_database(path: &Path, config: &StoreConfig) -> Result<DB, StoreError> {
    if let Ok(damage) = std::fs::read_to_string(path.join(DAMAGED)) {
        return Err(values::corrupt(damage));
    }
    let found = wal_tail::check(path).map_err(|e| StoreError::Read(format!("{}: {e}", path.display())))?;
    if let Some(wal_tail::Damage { file, after }) = found {
        return Err(values::corrupt(format_args!("{} is damaged after {after} bytes", file.display())));
    }
    DB::open_cf_descriptors(&options::database(config)?, path, options::families(config)).map_err(|e| match e.kind() {
        rocksdb::ErrorKind::Corruption => values::corrupt(e),
        _ if lacks_manifest(path) => values::corrupt(e),
        _ => StoreError::Read(format!("{}: {e}", path.display())),
    })
}

/// Whether a database is there, and the file that lists its files is not.
fn lacks_manifest(path: &Path) -> bool {
    std::fs::read_to_string(path.join("CURRENT")).is_ok_and(|name| !path.join(name.trim()).exists())
}

impl LogStore for RocksStore {
    fn groups(&self) -> Result<Vec<GroupRecord>, StoreError> {
        self.read_groups().map_err(|error| with_repair(&self.path, &self.config, error))
    }

    fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.write_all(writes)
    }

    fn entries(&self, group: GroupId, from: u64, to: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        self.of_group(group, self.read_entries(group, from, to, max_bytes))
    }

    fn term(&self, group: GroupId, index: u64) -> Result<Option<u64>, StoreError> {
        Ok(self.index(group).and_then(|i| {
            if index == i.floor {
                Some(i.floor_term)
            } else {
                i.run_of(index).filter(|_| index > i.floor).map(|r| r.term)
            }
        }))
    }

    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Entry>>, StoreError> {
        self.of_group(group, self.read_indexes(group, indexes))
    }

    fn snapshot(&self, group: GroupId) -> Result<Option<(SnapshotMeta, Bytes)>, StoreError> {
        self.of_group(group, self.read_snapshot(group))
    }

    fn stage(&self, group: GroupId, snapshot_index: u64, entries: &[Entry]) -> Result<(), StoreError> {
        self.stage_entries(group, snapshot_index, entries)
    }

    fn figures(&self) -> StoreFigures {
        self.read_figures()
    }

    fn maintain(&self) -> Result<(), StoreError> {
        self.run_upkeep().map_err(|error| with_repair(&self.path, &self.config, error))
    }
}
