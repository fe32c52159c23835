//! Disks that fail on demand: a small library, written in C and compiled by the test, that is loaded into the node before
//! the C library's own functions (`faults/disk.c`).

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is wrong with a disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiskFault {
    /// The next sync fails with an I/O error; those that follow succeed, as they do on a real disk that lost the data.
    FailOneSync,
    /// No space is left: a write arrives in part, then none does.
    Full,
    /// Syncs do not return.
    Stall,
}

impl DiskFault {
    /// The word that the library knows it by.
    fn word(self) -> &'static str {
        match self {
            DiskFault::FailOneSync => "fail-sync-once",
            DiskFault::Full => "full",
            DiskFault::Stall => "stall",
        }
    }
}

/// The disk of one node: everything in its data folder.
#[derive(Clone, Debug)]
pub(crate) struct FaultyDisk {
    library: PathBuf,
    data: PathBuf,
    fault: PathBuf,
}

impl FaultyDisk {
    /// A disk that works so far; `fault` is where its fault is said.
    pub fn new(library: &Path, data: PathBuf, fault: PathBuf) -> FaultyDisk {
        FaultyDisk { library: library.to_owned(), data, fault }
    }

    /// Puts a program's data on the disk.
    pub fn use_for(&self, command: &mut Command) {
        command
            .env("LD_PRELOAD", &self.library)
            .env("FAULTY_DISK_UNDER", &self.data)
            .env("FAULTY_DISK_FAULT", &self.fault);
    }

    /// From now on the disk has that fault.
    pub fn break_with(&self, fault: DiskFault) {
        // Appears at once and whole.
        let draft = self.fault.with_extension("draft");
        fs::write(&draft, fault.word()).and_then(|()| fs::rename(&draft, &self.fault)).expect("a file can be written");
    }

    /// From now on the disk works.
    pub fn mend(&self) {
        if let Err(error) = fs::remove_file(&self.fault) {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "mending a disk: {error}");
        }
    }

    /// Whether the fault is still to come or goes on.
    pub fn is_broken(&self) -> bool {
        self.fault.exists()
    }
}

/// Compiles the library into `folder`.
pub(crate) fn compile(folder: &Path) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("faults/disk.c");
    let library = folder.join("faulty-disk.so");
    let output = Command::new("cc")
        .args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"])
        .arg(&library)
        .arg(source)
        .arg("-ldl")
        .output()
        .expect("a C compiler can be run: building Warren needs one too");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    library
}
