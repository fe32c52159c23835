//! Definitions that a node imports when it starts: from files, and from folders of them.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use sha2::{Digest, Sha224, Sha256, Sha384, Sha512};
use warren_broker::Broker;
use warren_broker::definitions::export::IMPORTED_HASH;
use warren_broker::definitions::{Count, Document, ImportError};
use warren_metastore::records::GlobalParameter;

use crate::config::settings::{self, DefinitionsHash};

/// Time between two lines on how far an import is.
const PROGRESS: Duration = Duration::from_secs(10);
/// Octets of a file, at most.
const MAX_FILE: u64 = 192 << 20;
/// Files of a folder, at most.
const MAX_FILES: usize = 10_000;

/// Documents that were read and can be imported.
pub struct Definitions {
    documents: Vec<(PathBuf, Document)>,
    /// Of all contents.
    hash: String,
}

impl Definitions {
    /// Reads all files; `None` where none are configured. Anything that cannot be read is an error.
    pub fn read(settings: &settings::Definitions) -> Result<Option<Self>, String> {
        if settings.paths.is_empty() {
            return Ok(None);
        }
        let mut hasher = Hasher::new(settings.hash);
        let mut documents = Vec::new();
        for path in settings.paths.iter().map(|path| files(path)).collect::<Result<Vec<_>, _>>()?.into_iter().flatten()
        {
            let wrong = |why: String| format!("{}: {why}", path.display());
            let text = read(&path).map_err(|error| wrong(error.to_string()))?;
            hasher.update(&text);
            let document = Document::parse(&text).map_err(|fault| wrong(fault.to_string()))?;
            documents.push((path, document));
        }
        Ok(Some(Definitions { documents, hash: hasher.finish() }))
    }

    /// Imports them, one document after the other.
    pub async fn import(self, broker: &Arc<Broker>, skip_if_unchanged: bool) -> Result<(), ImportError> {
        let last = GlobalParameter::get(&broker.metadata().tree(), IMPORTED_HASH).ok().flatten();
        let unchanged = last.is_some_and(|last| last.value == self.hash.as_str());
        if skip_if_unchanged && unchanged {
            tracing::info!("the definitions are those of the last import, and are left alone");
            return Ok(());
        }
        for (path, document) in self.documents {
            tracing::info!(file = %path.display(), "importing definitions");
            let count = Count::default();
            let importing = broker.import_definitions(document, &count);
            tokio::pin!(importing);
            let mut ticks = tokio::time::interval(PROGRESS);
            ticks.tick().await;
            let imported = loop {
                tokio::select! {
                    imported = &mut importing => break imported,
                    _ = ticks.tick() => {
                        let (done, total) = count.get();
                        tracing::info!(file = %path.display(), done, total, "importing definitions");
                    }
                }
            };
            let imported = imported
                .map_err(|error| ImportError { what: format!("{}: {}", path.display(), error.what), ..error })?;
            for notice in &imported.notices {
                tracing::warn!(file = %path.display(), "{notice}");
            }
            tracing::info!(file = %path.display(), objects = imported.objects, "definitions were imported");
        }
        let noted = broker.metadata().write(GlobalParameter::set(IMPORTED_HASH, self.hash.into())).await;
        if let Err(error) = noted {
            tracing::warn!(%error, "that these definitions were imported was not noted: the next start imports them again");
        }
        Ok(())
    }
}

/// A file itself, or the `.json` files of a folder in the order of their names.
fn files(path: &Path) -> Result<Vec<PathBuf>, String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
    if !path.is_dir() {
        return Ok(vec![path.to_owned()]);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).map_err(wrong)? {
        let file = entry.map_err(wrong)?.path();
        if file.extension().is_some_and(|extension| extension == "json") && file.is_file() {
            found.push(file);
        }
    }
    if found.len() > MAX_FILES {
        return Err(format!("{}: more than {MAX_FILES} files", path.display()));
    }
    found.sort();
    Ok(found)
}

/// A file that is not too large.
pub fn read(path: &Path) -> std::io::Result<Vec<u8>> {
    let mut text = Vec::new();
    std::fs::File::open(path)?.take(MAX_FILE + 1).read_to_end(&mut text)?;
    if text.len() as u64 > MAX_FILE {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, format!("longer than {MAX_FILE} bytes")));
    }
    Ok(text)
}

/// The hash of what was imported by hand, to compare with that of boots.
pub fn hash(text: &[u8], algorithm: DefinitionsHash) -> String {
    let mut hasher = Hasher::new(algorithm);
    hasher.update(text);
    hasher.finish()
}

enum Hasher {
    Sha224(Sha224),
    Sha256(Sha256),
    Sha384(Sha384),
    Sha512(Sha512),
}

impl Hasher {
    fn new(algorithm: DefinitionsHash) -> Self {
        match algorithm {
            DefinitionsHash::Sha224 => Hasher::Sha224(Sha224::new()),
            DefinitionsHash::Sha256 => Hasher::Sha256(Sha256::new()),
            DefinitionsHash::Sha384 => Hasher::Sha384(Sha384::new()),
            DefinitionsHash::Sha512 => Hasher::Sha512(Sha512::new()),
        }
    }

    fn update(&mut self, text: &[u8]) {
        match self {
            Hasher::Sha224(hasher) => hasher.update(text),
            Hasher::Sha256(hasher) => hasher.update(text),
            Hasher::Sha384(hasher) => hasher.update(text),
            Hasher::Sha512(hasher) => hasher.update(text),
        }
    }

    fn finish(self) -> String {
        let hash = match self {
            Hasher::Sha224(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha256(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha384(hasher) => hasher.finalize().to_vec(),
            Hasher::Sha512(hasher) => hasher.finalize().to_vec(),
        };
        hash.iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(path: &Path) -> settings::Definitions {
        settings::Definitions { paths: vec![path.to_owned()], skip_if_unchanged: false, hash: DefinitionsHash::Sha256 }
    }

    #[test]
    fn a_folder_is_read_in_the_order_of_its_names_and_its_other_files_are_not() {
        let folder = tempfile::tempdir().unwrap();
        for (name, text) in [("b.json", "{}"), ("a.json", "{\"users\": []}"), ("notes.txt", "not JSON")] {
            std::fs::write(folder.path().join(name), text).unwrap();
        }
        let read = Definitions::read(&settings(folder.path())).unwrap().unwrap();
        let names: Vec<_> = read.documents.iter().map(|(path, _)| path.file_name().unwrap().to_owned()).collect();
        assert_eq!(names, ["a.json", "b.json"]);
        assert_eq!(read.hash, hash(b"{\"users\": []}{}", DefinitionsHash::Sha256));
    }

    #[test]
    fn a_file_that_is_no_document_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("broken.json");
        std::fs::write(&file, "{").unwrap();
        let why = Definitions::read(&settings(folder.path())).err().unwrap();
        assert!(why.contains("broken.json"), "{why}");
        let none = settings::Definitions { paths: Vec::new(), ..settings(folder.path()) };
        assert!(Definitions::read(&none).unwrap().is_none());
    }
}
