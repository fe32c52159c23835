//! Who this node is, for as long as its data directory lives: `$DATA/node.json`.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Write as _;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};
use warren_proto::ids::Incarnation;

/// A member of the metadata group as the cluster was formed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Founder {
    /// `name@host`.
    pub name: String,
    /// The life of its data directory that founded the cluster.
    #[serde(deserialize_with = "not_zero")]
    pub incarnation: u64,
    /// Its member of the metadata group.
    #[serde(deserialize_with = "not_zero")]
    pub uid: u64,
    /// `host:port` of its peer port.
    pub address: String,
}

/// The cluster that this node belongs to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cluster {
    /// Random, chosen when the cluster was formed.
    #[serde(deserialize_with = "not_zero")]
    pub id: u64,
    /// Its first members: at least one, and no node or member twice.
    #[serde(deserialize_with = "founders")]
    pub founders: Vec<Founder>,
    /// This node's member of the metadata group.
    #[serde(deserialize_with = "not_zero")]
    pub uid: u64,
}

/// Contents of the file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeIdentity {
    /// `name@host`; part of the identity, so it cannot change.
    pub name: String,
    /// This life of the data directory.
    #[serde(deserialize_with = "not_zero")]
    pub incarnation: u64,
    /// `null` until the node has formed or joined one.
    pub cluster: Option<Cluster>,
    /// Set once the node's databases exist. Without them it would vote under its old ids for logs that it has lost.
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
        match NodeIdentity::load(directory, name) {
            Err(IdentityError::Io { error, .. }) if error.kind() == std::io::ErrorKind::NotFound => {
                let identity = NodeIdentity {
                    name: name.to_owned(),
                    incarnation: random_u64(),
                    cluster: None,
                    has_databases: false,
                };
                identity.store(directory)?;
                Ok(identity)
            }
            known => known,
        }
    }

    /// Reads the identity of a data directory that has one.
    pub fn load(directory: &Path, name: &str) -> Result<Self, IdentityError> {
        let path = directory.join("node.json");
        let file = path.display().to_string();
        let bytes = fs::read(&path).map_err(|error| IdentityError::Io { path: file.clone(), error })?;
        let identity = NodeIdentity::from_json(&bytes).map_err(|error| IdentityError::Corrupt { path: file, error })?;
        if identity.name != name {
            return Err(IdentityError::Renamed { found: identity.name, wanted: name.to_owned() });
        }
        Ok(identity)
    }

    /// The file's contents.
    pub fn to_json(&self) -> serde_json::Result<Vec<u8>> {
        serde_json::to_vec_pretty(self)
    }

    /// Reads the file's contents. Refuses an identity that no node was given: under it this one could pass for a blank node
    /// or for another member.
    pub fn from_json(bytes: &[u8]) -> serde_json::Result<Self> {
        let identity: NodeIdentity = serde_json::from_slice(bytes)?;
        // So that a field whose name is damaged does not pass for an absent one.
        if serde_json::from_slice::<serde_json::Value>(bytes)? != serde_json::to_value(&identity)? {
            return Err(serde_json::Error::custom("unknown or missing fields"));
        }
        match &identity.cluster {
            None if identity.has_databases => Err(serde_json::Error::custom("databases without a cluster")),
            Some(cluster) if cluster.founders.iter().any(|f| f.uid == cluster.uid && !identity.is(f)) => {
                Err(serde_json::Error::custom("the node's member is another founder's"))
            }
            _ => Ok(identity),
        }
    }

    fn is(&self, founder: &Founder) -> bool {
        founder.name == self.name && founder.incarnation == self.incarnation
    }

    /// Writes the identity so that a crash leaves the old or the new one.
    pub fn store(&self, directory: &Path) -> Result<(), IdentityError> {
        let path = directory.join("node.json");
        let temporary = directory.join("node.json.new");
        let write = || -> std::io::Result<()> {
            let mut file = File::create(&temporary)?;
            file.write_all(&self.to_json()?)?;
            file.sync_all()?;
            fs::rename(&temporary, &path)?;
            File::open(directory)?.sync_all()
        };
        write().map_err(|error| IdentityError::Io { path: path.display().to_string(), error })
    }

    /// Gives the node another member of the metadata group, in which it has to join: its old one lost its data.
    pub fn renew_member(&mut self) {
        if let Some(cluster) = &mut self.cluster {
            cluster.uid = random_u64();
        }
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

/// Reads what [`random_u64`] drew.
pub(super) fn not_zero<'de, D: Deserializer<'de>>(deserializer: D) -> Result<u64, D::Error> {
    NonZeroU64::deserialize(deserializer).map(NonZeroU64::get)
}

fn founders<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Founder>, D::Error> {
    let founders = Vec::<Founder>::deserialize(deserializer)?;
    if founders.is_empty() {
        return Err(D::Error::invalid_length(0, &"at least one founder"));
    }
    let names: BTreeSet<&str> = founders.iter().map(|f| f.name.as_str()).collect();
    let uids: BTreeSet<u64> = founders.iter().map(|f| f.uid).collect();
    if names.len() < founders.len() || uids.len() < founders.len() {
        return Err(D::Error::custom("a founder is there twice"));
    }
    Ok(founders)
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
    use proptest::collection::vec;
    use proptest::prelude::*;
    use proptest::sample::{Index, select};
    use serde_json::Value;

    use super::*;

    /// A founder of a cluster of three, with databases.
    fn identity() -> NodeIdentity {
        let founder = |name: &str, uid| Founder {
            name: name.to_owned(),
            incarnation: uid << 40,
            uid,
            address: "localhost:25672".to_owned(),
        };
        let founders = vec![founder("a@h", 11), founder("b@h", 12), founder("c@h", 13)];
        let cluster = Cluster { id: u64::MAX, founders, uid: 12 };
        NodeIdentity { name: "b@h".to_owned(), incarnation: 12 << 40, cluster: Some(cluster), has_databases: true }
    }

    /// Bytes are refused, or written again as they were read.
    fn decode(bytes: &[u8]) {
        if let Ok(identity) = NodeIdentity::from_json(bytes) {
            assert_eq!(NodeIdentity::from_json(&identity.to_json().unwrap()).unwrap(), identity);
        }
    }

    fn read(value: &Value) -> Result<NodeIdentity, String> {
        NodeIdentity::from_json(&serde_json::to_vec(value).unwrap()).map_err(|error| error.to_string())
    }

    /// The identity's JSON with another value in one place.
    fn with(pointer: &str, value: impl Into<Value>) -> Value {
        let mut json = serde_json::to_value(identity()).unwrap();
        *json.pointer_mut(pointer).unwrap() = value.into();
        json
    }

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

    #[test]
    fn an_identity_comes_back_however_it_is_laid_out() {
        let joined = with("/cluster/uid", 99);
        for json in [serde_json::to_value(identity()).unwrap(), joined] {
            let identity = read(&json).unwrap();
            assert_eq!(serde_json::to_value(&identity).unwrap(), json);
            assert_eq!(NodeIdentity::from_json(&identity.to_json().unwrap()).unwrap(), identity);
        }
    }

    #[test]
    fn a_field_that_is_missing_or_not_known_is_refused() {
        let whole = serde_json::to_value(identity()).unwrap();
        for object in ["", "/cluster", "/cluster/founders/1"] {
            let fields: Vec<String> = whole.pointer(object).unwrap().as_object().unwrap().keys().cloned().collect();
            for field in fields {
                let mut json = whole.clone();
                let fields = json.pointer_mut(object).unwrap().as_object_mut().unwrap();
                let value = fields.remove(&field).unwrap();
                assert!(read(&json).is_err(), "{object}/{field} is missing");
                let fields = json.pointer_mut(object).unwrap().as_object_mut().unwrap();
                fields.insert(format!("{field}_"), value.clone());
                assert!(read(&json).is_err(), "{object}/{field} has another name");
                let fields = json.pointer_mut(object).unwrap().as_object_mut().unwrap();
                fields.insert(field.clone(), value);
                assert!(read(&json).is_err(), "{object}/{field}_ is not known");
            }
        }
    }

    #[test]
    fn what_no_node_was_given_is_refused() {
        let refused = |json: Value, why: &str| {
            let error = read(&json).unwrap_err();
            assert!(error.contains(why), "{error}");
        };
        refused(with("/cluster/founders", Vec::<Value>::new()), "at least one founder");
        refused(with("/cluster/founders/0/name", "c@h"), "a founder is there twice");
        refused(with("/cluster/founders/0/uid", 13), "a founder is there twice");
        refused(with("/cluster/uid", 11), "another founder's");
        refused(with("/name", "d@h"), "another founder's");
        refused(with("/incarnation", 5), "another founder's");
        refused(with("/cluster", Value::Null), "databases without a cluster");
        for zero in [
            "/incarnation",
            "/cluster/id",
            "/cluster/uid",
            "/cluster/founders/2/uid",
            "/cluster/founders/2/incarnation",
        ] {
            refused(with(zero, 0), "nonzero");
        }
    }

    #[test]
    fn a_damaged_file_is_refused_with_its_name_and_the_repair() {
        let dir = tempfile::tempdir().unwrap();
        identity().store(dir.path()).unwrap();
        assert_eq!(NodeIdentity::load_or_create(dir.path(), "b@h").unwrap(), identity());
        let path = dir.path().join("node.json");
        for damaged in [vec![], vec![0; 100], identity().to_json().unwrap()[1..].to_vec()] {
            fs::write(&path, damaged).unwrap();
            let error = NodeIdentity::load_or_create(dir.path(), "b@h").unwrap_err().to_string();
            assert!(error.contains(path.to_str().unwrap()) && error.contains("wipe"), "{error}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        #[test]
        fn arbitrary_bytes_are_read_or_refused(bytes in vec(any::<u8>(), 0..120)) {
            decode(&bytes);
        }

        #[test]
        fn what_was_written_and_damaged_is_read_or_refused(
            damage in vec((any::<Index>(), prop_oneof![any::<u8>(), select(&b"\"{}[]:,01eE-.\\"[..])]), 0..4),
            cut in prop::option::of(any::<Index>()),
        ) {
            let mut bytes = identity().to_json().unwrap();
            for (at, byte) in damage {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(cut.map_or(bytes.len(), |cut| cut.index(bytes.len() + 1)));
            decode(&bytes);
        }
    }
}
