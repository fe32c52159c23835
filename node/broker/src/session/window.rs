//! A limit on the unanswered deliveries of all consumers of a session together (`basic.qos` with `global`).
//!
//! Queues know nothing of it. What they deliver beyond it is dropped here and asked for again, in the order in which
//! consumers had to wait, once there is room.

use std::collections::VecDeque;

/// See the module's head.
#[derive(Debug, Default)]
pub struct SharedWindow {
    /// 0 = none.
    limit: u16,
    held: usize,
    /// Consumers that were not given something.
    waiting: VecDeque<u32>,
}

impl SharedWindow {
    /// The limit; 0 = none.
    pub fn limit(&self) -> u16 {
        self.limit
    }

    /// Sets the limit; 0 = none.
    pub fn set_limit(&mut self, limit: u16) {
        self.limit = limit;
    }

    /// Whether nothing more may be delivered.
    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    /// How many more deliveries there may be.
    pub fn room(&self) -> usize {
        if self.limit == 0 { usize::MAX } else { usize::from(self.limit).saturating_sub(self.held) }
    }

    /// Something was delivered that has to be answered.
    pub fn taken(&mut self) {
        self.held += 1;
    }

    /// And was.
    pub fn answered(&mut self) {
        self.held = self.held.saturating_sub(1);
    }

    /// A consumer was not given something.
    pub fn wait(&mut self, consumer: u32) {
        if !self.waiting.contains(&consumer) {
            self.waiting.push_back(consumer);
        }
    }

    /// The consumer that has waited longest, which does not any more.
    pub fn next_waiting(&mut self) -> Option<u32> {
        self.waiting.pop_front()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn consumers_share_the_limit_and_wait_in_turn() {
        let mut window = SharedWindow::default();
        (0..5).for_each(|_| window.taken());
        assert!(!window.is_full(), "without a limit");
        window.set_limit(6);
        assert_eq!(window.room(), 1);
        window.taken();
        assert!(window.is_full());
        window.wait(3);
        window.wait(1);
        window.wait(3);
        window.set_limit(2);
        (0..4).for_each(|_| window.answered());
        assert!(window.is_full(), "a lower limit counts what is held");
        window.answered();
        assert_eq!((window.room(), window.next_waiting(), window.next_waiting()), (1, Some(3), Some(1)));
        assert_eq!(window.next_waiting(), None);
    }
}
