//! The group's machine version: raised by an entry once every member is known to support it.

use raft::eraftpb;
use warren_proto::ids::{MachineVersion, MemberUid};
use warren_proto::peer::VersionRange;

use super::applier::version_data;
use super::group::Group;
use super::wire;
use crate::log_store::{Entry, EntryKind};
use crate::machine::{Role, StateMachine};

/// What members said in this term that they support.
#[derive(Default)]
pub(crate) struct Ranges(Vec<(u64, u16, u16)>);

impl Ranges {
    pub fn clear(&mut self) {
        self.0.clear();
    }

    /// Takes a member's word; answers whether it is news.
    fn note(&mut self, uid: u64, min: u16, max: u16) -> bool {
        match self.0.iter_mut().find(|(u, ..)| *u == uid) {
            Some(known) if (known.1, known.2) == (min, max) => false,
            Some(known) => {
                (known.1, known.2) = (min, max);
                true
            }
            None => {
                self.0.push((uid, min, max));
                true
            }
        }
    }

    pub fn of(&self, uid: MemberUid) -> Option<(u16, u16)> {
        self.0.iter().find(|(u, ..)| *u == uid.0).map(|(_, min, max)| (*min, *max))
    }
}

impl<M: StateMachine> Group<M> {
    /// A member said which versions it supports.
    pub fn note_range(&mut self, uid: u64, range: VersionRange) {
        if self.role == Role::Follower {
            return;
        }
        let (Ok(min), Ok(max)) = (u16::try_from(range.min), u16::try_from(range.max)) else { return };
        if self.ranges.note(uid, min, max) {
            self.maybe_raise_version();
        }
    }

    /// Whether a candidate with these versions could go on with this group's log.
    pub fn may_lead(&self, range: VersionRange) -> bool {
        let version = u32::from(self.state.version.0);
        (range.min..=range.max).contains(&version)
    }

    /// The version that a ready leader is to raise its group to: all members are known to support more than it has.
    pub fn version_to_raise(&self) -> Option<MachineVersion> {
        if self.role != Role::Leader || self.appended_version != self.state.version {
            return None;
        }
        let own = self.state.supported();
        let (mut lowest, mut highest) = (own.start().0, own.end().0);
        for member in self.state.membership.members.iter().filter(|m| m.uid != self.me) {
            let (min, max) = self.ranges.of(member.uid)?;
            lowest = lowest.max(min);
            highest = highest.min(max);
        }
        let target = MachineVersion(highest);
        (target > self.state.version && highest >= lowest && self.raw.raft.lead_transferee.is_none()).then_some(target)
    }

    /// Appends a version entry where the version is to be raised.
    pub fn maybe_raise_version(&mut self) {
        let Some(target) = self.version_to_raise() else { return };
        let entry = Entry { index: 0, term: 0, kind: EntryKind::Version, data: version_data(target) };
        let entry: eraftpb::Entry = wire::entry_to_raft(entry);
        if self.propose_entry(entry).is_some() {
            self.appended_version = target;
            self.builder = warren_proto::batch::BatchBuilder::new(target);
        }
    }
}
