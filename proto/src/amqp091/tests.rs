//! Round trips of whole methods, tables and properties, and bytes that nobody meant.

use bytes::{Bytes, BytesMut};
use proptest::prelude::*;

use super::*;

fn short() -> impl Strategy<Value = ShortStr> {
    "[a-zä.#*-]{0,40}".prop_map(|s| ShortStr::truncated(&s))
}

fn value() -> impl Strategy<Value = FieldValue> {
    let bytes = prop::collection::vec(any::<u8>(), 0..20).prop_map(Bytes::from);
    let leaf = prop_oneof![
        any::<bool>().prop_map(FieldValue::Bool),
        any::<i8>().prop_map(FieldValue::I8),
        any::<u8>().prop_map(FieldValue::U8),
        any::<i16>().prop_map(FieldValue::I16),
        any::<u16>().prop_map(FieldValue::U16),
        any::<i32>().prop_map(FieldValue::I32),
        any::<u32>().prop_map(FieldValue::U32),
        any::<i64>().prop_map(FieldValue::I64),
        (-1e6f32..1e6).prop_map(FieldValue::F32),
        (-1e6f64..1e6).prop_map(FieldValue::F64),
        any::<(u8, u32)>().prop_map(|(scale, value)| FieldValue::Decimal { scale, value }),
        bytes.clone().prop_map(FieldValue::LongStr),
        bytes.prop_map(FieldValue::ByteArray),
        any::<u64>().prop_map(FieldValue::Timestamp),
        Just(FieldValue::Void),
    ];
    leaf.prop_recursive(4, 32, 5, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..5).prop_map(FieldValue::Array),
            prop::collection::vec((short(), inner), 0..5)
                .prop_map(|fields| FieldValue::Table(fields.into_iter().collect())),
        ]
    })
}

fn table() -> impl Strategy<Value = FieldTable> {
    prop::collection::vec((short(), value()), 0..6).prop_map(|fields| fields.into_iter().collect())
}

fn properties() -> impl Strategy<Value = Properties> {
    let text = || prop::option::of(short());
    (
        (text(), text(), prop::option::of(table()), any::<Option<u8>>(), any::<Option<u8>>()),
        (text(), text(), text(), text(), any::<Option<u64>>()),
        (text(), text(), text(), text()),
    )
        .prop_map(|(a, b, c)| Properties {
            content_type: a.0,
            content_encoding: a.1,
            headers: a.2,
            delivery_mode: a.3,
            priority: a.4,
            correlation_id: b.0,
            reply_to: b.1,
            expiration: b.2,
            message_id: b.3,
            timestamp: b.4,
            kind: c.0,
            user_id: c.1,
            app_id: c.2,
            cluster_id: c.3,
        })
}

fn method() -> impl Strategy<Value = Method> {
    let bits = any::<[bool; 5]>();
    prop_oneof![
        (short(), bits, table()).prop_map(|(queue, b, arguments)| {
            QueueDeclare {
                queue,
                passive: b[0],
                durable: b[1],
                exclusive: b[2],
                auto_delete: b[3],
                nowait: b[4],
                arguments,
                ..Default::default()
            }
            .into()
        }),
        (short(), any::<u64>(), any::<bool>(), short(), short()).prop_map(|(tag, n, r, x, k)| {
            BasicDeliver { consumer_tag: tag, delivery_tag: n, redelivered: r, exchange: x, routing_key: k }.into()
        }),
        (any::<u16>(), short(), any::<u16>(), any::<u16>()).prop_map(|(code, text, c, m)| {
            ConnectionClose { reply_code: code, reply_text: text, class_id: c, method_id: m }.into()
        }),
        (any::<u16>(), any::<u32>(), any::<u16>())
            .prop_map(|(c, f, h)| { ConnectionTune { channel_max: c, frame_max: f, heartbeat: h }.into() }),
        (table(), short(), prop::collection::vec(any::<u8>(), 0..30)).prop_map(|(t, m, r)| {
            ConnectionStartOk {
                client_properties: t,
                mechanism: m,
                response: r.into(),
                locale: ShortStr::from_static("en_US"),
            }
            .into()
        }),
        (any::<u64>(), any::<bool>(), any::<bool>())
            .prop_map(|(t, m, r)| { BasicNack { delivery_tag: t, multiple: m, requeue: r }.into() }),
        Just(TxRollbackOk::default().into()),
    ]
}

