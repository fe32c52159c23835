//! A consumer: one task that reads deliveries and acknowledges them in bulk.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::BytesMut;
use tokio::io::Interest;
use tokio::time::timeout;
use warren_proto::amqp091::{BasicAck, FrameKind};

use super::connection::{CHANNEL, Connection, checked};
use super::inbox::Inbox;
use super::measure::{Latencies, Run};
use super::publication::STAMP;
use super::uri::Uri;

/// How long a consumer waits for more before it acknowledges what it has.
const IDLE: Duration = Duration::from_millis(20);
/// Wait before a broken connection is opened again.
const REDIAL: Duration = Duration::from_millis(250);

/// What a consumer does.
#[derive(Clone, Debug)]
pub struct ConsumerPlan {
    /// The nodes, the first one to try first.
    pub uris: Vec<Uri>,
    /// Queues that it consumes.
    pub queues: Vec<String>,
    /// Unacknowledged deliveries at most per queue; 0: no limit.
    pub prefetch: u16,
    /// Deliveries per acknowledgement; 0: none needed.
    pub ack_every: u64,
    /// Whether a broken connection is opened again.
    pub reconnect: bool,
}

/// Runs a consumer until it is stopped.
pub async fn consume(plan: ConsumerPlan, run: Arc<Run>) {
    let mut latencies = Latencies::new();
    for attempt in 0.. {
        match session(&plan.uris[attempt % plan.uris.len()], &plan, &run, &mut latencies).await {
            Ok(()) => break,
            Err(error) => run.error("consumer", &error),
        }
        if !plan.reconnect || run.stop_consuming.load(Relaxed) {
            break;
        }
        tokio::time::sleep(REDIAL).await;
    }
    run.end_to_end.lock().merge(&latencies);
}

async fn session(uri: &Uri, plan: &ConsumerPlan, run: &Run, latencies: &mut Latencies) -> io::Result<()> {
    let mut connection = Connection::open(uri).await?;
    connection.prefetch(plan.prefetch).await?;
    for queue in &plan.queues {
        connection.consume(queue, plan.ack_every == 0).await?;
    }
    let mut deliveries = Deliveries::default();
    let mut out = BytesMut::new();
    let mut acked = 0;
    loop {
        if run.stop_consuming.load(Relaxed) && out.is_empty() && (plan.ack_every == 0 || acked == deliveries.last) {
            connection.close().await;
            return Ok(());
        }
        let mut progress = false;
        if connection.inbox.fill(&connection.stream)? > 0 {
            progress = true;
            deliveries.walk(&mut connection.inbox, run, latencies)?;
        }
        // Leftovers are acknowledged when nothing more came for a while.
        let waiting = deliveries.last - acked;
        let enough = waiting >= plan.ack_every || deliveries.idle;
        if plan.ack_every > 0 && waiting > 0 && enough && out.is_empty() {
            BasicAck { delivery_tag: deliveries.last, multiple: true }.write_frame(CHANNEL, &mut out);
            acked = deliveries.last;
        }
        if !out.is_empty() {
            match connection.stream.try_write(&out) {
                Ok(count) => {
                    let _ = out.split_to(count);
                    progress = true;
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
        deliveries.idle = false;
        if progress {
            tokio::task::yield_now().await;
            continue;
        }
        let interest = if out.is_empty() { Interest::READABLE } else { Interest::READABLE | Interest::WRITABLE };
        deliveries.idle = timeout(IDLE, connection.stream.ready(interest)).await.is_err();
    }
}

/// The delivery that is being read, across reads.
#[derive(Debug, Default)]
struct Deliveries {
    /// Tag of the last whole delivery.
    last: u64,
    /// Nothing came for [`IDLE`].
    idle: bool,
    tag: u64,
    redelivered: bool,
    /// Body bytes still to come.
    rest: u64,
    size: u64,
}

impl Deliveries {
    fn walk(&mut self, inbox: &mut Inbox, run: &Run, latencies: &mut Latencies) -> io::Result<()> {
        const DELIVER: &[u8] = &[0, 60, 0, 60];
        let now = run.clock.now();
        let measuring = now >= run.measure_from.load(Relaxed);
        let (mut count, mut bytes, mut redelivered) = (0u64, 0u64, 0u64);
        while let Some(frame) = inbox.next()? {
            let payload = frame.payload;
            match FrameKind::from_octet(frame.kind) {
                Some(FrameKind::Body) => {
                    let whole = self.rest == self.size;
                    if whole && measuring && payload.len() >= STAMP && !self.redelivered {
                        latencies.record(big_endian(payload), now, 1);
                    }
                    self.rest = self.rest.saturating_sub(payload.len() as u64);
                }
                Some(FrameKind::Header) => {
                    self.size = payload.get(4..).map_or(0, big_endian);
                    self.rest = self.size;
                }
                Some(FrameKind::Method) if payload.starts_with(DELIVER) => {
                    let tag_at = 5 + payload.get(4).map_or(0, |length| usize::from(*length));
                    self.tag = payload.get(tag_at..).map_or(0, big_endian);
                    self.redelivered = payload.get(tag_at + 8) == Some(&1);
                    continue;
                }
                Some(FrameKind::Method) => {
                    checked(payload)?;
                    continue;
                }
                Some(FrameKind::Heartbeat) | None => continue,
            }
            if self.rest == 0 {
                self.last = self.tag;
                count += 1;
                bytes += self.size;
                redelivered += u64::from(self.redelivered);
            }
        }
        if count > 0 {
            run.totals.consumed.fetch_add(count, Relaxed);
            run.totals.consumed_bytes.fetch_add(bytes, Relaxed);
        }
        if redelivered > 0 {
            run.totals.redelivered.fetch_add(redelivered, Relaxed);
        }
        Ok(())
    }
}

/// The first eight bytes as a number; 0 if there are fewer.
fn big_endian(bytes: &[u8]) -> u64 {
    bytes.first_chunk().map_or(0, |eight| u64::from_be_bytes(*eight))
}
