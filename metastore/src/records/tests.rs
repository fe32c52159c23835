use proptest::collection::vec;
use proptest::prelude::*;
use serde_json::{Value, json};
use warren_proto::amqp091::FieldTable;
use warren_proto::ids::{GroupId, Incarnation, MemberUid, NodeId, Reference};

use super::*;
use crate::machine::{Outcome, Write};
use crate::random_writes::Log;
use crate::tree::{AbortCode, DeleteReason, MetaError, Payload};

fn broker() -> Log {
    let mut log = Log::default();
    done(log.write(&User::with_password("guest", b"guest", [1, 2, 3, 4], vec!["administrator".into()]).create()));
    done(log.write(&Vhost::named("/").create(Some("guest"))));
    log
}

fn done(outcome: Outcome) -> Outcome {
    assert!(outcome.reply.is_ok(), "{:?}", outcome.reply);
    outcome
}

fn abort(outcome: &Outcome) -> AbortCode {
    match outcome.reply {
        Err(MetaError::Aborted { code }) => code,
        ref other => panic!("{other:?}"),
    }
}

fn queue(name: &str) -> Queue {
    Queue { vhost: "/".into(), name: name.into(), durable: true, group: GroupId(7), ..Queue::default() }
}

fn binding(source: &str, destination: &str, key: &str) -> Binding {
    let of = BindingNode {
        vhost: "/".into(),
        source: source.into(),
        destination_kind: DestinationKind::Queue,
        destination: destination.into(),
        key: key.as_bytes().into(),
    };
    Binding::new(&of, &[]).unwrap()
}

fn policy(name: &str) -> Policy {
    let Value::Object(definition) = json!({"max-length": 5, "dead-letter-exchange": "d"}) else { unreachable!() };
    Policy {
        vhost: "/".into(),
        name: name.into(),
        pattern: "^a".into(),
        apply_to: ApplyTo::QuorumQueues,
        priority: -3,
        definition,
        ..Policy::default()
    }
}

fn auto_delete(name: &str) -> Exchange {
    Exchange { auto_delete: true, ..Exchange::named("/", name, ExchangeKind::Topic) }
}

#[test]
fn records_survive_their_encoding_and_keep_fields_that_they_do_not_know() {
    let queue = Queue {
        exclusive_owner: Some(SessionOwner { node: NodeId(1), incarnation: 2, connection: 3 }),
        members: vec![Member { uid: MemberUid(4), node: NodeId(5), node_incarnation: Incarnation(6), joined: true }],
        arguments: FieldTable::new().with("x-max-length", 5i64).to_bytes()[..].into(),
        created_ms: 8,
        leader: Some(NodeId(5)),
        machine_version: 2,
        kind: QueueKind::Quorum,
        ..queue("q")
    };
    assert_eq!(Queue::decode(&queue.encode()).unwrap(), queue);
    let exchange = Exchange { internal: true, user: "guest".into(), ..auto_delete("x") };
    assert_eq!(Exchange::decode(&exchange.encode()).unwrap(), exchange);

    let mut newer = exchange.encode().bytes.to_vec();
    newer.extend_from_slice(&[0xa2, 0x06, 0x02, b'h', b'i']);
    let newer = Payload { bytes: newer.into(), ..exchange.encode() };
    let read = Exchange::decode(&newer).unwrap();
    assert_eq!(read.name, exchange.name);
    assert_eq!(read.encode(), newer);
}

#[test]
fn octets_that_are_no_record_are_invalid_rather_than_absent() {
    assert!(Queue::decode(&auto_delete("x").encode()).is_err());
    let broken = Payload { bytes: vec![0xff, 0xff].into(), ..queue("q").encode() };
    assert_eq!(Queue::decode(&broken), Err(Invalid { what: "queue" }));
}

/// Refused, or a record that is written in its canonical form.
fn read<R: Record>(payload: &Payload) {
    if let Ok(record) = R::decode(payload) {
        let written = record.encode();
        assert_eq!(R::decode(&written).unwrap().encode(), written);
    }
}

