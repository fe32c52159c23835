//! A node's feature flags as the rest of the broker has them.

use std::collections::BTreeSet;
use std::fmt;
use std::path::PathBuf;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::{BoxFuture, join_all};
use parking_lot::Mutex;
use tokio::sync::Notify;
use warren_metastore::records;
use warren_proto::ids::NodeId;
use warren_raft::transport::{CallError, CallReplies, CallTarget, Introduction, Replies, Transport};

use super::card::Card;
use super::controller::{Controller, EnableError, Nodes, lacking};
use super::deprecated::{self, Permits, Told};
use super::file::{Enabled, FileError, FlagFile};
use super::first_start::{self, Forced, StartRefused};
use super::inventory::{Incompatible, Inventory, check_compatible};
use super::member::{Answer, Ask, AskError, Description, Host, Member};
use super::registry::{FlagId, Properties, Registry};
use super::states::State;
use super::{catalogue, definitions};
use crate::cluster::identity_file::random_u64;
use crate::node::Broker;

/// Method by which a controller asks a node.
pub const ASK: &str = "feature_flags.ask";
/// Method by which a node that joins holds the turn until it belongs to the cluster.
pub const JOIN_TURN: &str = "feature_flags.join_turn";

/// How long a node has to answer about others.
const OTHERS: Duration = Duration::from_secs(10);
/// How long a node may take to join, the wait for its turn included.
const JOIN_TIME: Duration = Duration::from_secs(300);
/// How long it may hold the turn.
const JOIN_HOLD: Duration = Duration::from_secs(120);
/// A node that is asked is given up soon after it is seen down.
const LOOK: Duration = Duration::from_millis(250);
/// Attempts of a starting node to agree with the others, and the pause between them.
const START_ATTEMPTS: u32 = 10;
const START_PAUSE: Duration = Duration::from_secs(1);
/// How often a node looks for flags that are left undecided, and tries to write what is not written.
const TICK: Duration = Duration::from_secs(1);
const WRITE_AGAIN: u64 = 10;
/// Every so many ticks it compares itself with the others.
const COMPARE: u64 = 30;

/// What the configuration says of feature flags.
#[derive(Debug, Clone, Default)]
pub struct FlagSettings {
    /// What a new cluster begins with.
    pub forced: Forced,
    /// `deprecated_features.permit.NAME`.
    pub permits: Permits,
    /// `feature_flags.test_definitions`.
    pub definitions: Option<PathBuf>,
    /// The product version, unless it is this binary's.
    pub version: Option<String>,
    /// `--recreate-feature-flags`: what was enabled when the file was lost.
    pub recreate: Option<Vec<String>>,
}

/// Why a node does not start with its flags.
#[derive(Debug, thiserror::Error)]
pub enum FlagsError {
    /// What it has enabled, or was told to, does not fit.
    #[error(transparent)]
    Refused(#[from] StartRefused),
    /// The file cannot be used.
    #[error(transparent)]
    File(#[from] FileError),
    /// The flags of this binary, or of the file that adds some, contradict each other.
    #[error("feature_flags.test_definitions: {0}")]
    Definitions(String),
    /// The other nodes cannot be one cluster with it.
    #[error("{0}")]
    Incompatible(String),
    /// Deprecated features that are denied here and in use.
    #[error("{0}")]
    InUse(EnableError),
    /// It could not agree with the others.
    #[error("the feature flags could not be brought in line with those of the other nodes: {0}")]
    Sync(EnableError),
}

/// See the module's head.
pub struct FeatureFlags {
    member: Arc<Member>,
    controller: Arc<Controller>,
    cluster: Arc<Cluster>,
    permits: Permits,
    told: Told,
    known: Known,
    /// Flags of a new cluster that wait for their callbacks.
    wanted: Mutex<BTreeSet<String>>,
    /// Holds the turn while this node joins.
    joining: Mutex<Option<CallReplies>>,
    /// Why a node that this one has dialled does not go together with it.
    refused: Mutex<Option<String>>,
    compare: Notify,
    version: String,
}

/// Deprecated features that this binary's own code asks about.
struct Known {
    transient: Option<FlagId>,
    global_qos: Option<FlagId>,
    master_locator: Option<FlagId>,
}

/// A deprecated feature that code of this node depends on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Feature {
    /// `transient_nonexcl_queues`.
    TransientNonexclQueues,
    /// `global_qos`.
    GlobalQos,
    /// `queue_master_locator`.
    QueueMasterLocator,
}

impl Feature {
    fn name(self) -> &'static str {
        match self {
            Feature::TransientNonexclQueues => catalogue::features::TRANSIENT_NONEXCL_QUEUES,
            Feature::GlobalQos => catalogue::features::GLOBAL_QOS,
            Feature::QueueMasterLocator => catalogue::features::QUEUE_MASTER_LOCATOR,
        }
    }
}

