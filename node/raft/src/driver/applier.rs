//! The state that committed entries lead to: the machine, the membership and the machine version.

use std::ops::RangeInclusive;

use bytes::Bytes;
use warren_proto::batch::Batch;
use warren_proto::ids::MachineVersion;

use super::membership::decode_change;
use super::output::MemberChange;
use crate::log_store::{Entry, EntryKind, Membership};
use crate::machine::{Applied, GroupCx, StateMachine};

pub(crate) struct Applier<M> {
    pub machine: M,
    pub membership: Membership,
    /// Effective machine version after `applied`.
    pub version: MachineVersion,
    pub applied: u64,
    pub applied_term: u64,
    /// Highest time stamp seen in a batch: a leader's own never goes below.
    pub last_ts: u64,
}

/// What applying an entry calls for beyond the machine.
pub(crate) enum Effect {
    Nothing,
    /// The membership is now this change further.
    Members(Vec<MemberChange>),
    /// A membership entry that is not allowed, or not readable: ignored by every member alike.
    IgnoredChange,
    /// No batch of a known format.
    Undecodable,
    /// The entry raises the version beyond this binary. It is *not* applied.
    Blocked(MachineVersion),
}

impl<M: StateMachine> Applier<M> {
    pub fn supports(&self, version: MachineVersion) -> bool {
        self.supported().contains(&version)
    }

    pub fn supported(&self) -> RangeInclusive<MachineVersion> {
        self.machine.supported()
    }

    /// Applies the next entry. `before_apply` runs when the entry is a readable batch, before the machine sees it.
    pub fn apply(
        &mut self,
        entry: Entry,
        live: bool,
        cx: &GroupCx<'_>,
        before_apply: impl FnOnce(&Batch, usize),
    ) -> Effect {
        debug_assert_eq!(entry.index, self.applied + 1);
        let effect = match entry.kind {
            EntryKind::Commands if entry.data.is_empty() => Effect::Nothing,
            EntryKind::Commands => self.apply_batch(&entry, live, cx, before_apply),
            EntryKind::Version => match read_version(&entry.data) {
                Some(version) if !self.supports(version) => return Effect::Blocked(version),
                Some(version) => {
                    self.version = version;
                    Effect::Nothing
                }
                None => Effect::Undecodable,
            },
            // The member was made the only one of its group since.
            EntryKind::Membership if entry.index <= self.membership.index => Effect::IgnoredChange,
            EntryKind::Membership => {
                let next =
                    decode_change(&entry.data).and_then(|c| Some((self.membership.changed(&c, entry.index)?, c)));
                match next {
                    Some((membership, change)) => {
                        self.membership = membership;
                        Effect::Members(change)
                    }
                    None => Effect::IgnoredChange,
                }
            }
        };
        self.applied = entry.index;
        self.applied_term = entry.term;
        effect
    }

    fn apply_batch(
        &mut self,
        entry: &Entry,
        live: bool,
        cx: &GroupCx<'_>,
        before_apply: impl FnOnce(&Batch, usize),
    ) -> Effect {
        let size = entry.data.len();
        let Ok(batch) = Batch::parse(entry.data.clone()) else { return Effect::Undecodable };
        self.last_ts = self.last_ts.max(batch.ts_ms());
        before_apply(&batch, size);
        let applied = Applied { index: entry.index, term: entry.term, version: self.version, batch, live };
        self.machine.apply(applied, cx);
        Effect::Nothing
    }
}

/// The data of a version entry.
pub(crate) fn version_data(version: MachineVersion) -> Bytes {
    Bytes::copy_from_slice(&version.0.to_le_bytes())
}

fn read_version(data: &[u8]) -> Option<MachineVersion> {
    Some(MachineVersion(u16::from_le_bytes(data.try_into().ok()?)))
}
