//! The data directory: `<data_dir>/<node name>/` for each node, its lock and pid file, and the cluster's secret.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use crate::config::settings::NodeName;

/// The file that holds the cluster's secret.
const SECRET_FILE: &str = ".erlang.cookie";
/// A longer secret is not one.
const MAX_SECRET: u64 = 4096;

/// The folder of a node.
pub fn node_dir(data_dir: &Path, node: &NodeName) -> PathBuf {
    data_dir.join(node.as_str())
}

/// A node's admin socket.
pub fn admin_socket(data_dir: &Path, node: &NodeName) -> PathBuf {
    node_dir(data_dir, node).join("admin.sock")
}

/// The secret, where there is one to read: in the data directory, else in the home directory.
pub fn find_secret(data_dir: &Path) -> Option<String> {
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(SECRET_FILE));
    [Some(data_dir.join(SECRET_FILE)), home].into_iter().flatten().find_map(|path| read_secret(&path).ok())
}

fn read_secret(path: &Path) -> io::Result<String> {
    let mut text = String::new();
    File::open(path)?.take(MAX_SECRET).read_to_string(&mut text)?;
    let secret = text.trim();
    if secret.is_empty() {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "the file is empty"));
    }
    Ok(secret.to_owned())
}

/// Why a data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum DataDirError {
    /// Another process uses it.
    #[error("the data directory {} is in use by process {holder}", .dir.display())]
    InUse {
        /// The node's folder.
        dir: PathBuf,
        /// The other process's id, or `?`.
        holder: String,
    },
    /// It cannot be created, read or written.
    #[error("{}: {error}", .path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// Others may read the secret.
    #[error("{} must be readable by its owner only (chmod 600)", .0.display())]
    SecretExposed(PathBuf),
}

/// A node's folder, locked for as long as this lives.
#[derive(Debug)]
pub struct DataDir {
    /// `<data_dir>/<node name>`.
    pub node: PathBuf,
    pid_file: PathBuf,
    _lock: File,
}

impl DataDir {
    /// Creates the folder if need be, locks it and writes the pid file.
    pub fn open(data_dir: &Path, node: &NodeName, pid_file: Option<&Path>) -> Result<Self, DataDirError> {
        let dir = node_dir(data_dir, node);
        fs::DirBuilder::new().recursive(true).mode(0o750).create(&dir).map_err(at(&dir))?;
        let lock_path = dir.join("node.lock");
        let mut lock = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o640)
            .open(&lock_path)
            .map_err(at(&lock_path))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let mut holder = String::new();
                let _ = (&mut lock).take(32).read_to_string(&mut holder);
                let holder = if holder.trim().is_empty() { "?".to_owned() } else { holder.trim().to_owned() };
                return Err(DataDirError::InUse { dir, holder });
            }
            Err(TryLockError::Error(error)) => return Err(DataDirError::Io { path: lock_path, error }),
        }
        let pid = format!("{}\n", std::process::id());
        lock.set_len(0)
            .and_then(|()| lock.rewind())
            .and_then(|()| lock.write_all(pid.as_bytes()))
            .map_err(at(&lock_path))?;
        let pid_file = pid_file.map_or_else(|| data_dir.join(format!("{node}.pid")), Path::to_owned);
        fs::write(&pid_file, &pid).map_err(at(&pid_file))?;
        Ok(DataDir { node: dir, pid_file, _lock: lock })
    }

    /// Removes the pid file; the lock goes with the process.
    pub fn close(self) {
        let _ = fs::remove_file(&self.pid_file);
    }
}

/// The cluster's secret: from the environment, the data directory or the home directory; a new one is made where there
/// is none.
pub fn secret(data_dir: &Path, given: Option<&str>) -> Result<String, DataDirError> {
    if let Some(secret) = given {
        return Ok(secret.to_owned());
    }
    let own = data_dir.join(SECRET_FILE);
    let home = std::env::var_os("HOME").map(|home| PathBuf::from(home).join(SECRET_FILE));
    for path in [Some(&own), home.as_ref()].into_iter().flatten() {
        match fs::metadata(path) {
            Ok(metadata) if metadata.permissions().mode() & 0o077 != 0 => {
                return Err(DataDirError::SecretExposed(path.clone()));
            }
            Ok(_) => return read_secret(path).map_err(at(path)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(DataDirError::Io { path: path.clone(), error }),
        }
    }
    create_secret(&own)
}

/// Writes a new secret. Several nodes of one data directory may start at once: the first to create the file wins.
fn create_secret(path: &Path) -> Result<String, DataDirError> {
    let mut bytes = [0; 20];
    File::open("/dev/urandom").and_then(|mut random| random.read_exact(&mut bytes)).map_err(at(path))?;
    let secret: String = bytes.iter().map(|byte| char::from(b'A' + byte % 26)).collect();
    // Written aside and linked into place, so that nobody reads half of it.
    let aside = path.with_extension(format!("{}.tmp", std::process::id()));
    let mut file =
        OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&aside).map_err(at(&aside))?;
    file.write_all(secret.as_bytes()).and_then(|()| file.sync_all()).map_err(at(&aside))?;
    let linked = fs::hard_link(&aside, path);
    let _ = fs::remove_file(&aside);
    match linked {
        Ok(()) => Ok(secret),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => read_secret(path).map_err(at(path)),
        Err(error) => Err(DataDirError::Io { path: path.to_owned(), error }),
    }
}

fn at(path: &Path) -> impl FnOnce(io::Error) -> DataDirError {
    let path = path.to_owned();
    move |error| DataDirError::Io { path, error }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node() -> NodeName {
        NodeName::parse("w1@localhost", "").unwrap()
    }

    #[test]
    fn a_second_process_is_refused_with_the_pid_of_the_first() {
        let folder = tempfile::tempdir().unwrap();
        let first = DataDir::open(folder.path(), &node(), None).unwrap();
        let pid = std::process::id().to_string();
        assert_eq!(fs::read_to_string(folder.path().join("w1@localhost.pid")).unwrap(), format!("{pid}\n"));
        let why = DataDir::open(folder.path(), &node(), None).unwrap_err().to_string();
        assert!(why.contains(&pid), "{why}");
        first.close();
        assert!(!folder.path().join("w1@localhost.pid").exists());
        DataDir::open(folder.path(), &node(), None).unwrap().close();
    }

    #[test]
    fn a_secret_is_made_once_and_kept_private() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join(SECRET_FILE);
        let made = create_secret(&path).unwrap();
        assert_eq!(create_secret(&path).unwrap(), made);
        assert_eq!(secret(folder.path(), None).unwrap(), made);
        assert_eq!(secret(folder.path(), Some("given")).unwrap(), "given");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(matches!(secret(folder.path(), None), Err(DataDirError::SecretExposed(_))));
    }
}
