//! The one thread that writes the log: whatever all shards handed over during the previous sync becomes the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crossbeam_channel::{Receiver, Sender, TryRecvError};

use super::shard::Waker;
use super::watch::Progress;
use crate::driver::WriteBatch;
use crate::log_store::{LogStore, StoreError, Write};

/// One write takes no further batches once it has this many bytes or changes.
const MAX_BYTES: usize = 4 << 20;
const MAX_WRITES: usize = 4096;

/// Batches that may wait for the writer. A shard that would exceed it waits: the disk sets the pace.
pub(super) const QUEUE: usize = 256;

/// A shard's writes on their way to the disk.
pub(super) struct Handed {
    pub shard: usize,
    pub batch: WriteBatch,
}

/// How the writer tells a shard: a number it can read any time, and a nudge.
pub(super) struct Notified {
    pub persisted: Arc<AtomicU64>,
    pub waker: Arc<dyn Waker>,
}

/// Counters of the writer.
#[derive(Default)]
pub(super) struct WriterStats {
    pub syncs: AtomicU64,
    pub batches: AtomicU64,
    pub bytes: AtomicU64,
    /// Batches that waited when the last write began.
    pub waiting: AtomicU64,
}

pub(super) fn channel() -> (Sender<Handed>, Receiver<Handed>) {
    crossbeam_channel::bounded(QUEUE)
}

/// Runs until every sender is gone. After a failed write it calls `fatal` and never reports anything durable again.
pub(super) fn run(
    store: Arc<dyn LogStore>,
    queue: Receiver<Handed>,
    shards: Vec<Notified>,
    stats: Arc<WriterStats>,
    progress: Arc<Progress>,
    fatal: Arc<dyn Fn(StoreError) + Send + Sync>,
) {
    let mut writes: Vec<Write> = Vec::new();
    let mut newest: Vec<Option<u64>> = vec![None; shards.len()];
    while let Ok(first) = queue.recv() {
        let mut bytes = 0;
        let mut next = Some(first);
        while let Some(handed) = next.take() {
            newest[handed.shard] = Some(handed.batch.number);
            bytes += handed.batch.writes.iter().map(size).sum::<usize>();
            stats.batches.fetch_add(1, Ordering::Relaxed);
            writes.extend(handed.batch.writes);
            if bytes >= MAX_BYTES || writes.len() >= MAX_WRITES {
                break;
            }
            match queue.try_recv() {
                Ok(handed) => next = Some(handed),
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => {}
            }
        }
        stats.waiting.store(queue.len() as u64, Ordering::Relaxed);
        progress.step();
        let written = store.write(&writes);
        progress.step();
        if let Err(error) = written {
            tracing::error!(%error, "the log cannot be written; nothing is acknowledged any more");
            fatal(error);
            // Shards must not block on a queue that nobody empties.
            while queue.recv().is_ok() {}
            return;
        }
        stats.syncs.fetch_add(1, Ordering::Relaxed);
        stats.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        writes.clear();
        for (shard, number) in shards.iter().zip(&mut newest) {
            if let Some(number) = number.take() {
                shard.persisted.store(number, Ordering::Release);
                shard.waker.wake();
            }
        }
    }
}

fn size(write: &Write) -> usize {
    match write {
        Write::Append(_, entries) => entries.iter().map(|e| e.data.len() + 64).sum(),
        Write::Snapshot(_, _, state) | Write::Install(_, _, state) => state.len(),
        Write::Create(_) | Write::HardState(..) | Write::Membership(..) | Write::Delete(_) => 64,
    }
}
