//! Credit that receivers grant: AMQP 1.0, section 2.6.7.

use super::*;

fn receiver(m: &mut Member, tag: &str, initial_delivery_count: u32) -> ConsumerKey {
    let Command::Attach(mut attach) = attach(&consumer(1, tag), 0, 0) else { unreachable!() };
    attach.mode = Mode::Credited { initial_delivery_count };
    match m.apply(Command::Attach(attach)) {
        Reply::Attached { key, credit: 0, delivery_count, .. } if delivery_count == initial_delivery_count => key,
        other => panic!("{other:?}"),
    }
}

fn grant(m: &mut Member, key: ConsumerKey, credit: u32, delivery_count: u32, drain: bool) -> CreditReply {
    assert_eq!(m.apply(Command::Credit { consumer: key.into(), credit, delivery_count, drain }), Reply::Ok);
    match m.effects().pop() {
        Some(Effect::CreditReply(reply)) => reply,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_drain_gives_up_what_cannot_be_used() {
    // Acceptance 21: credit 5, three messages, drain.
    let mut m = Member::new(MV2);
    m.publish(3);
    let key = receiver(&mut m, "r", 7);
    let reply = grant(&mut m, key, 5, 7, true);
    assert_eq!(m.delivered().len(), 3);
    assert_eq!((reply.delivery_count, reply.credit, reply.available, reply.drain), (12, 0, 0, true));
    m.publish(1);
    assert_eq!(m.delivered(), []);
}

#[test]
fn delivery_counts_wrap_around() {
    // Acceptance 22: twenty messages one credit at a time from 0xFFFFFFFB on.
    let mut m = Member::new(MV2);
    let key = receiver(&mut m, "r", 0xffff_fffb);
    m.publish(20);
    let mut seen = 0xffff_fffbu32;
    for _ in 0..20 {
        let reply = grant(&mut m, key, 1, seen, false);
        assert_eq!(m.delivered().len(), 1);
        seen = seen.wrapping_add(1);
        assert_eq!((reply.delivery_count, reply.credit), (seen, 0));
    }
    assert_eq!((seen, m.queue.overview().unacked), (15, 20));
}

#[test]
fn deliveries_on_their_way_count_against_a_grant() {
    let mut m = Member::new(MV2);
    m.publish(9);
    let key = receiver(&mut m, "r", 0);
    grant(&mut m, key, 4, 0, false);
    let reply = grant(&mut m, key, 5, 2, false);
    assert_eq!((m.delivered().len(), reply.delivery_count, reply.credit, reply.available), (3, 7, 0, 2));
    assert_eq!(grant(&mut m, key, 1, 2, false).credit, 0);
    assert_eq!(m.delivered(), []);
}

#[test]
fn the_largest_credit_is_no_negative_one() {
    let mut m = Member::new(MV2);
    let key = receiver(&mut m, "r", 3);
    assert_eq!(grant(&mut m, key, u32::MAX, 3, false).credit, u32::MAX);
    m.publish(2);
    assert_eq!(grant(&mut m, key, u32::MAX, 3, false).credit, u32::MAX - 2);
}

#[test]
fn settling_grants_no_credit() {
    let mut m = Member::new(MV2);
    m.publish(3);
    let key = receiver(&mut m, "r", 0);
    grant(&mut m, key, 1, 0, false);
    m.settle(key, [0]);
    assert_eq!(m.delivered(), []);
}

#[test]
fn the_reply_comes_behind_the_deliveries_and_later_deliveries_behind_the_reply() {
    let mut m = Member::new(MV2);
    let key = receiver(&mut m, "r", 0);
    m.publish(3);
    let mut fx = Effects::new();
    let grants = [(1, 0), (2, 1)];
    for (credit, delivery_count) in grants {
        m.index += 1;
        let meta = m.meta();
        m.queue.apply(&meta, Command::Credit { consumer: key.into(), credit, delivery_count, drain: false }, &mut fx);
    }
    let order: Vec<_> = fx
        .iter()
        .map(|effect| match effect {
            Effect::Deliver(deliver) => ("messages", deliver.messages.len() as u32),
            Effect::CreditReply(reply) => ("reply", reply.delivery_count),
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(order, [("messages", 1), ("reply", 1), ("messages", 2), ("reply", 3)]);
}

#[test]
fn one_that_waits_is_told_that_nothing_is_available() {
    let mut m = Member::with(MV2, Config { single_active: true, ..Config::default() });
    receiver(&mut m, "a", 0);
    m.publish(2);
    let key = receiver(&mut m, "b", 0);
    let reply = grant(&mut m, key, 4, 0, false);
    assert_eq!((reply.credit, reply.available, reply.active), (4, 0, false));
    let reply = grant(&mut m, key, 4, 0, true);
    assert_eq!((reply.delivery_count, reply.credit, reply.drain), (4, 0, true));
}

#[test]
fn a_drain_of_more_than_one_apply_hands_out_is_answered_when_all_is_out() {
    for (more, credit) in [(6, 20_000), (10, 16_394)] {
        let mut m = Member::new(MV2);
        m.fill(16_384 + more);
        let key = receiver(&mut m, "r", 0);
        m.apply(Command::Credit { consumer: key.into(), credit, delivery_count: 0, drain: true });
        assert_eq!((m.delivered().len(), m.fx.len()), (16_384, 1));
        m.queue = Queue::decode_state(&m.queue.encode_state()).unwrap();
        m.apply(Command::Continue);
        assert_eq!(m.delivered().len(), more);
        let Some(Effect::CreditReply(reply)) = m.effects().pop() else { panic!() };
        assert_eq!((reply.delivery_count, reply.credit, reply.drain), (credit, 0, true));
        m.apply(Command::Continue);
        assert_eq!(m.effects(), []);
    }
}

#[test]
fn an_unknown_consumer_and_one_that_has_a_prefetch_count_take_no_credit() {
    let mut m = Member::new(MV2);
    let key = m.attach(&consumer(1, "p"), 1);
    for key in [key, ConsumerKey(99)] {
        let command = Command::Credit { consumer: key.into(), credit: 5, delivery_count: 0, drain: true };
        assert_eq!(m.apply(command), Reply::Ok);
        assert_eq!(m.effects(), []);
    }
}

#[test]
fn a_consumer_that_detaches_gives_back_in_order_and_without_a_failure() {
    // Acceptance 24: DETACH with three unsettled; then the same with a lost connection.
    let mut m = Member::new(MV2);
    m.publish(3);
    let key = receiver(&mut m, "r", 0);
    grant(&mut m, key, 3, 0, false);
    m.apply(Command::Remove { consumer: key.into() });
    let key = receiver(&mut m, "s", 0);
    grant(&mut m, key, 3, 0, false);
    assert_eq!(m.delivered_indexes(), [2, 3, 4]);
    assert!(m.delivered().iter().all(|(_, d)| (d.acquired_count, d.delivery_count) == (1, 0)));
    m.apply(down(session(1, 1), SessionLoss::Gone));
    let (_, message) = m.get("g");
    assert_eq!((message.reference.index(), message.acquired_count, message.delivery_count), (2, 2, 1));
}
