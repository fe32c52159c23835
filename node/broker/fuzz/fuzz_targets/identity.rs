//! The node's identity file: refused, or an identity that is written again as it was read.

#![no_main]

use std::sync::LazyLock;

use libfuzzer_sys::fuzz_target;

#[allow(dead_code)]
#[path = "../../src/cluster/identity_file.rs"]
mod identity_file;

use identity_file::{Cluster, Founder, NodeIdentity};

/// The file of a founder of a cluster of two.
static WRITTEN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let founder = |name: &str, uid| Founder { name: name.into(), incarnation: uid, uid, address: "h:1".into() };
    let cluster = Cluster { id: 1, founders: vec![founder("a@h", 2), founder("b@h", 3)], uid: 2 };
    let identity = NodeIdentity { name: "a@h".into(), incarnation: 2, cluster: Some(cluster), has_databases: true };
    identity.to_json().expect("an identity can be written")
});

fuzz_target!(|data: &[u8]| {
    decode(data);
    // The same in place of a part of a file, so that mutations reach every field.
    if let [from_low, from_high, cut, part @ ..] = data {
        let from = usize::from(u16::from_le_bytes([*from_low, *from_high])) % WRITTEN.len();
        let (kept, rest) = WRITTEN.split_at(from);
        decode(&[kept, part, &rest[usize::from(*cut).min(rest.len())..]].concat());
    }
});

fn decode(bytes: &[u8]) {
    if let Ok(identity) = NodeIdentity::from_json(bytes) {
        let written = identity.to_json().expect("an identity can be written");
        assert_eq!(NodeIdentity::from_json(&written).expect("what was written can be read"), identity);
    }
}
