//! Disks that fail on demand: a small library, written in C and compiled by the test, that is loaded into the node before
//! the C library's own functions (`faults/disk.c`), and small file systems of their own, which can be frozen and filled up.

use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

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

/// Why this machine cannot mount file systems; `None` where it can.
pub fn mounts_are_refused() -> Option<String> {
    const MAY_MOUNT: u64 = 1 << 21;
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let rights = status.lines().find_map(|line| line.strip_prefix("CapEff:")).unwrap_or("0");
    if u64::from_str_radix(rights.trim(), 16).unwrap_or(0) & MAY_MOUNT == 0 {
        return Some("mounting a file system needs root".to_owned());
    }
    let loops = Path::new("/dev/loop-control");
    (!loops.exists()).then(|| format!("there is no {}", loops.display()))
}

/// An ext4 of its own in a file, mounted through a loop device until it is dropped.
pub(crate) struct LoopDisk {
    mounted_on: PathBuf,
    frozen: bool,
}

impl LoopDisk {
    /// Makes a file system of that size in the file `image` and mounts it on the folder, which it creates.
    pub fn mount(image: &Path, megabytes: u64, folder: PathBuf) -> LoopDisk {
        let file = fs::File::create(image).expect("a file can be made");
        file.set_len(megabytes << 20).expect("a sparse file can be made");
        fs::create_dir_all(&folder).expect("a folder can be made");
        // No blocks are kept back for root: what is full is full.
        must(Command::new("mkfs.ext4").args(["-q", "-F", "-m", "0"]).arg(image));
        must(Command::new("mount").args(["-o", "loop"]).arg(image).arg(&folder));
        LoopDisk { mounted_on: folder, frozen: false }
    }

    /// Writes wait from now on, until [`thaw`](Self::thaw).
    pub fn freeze(&mut self) {
        must(Command::new("fsfreeze").arg("--freeze").arg(&self.mounted_on));
        self.frozen = true;
    }

    /// Writes go on.
    pub fn thaw(&mut self) {
        if std::mem::take(&mut self.frozen) {
            must(Command::new("fsfreeze").arg("--unfreeze").arg(&self.mounted_on));
        }
    }

    fn filling(&self) -> PathBuf {
        self.mounted_on.join("filling")
    }

    /// Takes all the space that is left.
    pub fn fill(&self) {
        let mut filling = fs::File::create(self.filling()).expect("a name needs no space");
        let block = vec![1; 1 << 16];
        for size in [block.len(), 1 << 12, 1] {
            while filling.write_all(&block[..size]).is_ok() {}
        }
    }

    /// Gives the space back.
    pub fn release(&self) {
        fs::remove_file(self.filling()).expect("the file is there");
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        self.thaw();
        // What was killed a moment ago may still close its files.
        for _ in 0..50 {
            if Command::new("umount").arg(&self.mounted_on).output().is_ok_and(|output| output.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        eprintln!("{} stays mounted", self.mounted_on.display());
    }
}

fn must(command: &mut Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
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
