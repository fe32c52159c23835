//! Which flags are on, as code asks for it: bits, read without a lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::sync::Notify;

use super::registry::{FlagId, Registry};

/// A flag's state on this node.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum State {
    /// The new behaviour is in force.
    Enabled,
    /// The old one is.
    Disabled,
    /// The old one is, and it is being decided.
    Changing,
}

/// The states of all flags of a registry.
#[derive(Debug)]
pub struct States {
    registry: Arc<Registry>,
    enabled: Box<[AtomicU64]>,
    changing: Box<[AtomicU64]>,
    decided: Notify,
}

fn place(id: FlagId) -> (usize, u64) {
    (usize::from(id.0 / 64), 1 << (id.0 % 64))
}

impl States {
    /// All off.
    pub fn new(registry: Arc<Registry>) -> Self {
        let words = registry.entries().len().div_ceil(64);
        let zeros = || (0..words).map(|_| AtomicU64::new(0)).collect();
        States { enabled: zeros(), changing: zeros(), decided: Notify::new(), registry }
    }

    /// The flags.
    pub fn registry(&self) -> &Arc<Registry> {
        &self.registry
    }

    /// Whether the flag is on: one load, for paths that messages take. While it is being decided, the old behaviour counts.
    pub fn is_on(&self, id: FlagId) -> bool {
        let (word, bit) = place(id);
        self.enabled[word].load(Ordering::Relaxed) & bit != 0
    }

    /// The flag's state.
    pub fn get(&self, id: FlagId) -> State {
        let (word, bit) = place(id);
        if self.enabled[word].load(Ordering::Acquire) & bit != 0 {
            State::Enabled
        } else if self.changing[word].load(Ordering::Acquire) & bit != 0 {
            State::Changing
        } else {
            State::Disabled
        }
    }

    /// Whether the flag is on; waits while it is being decided.
    pub async fn decided(&self, id: FlagId) -> bool {
        loop {
            let decided = self.decided.notified();
            tokio::pin!(decided);
            decided.as_mut().enable();
            match self.get(id) {
                State::Enabled => return true,
                State::Disabled => return false,
                State::Changing => decided.await,
            }
        }
    }

    pub(super) fn set(&self, id: FlagId, state: State) {
        let (word, bit) = place(id);
        let write = |words: &[AtomicU64], on: bool| match on {
            true => words[word].fetch_or(bit, Ordering::AcqRel),
            false => words[word].fetch_and(!bit, Ordering::AcqRel),
        };
        // In this order a reader never finds a flag off and decided in between.
        match state {
            State::Enabled => {
                write(&self.enabled, true);
                write(&self.changing, false);
            }
            State::Changing => {
                write(&self.changing, true);
                write(&self.enabled, false);
            }
            State::Disabled => {
                write(&self.enabled, false);
                write(&self.changing, false);
            }
        }
        if state != State::Changing {
            self.decided.notify_waiters();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::registry::{Entry, Properties, Stability};
    use super::*;

    #[tokio::test]
    async fn whoever_asks_while_a_flag_is_decided_waits_and_message_paths_do_not() {
        let flags = (0..70).map(|n| Properties::flag(&format!("f{n:02}"), Stability::Stable, ""));
        let entries = flags.map(|properties| Entry { properties, callback: None });
        let registry = Arc::new(Registry::new(entries, []).unwrap());
        let states = Arc::new(States::new(Arc::clone(&registry)));
        let id = registry.id("f69").unwrap();
        assert_eq!((states.get(id), states.decided(id).await), (State::Disabled, false));
        states.set(id, State::Changing);
        assert_eq!((states.get(id), states.is_on(id)), (State::Changing, false));
        let asking = tokio::spawn({
            let states = Arc::clone(&states);
            async move { states.decided(id).await }
        });
        tokio::task::yield_now().await;
        assert!(!asking.is_finished());
        states.set(id, State::Enabled);
        assert!(asking.await.unwrap());
        assert!(states.is_on(id) && !states.is_on(registry.id("f05").unwrap()));
    }
}
