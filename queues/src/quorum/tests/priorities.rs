//! In what order messages of different priorities come.

use super::*;

fn publish_at(m: &mut Member, priority: Option<u8>) -> u64 {
    let Command::Enqueue(mut enqueue) = publish(None, 4) else { unreachable!() };
    enqueue.priority = priority;
    assert_eq!(m.apply(Command::Enqueue(enqueue)), Reply::Ok);
    m.index
}

/// Hands out everything to a consumer that takes one at a time: what was published `n`th comes as `n`.
fn consumed(m: &mut Member, published: &[u64]) -> Vec<usize> {
    let key = m.attach(&consumer(1, "c"), 1);
    let mut order = Vec::new();
    while let Some((_, message)) = m.delivered().pop() {
        let index = message.reference.index();
        order.push(published.iter().position(|published| *published == index).unwrap());
        m.settle(key, [message.msg_id]);
    }
    order
}

#[test]
fn version_2_serves_the_highest_priority_first() {
    // Acceptance 9: 0, 4, none, 9, 5, 31, 200 come as 31, 200, 9, 5, 4, none, 0.
    let mut m = Member::new(MV2);
    let priorities = [Some(0), Some(4), None, Some(9), Some(5), Some(31), Some(200)];
    let published = priorities.map(|priority| publish_at(&mut m, priority));
    let by_priority: Vec<_> = m.queue.ready_by_priority().collect();
    assert_eq!(by_priority, [(31, 2), (9, 1), (5, 1), (4, 2), (0, 1)]);
    assert_eq!(m.queue.overview().ready_high, 4);
    assert_eq!(consumed(&mut m, &published), [5, 6, 3, 4, 1, 2, 0]);
}

#[test]
fn version_1_gives_high_messages_two_turns_of_three() {
    // Acceptance 10: six normal ones, then six high ones.
    let mut m = Member::new(MV1);
    let published: Vec<_> = (0..12).map(|n| publish_at(&mut m, Some(if n < 6 { 4 } else { 5 }))).collect();
    assert_eq!(consumed(&mut m, &published), [6, 7, 0, 8, 9, 1, 10, 11, 2, 3, 4, 5]);
}

#[test]
fn version_1_lets_no_younger_normal_message_overtake_a_high_one() {
    let mut m = Member::new(MV1);
    let published: Vec<_> = (0..12).map(|n| publish_at(&mut m, (n < 6).then_some(9))).collect();
    assert_eq!(consumed(&mut m, &published), (0..12).collect::<Vec<_>>());
}

#[test]
fn the_lanes_of_version_1_are_priorities_9_and_4_of_version_2() {
    let mut m = Member::new(MV1);
    let mut published: Vec<_> = [None, Some(31), Some(0), Some(5)].map(|p| publish_at(&mut m, p)).into();
    m.version = MV2;
    published.extend([Some(4), Some(9), Some(10), Some(3)].map(|p| publish_at(&mut m, p)));
    assert_eq!(consumed(&mut m, &published), [6, 1, 3, 5, 0, 2, 4, 7]);
}

#[test]
fn returned_messages_come_before_any_priority() {
    let mut m = Member::new(MV2);
    let low = publish_at(&mut m, Some(0));
    let (key, _) = m.get("g");
    let high = publish_at(&mut m, Some(31));
    m.give_back(key, [0], false);
    assert_eq!(consumed(&mut m, &[low, high]), [0, 1]);
}
