//! Who this node is, for as long as its data directory lives: `$DATA/node.json`.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use warren_proto::ids::Incarnation;

/// A member of the metadata group as the cluster was formed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founder {
    /// `name@host`.
    pub name: String,
    /// The life of its data directory that founded the cluster.
    pub incarnation: u64,
    /// Its member of the metadata group.
    pub uid: u64,
    /// `host:port` of its peer port.
    pub address: String,
}

/// The cluster that this node belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Random, chosen when the cluster was formed.
    pub id: u64,
    /// Its first members.
    pub founders: Vec<Founder>,
    /// This node's member of the metadata group.
    pub uid: u64,
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// `name@host`; part of the identity, so it cannot change.
    pub name: String,
    /// This life of the data directory.
    pub incarnation: u64,
    /// Absent until the node has formed or joined one.
    pub cluster: Option<Cluster>,
    /// Set once the node's databases exist. Without them it would vote under its old ids for logs that it has lost.
    #[serde(default)]
    pub has_databases: bool,
}

/// The identity cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// The file cannot be read or written.
    #[error("{path}: {error}")]
    Io {
        /// The file.
        path: String,
        /// What failed.
        error: std::io::Error,
    },
    /// The file holds something else.
    #[error(
        "{path} cannot be read ({error}); restore it, or wipe the node's data directory and let the node join again"
    )]
    Corrupt {
        /// The file.
        path: String,
        /// What failed.
        error: serde_json::Error,
    },
    /// A database that the node had is not there.
    #[error(
        "{0} is missing although this node has had data in it; restore it, or wipe the node's data directory and let the \
         node join again as a new member"
    )]
    DatabaseLost(String),
    /// The directory is another node's.
    #[error("the data directory belongs to node {found}, not {wanted}: a node's name cannot change")]
    Renamed {
        /// The name in the file.
        found: String,
        /// The name that was configured.
        wanted: String,
    },
}

impl NodeIdentity {
    /// Reads the identity of a data directory, or makes one for a blank directory.
    pub fn load_or_create(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        let path = directory.join("node.json");
        match fs::read(&path) {
            Ok(bytes) => {
                let identity: NodeIdentity = serde_json::from_slice(&bytes)
                    .map_err(|error| IdentityError::Corrupt { path: path.display().to_string(), error })?;
                if identity.name != name {
                    return Err(IdentityError::Renamed { found: identity.name, wanted: name.to_owned() });
                }
                Ok(identity)
            }
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
                let identity = NodeIdentity {
                    name: name.to_owned(),
                    incarnation: random_u64(),
                    cluster: None,
                    has_databases: false,
                };
                identity.store(directory)?;
                Ok(identity)
            }
            Err(error) => Err(IdentityError::Io { path: path.display().to_string(), error }),
        }
    }

    /// Writes the identity so that a crash leaves the old or the new one.
    pub fn store(&self, directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join("node.json");
        let temporary = directory.join("node.json.new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&serde_json::to_vec_pretty(self)?)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|error| IdentityError::Io { path: path.display().to_string(), error })
    }

    /// Refuses to go on without a database that the node had.
    pub fn check_databases(&self, paths: &[PathBuf]) -> Result<(), IdentityError> {
        match paths.iter().find(|path| self.has_databases && !path.join("CURRENT").exists()) {
            Some(lost) => Err(IdentityError::DatabaseLost(lost.display().to_string())),
            None => Ok(()),
        }
    }

    /// The incarnation as a typed id.
    pub fn incarnation(&self) -> Incarnation {
        Incarnation(self.incarnation)
    }
}

/// A random number that is not zero.
pub fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    loop {
        if getrandom::fill(&mut bytes).is_err() {
            // No entropy source: time and address-space layout are the best that is left.
            let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
            let here = std::ptr::from_ref(&bytes) as usize as u64;
            bytes = (now.as_nanos() as u64 ^ here.rotate_left(32)).to_le_bytes();
        }
        let n = u64::from_le_bytes(bytes);
        if n != 0 {
            return n;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_identity_outlives_a_restart_and_refuses_another_name() {
        let dir = tempfile::tempdir().unwrap();
        let first = NodeIdentity::load_or_create(dir.path(), "a@h").unwrap();
        assert_eq!(NodeIdentity::load_or_create(dir.path(), "a@h").unwrap(), first);
        assert!(matches!(NodeIdentity::load_or_create(dir.path(), "b@h"), Err(IdentityError::Renamed { .. })));
        fs::remove_file(dir.path().join("node.json")).unwrap();
        assert_ne!(NodeIdentity::load_or_create(dir.path(), "a@h").unwrap().incarnation, first.incarnation);
    }

    #[test]
    fn a_node_that_lost_a_database_refuses_to_go_on() {
        let dir = tempfile::tempdir().unwrap();
        let mut identity = NodeIdentity::load_or_create(dir.path(), "a@h").unwrap();
        let database = dir.path().join("metadata");
        identity.check_databases(std::slice::from_ref(&database)).unwrap();
        identity.has_databases = true;
        let lost = identity.check_databases(std::slice::from_ref(&database));
        assert!(matches!(lost, Err(IdentityError::DatabaseLost(path)) if path == database.display().to_string()));
        fs::create_dir(&database).unwrap();
        fs::write(database.join("CURRENT"), "MANIFEST-000001").unwrap();
        identity.check_databases(&[database]).unwrap();
    }
}
