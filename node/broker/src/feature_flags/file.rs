//! The enabled flags on disk: `$DATA/feature_flags.json`, the authority when a node starts.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The form that this version writes.
const FORMAT: u32 = 1;
/// Largest file that is read.
const MAX_FILE: u64 = 4 << 20;

/// A flag that is on.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Enabled {
    /// Its name.
    pub name: String,
    /// The core, or the plugin that has it.
    pub provided_by: String,
}

#[derive(Serialize, Deserialize)]
struct Contents {
    format: u32,
    enabled: Vec<Enabled>,
}

/// The file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read or written.
    #[error("{0}: {1}")]
    Io(String, io::Error),
    /// It holds something else.
    #[error("{0} cannot be read ({1}); restore it, or delete it: then the flags of the cluster count")]
    Corrupt(String, String),
}

/// Where a node keeps its enabled flags.
#[derive(Debug, Clone)]
pub struct FlagFile {
    directory: PathBuf,
}

impl FlagFile {
    /// The file of a data directory.
    pub fn in_directory(directory: &Path) -> Self {
        FlagFile { directory: directory.to_owned() }
    }

    fn path(&self) -> PathBuf {
        self.directory.join("feature_flags.json")
    }

    /// What it holds; nothing where there is no file.
    pub fn load(&self) -> Result<Option<Vec<Enabled>>, FileError> {
        let path = self.path();
        let name = path.display().to_string();
        let size = match fs::metadata(&path) {
            Ok(metadata) => metadata.len(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(FileError::Io(name, error)),
        };
        if size > MAX_FILE {
            return Err(FileError::Corrupt(name, format!("larger than {MAX_FILE} bytes")));
        }
        let bytes = fs::read(&path).map_err(|error| FileError::Io(name.clone(), error))?;
        let contents: Contents =
            serde_json::from_slice(&bytes).map_err(|error| FileError::Corrupt(name.clone(), error.to_string()))?;
        if contents.format != FORMAT {
            let why = format!("format {} is not known to this version", contents.format);
            return Err(FileError::Corrupt(name, why));
        }
        Ok(Some(contents.enabled))
    }

    /// Writes it so that a crash leaves the old or the new one.
    pub fn store(&self, mut enabled: Vec<Enabled>) -> Result<(), FileError> {
        enabled.sort();
        let path = self.path();
        let temporary = self.directory.join("feature_flags.json.new");
        let write = || -> io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(&Contents { format: FORMAT, enabled: enabled.clone() })?)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(&self.directory)?.sync_all()
        };
        write().map_err(|error| FileError::Io(path.display().to_string(), error))
    }

    /// Takes it away: after a join that failed.
    pub fn remove(&self) -> Result<(), FileError> {
        let path = self.path();
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(FileError::Io(path.display().to_string(), error))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else_is() {
        let folder = tempfile::tempdir().unwrap();
        let file = FlagFile::in_directory(folder.path());
        assert_eq!(file.load().unwrap(), None);
        let flag = |name: &str| Enabled { name: name.into(), provided_by: "rabbit".into() };
        file.store(vec![flag("b"), flag("a")]).unwrap();
        assert_eq!(file.load().unwrap(), Some(vec![flag("a"), flag("b")]));
        for wrong in ["", "{}", r#"{"format":2,"enabled":[]}"#, r#"{"format":1,"enabled":[1]}"#] {
            fs::write(folder.path().join("feature_flags.json"), wrong).unwrap();
            assert!(matches!(file.load(), Err(FileError::Corrupt(..))), "{wrong}");
        }
        file.remove().unwrap();
        file.remove().unwrap();
        assert_eq!(file.load().unwrap(), None);
    }
}
