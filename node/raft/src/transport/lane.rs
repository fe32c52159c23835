//! A lane to one peer: frames wait here, bounded, until the stream that carries them takes them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use futures_util::Stream;
use parking_lot::Mutex;
use prost::Message;
use warren_proto::peer::{Frame, LaneOpen, frame};

/// What travels together to a peer. Small things never wait behind big ones: each lane has its own connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lane {
    /// Heartbeats and votes.
    Control,
    /// Raft appends and their answers.
    Append,
    /// Requests and events between sessions and queue leaders.
    Queue,
    /// Snapshots.
    Bulk,
}

impl Lane {
    /// All lanes, in the order of their numbers on the wire.
    pub const ALL: [Lane; 4] = [Lane::Control, Lane::Append, Lane::Queue, Lane::Bulk];

    pub(crate) fn number(self) -> usize {
        match self {
            Lane::Control => 0,
            Lane::Append => 1,
            Lane::Queue => 2,
            Lane::Bulk => 3,
        }
    }

    pub(crate) fn from_number(n: u32) -> Option<Lane> {
        Lane::ALL.get(n as usize).copied()
    }

    fn bounds(self) -> Bounds {
        match self {
            Lane::Control => Bounds { frames: 16 << 10, bytes: 16 << 20 },
            Lane::Append => Bounds { frames: 64 << 10, bytes: 64 << 20 },
            Lane::Queue => Bounds { frames: 64 << 10, bytes: 64 << 20 },
            Lane::Bulk => Bounds { frames: 1 << 10, bytes: 32 << 20 },
        }
    }
}

#[derive(Clone, Copy)]
struct Bounds {
    frames: usize,
    bytes: usize,
}

/// How long frames are taken for a lane that has no stream: long enough for a redial, short enough that a peer which
/// is gone pins nothing.
pub(crate) const HOLD: Duration = Duration::from_secs(2);

/// Frames on their way into one lane of one peer.
pub(crate) struct Outbox {
    lane: Lane,
    state: Mutex<State>,
    frames: AtomicUsize,
    bytes: AtomicUsize,
}

struct State {
    waiting: VecDeque<(Frame, usize)>,
    link: Link,
    /// Identifies the stream that may take frames; grows with each attempt.
    attempt: u64,
    waker: Option<Waker>,
}

enum Link {
    Open,
    DownSince(Instant),
    Closed,
}

impl Outbox {
    pub(crate) fn new(lane: Lane) -> Self {
        Outbox {
            lane,
            state: Mutex::new(State {
                waiting: VecDeque::new(),
                link: Link::DownSince(Instant::now()),
                attempt: 0,
                waker: None,
            }),
            frames: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
        }
    }

    /// Takes a frame, or gives it back: the lane is full, or has had no stream for [`HOLD`].
    #[allow(clippy::result_large_err, reason = "giving the frame back is the point")]
    pub(crate) fn push(&self, frame: Frame) -> Result<(), Frame> {
        let len = frame.encoded_len();
        let bounds = self.lane.bounds();
        let mut state = self.state.lock();
        match state.link {
            Link::Open => {}
            Link::DownSince(at) if at.elapsed() < HOLD => {}
            Link::DownSince(_) | Link::Closed => return Err(frame),
        }
        let frames = self.frames.load(Ordering::Relaxed);
        let bytes = self.bytes.load(Ordering::Relaxed);
        // A frame above the byte bound passes when it is alone, so that no frame is unsendable.
        if frames >= bounds.frames || (bytes + len > bounds.bytes && frames > 0) {
            return Err(frame);
        }
        self.frames.fetch_add(1, Ordering::Relaxed);
        self.bytes.fetch_add(len, Ordering::Relaxed);
        state.waiting.push_back((frame, len));
        let waker = state.waker.take();
        drop(state);
        if let Some(waker) = waker {
            waker.wake();
        }
        Ok(())
    }

