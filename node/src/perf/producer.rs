//! A producer: one task that writes, reads confirms and keeps its window, with one system call per batch.

use std::collections::VecDeque;
use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tokio::io::Interest;
use warren_proto::amqp091::FrameKind;

use super::connection::{Connection, checked};
use super::inbox::Inbox;
use super::measure::{Latencies, Run};
use super::publication::{Bodies, Publication};
use super::uri::Uri;

/// Bytes that are laid out before they are written.
const BATCH: usize = 64 * 1024;
/// How often an idle producer looks whether the run is over.
const IDLE: Duration = Duration::from_millis(50);
/// How long confirms are awaited after the last publish.
const DRAIN: u64 = 10_000_000_000;
/// Wait before a broken connection is opened again.
const REDIAL: Duration = Duration::from_millis(250);

/// What a producer does.
#[derive(Clone, Debug)]
pub struct ProducerPlan {
    /// The nodes, the first one to try first.
    pub uris: Vec<Uri>,
    /// Queues that it publishes to, in turn.
    pub queues: Vec<String>,
    /// Body size.
    pub size: usize,
    /// Whether messages are persistent.
    pub persistent: bool,
    /// Priorities that they have in turn; 0: none.
    pub priorities: u8,
    /// Unconfirmed messages at most; 0: no confirms.
    pub window: usize,
    /// Nanoseconds between messages in an open loop; `None`: as fast as the window allows.
    pub interval: Option<f64>,
    /// Messages to send; `None`: until stopped.
    pub messages: Option<u64>,
    /// Whether a broken connection is opened again.
    pub reconnect: bool,
}

/// Runs a producer until it sent its messages or is stopped, and its confirms came.
pub async fn produce(plan: ProducerPlan, bodies: Arc<Bodies>, run: Arc<Run>) {
    let mut latencies = Latencies::new();
    let mut sent = 0;
    let start = run.clock.now();
    for attempt in 0.. {
        let uri = &plan.uris[attempt % plan.uris.len()];
        match session(uri, &plan, &bodies, &run, start, &mut sent, &mut latencies).await {
            Ok(()) => break,
            Err(error) => run.error("producer", &error),
        }
        if !plan.reconnect || run.stop_publishing.load(Relaxed) {
            break;
        }
        tokio::time::sleep(REDIAL).await;
    }
    run.confirms.lock().merge(&latencies);
}

/// Unconfirmed messages of a channel, by number: when each was sent, 0 once it is settled out of order.
#[derive(Debug, Default)]
struct Window {
    sent: VecDeque<u64>,
    /// Number of the first one; a channel counts from 1.
    first: u64,
    /// Settled ones still in `sent`.
    holes: usize,
}

impl Window {
    fn open(&self) -> usize {
        self.sent.len() - self.holes
    }

    /// How many more may be sent. Confirms that overtake an old one widen the list, but not without end.
    fn room(&self, window: usize) -> usize {
        window.saturating_sub(self.open()).min((window * 4).saturating_sub(self.sent.len()))
    }

    /// Settles `tag`, with all before it if `multiple`; tells `latency` how many were sent when. Returns how many it
    /// settled.
    fn settle(&mut self, tag: u64, multiple: bool, mut latency: impl FnMut(u64, u64)) -> u64 {
        let mut count = 0;
        if multiple {
            let last = if tag == 0 { u64::MAX } else { tag };
            // Messages of one batch share their time: count them together.
            let (mut time, mut same) = (0, 0);
            while self.first <= last {
                let Some(sent) = self.sent.pop_front() else {
                    break;
                };
                self.first += 1;
                if sent == 0 {
                    self.holes -= 1;
                    continue;
                }
                count += 1;
                if sent != time {
                    if same > 0 {
                        latency(time, same);
                    }
                    (time, same) = (sent, 0);
                }
                same += 1;
            }
            if same > 0 {
                latency(time, same);
            }
        } else if let Some(sent) =
            tag.checked_sub(self.first).and_then(|index| self.sent.get_mut(usize::try_from(index).ok()?))
            && *sent != 0
        {
            latency(*sent, 1);
            *sent = 0;
            count = 1;
            self.holes += 1;
        }
        while self.sent.front() == Some(&0) {
            self.sent.pop_front();
            self.first += 1;
            self.holes -= 1;
        }
        count
    }
}

/// One connection's worth of publishing. `Ok` when the producer is done.
async fn session(
    uri: &Uri,
    plan: &ProducerPlan,
    bodies: &Bodies,
    run: &Run,
    start: u64,
    sent: &mut u64,
    latencies: &mut Latencies,
) -> io::Result<()> {
    let mut connection = Connection::open(uri).await?;
    let confirms = plan.window > 0;
    if confirms {
        connection.confirm().await?;
    }
    let priorities: Vec<Option<u8>> = match plan.priorities {
        0 => vec![None],
        count => (0..count).map(Some).collect(),
    };
    // Each queue in turn with one priority, then with the next.
    let publications: Vec<Publication> = priorities
        .into_iter()
        .flat_map(|priority| plan.queues.iter().map(move |queue| (queue, priority)))
        .map(|(queue, priority)| Publication::new(queue, plan.size, plan.persistent, priority, connection.frame_max))
        .collect();
    let mut window = Window { first: 1, ..Window::default() };
    let result = publish(&mut connection, &publications, plan, bodies, run, start, sent, &mut window, latencies).await;
    run.totals.unknown.fetch_add(window.open() as u64, Relaxed);
    result?;
    connection.close().await;
    Ok(())
}