proptest! {
    #[test]
    fn damaged_records_are_refused_or_read(
        which in 0usize..11, damage in vec((any::<prop::sample::Index>(), any::<u8>()), 0..4), rest: Vec<u8>
    ) {
        let owner = SessionOwner { node: NodeId(1), incarnation: 2, connection: 3 };
        let member = Member { uid: MemberUid(4), node: NodeId(5), node_incarnation: Incarnation(6), joined: true };
        let mut payload = [
            Queue { exclusive_owner: Some(owner), members: vec![member; 3], ..queue("q") }.encode(),
            Exchange { arguments: vec![1, b'a', b't', 1].into(), ..auto_delete("x") }.encode(),
            User::with_password("u", b"secret", [1, 2, 3, 4], vec!["monitoring".into()]).encode(),
            Vhost { tags: vec!["t".into()], ..Vhost::named("v") }.encode(),
            Permission::full("u", "v").encode(),
            TopicPermission { user: "u".into(), read: "r".into(), ..TopicPermission::default() }.encode(),
            Node { name: "n@h".into(), id: NodeId(7), ..Node::default() }.encode(),
            policy("p").encode(),
            OperatorPolicy(policy("p")).encode(),
            Parameter { name: "x".into(), value: json!({"a": [1, 0.1]}), ..Parameter::default() }.encode(),
            GlobalParameter { value: json!([true]), ..GlobalParameter::default() }.encode(),
        ][which].clone();
        let mut bytes = [&payload.bytes[..], &rest].concat();
        for (at, byte) in damage {
            let at = at.index(bytes.len());
            bytes[at] = byte;
        }
        payload.bytes = bytes.into();
        read::<Queue>(&payload);
        read::<Exchange>(&payload);
        read::<User>(&payload);
        read::<Vhost>(&payload);
        read::<Permission>(&payload);
        read::<TopicPermission>(&payload);
        read::<Node>(&payload);
        read::<Policy>(&payload);
        read::<OperatorPolicy>(&payload);
        read::<Parameter>(&payload);
        read::<GlobalParameter>(&payload);
    }
}

#[test]
fn a_vhost_is_born_with_its_exchanges_and_its_creators_permissions_in_one_command() {
    let log = broker();
    let tree = log.machine.tree();
    let names: Vec<_> = Exchange::list(&tree, "/").unwrap().iter().map(|x| x.name.to_string()).collect();
    let mut expected: Vec<_> = DEFAULT_EXCHANGES.iter().map(|(name, ..)| (*name).to_owned()).collect();
    expected.sort();
    assert_eq!(names, expected);
    assert!(Exchange::get(&tree, "/", "amq.rabbitmq.trace").unwrap().unwrap().internal);
    let permission = Permission::get(&tree, "/", "guest").unwrap().unwrap();
    assert_eq!((&*permission.configure, &*permission.write, &*permission.read), (".*", ".*", ".*"));
    let vhost = Vhost::get(&tree, "/").unwrap().unwrap();
    assert_eq!(vhost.create_revision, permission.create_revision);
}

#[test]
fn nothing_is_declared_in_a_vhost_that_is_not_there() {
    let mut log = broker();
    let missing = Queue { vhost: "gone".into(), ..queue("q") };
    assert_eq!(abort(&log.write(&missing.create_or_get())), AbortCode::NoSuchVhost);
    let missing = Exchange { vhost: "gone".into(), ..auto_delete("x") };
    assert_eq!(abort(&log.write(&missing.create_or_get())), AbortCode::NoSuchVhost);
    assert_eq!(abort(&log.write(&Permission::full("guest", "gone").set())), AbortCode::NoSuchVhost);
    assert_eq!(abort(&log.write(&Permission::full("nobody", "/").set())), AbortCode::NoSuchUser);
    assert_eq!(Vhost::list(&log.machine.tree()).unwrap().len(), 1);
}