proptest! {
    #[test]
    fn methods_read_back_as_they_were_written(method in method(), channel: u16) {
        let mut out = BytesMut::new();
        method.write_frame(channel, &mut out);
        let frame = FrameLimits::new(0).decode(&mut out).unwrap().unwrap();
        prop_assert!(out.is_empty());
        prop_assert_eq!(frame.channel, channel);
        prop_assert_eq!(method_ids(&frame.payload), Some(method.ids()));
        prop_assert_eq!(Method::decode(&frame.payload).unwrap(), method);
    }

    #[test]
    fn a_truncated_method_is_an_error_of_its_own_class(method in method()) {
        let mut out = BytesMut::new();
        method.write_frame(1, &mut out);
        let payload = FrameLimits::new(0).decode(&mut out).unwrap().unwrap().payload;
        for cut in 0..payload.len() {
            let error = Method::decode(&payload.slice(..cut)).unwrap_err();
            prop_assert_eq!(error.scope, Scope::Connection);
            if cut >= 4 {
                prop_assert_eq!((error.class_id, error.method_id), method.ids());
            }
        }
    }

    #[test]
    fn properties_read_back_and_replay_verbatim(properties in properties()) {
        let block = properties.to_bytes();
        let read = PropertiesRef::parse(&block).unwrap();
        prop_assert_eq!(read.to_properties().unwrap(), properties.clone());
        prop_assert_eq!(read.priority(), properties.priority);
        prop_assert_eq!(read.timestamp(), properties.timestamp);
        prop_assert_eq!(read.expiration(), properties.expiration.as_deref());
    }

    #[test]
    fn added_headers_replace_their_namesakes_and_leave_the_rest(properties in properties(), n: i64) {
        let block = properties.to_bytes();
        let read = PropertiesRef::parse(&block).unwrap();
        let mut out = BytesMut::new();
        read.write_with_headers(&[("x-acquired-count", n.into())], &mut out);
        let again = PropertiesRef::parse(&out).unwrap();
        let mut expected = properties.clone();
        let mut headers = expected.headers.take().unwrap_or_default();
        headers.remove("x-acquired-count");
        headers.push("x-acquired-count", n);
        expected.headers = Some(headers);
        prop_assert_eq!(again.to_properties().unwrap(), expected.clone());

        let mut back = BytesMut::new();
        again.write_without_header("x-acquired-count", &mut back);
        expected.headers = Some(properties.headers.unwrap_or_default());
        let back = PropertiesRef::parse(&back).unwrap().to_properties().unwrap();
        prop_assert_eq!(back, expected);
    }

    #[test]
    fn a_text_property_can_be_replaced_alone(properties in properties()) {
        let block = properties.to_bytes();
        let mut out = BytesMut::new();
        PropertiesRef::parse(&block).unwrap().write_with_text(Property::ReplyTo, "other", &mut out);
        let mut expected = properties;
        expected.reply_to = Some(ShortStr::from_static("other"));
        prop_assert_eq!(PropertiesRef::parse(&out).unwrap().to_properties().unwrap(), expected);
    }

    #[test]
    fn tables_keep_order_and_duplicates(table in table()) {
        let bytes = table.to_bytes();
        TableRef::new(&bytes).check().unwrap();
        prop_assert_eq!(FieldTable::decode_bare(&bytes).unwrap(), table.clone());
        prop_assert!(table.equivalent(&table.sorted()));
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes: Vec<u8>, ids in 0usize..8) {
        let class = [10u16, 20, 30, 40, 50, 60, 85, 90][ids];
        let mut payload = class.to_be_bytes().to_vec();
        payload.push(0);
        payload.extend(&bytes);
        let _ = Method::decode(&Bytes::from(payload.clone()));
        let _ = PublishRef::decode(&payload);
        let _ = DeliverRef::decode(&payload);
        let _ = TableRef::new(&bytes).check();
        let _ = FieldTable::decode_bare(&bytes);
        let _ = Credentials::from_plain(&bytes);
        let _ = Credentials::from_amqplain(&bytes);
        let _ = ContentHeader::decode(&Bytes::from(bytes.clone()));
        if let Ok(properties) = PropertiesRef::locate(&bytes) {
            let mut out = BytesMut::new();
            properties.write_with_headers(&[("a", true.into())], &mut out);
            properties.write_without_header("a", &mut out);
            let _ = properties.to_properties();
        }
    }
}

