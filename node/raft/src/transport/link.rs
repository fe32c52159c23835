//! The dialing half: one task per lane of a peer that redials for ever, whatever anybody thinks of the peer's health.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use warren_proto::ids::NodeId;
use warren_proto::peer::{Beat, Frame, frame};

use super::dial::{self, DialError, Dialed};
use super::lane::{Lane, Outbox};
use super::{INCOMPATIBLE_LOG, Inner, KEEPALIVE_INTERVAL, PeerEvent, QUIET_KEEPALIVE};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
/// After a lane that lived broke. A process that died has closed its port by then.
const AT_ONCE: Duration = Duration::from_millis(15);
/// Together with the time that a dial may take, this keeps a redial within a second of a partition's end.
const BACKOFF_MAX: Duration = Duration::from_millis(400);
/// Time for the listener to accept a lane.
const OPEN_TIME: Duration = Duration::from_secs(2);
/// The same refusal of the same peer is logged this often.
const REPEAT_LOG: Duration = Duration::from_secs(30);

/// One known peer: where it is, and what waits for it.
pub(crate) struct Link {
    pub node: NodeId,
    pub name: String,
    pub address: String,
    pub lanes: [Arc<Outbox>; 4],
    /// Cuts a backoff short.
    pub poke: Arc<Notify>,
    /// Counts the times that the peer fell silent or did not answer. Lanes open then are given up: after a partition a new connection is
    /// there sooner than TCP, which waits longer after each loss, gets anything through an old one.
    pub silences: watch::Sender<u64>,
    /// Sequence of the last beat heard from the peer.
    pub heard: AtomicU64,
    /// Signs that the peer hears this node, on the control lane that is open.
    answers: Mutex<Answers>,
    /// Ends the tasks.
    pub stop: CancellationToken,
    /// The connection that calls use.
    pub calls: tokio::sync::Mutex<Option<Dialed>>,
}

#[derive(Default)]
struct Answers {
    /// The last beat of this node that the peer says it heard.
    echo: u64,
    /// When it last answered in any way; `None` while no control lane is open.
    at: Option<Instant>,
}

impl Link {
    pub(crate) fn new(node: NodeId, name: String, address: String, stop: CancellationToken) -> Self {
        Link {
            node,
            name,
            address,
            lanes: Lane::ALL.map(|lane| Arc::new(Outbox::new(lane))),
            poke: Arc::new(Notify::new()),
            silences: watch::Sender::new(0),
            heard: AtomicU64::new(0),
            answers: Mutex::default(),
            stop,
            calls: tokio::sync::Mutex::new(None),
        }
    }

    /// Sends a sign of life.
    pub(crate) fn beat(&self, sequence: u64) {
        let control = &self.lanes[Lane::Control.number()];
        if control.is_open() {
            // A full lane is a sign of life in itself.
            let heard = self.heard.load(Ordering::Relaxed);
            let _ = control.push(Frame { kind: Some(frame::Kind::Beat(Beat { sequence, heard })) });
        }
    }

    /// A beat came from the peer, on a lane of its own.
    pub(crate) fn beaten(&self, beat: &Beat) {
        self.heard.store(beat.sequence, Ordering::Relaxed);
        let mut answers = self.answers.lock();
        if answers.echo != beat.heard {
            answers.echo = beat.heard;
            answers.at = answers.at.map(|_| Instant::now());
        }
    }

    fn answered(&self) {
        self.answers.lock().at = Some(Instant::now());
    }

    /// The peer may hear nothing of us while we hear it: its beats say nothing of this direction, its answers do. Without
    /// any for too long, the lanes are given up. `stalled`: how long this process did not look.
    pub(crate) fn judge_answers(&self, now: Instant, limit: Duration, stalled: Duration) {
        let mut answers = self.answers.lock();
        answers.at = answers.at.map(|at| (at + stalled).min(now));
        if answers.at.is_some_and(|at| now.saturating_duration_since(at) > limit) {
            answers.at = None;
            info!(peer = %self.name, "peer does not answer, redialling");
            self.silences.send_modify(|n| *n += 1);
        }
    }

    /// Whether the peer can tell by this node's beats that it is heard.
    pub(crate) fn beats(&self) -> bool {
        self.lanes[Lane::Control.number()].is_open()
    }

    /// Stops the tasks and gives up what waits.
    pub(crate) fn close(&self) {
        self.stop.cancel();
        for lane in &self.lanes {
            lane.close();
        }
    }
}

/// Starts a link's tasks.
pub(crate) fn start(inner: &Arc<Inner>, link: &Arc<Link>) {
    let (control, reachable) = watch::channel(false);
    for lane in Lane::ALL {
        let keeper = Keeper { inner: inner.clone(), link: link.clone(), lane };
        // The other lanes wait for the control lane, so that a peer that is away costs one dial, not four.
        let (tell, wait) = match lane {
            Lane::Control => (Some(control.clone()), None),
            _ => (None, Some(reachable.clone())),
        };
        let keeping = async move {
            let stop = keeper.link.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = keeper.run(tell, wait) => {}
            }
        };
        inner.tasks.spawn_on(keeping, inner.threads.of(link.node, lane));
    }
}

