//! Heartbeats both ways, as arithmetic on instants.

use std::time::{Duration, Instant};

/// What is due.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Due {
    /// Nothing was written for half an interval: send a heartbeat.
    pub send: bool,
    /// Nothing was received during two checks in a row: the peer is gone.
    pub peer_lost: bool,
}

/// The two checks of one connection. With interval 0 nothing is ever due.
#[derive(Debug)]
pub struct Heartbeat {
    interval: Option<Duration>,
    next_send: Instant,
    next_check: Instant,
    wrote: bool,
    received: bool,
    silent_checks: u8,
}

/// Checks without a received byte after which the peer counts as lost.
const SILENT_CHECKS: u8 = 2;

impl Heartbeat {
    /// Heartbeats every `seconds`; 0 disables both directions.
    pub fn new(seconds: u16, now: Instant) -> Self {
        let interval = (seconds > 0).then(|| Duration::from_secs(seconds.into()));
        let step = interval.unwrap_or_default();
        Heartbeat {
            interval,
            next_send: now + step / 2,
            next_check: now + step,
            wrote: false,
            received: false,
            silent_checks: 0,
        }
    }

    /// Something was written.
    pub fn wrote(&mut self) {
        self.wrote = true;
    }

    /// A heartbeat was written, which does not stand for the next one.
    pub fn sent(&mut self) {
        self.wrote = false;
    }

    /// Something was received.
    pub fn received(&mut self) {
        self.received = true;
    }

    /// When to look again; `None` if never.
    pub fn deadline(&self) -> Option<Instant> {
        self.interval.map(|_| self.next_send.min(self.next_check))
    }

    /// Looks. While `reading` is false the receiver's check is suspended: what the peer sends is not being read.
    pub fn check(&mut self, now: Instant, reading: bool) -> Due {
        let mut due = Due::default();
        let Some(interval) = self.interval else {
            return due;
        };
        if now >= self.next_send {
            due.send = !self.wrote;
            self.wrote = false;
            self.next_send = now + interval / 2;
        }
        if now >= self.next_check {
            if self.received || !reading {
                self.silent_checks = 0;
            } else {
                self.silent_checks += 1;
            }
            self.received = false;
            due.peer_lost = self.silent_checks >= SILENT_CHECKS;
            self.next_check = now + interval;
        }
        due
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_silent_peer_is_lost_between_two_and_three_intervals_after_its_last_byte() {
        let start = Instant::now();
        let mut beat = Heartbeat::new(2, start);
        let mut lost = None;
        for tenth in 1..100 {
            let now = start + SECOND * tenth / 10;
            if tenth == 15 {
                beat.received();
            }
            if beat.check(now, true).peer_lost {
                lost = Some(tenth);
                break;
            }
        }
        let lost = lost.expect("the peer is lost");
        assert!((55..=75).contains(&lost), "{lost}");
    }

    #[test]
    fn a_heartbeat_goes_out_each_half_interval_unless_something_else_did() {
        let start = Instant::now();
        let mut beat = Heartbeat::new(10, start);
        assert!(!beat.check(start + SECOND * 4, true).send);
        assert!(beat.check(start + SECOND * 5, true).send);
        // Writing the heartbeat itself counts as writing; that it was one is said afterwards.
        beat.wrote();
        beat.sent();
        assert!(beat.check(start + SECOND * 10, true).send);
        beat.wrote();
        assert!(!beat.check(start + SECOND * 15, true).send);
        assert!(beat.check(start + SECOND * 20, true).send);
    }

    #[test]
    fn the_receivers_check_waits_while_nothing_is_read() {
        let start = Instant::now();
        let mut beat = Heartbeat::new(1, start);
        for second in 1..10 {
            assert!(!beat.check(start + SECOND * second, false).peer_lost);
        }
        assert!(!beat.check(start + SECOND * 10, true).peer_lost);
        assert!(beat.check(start + SECOND * 11, true).peer_lost);
    }

    #[test]
    fn interval_zero_disables_both() {
        let start = Instant::now();
        let mut beat = Heartbeat::new(0, start);
        assert_eq!(beat.deadline(), None);
        assert_eq!(beat.check(start + SECOND * 1000, true), Due::default());
    }
}
