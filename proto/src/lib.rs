//! Everything of Warren's that crosses a wire or reaches a disk, as pure codecs: no sockets, no clock, no runtime.

pub mod batch;
pub mod ids;
pub mod peer;