impl FeatureFlags {
    /// Reads what the node has enabled. `belongs`: to a cluster already; `alone`: no other node can say what was enabled.
    pub fn open(
        node: &str,
        data: &std::path::Path,
        machine_version: u16,
        settings: &FlagSettings,
        belongs: bool,
        alone: bool,
    ) -> Result<Self, FlagsError> {
        let mut entries = catalogue::core();
        let mut providers = Vec::new();
        if let Some(path) = &settings.definitions {
            let added = definitions::read(path, &mut entries);
            providers = added.map_err(|why| FlagsError::Definitions(format!("{}: {why}", path.display())))?;
        }
        let registry = Registry::new(entries, providers).map_err(|error| FlagsError::Definitions(error.to_string()))?;
        let registry = Arc::new(registry);
        // Also where it does not count: a mistake is told at the first start.
        first_start::initial(&registry, &settings.forced, |_| true)?;
        let version = settings.version.clone().unwrap_or_else(|| crate::identity::VERSION.to_owned());
        let description = Description {
            node: node.to_owned(),
            version: version.clone(),
            machine_version,
            denied: deprecated::denied(&registry, &settings.permits),
        };
        let member = Member::new(description, Arc::clone(&registry), FlagFile::in_directory(data));
        if belongs {
            match (member.file().load()?, &settings.recreate) {
                (Some(enabled), _) => {
                    first_start::check(&registry, &enabled)?;
                    member.load(enabled, false);
                }
                (None, Some(names)) => recreate(&member, &registry, names)?,
                (None, None) if alone => return Err(StartRefused::Lost.into()),
                (None, None) => {
                    tracing::warn!("feature_flags.json is missing: the feature flags of the other nodes count");
                    member.joined();
                }
            }
        }
        let member = Arc::new(member);
        let cluster =
            Arc::new(Cluster { member: Arc::clone(&member), transport: OnceLock::new(), broker: OnceLock::new() });
        let nodes: Arc<dyn Nodes> = Arc::clone(&cluster) as Arc<dyn Nodes>;
        Ok(FeatureFlags {
            controller: Arc::new(Controller::new(Arc::clone(&member), nodes, random_u64())),
            known: Known {
                transient: registry.id(Feature::TransientNonexclQueues.name()),
                global_qos: registry.id(Feature::GlobalQos.name()),
                master_locator: registry.id(Feature::QueueMasterLocator.name()),
            },
            member,
            cluster,
            permits: settings.permits.clone(),
            told: Told::default(),
            wanted: Mutex::default(),
            joining: Mutex::default(),
            refused: Mutex::default(),
            compare: Notify::new(),
            version,
        })
    }

    /// This node's flags.
    pub fn member(&self) -> &Arc<Member> {
        &self.member
    }

    /// What changes those of all nodes.
    pub fn controller(&self) -> &Arc<Controller> {
        &self.controller
    }

    /// This node's inventory.
    pub fn inventory(&self) -> Inventory {
        self.member.inventory()
    }

    fn registry(&self) -> &Registry {
        self.member.states().registry()
    }

    fn has_callback(&self, name: &str) -> bool {
        self.registry().get(name).is_some_and(|entry| entry.callback.is_some())
    }

    fn supports(&self, name: &str) -> bool {
        !self.inventory().unsupported.contains(name)
    }

    // --- Forming a cluster.

    /// What a blank node could begin with.
    pub fn could_begin_with(&self) -> BTreeSet<String> {
        let known = self.registry().entries().map(|(_, entry)| &entry.properties);
        known.filter(|flag| !flag.is_deprecated() && self.supports(&flag.name)).map(|flag| flag.name.clone()).collect()
    }

    /// This node founds a cluster with others: it begins with what all of them can have.
    pub fn found(&self, forced: &Forced, others: &[BTreeSet<String>]) -> Result<(), FlagsError> {
        let everywhere = |name: &str| self.supports(name) && others.iter().all(|other| other.contains(name));
        let names = first_start::initial(self.registry(), forced, everywhere)?;
        self.begin_with(&names)?;
        *self.wanted.lock() = names;
        Ok(())
    }

