//! What a node is to be when its process starts the next time: nobody yet, after a reset, or a member of the cluster that has
//! taken it in.
//!
//! It is written to `$DATA/next-life.json` by the process that runs, and carried out by the next one before it opens a
//! database: what there was is deleted, and the new identity takes its place. The file goes last, so a process that dies
//! half way is followed by one that does all of it again.
//!
//! `$DATA/contacts.json` names nodes of the cluster for as long as the node cannot read that in the metadata.

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::Path;

use serde::{Deserialize, Serialize};

use super::formation::Peer;
use super::identity_file::{Cluster, IdentityError, NodeIdentity, random_u64};
use crate::feature_flags::file::FlagFile;
use crate::start::database_paths;

const NEXT_LIFE: &str = "next-life.json";
const CONTACTS: &str = "contacts.json";

/// Who the node is to be.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextLife {
    identity: NodeIdentity,
    contacts: Vec<Peer>,
}

impl NextLife {
    /// A node that belongs to no cluster.
    pub fn blank(name: &str) -> Self {
        let identity =
            NodeIdentity { name: name.to_owned(), incarnation: random_u64(), cluster: None, has_databases: false };
        NextLife { identity, contacts: Vec::new() }
    }

    /// A member of a cluster, which knows it by that incarnation and by the member that the cluster names.
    pub fn member(name: &str, incarnation: u64, cluster: Cluster, contacts: Vec<Peer>) -> Self {
        let identity =
            NodeIdentity { name: name.to_owned(), incarnation, cluster: Some(cluster), has_databases: false };
        NextLife { identity, contacts }
    }

    /// The life of the data directory that begins then.
    pub fn incarnation(&self) -> u64 {
        self.identity.incarnation
    }

    /// Writes it down: from now on, the next process carries it out.
    pub fn store(&self, data: &Path) -> Result<(), IdentityError> {
        write(data, NEXT_LIFE, self)
    }
}

/// Carries out what the last process has written down, if it has. Deletes databases and the quarantine; a part of the data
/// that is not there any more is no error.
pub fn begin(data: &Path, queues_data: &Path) -> Result<(), IdentityError> {
    let path = data.join(NEXT_LIFE);
    let failed = |path: &Path, error| IdentityError::Io { path: path.display().to_string(), error };
    let bytes = match fs::read(&path) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(&path, error)),
    };
    let corrupt = |error| IdentityError::Corrupt { path: path.display().to_string(), error };
    let next: NextLife = serde_json::from_slice(&bytes).map_err(corrupt)?;
    // As strict as with the file that it becomes.
    let identity = NodeIdentity::from_json(&next.identity.to_json().map_err(corrupt)?).map_err(corrupt)?;
    let [metadata, queues] = database_paths(data, queues_data);
    for old in [metadata, queues, queues_data.join("quarantine")] {
        match fs::remove_dir_all(&old) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(&old, error)),
        }
    }
    // It has those of its new cluster, or begins as any blank node does.
    FlagFile::in_directory(data).remove().map_err(|error| IdentityError::Io {
        path: data.display().to_string(),
        error: io::Error::other(error.to_string()),
    })?;
    store_contacts(data, &next.contacts)?;
    identity.store(data)?;
    fs::remove_file(&path).and_then(|()| File::open(data)?.sync_all()).map_err(|error| failed(&path, error))?;
    tracing::info!(
        cluster = identity.cluster.as_ref().map(|cluster| format!("{:016x}", cluster.id)),
        "the node's data was deleted: it begins anew"
    );
    Ok(())
}

/// Nodes of the cluster that were noted.
pub fn contacts(data: &Path) -> Vec<Peer> {
    let bytes = fs::read(data.join(CONTACTS)).unwrap_or_default();
    serde_json::from_slice(&bytes).unwrap_or_default()
}

/// Notes nodes of the cluster.
pub fn store_contacts(data: &Path, contacts: &[Peer]) -> Result<(), IdentityError> {
    write(data, CONTACTS, &contacts)
}

/// Forgets them: the metadata names them now.
pub(crate) fn forget_contacts(data: &Path) {
    if let Err(error) = fs::remove_file(data.join(CONTACTS))
        && error.kind() != io::ErrorKind::NotFound
    {
        tracing::warn!(%error, "the notes on other nodes were not deleted");
    }
}

