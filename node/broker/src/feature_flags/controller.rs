//! Enabling flags on all nodes (spec: feature-flags.md, sections 3 and 5).
//!
//! One controller in the cluster works at a time: it takes a lease on every running node, in the order of their names. A
//! flag is first *being decided* on every node that has it off; its callbacks run there, all at once; then it is enabled on
//! one node, and from that moment the outcome is certain: whoever finds the flag half-way enables it where a node has it,
//! and puts it off where none has.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{BoxFuture, join_all};
use tokio::sync::{Mutex, MutexGuard};
use tokio::time::Instant;

use super::defect::{Defect, broken};
use super::inventory::{Inventory, check_compatible, is_hard_of_plugin, merged};
use super::member::{Answer, Ask, AskError, Behind, Lease, Member};
use super::registry::{Properties, Stability};

/// How long a node may take to answer what it can answer at once.
const ANSWER: Duration = Duration::from_secs(60);
/// How long a callback may run: there is no limit, but the node has to be there.
const CALLBACK: Duration = Duration::from_secs(7 * 86_400);
/// How often leases are renewed.
const RENEW: Duration = Duration::from_secs(5);
/// Without an answer for so long, a node's lease counts as lost, well before it ends there.
const UNSURE: Duration = Duration::from_secs(20);
/// Pause before a controller asks again for a turn that another one has.
const TURN_PAUSE: Duration = Duration::from_millis(100);
/// How long queues that nothing holds back may take to reach a machine version.
const VERSION_WAIT: Duration = Duration::from_secs(30);
const VERSION_PAUSE: Duration = Duration::from_millis(500);

/// The other nodes, as a controller reaches them.
pub trait Nodes: Send + Sync {
    /// All nodes of the cluster, this one included, by name.
    fn members(&self) -> Vec<String>;
    /// Whether a node runs.
    fn is_running(&self, node: &str) -> bool;
    /// Asks a node, which may be this one.
    fn ask(&self, node: &str, ask: Ask, time: Duration) -> BoxFuture<'static, Result<Answer, AskError>>;
}

/// Why a flag was not enabled.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EnableError {
    /// A node has never heard of it, and has its provider.
    #[error("unsupported: feature flag '{name}' is not supported by {}", list(.nodes))]
    Unsupported {
        /// The flag.
        name: String,
        /// The nodes that do not know it.
        nodes: Vec<String>,
    },
    /// Not all nodes run.
    #[error("missing_clustered_nodes: all nodes of the cluster must be running; these are not: {}{}", list(.nodes), also(.behind))]
    MissingNodes {
        /// The nodes.
        nodes: Vec<String>,
        /// What else would keep the flag off.
        behind: Behind,
    },
    /// It is an experiment, and nobody said that it is wanted.
    #[error("feature flag '{0}' is experimental: it is enabled only with --opt-in")]
    Experimental(String),
    /// Deprecated features that are in use.
    #[error("failed_to_deny_deprecated_features: these are in use: {}", list(.0))]
    InUse(Vec<String>),
    /// Quorum queues or nodes are below the machine version that it promises.
    #[error("feature flag '{name}' needs machine version {version} of quorum queues{}", also(.behind))]
    MachineVersion {
        /// The flag.
        name: String,
        /// What it needs.
        version: u16,
        /// What is below.
        behind: Behind,
    },
    /// Something that it needs could not be enabled.
    #[error("feature flag '{name}' depends on '{dependency}': {why}")]
    Dependency {
        /// The flag.
        name: String,
        /// What it needs.
        dependency: String,
        /// Why that is off.
        why: Box<EnableError>,
    },
    /// A node did not do its part.
    #[error("feature flag '{name}' was not enabled: {step} on {node}: {why}")]
    Node {
        /// The flag.
        name: String,
        /// What it was asked.
        step: &'static str,
        /// The node.
        node: String,
        /// Its answer.
        why: AskError,
    },
    /// A node could not be asked.
    #[error("node {node} does not answer: {why}")]
    NoAnswer {
        /// The node.
        node: String,
        /// Why.
        why: AskError,
    },
    /// The controller lost its turn.
    #[error(
        "the turn ended early: {0} did not renew the lease; the feature flags in question are settled by the nodes"
    )]
    TurnLost(String),
    /// It is not known whether a flag is enabled on a node that fell silent.
    #[error(
        "feature flag '{name}': {node} fell silent while it was to be enabled there ({why}); its state follows that of the nodes"
    )]
    Unsure {
        /// The flag.
        name: String,
        /// The node.
        node: String,
        /// What happened.
        why: AskError,
    },
    /// Two nodes cannot be one cluster.
    #[error("{0}")]
    Incompatible(super::inventory::Incompatible),
}

