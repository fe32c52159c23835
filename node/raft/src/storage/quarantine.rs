//! Setting a group's data aside: all rows of it that can be read, as they are, in a file of their own. The file is described
//! in `docs/storage-format.md`.

use std::fs::{self, File};
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use rocksdb::ReadOptions;
use warren_proto::ids::{GroupId, MemberUid};

use super::keys::{self, EntryKey, GroupKey};
use super::{RocksStore, read_error, values};
use crate::log_store::StoreError;

/// First bytes of the file.
pub(super) const MAGIC: &[u8; 8] = b"WARRENQ1";
/// The extension of such files.
pub const EXTENSION: &str = "rows";
/// Entries that are looked for behind one that cannot be read, before the rest of a run is given up.
const MOST_SKIPPED: u64 = 10_000;

/// A group's data, set aside.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Quarantined {
    /// The file.
    pub file: PathBuf,
    /// Rows in it.
    pub rows: u64,
    /// Entries and other rows, as far as it is known how many, that could not be read and are not in it.
    pub unreadable: u64,
}

impl RocksStore {
    /// Writes everything of a group that can be read into a new file in `folder`, and syncs it. The store stays as it is.
    pub fn set_aside(&self, group: GroupId, folder: &Path) -> Result<Quarantined, StoreError> {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis());
        let file = folder.join(format!("group-{:016x}-{now}.{EXTENSION}", group.0));
        // One name for all attempts: what a crash left of one is overwritten by the next.
        let part = folder.join(format!("group-{:016x}.part", group.0));
        let written = self.write_rows(group, folder, &part).and_then(|counts| {
            fs::rename(&part, &file)?;
            File::open(folder)?.sync_all()?;
            Ok(counts)
        });
        match written {
            Ok((rows, unreadable)) => Ok(Quarantined { file, rows, unreadable }),
            Err(error) => {
                // A disk that is full needs the room.
                let _ = fs::remove_file(&part);
                Err(StoreError::Write(format!("{}: {error}", file.display())))
            }
        }
    }

    /// Answers how many rows were written, and how many could not be read.
    fn write_rows(&self, group: GroupId, folder: &Path, file: &Path) -> io::Result<(u64, u64)> {
        fs::create_dir_all(folder)?;
        let mut out = Rows { out: BufWriter::new(File::create(file)?), rows: 0, unreadable: 0 };
        out.out.write_all(MAGIC)?;
        self.rows_of_meta(group, &mut out)?;
        let chunks = (group.0.to_be_bytes().to_vec(), group.0.saturating_add(1).to_be_bytes().to_vec());
        self.rows_between(keys::SNAP, chunks, &mut out)?;
        self.rows_of_log(group, &mut out)?;
        let (rows, unreadable) = (out.rows, out.unreadable);
        out.out.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
        Ok((rows, unreadable))
    }

    /// The member of a group here; `None` where there is none or its record cannot be read.
    pub fn member(&self, group: GroupId) -> Option<MemberUid> {
        let meta = self.family(keys::META).ok()?;
        let value = self.db.get_cf(meta, keys::group(GroupKey::Member, group)).ok()??;
        values::parse_founding(&value).ok().map(|founding| founding.me)
    }

    fn rows_of_meta(&self, group: GroupId, out: &mut Rows) -> io::Result<()> {
        for kind in [GroupKey::Member, GroupKey::HardState, GroupKey::Membership, GroupKey::Snapshot] {
            let key = keys::group(kind, group);
            match self.family(keys::META).and_then(|meta| self.db.get_cf(meta, key).map_err(read_error)) {
                Ok(Some(value)) => out.add(keys::META, &key, &value)?,
                Ok(None) => {}
                Err(_) => out.unreadable += 1,
            }
        }
        Ok(())
    }

    fn rows_of_log(&self, group: GroupId, out: &mut Rows) -> io::Result<()> {
        let runs = self.index(group).map(|index| index.runs.clone()).unwrap_or_default();
        for run in runs {
            let mut next = run.first;
            let mut skipped = 0;
            // Behind a block that cannot be read others may be readable.
            while next <= run.last && skipped < MOST_SKIPPED {
                let range = |from| keys::entries_from(run.segment, group, from);
                match self.rows_between(keys::LOG, (range(next), range(run.last + 1)), out)? {
                    Read::All => break,
                    Read::UpTo(key) => {
                        let read = key.and_then(|key| EntryKey::parse(&key)).map_or(next, |key| key.index + 1);
                        skipped = if read > next { 1 } else { skipped + 1 };
                        next = read.max(next) + u64::from(read <= next);
                    }
                }
            }
        }
        Ok(())
    }

    /// Adds the rows of a family between two keys, up to the first that cannot be read.
    fn rows_between(&self, family: &'static str, range: (Vec<u8>, Vec<u8>), out: &mut Rows) -> io::Result<Read> {
        let Ok(handle) = self.family(family) else { return Ok(Read::All) };
        let mut options = ReadOptions::default();
        options.set_iterate_upper_bound(range.1);
        options.fill_cache(false);
        let mut iterator = self.db.raw_iterator_cf_opt(handle, options);
        iterator.seek(range.0);
        let mut last = None;
        while let Some((key, value)) = iterator.item() {
            out.add(family, key, value)?;
            last = Some(key.to_vec());
            iterator.next();
        }
        if iterator.status().is_ok() {
            return Ok(Read::All);
        }
        out.unreadable += 1;
        Ok(Read::UpTo(last))
    }
}

/// How far a range was read.
enum Read {
    All,
    /// Up to that key; none could be read without one.
    UpTo(Option<Vec<u8>>),
}

struct Rows {
    out: BufWriter<File>,
    rows: u64,
    unreadable: u64,
}

impl Rows {
    fn add(&mut self, family: &'static str, key: &[u8], value: &[u8]) -> io::Result<()> {
        let family = match family {
            keys::META => 0,
            keys::SNAP => 1,
            _ => 2,
        };
        let mut row = Vec::with_capacity(13 + key.len() + value.len());
        row.push(family);
        // Keys are short, and no value is longer than a batch.
        row.extend_from_slice(&(key.len() as u32).to_le_bytes());
        row.extend_from_slice(&(value.len() as u32).to_le_bytes());
        row.extend_from_slice(key);
        row.extend_from_slice(value);
        row.extend_from_slice(&crc32c::crc32c(&row).to_le_bytes());
        self.rows += 1;
        self.out.write_all(&row)
    }
}
