//! What goes wrong, and when it ends.

use warren_raft::machine::Role;

use crate::network::Arrivals;
use crate::world::{Happening, World};

/// Longest pause between the death of a process and its next life.
const DEAD_US: u64 = 5_000_000;
/// Longest time that a cut lasts.
const CUT_US: u64 = 8_000_000;
/// Longest time that a disk stands still.
const STALL_US: u64 = 12_000_000;
/// Nodes' clocks differ by this at most.
const MOST_SKEW_MS: u64 = 5_000;
/// Time until a sender notices that a connection broke.
const NOTICE_US: u64 = 200_000;

#[derive(Debug, Clone, Copy)]
enum Fault {
    Crash,
    CrashLeader,
    Power,
    Halves,
    Isolate,
    OneWay,
    Bridge,
    Reset,
    Stall,
    Transfer,
    Nudge,
    Clock,
    Members,
    MetadataMembers,
    Wipe,
}

impl World {
    /// Faults begin.
    pub(crate) fn begin_faults(&mut self) {
        self.network.set_calm(false);
        self.next_fault();
        self.after(100_000, Happening::Read);
        if self.plan.changes_members() {
            self.after(100_000, Happening::Tend);
        }
    }

    fn next_fault(&mut self) {
        let pause = self.faults.between(1, 2_000 * self.plan.fault_every_ms);
        self.after(pause, Happening::Fault);
    }

    fn draw_fault(&mut self) -> Option<Fault> {
        let w = &self.plan.faults;
        let table = [
            (w.crash, Fault::Crash),
            (w.crash_leader, Fault::CrashLeader),
            (w.power, Fault::Power),
            (w.halves, Fault::Halves),
            (w.isolate, Fault::Isolate),
            (w.one_way, Fault::OneWay),
            (w.bridge, Fault::Bridge),
            (w.reset, Fault::Reset),
            (w.stall, Fault::Stall),
            (w.transfer, Fault::Transfer),
            (w.nudge, Fault::Nudge),
            (w.clock, Fault::Clock),
            (w.members, Fault::Members),
            (w.metadata_members, Fault::MetadataMembers),
            (w.wipe, Fault::Wipe),
        ];
        let mut at = self.faults.below(table.iter().map(|(weight, _)| weight).sum());
        table
            .into_iter()
            .find(|(weight, _)| {
                let hit = at < *weight;
                at = at.saturating_sub(*weight);
                hit
            })
            .map(|(_, fault)| fault)
    }

    pub(crate) fn fault(&mut self) {
        if self.finishing {
            return;
        }
        self.next_fault();
        let Some(fault) = self.draw_fault() else { return };
        let count = self.nodes.len();
        let mut node = self.faults.index(count);
        if !self.plan.disk.lying.is_empty() && self.faults.chance(400) {
            node = self.faults.pick(&self.plan.disk.lying);
        }
        let other = (node + 1 + self.faults.index(count - 1)) % count;
        self.journal
            .note(self.now_us, &[20, fault as u64, node as u64], || format!("fault {fault:?} at {node}, {other}"));
        match fault {
            Fault::Crash => self.kill(node),
            Fault::CrashLeader => {
                let led = self.some_leader();
                self.kill(led.unwrap_or(node));
            }
            Fault::Power => {
                for node in 0..count {
                    self.kill(node);
                }
            }
            Fault::Halves => {
                let mut all: Vec<usize> = (0..count).collect();
                self.faults.shuffle(&mut all);
                let (a, b) = all.split_at(count / 2);
                let pairs: Vec<_> = a.iter().flat_map(|x| b.iter().flat_map(|y| [(*x, *y), (*y, *x)])).collect();
                self.cut(pairs);
            }
            Fault::Isolate => {
                let pairs = (0..count).filter(|n| *n != node).flat_map(|n| [(n, node), (node, n)]).collect();
                self.cut(pairs);
            }
            Fault::OneWay => self.cut(vec![(node, other)]),
            Fault::Bridge => self.cut(vec![(node, other), (other, node)]),
            Fault::Reset => self.reset(node, other),
            Fault::Stall => {
                let time = self.faults.between(100_000, STALL_US);
                self.nodes[node].stalled_until_us = self.now_us + time;
            }
            Fault::Transfer => self.transfer(),
            Fault::Nudge => self.nudge(node),
            Fault::Clock => {
                let jump = self.faults.below(MOST_SKEW_MS);
                self.nodes[node].skew_ms = jump;
            }
            Fault::Members => self.wish_members(),
            Fault::MetadataMembers => self.wish_metadata_members(),
            Fault::Wipe => self.wipe_some(node),
        }
    }