fn list(names: &[String]) -> String {
    names.join(", ")
}

/// What is below a machine version, as the end of a sentence.
fn also(behind: &Behind) -> String {
    let mut text = String::new();
    if !behind.nodes.is_empty() {
        let nodes: Vec<&str> = behind.nodes.iter().map(String::as_str).collect();
        text += &format!("; nodes that do not support it: {}", nodes.join(", "));
    }
    for (queue, holders) in behind.queues.iter().take(SHOWN) {
        let holders: Vec<&str> = holders.iter().map(String::as_str).collect();
        let held =
            if holders.is_empty() { "on its way".to_owned() } else { format!("held back by {}", holders.join(", ")) };
        text += &format!("; {queue} is below, {held}");
    }
    if behind.queues.len() > SHOWN {
        text += &format!("; and {} more queues", behind.queues.len() - SHOWN);
    }
    text
}

/// So many queues are named.
const SHOWN: usize = 100;

/// What a node's running task is at, for whoever asks.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Progress {
    /// The flag.
    pub flag: String,
    /// The step.
    pub step: &'static str,
    /// The nodes that the step concerns.
    pub nodes: Vec<String>,
}

/// One node's controller.
pub struct Controller {
    member: Arc<Member>,
    nodes: Arc<dyn Nodes>,
    start: u64,
    /// Held while a task of this node runs or waits for its turn; counts the turns.
    turns: Mutex<u64>,
    progress: parking_lot::Mutex<Option<Progress>>,
}

/// A turn: the lease, and the nodes that have granted it.
struct Turn<'c> {
    lease: Lease,
    nodes: Vec<String>,
    _own: MutexGuard<'c, u64>,
}

/// Whether all nodes of the cluster have to take part.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Need {
    All,
    Running,
}

impl Controller {
    /// The controller of a node; `start` is the life of its process.
    pub fn new(member: Arc<Member>, nodes: Arc<dyn Nodes>, start: u64) -> Self {
        Controller { member, nodes, start, turns: Mutex::new(0), progress: parking_lot::Mutex::default() }
    }

    /// What is under way on this node.
    pub fn progress(&self) -> Option<Progress> {
        self.progress.lock().clone()
    }

    /// Waits until no task of this node runs.
    pub async fn idle(&self) {
        drop(self.turns.lock().await);
    }

    /// Enables flags one after the other on all nodes; the first failure ends it, and what was enabled before stays so.
    pub async fn enable(&self, names: &[String]) -> Result<(), EnableError> {
        // Said at once rather than after a wait for the turn.
        self.all_running(names).await?;
        let turn = self.turn(Need::All).await?;
        self.work(&turn, self.enable_names(&turn, names)).await
    }

    async fn enable_names(&self, turn: &Turn<'_>, names: &[String]) -> Result<(), EnableError> {
        for name in names {
            self.enable_one(turn, name).await?;
        }
        Ok(())
    }

    /// Enables all flags that are stable or required, on all nodes.
    pub async fn enable_all(&self) -> Result<(), EnableError> {
        self.all_running(&[]).await?;
        let turn = self.turn(Need::All).await?;
        self.work(&turn, self.enable_stable(&turn)).await
    }

    async fn enable_stable(&self, turn: &Turn<'_>) -> Result<(), EnableError> {
        let inventories = self.inventories(turn).await?;
        for name in names(&inventories) {
            let wanted = merged(&name, &inventories)
                .is_some_and(|flag| !flag.is_deprecated() && flag.stability != Stability::Experimental);
            // One that some node cannot have is no reason to leave the others out.
            if wanted && lacking(&name, &inventories).is_empty() {
                self.enable_one(turn, &name).await?;
            }
        }
        Ok(())
    }

