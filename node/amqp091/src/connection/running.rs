//! A connection after its handshake: the loop that everything happens in, and the goodbye.

use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::BytesMut;
use rustc_hash::{FxHashMap, FxHashSet};
use tokio::time::Sleep;
use tracing::{info, warn};
use warren_broker::{
    Broker, CloseReason, Connection, ConnectionInfo, EventReceiver, EventSender, Output, SessionEvent, operations,
};
use warren_proto::amqp091::{
    BasicCancel, BasicPublish, ChannelClose, ChannelCloseOk, ChannelOpenOk, ConnectionCloseOk,
    ConnectionUpdateSecretOk, Frame, FrameKind, FrameSink, Frames, Method, ProtocolError, ReplyCode, Scope, method_ids,
};
use warren_proto::ids::SessionRef;

use super::handshake::Opened;
use super::link::{FLUSH_AT, Link, LinkError, Wake};
use super::{Ends, close_method};
use crate::channel::{Answer, Channel, Context, Step};
use crate::errors::from_broker;
use crate::settings::Settings;

/// How often channels are looked at while something of theirs waits for an answer.
const TICK: Duration = Duration::from_millis(100);
/// The same after a long time in which nothing happened.
const LONGEST_TICK: Duration = Duration::from_millis(3200);
/// The longest that the timer is set for.
const IDLE: Duration = Duration::from_secs(3600);
/// How long the end of a session may take before the client is answered nevertheless.
const SESSION_END: Duration = Duration::from_secs(5);
/// How long the client's answer to `connection.close` is waited for, if its heartbeat is not shorter.
const GOODBYE: Duration = Duration::from_secs(30);
/// The same after bytes that could not be read: no answer can be recognised in what follows.
const GOODBYE_UNREADABLE: Duration = Duration::from_secs(3);
/// Events taken in one batch at most, so that reading is not starved.
const EVENTS_PER_BATCH: usize = 256;
/// Memory that heads of one read's messages are built in at a time.
const ARENA: usize = 16 << 10;

/// A channel number in use.
enum Slot {
    Open(Box<Channel>),
    /// `channel.close` was sent: everything is ignored until the client has answered.
    Closing,
}

/// How the connection is to end.
enum End {
    /// The client said goodbye.
    ClosedByClient,
    /// Something has to be told first.
    Told(ProtocolError),
    /// The socket is gone.
    Lost(LinkError),
}

impl From<LinkError> for End {
    fn from(error: LinkError) -> Self {
        End::Lost(error)
    }
}

impl From<ProtocolError> for End {
    fn from(error: ProtocolError) -> Self {
        End::Told(error)
    }
}

/// See the module's head.
pub struct Running {
    link: Link,
    context: Context,
    registered: Arc<Connection>,
    events: EventReceiver,
    sender: EventSender,
    channels: FxHashMap<u16, Slot>,
    /// The channel of each session.
    sessions: FxHashMap<SessionRef, u16>,
    channel_max: u16,
    heartbeat: u16,
    /// Frames that were received and are not handled yet, because a queue or the client is slow.
    held: Option<(Frame, Frames)>,
    /// Channels that the current batch touched.
    touched: Vec<u16>,
    /// Channels of which a queue wants no more publishes for now.
    blocking: FxHashSet<u16>,
    /// Whether there are any.
    blocked: bool,
    /// Something happened since the last tick, or waits for an answer.
    active: bool,
    /// Something waited for messages at the last tick.
    waiting: bool,
    /// Until the next tick while nothing happens.
    pause: Duration,
    arena: BytesMut,
    outputs: Vec<Output>,
    /// Channels to be ended, and why.
    faulty: Vec<(u16, ProtocolError)>,
    peer: std::net::SocketAddr,
}

