//! What the write-ahead log must look like before RocksDB replays it.
//!
//! A power cut leaves a torn last record: the file had grown, and not all of its pages were written. Nothing in it was
//! acknowledged, and it is cut off. Anything else is damage, and RocksDB does not find all of it: a length that reaches
//! beyond the end of the file, or a page of zeroes, makes it drop acknowledged records without a word. And it takes a last
//! record of full length with a wrong checksum for damage. So every file is read here first. A torn record is told from
//! damage by what follows: behind a torn record no other begins.
//!
//! The format is RocksDB's: blocks of 32 KiB; in them fragments of checksum (masked CRC-32C of type and payload, u32), length
//! (u16) and type (u8), little-endian, and payload; a record is one full fragment, or a first, middles and a last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
const FULL: u8 = 1;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// A log file with damage that a power cut does not explain.
#[derive(Debug)]
pub(super) struct Damage {
    pub file: PathBuf,
    /// Where its last whole record before the damage ends.
    pub after: u64,
}

/// Reads the log files of a database, if there are any, and cuts a torn record off the end of the newest.
pub(super) fn check(database: &Path) -> io::Result<Option<Damage>> {
    let mut files = log_files(database)?;
    let newest = files.pop();
    for file in files {
        match read(&file)? {
            Tail::Whole => {}
            // The next file was begun when this one was complete.
            Tail::Torn(after) | Tail::Damaged(after) => return Ok(Some(Damage { file, after })),
        }
    }
    let Some(newest) = newest else {
        return Ok(None);
    };
    match read(&newest)? {
        Tail::Whole => Ok(None),
        Tail::Damaged(after) => Ok(Some(Damage { file: newest, after })),
        Tail::Torn(end) => {
            tracing::warn!(file = %newest.display(), end, "cutting a torn record off the end of the log");
            let file = OpenOptions::new().write(true).open(&newest)?;
            file.set_len(end)?;
            file.sync_all()?;
            Ok(None)
        }
    }
}

/// The files with something in them, oldest first: an empty one is created before the one before it is full of what
/// matters.
fn log_files(database: &Path) -> io::Result<Vec<PathBuf>> {
    let directory = match fs::read_dir(database) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        directory => directory?,
    };
    let mut files: Vec<(u64, PathBuf)> = Vec::new();
    for entry in directory {
        let path = entry?.path();
        let number = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".log"));
        let Some(number) = number.and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        if fs::metadata(&path)?.len() > 0 {
            files.push((number, path));
        }
    }
    files.sort_unstable();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

/// How a log file ends.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Tail {
    /// With a whole record.
    Whole,
    /// With a record that was not written in full, behind this many bytes of whole ones.
    Torn(u64),
    /// It has damage before its tail, behind this many bytes of whole records.
    Damaged(u64),
}

fn read(file: &Path) -> io::Result<Tail> {
    let mut file = File::open(file)?;
    let mut scan = Scan::default();
    let mut block = Vec::with_capacity(BLOCK);
    loop {
        block.clear();
        (&mut file).take(BLOCK as u64).read_to_end(&mut block)?;
        if block.is_empty() || !scan.take(&block) {
            return Ok(scan.tail());
        }
    }
}

/// A file of these bytes.
#[cfg(any(test, fuzzing))]
pub(super) fn tail_of(bytes: &[u8]) -> Tail {
    let mut scan = Scan::default();
    let _ = bytes.chunks(BLOCK).all(|block| scan.take(block));
    scan.tail()
}

/// A file read so far.
#[derive(Default)]
struct Scan {
    /// Bytes read.
    at: u64,
    /// Where the last whole record ends.
    whole: u64,
    /// Something is not as it should be.
    torn: bool,
    /// The torn record's last fragment was found: pages are written in any order.
    ended: bool,
    damaged: bool,
}

impl Scan {
    fn tail(&self) -> Tail {
        match (self.damaged, self.whole == self.at) {
            (true, _) => Tail::Damaged(self.whole),
            (false, true) => Tail::Whole,
            (false, false) => Tail::Torn(self.whole),
        }
    }