/// Keeps one lane open.
struct Keeper {
    inner: Arc<Inner>,
    link: Arc<Link>,
    lane: Lane,
}

impl Keeper {
    async fn run(self, tell: Option<watch::Sender<bool>>, mut wait: Option<watch::Receiver<bool>>) {
        let outbox = &self.link.lanes[self.lane.number()];
        let mut backoff = BACKOFF_MIN;
        let mut complaint = Complaint::default();
        loop {
            if let Some(reachable) = &mut wait
                && reachable.wait_for(|open| *open).await.is_err()
            {
                return;
            }
            let began = Instant::now();
            let mut silences = self.link.silences.subscribe();
            let ended = tokio::select! {
                ended = self.attempt(outbox, tell.as_ref()) => ended,
                _ = silences.changed() => Ok(()),
            };
            if let Some(tell) = &tell {
                tell.send_replace(false);
                self.link.answers.lock().at = None;
            }
            if outbox.detach() {
                debug!(peer = %self.link.name, lane = ?self.lane, "lane to peer lost");
                self.inner.emit(PeerEvent::Gap(self.link.node, self.lane));
                complaint = Complaint::default();
            }
            if let Err(error) = ended {
                if self.lane == Lane::Control && matches!(error, DialError::Refused(_)) {
                    self.inner.refused(self.link.node);
                }
                complaint.about(&self.link, self.lane, &error);
            }
            // A lane that lived is redialled at once; one that breaks as soon as it opens is not.
            let lived = began.elapsed() > BACKOFF_MAX;
            backoff = if lived { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            let jittered = if lived { AT_ONCE } else { backoff }.mul_f64(0.75 + 0.5 * self.inner.jitter());
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                () = self.link.poke.notified(), if self.lane == Lane::Control => {}
            }
        }
    }

    /// Opens the lane and stays until it ends.
    async fn attempt(&self, outbox: &Arc<Outbox>, tell: Option<&watch::Sender<bool>>) -> Result<(), DialError> {
        // The control lane notices a dead path for all; the others' pings only end connections that nobody needs.
        let keepalive = if self.lane == Lane::Control { KEEPALIVE_INTERVAL } else { QUIET_KEEPALIVE };
        let mut dialed = dial::tcp(&self.link.address, &self.inner.secret, &self.inner.identity, keepalive).await?;
        if let Some(listener) = &dialed.listener
            && listener.name != self.link.name
        {
            return Err(DialError::Unreachable(format!(
                "node {} answers at the address of {}",
                listener.name, self.link.name
            )));
        }
        let opening = tokio::time::timeout(OPEN_TIME, dialed.client.lane(outbox.attach())).await;
        let unreachable = |status: tonic::Status| DialError::Unreachable(status.message().to_owned());
        let response = opening.map_err(|_| DialError::Unreachable("the lane was not accepted in time".into()))?;
        let mut acks = response.map_err(unreachable)?.into_inner();
        outbox.opened();
        if let Some(tell) = tell {
            info!(peer = %self.link.name, address = %self.link.address, "connected to peer");
            tell.send_replace(true);
        }
        if self.lane != Lane::Control {
            while acks.message().await.map_err(unreachable)?.is_some() {}
            return Ok(());
        }
        self.link.answered();
        while acks.message().await.map_err(unreachable)?.is_some() {
            self.link.answered();
        }
        Ok(())
    }
}

/// Logs the same trouble once, then now and then.
#[derive(Default)]
struct Complaint {
    last: Option<(String, Instant)>,
}

impl Complaint {
    fn about(&mut self, link: &Link, lane: Lane, error: &DialError) {
        let text = error.to_string();
        let again = if matches!(error, DialError::Incompatible(_)) { INCOMPATIBLE_LOG } else { REPEAT_LOG };
        if let Some((last, at)) = &self.last
            && *last == text
            && at.elapsed() < again
        {
            return;
        }
        match error {
            DialError::AuthenticationFailed(why) => {
                warn!(peer = %link.name, address = %link.address, reason = %why, "authentication failed");
            }
            DialError::Incompatible(why) => {
                warn!(peer = %link.name, address = %link.address, reason = %why, "peer does not go together with this node");
            }
            DialError::Unreachable(why) | DialError::Refused(why) if lane == Lane::Control => {
                info!(peer = %link.name, address = %link.address, reason = %why, "peer unreachable, redialling");
            }
            DialError::Unreachable(why) | DialError::Refused(why) => {
                debug!(peer = %link.name, ?lane, reason = %why, "lane refused")
            }
        }
        self.last = Some((text, Instant::now()));
    }
}