impl Running {
    /// Registers the connection.
    pub fn new(link: Link, opened: Opened, ends: Ends, broker: Arc<Broker>, settings: Arc<Settings>) -> Self {
        let Opened { user, vhost, mechanism, tuning, client, admission } = opened;
        let registered = broker.connections().add(ConnectionInfo {
            user: user.name.to_string(),
            vhost: vhost.clone(),
            protocol: "AMQP 0-9-1",
            peer: ends.peer,
            local: ends.local,
            client_name: client.name,
            client_properties: client.encoded,
            channel_max: tuning.channel_max,
            frame_max: tuning.frame_max,
            heartbeat: tuning.heartbeat,
            auth_mechanism: mechanism.name().to_owned(),
        });
        // Registered, it counts by itself.
        drop(admission);
        let (sender, events) = warren_broker::session::registry::Sessions::channel(broker.entry_reader());
        broker.sessions().connect(registered.id, sender.clone());
        Running {
            link,
            context: Context {
                caller: operations::Context { user, vhost: vhost.as_str().into(), connection: registered.id },
                broker,
                settings,
                frame_max: tuning.frame_max,
                cancel_notify: client.consumer_cancel_notify,
            },
            registered,
            events,
            sender,
            channels: FxHashMap::default(),
            sessions: FxHashMap::default(),
            channel_max: tuning.channel_max,
            heartbeat: tuning.heartbeat,
            held: None,
            touched: Vec::new(),
            blocking: FxHashSet::default(),
            blocked: false,
            active: false,
            waiting: false,
            pause: TICK,
            arena: BytesMut::new(),
            outputs: Vec::new(),
            faulty: Vec::new(),
            peer: ends.peer,
        }
    }

    /// Runs until the connection ends, and ends what was on it.
    pub async fn run(mut self) -> Result<(), LinkError> {
        let end = match self.work().await {
            Ok(never) => match never {},
            Err(end) => end,
        };
        let outcome = self.say_goodbye(end).await;
        let id = self.registered.id;
        self.context.broker.sessions().disconnect(id);
        self.context.broker.connections().remove(id);
        if outcome.is_ok() {
            self.link.part().await;
        }
        outcome
    }

    async fn work(&mut self) -> Result<std::convert::Infallible, End> {
        let mut timer = Box::pin(tokio::time::sleep(TICK));
        let mut armed = None;
        // What came behind `connection.open` in one packet.
        self.received().await?;
        loop {
            let listening = !self.link.is_clogged();
            tokio::select! {
                wake = self.link.wait() => {
                    match wake? {
                        Wake::Received => self.received().await?,
                        Wake::Wrote => self.resume().await?,
                    }
                    self.end_faulty().await?;
                }
                event = self.events.recv(), if listening => {
                    if let Some(event) = event {
                        self.event(event)?;
                        self.more_events()?;
                    }
                    self.end_batch()?;
                    self.end_faulty().await?;
                    self.resume().await?;
                }
                () = timer.as_mut() => {
                    self.tick()?;
                    self.end_faulty().await?;
                    armed = None;
                    self.resume().await?;
                }
            }
            armed = self.arm(timer.as_mut(), armed);
        }
    }

    /// Sets the timer for what is due next, unless it is set for something that is due sooner.
    fn arm(&self, timer: Pin<&mut Sleep>, armed: Option<Instant>) -> Option<Instant> {
        let beat = self.link.heartbeat.deadline();
        let due = match (self.active, self.waiting) {
            (true, _) => Instant::now() + TICK,
            (false, true) => Instant::now() + self.pause,
            // An idle connection without heartbeats sleeps until something else wakes it.
            (false, false) => beat.unwrap_or_else(|| Instant::now() + IDLE),
        };
        if armed.is_some_and(|at| at <= due) {
            return armed;
        }
        timer.reset(due.into());
        Some(due)
    }

    /// Handles what was read, unless earlier frames are still held.
    async fn received(&mut self) -> Result<(), End> {
        if self.held.is_some() {
            return Ok(());
        }
        let Some(bytes) = self.link.take_frames() else {
            return Ok(());
        };
        let frames = self.link.limits().frames(bytes);
        self.frames(frames).await
    }

    /// Goes on with held frames if what held them is over.
    async fn resume(&mut self) -> Result<(), End> {
        while let Some((first, rest)) = self.held.take() {
            if self.must_hold(&first) {
                self.held = Some((first, rest));
                return Ok(());
            }
            self.frame(first).await?;
            self.frames(rest).await?;
            if self.held.is_none() {
                self.received().await?;
            }
        }
        Ok(())
    }

    fn must_hold(&self, frame: &Frame) -> bool {
        self.link.is_clogged() || (self.blocked && is_publish(frame))
    }

    async fn frames(&mut self, mut frames: Frames) -> Result<(), End> {
        while let Some(frame) = frames.next() {
            let frame = match frame {
                Ok(frame) => frame,
                Err(error) => {
                    // What came before counts.
                    self.end_batch()?;
                    return Err(error.into());
                }
            };
            if self.must_hold(&frame) {
                self.held = Some((frame, frames));
                break;
            }
            self.frame(frame).await?;
            if self.link.egress.len() >= FLUSH_AT {
                self.link.try_flush()?;
            }
        }
        self.end_batch()?;
        Ok(())
    }