    fn some_leader(&mut self) -> Option<usize> {
        let group = self.faults.index(self.plan.groups.len());
        self.leader(self.plan.groups[group].group).map(|(node, _)| node)
    }

    pub(crate) fn kill(&mut self, node: usize) {
        self.crash(node);
        let dead = if self.faults.chance(500) { 500_000 } else { DEAD_US };
        let dead = self.faults.between(10_000, dead);
        self.after(dead, Happening::Restart { node });
    }

    pub(crate) fn cut(&mut self, pairs: Vec<(usize, usize)>) {
        self.network.cut(pairs);
        let lasts = if self.faults.chance(500) { 1_000_000 } else { CUT_US };
        let lasts = self.faults.between(50_000, lasts);
        self.after(lasts, Happening::Heal);
    }

    pub(crate) fn heal(&mut self) {
        self.journal.note(self.now_us, &[21], || "cuts heal".into());
        let mut arrivals = Arrivals::new();
        let lost = self.network.heal(self.now_us, &mut arrivals);
        self.arrivals(arrivals);
        for (from, to) in lost {
            self.notice(from, to);
        }
    }

    fn reset(&mut self, a: usize, b: usize) {
        for (from, to) in [(a, b), (b, a)] {
            self.network.reset(from, to);
            self.notice(from, to);
        }
    }

    fn notice(&mut self, from: usize, to: usize) {
        let life = self.nodes[from].lives;
        let when = self.faults.below(NOTICE_US);
        self.after(when, Happening::Lost { node: from, life, to });
    }

    fn transfer(&mut self) {
        let group = self.faults.index(self.plan.groups.len());
        let group = self.plan.groups[group].group;
        let to = self.faults.index(self.nodes.len());
        let to = if self.faults.chance(500) { Some(self.nodes[to].id) } else { None };
        let Some((node, _)) = self.leader(group) else { return };
        if let Some(driver) = self.nodes[node].driver() {
            // It may be refused, as any transfer may.
            let _ = driver.transfer_leader(group, to);
            self.settle(node);
        }
    }

    fn nudge(&mut self, node: usize) {
        let group = self.faults.index(self.plan.groups.len());
        let group = self.plan.groups[group].group;
        let campaigns = self.faults.chance(300);
        let Some(driver) = self.nodes[node].driver() else { return };
        match driver.status(group).map(|s| s.role) {
            Some(Role::Follower) if campaigns => driver.campaign(group),
            Some(_) => driver.force_snapshot(group),
            None => return,
        }
        self.settle(node);
    }

    /// Faults are over: what is cut heals, what is dead comes back, except `stay_dead`.
    pub(crate) fn end_faults(&mut self, stay_dead: &[usize]) {
        self.finishing = true;
        self.left_dead = stay_dead.to_vec();
        for node in stay_dead {
            self.crash(*node);
        }
        self.network.set_calm(true);
        for node in 0..self.nodes.len() {
            self.end_stall(node);
        }
        self.heal();
        self.revive_all();
    }

    /// Starts whatever is dead and need not stay so.
    pub(crate) fn revive_all(&mut self) {
        (0..self.nodes.len()).for_each(|node| self.revive(node));
    }

    /// Starts a node that is dead and need not stay so.
    pub(crate) fn revive(&mut self, node: usize) {
        let away = self.now_us < self.away_until_us[node];
        if !away && !self.nodes[node].is_up() && !self.left_dead.contains(&node) {
            self.start(node);
        }
    }
}