#[allow(clippy::too_many_arguments, reason = "the hot loop's state, split from the connection's set-up")]
async fn publish(
    connection: &mut Connection,
    publications: &[Publication],
    plan: &ProducerPlan,
    bodies: &Bodies,
    run: &Run,
    start: u64,
    sent: &mut u64,
    window: &mut Window,
    latencies: &mut Latencies,
) -> io::Result<()> {
    let confirms = plan.window > 0;
    let mut out: Vec<u8> = Vec::with_capacity(BATCH * 2);
    let mut written = 0;
    let mut deadline = None;
    loop {
        let now = run.clock.now();
        let finished = run.stop_publishing.load(Relaxed) || plan.messages.is_some_and(|messages| *sent >= messages);
        let mut wait = IDLE;
        if finished {
            let nothing_left = written == out.len() && window.sent.is_empty();
            if nothing_left || now > *deadline.get_or_insert(now + DRAIN) {
                return Ok(());
            }
        } else if written == out.len() {
            out.clear();
            written = 0;
            let mut room = if confirms { window.room(plan.window) } else { usize::MAX };
            if let Some(messages) = plan.messages {
                room = room.min(usize::try_from(messages - *sent).unwrap_or(usize::MAX));
            }
            let mut count = 0;
            while count < room && out.len() < BATCH {
                let mut due = now;
                if let Some(interval) = plan.interval {
                    due = start + (*sent as f64 * interval) as u64;
                    if due > now {
                        wait = wait.min(Duration::from_nanos(due - now));
                        break;
                    }
                }
                let queue = (*sent % publications.len() as u64) as usize;
                publications[queue].write(&mut out, bodies, *sent, due);
                if confirms {
                    window.sent.push_back(due);
                }
                *sent += 1;
                count += 1;
            }
            if count > 0 {
                run.totals.published.fetch_add(count as u64, Relaxed);
            }
        }
        let mut progress = false;
        if written < out.len() {
            match connection.stream.try_write(&out[written..]) {
                Ok(count) => {
                    written += count;
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        if connection.inbox.fill(&connection.stream)? > 0 {
            progress = true;
            confirmations(&mut connection.inbox, window, run, latencies)?;
        }
        if progress {
            tokio::task::yield_now().await;
            continue;
        }
        let interest = if written < out.len() { Interest::READABLE | Interest::WRITABLE } else { Interest::READABLE };
        let _ = tokio::time::timeout(wait, connection.stream.ready(interest)).await;
    }
}

/// Walks what was read: acks, nacks, and whatever else a broker may say.
fn confirmations(inbox: &mut Inbox, window: &mut Window, run: &Run, latencies: &mut Latencies) -> io::Result<()> {
    const ACK: [u8; 4] = [0, 60, 0, 80];
    const NACK: [u8; 4] = [0, 60, 0, 120];
    let now = run.clock.now();
    let from = run.measure_from.load(Relaxed);
    let (mut confirmed, mut nacked) = (0, 0);
    while let Some(frame) = inbox.next()? {
        if frame.kind != FrameKind::Method.octet() {
            continue;
        }
        match frame.payload {
            [a, b, c, d, tag @ .., flags] if tag.len() == 8 && [*a, *b, *c, *d] == ACK => {
                let settled = window.settle(number(tag), flags & 1 != 0, |sent, count| {
                    if now >= from {
                        latencies.record(sent, now, count);
                    }
                });
                confirmed += settled;
            }
            [a, b, c, d, tag @ .., flags] if tag.len() == 8 && [*a, *b, *c, *d] == NACK => {
                nacked += window.settle(number(tag), flags & 1 != 0, |_, _| {});
            }
            other => {
                checked(other)?;
            }
        }
    }
    if confirmed > 0 {
        run.totals.confirmed.fetch_add(confirmed, Relaxed);
    }
    if nacked > 0 {
        run.totals.nacked.fetch_add(nacked, Relaxed);
    }
    Ok(())
}

fn number(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |number, byte| number << 8 | u64::from(*byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn window(times: &[u64]) -> Window {
        Window { sent: times.iter().copied().collect(), first: 1, holes: 0 }
    }

    #[test]
    fn a_multiple_confirm_settles_all_before_it_by_batches_of_equal_time() {
        let mut window = window(&[5, 5, 5, 7, 9]);
        let mut seen = Vec::new();
        assert_eq!(window.settle(4, true, |time, count| seen.push((time, count))), 4);
        assert_eq!(seen, [(5, 3), (7, 1)]);
        assert_eq!((window.open(), window.first), (1, 5));
    }

    #[test]
    fn single_confirms_may_come_out_of_order_and_twice() {
        let mut window = window(&[1, 2, 3]);
        assert_eq!(window.settle(2, false, |_, _| {}), 1);
        assert_eq!(window.settle(2, false, |_, _| {}), 0);
        assert_eq!((window.open(), window.sent.len()), (2, 3));
        assert_eq!(window.settle(1, false, |_, _| {}), 1);
        assert_eq!((window.open(), window.sent.len(), window.first), (1, 1, 3));
        assert_eq!(window.settle(3, true, |_, _| {}), 1);
        assert_eq!(window.settle(9, false, |_, _| {}), 0);
        assert_eq!(window.open(), 0);
    }
}
