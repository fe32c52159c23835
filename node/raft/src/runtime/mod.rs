//! The thin half of the Raft host: shard threads around drivers, one writer thread, and a handle for everybody else.

mod registry;
mod shard;
mod status;
#[cfg(test)]
mod tests;
mod watch;
mod writer;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use bytes::Bytes;
use crossbeam_channel::{Receiver, Sender, TrySendError};
use parking_lot::Mutex;
use tokio::sync::oneshot;
use warren_proto::ids::{GroupId, NodeId};
use warren_proto::peer::{RaftBatch, RaftMessage};

use crate::driver::{
    ChangeError, Driver, DriverConfig, DriverFigures, EntryCache, Event, GroupSpec, GroupStatus, Lane, MemberChange,
    MemberStatus, OpenError, Work, WorkDone, shard_of,
};
use crate::log_store::{GroupRecord, LogStore, StoreError};
use crate::machine::{EntryReader, Role, StateMachine};
use registry::Registry;
pub(crate) use shard::whose;
use shard::{Bulk, Mail, MailboxWaker, Shard, Verdicts, Waiting, Waker};
use watch::Progress;
use writer::{Notified, WriterStats};

/// Mails that may wait in a shard's mailbox; what does not fit is given back to its sender.
const MAILBOX: usize = 16 * 1024;
/// Pieces of snapshot transfers that may wait.
const BULK_QUEUE: usize = 1024;

/// Where messages to other nodes go. Implemented over the peer transport.
pub trait PeerSink: Send + Sync + 'static {
    /// Hands over a batch without blocking; false = dropped, because the lane is full or the node unknown.
    fn send(&self, to: NodeId, lane: Lane, batch: RaftBatch) -> bool;
}

/// How a host is set up.
#[derive(Debug, Clone)]
pub struct HostConfig {
    /// Shard threads.
    pub shards: usize,
    /// Length of a tick. The driver's timeouts count ticks.
    pub tick: Duration,
    /// Bytes of recent entries kept in memory for readers.
    pub cache_bytes: usize,
    /// Prefix of the threads' names.
    pub name: String,
    /// A write of the log that takes longer than this is reported as failed: the disk does not answer.
    pub stall_limit: Duration,
    /// Pace of the drivers. Its seed should differ from one start of the process to the next.
    pub driver: DriverConfig,
}

impl HostConfig {
    /// Defaults: a shard per core, at most 8; ticks of 100 ms; 128 MiB of entries; a minute for a write.
    pub fn new(node: NodeId, seed: u64) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, |n| n.get());
        HostConfig {
            shards: cores.min(8),
            tick: Duration::from_millis(100),
            cache_bytes: 128 << 20,
            name: "raft".into(),
            stall_limit: Duration::from_secs(60),
            driver: DriverConfig::new(node, seed),
        }
    }
}

/// What a host tells its owner. Called from shard and writer threads: must not block.
pub struct HostHooks {
    /// Roles, memberships, stopped groups.
    pub on_event: Box<dyn Fn(Event) + Send + Sync>,
    /// The log could not be written, or a write does not end. Nothing is acknowledged from then on; the process is to
    /// exit.
    pub on_fatal: Box<dyn Fn(StoreError) + Send + Sync>,
}

/// Why a host did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The store cannot be read.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread could not be made.
    #[error("cannot start a thread: {0}")]
    Thread(#[from] std::io::Error),
}

/// Why a request of the host failed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HostError {
    /// No such group on this node.
    #[error("no such group on this node")]
    NoSuchGroup,
    /// The shard's mailbox is full.
    #[error("too many requests")]
    Busy,
    /// No leader confirmed it in time.
    #[error("no leader confirmed it in time")]
    NoLeader,
    /// The host is shutting down.
    #[error("shutting down")]
    Stopped,
}

/// A group that could not be opened at the start, with its record. Its data stays as it is.
#[derive(Debug)]
pub struct Unopened {
    /// What the store says of it.
    pub record: GroupRecord,
    /// Why.
    pub error: OpenError,
}

/// A handle on the host. Cloning is cheap; every method may be called from any thread.
pub struct Host<M: StateMachine> {
    inner: Arc<Inner<M>>,
}

impl<M: StateMachine> Clone for Host<M> {
    fn clone(&self) -> Self {
        Host { inner: self.inner.clone() }
    }
}

