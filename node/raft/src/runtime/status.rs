//! A group's state as other threads see it, without asking its shard.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};

use arc_swap::ArcSwap;
use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};
use warren_proto::ids::{GroupId, MachineVersion, MemberUid, NodeId};

use crate::driver::{GroupStatus, StopReason};
use crate::log_store::Membership;
use crate::machine::Role;

/// Written by the shard after each round, read by anybody.
pub(super) struct Published {
    group: GroupId,
    me: MemberUid,
    role: AtomicU8,
    term: AtomicU64,
    leader: AtomicU64,
    commit: AtomicU64,
    applied: AtomicU64,
    last_index: AtomicU64,
    last_written: AtomicU64,
    snapshot_index: AtomicU64,
    version: AtomicU64,
    asleep: AtomicBool,
    supported: (MachineVersion, MachineVersion),
    slow: ArcSwap<Slow>,
    /// Lowest index that somebody waits for; `u64::MAX` = nobody does.
    lowest_wait: AtomicU64,
    waiters: Mutex<Vec<(u64, oneshot::Sender<bool>)>>,
    /// Told whenever the role, the leader or the membership changes.
    pub changed: Notify,
}

/// What changes seldom.
#[derive(PartialEq)]
struct Slow {
    membership: Membership,
    amnesia: Option<u64>,
    stopped: Option<StopReason>,
}

/// In `leader`: none is known. No node has this id in practice; one that had would seem leaderless.
const NO_LEADER: u64 = 0;

impl Published {
    pub fn new(status: &GroupStatus) -> Self {
        let new = Published {
            group: status.group,
            me: status.me,
            role: AtomicU8::new(0),
            term: AtomicU64::new(0),
            leader: AtomicU64::new(NO_LEADER),
            commit: AtomicU64::new(0),
            applied: AtomicU64::new(0),
            last_index: AtomicU64::new(0),
            last_written: AtomicU64::new(0),
            snapshot_index: AtomicU64::new(0),
            version: AtomicU64::new(0),
            asleep: AtomicBool::new(false),
            supported: status.supported,
            slow: ArcSwap::from_pointee(Slow { membership: Membership::default(), amnesia: None, stopped: None }),
            lowest_wait: AtomicU64::new(u64::MAX),
            waiters: Mutex::new(Vec::new()),
            changed: Notify::new(),
        };
        new.publish(status);
        new
    }

    /// The shard's new view.
    pub fn publish(&self, status: &GroupStatus) {
        let role = match status.role {
            Role::Follower => 0,
            Role::Elected => 1,
            Role::Leader => 2,
        };
        let leader = status.leader.map_or(NO_LEADER, |n| n.0);
        let mut changed = self.role.swap(role, Ordering::Release) != role;
        changed |= self.leader.swap(leader, Ordering::Release) != leader;
        self.term.store(status.term, Ordering::Release);
        self.commit.store(status.commit, Ordering::Release);
        self.last_index.store(status.last_index, Ordering::Release);
        self.last_written.store(status.last_written, Ordering::Release);
        self.snapshot_index.store(status.snapshot_index, Ordering::Release);
        self.version.store(status.version.0.into(), Ordering::Release);
        self.asleep.store(status.asleep, Ordering::Release);
        let slow = self.slow.load();
        let same =
            slow.membership == status.membership && (slow.amnesia, &slow.stopped) == (status.amnesia, &status.stopped);
        if !same {
            let (membership, stopped) = (status.membership.clone(), status.stopped.clone());
            let next = Slow { membership, amnesia: status.amnesia, stopped };
            self.slow.store(Arc::new(next));
            changed = true;
        }
        self.applied.store(status.applied, Ordering::SeqCst);
        if self.lowest_wait.load(Ordering::SeqCst) <= status.applied {
            self.wake(status.applied);
        }
        if changed {
            self.changed.notify_waiters();
        }
    }

    fn wake(&self, applied: u64) {
        let mut waiters = self.waiters.lock();
        for (_, waiter) in waiters.extract_if(.., |(index, _)| *index <= applied) {
            // Whoever waited may have given up.
            let _ = waiter.send(true);
        }
        let lowest = waiters.iter().map(|(index, _)| *index).min().unwrap_or(u64::MAX);
        self.lowest_wait.store(lowest, Ordering::SeqCst);
    }

    /// Resolves with true once `index` is applied; with false when the group goes away.
    pub fn wait_applied(&self, index: u64) -> oneshot::Receiver<bool> {
        let (send, receive) = oneshot::channel();
        let mut waiters = self.waiters.lock();
        waiters.push((index, send));
        self.lowest_wait.fetch_min(index, Ordering::SeqCst);
        drop(waiters);
        let applied = self.applied.load(Ordering::SeqCst);
        if applied >= index {
            self.wake(applied);
        }
        receive
    }

    /// The group is gone: nobody waits any longer.
    pub fn close(&self) {
        for (_, waiter) in self.waiters.lock().drain(..) {
            let _ = waiter.send(false);
        }
        self.changed.notify_waiters();
    }

    pub fn leader(&self) -> Option<NodeId> {
        match self.leader.load(Ordering::Acquire) {
            NO_LEADER => None,
            node => Some(NodeId(node)),
        }
    }

    pub fn role(&self) -> Role {
        match self.role.load(Ordering::Acquire) {
            2 => Role::Leader,
            1 => Role::Elected,
            _ => Role::Follower,
        }
    }

    pub fn applied(&self) -> u64 {
        self.applied.load(Ordering::Acquire)
    }

    pub fn status(&self) -> GroupStatus {
        let slow = self.slow.load();
        GroupStatus {
            group: self.group,
            me: self.me,
            role: self.role(),
            term: self.term.load(Ordering::Acquire),
            leader: self.leader(),
            commit: self.commit.load(Ordering::Acquire),
            applied: self.applied(),
            last_index: self.last_index.load(Ordering::Acquire),
            last_written: self.last_written.load(Ordering::Acquire),
            snapshot_index: self.snapshot_index.load(Ordering::Acquire),
            version: MachineVersion(self.version.load(Ordering::Acquire) as u16),
            supported: self.supported,
            membership: slow.membership.clone(),
            asleep: self.asleep.load(Ordering::Acquire),
            amnesia: slow.amnesia,
            stopped: slow.stopped.clone(),
        }
    }
}
