//! A node's own part: it keeps its flags, and does what the controller that has the turn asks of it.
//!
//! A turn is a lease that a controller takes on every running node. Whatever changes a flag names its lease, and is refused
//! unless that is the one in force here. A flag whose lease has ended while it was being decided is left to
//! [`Controller::resolve`](super::controller::Controller::resolve).

use std::collections::{BTreeMap, BTreeSet};
use std::panic::AssertUnwindSafe;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::FutureExt as _;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use tokio::sync::Notify;
use tokio::time::Instant;

use super::defect::{Defect, broken};
use super::file::{Enabled, FlagFile};
use super::inventory::Inventory;
use super::registry::{FlagId, Properties, Registry, Run};
use super::states::{State, States};

/// How long a lease lasts that is not renewed.
pub const LEASE: Duration = Duration::from_secs(30);
/// How often a running callback looks whether its lease has run out. That another one was taken it is told at once.
const LEASE_CHECK: Duration = Duration::from_millis(500);
/// A file that could not be written is complained about this often.
const ALERT: Duration = Duration::from_secs(60);

/// Whose turn it is.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Lease {
    /// The controller's node.
    pub owner: String,
    /// The life of its process.
    pub start: u64,
    /// Counts the turns of that life.
    pub term: u64,
}

/// What a controller asks of a node.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Ask {
    /// Its flags.
    Inventory,
    /// It takes this lease unless another one is in force, or renews it.
    Take(Lease),
    /// Whether this lease is in force; if so it is renewed.
    Renew(Lease),
    /// The turn is over.
    Release(Lease),
    /// The flag is being decided.
    Begin(Lease, String),
    /// It runs the flag's `enable`.
    Run(Lease, String, Vec<String>),
    /// The flag is decided.
    Finish(Lease, String, bool),
    /// It runs the flag's `post_enable`.
    PostEnable(Lease, String, Vec<String>, bool),
    /// Which of these deprecated features are in use.
    Used(Vec<String>),
    /// Which quorum queues that it has a member of, and which nodes, are below a machine version.
    Behind(u16),
}

/// What a node answers.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is done.
    Done,
    /// Its flags.
    Inventory(Box<Inventory>),
    /// Deprecated features in use.
    Used(Vec<String>),
    /// What is below the machine version.
    Behind(Behind),
}

/// What keeps a machine version from being promised.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Behind {
    /// Quorum queues whose effective version is lower, as a person reads them, and the nodes whose members hold them back.
    pub queues: BTreeMap<String, BTreeSet<String>>,
    /// Nodes whose binaries do not support it.
    pub nodes: BTreeSet<String>,
}

impl Behind {
    /// Whether nothing is.
    pub fn is_empty(&self) -> bool {
        self.queues.is_empty() && self.nodes.is_empty()
    }

    /// Whether waiting does not help: somebody has to upgrade or remove something.
    pub fn is_held_back(&self) -> bool {
        !self.nodes.is_empty() || self.queues.values().any(|holders| !holders.is_empty())
    }

    /// Takes in what another node says.
    pub fn merge(&mut self, other: Behind) {
        self.nodes.extend(other.nodes);
        for (queue, holders) in other.queues {
            self.queues.entry(queue).or_default().extend(holders);
        }
    }
}

/// Why a node did not do what it was asked.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum AskError {
    /// Another lease is in force.
    #[error("it is the turn of {0}")]
    Busy(String),
    /// The lease is not in force any more.
    #[error("the controller's lease has ended")]
    LeaseLost,
    /// The node does not know the flag.
    #[error("the feature flag is not known")]
    Unknown,
    /// A callback failed.
    #[error("{0}")]
    Failed(String),
    /// No answer.
    #[error("{0}")]
    Unreachable(String),
}

/// What a node knows beyond its flags.
pub trait Host: Send + Sync {
    /// Whether a deprecated feature is in use in the cluster, as far as this node knows.
    fn uses(&self, feature: &str) -> bool;
    /// What is below a machine version.
    fn behind(&self, version: u16) -> Behind;
}

/// What a node says of itself whatever its flags are.
#[derive(Debug, Clone, Default)]
pub struct Description {
    /// `name@host`.
    pub node: String,
    /// Its product version.
    pub version: String,
    /// Newest machine version of quorum queues that it supports.
    pub machine_version: u16,
    /// Deprecated features that its phases and configuration deny.
    pub denied: BTreeSet<String>,
}

