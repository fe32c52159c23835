//! A connection's socket with its two buffers, limits and heartbeats.

use std::future::Future;
use std::io::{self, IoSlice};
use std::pin::pin;
use std::time::{Duration, Instant};

use bytes::{Buf, Bytes};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use warren_proto::amqp091::{Egress, Frame, FrameKind, FrameLimits, FrameSink, Method, ProtocolError, write_heartbeat};

use super::heartbeat::Heartbeat;
use super::inbound::Inbound;

/// Output after which nothing that makes more of it is done until the peer has read some. One message can exceed it.
pub const HIGH_WATER: usize = 1 << 20;
/// Output after which a batch is written before it ends.
pub const FLUSH_AT: usize = 64 << 10;
/// Unparsed input that is still read while parsing waits, so that a lost peer and a closed socket are noticed.
const READ_AHEAD: usize = 256 << 10;
/// Parts of one vectored write.
const IO_SLICES: usize = 64;
/// How long a peer may take to close its end after the last words.
const PARTING: Duration = Duration::from_secs(1);
/// Memory that an idle connection's output buffer may keep.
const IDLE_EGRESS: usize = 2 << 10;

/// See the module's head.
pub struct Link {
    reader: OwnedReadHalf,
    writer: OwnedWriteHalf,
    inbound: Inbound,
    /// Where frames are written; [`Link::try_flush`] sends them.
    pub egress: Egress,
    limits: FrameLimits,
    /// Heartbeats, once they are agreed.
    pub heartbeat: Heartbeat,
}

/// Why a connection ended without a goodbye.
#[derive(Debug, thiserror::Error)]
pub enum LinkError {
    /// The peer closed its end.
    #[error("the client closed the socket")]
    Eof,
    /// Nothing was heard for too long.
    #[error("missed heartbeats from the client")]
    PeerLost,
    /// The socket failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// What [`Link::wait`] woke up for.
pub enum Wake {
    /// Bytes arrived.
    Received,
    /// Output was written.
    Wrote,
}

impl Link {
    /// A link with the limits that hold before tuning.
    pub fn new(stream: TcpStream, frame_max: u32) -> Self {
        let (reader, writer) = stream.into_split();
        Link {
            reader,
            writer,
            inbound: Inbound::default(),
            egress: Egress::new(),
            limits: FrameLimits::new(frame_max),
            heartbeat: Heartbeat::new(0, Instant::now()),
        }
    }

    /// Applies what was negotiated.
    pub fn tuned(&mut self, frame_max: u32, heartbeat: u16) {
        self.limits = FrameLimits::new(frame_max);
        self.heartbeat = Heartbeat::new(heartbeat, Instant::now());
    }

    /// Limits of frames.
    pub fn limits(&self) -> FrameLimits {
        self.limits
    }

    /// Whether there is room to read ahead.
    pub fn can_read(&self) -> bool {
        self.inbound.bytes().len() < READ_AHEAD
    }

    /// Whether the peer has read so little that no more output should be made.
    pub fn is_clogged(&self) -> bool {
        self.egress.len() >= HIGH_WATER
    }

    /// Takes the whole frames that were received, as one buffer.
    pub fn take_frames(&mut self) -> Option<Bytes> {
        match self.limits.whole_frames(self.inbound.bytes()) {
            0 => None,
            whole => Some(self.inbound.take(whole)),
        }
    }

    /// Waits until bytes arrive (unless read-ahead is full) or output was written. Cancel safe. No buffer is held
    /// while nothing arrives.
    pub async fn wait(&mut self) -> Result<Wake, LinkError> {
        loop {
            let (can_read, has_output) = (self.can_read(), !self.egress.is_empty());
            tokio::select! {
                ready = self.reader.readable(), if can_read => {
                    ready?;
                    if self.try_read()? {
                        return Ok(Wake::Received);
                    }
                }
                ready = self.writer.writable(), if has_output => {
                    ready?;
                    self.try_flush()?;
                    return Ok(Wake::Wrote);
                }
                // Neither can be waited for: whoever calls has something else to wait for.
                () = std::future::pending(), if !can_read && !has_output => {}
            }
        }
    }