#[test]
fn a_binding_names_the_side_that_is_missing() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    assert_eq!(abort(&log.write(&binding("nowhere", "q", "k").put())), AbortCode::NoSuchExchange);
    assert_eq!(abort(&log.write(&binding("amq.topic", "none", "k").put())), AbortCode::NoSuchDestination);
    assert_eq!(abort(&log.write(&binding("nowhere", "none", "k").put())), AbortCode::NoSuchSourceAndDestination);
    assert!(done(log.write(&binding("amq.topic", "q", "").put())).reply.unwrap().changed());
    assert!(!done(log.write(&binding("amq.topic", "q", "").put())).reply.unwrap().changed());
    assert_eq!(Binding::list(&log.machine.tree(), "/").unwrap(), [binding("amq.topic", "q", "")]);
}

#[test]
fn deleting_a_queue_takes_its_bindings_and_the_auto_delete_exchanges_they_held() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    done(log.write(&auto_delete("x").create_or_get()));
    for write in [binding("x", "q", "a").put(), binding("x", "q", "b").put(), binding("amq.topic", "q", "c").put()] {
        done(log.write(&write));
    }
    let stored = Queue::get(&log.machine.tree(), "/", "q").unwrap().unwrap();
    let outcome = done(log.write(&Queue::delete("/", "q", stored.create_revision)));
    let tree = log.machine.tree();
    assert!(Binding::list(&tree, "/").unwrap().is_empty());
    assert_eq!(Exchange::get(&tree, "/", "x").unwrap(), None);
    assert!(Exchange::get(&tree, "/", "amq.topic").unwrap().is_some());
    let mut gone = Vec::new();
    for change in record_changes(&outcome.changes) {
        gone.push(match change {
            RecordChange::Queue(delta) => delta.removed().unwrap().name.to_string(),
            RecordChange::Exchange(delta) => delta.removed().unwrap().name.to_string(),
            RecordChange::Bindings { of, new, .. } => {
                assert!(new.is_empty());
                String::from_utf8(of.key.to_vec()).unwrap()
            }
            other => panic!("{other:?}"),
        });
    }
    assert_eq!(gone, ["c", "x", "a", "b", "q"]);
    assert_eq!(log.machine.check_invariants(), Ok(()));
}

#[test]
fn a_late_clean_up_does_not_remove_a_queue_declared_again() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    let first = Queue::get(&log.machine.tree(), "/", "q").unwrap().unwrap().create_revision;
    done(log.write(&Queue::delete("/", "q", first)));
    done(log.write(&queue("q").create_or_get()));
    assert!(!done(log.write(&Queue::delete("/", "q", first))).reply.unwrap().changed());
    assert!(Queue::get(&log.machine.tree(), "/", "q").unwrap().is_some());
}

#[test]
fn an_auto_delete_exchange_stays_until_its_last_binding_went() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    done(log.write(&auto_delete("x").create_or_get()));
    assert!(Exchange::get(&log.machine.tree(), "/", "x").unwrap().is_some());
    done(log.write(&binding("x", "q", "a").put()));
    done(log.write(&binding("x", "q", "b").put()));
    done(log.write(&binding("x", "q", "a").delete()));
    assert!(Exchange::get(&log.machine.tree(), "/", "x").unwrap().is_some());
    let outcome = done(log.write(&binding("x", "q", "b").delete()));
    assert_eq!(Exchange::get(&log.machine.tree(), "/", "x").unwrap(), None);
    let reasons: Vec<_> = outcome.changes.iter().filter_map(|(_, change)| change.delete_reason).collect();
    assert!(reasons.contains(&DeleteReason::KeepWhile));
}

#[test]
fn bindings_that_differ_in_their_arguments_are_separate_and_the_order_of_fields_is_not_a_difference() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    let of = binding("amq.headers", "q", "k").node();
    let new = |table: FieldTable| Binding::new(&of, &table.to_bytes()).unwrap();
    let one = new(FieldTable::new().with("b", 1i64).with("a", 2i64));
    let same = new(FieldTable::new().with("a", 2i64).with("b", 1i64));
    let other = new(FieldTable::new().with("a", 3i64));
    assert_eq!(one, same);
    done(log.write(&one.put()));
    assert!(!done(log.write(&same.put())).reply.unwrap().changed());
    done(log.write(&other.put()));
    done(log.write(&one.delete()));
    assert_eq!(Binding::list(&log.machine.tree(), "/").unwrap(), std::slice::from_ref(&other));
    assert!(other.exists(&log.machine.tree()).unwrap());
    done(log.write(&other.delete()));
    assert!(Binding::list(&log.machine.tree(), "/").unwrap().is_empty());
}