    /// This node begins with what the cluster that it belongs to has. Flags with callbacks are enabled once they have run
    /// here.
    pub fn adopt(&self, names: &BTreeSet<String>) -> Result<(), FlagsError> {
        self.begin_with(names)
    }

    fn begin_with(&self, names: &BTreeSet<String>) -> Result<(), FlagsError> {
        let at_once = names.iter().map(String::as_str).filter(|name| !self.has_callback(name));
        Ok(self.member.begin_with(at_once)?)
    }

    /// The flags that this node has enabled, deprecated features not among them.
    pub fn enabled(&self) -> BTreeSet<String> {
        let Inventory { enabled, flags, .. } = self.inventory();
        enabled.into_iter().filter(|name| flags.get(name).is_some_and(|flag| !flag.is_deprecated())).collect()
    }

    /// Checks that this node and the cluster at an address can be one, waits for its turn, holds it until
    /// [`end_join`](Self::end_join), and takes over what the cluster has enabled.
    pub async fn begin_join(&self, transport: &Transport, target: CallTarget) -> Result<(), CallError> {
        let payload =
            serde_json::to_vec(&self.inventory().brief()).map_err(|e| CallError::failed("internal", e.to_string()))?;
        let mut replies = transport.call(target, JOIN_TURN, payload, JOIN_TIME).await?;
        let none = || CallError::failed("no_reply", "the node gave no answer about its feature flags");
        let bytes = replies.next().await.ok_or_else(none)??;
        let names: BTreeSet<String> =
            serde_json::from_slice(&bytes).map_err(|error| CallError::failed("unreadable", error.to_string()))?;
        self.adopt(&names).map_err(|error| CallError::failed("internal", error.to_string()))?;
        *self.joining.lock() = Some(replies);
        Ok(())
    }

    /// The node belongs to its cluster: others have their turn.
    pub fn end_join(&self) {
        self.joining.lock().take();
    }

    /// The node was not taken in after all.
    pub fn abandon_join(&self) {
        self.joining.lock().take();
        if let Err(error) = self.member.file().remove() {
            tracing::warn!(%error, "the feature flags of a join that failed could not be removed");
        }
    }

    /// Why the nodes that this one has reached do not go together with it, if so.
    pub fn incompatibility(&self) -> Option<String> {
        self.refused.lock().clone()
    }

    /// The broker is there: deprecated features can be looked for.
    pub(crate) fn connect(&self, broker: &Arc<Broker>) {
        let _ = self.cluster.broker.set(Arc::downgrade(broker));
        self.member.connect(Box::new(HostOf(Arc::downgrade(broker))));
    }

    pub(crate) fn set_transport(&self, transport: &Transport) {
        let _ = self.cluster.transport.set(transport.clone());
    }

    /// Brings this node's flags in line with those of the others when it starts.
    pub(crate) async fn agree(&self) -> Result<(), FlagsError> {
        let mut attempt = 0;
        loop {
            let wanted: Vec<String> = self.wanted.lock().iter().cloned().collect();
            let error = match self.controller.sync_at_start(&wanted).await {
                Ok(()) => break,
                Err(error) => error,
            };
            attempt += 1;
            match error {
                EnableError::InUse(names) => {
                    for name in &names {
                        tracing::error!("{}", self.message(name));
                    }
                    return Err(FlagsError::InUse(EnableError::InUse(names)));
                }
                EnableError::Incompatible(why) => return Err(FlagsError::Incompatible(why.to_string())),
                error if attempt == START_ATTEMPTS => return Err(FlagsError::Sync(error)),
                error => tracing::warn!(%error, "the feature flags differ from those of the other nodes still"),
            }
            tokio::time::sleep(START_PAUSE).await;
        }
        self.member.joined();
        self.wanted.lock().clear();
        Ok(())
    }

    /// Looks after what was left undecided, unwritten or different. Runs until the broker is gone.
    pub(crate) async fn look_after(self: Arc<Self>, broker: Weak<Broker>) {
        for tick in 1_u64.. {
            let compare = tokio::select! {
                () = tokio::time::sleep(TICK) => tick.is_multiple_of(COMPARE),
                () = self.compare.notified() => true,
            };
            let Some(strong) = broker.upgrade() else { return };
            self.show(&strong).await;
            drop(strong);
            if tick.is_multiple_of(WRITE_AGAIN) {
                self.member.write_again();
            }
            self.controller.tend(compare).await;
        }
    }

