//! A node's disk: what is durable, and what was handed over and is not yet. A crash loses the latter, but for a prefix of
//! whole writes, as the store's log keeps or drops each write as one. A lying disk may also lose the last few of the
//! former.

use std::collections::{BTreeMap, VecDeque};
use std::ops::RangeInclusive;

use bytes::Bytes;
use parking_lot::Mutex;
use warren_proto::ids::{GroupId, MemberUid};
use warren_raft::log_store::{Entry, GroupRecord, HardState, LogStore, SnapshotMeta, StoreError, Write};

/// The logs of one node's groups. What the driver reads is what is durable: the real store syncs before it shows.
#[derive(Default)]
pub struct SimDisk {
    inner: Mutex<Inner>,
}

#[derive(Default)]
struct Inner {
    groups: BTreeMap<GroupId, Stored>,
    /// Handed over and not synced, in order, each with its number.
    pending: VecDeque<(u64, Vec<Write>)>,
    /// How many of the newest synced writes may be forgotten; an honest disk keeps no account of them.
    forgets: usize,
    recent: VecDeque<Recent>,
    /// What is durable without the recent writes.
    base: BTreeMap<GroupId, Stored>,
    /// What members had that are lost. Nobody reads it but the judge.
    lost: BTreeMap<MemberUid, Stored>,
}

/// Entries by index, for each snapshot's index.
type Staged = BTreeMap<u64, BTreeMap<u64, Entry>>;

/// A write that a lying disk may forget.
struct Recent {
    writes: Vec<Write>,
    /// What was staged for the snapshot that it installs.
    staged: Vec<(GroupId, Staged)>,
}

/// What a member would lose with the newest writes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Forgetting {
    /// The group.
    pub group: GroupId,
    /// The member.
    pub member: MemberUid,
    /// Index and term of the last entry of its log, which it has acknowledged.
    pub last: (u64, u64),
    /// Votes that it gave.
    pub votes: Vec<HardState>,
}

#[derive(Clone)]
struct Stored {
    record: GroupRecord,
    entries: BTreeMap<u64, Entry>,
    state: Bytes,
    /// Live entries of snapshots that are being received, by the snapshot's index. Not synced by themselves.
    staged: Staged,
}

/// How much of an entry a disk has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Held {
    /// A snapshot covers it.
    Covered,
    /// The entry itself, of this term.
    Entry(u64),
    /// Nothing.
    Missing,
}

impl SimDisk {
    /// An empty disk. One that lies may forget the newest few of the writes that it says are synced.
    pub fn new(forgets: usize) -> Self {
        let disk = SimDisk::default();
        disk.inner.lock().forgets = forgets;
        disk
    }

    /// Hands over a write without waiting for it.
    pub fn submit(&self, number: u64, writes: Vec<Write>) {
        self.inner.lock().pending.push_back((number, writes));
    }

