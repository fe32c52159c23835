use super::*;

#[test]
fn what_is_live_is_what_lies_in_the_queue() {
    let mut m = Member::new(MV2);
    m.publish(6);
    let key = m.attach(&consumer(1, "c"), 4);
    m.settle(key, [1]);
    m.give_back(key, [2], false);
    // Indexes 2..=7 are the messages; 3 is settled.
    assert_eq!(m.queue.live(), [2..=2, 4..=7]);
    m.apply(Command::Purge);
    m.settle(key, 0..99);
    assert_eq!(m.queue.live(), []);
}

#[test]
fn ready_messages_take_a_few_bytes_of_snapshot_each() {
    let mut m = Member::new(MV2);
    for position in 0..10_000u32 {
        let reference = Reference::new(2 + u64::from(position) / 50, (position % 50) as u16);
        let meta = Meta { reference, term: 1, ts_ms: 1, version: MV2 };
        m.queue.apply(&meta, publish(None, 1000), &mut m.fx);
    }
    let bytes = m.queue.encode_state().len();
    assert!(bytes < 2048 + 8 * 10_000, "{bytes}");
}

#[test]
fn a_state_of_an_unknown_format_is_refused() {
    let mut state = Member::new(MV2).queue.encode_state();
    assert!(Queue::decode_state(&state).is_ok());
    state[0] = 9;
    assert!(Queue::decode_state(&state).is_err());
}

#[test]
fn a_state_that_contradicts_itself_is_refused() {
    let mut m = Member::new(MV2);
    m.publish(2);
    let state = m.queue.encode_state();
    assert!(Queue::decode_state(&state[..state.len() - 1]).is_err());
    let mut longer = state.clone();
    longer.push(0);
    assert_eq!(Queue::decode_state(&longer).err(), Some(crate::DecodeError::Trailing));
}

#[test]
fn a_state_whose_lists_are_out_of_order_or_repeat_themselves_is_refused() {
    let mut m = Member::new(MV2);
    for id in [1, 2] {
        m.apply(Command::RegisterEnqueuer { session: session(1, id) });
    }
    let state = m.queue.encode_state();
    let at = |id| {
        let mut bytes = Vec::new();
        crate::wire::put_session(&mut bytes, &session(1, id));
        (state.windows(bytes.len()).position(|window| window == bytes).unwrap(), bytes)
    };
    let ((first, one), (second, two)) = (at(1), at(2));
    let with = |places: &[(usize, &[u8])]| {
        let mut bad = state.clone();
        places.iter().for_each(|(at, bytes)| bad[*at..*at + bytes.len()].copy_from_slice(bytes));
        Queue::decode_state(&bad).err()
    };
    let refused = Some(crate::DecodeError::Value("order of sessions"));
    assert_eq!(with(&[(first, &two), (second, &one)]), refused);
    assert_eq!(with(&[(second, &one)]), refused);
    assert_eq!(with(&[(first, &one)]), None);
}

#[test]
fn a_restored_queue_goes_on_in_turn() {
    let mut m = Member::new(MV2);
    let a = m.attach(&consumer(1, "a"), 9);
    let b = m.attach(&consumer(1, "b"), 9);
    m.publish(1);
    assert_eq!(m.delivered()[0].0, a);
    m.queue = Queue::decode_state(&m.queue.encode_state()).unwrap();
    m.publish(1);
    assert_eq!(m.delivered()[0].0, b);
    m.publish(1);
    assert_eq!(m.delivered()[0].0, a);
    assert_eq!(m.delivered()[0].1.msg_id, 1);
}