/// Writes a file so that a crash leaves the old one or the new one.
fn write(data: &Path, name: &str, content: &impl Serialize) -> Result<(), IdentityError> {
    let (path, aside) = (data.join(name), data.join(format!("{name}.new")));
    let written = || -> io::Result<()> {
        let mut file = File::create(&aside)?;
        file.write_all(&serde_json::to_vec_pretty(content)?)?;
        file.sync_all()?;
        fs::rename(&aside, &path)?;
        File::open(data)?.sync_all()
    };
    written().map_err(|error| IdentityError::Io { path: path.display().to_string(), error })
}

#[cfg(test)]
mod tests {
    use super::super::identity_file::Founder;
    use super::*;

    fn cluster() -> Cluster {
        let founder = Founder { name: "a@h".into(), incarnation: 1, uid: 2, address: "h:25672".into() };
        Cluster { id: 3, founders: vec![founder], uid: 9 }
    }

    fn with_data() -> (tempfile::TempDir, NodeIdentity) {
        let dir = tempfile::tempdir().unwrap();
        for folder in ["metadata", "queues", "quarantine", "log"] {
            fs::create_dir(dir.path().join(folder)).unwrap();
            fs::write(dir.path().join(folder).join("file"), "content").unwrap();
        }
        let identity = NodeIdentity::load_or_create(dir.path(), "b@h").unwrap();
        (dir, identity)
    }

    #[test]
    fn without_a_word_on_its_next_life_a_node_keeps_what_it_has() {
        let (dir, identity) = with_data();
        begin(dir.path(), dir.path()).unwrap();
        assert!(dir.path().join("metadata/file").exists());
        assert_eq!(NodeIdentity::load(dir.path(), "b@h").unwrap(), identity);
    }

    #[test]
    fn a_node_that_is_reset_loses_its_data_and_is_another_one() {
        let (dir, before) = with_data();
        store_contacts(dir.path(), &[Peer { name: "a@h".into(), address: "h:1".into() }]).unwrap();
        let next = NextLife::blank("b@h");
        next.store(dir.path()).unwrap();
        assert!(dir.path().join("metadata").exists(), "the process that runs deletes nothing");
        begin(dir.path(), dir.path()).unwrap();
        for gone in ["metadata", "queues", "quarantine", NEXT_LIFE] {
            assert!(!dir.path().join(gone).exists(), "{gone}");
        }
        assert!(dir.path().join("log/file").exists());
        let after = NodeIdentity::load(dir.path(), "b@h").unwrap();
        assert_eq!((after.incarnation, &after.cluster), (next.incarnation(), &None));
        assert_ne!(after.incarnation, before.incarnation);
        assert!(contacts(dir.path()).is_empty());
        // Only once.
        fs::create_dir(dir.path().join("metadata")).unwrap();
        begin(dir.path(), dir.path()).unwrap();
        assert!(dir.path().join("metadata").exists());
    }

    #[test]
    fn a_node_that_joins_is_the_member_that_the_cluster_took_in() {
        let (dir, _) = with_data();
        let seed = Peer { name: "a@h".into(), address: "h:25672".into() };
        NextLife::member("b@h", 77, cluster(), vec![seed.clone()]).store(dir.path()).unwrap();
        // As if it had died half way.
        fs::remove_dir_all(dir.path().join("metadata")).unwrap();
        begin(dir.path(), dir.path()).unwrap();
        let identity = NodeIdentity::load(dir.path(), "b@h").unwrap();
        assert_eq!((identity.incarnation, identity.cluster), (77, Some(cluster())));
        assert_eq!(contacts(dir.path()), [seed]);
        forget_contacts(dir.path());
        assert!(contacts(dir.path()).is_empty());
    }

    #[test]
    fn a_word_that_cannot_be_read_deletes_nothing() {
        let (dir, identity) = with_data();
        fs::write(dir.path().join(NEXT_LIFE), "{\"identity\": {}").unwrap();
        assert!(matches!(begin(dir.path(), dir.path()), Err(IdentityError::Corrupt { .. })));
        assert!(dir.path().join("queues/file").exists());
        assert_eq!(NodeIdentity::load(dir.path(), "b@h").unwrap(), identity);
    }
}