    async fn frame(&mut self, frame: Frame) -> Result<(), End> {
        if frame.channel == 0 {
            return self.connection_frame(frame).await;
        }
        let number = frame.channel;
        let Some(slot) = self.channels.get_mut(&number) else {
            return self.unopened(frame).await;
        };
        let Slot::Open(channel) = slot else {
            return self.closing(frame);
        };
        self.active = true;
        if self.touched.last() != Some(&number) && !self.touched.contains(&number) {
            self.touched.push(number);
        }
        if self.arena.capacity() == 0 {
            self.arena.reserve(ARENA);
        }
        match channel.frame(frame, &self.context, &mut self.arena, &mut self.link.egress) {
            Ok(Step::Done) => Ok(()),
            Ok(Step::Slow(method)) => self.slow(number, method).await,
            Ok(Step::Close) => self.close_channel(number, None).await,
            Err(error) => self.fault(number, error).await,
        }
    }

    /// Ends the channels whose queues have said something that a client can be told in no other way.
    async fn end_faulty(&mut self) -> Result<(), End> {
        while let Some((number, error)) = self.faulty.pop() {
            // One fault ends a channel; what follows from others there goes with it.
            if matches!(self.channels.get(&number), Some(Slot::Open(_))) {
                self.fault(number, error).await?;
            }
        }
        Ok(())
    }

    /// A fault ends the channel, or the connection.
    async fn fault(&mut self, number: u16, error: ProtocolError) -> Result<(), End> {
        match error.scope {
            Scope::Channel => self.close_channel(number, Some(error)).await,
            Scope::Connection => {
                self.end_batch()?;
                Err(error.into())
            }
        }
    }

    async fn slow(&mut self, number: u16, method: Method) -> Result<(), End> {
        // Whatever was gathered must not wait for the metadata or for a queue.
        self.end_batch()?;
        let Some(Slot::Open(channel)) = self.channels.get_mut(&number) else {
            return Ok(());
        };
        let cancelled = match &method {
            Method::BasicCancel(cancel) => Some(cancel.consumer_tag.clone()),
            _ => None,
        };
        let answer = self.link.while_waiting(channel.carry_out(method, &self.context)).await?;
        if let (Some(tag), Ok(_)) = (cancelled, &answer) {
            // What the queue delivered before it knew of the cancel is the client's, and comes before cancel-ok.
            self.drain_events(number).await?;
            if let Some(Slot::Open(channel)) = self.channels.get_mut(&number) {
                channel.cancelled(&tag);
            }
        }
        let Some(Slot::Open(channel)) = self.channels.get_mut(&number) else { return Ok(()) };
        let egress = &mut self.link.egress;
        match answer {
            Ok(Answer::Silence) => {
                self.touched.push(number);
                Ok(())
            }
            Ok(Answer::Method(method)) => {
                method.write_frame(number, egress.buffer());
                self.touched.push(number);
                Ok(())
            }
            Ok(Answer::Message(delivered, ready)) => {
                channel.write_got(&delivered, ready, &self.context, egress);
                self.touched.push(number);
                Ok(())
            }
            Err(error) => self.fault(number, error).await,
        }
    }

    /// Ends a channel: its session first, then the client is answered, or told why.
    async fn close_channel(&mut self, number: u16, error: Option<ProtocolError>) -> Result<(), End> {
        self.end_batch()?;
        let Some(Slot::Open(channel)) = self.channels.remove(&number) else {
            return Ok(());
        };
        self.registered.close_channel(number);
        self.sessions.retain(|_, of| *of != number);
        self.blocking.remove(&number);
        self.note_blocked();
        let ended = tokio::time::timeout(SESSION_END, channel.close());
        if self.link.while_waiting(ended).await?.is_err() {
            warn!(peer = %self.peer, channel = number, "a queue did not hear in time that a channel is closed");
        }
        let out = self.link.egress.buffer();
        match error {
            None => ChannelCloseOk::default().write_frame(number, out),
            Some(error) => {
                info!(peer = %self.peer, channel = number, %error, "channel closed with an error");
                let close = ChannelClose {
                    reply_code: error.code.code(),
                    reply_text: error.reply_text(),
                    class_id: error.class_id,
                    method_id: error.method_id,
                };
                close.write_frame(number, out);
                self.channels.insert(number, Slot::Closing);
            }
        }
        Ok(())
    }

