use bytes::BytesMut;

use super::*;

fn encoded(command: &Command, version: MachineVersion) -> Bytes {
    let mut out = BytesMut::new();
    command.encode(version, &mut out);
    out.freeze()
}

#[test]
fn an_enqueue_costs_at_most_forty_bytes_beyond_its_message() {
    let session = SessionRef { node: NodeId(u64::MAX), incarnation: u64::MAX, id: 1 << 34 };
    let command = publish(Some((session, 1 << 40)), 1000);
    let overhead = encoded(&command, MV2).len() - 1003;
    assert!(overhead <= 40, "{overhead}");
}

#[test]
fn settling_one_message_costs_at_most_forty_eight_bytes() {
    let consumer = by_key(Reference::new((1 << 48) - 1, 9).into());
    let command = Command::Settle { consumer, ids: MsgIds::from(1 << 40) };
    let bytes = encoded(&command, MV2).len();
    assert!(bytes <= 48, "{bytes}");
}

#[test]
fn a_message_is_found_in_its_command_without_copying_it() {
    let command = encoded(&publish(Some((session(1, 1), 300)), 100), MV2);
    let message = stored_message(&command).unwrap();
    assert_eq!((message.meta_size(), message.body_size()), (3, 100));
    assert_eq!(message.container().as_ptr(), command[command.len() - 103..].as_ptr());
    assert_eq!(stored_message(&encoded(&Command::Purge, MV2)), None);
    assert_eq!(stored_message(&Bytes::new()), None);
}

#[test]
fn version_1_writes_a_reject_as_a_return_and_cannot_read_the_later_form() {
    let command = Command::Return { consumer: ConsumerKey(5).into(), ids: MsgIds::from(1), failed: true };
    let old = encoded(&command, MV1);
    assert!(matches!(Command::decode(MV1, old), Ok(Command::Return { failed: false, .. })));
    let new = encoded(&command, MV2);
    assert_eq!(Command::decode(MV2, new.clone()), Ok(command));
    assert!(matches!(Command::decode(MV1, new), Err(crate::DecodeError::NotInVersion { .. })));
}

#[test]
fn bytes_that_are_no_command_change_nothing_and_are_not_confirmed() {
    let mut m = Member::new(MV2);
    m.publish(1);
    let before = m.queue.digest();
    m.index += 1;
    for bytes in [&b""[..], b"\xff", b"\x02\xf0abc", b"\x02\x00\x09short", b"\x0c\x00"] {
        let meta = m.meta();
        let reply = m.queue.apply_encoded(&meta, &mut Decoder::new(MV2), Bytes::copy_from_slice(bytes), &mut m.fx);
        assert_eq!(reply, Reply::Unsupported);
    }
    assert_eq!((m.queue.digest(), m.queue.undecodable()), (before, 5));
}

/// Publishes of two sessions in one entry, some in a row.
fn entry_of_publishes(version: MachineVersion) -> (Batch, Vec<Command>) {
    let one = session(1, 1);
    let origins = [(one, 7), (one, 8), (one, 9), (session(2, 1), 10), (one, 10), (one, 12), (one, 13)];
    let mut commands: Vec<Command> = origins.into_iter().map(|origin| publish(Some(origin), 10)).collect();
    // What lies between publishes does not part them; one without an origin neither.
    commands.insert(2, Command::Continue);
    commands.insert(3, publish(None, 10));
    let mut batch = BatchBuilder::new(version);
    for command in &commands {
        Encoder::for_group(version).encode(command, &mut batch).unwrap();
    }
    (Batch::parse(batch.finish(1)).unwrap(), commands)
}

#[test]
fn publishes_that_follow_others_of_their_session_do_not_name_it() {
    let (batch, commands) = entry_of_publishes(MV2);
    let mut decoder = Decoder::new(MV2);
    let read: Vec<Command> = batch.iter().map(|bytes| decoder.decode(bytes).unwrap()).collect();
    assert_eq!(read, commands);
    let sizes: Vec<usize> = batch.iter().map(|bytes| bytes.len()).collect();
    let full = sizes[0];
    let short: Vec<usize> = (0..sizes.len()).filter(|i| sizes[*i] > 1 && sizes[*i] + 15 < full).collect();
    assert_eq!(short, [1, 3, 4, 8], "{sizes:?}");
    // Bodies are found without the others.
    assert!(batch.iter().zip(&commands).all(|(bytes, command)| match command {
        Command::Enqueue(enqueue) => stored_message(&bytes).as_ref() == Some(&enqueue.message),
        _ => stored_message(&bytes).is_none(),
    }));
    // The next entry begins anew.
    assert!(Decoder::new(MV2).decode(batch.get(1).unwrap()).is_err());
}

#[test]
fn version_1_names_the_session_of_every_publish() {
    let (batch, commands) = entry_of_publishes(MV1);
    for (bytes, command) in batch.iter().zip(commands) {
        assert_eq!(Command::decode(MV1, bytes), Ok(command));
    }
    let (new, _) = entry_of_publishes(MV2);
    let mut decoder = Decoder::new(MV1);
    decoder.decode(new.get(0).unwrap()).unwrap();
    let read = decoder.decode(new.get(1).unwrap());
    assert!(matches!(read, Err(crate::DecodeError::NotInVersion { .. })));
}

#[test]
fn a_full_batch_takes_no_more() {
    let mut batch = BatchBuilder::new(MV2);
    let encoder = Encoder::for_group(MV2);
    while let Ok(position) = encoder.encode(&Command::Continue, &mut batch) {
        assert_eq!(usize::from(position) + 1, batch.len());
    }
    assert_eq!(encoder.encode(&Command::Continue, &mut batch), Err(EncodeError::BatchFull));
}