    /// Takes in the next block; false once the file is known to be damaged.
    fn take(&mut self, block: &[u8]) -> bool {
        let mut at = 0;
        while at < block.len() {
            match fragment(block, at) {
                Some((kind, end)) => {
                    match kind {
                        MIDDLE if self.torn && !self.ended => {}
                        LAST if self.torn && !self.ended => self.ended = true,
                        // The beginning of another record.
                        _ if self.torn => self.damaged = true,
                        FIRST | MIDDLE => {}
                        // Anything else is complete by itself.
                        _ => self.whole = self.at + align(end) as u64,
                    }
                    at = align(end);
                }
                None => {
                    self.torn = true;
                    self.damaged |= another_begins(block, at + 1);
                    break;
                }
            }
        }
        self.whole = self.whole.min(self.at + block.len() as u64);
        self.at += block.len() as u64;
        !self.damaged
    }
}

/// One fragment at an offset of a block: its type and where it ends; `None` if it is damaged or not there.
fn fragment(block: &[u8], at: usize) -> Option<(u8, usize)> {
    let header = block.get(at..at + HEADER)?;
    let checksum = u32::from_le_bytes(header[..4].try_into().ok()?);
    let end = at + HEADER + usize::from(u16::from_le_bytes([header[4], header[5]]));
    let covered = block.get(at + 6..end)?;
    let crc = crc32c::crc32c(covered);
    (crc.rotate_right(15).wrapping_add(0xa282_ead8) == checksum).then_some((header[6], end))
}

/// The next place where a fragment may begin: fewer bytes than a header at the end of a block are padding.
fn align(at: usize) -> usize {
    if BLOCK - at < HEADER { BLOCK } else { at }
}

/// Whether a record begins at any offset from `from` on, followed by others to the end of the block. Where a length is
/// damaged nothing says where the next record is.
fn another_begins(block: &[u8], from: usize) -> bool {
    (from..block.len()).any(|start| {
        let mut at = start;
        while let Some((_, end)) = fragment(block, at).filter(|(kind, _)| at > start || matches!(*kind, FULL | FIRST)) {
            at = align(end);
        }
        at > start && at >= block.len()
    })
}

/// Writes a fragment behind others; its payload fits into what is left of the block.
#[cfg(any(test, fuzzing))]
fn put(out: &mut Vec<u8>, kind: u8, payload: &[u8]) {
    let left = BLOCK - out.len() % BLOCK;
    if left < HEADER {
        out.resize(out.len() + left, 0);
    }
    let mut covered = vec![kind];
    covered.extend_from_slice(payload);
    let crc = crc32c::crc32c(&covered).rotate_right(15).wrapping_add(0xa282_ead8);
    out.extend_from_slice(&crc.to_le_bytes());
    out.extend_from_slice(&(payload.len() as u16).to_le_bytes());
    out.extend_from_slice(&covered);
}

