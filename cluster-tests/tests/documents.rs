//! What the documents say about files and dependencies is true of the tree.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent();
    root.expect("the crate lies in the workspace").to_owned()
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The texts between back quotes in the first column of a document's tables.
fn first_columns(document: &str) -> BTreeSet<String> {
    document
        .lines()
        .filter_map(|line| line.strip_prefix("| `"))
        .filter_map(|line| line.split(" | ").next())
        .flat_map(|cell| cell.split(", "))
        .map(|name| name.trim_matches('`').to_owned())
        .collect()
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = read(&root().join("Cargo.toml"));
    let declared: BTreeSet<String> = manifest
        .lines()
        .skip_while(|line| *line != "[workspace.dependencies]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split(" = ").next())
        .filter(|name| !name.is_empty() && !name.starts_with('#') && !name.starts_with("warren-"))
        .map(str::to_owned)
        .collect();
    let explained = first_columns(&read(&root().join("docs/dependencies.md")));
    let without_reason: Vec<_> = declared.difference(&explained).collect();
    let gone: Vec<_> = explained.difference(&declared).collect();
    assert!(
        without_reason.is_empty() && gone.is_empty(),
        "without a reason: {without_reason:?}; no longer used: {gone:?}"
    );
}

#[test]
fn links_between_documents_lead_to_files() {
    let docs = fs::read_dir(root().join("docs")).expect("there is a docs folder");
    let mut documents: Vec<PathBuf> = docs.map(|entry| entry.unwrap().path()).collect();
    documents.push(root().join("README.md"));
    let mut broken = Vec::new();
    for document in documents {
        let text = read(&document);
        for link in text.split("](").skip(1) {
            let target = link.split([')', '#']).next().unwrap_or_default();
            if target.is_empty() || target.contains("://") {
                continue;
            }
            let file = document.parent().expect("a file has a folder").join(target);
            if !file.exists() {
                broken.push(format!("{} -> {target}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
}