#[test]
fn an_exchange_in_use_is_kept_if_asked() {
    let mut log = broker();
    done(log.write(&queue("q").create_or_get()));
    done(log.write(&Exchange::named("/", "x", ExchangeKind::Direct).create_or_get()));
    done(log.write(&binding("x", "q", "k").put()));
    let delete = |mode| Exchange::delete("/", "x", mode);
    assert_eq!(abort(&log.write(&delete(DeleteExchange::IfUnused))), AbortCode::InUse);
    done(log.write(&delete(DeleteExchange::Always)));
    assert_eq!(abort(&log.write(&delete(DeleteExchange::Always))), AbortCode::NoSuchExchange);
    assert!(Binding::list(&log.machine.tree(), "/").unwrap().is_empty());
}

#[test]
fn a_user_goes_with_its_permissions_everywhere_and_an_update_needs_the_state_that_was_read() {
    let mut log = broker();
    done(log.write(&Vhost::named("w").create(Some("guest"))));
    let user = User::get(&log.machine.tree(), "guest").unwrap().unwrap();
    assert!(user.verify(b"guest") && !user.verify(b"") && !user.verify(b"guess"));
    let mut changed = user.record.clone();
    changed.set_password(b"better", [9, 9, 9, 9]);
    done(log.write(&changed.update(user.mod_revision)));
    let stale = log.write(&user.record.update(user.mod_revision));
    assert!(matches!(stale.reply, Err(MetaError::MismatchingNode { .. })));
    assert!(User::get(&log.machine.tree(), "guest").unwrap().unwrap().verify(b"better"));
    done(log.write(&User::delete("guest")));
    let tree = log.machine.tree();
    assert!(Permission::list(&tree, "/").unwrap().is_empty() && Permission::list(&tree, "w").unwrap().is_empty());
}

#[test]
fn a_topic_permission_waits_for_its_exchange_and_goes_with_it() {
    let mut log = broker();
    let permission =
        TopicPermission { user: "guest".into(), vhost: "/".into(), exchange: "x".into(), ..TopicPermission::default() };
    done(log.write(&permission.set()));
    assert_eq!(Exchange::get(&log.machine.tree(), "/", "x").unwrap(), None);
    assert_eq!(Exchange::list(&log.machine.tree(), "/").unwrap().len(), DEFAULT_EXCHANGES.len());
    let created = done(log.write(&auto_delete("x").create_or_get()));
    assert_eq!(Exchange::created(created.reply).unwrap(), CreateOrGet::Created);
    assert!(TopicPermission::get(&log.machine.tree(), "/", "x", "guest").unwrap().is_some());
    done(log.write(&Exchange::delete("/", "x", DeleteExchange::Always)));
    assert_eq!(TopicPermission::get(&log.machine.tree(), "/", "x", "guest").unwrap(), None);
}

#[test]
fn names_of_any_octets_and_lengths_lie_beside_each_other() {
    let mut log = broker();
    let long = "é".repeat(125);
    for name in [long.as_str(), "a/b", ".", "*", "queue"] {
        done(log.write(&queue(name).create_or_get()));
        done(log.write(&binding("amq.topic", name, "").put()));
    }
    let tree = log.machine.tree();
    assert_eq!(Queue::list(&tree, "/").unwrap().len(), 5);
    assert_eq!(Binding::list_from(&tree, "/", "amq.topic").unwrap().len(), 5);
    assert!(Queue::get(&tree, "/", &long).unwrap().is_some());
}