    async fn unopened(&mut self, frame: Frame) -> Result<(), End> {
        let number = frame.channel;
        if frame.kind == FrameKind::Method {
            match Method::decode(&frame.payload)? {
                Method::ChannelOpen(_) => return self.open_channel(number).await,
                // An answer to a close that crossed the client's own.
                Method::ChannelCloseOk(_) => return Ok(()),
                _ => {}
            }
        }
        let text = format!("expected 'channel.open' on channel {number}");
        let error = match frame.kind {
            FrameKind::Method => {
                let ids = method_ids(&frame.payload).unwrap_or_default();
                ProtocolError::new(ReplyCode::ChannelError, text).in_method(ids)
            }
            FrameKind::Header | FrameKind::Body | FrameKind::Heartbeat => {
                ProtocolError::new(ReplyCode::UnexpectedFrame, text)
            }
        };
        Err(error.into())
    }

    async fn open_channel(&mut self, number: u16) -> Result<(), End> {
        let limit = usize::from(self.channel_max);
        if limit != 0 && self.channels.len() >= limit {
            let text = format!("number of channels opened ({limit}) has reached the negotiated channel_max ({limit})");
            let error = ProtocolError::new(ReplyCode::NotAllowed, text);
            return Err(error.in_method(warren_proto::amqp091::ChannelOpen::IDS).into());
        }
        if let Some(limit) = self.context.settings.channel_max_per_node
            && self.context.broker.connections().channel_count() >= limit
        {
            let node = self.context.broker.name();
            let text = format!(
                "number of channels opened on node '{node}' has reached the maximum allowed limit of ({limit})"
            );
            let error = ProtocolError::new(ReplyCode::NotAllowed, text).on_connection();
            return Err(error.in_method(warren_proto::amqp091::ChannelOpen::IDS).into());
        }
        let user = self.context.caller.user.name.clone();
        if self.context.broker.limits_channels_of(&user) {
            self.end_batch()?;
            let admitted = self.link.while_waiting(self.context.broker.admit_channel(&user)).await?;
            if let Err(error) = admitted {
                let error = from_broker(error).on_connection();
                return Err(error.in_method(warren_proto::amqp091::ChannelOpen::IDS).into());
            }
        }
        let channel = Channel::open(number, &self.context.broker, self.sender.clone(), &self.registered);
        self.sessions.insert(channel.session_id(), number);
        self.channels.insert(number, Slot::Open(Box::new(channel)));
        ChannelOpenOk::default().write_frame(number, self.link.egress.buffer());
        Ok(())
    }

    /// A frame on a channel that was closed with an error.
    fn closing(&mut self, frame: Frame) -> Result<(), End> {
        if frame.kind == FrameKind::Method {
            match method_ids(&frame.payload) {
                Some(ChannelCloseOk::IDS) => {
                    self.channels.remove(&frame.channel);
                }
                Some(ChannelClose::IDS) => {
                    ChannelCloseOk::default().write_frame(frame.channel, self.link.egress.buffer());
                }
                _ => {}
            }
        }
        Ok(())
    }

    async fn connection_frame(&mut self, frame: Frame) -> Result<(), End> {
        if frame.kind != FrameKind::Method {
            // A heartbeat; content was refused by the codec.
            return Ok(());
        }
        match Method::decode(&frame.payload)? {
            Method::ConnectionClose(_) => Err(End::ClosedByClient),
            Method::ConnectionUpdateSecret(_) => self.update_secret().await,
            // Answers a close that is not ours any more.
            Method::ConnectionCloseOk(_) => Ok(()),
            other => {
                let (class, id) = other.ids();
                let text = format!("method {class}.{id} is out of turn on channel 0");
                Err(ProtocolError::new(ReplyCode::CommandInvalid, text).in_method(other.ids()).into())
            }
        }
    }

    /// A new secret asks for permissions to be looked at anew: consumers that may not read any more end. The secret
    /// itself says nothing, since users of the internal database do not expire.
    async fn update_secret(&mut self) -> Result<(), End> {
        let open = self.channels.iter().filter(|(_, slot)| matches!(slot, Slot::Open(_))).map(|(number, _)| *number);
        for number in open.collect::<Vec<_>>() {
            let Some(Slot::Open(channel)) = self.channels.get_mut(&number) else { continue };
            for consumer_tag in channel.recheck_permissions(&self.context) {
                let cancel = BasicCancel { consumer_tag, nowait: true };
                self.slow(number, cancel.clone().into()).await?;
                if self.context.cancel_notify {
                    cancel.write_frame(number, self.link.egress.buffer());
                }
            }
        }
        self.link.send(0, &ConnectionUpdateSecretOk::default().into());
        Ok(())
    }

