//! Compiles `peer/*.proto` into Rust types without needing `protoc`.

use std::error::Error;
use std::fs;
use std::path::PathBuf;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=peer");
    let mut files: Vec<PathBuf> = Vec::new();
    for entry in fs::read_dir("peer")? {
        let path = entry?.path();
        if path.extension().is_some_and(|e| e == "proto") {
            files.push(path);
        }
    }
    // The order decides the order of the generated items; a directory has none.
    files.sort();
    let descriptors = protox::compile(&files, ["peer"])?;
    prost_build::Config::new().bytes(["."]).compile_fds(descriptors)?;
    Ok(())
}
