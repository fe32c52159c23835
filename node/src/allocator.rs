//! jemalloc for Rust and for RocksDB alike, set up for a small process rather than for many idle cores.
#![allow(unsafe_code, reason = "jemalloc reads its settings from an exported symbol")]

use std::ffi::{CStr, c_char};

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Freed memory goes back to the system within a second, by a thread of jemalloc's own; few arenas, because the node has
/// few busy threads and each arena holds on to pages.
const SETTINGS: &[u8] =
    b"background_thread:true,narenas:4,dirty_decay_ms:1000,muzzy_decay_ms:0,metadata_thp:disabled\0";

/// What jemalloc says of itself, in bytes: allocated, active (whole pages of it), resident, retained (mapped without
/// memory), metadata (its own records). 0 where it does not say.
pub fn figures() -> [(&'static str, u64); 5] {
    // Its figures are those of the last epoch.
    let mut epoch: u64 = 1;
    let size = size_of::<u64>();
    // SAFETY: `epoch` is a u64 in and out, as the name requires.
    unsafe {
        tikv_jemalloc_sys::mallctl(
            c"epoch".as_ptr(),
            std::ptr::null_mut(),
            std::ptr::null_mut(),
            std::ptr::from_mut(&mut epoch).cast(),
            size,
        );
    }
    [
        ("allocated", figure(c"stats.allocated")),
        ("active", figure(c"stats.active")),
        ("resident", figure(c"stats.resident")),
        ("retained", figure(c"stats.retained")),
        ("metadata", figure(c"stats.metadata")),
    ]
}

/// A figure of type `size_t`.
fn figure(name: &CStr) -> u64 {
    let mut value: usize = 0;
    let mut size = size_of::<usize>();
    // SAFETY: reads a size_t into one, and no more than its size.
    let result = unsafe {
        tikv_jemalloc_sys::mallctl(
            name.as_ptr(),
            std::ptr::from_mut(&mut value).cast(),
            &mut size,
            std::ptr::null_mut(),
            0,
        )
    };
    if result == 0 { value as u64 } else { 0 }
}

/// A pointer that may be shared: to constant text.
#[repr(transparent)]
pub struct Settings(*const c_char);

// SAFETY: points to immutable static text.
unsafe impl Sync for Settings {}

/// Where jemalloc looks for its settings.
#[unsafe(export_name = "malloc_conf")]
#[used]
pub static MALLOC_CONF: Settings = Settings(SETTINGS.as_ptr().cast());

#[cfg(test)]
mod tests {
    #[test]
    fn what_is_allocated_shows() {
        let of = |kind: &str| super::figures().into_iter().find(|(name, _)| *name == kind).map(|(_, bytes)| bytes);
        let before = of("allocated").unwrap();
        let held = vec![1u8; 64 << 20];
        let after = of("allocated").unwrap();
        // Other tests allocate and free at the same time.
        assert!(before > 0 && after >= before + held.len() as u64 / 2, "{before} {after}");
        assert!(of("resident") >= of("active"));
    }
}