    /// Makes the writes up to this number durable. An error is a write that no store could take.
    pub fn sync(&self, up_to: u64) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        while let Some((_, writes)) = inner.pending.pop_front_if(|(number, _)| *number <= up_to) {
            inner.make_durable(writes)?;
        }
        Ok(())
    }

    /// The number of the newest write that waits.
    pub fn newest_pending(&self) -> Option<u64> {
        self.inner.lock().pending.back().map(|(number, _)| *number)
    }

    /// How many writes wait for a sync.
    pub fn pending(&self) -> usize {
        self.inner.lock().pending.len()
    }

    /// Power fails: whatever was not synced is lost, except that the first `survive` of the waiting writes made it.
    pub fn crash(&self, survive: usize) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let kept: Vec<_> = inner.pending.drain(..).take(survive).collect();
        for (_, writes) in kept {
            inner.make_durable(writes)?;
        }
        for stored in inner.groups.values_mut() {
            stored.staged.clear();
        }
        Ok(())
    }

    /// Everything is lost.
    pub fn wipe(&self) {
        let mut inner = self.inner.lock();
        inner.pending.clear();
        inner.recent.clear();
        inner.base.clear();
        for stored in std::mem::take(&mut inner.groups).into_values() {
            inner.lost.insert(stored.record.me, stored);
        }
    }

    /// How many of the newest synced writes may be forgotten.
    pub fn could_forget(&self) -> usize {
        self.inner.lock().recent.len()
    }

    /// What members would lose with the newest `count` writes.
    pub fn forgetting(&self, count: usize) -> Vec<Forgetting> {
        let inner = self.inner.lock();
        let mut all = Vec::<Forgetting>::new();
        for write in inner.recent.iter().rev().take(count).flat_map(|recent| &recent.writes) {
            let Some(stored) = inner.groups.get(&group_of(write)) else { continue };
            let record = &stored.record;
            let known = all.iter().position(|f| f.group == record.group).unwrap_or_else(|| {
                let (group, member, last) = (record.group, record.me, (record.last_index, stored.last_term()));
                all.push(Forgetting { group, member, last, votes: Vec::new() });
                all.len() - 1
            });
            if let Write::HardState(_, hard) = write
                && hard.vote != 0
            {
                all[known].votes.push(*hard);
            }
        }
        all
    }

    /// Forgets the newest `count` synced writes.
    pub fn forget(&self, count: usize) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let keeps = inner.recent.len() - count.min(inner.recent.len());
        inner.recent.truncate(keeps);
        inner.groups = inner.base.clone();
        let recent = std::mem::take(&mut inner.recent);
        for one in &recent {
            replay(&mut inner.groups, one)?;
        }
        inner.recent = recent;
        Ok(())
    }

    /// How much of an entry this member has durable here, if it is not lost.
    pub fn held_now(&self, group: GroupId, member: MemberUid, index: u64) -> Held {
        self.inner.lock().member(group, member).map_or(Held::Missing, |stored| stored.held(index))
    }

    /// Index of the newest membership that the group's member has durable here.
    pub fn membership(&self, group: GroupId) -> Option<u64> {
        self.inner.lock().groups.get(&group).map(|stored| stored.record.membership.index)
    }

    /// How much of an entry this member has durable here, or had when it was lost.
    pub fn held(&self, group: GroupId, member: MemberUid, index: u64) -> Held {
        let inner = self.inner.lock();
        let stored = inner.member(group, member).or_else(|| inner.lost.get(&member));
        stored.map_or(Held::Missing, |stored| stored.held(index))
    }

    /// The durable hard state of this member.
    pub fn hard_state(&self, group: GroupId, member: MemberUid) -> HardState {
        self.inner.lock().member(group, member).map(|s| s.record.hard_state).unwrap_or_default()
    }

    /// The last durable index of this member's log.
    pub fn written(&self, group: GroupId, member: MemberUid) -> u64 {
        self.inner.lock().member(group, member).map_or(0, |s| s.record.last_index)
    }

    /// Whether the group's member exists here.
    pub fn has(&self, group: GroupId) -> bool {
        self.inner.lock().groups.contains_key(&group)
    }

    /// The index of the newest durable snapshot, and how many live entries lie below it.
    pub fn snapshot_size(&self, group: GroupId) -> (u64, usize) {
        let inner = self.inner.lock();
        inner.groups.get(&group).map_or((0, 0), |s| {
            let floor = s.floor();
            (floor, s.entries.range(..=floor).count())
        })
    }
}

impl Inner {
    /// What is stored for a group, if it is this member's and not a former one's.
    fn member(&self, group: GroupId, member: MemberUid) -> Option<&Stored> {
        self.groups.get(&group).filter(|stored| stored.record.me == member)
    }

