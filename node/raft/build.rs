//! Generates the tonic service of the peer port; its messages are `warren-proto`'s.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=../../proto/peer");
    // Set by cargo-fuzz.
    println!("cargo::rustc-check-cfg=cfg(fuzzing)");
    let descriptors = protox::compile(["../../proto/peer/peer.proto"], ["../../proto/peer"])?;
    tonic_prost_build::configure()
        .extern_path(".warren.peer", "::warren_proto::peer")
        .codec_path("crate::transport::wire::PeerCodec")
        .build_transport(false)
        .compile_fds(descriptors)?;
    Ok(())
}
