//! What nodes say to each other, generated from `peer/*.proto`. Additive only: a field's number and meaning never change.
//!
//! `bytes` fields are [`bytes::Bytes`] and share the buffer that they were decoded from.

#![allow(missing_docs, reason = "generated; the documentation is in the .proto files")]
#![allow(clippy::all, reason = "generated")]

include!(concat!(env!("OUT_DIR"), "/warren.peer.rs"));