/// A file that a script of four bytes a fragment describes, so that few bytes make several blocks: the type, the length of
/// the payload, and whether a bit of it is wrong. With it, how the file ends, if it has no wrong bit.
#[cfg(any(test, fuzzing))]
pub(super) fn scripted(script: &[u8]) -> (Vec<u8>, Option<Tail>) {
    const FRAGMENTS: usize = 12;
    let (mut log, mut whole, mut damaged) = (Vec::new(), 0, false);
    for fragment in script.chunks_exact(4).take(FRAGMENTS) {
        let begin = log.len() / BLOCK * BLOCK + align(log.len() % BLOCK);
        if whole == log.len() {
            whole = begin;
        }
        let room = BLOCK - begin % BLOCK - HEADER;
        let length = usize::from(u16::from_le_bytes([fragment[1], fragment[2]])).min(room);
        let kind = fragment[0] % 6;
        // No header begins in this, so that the search for other records is quick.
        put(&mut log, kind, &vec![0xff; length]);
        if !matches!(kind, FIRST | MIDDLE) {
            whole = log.len();
        }
        if fragment[3] >= 0x80 {
            let wrong = log.len() - 1 - usize::from(fragment[3] & 0x7f).min(length + HEADER - 1);
            log[wrong] ^= 1;
            damaged = true;
        }
    }
    let tail = if whole == log.len() { Tail::Whole } else { Tail::Torn(whole as u64) };
    (log, (!damaged).then_some(tail))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A record in as many fragments as it needs.
    fn put_record(out: &mut Vec<u8>, mut payload: &[u8]) {
        let mut first = true;
        loop {
            let left = align(out.len() % BLOCK);
            let room = if left == BLOCK { BLOCK } else { BLOCK - left } - HEADER;
            let (part, rest) = payload.split_at(payload.len().min(room));
            let kind = match (first, rest.is_empty()) {
                (true, true) => FULL,
                (true, false) => FIRST,
                (false, false) => MIDDLE,
                (false, true) => LAST,
            };
            put(out, kind, part);
            (payload, first) = (rest, false);
            if payload.is_empty() {
                return;
            }
        }
    }

    /// Ten records of one block, and where the last begins.
    fn records() -> (Vec<u8>, usize) {
        let mut log = Vec::new();
        for i in 0..9 {
            put(&mut log, FULL, &[i; 100]);
        }
        let last = log.len();
        put(&mut log, FULL, &[9; 300]);
        (log, last)
    }

    #[test]
    fn any_damaged_byte_of_the_last_record_makes_a_torn_tail_and_any_before_it_is_damage() {
        let (log, last) = records();
        assert_eq!(tail_of(&log), Tail::Whole);
        for at in 0..log.len() {
            for flip in [0x01, 0x80, 0xff] {
                let mut bad = log.clone();
                bad[at] ^= flip;
                let whole = at / 107 * 107;
                let expected = if at < last { Tail::Damaged(whole as u64) } else { Tail::Torn(last as u64) };
                assert_eq!(tail_of(&bad), expected, "{flip:#x} at {at}");
            }
        }
    }

    #[test]
    fn a_record_that_ends_short_is_a_torn_tail_wherever_it_is_cut() {
        let (log, last) = records();
        for end in last + 1..log.len() {
            assert_eq!(tail_of(&log[..end]), Tail::Torn(last as u64), "{end}");
        }
        assert_eq!(tail_of(&log[..last]), Tail::Whole);
        let grown = [&log[..], &[0; 500]].concat();
        assert_eq!(tail_of(&grown), Tail::Torn(log.len() as u64));
    }

    #[test]
    fn zeroes_in_the_middle_are_damage_and_at_the_end_a_torn_tail() {
        let mut log = Vec::new();
        for i in 0..3000 {
            put_record(&mut log, &[i as u8; 100]);
        }
        let page = 4096;
        for from in (0..log.len() - page).step_by(page) {
            let mut bad = log.clone();
            bad[from..from + page].fill(0);
            assert!(matches!(tail_of(&bad), Tail::Damaged(_)), "{from}");
        }
        let last = log.len() / page * page;
        log[last..].fill(0);
        assert!(matches!(tail_of(&log), Tail::Torn(_)));
    }

    #[test]
    fn a_record_over_several_blocks_may_be_torn_anywhere() {
        let mut log = Vec::new();
        put(&mut log, FULL, &[1; 100]);
        let whole = log.len() as u64;
        let rest = BLOCK - log.len() - HEADER;
        put(&mut log, FIRST, &vec![2; rest]);
        put(&mut log, MIDDLE, &vec![3; BLOCK - HEADER]);
        put(&mut log, LAST, &[4; 1000]);
        assert_eq!(tail_of(&log), Tail::Whole);
        for at in [whole as usize + 3, BLOCK + 500, BLOCK + 5, 2 * BLOCK + 5, 2 * BLOCK + 900] {
            let mut torn = log.clone();
            torn[at] ^= 1;
            assert_eq!(tail_of(&torn), Tail::Torn(whole), "{at}");
            put(&mut torn, FULL, &[5; 10]);
            assert_eq!(tail_of(&torn), Tail::Damaged(whole), "{at}");
        }
        assert_eq!(tail_of(&log[..2 * BLOCK]), Tail::Torn(whole));
    }

    #[test]
    fn a_block_that_ends_in_padding_is_whole() {
        for spare in 0..HEADER {
            let mut log = Vec::new();
            put(&mut log, FULL, &vec![1; BLOCK - HEADER - spare]);
            assert_eq!(tail_of(&log), Tail::Whole);
            put(&mut log, FULL, &[2; 10]);
            assert_eq!(tail_of(&log), Tail::Whole);
        }
    }
}