struct Inner<M: StateMachine> {
    node: NodeId,
    mailboxes: Vec<Sender<Mail<M>>>,
    verdicts: Vec<(Arc<Verdicts>, Arc<dyn Waker>)>,
    registry: Arc<Registry>,
    cache: Arc<EntryCache>,
    unopened: Vec<Unopened>,
    stats: Arc<WriterStats>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

impl<M: StateMachine> Drop for Inner<M> {
    fn drop(&mut self) {
        // The last handle is gone: the threads end by themselves. A mailbox that stays full for so long has a shard
        // that waits for a disk that does not answer.
        for mailbox in &self.mailboxes {
            let _ = mailbox.send_timeout(Mail::Stop, Duration::from_secs(1));
        }
    }
}

/// Counters since the start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostStats {
    /// Synced writes of the log.
    pub syncs: u64,
    /// Shards' batches in them.
    pub batches: u64,
    /// Bytes in them, before the database's own framing.
    pub bytes: u64,
}

/// What a host holds and has under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HostFigures {
    /// Of all groups together.
    pub groups: DriverFigures,
    /// Bytes of recent entries in memory.
    pub cache_bytes: u64,
    /// What they may be.
    pub cache_limit: u64,
    /// Mail that waits for the shards.
    pub waiting_mail: u64,
    /// Batches of writes that wait for the log's writer.
    pub waiting_writes: u64,
    /// Counters of the log's writer.
    pub written: HostStats,
}

impl<M: StateMachine> Host<M> {
    /// Opens every group in `store` and starts the threads. `factory` makes the machine of a recovered group from what
    /// its creator gave as `init`.
    pub fn start(
        config: HostConfig,
        store: Arc<dyn LogStore>,
        peers: Arc<dyn PeerSink>,
        hooks: HostHooks,
        factory: impl Fn(GroupId, &Bytes) -> M + Send + Sync,
    ) -> Result<Self, StartError> {
        let shards = config.shards.max(1);
        let cache = Arc::new(EntryCache::new(store.clone(), config.cache_bytes, shards));
        let mut records: Vec<Vec<GroupRecord>> = (0..shards).map(|_| Vec::new()).collect();
        for record in store.groups()? {
            records[shard_of(record.group, shards)].push(record);
        }
        let hooks = Arc::new(hooks);
        let registry = Arc::new(Registry::new());
        let stats = Arc::new(WriterStats::default());
        let (write_to, to_write) = writer::channel();
        let (bulk_to, to_bulk) = crossbeam_channel::bounded(BULK_QUEUE);

        let recovered = recover(&config, &store, &cache, records, &factory);
        let mut start = Starting::default();
        let mut unopened = Vec::new();
        for (number, (driver, failed)) in recovered.into_iter().enumerate() {
            unopened.extend(failed);
            for group in driver.groups() {
                if let Some(status) = driver.status(group) {
                    registry.insert(&status, number);
                }
            }
            let (mailbox, mails) = crossbeam_channel::bounded(MAILBOX);
            let (nudged, persisted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
            let waker: Arc<dyn Waker> = Arc::new(MailboxWaker { mailbox: mailbox.clone(), nudged: nudged.clone() });
            let verdicts = Arc::new(Verdicts::default());
            start.verdicts.push((verdicts.clone(), waker.clone()));
            start.notified.push(Notified { persisted: persisted.clone(), waker });
            start.mailboxes.push(mailbox);
            start.shards.push(Shard {
                number,
                driver,
                mailbox: mails,
                nudged,
                verdicts,
                persisted,
                writer: write_to.clone(),
                bulk: bulk_to.clone(),
                peers: peers.clone(),
                registry: registry.clone(),
                hooks: hooks.clone(),
                tick: config.tick,
                waiting: Waiting::default(),
            });
        }
        drop((write_to, bulk_to));
        let (mailboxes, verdicts) = (start.mailboxes.clone(), std::mem::take(&mut start.verdicts));
        let threads = start.spawn(&config, store, to_write, to_bulk, stats.clone(), hooks)?;
        let node = config.driver.node;
        let inner = Inner { node, mailboxes, verdicts, registry, cache, unopened, stats, threads: Mutex::new(threads) };
        Ok(Host { inner: Arc::new(inner) })
    }

    /// The node that this host runs on.
    pub fn node(&self) -> NodeId {
        self.inner.node
    }

    /// Groups whose data could not be opened at the start.
    pub fn unopened(&self) -> &[Unopened] {
        &self.inner.unopened
    }

    /// The groups open here.
    pub fn groups(&self) -> Vec<GroupId> {
        self.inner.registry.groups()
    }

    /// Whether a group is open here.
    pub fn has_group(&self, group: GroupId) -> bool {
        self.inner.registry.contains(group)
    }

    fn mailbox(&self, group: GroupId) -> &Sender<Mail<M>> {
        &self.inner.mailboxes[shard_of(group, self.inner.mailboxes.len())]
    }

    /// Posts without blocking.
    fn post(&self, group: GroupId, mail: Mail<M>) -> Result<(), HostError> {
        self.mailbox(group).try_send(mail).map_err(|e| match e {
            TrySendError::Full(_) => HostError::Busy,
            TrySendError::Disconnected(_) => HostError::Stopped,
        })
    }

    /// Creates a local member, and resolves once it exists in memory; it takes part once it is durable.
    pub async fn create_group(&self, spec: GroupSpec<M>) -> Result<(), CreateError> {
        let (send, receive) = oneshot::channel();
        self.post(spec.group, Mail::Create(Box::new(spec), send))?;
        receive.await.map_err(|_| HostError::Stopped)?.map_err(CreateError::Open)
    }

    /// Deletes the local member and its data.
    pub async fn remove_group(&self, group: GroupId) -> Result<(), HostError> {
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Remove(group, send))?;
        match receive.await {
            Ok(true) => Ok(()),
            Ok(false) => Err(HostError::NoSuchGroup),
            Err(_) => Err(HostError::Stopped),
        }
    }

