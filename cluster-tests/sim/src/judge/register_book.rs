//! What clients saw of the shared registers.

use std::collections::BTreeMap;

use warren_jepsen::check::Verdict;
use warren_jepsen::check::linearizable::{self, Timed};
use warren_jepsen::check::registers::{Access, Registers};

/// After so many calls other keys are used: a search for an order of too many has no end.
const CALLS_OF_AN_EPOCH: usize = 150;
/// Steps that the search may take.
const STEPS: u64 = 2_000_000;

/// The calls on shared registers. Keys change from epoch to epoch.
#[derive(Debug, Default)]
pub struct RegisterBook {
    epoch: u32,
    calls: BTreeMap<u32, Vec<Timed<Access>>>,
    /// Histories that the search was given up for.
    pub(crate) unknown: u64,
}

impl RegisterBook {
    /// Whose keys calls are to use now.
    pub fn epoch(&self) -> u32 {
        self.epoch
    }

    /// A call was answered.
    pub fn answered(&mut self, epoch: u32, called_us: u64, now_us: u64, access: Access) {
        self.note(epoch, Timed { called: called_us, answered: Some(now_us), call: access });
    }

    /// A call was given up.
    pub fn open(&mut self, epoch: u32, called_us: u64, access: Access) {
        self.note(epoch, Timed { called: called_us, answered: None, call: access });
    }

    fn note(&mut self, epoch: u32, call: Timed<Access>) {
        self.calls.entry(epoch).or_default().push(call);
        if self.calls.get(&self.epoch).is_some_and(|calls| calls.len() >= CALLS_OF_AN_EPOCH) {
            self.epoch += 1;
        }
    }

    /// How many calls were noted.
    pub fn len(&self) -> u64 {
        self.calls.values().map(|calls| calls.len() as u64).sum()
    }

    /// Whether there were none.
    pub fn is_empty(&self) -> bool {
        self.calls.is_empty()
    }

    /// All calls have an order. What is open is noted.
    pub fn check(&mut self) -> Result<(), String> {
        for (epoch, calls) in &self.calls {
            match linearizable::check(&Registers, calls, STEPS) {
                Verdict::Valid => {}
                Verdict::Unknown(_) => self.unknown += 1,
                Verdict::Invalid(violation) => {
                    return Err(format!("registers of epoch {epoch}: {violation}: {:?}", calls[violation.at]));
                }
            }
        }
        Ok(())
    }
}