    /// Notes in the metadata what is enabled, for whoever looks there; nothing reads it to decide anything. The node that
    /// leads the metadata does it.
    async fn show(&self, broker: &Broker) {
        if broker.metadata.leader() != Some(broker.me) {
            return;
        }
        let enabled = self.enabled();
        let shown = records::FeatureFlags::get(&broker.metadata.tree());
        if shown.is_ok_and(|shown| shown.is_some_and(|shown| shown.record.enabled == enabled)) {
            return;
        }
        let record = records::FeatureFlags { enabled, ..records::FeatureFlags::default() };
        if let Err(error) = broker.metadata.write(record.put()).await {
            tracing::debug!(%error, "the enabled feature flags could not be noted in the metadata");
        }
    }

    /// A node is there, or there again.
    pub(crate) fn peer_up(&self) {
        self.compare.notify_one();
    }

    /// A node is down.
    pub(crate) fn peer_down(&self, node: NodeId) {
        if let Some(owner) = self.member.lease_owner()
            && NodeId::of_name(&owner) == node
        {
            self.member.owner_down(&owner);
        }
    }

    // --- Deprecated features.

    fn denies(&self, feature: Feature) -> bool {
        let id = match feature {
            Feature::TransientNonexclQueues => self.known.transient,
            Feature::GlobalQos => self.known.global_qos,
            Feature::QueueMasterLocator => self.known.master_locator,
        };
        id.is_some_and(|id| self.member.states().is_on(id))
    }

    /// Whether a deprecated feature may be used, which is about to be. If not, the text for whoever wanted to. Either is logged
    /// once a day.
    pub fn permits(&self, feature: Feature) -> Result<(), String> {
        let denied = self.denies(feature);
        if self.told.is_due(feature.name()) {
            let text = self.message(feature.name());
            if denied { tracing::error!("{text}") } else { tracing::warn!("{text}") }
        }
        if denied { Err(self.message(feature.name())) } else { Ok(()) }
    }

    fn message(&self, name: &str) -> String {
        let phase = self.registry().get(name).and_then(|entry| entry.properties.phase);
        let denied = self.registry().id(name).is_some_and(|id| self.member.states().is_on(id));
        match phase {
            Some(phase) => deprecated::message(name, phase, self.permits.get(name).copied(), denied),
            None => format!("there is no deprecated feature `{name}`"),
        }
    }

    /// Deprecated features that are in use.
    pub fn used_features(&self) -> Vec<String> {
        let deprecated = self.registry().entries().filter(|(_, entry)| entry.properties.is_deprecated());
        let names: Vec<String> = deprecated.map(|(_, entry)| entry.properties.name.clone()).collect();
        self.member.used(&names)
    }

    // --- Operators.

    /// All flags and deprecated features of this node with their state: `enabled`, `disabled`, `state_changing`, and
    /// `unavailable` where one that is off cannot be enabled because a running node does not know it.
    pub async fn states(&self) -> Vec<(Properties, &'static str)> {
        let others = self.inventories().await;
        let state = |(id, entry): (FlagId, &super::registry::Entry)| {
            let properties = entry.properties.clone();
            let word = match self.member.states().get(id) {
                State::Enabled => "enabled",
                State::Changing => "state_changing",
                State::Disabled if !lacking(&properties.name, &others).is_empty() => "unavailable",
                State::Disabled => "disabled",
            };
            (properties, word)
        };
        self.registry().entries().map(state).collect()
    }

    /// The inventories of all nodes that run; this one's first.
    pub async fn inventories(&self) -> Vec<Inventory> {
        let me = self.member.node().to_owned();
        let nodes = self.cluster.members().into_iter().filter(|node| *node != me && self.cluster.is_running(node));
        let asked: Vec<_> = nodes.map(|node| self.cluster.ask(&node, Ask::Inventory, OTHERS)).collect();
        let mut all = vec![self.inventory()];
        all.extend(join_all(asked).await.into_iter().filter_map(|answer| match answer {
            Ok(Answer::Inventory(inventory)) => Some(*inventory),
            _ => None,
        }));
        all
    }

