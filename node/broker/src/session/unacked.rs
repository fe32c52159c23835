//! Deliveries of one session that the client has not answered, by delivery tag.

use std::collections::VecDeque;

use warren_proto::ids::GroupId;

/// A delivery that waits for its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unacked {
    /// The queue it came from.
    pub group: GroupId,
    /// The session's number for the consumer (or for the `basic.get`).
    pub consumer: u32,
    /// The queue's number for the delivery.
    pub msg_id: u64,
}

/// Delivery tags from 1, dense, answered in any order.
#[derive(Debug)]
pub struct UnackedDeliveries {
    /// Tag of the first slot.
    base: u64,
    slots: VecDeque<Option<Unacked>>,
    outstanding: usize,
}

impl Default for UnackedDeliveries {
    fn default() -> Self {
        UnackedDeliveries { base: 1, slots: VecDeque::new(), outstanding: 0 }
    }
}

impl UnackedDeliveries {
    /// Takes the next tag for a delivery that must be answered, or for one that is settled already (`None`).
    pub fn deliver(&mut self, delivery: Option<Unacked>) -> u64 {
        let tag = self.base + self.slots.len() as u64;
        match delivery {
            Some(delivery) => {
                self.outstanding += 1;
                self.slots.push_back(Some(delivery));
            }
            None if self.slots.is_empty() => self.base += 1,
            None => self.slots.push_back(None),
        }
        tag
    }

    /// Answers one tag, or with `multiple` all up to it (tag 0: all). `Err` if there is nothing to answer, as AMQP
    /// 0.9.1 wants it: `unknown delivery tag`. Only `multiple` with tag 0 may find nothing.
    pub fn settle(&mut self, tag: u64, multiple: bool, mut each: impl FnMut(Unacked)) -> Result<(), UnknownTag> {
        if !multiple {
            let slot = tag
                .checked_sub(self.base)
                .and_then(|at| usize::try_from(at).ok())
                .and_then(|at| self.slots.get_mut(at))
                .and_then(Option::take)
                .ok_or(UnknownTag(tag))?;
            self.outstanding -= 1;
            each(slot);
            self.trim();
            return Ok(());
        }
        let next = self.base + self.slots.len() as u64;
        if tag >= next {
            return Err(UnknownTag(tag));
        }
        let last = if tag == 0 { next - 1 } else { tag };
        let mut found = false;
        while self.base <= last {
            let Some(slot) = self.slots.pop_front() else { break };
            self.base += 1;
            if let Some(unacked) = slot {
                found = true;
                self.outstanding -= 1;
                each(unacked);
            }
        }
        self.trim();
        if found || tag == 0 { Ok(()) } else { Err(UnknownTag(tag)) }
    }

    /// Deliveries that wait.
    pub fn len(&self) -> usize {
        self.outstanding
    }

    /// Whether nothing waits.
    pub fn is_empty(&self) -> bool {
        self.outstanding == 0
    }

    fn trim(&mut self) {
        while self.slots.front().is_some_and(Option::is_none) {
            self.slots.pop_front();
            self.base += 1;
        }
    }
}

/// The client answers a delivery that it does not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("unknown delivery tag {0}")]
pub struct UnknownTag(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    fn delivery(msg_id: u64) -> Option<Unacked> {
        Some(Unacked { group: GroupId(9), consumer: 0, msg_id })
    }

    fn settle(u: &mut UnackedDeliveries, tag: u64, multiple: bool) -> Result<Vec<u64>, UnknownTag> {
        let mut ids = Vec::new();
        u.settle(tag, multiple, |d| ids.push(d.msg_id)).map(|()| ids)
    }

    #[test]
    fn tags_are_answered_singly_and_up_to_one() {
        let mut u = UnackedDeliveries::default();
        for id in 10..15 {
            u.deliver(delivery(id));
        }
        assert_eq!(settle(&mut u, 2, false), Ok(vec![11]));
        assert_eq!(settle(&mut u, 2, false), Err(UnknownTag(2)));
        assert_eq!(settle(&mut u, 3, true), Ok(vec![10, 12]));
        assert_eq!(settle(&mut u, 0, true), Ok(vec![13, 14]));
        assert!(u.is_empty());
    }

    #[test]
    fn tag_zero_with_multiple_may_find_nothing_and_others_may_not() {
        let mut u = UnackedDeliveries::default();
        assert_eq!(settle(&mut u, 0, true), Ok(vec![]));
        assert_eq!(settle(&mut u, 0, false), Err(UnknownTag(0)));
        assert_eq!(settle(&mut u, 1, true), Err(UnknownTag(1)));
        assert_eq!(u.deliver(None), 1);
        assert_eq!(settle(&mut u, 1, true), Err(UnknownTag(1)));
        assert_eq!(u.deliver(delivery(5)), 2);
        assert_eq!(settle(&mut u, 2, true), Ok(vec![5]));
    }
}
