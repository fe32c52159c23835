//! Stored records of arbitrary bytes: refused, or a record that is written in its canonical form.

#![no_main]

use libfuzzer_sys::fuzz_target;
use warren_metastore::records::{
    Exchange, FeatureFlags, GlobalParameter, Node, NodeMaintenance, OperatorPolicy, Parameter, Permission, Policy,
    Queue, Record, TopicPermission, User, Vhost,
};
use warren_metastore::tree::Payload;

fn read<R: Record>(schema: u16, bytes: &[u8]) {
    let payload = Payload { kind: R::KIND, schema, bytes: bytes.into() };
    if let Ok(record) = R::decode(&payload) {
        let written = record.encode();
        let Ok(again) = R::decode(&written) else {
            panic!("a record that was written can be read");
        };
        assert_eq!(again.encode(), written);
    }
}

fuzz_target!(|data: &[u8]| {
    let [kind, schema, bytes @ ..] = data else { return };
    let schema = u16::from(*schema);
    match kind % 13 {
        0 => read::<Exchange>(schema, bytes),
        1 => read::<Node>(schema, bytes),
        2 => read::<Permission>(schema, bytes),
        3 => read::<Queue>(schema, bytes),
        4 => read::<TopicPermission>(schema, bytes),
        5 => read::<User>(schema, bytes),
        6 => read::<Policy>(schema, bytes),
        7 => read::<OperatorPolicy>(schema, bytes),
        8 => read::<Parameter>(schema, bytes),
        9 => read::<GlobalParameter>(schema, bytes),
        10 => read::<FeatureFlags>(schema, bytes),
        11 => read::<NodeMaintenance>(schema, bytes),
        _ => read::<Vhost>(schema, bytes),
    }
});
