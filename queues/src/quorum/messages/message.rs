//! One message outside the packed lanes.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use warren_proto::ids::Reference;

/// What consumers noted on a message: opaque values by name. Shared, since it goes out with every delivery.
pub type Annotations = Arc<BTreeMap<Bytes, Bytes>>;

/// A point in time in ms, or none, in six bytes.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub(in crate::quorum) struct When([u8; 6]);

impl When {
    pub const NEVER: When = When([0; 6]);
    const MAX: u64 = (1 << 48) - 1;

    /// The time, or the nearest that can be said.
    pub fn at(ms: u64) -> Self {
        let [a, b, c, d, e, f, ..] = ms.clamp(1, Self::MAX).to_le_bytes();
        When([a, b, c, d, e, f])
    }

    pub fn get(self) -> Option<u64> {
        let [a, b, c, d, e, f] = self.0;
        Some(u64::from_le_bytes([a, b, c, d, e, f, 0, 0])).filter(|ms| *ms != 0)
    }

    /// Whether it has come.
    pub fn is_past(self, now_ms: u64) -> bool {
        self.get().is_some_and(|at| at <= now_ms)
    }
}

impl From<Option<u64>> for When {
    fn from(ms: Option<u64>) -> Self {
        ms.map_or(When::NEVER, When::at)
    }
}

impl std::fmt::Debug for When {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.get().fmt(f)
    }
}

/// What few messages have.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(in crate::quorum) struct Extra {
    /// Failed deliveries in the queues that it came from.
    pub carried: u32,
    pub annotations: Annotations,
}

/// A message outside the packed lanes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::quorum) struct Message {
    pub reference: Reference,
    pub extra: Option<Box<Extra>>,
    /// Bytes of body.
    pub size: u32,
    /// Times that it was given back.
    pub acquired_count: u32,
    /// Those of them that count as failed, in this queue: what the delivery limit looks at.
    pub delivery_count: u32,
    /// When it must have been handed out.
    pub expiry: When,
    /// While a consumer holds it: when that must have answered.
    pub deadline: When,
}

const _: () = assert!(size_of::<Message>() == 40);

impl Message {
    /// One that was never handed out.
    pub fn fresh(reference: Reference, size: u32, carried: u32, expiry: When) -> Self {
        let extra = (carried > 0).then(|| Box::new(Extra { carried, ..Extra::default() }));
        Message { reference, extra, size, acquired_count: 0, delivery_count: 0, expiry, deadline: When::NEVER }
    }

    /// Failed deliveries in the queues that it came from.
    pub fn carried(&self) -> u32 {
        self.extra.as_ref().map_or(0, |extra| extra.carried)
    }

    /// What consumers noted on it.
    pub fn annotations(&self) -> Option<&Annotations> {
        self.extra.as_ref().map(|extra| &extra.annotations).filter(|annotations| !annotations.is_empty())
    }

    /// Failed deliveries in all queues.
    pub fn total_delivery_count(&self) -> u32 {
        self.carried().saturating_add(self.delivery_count)
    }

    /// Counts that it came back.
    pub fn count(&mut self, failed: bool) {
        self.acquired_count = self.acquired_count.saturating_add(1);
        self.delivery_count = self.delivery_count.saturating_add(u32::from(failed));
    }

    /// Adds a consumer's notes; of one name, the later counts.
    pub fn annotate(&mut self, notes: &[(Bytes, Bytes)]) {
        if notes.is_empty() {
            return;
        }
        let all = Arc::make_mut(&mut self.extra.get_or_insert_default().annotations);
        for (name, value) in notes {
            // Memory of their own: they are slices of a log entry.
            all.insert(Bytes::copy_from_slice(name), Bytes::copy_from_slice(value));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bytes_hold_any_time_that_a_clock_can_show() {
        assert_eq!(When::NEVER.get(), None);
        assert_eq!(When::at(0).get(), Some(1));
        assert_eq!(When::at(1_900_000_000_123).get(), Some(1_900_000_000_123));
        assert_eq!(When::at(u64::MAX).get(), Some(When::MAX));
        assert!(When::at(5).is_past(5) && !When::at(5).is_past(4) && !When::NEVER.is_past(u64::MAX));
    }
}
