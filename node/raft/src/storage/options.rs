//! How RocksDB is set up, and why.

use rocksdb::{BlockBasedOptions, Cache, ColumnFamilyDescriptor, DBCompressionType, DBRecoveryMode, LogLevel, Options};

use super::StoreConfig;
use super::keys::{LOG, META, SNAP};
use crate::log_store::StoreError;

/// All WAL files together; beyond it RocksDB flushes by itself. Segments close long before.
const MAX_WAL: u64 = 512 << 20;
/// Table files kept open.
const OPEN_FILES: i32 = 512;
/// A number of level 0 files that is never reached: `log` is not compacted by itself, so it must not stall either.
const NEVER: i32 = 1 << 30;
/// Memtables grow in steps of this, so that an idle database is small.
const ARENA_STEP: usize = 256 << 10;
/// `meta` and `snap` are flushed together with `log`, never before it; this only bounds a runaway.
const SMALL_FLUSH_LIMIT: usize = 1 << 30;

pub(super) fn database(config: &StoreConfig) -> Result<Options, StoreError> {
    // Preallocated WAL files would hold as much disk as a full memtable, idle or not.
    let mut options = Options::default()
        .get_options_from_string("allow_fallocate=false")
        .map_err(|e| StoreError::Write(e.to_string()))?;
    options.create_if_missing(true);
    options.create_missing_column_families(true);

    // A torn last record is what a power cut leaves; damage before it makes the open fail. Stopping at the first bad
    // record (the default) would silently drop entries that were acknowledged.
    options.set_wal_recovery_mode(DBRecoveryMode::TolerateCorruptedTailRecords);
    options.set_track_and_verify_wals_in_manifest(true);
    options.set_recycle_log_file_num(0);
    options.set_max_total_wal_size(MAX_WAL);
    options.set_manual_wal_flush(false);
    options.set_wal_bytes_per_sync(0);
    options.set_atomic_flush(true);
    options.set_paranoid_checks(true);

    options.set_max_open_files(OPEN_FILES);
    options.set_max_background_jobs(config.background_jobs);
    options.set_bytes_per_sync(1 << 20);
    options.set_keep_log_file_num(2);
    options.set_max_log_file_size(1 << 20);
    options.set_log_level(LogLevel::Warn);
    options.set_stats_dump_period_sec(0);
    options.set_stats_persist_period_sec(0);
    Ok(options)
}

pub(super) fn families(config: &StoreConfig) -> Vec<ColumnFamilyDescriptor> {
    let cache = Cache::new_lru_cache(config.block_cache);
    let table = |block: usize| {
        let mut table = BlockBasedOptions::default();
        table.set_block_cache(&cache);
        table.set_block_size(block);
        table.set_cache_index_and_filter_blocks(true);
        table.set_format_version(6);
        table
    };

    let mut log = Options::default();
    log.set_block_based_table_factory(&table(16 << 10));
    log.set_arena_block_size(ARENA_STEP);
    // The store itself decides when a memtable ends: when the segment does. RocksDB never gets there first.
    log.set_write_buffer_size(config.segment_bytes.saturating_mul(4).clamp(64 << 20, 4 << 30));
    log.set_max_write_buffer_number(3);
    log.set_disable_auto_compactions(true);
    log.set_level_zero_file_num_compaction_trigger(NEVER);
    log.set_level_zero_slowdown_writes_trigger(NEVER);
    log.set_level_zero_stop_writes_trigger(NEVER);
    log.set_soft_pending_compaction_bytes_limit(0);
    log.set_hard_pending_compaction_bytes_limit(0);
    // Level 0 takes what is flushed; a closed segment's files move to level 1, where they can be dropped as files.
    log.set_num_levels(2);
    log.set_target_file_size_base(256 << 20);
    log.set_compression_type(DBCompressionType::None);
    log.set_bottommost_compression_type(DBCompressionType::None);

    let small = |compression| {
        let mut options = Options::default();
        options.set_block_based_table_factory(&table(8 << 10));
        options.set_arena_block_size(ARENA_STEP);
        options.set_write_buffer_size(SMALL_FLUSH_LIMIT);
        options.set_max_write_buffer_number(3);
        options.set_compression_type(compression);
        options
    };
    vec![
        ColumnFamilyDescriptor::new(LOG, log),
        ColumnFamilyDescriptor::new(META, small(DBCompressionType::None)),
        ColumnFamilyDescriptor::new(SNAP, small(DBCompressionType::Lz4)),
        // RocksDB insists on it; nothing is written there.
        ColumnFamilyDescriptor::new("default", small(DBCompressionType::None)),
    ]
}
