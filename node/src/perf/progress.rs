//! The live display on a terminal.

use std::sync::Arc;
use std::time::Duration;

use indicatif::{ProgressBar, ProgressStyle};

use super::measure::{Run, Snapshot};
use super::report::grouped;

const STEP: Duration = Duration::from_secs(1);

/// Redraws a line each second until it is aborted.
pub async fn show(run: Arc<Run>, length: Option<Duration>, messages: Option<u64>) {
    let bar = match (length, messages) {
        (Some(length), _) => ProgressBar::new(length.as_secs().max(1)),
        (None, Some(messages)) => ProgressBar::new(messages),
        (None, None) => ProgressBar::no_length(),
    };
    if let Ok(style) = ProgressStyle::with_template("{bar:20} {elapsed:>4}  {msg}") {
        bar.set_style(style);
    }
    let mut before = run.totals.snapshot(&run.clock);
    let mut ticks = tokio::time::interval(STEP);
    ticks.tick().await;
    let mut seconds = 0;
    loop {
        ticks.tick().await;
        seconds += 1;
        let now = run.totals.snapshot(&run.clock);
        bar.set_message(line(&before, &now));
        bar.set_position(match length {
            Some(_) => seconds,
            None => now.confirmed.max(now.consumed),
        });
        before = now;
    }
}

fn line(before: &Snapshot, now: &Snapshot) -> String {
    let seconds = (now.at - before.at).max(1) as f64 / 1e9;
    let rate = |now: u64, before: u64| grouped(((now - before) as f64 / seconds) as u64);
    let mut text = format!(
        "sent {}/s  confirmed {}/s  received {}/s",
        rate(now.published, before.published),
        rate(now.confirmed, before.confirmed),
        rate(now.consumed, before.consumed),
    );
    if now.nacked > 0 {
        text.push_str(&format!("  refused {}", grouped(now.nacked)));
    }
    if now.errors > 0 {
        text.push_str(&format!("  broken connections {}", now.errors));
    }
    text
}

/// Leaves the line clean for the report.
pub fn clear() {
    eprint!("\r\x1b[2K");
}
