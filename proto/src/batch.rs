//! A batch: the list of commands in one log entry.
//!
//! Layout, little-endian: format `u8` (1), leader's time stamp in ms `u64`, count `u32`, `count` end offsets `u32`
//! (relative to the first command's byte), then the commands' bytes. The offset table makes a command in the middle
//! readable without parsing those before it.

use bytes::{BufMut, Bytes, BytesMut};

use crate::ids::{MachineVersion, SessionRef};

/// The only format this binary writes.
const FORMAT: u8 = 1;
const HEADER: usize = 1 + 8 + 4;

/// Commands in one batch, at most: what a [`Reference`](crate::ids::Reference) can number.
pub const MAX_COMMANDS: usize = 1 << 16;
/// Commands in one batch after which a builder reports itself full. One request may go beyond.
pub const FULL_COMMANDS: usize = 8192;
/// Bytes in one batch after which a builder reports itself full. One command may exceed it, alone in its batch.
pub const MAX_BYTES: usize = 4 << 20;

/// A command was refused before it reached the log: the group's effective version is too old for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the group is at machine version {effective}, the command needs {needed}")]
pub struct UnsupportedVersion {
    /// The version in force at the end of the log.
    pub effective: MachineVersion,
    /// The lowest version that defines the command.
    pub needed: MachineVersion,
}

/// Collects commands for one log entry, and refuses any that the group's effective version does not define.
#[derive(Debug)]
pub struct BatchBuilder {
    effective: MachineVersion,
    ends: Vec<u32>,
    bytes: BytesMut,
    /// The session of the last publish and the number of the one that follows.
    next_publish: Option<(SessionRef, u64)>,
}

impl BatchBuilder {
    /// A builder for a group whose version at the end of its log is `effective`.
    pub fn new(effective: MachineVersion) -> Self {
        BatchBuilder { effective, ends: Vec::new(), bytes: BytesMut::new(), next_publish: None }
    }

    /// The version that commands must be encoded in.
    pub fn effective(&self) -> MachineVersion {
        self.effective
    }

    /// Appends one command that `encode` writes. Answers its position in the batch.
    pub fn push(
        &mut self,
        min_version: MachineVersion,
        encode: impl FnOnce(&mut BytesMut),
    ) -> Result<u16, UnsupportedVersion> {
        if min_version > self.effective {
            return Err(UnsupportedVersion { effective: self.effective, needed: min_version });
        }
        let position = self.ends.len();
        debug_assert!(position < MAX_COMMANDS);
        encode(&mut self.bytes);
        self.ends.push(self.bytes.len() as u32);
        Ok(position as u16)
    }

    /// Notes a session's publish `seq`, which is added next. Whether it follows the last one in this batch: then neither
    /// session nor number need be written.
    pub fn follows(&mut self, session: SessionRef, seq: u64) -> bool {
        let expected = self.next_publish.replace((session, seq.wrapping_add(1)));
        expected == Some((session, seq))
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.ends.len()
    }

    /// Whether there is nothing to propose.
    pub fn is_empty(&self) -> bool {
        self.ends.is_empty()
    }

    /// Whether the batch should be proposed before more is added.
    pub fn is_full(&self) -> bool {
        self.ends.len() >= FULL_COMMANDS || self.bytes.len() >= MAX_BYTES
    }

    /// Bytes of commands so far.
    pub fn bytes_len(&self) -> usize {
        self.bytes.len()
    }

    /// The entry's data, stamped with the leader's time; the builder is empty again.
    pub fn finish(&mut self, ts_ms: u64) -> Bytes {
        let mut out = BytesMut::with_capacity(HEADER + 4 * self.ends.len() + self.bytes.len());
        out.put_u8(FORMAT);
        out.put_u64_le(ts_ms);
        out.put_u32_le(self.ends.len() as u32);
        for end in &self.ends {
            out.put_u32_le(*end);
        }
        out.extend_from_slice(&self.bytes);
        self.ends.clear();
        self.bytes.clear();
        self.next_publish = None;
        out.freeze()
    }
}

/// Bytes that are not a batch of a format this binary knows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchError {
    /// Shorter than its own header or table says.
    #[error("batch is truncated")]
    Truncated,
    /// Written by a newer binary, or not a batch.
    #[error("unknown batch format {0}")]
    Format(u8),
    /// Offsets that run backwards or past the end.
    #[error("batch offset table is inconsistent")]
    Offsets,
}

