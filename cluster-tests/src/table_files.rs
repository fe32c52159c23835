//! The table files of a stopped node's databases, and which column family each belongs to.

use std::fs;
use std::path::{Path, PathBuf};

use rocksdb::{DB, Options};

/// The live table files of a column family, the biggest first.
pub fn table_files(database: &Path, family: &str) -> Vec<PathBuf> {
    let options = Options::default();
    let families = DB::list_cf(&options, database).expect("a database");
    let db = DB::open_cf_for_read_only(&options, database, families, false).expect("a database that nobody uses");
    let mut files = db.live_files().expect("a list of files");
    files.retain(|file| file.column_family_name == family);
    files.sort_by_key(|file| std::cmp::Reverse(file.size));
    files.into_iter().map(|file| database.join(file.name.trim_start_matches('/'))).collect()
}

/// Flips one bit of the first data block of a table file: data blocks come first.
pub fn flip_in_first_block(file: &Path) {
    flip(file, 20);
}

/// Flips one bit of a file.
pub fn flip(file: &Path, at: usize) {
    let mut bytes = fs::read(file).expect("the file can be read");
    bytes[at] ^= 1;
    fs::write(file, bytes).expect("the file can be written");
}