    fn event(&mut self, event: SessionEvent) -> Result<(), End> {
        match event {
            SessionEvent::Queue(to) => {
                let known = self.sessions.get(&to.session).copied();
                let number = known.or_else(|| self.adopt(to.session));
                let Some(number) = number else { return Ok(()) };
                let Some(Slot::Open(channel)) = self.channels.get_mut(&number) else {
                    return Ok(());
                };
                if !self.touched.contains(&number) {
                    self.touched.push(number);
                }
                self.active = true;
                if let Err(error) = channel.event(to, &self.context, &mut self.link.egress, &mut self.outputs) {
                    self.faulty.push((number, error));
                }
                Ok(())
            }
            SessionEvent::Missed { session, group } => {
                self.active = true;
                let number = self.sessions.get(&session);
                if let Some(Slot::Open(channel)) = number.and_then(|number| self.channels.get_mut(number)) {
                    channel.missed(group);
                }
                Ok(())
            }
            SessionEvent::NodeUp(node) => {
                self.active = true;
                for slot in self.channels.values_mut() {
                    if let Slot::Open(channel) = slot {
                        channel.node_up(node);
                    }
                }
                Ok(())
            }
            SessionEvent::Close(reason) => Err(End::Told(forced(&reason))),
        }
    }

    /// Finds the channel of an identity that a session took on later, and remembers it.
    fn adopt(&mut self, session: SessionRef) -> Option<u16> {
        let number = self.channels.iter().find_map(|(number, slot)| match slot {
            Slot::Open(channel) if channel.owns(session) => Some(*number),
            Slot::Open(_) | Slot::Closing => None,
        })?;
        self.sessions.insert(session, number);
        Some(number)
    }

    /// Handles the events that were sent before now. The session's consumers' limits bound what they make.
    async fn drain_events(&mut self, number: u16) -> Result<(), End> {
        let Some(Slot::Open(channel)) = self.channels.get(&number) else { return Ok(()) };
        let marker = channel.marker(&self.context);
        // Fails only if the receiver is gone, and that is ours.
        self.sender.send(SessionEvent::Queue(marker));
        while let Some(event) = self.link.while_waiting(self.events.recv()).await? {
            if matches!(&event, SessionEvent::Queue(to) if Channel::is_marker(to)) {
                break;
            }
            self.event(event)?;
        }
        Ok(())
    }

    fn more_events(&mut self) -> Result<(), End> {
        for _ in 1..EVENTS_PER_BATCH {
            if self.link.egress.len() >= FLUSH_AT {
                break;
            }
            match self.events.try_recv() {
                Some(event) => self.event(event)?,
                None => break,
            }
        }
        Ok(())
    }

    /// Sends what the batch gathered: requests to queues, confirms and frames to the client.
    fn end_batch(&mut self) -> Result<(), End> {
        for number in self.touched.drain(..) {
            if let Some(Slot::Open(channel)) = self.channels.get_mut(&number) {
                channel.end_batch(&mut self.link.egress);
                match channel.is_blocked() {
                    true => self.blocking.insert(number),
                    false => self.blocking.remove(&number),
                };
            }
        }
        self.note_blocked();
        self.link.try_flush()?;
        Ok(())
    }

    fn note_blocked(&mut self) {
        let blocked = !self.blocking.is_empty();
        if blocked != self.blocked {
            self.blocked = blocked;
            self.registered.set_blocked(blocked);
        }
    }

    fn tick(&mut self) -> Result<(), End> {
        self.link.beat(Instant::now())?;
        let quiet = !self.active;
        self.active = false;
        self.waiting = false;
        for (number, slot) in &mut self.channels {
            if let Slot::Open(channel) = slot
                && channel.needs_tick()
            {
                // Written also if nothing is awaited any more: time may have resolved publishes.
                if let Err(error) = channel.tick(&self.context, &mut self.link.egress, &mut self.outputs) {
                    self.faulty.push((*number, error));
                }
                self.active |= channel.is_waiting();
                self.waiting = true;
                self.touched.push(*number);
            }
        }
        self.pause = match quiet {
            true => (self.pause * 2).min(LONGEST_TICK),
            false => TICK,
        };
        if quiet {
            self.link.rest();
            self.arena = BytesMut::new();
        }
        self.end_batch()?;
        for slot in self.channels.values_mut() {
            if let Slot::Open(channel) = slot {
                channel.list();
            }
        }
        Ok(())
    }

