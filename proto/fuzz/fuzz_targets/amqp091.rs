//! Bytes from a client: frames, methods, contents, properties, tables, SASL responses. What reads must also write.

#![no_main]

use bytes::{Bytes, BytesMut};
use libfuzzer_sys::fuzz_target;
use warren_proto::amqp091::{
    Assembly, Content, Credentials, DeliverRef, FrameKind, FrameLimits, Method, Opening, PropertiesRef, PublishRef,
};

fuzz_target!(|data: &[u8]| {
    if let Some(header) = data.first_chunk() {
        let _ = Opening::judge(header);
    }
    let _ = Credentials::from_plain(data);
    let _ = Credentials::from_amqplain(data);
    let limits = FrameLimits::new(8192);
    let whole = limits.whole_frames(data);
    let mut assembly = Assembly::default();
    for frame in limits.frames(Bytes::copy_from_slice(&data[..whole])) {
        let Ok(frame) = frame else { break };
        if frame.kind != FrameKind::Method {
            if let Ok(Some(Content { properties, .. })) = assembly.frame(frame) {
                rewrite(&properties);
            }
            continue;
        }
        let _ = PublishRef::decode(&frame.payload);
        let _ = DeliverRef::decode(&frame.payload);
        let Ok(method) = Method::decode(&frame.payload) else { continue };
        if method.has_content() && !assembly.is_pending() {
            assembly.begin((), method.ids());
        }
        let mut out = BytesMut::new();
        method.write_frame(frame.channel, &mut out);
        let again = FrameLimits::new(0).decode(&mut out).expect("own frames are well formed").expect("a whole frame");
        // Equal but for floats that are not numbers.
        assert_eq!(Method::decode(&again.payload).expect("own methods read back").ids(), method.ids());
    }
});

/// A checked block stays readable whatever is changed in it.
fn rewrite(block: &Bytes) {
    let properties = PropertiesRef::parse(block).expect("checked when the header was read");
    let mut out = BytesMut::new();
    properties.write_with_headers(&[("x-acquired-count", 1.into())], &mut out);
    PropertiesRef::parse(&out).expect("readable with a header added");
    out.clear();
    properties.write_without_header("BCC", &mut out);
    PropertiesRef::parse(&out).expect("readable with a header removed");
    let mut encoded = BytesMut::new();
    properties.to_properties().expect("readable").encode(&mut encoded);
    PropertiesRef::parse(&encoded).expect("readable when encoded anew");
}