fn nested(depth: usize, tag: u8) -> Bytes {
    let mut inner = BytesMut::new();
    for _ in 1..depth {
        let mut outer = BytesMut::new();
        let value = FieldValue::Void;
        if tag == b'F' {
            FieldTable::new().with("n", value).encode_bare(&mut outer);
            outer.truncate(outer.len() - 1);
        }
        outer.extend_from_slice(&[tag]);
        outer.extend_from_slice(&(inner.len() as u32).to_be_bytes());
        outer.extend_from_slice(&inner);
        inner = outer;
    }
    if tag == b'A' {
        let mut outer = BytesMut::from(&[1, b'n'][..]);
        outer.extend_from_slice(&inner);
        inner = outer;
    }
    inner.freeze()
}

#[test]
fn nesting_is_limited_for_tables_and_arrays() {
    for tag in [b'F', b'A'] {
        assert_eq!(TableRef::new(&nested(MAX_DEPTH, tag)).check(), Ok(()));
        for deep in [nested(MAX_DEPTH + 1, tag), nested(50_000, tag)] {
            assert_eq!(TableRef::new(&deep).check(), Err(TableError::TooDeep));
            assert_eq!(FieldTable::decode_bare(&deep), Err(TableError::TooDeep));
        }
    }
}

fn payload(ids: (u16, u16), arguments: &[u8]) -> Bytes {
    let mut out = ids.0.to_be_bytes().to_vec();
    out.extend(ids.1.to_be_bytes());
    out.extend(arguments);
    out.into()
}

#[test]
fn an_unknown_method_is_command_invalid() {
    let error = Method::decode(&payload((60, 99), &[])).unwrap_err();
    assert_eq!((error.code, error.class_id, error.method_id), (ReplyCode::CommandInvalid, 60, 99));
}

#[test]
fn a_bad_table_is_a_syntax_error_and_other_bad_arguments_a_frame_error() {
    let bad_table = [0, 0, 1, b'q', 0, 0, 0, 0, 3, 1, b'a', b'?'];
    let error = Method::decode(&payload(QueueDeclare::IDS, &bad_table)).unwrap_err();
    assert_eq!((error.code, error.class_id), (ReplyCode::SyntaxError, 50));
    let not_utf8 = [1, 0xff];
    let error = Method::decode(&payload(ChannelOpen::IDS, &not_utf8)).unwrap_err();
    assert_eq!((error.code, error.method_id), (ReplyCode::FrameError, 10));
    let trailing = [0, 9];
    let error = Method::decode(&payload(ChannelOpen::IDS, &trailing)).unwrap_err();
    assert_eq!(error.code, ReplyCode::FrameError);
}

#[test]
fn table_types_that_vary_between_brokers_read_as_rabbitmq_reads_them() {
    let bytes = b"\x01as\xff\xfe\x01bL\0\0\0\0\0\0\0\x05\x01ct\x07";
    let table = FieldTable::decode_bare(bytes).unwrap();
    assert_eq!(table.get("a"), Some(&FieldValue::I16(-2)));
    assert_eq!(table.get("b"), Some(&FieldValue::I64(5)));
    assert_eq!(table.get("c"), Some(&FieldValue::Bool(true)));
    assert_eq!(table.to_bytes()[6..].first(), Some(&b'b'));
    assert!(table.to_bytes().contains(&b'l'));
}

#[test]
fn integers_of_any_width_are_equal_and_nothing_else_is_mixed() {
    let five = [FieldValue::I8(5), FieldValue::U16(5), FieldValue::I64(5)];
    assert!(five.iter().all(|a| five.iter().all(|b| a.equivalent(b))));
    assert!(!FieldValue::I8(5).equivalent(&FieldValue::F64(5.0)));
    assert!(!FieldValue::I8(5).equivalent(&"5".into()));
    assert!(!FieldValue::I8(5).equivalent(&FieldValue::Timestamp(5)));
    assert!(FieldValue::F32(0.5).equivalent(&FieldValue::F64(0.5)));
    assert!(!FieldValue::Void.equivalent(&FieldValue::Bool(false)));
}
