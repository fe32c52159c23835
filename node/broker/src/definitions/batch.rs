//! Many writes as few commands.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use warren_metastore::machine::Write;

use crate::metadata::{Metadata, WriteError};

/// Objects in one command, at most: each takes a few operations, of which a command has [`MAX_OPS`].
///
/// [`MAX_OPS`]: warren_metastore::tree::MAX_OPS
const OBJECTS: usize = 500;
/// Octets of one command, about.
const BYTES: usize = 1 << 20;
/// Commands under way.
const IN_FLIGHT: usize = 16;

/// A write and what it weighs.
pub(super) struct Item {
    /// Its place among the objects of its kind, to name it by.
    pub index: usize,
    /// The write.
    pub write: Write,
    /// Octets of its names and contents, about.
    pub bytes: usize,
}

/// Writes as they are made.
pub(super) type Items<'i> = Box<dyn Iterator<Item = Item> + Send + 'i>;

/// The write of one object that was not carried out.
pub(super) struct Refused {
    /// [`Item::index`].
    pub index: usize,
    /// Why.
    pub error: WriteError,
}

/// Carries out writes that do not depend on each other, and calls `done` with how many were. Where a command is refused, its writes
/// are carried out one by one, which finds the one that is at fault.
pub(super) async fn write_all(
    metadata: &Metadata,
    items: Items<'_>,
    mut done: impl FnMut(usize),
) -> Result<(), Refused> {
    let mut batches = Batches { items: items.peekable() };
    let mut writing = FuturesUnordered::new();
    loop {
        while writing.len() < IN_FLIGHT
            && let Some(batch) = batches.next()
        {
            writing.push(write(metadata, batch));
        }
        match writing.next().await {
            Some(written) => done(written?),
            None => return Ok(()),
        }
    }
}

async fn write(metadata: &Metadata, batch: Vec<Item>) -> Result<usize, Refused> {
    let (first, objects) = (batch.first().map_or(0, |item| item.index), batch.len());
    let all = Write::new(batch.iter().flat_map(|item| item.write.ops().iter().cloned()).collect());
    match metadata.write(all).await {
        Ok(_) => return Ok(objects),
        Err(WriteError::Refused(_)) if objects > 1 => {}
        Err(error) => return Err(Refused { index: first, error }),
    }
    for Item { index, write, .. } in batch {
        metadata.write(write).await.map_err(|error| Refused { index, error })?;
    }
    Ok(objects)
}

/// Puts writes together.
struct Batches<I: Iterator<Item = Item>> {
    items: std::iter::Peekable<I>,
}

impl<I: Iterator<Item = Item>> Iterator for Batches<I> {
    type Item = Vec<Item>;

    fn next(&mut self) -> Option<Vec<Item>> {
        let first = self.items.next()?;
        let mut bytes = first.bytes;
        let mut batch = vec![first];
        while batch.len() < OBJECTS
            && let Some(item) = self.items.next_if(|item| bytes + item.bytes <= BYTES)
        {
            bytes += item.bytes;
            batch.push(item);
        }
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sizes(bytes: &[usize]) -> Vec<usize> {
        let items =
            bytes.iter().enumerate().map(|(index, bytes)| Item { index, write: Write::new(vec![]), bytes: *bytes });
        Batches { items: items.collect::<Vec<_>>().into_iter().peekable() }.map(|batch| batch.len()).collect()
    }

    #[test]
    fn commands_are_bounded_by_objects_and_by_octets() {
        assert_eq!(sizes(&[10; 1201]), [500, 500, 201]);
        assert_eq!(sizes(&[BYTES / 2, BYTES / 2, 1, BYTES * 2, 1]), [2, 1, 1, 1]);
        assert!(sizes(&[]).is_empty());
    }
}
