//! Coalescing of publisher confirms: as few `basic.ack` and `basic.nack` frames as say the same.

use bytes::BytesMut;
use warren_proto::amqp091::{BasicNack, write_ack};

/// Writes the confirms for publishes that were resolved since the last time. `acks` and `nacks` ascend; every tag below
/// `lowest_unresolved` was resolved now or before. What lies below every unresolved tag and below every tag of the other
/// kind goes as one frame, the rest singly.
pub fn write_confirms(out: &mut BytesMut, channel: u16, acks: &[u64], nacks: &[u64], lowest_unresolved: u64) {
    let first_nack = nacks.first().copied().unwrap_or(u64::MAX);
    let (together, single_acks) = split_below(acks, lowest_unresolved.min(first_nack));
    if let Some(last) = together.last() {
        write_ack(out, channel, *last, together.len() > 1);
    }
    let first_ack = single_acks.first().copied().unwrap_or(u64::MAX);
    let (together, single_nacks) = split_below(nacks, lowest_unresolved.min(first_ack));
    if let Some(last) = together.last() {
        write_nack(out, channel, *last, together.len() > 1);
    }
    for tag in single_acks {
        write_ack(out, channel, *tag, false);
    }
    for tag in single_nacks {
        write_nack(out, channel, *tag, false);
    }
}

fn split_below(tags: &[u64], limit: u64) -> (&[u64], &[u64]) {
    tags.split_at(tags.partition_point(|tag| *tag < limit))
}

fn write_nack(out: &mut BytesMut, channel: u16, delivery_tag: u64, multiple: bool) {
    BasicNack { delivery_tag, multiple, requeue: false }.write_frame(channel, out);
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use warren_proto::amqp091::{FrameLimits, Method};

    use super::*;

    /// (tag, multiple, ack) of each frame.
    fn frames(acks: &[u64], nacks: &[u64], lowest_unresolved: u64) -> Vec<(u64, bool, bool)> {
        let mut out = BytesMut::new();
        write_confirms(&mut out, 1, acks, nacks, lowest_unresolved);
        let frames = FrameLimits::new(0).frames(out.freeze()).map(|frame| {
            match Method::decode(&frame.expect("a frame").payload).expect("a method") {
                Method::BasicAck(ack) => (ack.delivery_tag, ack.multiple, true),
                Method::BasicNack(nack) => (nack.delivery_tag, nack.multiple, false),
                other => panic!("{other:?}"),
            }
        });
        frames.collect()
    }

    #[test]
    fn a_run_is_one_frame() {
        assert_eq!(frames(&[1, 2, 3], &[], 4), [(3, true, true)]);
        assert_eq!(frames(&[1], &[], 2), [(1, false, true)]);
        assert_eq!(frames(&[], &[4, 5], 9), [(5, true, false)]);
    }

    #[test]
    fn what_lies_above_an_unresolved_tag_goes_singly() {
        assert_eq!(frames(&[1, 2, 4, 5], &[], 3), [(2, true, true), (4, false, true), (5, false, true)]);
    }

    #[test]
    fn a_nack_in_between_ends_the_run() {
        assert_eq!(frames(&[1, 2, 4], &[3], 5), [(2, true, true), (3, false, false), (4, false, true)]);
    }

    proptest! {
        #[test]
        fn each_tag_is_resolved_once_and_no_unresolved_tag_is_covered(
            fates in prop::collection::vec(0u8..4, 1..60),
        ) {
            // 0 resolved before, 1 acked now, 2 nacked now, 3 unresolved
            let tags = |fate| (1..).zip(&fates).filter(move |(_, f)| **f == fate).map(|(t, _)| t);
            let (acks, nacks): (Vec<u64>, Vec<u64>) = (tags(1).collect(), tags(2).collect());
            let lowest = tags(3).next().unwrap_or(fates.len() as u64 + 1);
            let mut outstanding: BTreeMap<u64, u8> =
                (1..).zip(fates.iter().copied()).filter(|(_, f)| *f != 0).collect();
            for (tag, multiple, ack) in frames(&acks, &nacks, lowest) {
                let covered: Vec<u64> = match multiple {
                    true => outstanding.range(..=tag).map(|(t, _)| *t).collect(),
                    false => vec![tag],
                };
                for tag in covered {
                    let fate = outstanding.remove(&tag);
                    prop_assert_eq!(fate, Some(if ack { 1 } else { 2 }));
                }
            }
            prop_assert!(outstanding.values().all(|f| *f == 3));
        }
    }
}
