//! When a member stands for election: seeded timeouts, verdicts about nodes, and the reasons not to stand.

use raft::StateRole;
use warren_proto::ids::MemberUid;

use super::config::mix;
use super::group::Group;
use super::shared::Shared;
use crate::machine::StateMachine;

/// Raft draws its election timeout from a generator of its own at every reset. Here it is overwritten after every step
/// with a number that follows from the seed and from how often the count of elapsed ticks fell, so that a run replays.
#[derive(Default)]
pub(crate) struct Election {
    draws: u64,
    elapsed: usize,
    /// Rounds still to be held at the short timeout: the leader's node is known to be down, or the group is new.
    hasty: u32,
    /// Ticks for which this member has left it to others to stand.
    abstained: usize,
}

/// Rounds at the short timeout before the normal one applies again.
const HASTY_ROUNDS: u32 = 10;
/// Ticks between one candidate and the next after a verdict: time for the first to win.
const RANK_TICKS: usize = 2;
/// Election timeouts that a member which leaves leading to others gives them. None of them may be able to win: then it
/// stands after all.
const ABSTENTION: usize = 4;

impl<M: StateMachine> Group<M> {
    /// Sets the election timeout anew. Due after everything that may have made Raft reset it.
    pub fn settle_election(&mut self, shared: &Shared) {
        let elapsed = self.raw.raft.election_elapsed;
        if elapsed < self.election.elapsed {
            self.election.draws += 1;
            self.election.abstained = 0;
            self.hurry(shared);
        }
        self.election.elapsed = self.raw.raft.election_elapsed;
        let (min, max) = (shared.config.election_ticks, 2 * shared.config.election_ticks);
        let timeout =
            if self.election.hasty > 0 { max - 1 } else { min + (self.draw(shared) % (max - min) as u64) as usize };
        self.raw.raft.set_randomized_election_timeout(timeout);
    }

    fn draw(&self, shared: &Shared) -> u64 {
        mix(&[shared.config.seed, shared.config.node.0, self.id.0, self.me.0, self.election.draws])
    }

    /// In a hasty round: moves the elapsed ticks close to the timeout. That also ends the time in which this member
    /// would ignore others' candidacies for the sake of a leader that is gone.
    fn hurry(&mut self, shared: &Shared) {
        let led = self.raw.raft.state == StateRole::Leader
            || (self.raw.raft.state == StateRole::Follower && self.raw.raft.leader_id != raft::INVALID_ID);
        if led || self.election.hasty == 0 {
            self.election.hasty = 0;
            return;
        }
        self.election.hasty -= 1;
        self.rush(shared);
    }

    fn rush(&mut self, shared: &Shared) {
        let delay = 1 + (self.draw(shared) % shared.config.node_down_ticks.max(1) as u64) as usize;
        self.rush_after(delay, shared);
    }

    /// Moves the elapsed ticks so close to the timeout that so many are left.
    fn rush_after(&mut self, delay: usize, shared: &Shared) {
        let max = 2 * shared.config.election_ticks;
        self.raw.raft.election_elapsed = (max - 1).saturating_sub(delay);
        self.election.elapsed = self.raw.raft.election_elapsed;
    }

    /// Stands within the next few ticks, and again soon if that comes to nothing.
    pub fn hasten(&mut self, shared: &Shared) {
        if self.stop.is_some() {
            return;
        }
        self.election.hasty = HASTY_ROUNDS;
        self.election.draws += 1;
        self.rush_after(1 + RANK_TICKS * self.rank(shared), shared);
        self.settle_election(shared);
    }

    /// How many voters whose nodes are up come before this one: in an order that differs from group to group, and is the
    /// same on all, so that the first round has one candidate.
    fn rank(&self, shared: &Shared) -> usize {
        let place = |uid: MemberUid| mix(&[self.id.0, uid.0]);
        let own = place(self.me);
        let up = self.state.membership.voters().filter(|m| !shared.down.contains(&m.node));
        up.filter(|m| m.uid != self.me && place(m.uid) < own).count()
    }

    /// Stands at once, and again soon if that comes to nothing.
    pub fn campaign(&mut self, shared: &Shared) {
        if self.may_stand(shared) {
            self.election.hasty = HASTY_ROUNDS;
            // An error means that a committed membership change is not applied yet; the timeout tries again.
            let _ = self.raw.campaign();
            self.election.draws += 1;
            if !self.is_raft_leader() {
                self.rush(shared);
            }
            self.settle_election(shared);
        }
    }

    fn may_stand(&self, shared: &Shared) -> bool {
        let raft = &self.raw.raft;
        // A single voter leads without asking anybody, so nothing else makes sure that its log is durable by then.
        let sole = raft.prs().is_singleton();
        let durable = raft.raft_log.persisted == raft.raft_log.last_index();
        self.stop.is_none()
            && self.amnesia.is_none()
            && self.installing.is_none()
            && !shared.stalled
            // Raft asks this only where an election times out.
            && raft.promotable()
            && (durable || !sole)
    }

    /// One tick of Raft's clock.
    pub fn tick_raft(&mut self, shared: &mut Shared) {
        if self.raw.raft.state == StateRole::Leader {
            if shared.stalled {
                // Others hear a healthy leader as long as heartbeats go out, while nothing can be committed here.
                let term = self.raw.raft.term;
                self.raw.raft.become_follower(term, raft::INVALID_ID);
            } else {
                self.raw.tick();
            }
        } else if !self.may_stand(shared) {
            // Time passes, so that it does not hold others' candidacies back; but it does not stand.
            self.raw.raft.election_elapsed += 1;
            if self.raw.raft.election_elapsed.is_multiple_of(2 * shared.config.election_ticks) {
                self.rouse_all(shared);
            }
        } else if self.is_candidate()
            || self.raw.raft.election_elapsed + 1 < self.raw.raft.randomized_election_timeout()
        {
            self.raw.tick();
        } else if self.abstains(shared) {
            self.election.abstained += 1;
            self.raw.raft.election_elapsed += 1;
        } else if shared.elections > 0 {
            shared.elections -= 1;
            self.raw.tick();
        }
        self.settle_election(shared);
    }

    /// Whether this member, whose time has come to stand, leaves it to others for now.
    fn abstains(&self, shared: &Shared) -> bool {
        let others = || self.state.membership.voters().any(|m| m.uid != self.me && !shared.down.contains(&m.node));
        shared.abstains && self.election.abstained < ABSTENTION * shared.config.election_ticks && others()
    }
}