    /// Makes the running nodes agree: what is on at one of them, and what is required, is enabled at all.
    pub async fn sync(&self) -> Result<(), EnableError> {
        self.agree(false, &[]).await
    }

    /// As [`sync`](Self::sync), for a node that has just started: it looks whether it may, says which deprecated features
    /// are permitted again, and enables what a new cluster begins with.
    pub async fn sync_at_start(&self, wanted: &[String]) -> Result<(), EnableError> {
        self.agree(true, wanted).await
    }

    async fn agree(&self, starts: bool, wanted: &[String]) -> Result<(), EnableError> {
        if broken(Defect::NoSync) {
            return Ok(());
        }
        let turn = self.turn(Need::Running).await?;
        self.work(&turn, self.bring_in_line(&turn, starts, wanted)).await
    }

    async fn bring_in_line(&self, turn: &Turn<'_>, starts: bool, wanted: &[String]) -> Result<(), EnableError> {
        let inventories = self.inventories(turn).await?;
        let own = self.member.inventory();
        let others: Vec<Inventory> = inventories.iter().filter(|i| i.node != own.node).cloned().collect();
        check_compatible(&own, &others).map_err(EnableError::Incompatible)?;
        if starts {
            let denied: Vec<String> = own.denied.iter().cloned().collect();
            let used = self.member.used(&denied);
            if !used.is_empty() {
                return Err(EnableError::InUse(used));
            }
            self.permit_again(turn, &inventories).await?;
        }
        for name in differing(&self.inventories(turn).await?) {
            self.enable_one(turn, &name).await?;
        }
        self.enable_names(turn, wanted).await
    }

    /// Whether the running nodes differ in what they have enabled, or one lacks what is required.
    pub async fn is_out_of_sync(&self) -> bool {
        let running: Vec<String> = self.running();
        let asked = running.iter().map(|node| self.nodes.ask(node, Ask::Inventory, ANSWER));
        let inventories: Vec<Inventory> = join_all(asked).await.into_iter().filter_map(inventory).collect();
        !differing(&inventories).is_empty()
    }

    /// Looks after what a controller that is gone left undecided and, with `compare`, after what differs.
    pub async fn tend(&self, compare: bool) {
        if self.member.is_unresolved()
            && let Err(error) = self.resolve().await
        {
            tracing::warn!(%error, "a feature flag that was left undecided could not be settled yet");
        }
        if compare
            && self.is_out_of_sync().await
            && let Err(error) = self.sync().await
        {
            tracing::warn!(%error, "feature flags differ between the nodes and could not be brought in line yet");
        }
    }

    /// Decides what a controller that is gone has left undecided: enabled where a node has it enabled, else off.
    pub async fn resolve(&self) -> Result<(), EnableError> {
        if broken(Defect::NoResolver) {
            return Ok(());
        }
        let turn = self.turn(Need::Running).await?;
        self.work(&turn, self.settle(&turn)).await
    }

    /// Lets no flag change while something is done that depends on them all.
    pub async fn hold<W>(&self, work: impl FnOnce(Vec<Inventory>) -> W) -> Result<(), EnableError>
    where
        W: Future<Output = ()>,
    {
        let turn = self.turn(Need::Running).await?;
        let held = async {
            let inventories = self.inventories(&turn).await?;
            work(inventories).await;
            Ok(())
        };
        self.work(&turn, held).await
    }

    fn running(&self) -> Vec<String> {
        let mut nodes = self.nodes.members();
        nodes.sort();
        nodes.dedup();
        nodes.retain(|node| self.nodes.is_running(node));
        nodes
    }

    async fn all_running(&self, names: &[String]) -> Result<(), EnableError> {
        let mut nodes = self.nodes.members();
        nodes.sort();
        nodes.retain(|node| !self.nodes.is_running(node));
        if nodes.is_empty() {
            return Ok(());
        }
        Err(self.missing(nodes, names).await)
    }

