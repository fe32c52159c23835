use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;
use crate::amqp091::{FieldTable, Properties, ShortStr};

fn message(properties: &Properties) -> Message {
    let block = properties.to_bytes();
    Message::new(&mut BytesMut::new(), "logs", b"a.b", &block, Bytes::from_static(b"body"))
}

fn stored(message: &Message) -> Bytes {
    let mut out = BytesMut::new();
    message.encode(&mut out);
    assert_eq!(out.len(), message.encoded_len());
    out.freeze()
}

#[test]
fn a_stored_message_reads_back_without_a_copy() {
    let before = message(&Properties {
        delivery_mode: Some(2),
        priority: Some(9),
        expiration: Some(ShortStr::from_static("60000")),
        ..Properties::default()
    });
    let data = stored(&before);
    let after = Message::parse(data.clone()).unwrap();
    assert_eq!(after, before);
    assert_eq!(after.body().as_ptr(), data[after.meta_size()..].as_ptr());
    assert_eq!((after.exchange(), after.routing_key_str()), ("logs", "a.b"));
    assert_eq!((after.meta_size(), after.body_size()), (data.len() - 4, 4));
    assert!(after.is_persistent());
    assert_eq!((after.priority(), after.expiration_ms()), (Some(9), Some(60_000)));
    assert_eq!(before.detached(), before);
}

#[test]
fn the_stored_form_is_the_documented_one() {
    let data = stored(&message(&Properties::persistent()));
    assert_eq!(&data[..], b"\x01\x01\x04logs\x00\x03a.b\x00\x00\x00\x03\x10\x00\x02body");
}

#[test]
fn heads_of_one_read_share_an_arena() {
    let mut arena = BytesMut::with_capacity(1024);
    let one = Message::new(&mut arena, "x", b"one", &[0, 0], Bytes::new());
    let two = Message::new(&mut arena, "x", b"two", &[0, 0], Bytes::new());
    assert_eq!((one.routing_key_str(), two.routing_key_str()), ("one", "two"));
    assert_eq!(two.head().as_ptr() as usize, one.head().as_ptr() as usize + one.meta_size());
}

#[test]
fn cc_and_bcc_are_read_and_bcc_is_dropped_before_storing() {
    let keys = |keys: &[&str]| FieldValue::Array(keys.iter().map(|k| (*k).into()).collect());
    let mut cc = vec![FieldValue::I32(1)];
    cc.extend(keys(&["a", "b"]).as_array().unwrap().iter().cloned());
    let headers = FieldTable::new().with("CC", FieldValue::Array(cc)).with("BCC", keys(&["c"])).with("other", true);
    let message = message(&Properties { headers: Some(headers), ..Properties::default() });
    let read = |m: &Message, h| m.keys_in(h).unwrap().map(<[u8]>::to_vec).collect::<Vec<_>>();
    assert_eq!(read(&message, KeysHeader::Cc), [b"a", b"b"]);
    assert_eq!(read(&message, KeysHeader::Bcc), [b"c"]);
    let stored = message.without_bcc();
    assert_eq!(read(&stored, KeysHeader::Cc), [b"a", b"b"]);
    assert!(read(&stored, KeysHeader::Bcc).is_empty());
    assert!(stored.headers().unwrap().get("other").is_some());
    assert_eq!(stored.body(), message.body());
}

#[test]
fn a_cc_header_that_is_no_array_is_an_error() {
    let headers = FieldTable::new().with("CC", "a");
    let message = message(&Properties { headers: Some(headers), ..Properties::default() });
    assert_eq!(message.keys_in(KeysHeader::Cc).err(), Some(KeysNotArray(KeysHeader::Cc)));
    assert!(message.keys_in(KeysHeader::Bcc).is_ok());
}

#[test]
fn counts_are_added_on_redelivery_only() {
    let message = message(&Properties::persistent());
    let delivered = |counts| {
        let mut out = BytesMut::new();
        message.write_delivered_properties(counts, &mut out);
        out.freeze()
    };
    assert_eq!(&delivered(DeliveryCounts::default())[..], message.property_block());
    let block = delivered(DeliveryCounts { acquired: 3, failed: Some(1) });
    let properties = PropertiesRef::parse(&block).unwrap();
    assert!(properties.is_persistent());
    let headers = properties.headers().unwrap().to_table().unwrap();
    let expected = FieldTable::new().with("x-acquired-count", 3).with("x-delivery-count", 1);
    assert_eq!(headers, expected);
}

#[test]
fn reply_to_and_address_can_be_rewritten() {
    let message = message(&Properties::persistent());
    let rewritten = message.with_reply_to("q").readdressed("dlx", b"k");
    assert_eq!(rewritten.properties().reply_to(), Some("q"));
    assert_eq!((rewritten.exchange(), rewritten.routing_key()), ("dlx", &b"k"[..]));
    assert!(rewritten.is_persistent());
    assert_eq!(rewritten.body(), message.body());
}