    /// Enables a flag on all nodes, or denies a deprecated feature. An experimental one has to be wanted.
    pub async fn enable(&self, name: &str, opt_in: bool) -> Result<(), EnableError> {
        let inventories = self.inventories().await;
        let flag = super::inventory::merged(name, &inventories);
        if let Some(flag) = &flag
            && flag.stability == super::registry::Stability::Experimental
            && !flag.is_deprecated()
            && !opt_in
            && !inventories.iter().all(|i| !i.has_off(name))
        {
            return Err(EnableError::Experimental(name.to_owned()));
        }
        if flag.is_none() {
            let nodes = inventories.into_iter().map(|inventory| inventory.node).collect();
            return Err(EnableError::Unsupported { name: name.to_owned(), nodes });
        }
        let (controller, names) = (Arc::clone(&self.controller), vec![name.to_owned()]);
        // It goes on when nobody waits for it any more.
        on_its_own(async move { controller.enable(&names).await }).await
    }

    /// Enables all stable and required flags on all nodes.
    pub async fn enable_all(&self) -> Result<(), EnableError> {
        let controller = Arc::clone(&self.controller);
        on_its_own(async move { controller.enable_all().await }).await
    }

    // --- Other nodes.

    /// Answers a controller.
    pub(crate) async fn answer_ask(&self, payload: &[u8], replies: &Replies) {
        let ask: Ask = match serde_json::from_slice(payload) {
            Ok(ask) => ask,
            Err(error) => return replies.fail("unreadable", error.to_string()).await,
        };
        match self.member.answer(ask).await {
            Ok(answer) => match serde_json::to_vec(&answer) {
                Ok(bytes) => drop(replies.send(bytes).await),
                Err(error) => replies.fail("internal", error.to_string()).await,
            },
            Err(error) => {
                let word = match &error {
                    AskError::Busy(_) => "busy_turn",
                    AskError::LeaseLost => "lease_lost",
                    AskError::Unknown => "unknown_flag",
                    AskError::Failed(_) | AskError::Unreachable(_) => "failed",
                };
                let text = match error {
                    AskError::Busy(owner) => owner,
                    error => error.to_string(),
                };
                replies.fail(word, text).await;
            }
        }
    }

    /// Answers whoever wants to know the flags of all nodes.
    pub(crate) async fn answer_inventories(&self, replies: &Replies) {
        let all: Vec<Inventory> = self.inventories().await.into_iter().map(Inventory::brief).collect();
        match serde_json::to_vec(&all) {
            Ok(bytes) => drop(replies.send(bytes).await),
            Err(error) => replies.fail("internal", error.to_string()).await,
        }
    }

    /// Holds the turn for a node that joins, until it has joined or gives up.
    pub(crate) async fn answer_join(&self, payload: &[u8], replies: &Replies) {
        let guest: Inventory = match serde_json::from_slice(payload) {
            Ok(guest) => guest,
            Err(error) => return replies.fail("unreadable", error.to_string()).await,
        };
        // An answer that is certain needs no turn.
        if let Err(why) = check_compatible(&guest, &self.inventories().await) {
            return replies.fail(why.word(), why.to_string()).await;
        }
        let refused: Mutex<Option<Incompatible>> = Mutex::default();
        let (guest, refused_here) = (&guest, &refused);
        let held = self.controller.hold(|inventories: Vec<Inventory>| async move {
            if let Err(why) = check_compatible(guest, &inventories) {
                *refused_here.lock() = Some(why);
                return;
            }
            let Ok(bytes) = serde_json::to_vec(&self.enabled()) else { return };
            if replies.send(bytes).await {
                tracing::info!(node = guest.node, "a node joins: feature flags do not change meanwhile");
                let _ = tokio::time::timeout(JOIN_HOLD, replies.closed()).await;
            }
        });
        if let Err(error) = held.await {
            replies.fail("not_admitted", error.to_string()).await;
        }
        let why = refused.lock().take();
        if let Some(why) = why {
            replies.fail(why.word(), why.to_string()).await;
        }
    }
}

/// Flags whose file is lost, as the operator remembers them.
fn recreate(member: &Member, registry: &Registry, names: &[String]) -> Result<(), FlagsError> {
    if let Some(unknown) = names.iter().find(|name| registry.get(name).is_none()) {
        return Err(StartRefused::Forced(format!("`{unknown}` is not a feature flag of this version")).into());
    }
    let provided_by = |name: &String| registry.get(name).map(|e| e.properties.provided_by.clone()).unwrap_or_default();
    let required =
        registry.entries().map(|(_, entry)| &entry.properties).filter(|flag| flag.is_hard() && !flag.is_deprecated());
    let mut all: BTreeSet<String> = names.iter().cloned().collect();
    all.extend(required.map(|flag| flag.name.clone()));
    let enabled: Vec<Enabled> =
        all.iter().map(|name| Enabled { name: name.clone(), provided_by: provided_by(name) }).collect();
    member.load(enabled, false);
    member.begin_with(all.iter().map(String::as_str))?;
    Ok(())
}