    /// Not all nodes run. Queues that would keep a flag off as well are named, so that both can be seen to at once.
    async fn missing(&self, nodes: Vec<String>, names: &[String]) -> EnableError {
        let own = self.member.inventory();
        let needed = names.iter().filter_map(|name| own.flags.get(name)?.machine_version).max();
        let behind = match needed {
            Some(version) => self.behind(&self.running(), version).await.unwrap_or_default(),
            None => Behind::default(),
        };
        EnableError::MissingNodes { nodes, behind }
    }

    /// Waits for this node's turn in the whole cluster.
    async fn turn(&self, need: Need) -> Result<Turn<'_>, EnableError> {
        let mut own = self.turns.lock().await;
        loop {
            *own += 1;
            let lease = Lease { owner: self.member.node().to_owned(), start: self.start, term: *own };
            if need == Need::All {
                self.all_running(&[]).await?;
            }
            let mut granted = Vec::new();
            let mut busy = None;
            for node in self.running() {
                match self.nodes.ask(&node, Ask::Take(lease.clone()), ANSWER).await {
                    Ok(_) => granted.push(node),
                    Err(AskError::Busy(owner)) => {
                        busy = Some(owner);
                        break;
                    }
                    Err(_) if need == Need::Running => {}
                    Err(why) => {
                        self.release(&lease, &granted).await;
                        return Err(match why {
                            // It was found out sooner than by its silence.
                            AskError::Unreachable(_) => {
                                EnableError::MissingNodes { nodes: vec![node], behind: Behind::default() }
                            }
                            why => EnableError::NoAnswer { node, why },
                        });
                    }
                }
            }
            let Some(owner) = busy else {
                return Ok(Turn { lease, nodes: granted, _own: own });
            };
            tracing::debug!(owner, "waiting for a turn to change feature flags");
            self.release(&lease, &granted).await;
            tokio::time::sleep(TURN_PAUSE).await;
        }
    }

    async fn release(&self, lease: &Lease, nodes: &[String]) {
        join_all(nodes.iter().map(|node| self.nodes.ask(node, Ask::Release(lease.clone()), ANSWER))).await;
    }

    /// Works for as long as the turn lasts, and ends it.
    async fn work(
        &self,
        turn: &Turn<'_>,
        work: impl Future<Output = Result<(), EnableError>>,
    ) -> Result<(), EnableError> {
        let outcome = tokio::select! {
            outcome = work => outcome,
            lost = self.renew(turn) => Err(lost),
        };
        *self.progress.lock() = None;
        if let Err(EnableError::TurnLost(_) | EnableError::Unsure { .. }) = &outcome {
            // What is left is settled by whoever can: this node first, if it still can.
            let settled = tokio::time::timeout(ANSWER, self.settle(turn)).await;
            if !matches!(settled, Ok(Ok(()))) {
                tracing::warn!("feature flags that were being decided are left to the nodes");
            }
        }
        self.release(&turn.lease, &turn.nodes).await;
        outcome
    }

    /// Renews the leases until one is lost.
    async fn renew(&self, turn: &Turn<'_>) -> EnableError {
        let mut heard: BTreeMap<&String, Instant> = turn.nodes.iter().map(|node| (node, Instant::now())).collect();
        loop {
            tokio::time::sleep(RENEW).await;
            let asked = Instant::now();
            let renewals = turn.nodes.iter().map(|node| self.nodes.ask(node, Ask::Renew(turn.lease.clone()), RENEW));
            for (node, answer) in turn.nodes.iter().zip(join_all(renewals).await) {
                match answer {
                    Ok(_) => {
                        heard.insert(node, asked);
                    }
                    Err(AskError::Unreachable(_)) => {}
                    Err(_) => return EnableError::TurnLost(node.clone()),
                }
            }
            if let Some((node, _)) = heard.iter().find(|(_, at)| at.elapsed() >= UNSURE) {
                return EnableError::TurnLost((*node).clone());
            }
        }
    }

    async fn inventories(&self, turn: &Turn<'_>) -> Result<Vec<Inventory>, EnableError> {
        let asked = turn.nodes.iter().map(|node| self.nodes.ask(node, Ask::Inventory, ANSWER));
        let mut inventories = Vec::new();
        for (node, answer) in turn.nodes.iter().zip(join_all(asked).await) {
            match answer {
                Ok(Answer::Inventory(inventory)) => inventories.push(*inventory),
                Ok(_) => {
                    let why = AskError::Failed("it answered something else".to_owned());
                    return Err(EnableError::NoAnswer { node: node.clone(), why });
                }
                Err(why) => return Err(EnableError::NoAnswer { node: node.clone(), why }),
            }
        }
        Ok(inventories)
    }

    /// Has all the given nodes take the same step; the first that did not.
    async fn step(
        &self,
        name: &str,
        step: &'static str,
        nodes: &[String],
        time: Duration,
        ask: impl Fn() -> Ask,
    ) -> Result<(), EnableError> {
        *self.progress.lock() = Some(Progress { flag: name.to_owned(), step, nodes: nodes.to_vec() });
        let answers = join_all(nodes.iter().map(|node| self.nodes.ask(node, ask(), time))).await;
        for (node, answer) in nodes.iter().zip(answers) {
            if let Err(why) = answer {
                return Err(EnableError::Node { name: name.to_owned(), step, node: node.clone(), why });
            }
        }
        Ok(())
    }

    /// Enables one flag, what it depends on first.
    fn enable_one<'a>(&'a self, turn: &'a Turn<'_>, name: &'a str) -> BoxFuture<'a, Result<(), EnableError>> {
        Box::pin(async move {
            let inventories = self.inventories(turn).await?;
            let nodes = lacking(name, &inventories);
            let Some(flag) = merged(name, &inventories).filter(|_| nodes.is_empty()) else {
                return Err(EnableError::Unsupported { name: name.to_owned(), nodes });
            };
            let off: Vec<String> = inventories.iter().filter(|i| i.has_off(name)).map(|i| i.node.clone()).collect();
            if off.is_empty() {
                return Ok(());
            }
            if flag.is_deprecated() {
                self.check_unused(turn, name).await?;
            }
            let all_virgin = inventories.iter().filter(|i| i.has_off(name)).all(|i| i.virgin);
            let was_required = flag.is_hard() && flag.is_core() && !flag.is_deprecated() && all_virgin;
            if was_required || is_hard_of_plugin(&flag) {
                return self.step(name, "enable", &off, ANSWER, || self.finish(turn, name, true)).await;
            }
            let enabled_somewhere = inventories.iter().any(|i| i.enabled.contains(name));
            if let Some(version) = flag.machine_version.filter(|_| !enabled_somewhere) {
                self.wait_for_machine_version(turn, name, version).await?;
            }
            self.decide(turn, &flag, &off).await
        })
    }

    /// Takes a flag from off to on, or back to off where a step fails.
    async fn decide(&self, turn: &Turn<'_>, flag: &Properties, off: &[String]) -> Result<(), EnableError> {
        let name = flag.name.as_str();
        let steps = async {
            let begin = || Ask::Begin(turn.lease.clone(), name.to_owned());
            self.step(name, "begin", off, ANSWER, begin).await?;
            for dependency in flag.depends_on.iter().filter(|_| !broken(Defect::DependencySkipped)) {
                self.enable_one(turn, dependency).await.map_err(|why| EnableError::Dependency {
                    name: name.to_owned(),
                    dependency: dependency.clone(),
                    why: Box::new(why),
                })?;
            }
            if !broken(Defect::CallbackSkipped) {
                let run = || Ask::Run(turn.lease.clone(), name.to_owned(), off.to_vec());
                self.step(name, "callback", off, CALLBACK, run).await?;
            }
            // Whoever died since it ran its callback is found here, while everything can still be undone.
            let alive = || Ask::Renew(turn.lease.clone());
            self.step(name, "check", &turn.nodes, ANSWER, alive).await
        };
        if let Err(error) = steps.await {
            if !broken(Defect::NoRollback) {
                self.roll_back(turn, name, off).await;
            }
            return Err(error);
        }
        self.commit(turn, name, off).await?;
        let post = || Ask::PostEnable(turn.lease.clone(), name.to_owned(), off.to_vec(), true);
        if let Err(error) = self.step(name, "post_enable", off, CALLBACK, post).await {
            tracing::warn!(%error, "a feature flag is enabled, and one node has not cleaned up after it");
        }
        Ok(())
    }

    /// Once the first node has it, the flag is enabled: the others follow, whatever happens to this controller.
    async fn commit(&self, turn: &Turn<'_>, name: &str, off: &[String]) -> Result<(), EnableError> {
        // This node's own answer is never in doubt.
        let me = self.member.node();
        let first = off.iter().find(|node| *node == me).unwrap_or(&off[0]);
        match self.nodes.ask(first, self.finish(turn, name, true), ANSWER).await {
            Ok(_) => {}
            Err(why @ AskError::Unreachable(_)) => {
                return Err(EnableError::Unsure { name: name.to_owned(), node: first.clone(), why });
            }
            Err(why) => {
                self.roll_back(turn, name, off).await;
                return Err(EnableError::Node { name: name.to_owned(), step: "enable", node: first.clone(), why });
            }
        }
        let others: Vec<String> = off.iter().filter(|node| *node != first).cloned().collect();
        if let Err(error) = self.step(name, "enable", &others, ANSWER, || self.finish(turn, name, true)).await {
            tracing::warn!(%error, "a feature flag is enabled, and one node has not heard of it yet");
        }
        Ok(())
    }

    fn finish(&self, turn: &Turn<'_>, name: &str, enabled: bool) -> Ask {
        Ask::Finish(turn.lease.clone(), name.to_owned(), enabled)
    }

    /// Puts a flag off again where it was. Nodes that do not hear it do so by themselves when the lease has ended.
    async fn roll_back(&self, turn: &Turn<'_>, name: &str, off: &[String]) {
        let post = || Ask::PostEnable(turn.lease.clone(), name.to_owned(), off.to_vec(), false);
        let steps = [
            self.step(name, "post_enable", off, CALLBACK, post).await,
            self.step(name, "disable", off, ANSWER, || self.finish(turn, name, false)).await,
        ];
        for error in steps.into_iter().filter_map(Result::err) {
            tracing::warn!(%error, "a feature flag is off again, and one node has not heard of it yet");
        }
    }

    async fn check_unused(&self, turn: &Turn<'_>, name: &str) -> Result<(), EnableError> {
        let asked = turn.nodes.iter().map(|node| self.nodes.ask(node, Ask::Used(vec![name.to_owned()]), ANSWER));
        for (node, answer) in turn.nodes.iter().zip(join_all(asked).await) {
            match answer {
                Ok(Answer::Used(used)) if !used.is_empty() => return Err(EnableError::InUse(used)),
                Ok(_) => {}
                Err(why) => return Err(EnableError::NoAnswer { node: node.clone(), why }),
            }
        }
        Ok(())
    }

    async fn behind(&self, nodes: &[String], version: u16) -> Result<Behind, EnableError> {
        let asked = nodes.iter().map(|node| self.nodes.ask(node, Ask::Behind(version), ANSWER));
        let mut behind = Behind::default();
        for (node, answer) in nodes.iter().zip(join_all(asked).await) {
            match answer {
                Ok(Answer::Behind(more)) => behind.merge(more),
                Ok(_) => {}
                Err(why) => return Err(EnableError::NoAnswer { node: node.clone(), why }),
            }
        }
        Ok(behind)
    }

    /// A flag that promises behaviour of quorum queues is enabled once all of them have it.
    async fn wait_for_machine_version(&self, turn: &Turn<'_>, name: &str, version: u16) -> Result<(), EnableError> {
        let deadline = Instant::now() + VERSION_WAIT;
        loop {
            let behind = self.behind(&turn.nodes, version).await?;
            if behind.is_empty() {
                return Ok(());
            }
            // One that nothing holds back gets there in a moment.
            if behind.is_held_back() || Instant::now() >= deadline {
                return Err(EnableError::MachineVersion { name: name.to_owned(), version, behind });
            }
            tokio::time::sleep(VERSION_PAUSE).await;
        }
    }

    /// Permits deprecated features again that no node's configuration denies and no enabled flag needs denied.
    async fn permit_again(&self, turn: &Turn<'_>, inventories: &[Inventory]) -> Result<(), EnableError> {
        let needed = needed_by_enabled(inventories);
        for name in names(inventories) {
            let Some(flag) = merged(&name, inventories).filter(|flag| flag.is_deprecated() && !flag.is_hard()) else {
                continue;
            };
            let somewhere = inventories.iter().any(|i| i.enabled.contains(&name));
            let wanted = inventories.iter().any(|i| i.denied.contains(&name));
            if somewhere && !wanted && !needed.contains(&name) {
                let nodes: Vec<String> =
                    inventories.iter().filter(|i| i.enabled.contains(&name)).map(|i| i.node.clone()).collect();
                self.step(&flag.name, "permit", &nodes, ANSWER, || self.finish(turn, &name, false)).await?;
            }
        }
        Ok(())
    }

    /// See [`resolve`](Self::resolve).
    async fn settle(&self, turn: &Turn<'_>) -> Result<(), EnableError> {
        let inventories = self.inventories(turn).await?;
        let undecided: BTreeSet<String> = inventories.iter().flat_map(|i| i.changing.iter().cloned()).collect();
        for name in undecided {
            let nodes: Vec<String> =
                inventories.iter().filter(|i| i.changing.contains(&name)).map(|i| i.node.clone()).collect();
            let enabled = inventories.iter().any(|i| i.enabled.contains(&name));
            tracing::warn!(feature_flag = name, enabled, ?nodes, "a feature flag was left undecided and is settled");
            let begin = || Ask::Begin(turn.lease.clone(), name.clone());
            self.step(&name, "begin", &nodes, ANSWER, begin).await?;
            if !enabled {
                self.roll_back(turn, &name, &nodes).await;
                continue;
            }
            let run = || Ask::Run(turn.lease.clone(), name.clone(), nodes.clone());
            if let Err(error) = self.step(&name, "callback", &nodes, CALLBACK, run).await {
                self.roll_back(turn, &name, &nodes).await;
                return Err(error);
            }
            self.step(&name, "enable", &nodes, ANSWER, || self.finish(turn, &name, true)).await?;
            let post = || Ask::PostEnable(turn.lease.clone(), name.clone(), nodes.clone(), true);
            let _ = self.step(&name, "post_enable", &nodes, CALLBACK, post).await;
        }
        Ok(())
    }
}

