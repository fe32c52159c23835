//! A small machine: a queue of numbers with a digest of everything that it ever applied.

use std::collections::VecDeque;
use std::ops::RangeInclusive;

use bytes::{Buf, BufMut};
use warren_proto::batch::BatchBuilder;
use warren_proto::ids::MachineVersion;

use crate::driver::config::mix;
use crate::machine::{Applied, GroupCx, MachineSnapshot, Refusal, RestoreError, Role, StateMachine};

/// What the tests ask of the machine.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ask {
    /// Appends a number.
    Push(u64),
    /// Removes the oldest.
    Pop,
    /// Needs this machine version.
    Needs(u16),
    /// Panics in apply.
    Boom,
}

pub struct TestMachine {
    pub supported: RangeInclusive<MachineVersion>,
    /// (value, log index) of what was pushed and not popped.
    pub waiting: VecDeque<(u64, u64)>,
    pub digest: u64,
    pub pushed: u64,
    pub version: u16,
    reclaimable: u64,
    /// Not part of the state: what the host said.
    pub proposed: Vec<Result<(u64, u64), Refusal>>,
    pub refused: Vec<(Ask, Refusal)>,
    pub roles: Vec<Role>,
    pub replayed: u64,
    pub restored: u64,
}

impl TestMachine {
    pub fn new(max: u16) -> Self {
        TestMachine {
            supported: MachineVersion(1)..=MachineVersion(max),
            waiting: VecDeque::new(),
            digest: 0,
            pushed: 0,
            version: 0,
            reclaimable: 0,
            proposed: Vec::new(),
            refused: Vec::new(),
            roles: Vec::new(),
            replayed: 0,
            restored: 0,
        }
    }
}

impl StateMachine for TestMachine {
    type Request = Ask;

    fn supported(&self) -> RangeInclusive<MachineVersion> {
        self.supported.clone()
    }

    fn prepare(&mut self, request: Ask, out: &mut BatchBuilder, cx: &GroupCx<'_>) {
        assert_eq!(cx.role, Role::Leader);
        let (needs, tag, value) = match request {
            Ask::Push(v) => (1, 0, v),
            Ask::Pop => (1, 1, 0),
            Ask::Needs(version) => (version, 2, 0),
            Ask::Boom => (1, 3, 0),
        };
        let pushed = out.push(MachineVersion(needs), |b| {
            b.put_u8(tag);
            b.put_u64_le(value);
        });
        if pushed.is_err() {
            self.refused.push((request, Refusal::Stopped));
        }
    }

    fn proposed(&mut self, outcome: Result<(u64, u64), Refusal>, _: &GroupCx<'_>) {
        self.proposed.push(outcome);
    }

    fn refuse(&mut self, request: Ask, why: Refusal, _: &GroupCx<'_>) {
        self.refused.push((request, why));
    }

    fn apply(&mut self, entry: Applied, _: &GroupCx<'_>) {
        self.version = entry.version.0;
        if !entry.live {
            self.replayed += 1;
        }
        for mut command in entry.batch.iter() {
            let (tag, value) = (command.get_u8(), command.get_u64_le());
            self.digest = mix(&[self.digest, entry.index, entry.term, tag.into(), value]);
            match tag {
                0 => {
                    self.pushed += 1;
                    self.waiting.push_back((value, entry.index));
                }
                1 => {
                    self.waiting.pop_front();
                    self.reclaimable += 100;
                }
                3 => panic!("boom"),
                _ => {}
            }
        }
    }

    fn role_changed(&mut self, cx: &GroupCx<'_>) {
        self.roles.push(cx.role);
    }

    fn tick(&mut self, _: &mut BatchBuilder, cx: &GroupCx<'_>) {
        assert_eq!(cx.role, Role::Leader);
    }

    fn reclaimable_bytes(&self) -> u64 {
        self.reclaimable
    }

    fn snapshot(&mut self) -> MachineSnapshot {
        self.reclaimable = 0;
        let mut state = Vec::new();
        state.put_u64_le(self.digest);
        state.put_u64_le(self.pushed);
        for (value, index) in &self.waiting {
            state.put_u64_le(*value);
            state.put_u64_le(*index);
        }
        let mut live: Vec<RangeInclusive<u64>> = Vec::new();
        for (_, index) in &self.waiting {
            match live.last_mut() {
                Some(last) if *last.end() == *index => {}
                Some(last) if *last.end() + 1 == *index => *last = *last.start()..=*index,
                _ => live.push(*index..=*index),
            }
        }
        MachineSnapshot { state: state.into(), live }
    }

    fn restore(
        &mut self,
        mut state: &[u8],
        index: u64,
        version: MachineVersion,
        _: &GroupCx<'_>,
    ) -> Result<(), RestoreError> {
        if state.len() < 16 || !state.len().is_multiple_of(16) {
            return Err(RestoreError("length".into()));
        }
        self.digest = state.get_u64_le();
        self.pushed = state.get_u64_le();
        self.waiting.clear();
        while state.has_remaining() {
            self.waiting.push_back((state.get_u64_le(), state.get_u64_le()));
        }
        self.version = version.0;
        self.restored = index;
        self.reclaimable = 0;
        Ok(())
    }

    fn stopped(&mut self, _: &GroupCx<'_>) {}
}