async fn on_its_own(work: impl Future<Output = Result<(), EnableError>> + Send + 'static) -> Result<(), EnableError> {
    match tokio::spawn(work).await {
        Ok(outcome) => outcome,
        Err(error) => {
            let why = AskError::Failed(error.to_string());
            Err(EnableError::NoAnswer { node: "this one".to_owned(), why })
        }
    }
}

impl fmt::Debug for FeatureFlags {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FeatureFlags").field("node", &self.member.node()).finish_non_exhaustive()
    }
}

impl Introduction for FeatureFlags {
    fn version(&self) -> String {
        self.version.clone()
    }

    fn say(&self) -> Bytes {
        serde_json::to_vec(&Card::of(&self.inventory())).map(Bytes::from).unwrap_or_default()
    }

    fn judge(&self, name: &str, version: &str, said: &[u8]) -> Result<(), String> {
        let card: Card = match said {
            // A node from before feature flags: it knows none.
            [] => Card::default(),
            said => serde_json::from_slice(said).map_err(|error| format!("incompatible_feature_flags: {error}"))?,
        };
        let verdict = check_compatible(&self.inventory(), &[card.inventory(name, version)]);
        verdict.map_err(|why| why.to_string())
    }

    fn refused(&self, reason: &str) {
        *self.refused.lock() = Some(reason.to_owned());
    }
}

/// The nodes of the cluster by way of the transport.
struct Cluster {
    member: Arc<Member>,
    transport: OnceLock<Transport>,
    broker: OnceLock<Weak<Broker>>,
}

impl Cluster {
    fn broker(&self) -> Option<Arc<Broker>> {
        self.broker.get().and_then(Weak::upgrade)
    }
}

impl Nodes for Cluster {
    fn members(&self) -> Vec<String> {
        let mut names: Vec<String> = match self.broker() {
            Some(broker) => broker.metadata().nodes().iter().map(|node| node.name.to_string()).collect(),
            None => Vec::new(),
        };
        let me = self.member.node();
        if !names.iter().any(|name| name == me) {
            names.push(me.to_owned());
        }
        names
    }

    fn is_running(&self, node: &str) -> bool {
        node == self.member.node() || self.transport.get().is_some_and(|t| t.is_up(NodeId::of_name(node)))
    }

    fn ask(&self, node: &str, ask: Ask, time: Duration) -> BoxFuture<'static, Result<Answer, AskError>> {
        if node == self.member.node() {
            let member = Arc::clone(&self.member);
            return Box::pin(async move { member.answer(ask).await });
        }
        let (id, transport) = (NodeId::of_name(node), self.transport.get().cloned());
        Box::pin(async move {
            let transport = transport.ok_or_else(|| AskError::Unreachable("this node is starting".to_owned()))?;
            let payload = serde_json::to_vec(&ask).map_err(|error| AskError::Failed(error.to_string()))?;
            let down = async {
                while transport.is_up(id) {
                    tokio::time::sleep(LOOK).await;
                }
            };
            let asked = async {
                let replies = transport.call(CallTarget::Node(id), ASK, payload, time).await.map_err(refusal)?;
                replies.one().await.map_err(refusal)
            };
            let bytes = tokio::select! {
                bytes = asked => bytes?,
                () = down => return Err(AskError::Unreachable("the node is down".to_owned())),
            };
            serde_json::from_slice(&bytes).map_err(|error| AskError::Failed(error.to_string()))
        })
    }
}

fn refusal(error: CallError) -> AskError {
    match error {
        CallError::Failed { code, message } => match code.as_str() {
            "busy_turn" => AskError::Busy(message),
            "lease_lost" => AskError::LeaseLost,
            "unknown_flag" => AskError::Unknown,
            "failed" | "internal" | "unreadable" => AskError::Failed(message),
            // It starts, or does not go together with this node.
            _ => AskError::Unreachable(message),
        },
        other => AskError::Unreachable(other.to_string()),
    }
}

struct HostOf(Weak<Broker>);

impl Host for HostOf {
    fn uses(&self, feature: &str) -> bool {
        self.0.upgrade().is_some_and(|broker| broker.uses_feature(feature))
    }

    fn behind(&self, version: u16) -> super::member::Behind {
        self.0.upgrade().map(|broker| broker.below_machine_version(version)).unwrap_or_default()
    }
}