fn inventory(answer: Result<Answer, AskError>) -> Option<Inventory> {
    match answer {
        Ok(Answer::Inventory(inventory)) => Some(*inventory),
        _ => None,
    }
}

fn names(inventories: &[Inventory]) -> BTreeSet<String> {
    inventories.iter().flat_map(|inventory| inventory.flags.keys().cloned()).collect()
}

/// The nodes that do not know a flag and have its provider.
pub(super) fn lacking(name: &str, inventories: &[Inventory]) -> Vec<String> {
    let provider = merged(name, inventories).map(|flag| flag.provided_by);
    let lacks = |i: &&Inventory| {
        !i.flags.contains_key(name) && provider.as_ref().is_none_or(|provider| i.providers.contains(provider))
    };
    inventories.iter().filter(lacks).map(|i| i.node.clone()).collect()
}

/// Flags that are on at some and off at other nodes, and required ones that are off anywhere.
fn differing(inventories: &[Inventory]) -> Vec<String> {
    let differs = |name: &String| {
        let off = inventories.iter().any(|i| i.has_off(name));
        let on = inventories.iter().any(|i| i.enabled.contains(name));
        let required = merged(name, inventories).is_some_and(|flag| flag.stability == Stability::Required);
        off && (on || required)
    };
    names(inventories).into_iter().filter(differs).collect()
}

/// Deprecated features that enabled flags need denied, directly or not.
fn needed_by_enabled(inventories: &[Inventory]) -> BTreeSet<String> {
    let mut needed = BTreeSet::new();
    let enabled = inventories.iter().flat_map(|i| i.enabled.iter());
    let mut next: Vec<String> = enabled
        .filter(|name| merged(name, inventories).is_some_and(|flag| !flag.is_deprecated()))
        .flat_map(|name| merged(name, inventories).map(|flag| flag.depends_on).unwrap_or_default())
        .collect();
    while let Some(name) = next.pop() {
        if let Some(flag) = merged(&name, inventories)
            && needed.insert(name)
        {
            next.extend(flag.depends_on);
        }
    }
    needed
}