#[test]
fn policies_and_parameters_lie_in_their_vhost_and_go_with_it() {
    let mut log = broker();
    let mut parameter =
        Parameter { vhost: "/".into(), component: "c".into(), name: "n".into(), ..Parameter::default() };
    parameter.value = json!({"a": [1, "x", null]});
    done(log.write(&policy("b").set()));
    done(log.write(&policy("a").set()));
    done(log.write(&OperatorPolicy(policy("a")).set()));
    let outcome = done(log.write(&parameter.set()));
    assert!(matches!(record_changes(&outcome.changes).collect::<Vec<_>>()[..], [RecordChange::Parameter(_)]));
    let tree = log.machine.tree();
    let names: Vec<_> = Policy::list(&tree, "/").unwrap().iter().map(|policy| policy.name.to_string()).collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(Policy::get(&tree, "/", "a").unwrap().unwrap().record, policy("a"));
    assert_eq!(OperatorPolicy::list(&tree, "/").unwrap()[0].record, OperatorPolicy(policy("a")));
    let parameters = Parameter::list(&tree, "/").unwrap();
    assert_eq!(parameters.iter().map(|p| &p.record).collect::<Vec<_>>(), [&parameter]);
    done(log.write(&Policy::clear("/", "a")));
    done(log.write(&Policy::clear("/", "a")));
    assert_eq!(Policy::list(&log.machine.tree(), "/").unwrap().len(), 1);
    let elsewhere = Policy { vhost: "w".into(), ..policy("a") };
    assert_eq!(abort(&log.write(&elsewhere.set())), AbortCode::NoSuchVhost);
    let vhost = Vhost::get(&log.machine.tree(), "/").unwrap().unwrap();
    done(log.write(&Vhost::delete("/", vhost.mod_revision)));
    let tree = log.machine.tree();
    assert!(Policy::list(&tree, "/").unwrap().is_empty() && Parameter::list(&tree, "/").unwrap().is_empty());
}

#[test]
fn global_parameters_have_any_json_value_and_texts_are_stored_as_they_were() {
    let mut log = broker();
    done(log.write(&Cluster::set_name("c")));
    assert_eq!(GlobalParameter::get(&log.machine.tree(), "cluster_name").unwrap().unwrap().value, json!("c"));
    assert_eq!(GlobalParameter { value: json!("c"), ..GlobalParameter::default() }.encode().bytes[..], *b"\x0a\x01c");
    for value in [json!({"a": 1}), json!(null), json!(""), json!([1.5])] {
        done(log.write(&GlobalParameter::set("p", value.clone())));
        let all = GlobalParameter::list(&log.machine.tree()).unwrap();
        let read: Vec<_> = all.iter().map(|(name, stored)| (name.as_str(), &stored.value)).collect();
        assert_eq!(read, [("cluster_name", &json!("c")), ("p", &value)]);
    }
    done(log.write(&GlobalParameter::clear("p")));
    assert_eq!(GlobalParameter::get(&log.machine.tree(), "p").unwrap(), None);
}

#[test]
fn a_vhost_changed_since_it_was_read_is_not_deleted() {
    let mut log = broker();
    let read = Vhost::get(&log.machine.tree(), "/").unwrap().unwrap();
    let protected = Vhost { protected_from_deletion: true, ..read.record.clone() };
    done(log.write(&protected.update(read.mod_revision)));
    assert!(!done(log.write(&Vhost::delete("/", read.mod_revision))).reply.unwrap().changed());
    let now = Vhost::get(&log.machine.tree(), "/").unwrap().unwrap();
    assert!(now.protected_from_deletion);
    done(log.write(&Vhost::delete("/", now.mod_revision)));
    assert!(Exchange::list(&log.machine.tree(), "/").unwrap().is_empty());
}

#[test]
fn the_cluster_gets_its_id_once() {
    let mut log = broker();
    let set = |log: &mut Log, write: &Write| log.write(write).reply.is_ok();
    assert!(set(&mut log, &Cluster::create_internal_id("one")));
    assert!(!set(&mut log, &Cluster::create_internal_id("two")));
    assert!(set(&mut log, &Cluster::set_name("a")) && set(&mut log, &Cluster::set_name("b")));
    let tree = log.machine.tree();
    assert_eq!(Cluster::internal_id(&tree).unwrap().as_deref(), Some("one"));
    assert_eq!(Cluster::name(&tree).unwrap().as_deref(), Some("b"));
}

