//! The dialing half: one task per lane of a peer that redials for ever, whatever anybody thinks of the peer's health.

use std::sync::Arc;
use std::time::{Duration, Instant};

use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;
use tracing::{debug, info, warn};
use warren_proto::ids::NodeId;
use warren_proto::peer::{Beat, Frame, frame};

use super::dial::{self, DialError, Dialed};
use super::lane::{Lane, Outbox};
use super::{Inner, PeerEvent};

const BACKOFF_MIN: Duration = Duration::from_millis(50);
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
    /// Ends the tasks.
    pub stop: CancellationToken,
    /// The connection that calls use.
    pub calls: tokio::sync::Mutex<Option<Dialed>>,
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
            stop,
            calls: tokio::sync::Mutex::new(None),
        }
    }

    /// Sends a sign of life.
    pub(crate) fn beat(&self, sequence: u64) {
        let control = &self.lanes[Lane::Control.number()];
        if control.is_open() {
            // A full lane is a sign of life in itself.
            let _ = control.push(Frame { kind: Some(frame::Kind::Beat(Beat { sequence })) });
        }
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
        inner.tasks.spawn(async move {
            let stop = keeper.link.stop.clone();
            tokio::select! {
                () = stop.cancelled() => {}
                () = keeper.run(tell, wait) => {}
            }
        });
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
            }
            if outbox.detach() {
                debug!(peer = %self.link.name, lane = ?self.lane, "lane to peer lost");
                self.inner.emit(PeerEvent::Gap(self.link.node, self.lane));
                complaint = Complaint::default();
            }
            if let Err(error) = ended {
                complaint.about(&self.link, self.lane, &error);
            }
            // A lane that lived is redialled at once; one that breaks as soon as it opens is not.
            backoff = if began.elapsed() > BACKOFF_MAX { BACKOFF_MIN } else { (backoff * 2).min(BACKOFF_MAX) };
            let jittered = backoff.mul_f64(0.75 + 0.5 * self.inner.jitter());
            tokio::select! {
                () = tokio::time::sleep(jittered) => {}
                () = self.link.poke.notified(), if self.lane == Lane::Control => {}
            }
        }
    }

    /// Opens the lane and stays until it ends.
    async fn attempt(&self, outbox: &Arc<Outbox>, tell: Option<&watch::Sender<bool>>) -> Result<(), DialError> {
        let mut dialed = dial::tcp(&self.link.address, &self.inner.secret, &self.inner.identity).await?;
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
        // The peer may hear nothing of us while we hear it: its beats say nothing of this direction, its answers do.
        loop {
            match tokio::time::timeout(self.inner.suspicion.max, acks.message()).await {
                Ok(Ok(Some(_))) => {}
                Ok(Ok(None)) => return Ok(()),
                Ok(Err(status)) => return Err(unreachable(status)),
                Err(_) => {
                    self.link.silences.send_modify(|n| *n += 1);
                    return Err(DialError::Unreachable("no answer to beats".into()));
                }
            }
        }
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
        if let Some((last, at)) = &self.last
            && *last == text
            && at.elapsed() < REPEAT_LOG
        {
            return;
        }
        match error {
            DialError::AuthenticationFailed(why) => {
                warn!(peer = %link.name, address = %link.address, reason = %why, "authentication failed");
            }
            DialError::Unreachable(why) if lane == Lane::Control => {
                info!(peer = %link.name, address = %link.address, reason = %why, "peer unreachable, redialling");
            }
            DialError::Unreachable(why) => {
                debug!(peer = %link.name, ?lane, reason = %why, "lane refused")
            }
        }
        self.last = Some((text, Instant::now()));
    }
}
