//! Bytes from a store: messages and batches.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use warren_proto::batch::Batch;
use warren_proto::message::{KeysHeader, Message};

fuzz_target!(|data: &[u8]| {
    let data = Bytes::copy_from_slice(data);
    if let Ok(message) = Message::parse(data.clone()) {
        let mut out = BytesMut::new();
        message.encode(&mut out);
        assert_eq!(out, data);
        let _ = (message.exchange(), message.routing_key_str(), message.expiration_ms(), message.priority());
        let _ = message.keys_in(KeysHeader::Cc).map(Iterator::count);
        let _ = message.without_bcc().with_reply_to("r").detached();
    }
    if let Ok(batch) = Batch::parse(data) {
        batch.iter().for_each(drop);
    }
});