    /// Stops the local member at once and keeps its data, which is not to be used any more: it neither votes nor leads, and
    /// cannot be created again before it is removed.
    pub fn close_group(&self, group: GroupId) -> Result<(), HostError> {
        self.post(group, Mail::Close(group))
    }

    /// Hands a request to the group's machine, which answers it in its own way, also when it is refused. Given back
    /// where there is no such group or its shard is too busy.
    pub fn send(&self, group: GroupId, request: M::Request) -> Result<(), M::Request> {
        if !self.has_group(group) {
            return Err(request);
        }
        self.mailbox(group).try_send(Mail::Request(group, request)).map_err(|e| match e.into_inner() {
            Mail::Request(_, request) => request,
            _ => unreachable!("the mail that was sent comes back"),
        })
    }

    /// As [`send`](Self::send), for several requests at the price of one.
    pub fn send_many(&self, group: GroupId, requests: Vec<M::Request>) -> Result<(), Vec<M::Request>> {
        if !self.has_group(group) {
            return Err(requests);
        }
        self.mailbox(group).try_send(Mail::Requests(group, requests)).map_err(|e| match e.into_inner() {
            Mail::Requests(_, requests) => requests,
            _ => unreachable!("the mail that was sent comes back"),
        })
    }

    /// Messages from another node, in the order in which it sent them. False: some were dropped, since a shard is
    /// behind; Raft sends again what matters.
    pub fn deliver(&self, from: NodeId, batch: RaftBatch) -> bool {
        let shards = self.inner.mailboxes.len();
        if shards == 1 {
            return self.inner.mailboxes[0].try_send(Mail::Messages(from, batch.messages)).is_ok();
        }
        let mut parts: Vec<Vec<RaftMessage>> = (0..shards).map(|_| Vec::new()).collect();
        for message in batch.messages {
            parts[shard_of(GroupId(message.group), shards)].push(message);
        }
        let mut all = true;
        for (mailbox, part) in self.inner.mailboxes.iter().zip(parts) {
            if !part.is_empty() {
                all &= mailbox.try_send(Mail::Messages(from, part)).is_ok();
            }
        }
        all
    }

    /// A group's state, as of its shard's last round.
    pub fn status(&self, group: GroupId) -> Option<GroupStatus> {
        self.inner.registry.get(group).map(|p| p.status())
    }

    /// The node that leads the group, as far as this node knows.
    pub fn leader(&self, group: GroupId) -> Option<NodeId> {
        self.inner.registry.get(group)?.leader()
    }