/// See the module's head.
pub struct Member {
    description: Description,
    states: Arc<States>,
    file: FlagFile,
    host: OnceLock<Box<dyn Host>>,
    inner: Mutex<Inner>,
    /// The lease is another one, or none.
    lease_changed: Notify,
}

struct Inner {
    lease: Option<(Lease, Instant)>,
    /// Flags that are being decided, and in whose turn.
    changing: BTreeMap<FlagId, Lease>,
    /// Flags of plugins that this node does not have: they stay in the file.
    kept: Vec<Enabled>,
    virgin: bool,
    /// The file lacks something; when that was last complained about.
    unwritten: Option<Instant>,
}

impl Member {
    /// A node whose flags are off, but for deprecated features that are denied.
    pub fn new(description: Description, registry: Arc<Registry>, file: FlagFile) -> Self {
        let states = States::new(Arc::clone(&registry));
        for name in &description.denied {
            if let Some(id) = registry.id(name) {
                states.set(id, State::Enabled);
            }
        }
        let inner = Inner { lease: None, changing: BTreeMap::new(), kept: Vec::new(), virgin: true, unwritten: None };
        Member {
            description,
            states: Arc::new(states),
            file,
            host: OnceLock::new(),
            inner: Mutex::new(inner),
            lease_changed: Notify::new(),
        }
    }

    /// The node's name.
    pub fn node(&self) -> &str {
        &self.description.node
    }

    /// The states of its flags.
    pub fn states(&self) -> &Arc<States> {
        &self.states
    }

    /// Its file.
    pub fn file(&self) -> &FlagFile {
        &self.file
    }

    /// What the file has on disk is all that is enabled.
    pub fn is_written(&self) -> bool {
        self.inner.lock().unwritten.is_none()
    }

    /// Connects it to what else the node knows.
    pub fn connect(&self, host: Box<dyn Host>) {
        let _ = self.host.set(host);
    }

    /// Sets what the file said; names that this binary does not know are kept for the next time it is written.
    pub fn load(&self, enabled: Vec<Enabled>, virgin: bool) {
        let mut inner = self.inner.lock();
        inner.virgin = virgin;
        for flag in enabled {
            match self.registry().id(&flag.name) {
                Some(id) => self.states.set(id, State::Enabled),
                None => inner.kept.push(flag),
            }
        }
    }