    /// A write is synced, and a lying disk notes that it may forget it. Members that come or go are remembered.
    fn make_durable(&mut self, writes: Vec<Write>) -> Result<(), StoreError> {
        if self.forgets == 0 {
            return writes.iter().try_for_each(|write| apply(&mut self.groups, write));
        }
        let installs = writes.iter().filter(|write| matches!(write, Write::Install(..))).map(group_of);
        let staged = installs.filter_map(|group| Some((group, self.groups.get(&group)?.staged.clone()))).collect();
        writes.iter().try_for_each(|write| apply(&mut self.groups, write))?;
        if writes.iter().any(|write| matches!(write, Write::Create(_) | Write::Delete(_))) {
            self.recent.clear();
            self.base = self.groups.clone();
            return Ok(());
        }
        self.recent.push_back(Recent { writes, staged });
        while self.recent.len() > self.forgets {
            if let Some(oldest) = self.recent.pop_front() {
                replay(&mut self.base, &oldest)?;
            }
        }
        Ok(())
    }
}

/// Writes what was written before.
fn replay(groups: &mut BTreeMap<GroupId, Stored>, recent: &Recent) -> Result<(), StoreError> {
    for (group, staged) in &recent.staged {
        stored_in(groups, *group)?.staged = staged.clone();
    }
    recent.writes.iter().try_for_each(|write| apply(groups, write))
}

/// Whose write it is.
fn group_of(write: &Write) -> GroupId {
    match write {
        Write::Create(record) => record.group,
        Write::Append(group, _)
        | Write::HardState(group, _)
        | Write::Membership(group, _)
        | Write::Snapshot(group, ..)
        | Write::Install(group, ..)
        | Write::Delete(group) => *group,
    }
}

fn stored_in(groups: &mut BTreeMap<GroupId, Stored>, group: GroupId) -> Result<&mut Stored, StoreError> {
    groups.get_mut(&group).ok_or_else(|| StoreError::Write(format!("no group {group}")))
}

fn apply(groups: &mut BTreeMap<GroupId, Stored>, write: &Write) -> Result<(), StoreError> {
    match write {
        Write::Create(record) => {
            if groups.contains_key(&record.group) {
                return Err(StoreError::Write(format!("group {} exists", record.group)));
            }
            let stored = Stored {
                record: record.clone(),
                entries: BTreeMap::new(),
                state: Bytes::new(),
                staged: BTreeMap::new(),
            };
            groups.insert(record.group, stored);
        }
        Write::Append(group, entries) => stored_in(groups, *group)?.append(entries)?,
        Write::HardState(group, hard) => stored_in(groups, *group)?.record.hard_state = *hard,
        Write::Membership(group, membership) => stored_in(groups, *group)?.record.membership = membership.clone(),
        Write::Snapshot(group, meta, state) => {
            let stored = stored_in(groups, *group)?;
            if meta.index > stored.record.last_index {
                return Err(StoreError::Write(format!("snapshot at {} beyond the log", meta.index)));
            }
            if meta.index < stored.floor() {
                return Err(StoreError::Write(format!("snapshot at {} below the last one", meta.index)));
            }
            stored.take_snapshot(meta, state);
        }
        Write::Install(group, meta, state) => {
            let stored = stored_in(groups, *group)?;
            stored.entries = stored.staged.remove(&meta.index).unwrap_or_default();
            stored.staged.clear();
            stored.take_snapshot(meta, state);
            stored.record.last_index = meta.index;
            stored.check_live(meta)?;
        }
        Write::Delete(group) => {
            groups.remove(group);
        }
    }
    Ok(())
}

impl Stored {
    fn held(&self, index: u64) -> Held {
        if index <= self.floor() {
            return Held::Covered;
        }
        self.entries.get(&index).map_or(Held::Missing, |e| Held::Entry(e.term))
    }

    fn last_term(&self) -> u64 {
        let last = self.record.last_index;
        match &self.record.snapshot {
            Some(snapshot) if snapshot.index == last => snapshot.term,
            _ => self.entries.get(&last).map_or(0, |e| e.term),
        }
    }

    fn floor(&self) -> u64 {
        self.record.snapshot.as_ref().map_or(0, |s| s.index)
    }