/// A parsed batch. Cloning is cheap; commands are slices of the entry's one buffer.
#[derive(Debug, Clone)]
pub struct Batch {
    data: Bytes,
    count: u32,
    body: usize,
}

impl Batch {
    /// Checks the header and the offset table.
    pub fn parse(data: Bytes) -> Result<Self, BatchError> {
        if data.len() < HEADER {
            return Err(BatchError::Truncated);
        }
        if data[0] != FORMAT {
            return Err(BatchError::Format(data[0]));
        }
        let count = u32::from_le_bytes([data[9], data[10], data[11], data[12]]);
        let body = (count as usize).checked_mul(4).and_then(|n| n.checked_add(HEADER)).ok_or(BatchError::Truncated)?;
        if data.len() < body || count as usize > MAX_COMMANDS {
            return Err(BatchError::Truncated);
        }
        let batch = Batch { data, count, body };
        let mut last = 0;
        for i in 0..count as usize {
            let end = batch.end(i);
            if end < last || end > batch.data.len() - body {
                return Err(BatchError::Offsets);
            }
            last = end;
        }
        Ok(batch)
    }

    fn end(&self, i: usize) -> usize {
        let at = HEADER + 4 * i;
        u32::from_le_bytes([self.data[at], self.data[at + 1], self.data[at + 2], self.data[at + 3]]) as usize
    }

    /// The leader's time stamp in ms; never goes backwards in a log.
    pub fn ts_ms(&self) -> u64 {
        let mut b = [0; 8];
        b.copy_from_slice(&self.data[1..9]);
        u64::from_le_bytes(b)
    }

    /// Number of commands.
    pub fn len(&self) -> usize {
        self.count as usize
    }

    /// Whether it holds no command.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Command `i`'s bytes, sharing the entry's buffer; `None` past the end.
    pub fn get(&self, i: usize) -> Option<Bytes> {
        if i >= self.len() {
            return None;
        }
        let start = if i == 0 { 0 } else { self.end(i - 1) };
        Some(self.data.slice(self.body + start..self.body + self.end(i)))
    }

    /// The commands in order.
    pub fn iter(&self) -> impl Iterator<Item = Bytes> + '_ {
        (0..self.len()).filter_map(|i| self.get(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_gives_back_its_commands_and_stamp() {
        let mut b = BatchBuilder::new(MachineVersion(2));
        for c in [&b"one"[..], b"", b"three"] {
            b.push(MachineVersion(1), |out| out.extend_from_slice(c)).unwrap();
        }
        let batch = Batch::parse(b.finish(77)).unwrap();
        assert_eq!(batch.ts_ms(), 77);
        assert_eq!(batch.iter().collect::<Vec<_>>(), ["one", "", "three"]);
        assert_eq!(batch.get(3), None);
        assert!(b.is_empty());
    }

    #[test]
    fn a_command_newer_than_the_group_is_refused_and_leaves_no_trace() {
        let mut b = BatchBuilder::new(MachineVersion(1));
        let err = b.push(MachineVersion(2), |out| out.extend_from_slice(b"x")).unwrap_err();
        assert_eq!(err, UnsupportedVersion { effective: MachineVersion(1), needed: MachineVersion(2) });
        assert!(b.is_empty());
    }

    proptest::proptest! {
        #[test]
        fn arbitrary_bytes_never_panic(data: Vec<u8>) {
            if let Ok(batch) = Batch::parse(Bytes::from(data)) {
                batch.iter().for_each(drop);
            }
        }

        #[test]
        fn a_damaged_batch_is_refused_or_read(
            commands: Vec<Vec<u8>>,
            damage in proptest::collection::vec((proptest::prelude::any::<proptest::sample::Index>(), 0u8..8), 0..3),
            cut: proptest::sample::Index,
        ) {
            let mut b = BatchBuilder::new(MachineVersion(1));
            for command in &commands {
                b.push(MachineVersion(1), |out| out.extend_from_slice(command)).unwrap();
            }
            let mut data = b.finish(7).to_vec();
            for (at, byte) in damage {
                let at = at.index(data.len());
                data[at] = byte;
            }
            data.truncate(cut.index(2 * data.len()));
            if let Ok(batch) = Batch::parse(Bytes::from(data)) {
                batch.iter().for_each(drop);
                proptest::prop_assert_eq!(batch.iter().count(), batch.len());
            }
        }
    }
}
