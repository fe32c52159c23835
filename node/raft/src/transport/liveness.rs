//! Which peers are alive: beats arrive every 100 ms on the control lane, and silence is judged by how regular they were.

use std::time::{Duration, Instant};

/// How often a sign of life is sent.
pub const BEAT_INTERVAL: Duration = Duration::from_millis(100);
/// A peer whose control lane broke and did not come back for this long is down: its process died, or the path did.
const BROKEN_GRACE: Duration = Duration::from_millis(250);
/// Share of the remembered largest gap that each regular beat takes away: an old hiccup is forgotten in seconds.
const GAP_DECAY: f64 = 0.98;

/// Bounds of the time after which a silent peer counts as down.
#[derive(Debug, Clone, Copy)]
pub struct Suspicion {
    /// With regular beats.
    pub min: Duration,
    /// However irregular they were.
    pub max: Duration,
}

impl Default for Suspicion {
    fn default() -> Self {
        Suspicion { min: Duration::from_millis(500), max: Duration::from_millis(1000) }
    }
}

/// The other process's life, as its introduction said.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Life {
    pub incarnation: u64,
    pub start: u64,
}

/// What changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Change {
    Up(u64),
    Down,
}

/// One peer's state. All times are passed in, so that a test needs no clock.
#[derive(Debug, Default)]
pub(crate) struct Detector {
    up: Option<Life>,
    last_heard: Option<Instant>,
    /// Largest gap between two signs of life lately.
    gap: f64,
    /// Control lanes open now, and since when there is none.
    control_lanes: u32,
    broken_at: Option<Instant>,
}

impl Detector {
    pub(crate) fn is_up(&self) -> bool {
        self.up.is_some()
    }

    /// The peer opened its control lane to us.
    pub(crate) fn opened(&mut self, life: Life, now: Instant) -> Vec<Change> {
        self.control_lanes += 1;
        self.broken_at = None;
        self.last_heard = Some(now);
        let mut changes = Vec::new();
        match self.up {
            Some(known) if known == life => return changes,
            // Another process answers to the name: whatever the old one held is gone, even if nobody noticed it die.
            Some(_) => changes.push(Change::Down),
            None => {}
        }
        self.gap = 0.0;
        self.up = Some(life);
        changes.push(Change::Up(life.incarnation));
        changes
    }

    /// A frame arrived from the peer.
    pub(crate) fn heard(&mut self, life: Life, now: Instant) -> Option<Change> {
        if let Some(last) = self.last_heard {
            let gap = now.saturating_duration_since(last).as_secs_f64();
            self.gap = gap.max(self.gap * GAP_DECAY);
        }
        self.last_heard = Some(now);
        if self.up.is_none() && self.control_lanes > 0 {
            // It was silent and speaks again on the same connection.
            self.gap = 0.0;
            self.up = Some(life);
            return Some(Change::Up(life.incarnation));
        }
        None
    }

    /// A control lane that was open is not any more.
    pub(crate) fn broke(&mut self, now: Instant) {
        self.control_lanes = self.control_lanes.saturating_sub(1);
        if self.control_lanes == 0 {
            self.broken_at = Some(now);
        }
    }

    /// Nobody listens at its address: with its control lane broken as well, its process is gone.
    pub(crate) fn refused(&mut self) -> Option<Change> {
        if self.control_lanes > 0 || self.broken_at.is_none() {
            return None;
        }
        self.up.take().map(|_| Change::Down)
    }

    /// Judges silence. `stalled` is how much longer than planned this process itself did not look: it does not count.
    pub(crate) fn judge(&mut self, now: Instant, suspicion: Suspicion, stalled: Duration) -> Option<Change> {
        if !stalled.is_zero() {
            self.last_heard = self.last_heard.map(|t| (t + stalled).min(now));
            self.broken_at = self.broken_at.map(|t| (t + stalled).min(now));
        }
        self.up?;
        let limit = Duration::from_secs_f64(4.0 * self.gap).clamp(suspicion.min, suspicion.max);
        let silent = self.last_heard.is_none_or(|t| now.saturating_duration_since(t) > limit);
        let broken = self.broken_at.is_some_and(|t| now.saturating_duration_since(t) > BROKEN_GRACE);
        if silent || broken {
            self.up = None;
            return Some(Change::Down);
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIFE: Life = Life { incarnation: 7, start: 1 };

    fn ms(n: u64) -> Duration {
        Duration::from_millis(n)
    }

    #[test]
    fn a_peer_is_up_from_its_first_lane_until_it_is_silent() {
        let t = Instant::now();
        let mut d = Detector::default();
        assert_eq!(d.opened(LIFE, t), [Change::Up(7)]);
        for i in 1..20 {
            assert_eq!(d.heard(LIFE, t + ms(100 * i)), None);
            assert_eq!(d.judge(t + ms(100 * i + 50), Suspicion::default(), Duration::ZERO), None);
        }
        assert_eq!(d.judge(t + ms(2300), Suspicion::default(), Duration::ZERO), None);
        assert_eq!(d.judge(t + ms(2500), Suspicion::default(), Duration::ZERO), Some(Change::Down));
        assert_eq!(d.heard(LIFE, t + ms(2600)), Some(Change::Up(7)));
    }

    #[test]
    fn a_broken_lane_is_noticed_before_silence_is() {
        let t = Instant::now();
        let mut d = Detector::default();
        d.opened(LIFE, t);
        d.broke(t + ms(10));
        assert_eq!(d.judge(t + ms(200), Suspicion::default(), Duration::ZERO), None);
        assert_eq!(d.judge(t + ms(300), Suspicion::default(), Duration::ZERO), Some(Change::Down));
    }

    #[test]
    fn a_process_that_is_gone_is_noticed_when_nobody_listens_at_its_address() {
        let t = Instant::now();
        let mut d = Detector::default();
        assert_eq!(d.refused(), None, "it was never there");
        d.opened(LIFE, t);
        assert_eq!(d.refused(), None, "its lane is open: the address is wrong, or old");
        d.broke(t + ms(10));
        assert_eq!(d.refused(), Some(Change::Down));
        assert_eq!(d.refused(), None);
    }

    #[test]
    fn a_restarted_process_is_down_and_up_again() {
        let t = Instant::now();
        let mut d = Detector::default();
        d.opened(LIFE, t);
        assert_eq!(d.opened(LIFE, t), []);
        assert_eq!(d.opened(Life { incarnation: 7, start: 2 }, t), [Change::Down, Change::Up(7)]);
    }

    #[test]
    fn time_in_which_this_process_did_not_run_is_not_silence() {
        let t = Instant::now();
        let mut d = Detector::default();
        d.opened(LIFE, t);
        assert_eq!(d.judge(t + ms(5000), Suspicion::default(), ms(4900)), None);
    }
}