    /// A stream of the frames, for one attempt at the lane; earlier attempts' streams end.
    pub(crate) fn attach(self: &Arc<Self>) -> LaneStream {
        let mut state = self.state.lock();
        state.attempt += 1;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
        LaneStream { outbox: self.clone(), attempt: state.attempt, opened: false, taken: VecDeque::new() }
    }

    /// Bytes of the frames that wait.
    pub(crate) fn waiting_bytes(&self) -> usize {
        self.bytes.load(Ordering::Relaxed)
    }

    /// Number of frames waiting.
    #[cfg(test)]
    pub(crate) fn waiting(&self) -> usize {
        self.frames.load(Ordering::Relaxed)
    }

    /// Whether a stream takes frames.
    pub(crate) fn is_open(&self) -> bool {
        matches!(self.state.lock().link, Link::Open)
    }

    /// The listener accepted the stream.
    pub(crate) fn opened(&self) {
        let mut state = self.state.lock();
        if !matches!(state.link, Link::Closed) {
            state.link = Link::Open;
        }
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// The attempt is over. Frames accepted for a stream that was open are lost with it, so that none is delivered
    /// after a gap that the sender was not told of; before, they may wait for the next attempt, up to [`HOLD`].
    /// Answers whether the lane had been open.
    pub(crate) fn detach(&self) -> bool {
        let mut state = self.state.lock();
        state.attempt += 1;
        match state.link {
            Link::Open => {
                state.link = Link::DownSince(Instant::now());
                self.clear(&mut state);
                true
            }
            Link::DownSince(at) => {
                if at.elapsed() >= HOLD {
                    self.clear(&mut state);
                }
                false
            }
            Link::Closed => false,
        }
    }

    /// The peer is forgotten: nothing is taken any more and the stream ends.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.link = Link::Closed;
        state.attempt += 1;
        self.clear(&mut state);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    fn clear(&self, state: &mut State) {
        for (_, len) in std::mem::take(&mut state.waiting) {
            self.frames.fetch_sub(1, Ordering::Relaxed);
            self.bytes.fetch_sub(len, Ordering::Relaxed);
        }
    }
}

/// The frames of one lane as a gRPC request stream: `open` first, then everything pushed.
pub(crate) struct LaneStream {
    outbox: Arc<Outbox>,
    attempt: u64,
    opened: bool,
    /// Taken from the outbox in one go, so that its lock is held once for many frames.
    taken: VecDeque<(Frame, usize)>,
}

impl Stream for LaneStream {
    type Item = Frame;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Frame>> {
        let this = &mut *self;
        if !this.opened {
            this.opened = true;
            let open = LaneOpen { lane: this.outbox.lane.number() as u32, sequence: this.attempt };
            return Poll::Ready(Some(Frame { kind: Some(frame::Kind::Open(open)) }));
        }
        if this.taken.is_empty() {
            let mut state = this.outbox.state.lock();
            if state.attempt != this.attempt {
                return Poll::Ready(None);
            }
            // Before the listener accepted the stream, what waits might be lost without anybody's notice.
            if !matches!(state.link, Link::Open) || state.waiting.is_empty() {
                state.waker = Some(cx.waker().clone());
                return Poll::Pending;
            }
            std::mem::swap(&mut state.waiting, &mut this.taken);
        }
        let Some((frame, len)) = this.taken.pop_front() else {
            return Poll::Pending;
        };
        this.outbox.frames.fetch_sub(1, Ordering::Relaxed);
        this.outbox.bytes.fetch_sub(len, Ordering::Relaxed);
        Poll::Ready(Some(frame))
    }
}

impl Drop for LaneStream {
    fn drop(&mut self) {
        for (_, len) in std::mem::take(&mut self.taken) {
            self.outbox.frames.fetch_sub(1, Ordering::Relaxed);
            self.outbox.bytes.fetch_sub(len, Ordering::Relaxed);
        }
    }
}
