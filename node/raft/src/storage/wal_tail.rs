//! Cuts a torn last record off the newest write-ahead log file.
//!
//! RocksDB opens a log whose last record is short, but takes a last record of full length with a wrong checksum for damage.
//! A power cut leaves such a record: the file had grown, and not all of its pages were written. Nothing in it was
//! acknowledged. It is told from damage by what follows: after a torn record no other begins.
//!
//! The format is RocksDB's: blocks of 32 KiB; in them fragments of checksum (masked CRC-32C of type and payload, u32), length
//! (u16) and type (u8), little-endian, and payload; a record is one full fragment, or a first, middles and a last.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

const BLOCK: usize = 32 << 10;
const HEADER: usize = 7;
const FIRST: u8 = 2;
const MIDDLE: u8 = 3;
const LAST: u8 = 4;

/// Cuts the tail where it is torn and no more; answers whether it did.
pub(super) fn cut_torn_tail(database: &Path) -> io::Result<bool> {
    let Some(path) = newest_log(database)? else {
        return Ok(false);
    };
    let mut bytes = Vec::new();
    File::open(&path)?.read_to_end(&mut bytes)?;
    let Some(end) = torn_after(&bytes) else {
        return Ok(false);
    };
    tracing::warn!(file = %path.display(), length = bytes.len(), end, "cutting a torn record off the end of the log");
    let file = OpenOptions::new().write(true).open(&path)?;
    file.set_len(end as u64)?;
    file.sync_all()?;
    Ok(true)
}

fn newest_log(database: &Path) -> io::Result<Option<PathBuf>> {
    let mut newest: Option<(u64, PathBuf)> = None;
    for entry in fs::read_dir(database)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|n| n.to_str()).and_then(|n| n.strip_suffix(".log"));
        let Some(number) = number.and_then(|n| n.parse::<u64>().ok()) else {
            continue;
        };
        // An empty file is created before the one before it is full of what matters.
        let filled = fs::metadata(&path)?.len() > 0;
        if filled && newest.as_ref().is_none_or(|(n, _)| number > *n) {
            newest = Some((number, path));
        }
    }
    Ok(newest.map(|(_, path)| path))
}

/// One fragment at an offset: its type and where the next begins; `None` if it is damaged or not there.
fn fragment(bytes: &[u8], at: usize) -> Option<(u8, usize)> {
    let header = bytes.get(at..at + HEADER)?;
    let checksum = u32::from_le_bytes(header[..4].try_into().ok()?);
    let length = usize::from(u16::from_le_bytes([header[4], header[5]]));
    let end = at + HEADER + length;
    if end > (at / BLOCK + 1) * BLOCK {
        return None;
    }
    let covered = bytes.get(at + 6..end)?;
    let crc = crc32c::crc32c(covered);
    (crc.rotate_right(15).wrapping_add(0xa282_ead8) == checksum).then_some((header[6], end))
}

/// The next place where a fragment may begin: fewer bytes than a header at the end of a block are padding.
fn align(at: usize) -> usize {
    if BLOCK - at % BLOCK < HEADER { (at / BLOCK + 1) * BLOCK } else { at }
}

/// Where the last whole record ends, if what follows is a torn record and nothing else. `None`: nothing is damaged, or
/// something before the tail is.
fn torn_after(bytes: &[u8]) -> Option<usize> {
    let mut at = 0;
    let mut whole = 0;
    loop {
        at = align(at);
        if at >= bytes.len() {
            return None;
        }
        match fragment(bytes, at) {
            Some((kind, end)) => {
                // Anything but the parts of a longer record is complete by itself.
                if kind != FIRST && kind != MIDDLE {
                    whole = end;
                }
                at = end;
            }
            None => break,
        }
    }
    // Pages are written in any order, so later parts of the torn record may be whole. The beginning of another is proof
    // that the damage is not at the tail.
    let length = bytes.get(at + 4..at + 6).map_or(0, |l| usize::from(u16::from_le_bytes([l[0], l[1]])));
    let mut starts = vec![align(at + HEADER + length)];
    starts.extend((at / BLOCK + 1..=bytes.len() / BLOCK).map(|b| b * BLOCK));
    let mut ended = false;
    let mut seen = 0;
    for start in starts {
        if start < seen {
            continue;
        }
        let mut next = start;
        while let Some((kind, end)) = fragment(bytes, next) {
            match kind {
                MIDDLE if !ended => {}
                LAST if !ended => ended = true,
                // Zeroes are space that was never written.
                0 if end == next + HEADER => {}
                _ => return None,
            }
            next = align(end);
        }
        seen = next;
    }
    Some(whole)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FULL: u8 = 1;

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

    #[test]
    fn only_a_damaged_last_record_is_a_torn_tail() {
        let mut log = Vec::new();
        for i in 0..10 {
            put(&mut log, FULL, &[i; 100]);
        }
        assert_eq!(torn_after(&log), None);
        let whole = log.len();
        put(&mut log, FULL, &[11; 100]);
        let mut torn = log.clone();
        torn[whole + 50] ^= 1;
        assert_eq!(torn_after(&torn), Some(whole));
        let mut damaged = log.clone();
        damaged[350] ^= 1;
        assert_eq!(torn_after(&damaged), None);
    }

    #[test]
    fn a_record_over_several_blocks_may_be_torn_anywhere() {
        let mut log = Vec::new();
        put(&mut log, FULL, &[1; 100]);
        let whole = log.len();
        let rest = BLOCK - log.len() - HEADER;
        put(&mut log, FIRST, &vec![2; rest]);
        put(&mut log, MIDDLE, &vec![3; BLOCK - HEADER]);
        put(&mut log, LAST, &[4; 1000]);
        assert_eq!(torn_after(&log), None);
        let mut torn = log.clone();
        torn[BLOCK + 500] ^= 1;
        assert_eq!(torn_after(&torn), Some(whole));
        put(&mut torn, FULL, &[5; 10]);
        assert_eq!(torn_after(&torn), None);
    }
}