    fn append(&mut self, entries: &[Entry]) -> Result<(), StoreError> {
        let Some(first) = entries.first() else { return Ok(()) };
        if first.index <= self.floor() || first.index > self.record.last_index + 1 {
            return Err(StoreError::Write(format!("append at {} leaves a gap", first.index)));
        }
        if let Some((a, b)) = entries.iter().zip(&entries[1..]).find(|(a, b)| a.index + 1 != b.index) {
            return Err(StoreError::Write(format!("append of {} after {}", b.index, a.index)));
        }
        self.entries.split_off(&first.index);
        self.entries.extend(entries.iter().map(|e| (e.index, e.clone())));
        self.record.last_index = entries.last().map_or(0, |e| e.index);
        Ok(())
    }

    fn take_snapshot(&mut self, meta: &SnapshotMeta, state: &Bytes) {
        self.entries.retain(|i, _| *i > meta.index || is_live(&meta.live, *i));
        self.state = state.clone();
        self.record.snapshot = Some(meta.clone());
    }

    /// An installed snapshot without one of its live entries would lose messages.
    fn check_live(&self, meta: &SnapshotMeta) -> Result<(), StoreError> {
        let mut live = meta.live.iter().flat_map(Clone::clone);
        match live.find(|index| !self.entries.contains_key(index)) {
            Some(index) => {
                Err(StoreError::Write(format!("snapshot at {} installed without live entry {index}", meta.index)))
            }
            None => Ok(()),
        }
    }
}

/// Whether one of these ascending ranges has the index.
fn is_live(live: &[RangeInclusive<u64>], index: u64) -> bool {
    let at = live.partition_point(|range| *range.end() < index);
    live.get(at).is_some_and(|range| range.contains(&index))
}

impl LogStore for SimDisk {
    fn groups(&self) -> Result<Vec<GroupRecord>, StoreError> {
        Ok(self.inner.lock().groups.values().map(|s| s.record.clone()).collect())
    }

    fn write(&self, writes: &[Write]) -> Result<(), StoreError> {
        self.inner.lock().make_durable(writes.to_vec())
    }

    fn entries(&self, group: GroupId, from: u64, to: u64, max_bytes: u64) -> Result<Vec<Entry>, StoreError> {
        let inner = self.inner.lock();
        let Some(stored) = inner.groups.get(&group) else { return Ok(Vec::new()) };
        let from = from.max(stored.floor() + 1);
        let mut out = Vec::new();
        let mut bytes = 0;
        for entry in stored.entries.range(from..to.max(from)).map(|(_, e)| e) {
            bytes += entry.data.len() as u64;
            if bytes > max_bytes && !out.is_empty() {
                break;
            }
            out.push(entry.clone());
        }
        Ok(out)
    }

    fn term(&self, group: GroupId, index: u64) -> Result<Option<u64>, StoreError> {
        let inner = self.inner.lock();
        let Some(stored) = inner.groups.get(&group) else { return Ok(None) };
        match &stored.record.snapshot {
            Some(snapshot) if snapshot.index == index => Ok(Some(snapshot.term)),
            Some(snapshot) if index < snapshot.index => Ok(None),
            _ => Ok(stored.entries.get(&index).map(|e| e.term)),
        }
    }

    fn read(&self, group: GroupId, indexes: &[u64]) -> Result<Vec<Option<Entry>>, StoreError> {
        let inner = self.inner.lock();
        let stored = inner.groups.get(&group);
        Ok(indexes.iter().map(|i| stored.and_then(|s| s.entries.get(i).cloned())).collect())
    }

    fn snapshot(&self, group: GroupId) -> Result<Option<(SnapshotMeta, Bytes)>, StoreError> {
        let inner = self.inner.lock();
        let stored = inner.groups.get(&group);
        Ok(stored.and_then(|s| Some((s.record.snapshot.clone()?, s.state.clone()))))
    }

    fn stage(&self, group: GroupId, snapshot_index: u64, entries: &[Entry]) -> Result<(), StoreError> {
        let mut inner = self.inner.lock();
        let staged = stored_in(&mut inner.groups, group)?.staged.entry(snapshot_index).or_default();
        staged.extend(entries.iter().map(|e| (e.index, e.clone())));
        Ok(())
    }
}