    /// Ends the channels, tells the client what it has to know, and waits for its answer for a bounded time.
    async fn say_goodbye(&mut self, end: End) -> Result<(), LinkError> {
        // In a task of its own: it must come to its end even if the socket breaks meanwhile.
        let mut ending = tokio::spawn(self.end_sessions());
        if let End::Lost(error) = end {
            if matches!(error, LinkError::PeerLost) {
                self.link.abort();
            }
            let _ = ending.await;
            return Err(error);
        }
        if let Err(error) = self.link.while_waiting(&mut ending).await {
            let _ = ending.await;
            return Err(error);
        }
        match end {
            End::ClosedByClient => {
                self.link.send(0, &ConnectionCloseOk::default().into());
                match tokio::time::timeout(GOODBYE_UNREADABLE, self.link.flush()).await {
                    Ok(flushed) => flushed,
                    Err(_) => Ok(()),
                }
            }
            End::Told(error) => {
                info!(peer = %self.peer, %error, "connection closed with an error");
                self.link.send(0, &close_method(&error).into());
                self.await_close_ok(&error).await
            }
            End::Lost(error) => Err(error),
        }
    }

    /// Ends all sessions and what belonged to the connection.
    fn end_sessions(&mut self) -> impl Future<Output = ()> + use<> {
        self.sessions.clear();
        let ended: Vec<_> = self
            .channels
            .drain()
            .filter_map(|(_, slot)| match slot {
                Slot::Open(channel) => Some(channel.close()),
                Slot::Closing => None,
            })
            .collect();
        let broker = Arc::clone(&self.context.broker);
        let id = self.registered.id;
        async move {
            let all = async {
                for session in ended {
                    let _ = session.await;
                }
            };
            let _ = tokio::time::timeout(SESSION_END, all).await;
            broker.delete_exclusive_queues(id).await;
        }
    }

    async fn await_close_ok(&mut self, error: &ProtocolError) -> Result<(), LinkError> {
        // Broken arguments name their method, and the frames around them can still be told apart.
        let unreadable = error.code == ReplyCode::FrameError && error.class_id == 0;
        let patience = match (unreadable, self.heartbeat) {
            (true, _) => GOODBYE_UNREADABLE,
            (false, 0) => GOODBYE,
            (false, heartbeat) => GOODBYE.min(Duration::from_secs(heartbeat.into())),
        };
        let frames = std::mem::take(&mut self.held).map(|(first, rest)| (Some(Ok(first)), Some(rest)));
        let (first, rest) = frames.unwrap_or_default();
        let link = &mut self.link;
        let answered = async {
            // Frames that were received before the error count for nothing, except a goodbye among them.
            for frame in first.into_iter().chain(rest.into_iter().flatten()) {
                if frame.is_ok_and(|frame| is_goodbye(&frame, link)) {
                    return link.flush().await;
                }
            }
            if unreadable {
                link.flush().await?;
                return std::future::pending().await;
            }
            loop {
                match link.read_frame().await? {
                    Ok(frame) if is_goodbye(&frame, link) => return link.flush().await,
                    Ok(_) => {}
                    Err(_) => return std::future::pending().await,
                }
            }
        };
        tokio::time::timeout(patience, answered).await.unwrap_or(Ok(()))
    }
}

/// Whether the frame ends the connection from the client's side; its close is answered.
fn is_goodbye(frame: &Frame, link: &mut Link) -> bool {
    if frame.kind != FrameKind::Method || frame.channel != 0 {
        return false;
    }
    match method_ids(&frame.payload) {
        Some(ConnectionCloseOk::IDS) => true,
        Some(warren_proto::amqp091::ConnectionClose::IDS) => {
            link.send(0, &ConnectionCloseOk::default().into());
            true
        }
        _ => false,
    }
}

fn is_publish(frame: &Frame) -> bool {
    frame.kind == FrameKind::Method && method_ids(&frame.payload) == Some(BasicPublish::IDS)
}

fn forced(reason: &CloseReason) -> ProtocolError {
    let text = match reason {
        CloseReason::Shutdown => "broker forced connection closure with reason 'shutdown'".to_owned(),
        CloseReason::Operator(text) => text.clone(),
        CloseReason::VhostDeleted(vhost) => format!("vhost '{vhost}' is deleted"),
    };
    ProtocolError::new(ReplyCode::ConnectionForced, text)
}