    /// The local member's role.
    pub fn role(&self, group: GroupId) -> Option<Role> {
        Some(self.inner.registry.get(group)?.role())
    }

    /// What the group's leader, if it is this node, knows of the members.
    pub async fn members(&self, group: GroupId) -> Result<Vec<MemberStatus>, HostError> {
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Members(group, send))?;
        receive.await.map_err(|_| HostError::Stopped)
    }

    /// An index that covers everything committed before the call, already applied here: what is read from the local
    /// machine afterwards is linearizable.
    pub async fn read_index(&self, group: GroupId) -> Result<u64, HostError> {
        if !self.has_group(group) {
            return Err(HostError::NoSuchGroup);
        }
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Read(group, send))?;
        receive.await.map_err(|_| HostError::Stopped)?.ok_or(HostError::NoLeader)
    }

    /// Resolves once `index` is applied here.
    pub async fn wait_applied(&self, group: GroupId, index: u64) -> Result<(), HostError> {
        let published = self.inner.registry.get(group).ok_or(HostError::NoSuchGroup)?;
        if published.applied() >= index {
            return Ok(());
        }
        match published.wait_applied(index).await {
            Ok(true) => Ok(()),
            Ok(false) | Err(_) => Err(HostError::NoSuchGroup),
        }
    }

    /// Resolves once the group has a leader that this node knows of.
    pub async fn wait_leader(&self, group: GroupId) -> Result<NodeId, HostError> {
        let published = self.inner.registry.get(group).ok_or(HostError::NoSuchGroup)?;
        loop {
            let changed = published.changed.notified();
            if let Some(leader) = published.leader() {
                return Ok(leader);
            }
            if !self.has_group(group) {
                return Err(HostError::NoSuchGroup);
            }
            changed.await;
        }
    }

    /// Changes the group's members; on its leader only. Resolves once the change is applied.
    pub async fn change_members(&self, group: GroupId, change: Vec<MemberChange>) -> Result<(), ChangeError> {
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Change(group, change, send)).map_err(|_| ChangeError::NotPermitted)?;
        receive.await.unwrap_or(Err(ChangeError::Unknown))
    }

    /// Hands the group's leadership to the voter on `to`, or with `None` to the most advanced other one; on its leader
    /// only. Resolves once another member leads.
    pub async fn transfer_leadership(
        &self,
        group: GroupId,
        to: Option<NodeId>,
        deadline: Duration,
    ) -> Result<(), ChangeError> {
        let published = self.inner.registry.get(group).ok_or(ChangeError::NoSuchGroup)?;
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Transfer(group, to, send)).map_err(|_| ChangeError::NotPermitted)?;
        receive.await.unwrap_or(Err(ChangeError::NoSuchGroup))?;
        let me = self.inner.node;
        let moved = async {
            loop {
                let changed = published.changed.notified();
                match (published.leader(), to) {
                    (Some(leader), Some(to)) if leader == to => return,
                    (Some(leader), None) if leader != me => return,
                    _ => changed.await,
                }
            }
        };
        tokio::time::timeout(deadline, moved).await.map_err(|_| ChangeError::Timeout)
    }

    /// Makes the local member the only one of its group, which has lost its majority for good; refused where it has a
    /// leader. Resolves once that is decided; the member leads soon after.
    pub async fn make_alone(&self, group: GroupId) -> Result<(), ChangeError> {
        let (send, receive) = oneshot::channel();
        self.post(group, Mail::Alone(group, send)).map_err(|_| ChangeError::NoSuchGroup)?;
        receive.await.unwrap_or(Err(ChangeError::NoSuchGroup))
    }

    /// Takes a snapshot of the group now.
    pub fn force_snapshot(&self, group: GroupId) -> Result<(), HostError> {
        self.post(group, Mail::Snapshot(group))
    }

    /// Makes the local member stand for election now.
    pub fn campaign(&self, group: GroupId) -> Result<(), HostError> {
        self.post(group, Mail::Campaign(group))
    }

    /// From now on this node's members leave it to others to lead, while one of those can; or no longer.
    pub fn set_abstains(&self, abstains: bool) -> Result<(), HostError> {
        self.inner.mailboxes.iter().try_for_each(|mailbox| {
            mailbox.try_send(Mail::Abstain(abstains)).map_err(|error| match error {
                TrySendError::Full(_) => HostError::Busy,
                TrySendError::Disconnected(_) => HostError::Stopped,
            })
        })
    }

    /// Reads bodies of entries, from memory or disk, on the caller's thread.
    pub fn entry_reader(&self) -> Arc<dyn EntryReader> {
        self.inner.cache.clone()
    }

    /// A node can be reached.
    pub fn peer_up(&self, node: NodeId) {
        self.tell_all(node, true);
    }

    /// A node is down: groups that it led elect another leader soon.
    pub fn peer_down(&self, node: NodeId) {
        self.tell_all(node, false);
    }

    fn tell_all(&self, node: NodeId, up: bool) {
        for (verdicts, shard) in &self.inner.verdicts {
            verdicts.push(node, up);
            shard.wake();
        }
    }

    /// Counters since the start.
    pub fn stats(&self) -> HostStats {
        HostStats {
            syncs: self.inner.stats.syncs.load(Ordering::Relaxed),
            batches: self.inner.stats.batches.load(Ordering::Relaxed),
            bytes: self.inner.stats.bytes.load(Ordering::Relaxed),
        }
    }

    /// What the host holds now. Every shard looks at each of its groups.
    pub async fn figures(&self) -> HostFigures {
        let mut groups = DriverFigures::default();
        let waiting_mail = self.inner.mailboxes.iter().map(|m| m.len() as u64).sum();
        for mailbox in &self.inner.mailboxes {
            let (send, receive) = oneshot::channel();
            // A shard whose mailbox is full has no time for this.
            if mailbox.try_send(Mail::Figures(send)).is_ok()
                && let Ok(figures) = receive.await
            {
                groups += figures;
            }
        }
        let (cache_bytes, cache_limit) = self.inner.cache.bytes();
        HostFigures {
            groups,
            cache_bytes: cache_bytes as u64,
            cache_limit: cache_limit as u64,
            waiting_mail,
            waiting_writes: self.inner.stats.waiting.load(Ordering::Relaxed),
            written: self.stats(),
        }
    }

    /// Stops every group, writes what was handed over, and ends the threads. Blocks until they are gone.
    pub fn shutdown(&self) {
        for mailbox in &self.inner.mailboxes {
            // Blocks while the mailbox is full; the error is that the shard is gone already.
            let _ = mailbox.send(Mail::Stop);
        }
        for thread in self.inner.threads.lock().drain(..) {
            if thread.join().is_err() {
                tracing::error!("a thread of the raft host panicked");
            }
        }
    }
}