#[test]
fn a_dead_lettered_message_stays_known_as_one() {
    let block = Properties::persistent().to_bytes();
    let message = Message::dead_lettered("dlx", b"k", &block, Bytes::from_static(b"body"));
    assert!(message.is_dead_lettered());
    let read = Message::parse(stored(&message)).unwrap();
    assert_eq!(read, message);
    assert!(read.readdressed("other", b"k").with_headers(&[("a", FieldValue::Bool(true))]).is_dead_lettered());
    assert!(!self::message(&Properties::default()).is_dead_lettered());
}

#[test]
fn consumers_do_not_see_who_else_got_a_message() {
    let keys = FieldValue::Array(vec!["hidden".into()]);
    let headers = FieldTable::new().with("BCC", keys).with("app", FieldValue::I64(5));
    let block = Properties { headers: Some(headers), ..Properties::default() }.to_bytes();
    let message = Message::with_bcc(&mut BytesMut::new(), "ex", b"k", &block, Bytes::from_static(b"body"));
    let message = Message::parse(stored(&message)).unwrap();
    assert_eq!(message.keys_in(KeysHeader::Bcc).unwrap().collect::<Vec<_>>(), [b"hidden"]);
    for acquired in [0, 2] {
        let mut out = BytesMut::new();
        message.write_delivered_properties(DeliveryCounts { acquired, failed: None }, &mut out);
        let shown = PropertiesRef::parse(&out).unwrap().headers().unwrap().to_table().unwrap();
        assert!(shown.get("BCC").is_none());
        assert_eq!(shown.get("app").and_then(FieldValue::as_int), Some(5));
        assert_eq!(shown.get("x-acquired-count").is_some(), acquired > 0);
    }
}

#[test]
fn forms_of_other_binaries_are_refused() {
    let data = stored(&message(&Properties::default()));
    let with = |at: usize, byte: u8| {
        let mut data = data.to_vec();
        data[at] = byte;
        Message::parse(data.into())
    };
    assert_eq!(with(0, 4), Err(MessageError::Format(4)));
    assert_eq!(with(0, 0), Err(MessageError::Format(0)));
    assert_eq!(with(1, 9), Err(MessageError::Protocol(9)));
    assert_eq!(with(3, 0xff), Err(MessageError::Head));
    for cut in 0..data.len() - 4 {
        assert!(Message::parse(data.slice(..cut)).is_err());
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_never_panic(mut bytes: Vec<u8>, framed: bool) {
        if framed {
            bytes.splice(0..0, [1, 1, 0, 0, 1, b'k', 0, 0, 0, bytes.len().min(200) as u8]);
        }
        if let Ok(message) = Message::parse(Bytes::from(bytes.clone())) {
            prop_assert_eq!(&stored(&message)[..], &bytes[..]);
            let _ = (message.exchange(), message.routing_key_str(), message.expiration_ms());
            let _ = message.keys_in(KeysHeader::Cc).map(Iterator::count);
            let _ = message.without_bcc().with_reply_to("r").detached();
        }
    }

    #[test]
    fn a_damaged_message_is_refused_or_read(
        damage in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..4), cut: prop::sample::Index
    ) {
        let keys = FieldValue::Array([FieldValue::from("a"), FieldValue::from("b")].into_iter().collect());
        let headers = FieldTable::new().with("CC", keys.clone()).with("BCC", keys).with("n", 7);
        let properties = Properties {
            headers: Some(headers),
            expiration: Some(ShortStr::from_static("60000")),
            ..Properties::persistent()
        };
        let mut bytes = stored(&message(&properties)).to_vec();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        bytes.truncate(cut.index(2 * bytes.len()));
        if let Ok(message) = Message::parse(Bytes::from(bytes.clone())) {
            prop_assert_eq!(&stored(&message)[..], &bytes[..]);
            let _ = (message.exchange(), message.routing_key_str(), message.expiration_ms(), message.priority());
            let _ = message.keys_in(KeysHeader::Cc).map(Iterator::count);
            let _ = message.without_bcc().with_reply_to("r").detached();
        }
    }

    #[test]
    fn any_head_reads_back(exchange in "[a-z]{0,255}", key: Vec<u8>, body: Vec<u8>) {
        let message = Message::new(&mut BytesMut::new(), &exchange, &key, &[0, 0], body.into());
        let again = Message::parse(stored(&message)).unwrap();
        prop_assert_eq!(&again, &message);
        prop_assert_eq!(again.exchange(), exchange);
        prop_assert_eq!(again.routing_key(), &key[..]);
    }
}