#[test]
fn nodes_are_listed_by_name() {
    let mut log = broker();
    for name in ["b@h", "a@h"] {
        let node =
            Node { name: name.into(), id: NodeId::of_name(name), incarnation: Incarnation(1), ..Node::default() };
        done(log.write(&node.put()));
    }
    let names: Vec<_> = Node::list(&log.machine.tree()).unwrap().iter().map(|n| n.name.to_string()).collect();
    assert_eq!(names, ["a@h", "b@h"]);
    done(log.write(&Node::delete("a@h")));
    assert_eq!(Node::list(&log.machine.tree()).unwrap().len(), 1);
    let _: Reference = log.machine.applied();
}

#[test]
fn a_node_that_came_back_since_its_record_was_read_is_not_deleted() {
    let mut log = broker();
    let node = |incarnation| Node { name: "a@h".into(), incarnation: Incarnation(incarnation), ..Node::default() };
    let stored = |log: &Log| Node::get(&log.machine.tree(), "a@h").unwrap();
    done(log.write(&node(1).put()));
    let read = stored(&log).unwrap();
    done(log.write(&node(2).put()));
    done(log.write(&Node::delete_unchanged("a@h", read.mod_revision)));
    let now = stored(&log).expect("the node's new life stays");
    assert_eq!(now.incarnation, Incarnation(2));
    done(log.write(&Node::delete_unchanged("a@h", now.mod_revision)));
    assert_eq!(stored(&log), None);
    // To delete nothing is no error.
    done(log.write(&Node::delete_unchanged("a@h", now.mod_revision)));
}

#[test]
fn a_node_without_a_maintenance_record_is_regular_and_changes_of_it_are_told() {
    let mut log = broker();
    assert_eq!(NodeMaintenance::status(&log.machine.tree(), "a@h").unwrap(), MaintenanceStatus::Regular);
    done(log.write(&NodeMaintenance::new("b@h", MaintenanceStatus::Drained).put()));
    let outcome = done(log.write(&NodeMaintenance::new("a@h", MaintenanceStatus::Draining).put()));
    let told: Vec<_> = record_changes(&outcome.changes).collect();
    let [RecordChange::Maintenance(delta)] = &told[..] else { panic!("{told:?}") };
    assert_eq!(delta.created().unwrap().status, MaintenanceStatus::Draining);
    let listed = NodeMaintenance::list(&log.machine.tree()).unwrap();
    let listed: Vec<_> = listed.iter().map(|stored| (&*stored.node, stored.status.as_str())).collect();
    assert_eq!(listed, [("a@h", "draining"), ("b@h", "drained")]);
    done(log.write(&NodeMaintenance::delete("b@h")));
    assert_eq!(NodeMaintenance::status(&log.machine.tree(), "b@h").unwrap(), MaintenanceStatus::Regular);
    let newer = NodeMaintenance::new("c@h", MaintenanceStatus::Other(9));
    assert_eq!(NodeMaintenance::decode(&newer.encode()).unwrap(), newer);
}

#[test]
fn feature_flags_are_created_once_and_replaced_only_by_who_read_the_newest() {
    let mut log = broker();
    assert_eq!(FeatureFlags::list(&log.machine.tree()).unwrap(), [""; 0]);
    let flags = |names: &[&str]| FeatureFlags {
        enabled: names.iter().map(|name| (*name).to_owned()).collect(),
        ..FeatureFlags::default()
    };
    done(log.write(&flags(&["b", "a"]).create()));
    let first = FeatureFlags::get(&log.machine.tree()).unwrap().unwrap();
    assert!(matches!(log.write(&flags(&[]).create()).reply, Err(MetaError::MismatchingNode { .. })));
    let outcome = done(log.write(&flags(&["a", "b", "c"]).update(first.mod_revision)));
    assert!(matches!(record_changes(&outcome.changes).next(), Some(RecordChange::FeatureFlags(_))));
    assert!(matches!(log.write(&flags(&[]).update(first.mod_revision)).reply, Err(MetaError::MismatchingNode { .. })));
    assert_eq!(FeatureFlags::list(&log.machine.tree()).unwrap(), ["a", "b", "c"]);
    done(log.write(&FeatureFlags::delete()));
    assert_eq!(FeatureFlags::get(&log.machine.tree()).unwrap(), None);
}
