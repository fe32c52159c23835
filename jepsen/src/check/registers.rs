//! Registers by key, read and written one at a time or several at once: a model for
//! [`linearizable`](super::linearizable).

use std::collections::BTreeMap;

use super::linearizable::Model;

/// A part of a transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Part {
    /// What a key holds.
    Read {
        /// The key.
        key: u32,
        /// What was answered; `None` where no answer came.
        found: Option<Option<u64>>,
    },
    /// Sets a key.
    Write {
        /// The key.
        key: u32,
        /// What it is to hold.
        value: u64,
    },
}

/// What was asked of the registers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Access {
    /// All at one moment, in this order.
    All(Vec<Part>),
    /// Sets a key if it holds what is expected.
    Swap {
        /// The key.
        key: u32,
        /// What it must hold.
        expected: Option<u64>,
        /// What it is to hold then.
        value: u64,
        /// Whether it did; `None` where no answer came.
        done: Option<bool>,
    },
}

/// Registers that hold nothing at first.
#[derive(Debug, Clone, Copy, Default)]
pub struct Registers;

impl Model for Registers {
    type State = BTreeMap<u32, u64>;
    type Call = Access;

    fn start(&self) -> Self::State {
        BTreeMap::new()
    }

    fn step(&self, state: &Self::State, call: &Access) -> Option<Self::State> {
        let mut next = state.clone();
        match call {
            Access::All(parts) => {
                for part in parts {
                    match *part {
                        Part::Read { key, found } => {
                            if found.is_some_and(|found| found != next.get(&key).copied()) {
                                return None;
                            }
                        }
                        Part::Write { key, value } => {
                            next.insert(key, value);
                        }
                    }
                }
            }
            Access::Swap { key, expected, value, done } => {
                let holds = next.get(key).copied() == *expected;
                if done.is_some_and(|done| done != holds) {
                    return None;
                }
                if holds {
                    next.insert(*key, *value);
                }
            }
        }
        Some(next)
    }
}