    /// Enables flags without their callbacks, and writes the file. For a node's first start.
    pub fn begin_with<'n>(&self, names: impl IntoIterator<Item = &'n str>) -> Result<(), super::file::FileError> {
        let inner = self.inner.lock();
        names
            .into_iter()
            .filter_map(|name| self.registry().id(name))
            .for_each(|id| self.states.set(id, State::Enabled));
        self.file.store(self.enabled(&inner))
    }

    /// The node belongs to a cluster from now on.
    pub fn joined(&self) {
        self.inner.lock().virgin = false;
    }

    fn registry(&self) -> &Registry {
        self.states.registry()
    }

    /// What is in the file, or is to be.
    fn enabled(&self, inner: &Inner) -> Vec<Enabled> {
        let on =
            self.registry().entries().filter(|(id, entry)| self.states.is_on(*id) && !entry.properties.is_deprecated());
        let named = |(_, entry): (FlagId, &super::registry::Entry)| Enabled {
            name: entry.properties.name.clone(),
            provided_by: entry.properties.provided_by.clone(),
        };
        on.map(named).chain(inner.kept.iter().cloned()).collect()
    }

    /// Its flags.
    pub fn inventory(&self) -> Inventory {
        let inner = self.inner.lock();
        let mut inventory = Inventory {
            node: self.description.node.clone(),
            version: self.description.version.clone(),
            virgin: inner.virgin,
            providers: self.registry().providers().clone(),
            denied: self.description.denied.clone(),
            ..Inventory::default()
        };
        for (id, entry) in self.registry().entries() {
            let Properties { name, machine_version, .. } = &entry.properties;
            match self.states.get(id) {
                State::Enabled => inventory.enabled.insert(name.clone()),
                State::Changing => inventory.changing.insert(name.clone()),
                State::Disabled => false,
            };
            if machine_version.is_some_and(|needed| needed > self.description.machine_version) {
                inventory.unsupported.insert(name.clone());
            }
            inventory.flags.insert(name.clone(), entry.properties.clone());
        }
        inventory
    }

    /// Which of these deprecated features are in use.
    pub fn used(&self, features: &[String]) -> Vec<String> {
        let host = self.host.get();
        features.iter().filter(|feature| host.is_some_and(|host| host.uses(feature))).cloned().collect()
    }

    /// A node is down: its turn is over.
    pub fn owner_down(&self, node: &str) {
        let mut inner = self.inner.lock();
        if inner.lease.as_ref().is_some_and(|(lease, _)| lease.owner == node) {
            inner.lease = None;
            self.lease_changed.notify_waiters();
        }
    }

    /// Whether flags are being decided in a turn that is over.
    pub fn is_unresolved(&self) -> bool {
        let inner = self.inner.lock();
        let held = held(&inner);
        inner.changing.values().any(|lease| held != Some(lease))
    }

    /// Tries again to write the file, if it lacks something.
    pub fn write_again(&self) {
        let mut inner = self.inner.lock();
        if inner.unwritten.is_some() {
            self.write(&mut inner);
        }
    }

    fn write(&self, inner: &mut Inner) {
        match self.file.store(self.enabled(inner)) {
            Ok(()) => {
                if inner.unwritten.take().is_some() {
                    tracing::info!("the enabled feature flags are written to disk again");
                }
            }
            Err(error) => {
                if inner.unwritten.is_none_or(|told| told.elapsed() >= ALERT) {
                    tracing::error!(%error, "the enabled feature flags could not be written to disk; they are in force");
                    inner.unwritten = Some(Instant::now());
                }
            }
        }
    }

    /// Does what a controller asks.
    pub async fn answer(&self, ask: Ask) -> Result<Answer, AskError> {
        match ask {
            Ask::Inventory => Ok(Answer::Inventory(Box::new(self.inventory()))),
            Ask::Take(lease) => self.take(lease),
            Ask::Renew(lease) => {
                let mut inner = self.inner.lock();
                check(&inner, &lease)?;
                inner.lease = Some((lease, Instant::now() + LEASE));
                Ok(Answer::Done)
            }
            Ask::Release(lease) => {
                let mut inner = self.inner.lock();
                if inner.lease.as_ref().is_some_and(|(held, _)| *held == lease) {
                    inner.lease = None;
                    self.lease_changed.notify_waiters();
                }
                Ok(Answer::Done)
            }
            Ask::Begin(lease, name) => {
                let mut inner = self.inner.lock();
                check(&inner, &lease)?;
                let id = self.registry().id(&name).ok_or(AskError::Unknown)?;
                if self.states.get(id) != State::Enabled {
                    inner.changing.insert(id, lease);
                    self.states.set(id, State::Changing);
                    if broken(Defect::ChangingIsWritten) {
                        self.states.set(id, State::Enabled);
                        self.write(&mut inner);
                        self.states.set(id, State::Changing);
                    }
                }
                Ok(Answer::Done)
            }
            Ask::Run(lease, name, nodes) => self.run(lease, &name, nodes).await,
            Ask::Finish(lease, name, enabled) => self.finish(&lease, &name, enabled),
            Ask::PostEnable(lease, name, nodes, enabled) => {
                check(&self.inner.lock(), &lease)?;
                self.post_enable(&name, nodes, enabled).await
            }
            Ask::Used(features) => Ok(Answer::Used(self.used(&features))),
            Ask::Behind(version) => Ok(Answer::Behind(self.host.get().map(|h| h.behind(version)).unwrap_or_default())),
        }
    }

    fn take(&self, lease: Lease) -> Result<Answer, AskError> {
        let mut inner = self.inner.lock();
        match held(&inner) {
            // Of one controller the newest turn counts: it may not have heard that an older one ended here.
            Some(other) if other.owner != lease.owner && !broken(Defect::TurnsOverlap) => {
                return Err(AskError::Busy(other.owner.clone()));
            }
            _ => inner.lease = Some((lease, Instant::now() + LEASE)),
        }
        self.lease_changed.notify_waiters();
        Ok(Answer::Done)
    }

    async fn run(&self, lease: Lease, name: &str, nodes: Vec<String>) -> Result<Answer, AskError> {
        check(&self.inner.lock(), &lease)?;
        let entry = self.registry().get(name).ok_or(AskError::Unknown)?;
        let Some(callback) = &entry.callback else { return Ok(Answer::Done) };
        let run = Run { node: self.description.node.clone(), flag: entry.properties.clone(), nodes };
        let running = AssertUnwindSafe(callback.enable(&run)).catch_unwind();
        let lost = async {
            loop {
                let changed = self.lease_changed.notified();
                tokio::pin!(changed);
                changed.as_mut().enable();
                if check(&self.inner.lock(), &lease).is_err() {
                    return;
                }
                tokio::select! {
                    () = changed => {}
                    () = tokio::time::sleep(LEASE_CHECK) => {}
                }
            }
        };
        tracing::info!(feature_flag = name, "a feature flag's callback runs: enable");
        let outcome = tokio::select! {
            outcome = running => match outcome {
                Ok(outcome) => outcome.map_err(AskError::Failed),
                Err(_) => Err(AskError::Failed("the callback panicked".to_owned())),
            },
            () = lost => Err(AskError::LeaseLost),
        };
        match &outcome {
            Ok(()) => tracing::info!(feature_flag = name, "a feature flag's callback has run: enable"),
            Err(error) => tracing::error!(feature_flag = name, %error, "a feature flag's callback failed: enable"),
        }
        outcome.map(|()| Answer::Done)
    }

    async fn post_enable(&self, name: &str, nodes: Vec<String>, enabled: bool) -> Result<Answer, AskError> {
        let entry = self.registry().get(name).ok_or(AskError::Unknown)?;
        let Some(callback) = &entry.callback else { return Ok(Answer::Done) };
        let run = Run { node: self.description.node.clone(), flag: entry.properties.clone(), nodes };
        tracing::info!(feature_flag = name, enabled, "a feature flag's callback runs: post_enable");
        let outcome = AssertUnwindSafe(callback.post_enable(&run, enabled)).catch_unwind().await;
        let error = match outcome {
            Ok(Ok(())) => return Ok(Answer::Done),
            Ok(Err(error)) => error,
            Err(_) => "the callback panicked".to_owned(),
        };
        // The flag is decided: nothing depends on it any more.
        tracing::warn!(feature_flag = name, %error, "a feature flag's callback failed: post_enable");
        Ok(Answer::Done)
    }

    fn finish(&self, lease: &Lease, name: &str, enabled: bool) -> Result<Answer, AskError> {
        let mut inner = self.inner.lock();
        check(&inner, lease)?;
        let id = self.registry().id(name).ok_or(AskError::Unknown)?;
        inner.changing.remove(&id);
        let was = self.states.get(id);
        let deprecated = self.registry().get(name).is_some_and(|entry| entry.properties.is_deprecated());
        if enabled && was != State::Enabled {
            if !deprecated {
                self.write_with(&mut inner, id, name);
            }
            self.states.set(id, State::Enabled);
            tracing::info!(
                feature_flag = name,
                "{}",
                if deprecated { "deprecated feature denied" } else { "feature flag enabled" }
            );
        } else if !enabled && (was == State::Changing || deprecated) {
            self.states.set(id, State::Disabled);
        }
        Ok(Answer::Done)
    }

    /// The file first, then memory; it is small and seldom written, so nobody is kept waiting for long. Where the file cannot be written, others may have the flag already: it is in force all
    /// the same.
    fn write_with(&self, inner: &mut Inner, id: FlagId, name: &str) {
        let mut list = self.enabled(inner);
        let provided_by = self.registry().get(name).map_or_else(String::new, |e| e.properties.provided_by.clone());
        list.push(Enabled { name: name.to_owned(), provided_by });
        if let Err(error) = self.file.store(list) {
            if inner.unwritten.is_none() {
                inner.unwritten = Some(Instant::now());
            }
            tracing::error!(
                feature_flag = name, %error,
                "the enabled feature flag could not be written to disk; it is in force, and writing is tried again"
            );
            self.states.set(id, State::Enabled);
        }
    }

    /// The node whose controller has the turn.
    pub fn lease_owner(&self) -> Option<String> {
        held(&self.inner.lock()).map(|lease| lease.owner.clone())
    }
}

/// The lease in force.
fn held(inner: &Inner) -> Option<&Lease> {
    inner.lease.as_ref().filter(|(_, until)| Instant::now() < *until).map(|(lease, _)| lease)
}

fn check(inner: &Inner, lease: &Lease) -> Result<(), AskError> {
    match held(inner) == Some(lease) || broken(Defect::LeaseNotChecked) {
        true => Ok(()),
        false => Err(AskError::LeaseLost),
    }
}
