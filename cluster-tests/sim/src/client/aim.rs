//! Whom a session takes for a group's leader, and when it tries again.

use warren_proto::ids::NodeId;

/// Silence after which everything is sent again.
const SILENCE_US: u64 = 1_500_000;
/// Pause after a refusal.
const PAUSE_US: u64 = 100_000;

/// A session's view of one group's leader.
#[derive(Debug)]
pub(super) struct Aim {
    members: Vec<NodeId>,
    leader: Option<NodeId>,
    next: usize,
    heard_us: u64,
    retry_at: Option<u64>,
}

impl Aim {
    pub fn new(members: Vec<NodeId>) -> Self {
        Aim { members, leader: None, next: 0, heard_us: 0, retry_at: None }
    }

    /// Begins anew, at another process.
    pub fn reset(&mut self, now_us: u64) {
        self.leader = None;
        self.heard_us = now_us;
        self.retry_at = None;
    }

    pub fn leader(&self) -> Option<NodeId> {
        self.leader
    }

    /// Where to send: the leader, or one member after another.
    pub fn target(&mut self) -> NodeId {
        match self.leader {
            Some(leader) => leader,
            None => {
                self.next += 1;
                let node = self.members[self.next % self.members.len()];
                self.leader = Some(node);
                node
            }
        }
    }

    /// Whether what is new must wait for the retry, or it would overtake.
    pub fn is_waiting(&self) -> bool {
        self.retry_at.is_some()
    }

    /// A sign of life of the leader.
    pub fn heard(&mut self, from: NodeId, now_us: u64) {
        self.heard_us = now_us;
        self.leader = Some(from);
    }

    /// The node leads now: everything goes there.
    pub fn moved(&mut self, to: NodeId, now_us: u64) {
        self.heard(to, now_us);
        self.retry_at = None;
    }

    /// A refusal came from a node. Answers whether another one should be asked at once.
    pub fn refused(&mut self, from: NodeId, leader: Option<NodeId>, busy: bool, now_us: u64) -> bool {
        self.heard_us = now_us;
        match leader {
            Some(leader) if leader != from && !busy => {
                let moved = self.leader != Some(leader);
                self.leader = Some(leader);
                moved
            }
            _ => {
                if !busy {
                    self.leader = None;
                }
                self.retry_at.get_or_insert(now_us + PAUSE_US);
                false
            }
        }
    }

    /// Sends again soon.
    pub fn retry(&mut self, now_us: u64) {
        self.retry_at.get_or_insert(now_us + PAUSE_US);
    }

    /// Whether it is time to send everything again; if so, silence counts from now.
    pub fn is_due(&mut self, now_us: u64) -> bool {
        let silent = now_us >= self.heard_us + SILENCE_US;
        let due = silent || self.retry_at.is_some_and(|at| at <= now_us);
        if silent {
            self.leader = None;
        }
        if due {
            self.heard_us = now_us;
            self.retry_at = None;
        }
        due
    }
}
