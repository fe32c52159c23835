//! The `warren` binary.
mod config;
mod exit;
fn main() {}