/// Why a group was not created.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CreateError {
    /// The host did not take the request.
    #[error(transparent)]
    Host(#[from] HostError),
    /// The group could not be opened.
    #[error(transparent)]
    Open(OpenError),
}

type Recovered<M> = (Driver<M>, Vec<Unopened>);

/// Opens the groups of all shards, each shard's on a thread of its own.
fn recover<M: StateMachine>(
    config: &HostConfig,
    store: &Arc<dyn LogStore>,
    cache: &Arc<EntryCache>,
    records: Vec<Vec<GroupRecord>>,
    factory: &(impl Fn(GroupId, &Bytes) -> M + Send + Sync),
) -> Vec<Recovered<M>> {
    let open = |records: Vec<GroupRecord>| {
        let mut driver = Driver::new(config.driver.clone(), store.clone(), cache.clone());
        driver.set_clock(shard::now_ms());
        let mut failed = Vec::new();
        for record in records {
            let machine = factory(record.group, &record.init);
            if let Err(error) = driver.recover(record.clone(), machine) {
                tracing::error!(group = record.group.0, %error, "group cannot be opened; its data is kept");
                failed.push(Unopened { record, error });
            }
        }
        (driver, failed)
    };
    std::thread::scope(|scope| {
        let opening: Vec<_> = records.into_iter().map(|r| scope.spawn(|| open(r))).collect();
        opening
            .into_iter()
            .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            .collect()
    })
}

/// Everything made before the first thread runs.
struct Starting<M: StateMachine> {
    shards: Vec<Shard<M>>,
    mailboxes: Vec<Sender<Mail<M>>>,
    notified: Vec<Notified>,
    verdicts: Vec<(Arc<Verdicts>, Arc<dyn Waker>)>,
}

