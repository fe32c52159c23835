//! jemalloc for Rust and for RocksDB alike, set up for a small process rather than for many idle cores.
#![allow(unsafe_code, reason = "jemalloc reads its settings from an exported symbol")]

use std::ffi::c_char;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Freed memory goes back to the system within a second, by a thread of jemalloc's own; few arenas, because the node has
/// few busy threads and each arena holds on to pages.
const SETTINGS: &[u8] =
    b"background_thread:true,narenas:4,dirty_decay_ms:1000,muzzy_decay_ms:0,metadata_thp:disabled\0";

/// A pointer that may be shared: to constant text.
#[repr(transparent)]
pub struct Settings(*const c_char);

// SAFETY: points to immutable static text.
unsafe impl Sync for Settings {}

/// Where jemalloc looks for its settings.
#[unsafe(export_name = "malloc_conf")]
#[used]
pub static MALLOC_CONF: Settings = Settings(SETTINGS.as_ptr().cast());