    /// Reads once. False if nothing was there after all.
    fn try_read(&mut self) -> Result<bool, LinkError> {
        match self.reader.try_read_buf(self.inbound.with_room()) {
            Ok(0) => Err(LinkError::Eof),
            Ok(n) => {
                self.inbound.adapt(n);
                self.heartbeat.received();
                Ok(true)
            }
            Err(error) if matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much output as the socket takes now.
    pub fn try_flush(&mut self) -> Result<(), LinkError> {
        while !self.egress.is_empty() {
            let mut slices = [IoSlice::new(&[]); IO_SLICES];
            let filled = self.egress.chunks_vectored(&mut slices);
            match self.writer.try_write_vectored(&slices[..filled]) {
                Ok(0) => return Err(io::Error::from(io::ErrorKind::WriteZero).into()),
                Ok(n) => {
                    self.egress.advance(n);
                    self.heartbeat.wrote();
                }
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// Does what the heartbeat wants at `now`.
    pub fn beat(&mut self, now: Instant) -> Result<(), LinkError> {
        let due = self.heartbeat.check(now, self.can_read());
        if due.peer_lost {
            return Err(LinkError::PeerLost);
        }
        if due.send && self.egress.is_empty() {
            write_heartbeat(self.egress.buffer());
            self.try_flush()?;
            self.heartbeat.sent();
        }
        Ok(())
    }

    /// Waits for something slow, and meanwhile writes output and keeps the heart beating. Nothing is read.
    pub async fn while_waiting<T>(&mut self, slow: impl Future<Output = T>) -> Result<T, LinkError> {
        self.try_flush()?;
        let mut slow = pin!(slow);
        loop {
            let deadline = self.heartbeat.deadline();
            let has_output = !self.egress.is_empty();
            tokio::select! {
                biased;
                done = &mut slow => return Ok(done),
                ready = self.writer.writable(), if has_output => {
                    ready?;
                    self.try_flush()?;
                }
                () = sleep_until(deadline), if deadline.is_some() => {
                    // What the peer sends is not read now, so its silence proves nothing.
                    self.heartbeat.received();
                    self.beat(Instant::now())?;
                }
            }
        }
    }

    /// Reads until at least `n` bytes are there and takes them; for the protocol header.
    pub async fn read_exact(&mut self, n: usize) -> Result<Bytes, LinkError> {
        while self.inbound.bytes().len() < n {
            self.wait().await?;
        }
        Ok(self.inbound.take(n))
    }

    /// Bytes that were received and not taken.
    pub fn unread(&self) -> &[u8] {
        self.inbound.bytes()
    }

    /// Reads one frame; for the handshake, where one is answered at a time. Heartbeats are skipped.
    pub async fn read_frame(&mut self) -> Result<Result<Frame, ProtocolError>, LinkError> {
        loop {
            match self.inbound.next_frame(&self.limits) {
                Ok(Some(frame)) if frame.kind == FrameKind::Heartbeat => {}
                Ok(Some(frame)) => return Ok(Ok(frame)),
                Ok(None) => {
                    self.wait().await?;
                }
                Err(error) => return Ok(Err(error)),
            }
        }
    }

    /// Appends a method.
    pub fn send(&mut self, channel: u16, method: &Method) {
        method.write_frame(channel, self.egress.buffer());
    }

    /// Writes all output, waiting for the peer to take it.
    pub async fn flush(&mut self) -> Result<(), LinkError> {
        self.try_flush()?;
        while !self.egress.is_empty() {
            self.writer.writable().await?;
            self.try_flush()?;
        }
        Ok(())
    }

    /// Gives memory back; called when the connection has been quiet for a while.
    pub fn rest(&mut self) {
        self.inbound.rest();
        self.egress.shrink(IDLE_EGRESS);
    }

    /// Ends the output and waits a moment for the peer to end its own, so that the kernel does not answer what it still
    /// sends with a reset that overtakes the last words.
    pub async fn part(&mut self) {
        if self.writer.shutdown().await.is_err() {
            return;
        }
        let drained = async {
            while matches!(self.wait().await, Ok(Wake::Received)) {
                self.inbound = Inbound::default();
            }
        };
        let _ = tokio::time::timeout(PARTING, drained).await;
    }

    /// Makes the kernel drop the connection at once when the link is dropped, with what it has not sent.
    pub fn abort(&self) {
        let _ = self.writer.as_ref().set_zero_linger();
    }
}

async fn sleep_until(deadline: Option<Instant>) {
    match deadline {
        Some(deadline) => tokio::time::sleep_until(deadline.into()).await,
        None => std::future::pending().await,
    }
}