impl<M: StateMachine> Default for Starting<M> {
    fn default() -> Self {
        Starting { shards: Vec::new(), mailboxes: Vec::new(), notified: Vec::new(), verdicts: Vec::new() }
    }
}

impl<M: StateMachine> Starting<M> {
    fn spawn(
        self,
        config: &HostConfig,
        store: Arc<dyn LogStore>,
        to_write: Receiver<writer::Handed>,
        to_bulk: Receiver<Bulk>,
        stats: Arc<WriterStats>,
        hooks: Arc<HostHooks>,
    ) -> std::io::Result<Vec<JoinHandle<()>>> {
        let named = |what: String| std::thread::Builder::new().name(format!("{}-{what}", config.name));
        let mut threads = Vec::new();
        for shard in self.shards {
            threads.push(named(format!("shard-{}", shard.number)).spawn(move || shard.run())?);
        }
        let (log, notified) = (store.clone(), self.notified);
        let fatal: Arc<dyn Fn(StoreError) + Send + Sync> = Arc::new(move |error| (hooks.on_fatal)(error));
        let (progress, limit) = (Arc::new(Progress::default()), config.stall_limit);
        let (writer, watched) = crossbeam_channel::bounded(0);
        let (watching, stalled) = (progress.clone(), fatal.clone());
        threads.push(named("watch".into()).spawn(move || {
            if watch::stalls(&watching, limit, &watched) {
                stalled(StoreError::Write(format!("a write has not ended after {limit:?}: the disk does not answer")));
            }
        })?);
        let failed = fatal.clone();
        threads.push(named("writer".into()).spawn(move || {
            writer::run(log, to_write, notified, stats, progress, fatal);
            drop(writer);
        })?);
        let mailboxes = self.mailboxes;
        threads.push(named("bulk".into()).spawn(move || run_bulk(&*store, &to_bulk, &mailboxes, &*failed))?);
        Ok(threads)
    }
}

/// How often the store may tidy up.
const MAINTAIN_EVERY: Duration = Duration::from_secs(10);

/// Reads and stages for snapshot transfers, and lets the store tidy up in between.
fn run_bulk<M: StateMachine>(
    store: &dyn LogStore,
    queue: &Receiver<Bulk>,
    shards: &[Sender<Mail<M>>],
    fatal: &dyn Fn(StoreError),
) {
    let mut next = std::time::Instant::now() + MAINTAIN_EVERY;
    loop {
        match queue.recv_deadline(next) {
            Ok(Bulk { shard, work }) => {
                let (group, transfer) = whose(&work);
                let done = perform(store, work).unwrap_or_else(|e| WorkDone::Failed(e.to_string()));
                // A shard that is gone needs no answer; one whose mailbox is full is waited for, off the hot path.
                let _ = shards[shard].send(Mail::WorkDone(group, transfer, done));
            }
            Err(crossbeam_channel::RecvTimeoutError::Timeout) => {}
            Err(crossbeam_channel::RecvTimeoutError::Disconnected) => return,
        }
        if std::time::Instant::now() >= next {
            if let Err(error) = store.maintain() {
                tracing::error!(%error, "log maintenance failed");
                if matches!(error, StoreError::Write(_)) {
                    fatal(error);
                    return;
                }
            }
            next = std::time::Instant::now() + MAINTAIN_EVERY;
        }
    }
}

/// Does what a snapshot transfer asks of the store. Also for a simulated host.
pub fn perform(store: &dyn LogStore, work: Work) -> Result<WorkDone, StoreError> {
    Ok(match work {
        Work::LoadState { group, .. } => WorkDone::State(store.snapshot(group)?),
        Work::LoadEntries { group, indexes, .. } => WorkDone::Entries(store.read(group, &indexes)?),
        Work::Stage { group, snapshot_index, entries, .. } => {
            store.stage(group, snapshot_index, &entries)?;
            WorkDone::Staged
        }
        Work::Restage { group, snapshot_index, indexes, .. } => {
            let held: Option<Vec<_>> = store.read(group, &indexes)?.into_iter().collect();
            if let Some(entries) = &held {
                store.stage(group, snapshot_index, entries)?;
            }
            WorkDone::Restaged(held.is_some())
        }
    })
}
