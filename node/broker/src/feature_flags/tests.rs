//! Controllers and members of three nodes in one thread, with simulated time: one node fails at each step that a change of
//! flags takes, and afterwards all nodes agree.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use tempfile::TempDir;
use tokio::task::JoinHandle;
use tokio::time::{Instant, sleep};

use super::controller::{Controller, EnableError, Nodes};
use super::defect::{Defect, break_rule};
use super::file::{Enabled, FlagFile};
use super::member::{Answer, Ask, AskError, Behind, Description, Host, Member};
use super::registry::{Callback, Entry, Phase, Properties, Registry, RequireLevel, Run, Running, Stability};
use super::states::State;

const NODES: [&str; 3] = ["n1@h", "n2@h", "n3@h"];
/// How long a message takes.
const WAY: Duration = Duration::from_millis(1);
/// How long a callback takes.
const CALLBACK: Duration = Duration::from_secs(3);
/// After which a node that is gone counts as down.
const SUSPICION: Duration = Duration::from_secs(2);
/// How long a node stays away.
const AWAY: Duration = Duration::from_secs(45);
/// No flag is left undecided for longer after its controller's lease was lost.
const UNDECIDED: Duration = Duration::from_secs(60);

/// What goes wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fault {
    /// The node that asks dies before anybody hears it.
    AskerDies,
    /// The node that is asked dies before it does anything.
    TargetDies,
    /// The node that is asked does what it was asked and dies before it answers.
    TargetDiesAfter,
    /// The node that asks stands still and goes on later, when its lease has ended.
    AskerStalls,
    /// The two lose sight of each other.
    Cut,
}

const FAULTS: [Fault; 5] =
    [Fault::AskerDies, Fault::TargetDies, Fault::TargetDiesAfter, Fault::AskerStalls, Fault::Cut];

struct SimNode {
    member: Arc<Member>,
    controller: Arc<Controller>,
    tasks: Vec<JoinHandle<()>>,
    alive: bool,
    /// Stands still until then.
    stalled: Option<Instant>,
}

#[derive(Default)]
struct Inner {
    nodes: BTreeMap<&'static str, SimNode>,
    lives: u64,
    asked: u64,
    fault: Option<(u64, Fault)>,
    /// What has happened, when, between whom.
    happened: Option<(Instant, &'static str, String)>,
    cuts: BTreeSet<(String, String)>,
    /// Callbacks: flag, node, begin, end.
    callbacks: Vec<(String, String, Instant, Option<Instant>)>,
    completed: BTreeSet<(String, String)>,
    fails_on: Option<(String, String)>,
    used: BTreeSet<String>,
    wrong: Vec<String>,
}

struct World {
    folders: BTreeMap<&'static str, TempDir>,
    registries: BTreeMap<&'static str, Vec<Properties>>,
    inner: Mutex<Inner>,
}

fn known(name: &str) -> &'static str {
    NODES.iter().find(|node| **node == name).expect("a node of the world")
}

#[derive(Debug)]
struct Recorded(Weak<World>);

impl std::fmt::Debug for World {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("World")
    }
}

/// A callback that ends, also when it is cut off.
struct Ended(Arc<World>, usize);

impl Drop for Ended {
    fn drop(&mut self) {
        self.0.inner.lock().callbacks[self.1].3 = Some(Instant::now());
    }
}

impl Callback for Recorded {
    fn enable<'a>(&'a self, run: &'a Run) -> Running<'a> {
        Box::pin(async move {
            let world = self.0.upgrade().expect("the world is there");
            let key = (run.flag.name.clone(), run.node.clone());
            let at = {
                let mut inner = world.inner.lock();
                inner.callbacks.push((key.0.clone(), key.1.clone(), Instant::now(), None));
                inner.callbacks.len() - 1
            };
            let _ended = Ended(Arc::clone(&world), at);
            sleep(CALLBACK).await;
            let mut inner = world.inner.lock();
            if inner.fails_on.as_ref() == Some(&key) {
                return Err("as the test wants it".to_owned());
            }
            inner.completed.insert(key);
            Ok(())
        })
    }

    fn post_enable<'a>(&'a self, run: &'a Run, enabled: bool) -> Running<'a> {
        Box::pin(async move {
            let world = self.0.upgrade().expect("the world is there");
            if !enabled {
                // What was undone has to be done again.
                world.inner.lock().completed.remove(&(run.flag.name.clone(), run.node.clone()));
            }
            Ok(())
        })
    }
}

struct Knows(Weak<World>);

impl Host for Knows {
    fn uses(&self, feature: &str) -> bool {
        self.0.upgrade().is_some_and(|world| world.inner.lock().used.contains(feature))
    }

    fn behind(&self, _: u16) -> Behind {
        Behind::default()
    }
}

struct View {
    world: Weak<World>,
    me: &'static str,
}

impl Nodes for View {
    fn members(&self) -> Vec<String> {
        NODES.map(str::to_owned).to_vec()
    }

    fn is_running(&self, node: &str) -> bool {
        self.world.upgrade().is_some_and(|world| node == self.me || world.inner.lock().reaches(self.me, node))
    }

    fn ask(&self, node: &str, ask: Ask, _: Duration) -> BoxFuture<'static, Result<Answer, AskError>> {
        let (world, me, node) = (self.world.clone(), self.me, known(node));
        Box::pin(async move {
            let world = world.upgrade().ok_or_else(|| AskError::Unreachable("the world is over".into()))?;
            world.deliver(me, node, ask).await
        })
    }
}

impl Inner {
    fn reaches(&self, from: &str, to: &str) -> bool {
        let node = &self.nodes[to];
        node.alive && node.stalled.is_none() && !self.cuts.contains(&(from.to_owned(), to.to_owned()))
    }
}

impl World {
    fn new(flags: &[Properties]) -> Arc<World> {
        // In memory where that is possible: a node syncs its file with each change.
        let memory = std::path::Path::new("/dev/shm");
        let folder = || if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
        let world = Arc::new(World {
            folders: NODES.map(|node| (node, folder().unwrap())).into(),
            registries: NODES.map(|node| (node, flags.to_vec())).into(),
            inner: Mutex::default(),
        });
        for node in NODES {
            FlagFile::in_directory(world.folders[node].path())
                .store(vec![Enabled { name: "h".into(), provided_by: "rabbit".into() }])
                .unwrap();
            world.start(node);
        }
        world
    }

    fn start(self: &Arc<Self>, node: &'static str) {
        let callback: Arc<dyn Callback> = Arc::new(Recorded(Arc::downgrade(self)));
        let entries = self.registries[node]
            .iter()
            .map(|properties| Entry { properties: properties.clone(), callback: Some(Arc::clone(&callback)) });
        let registry = Arc::new(Registry::new(entries, []).unwrap());
        let description = Description {
            node: node.to_owned(),
            version: "1.0.0".to_owned(),
            machine_version: 1,
            denied: BTreeSet::new(),
        };
        let file = FlagFile::in_directory(self.folders[node].path());
        let enabled = file.load().unwrap().unwrap();
        let member = Arc::new(Member::new(description, registry, file));
        member.load(enabled, false);
        member.connect(Box::new(Knows(Arc::downgrade(self))));
        let view: Arc<dyn Nodes> = Arc::new(View { world: Arc::downgrade(self), me: node });
        let mut inner = self.inner.lock();
        inner.lives += 1;
        let controller = Arc::new(Controller::new(Arc::clone(&member), view, inner.lives));
        let tended = Arc::clone(&controller);
        let tending = tokio::spawn(async move {
            while tended.sync_at_start(&[]).await.is_err() {
                sleep(Duration::from_secs(1)).await;
            }
            for tick in 1_u64.. {
                sleep(Duration::from_secs(1)).await;
                tended.tend(tick.is_multiple_of(30)).await;
            }
        });
        inner.nodes.insert(node, SimNode { member, controller, tasks: vec![tending], alive: true, stalled: None });
    }

    fn kill(self: &Arc<Self>, node: &'static str) {
        let mut inner = self.inner.lock();
        let dead = inner.nodes.get_mut(node).unwrap();
        dead.alive = false;
        for task in dead.tasks.drain(..) {
            task.abort();
        }
        drop(inner);
        self.suspect(node);
    }

    /// The others find out.
    fn suspect(self: &Arc<Self>, node: &'static str) {
        let world = Arc::downgrade(self);
        tokio::spawn(async move {
            sleep(SUSPICION).await;
            let Some(world) = world.upgrade() else { return };
            for (name, other) in &world.inner.lock().nodes {
                if *name != node {
                    other.member.owner_down(node);
                }
            }
        });
    }

    fn strike(self: &Arc<Self>, fault: Fault, from: &'static str, to: &'static str) {
        self.inner.lock().happened = Some((Instant::now(), from, format!("{fault:?} from {from} to {to}")));
        match fault {
            Fault::AskerDies => self.kill(from),
            Fault::TargetDies | Fault::TargetDiesAfter => self.kill(to),
            Fault::AskerStalls => {
                let until = Instant::now() + AWAY;
                self.inner.lock().nodes.get_mut(from).unwrap().stalled = Some(until);
                self.suspect(from);
                let world = Arc::downgrade(self);
                tokio::spawn(async move {
                    sleep(AWAY).await;
                    let Some(world) = world.upgrade() else { return };
                    world.inner.lock().nodes.get_mut(from).unwrap().stalled = None;
                });
            }
            Fault::Cut => {
                let pairs = [(from.to_owned(), to.to_owned()), (to.to_owned(), from.to_owned())];
                self.inner.lock().cuts.extend(pairs);
                let world = Arc::downgrade(self);
                tokio::spawn(async move {
                    sleep(SUSPICION).await;
                    let Some(world) = world.upgrade() else { return };
                    world.inner.lock().nodes[to].member.owner_down(from);
                    world.inner.lock().nodes[from].member.owner_down(to);
                    sleep(AWAY).await;
                    world.inner.lock().cuts.clear();
                });
            }
        }
    }

    async fn deliver(self: &Arc<Self>, from: &'static str, to: &'static str, ask: Ask) -> Result<Answer, AskError> {
        let fault = {
            let mut inner = self.inner.lock();
            // Whoever waits for its turn asks again and again.
            let waits = matches!(ask, Ask::Take(_)) && inner.nodes[to].member.lease_owner().is_some();
            inner.asked += u64::from(from != to && !waits);
            let due = inner.fault.filter(|(at, _)| from != to && inner.asked >= *at);
            due.map(|(_, fault)| {
                inner.fault = None;
                fault
            })
        };
        let gone = || AskError::Unreachable("gone".to_owned());
        match fault {
            Some(Fault::TargetDiesAfter) | None => {}
            Some(fault) => self.strike(fault, from, to),
        }
        if fault == Some(Fault::AskerDies) {
            std::future::pending::<()>().await;
        }
        self.wait_while_stalled(from).await;
        sleep(WAY).await;
        let member = {
            let inner = self.inner.lock();
            (from == to || inner.reaches(from, to)).then(|| Arc::clone(&inner.nodes[to].member))
        };
        let Some(member) = member else {
            sleep(SUSPICION).await;
            return Err(gone());
        };
        let answering = member.answer(ask);
        let lost = async {
            while from == to || self.inner.lock().reaches(from, to) {
                sleep(Duration::from_millis(100)).await;
            }
            sleep(SUSPICION).await;
        };
        let answer = tokio::select! {
            answer = answering => answer,
            () = lost => return Err(gone()),
        };
        self.look();
        if fault == Some(Fault::TargetDiesAfter) {
            self.strike(Fault::TargetDiesAfter, from, to);
            sleep(SUSPICION).await;
            return Err(gone());
        }
        self.wait_while_stalled(from).await;
        answer
    }

    async fn wait_while_stalled(&self, node: &str) {
        while let Some(until) = { self.inner.lock().nodes[node].stalled } {
            tokio::time::sleep_until(until + WAY).await;
        }
    }

    /// What must hold at any time.
    fn look(&self) {
        let mut inner = self.inner.lock();
        let mut wrong = Vec::new();
        for (name, node) in inner.nodes.iter().filter(|(_, node)| node.alive) {
            let inventory = node.member.inventory();
            for enabled in &inventory.enabled {
                for dependency in &inventory.flags[enabled].depends_on {
                    if !inventory.enabled.contains(dependency) {
                        wrong.push(format!("{name} has {enabled} without {dependency}"));
                    }
                }
            }
        }
        inner.wrong.extend(wrong);
    }

    fn states(&self, flag: &str) -> Vec<State> {
        let inner = self.inner.lock();
        let state = |node: &SimNode| node.member.states().get(node.member.states().registry().id(flag).unwrap());
        inner.nodes.values().filter(|node| node.alive).map(state).collect()
    }

    fn enabled(&self, node: &str) -> BTreeSet<String> {
        self.inner.lock().nodes[node].member.inventory().enabled
    }

    /// Has a node enable flags; `None` if it dies meanwhile.
    fn enable(self: &Arc<Self>, node: &'static str, flags: &[&str]) -> Asked {
        let controller = Arc::clone(&self.inner.lock().nodes[node].controller);
        let names: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        let outcome = Arc::new(Mutex::new(None));
        let (out, world) = (Arc::clone(&outcome), Arc::downgrade(self));
        let task = tokio::spawn(async move {
            let enabled = controller.enable(&names).await;
            let Some(world) = world.upgrade() else { return };
            if let Err(error) = &enabled
                && !matches!(error, EnableError::TurnLost(_) | EnableError::Unsure { .. })
            {
                world.nothing_is_left_by(&names, error);
            }
            *out.lock() = Some(enabled);
        });
        self.inner.lock().nodes.get_mut(node).unwrap().tasks.push(task);
        outcome
    }

    /// A change that failed leaves nothing undecided on the nodes that were there all the time.
    fn nothing_is_left_by(&self, names: &[String], error: &EnableError) {
        let mut inner = self.inner.lock();
        if inner.happened.is_some() {
            return;
        }
        let mut left = Vec::new();
        for (name, node) in &inner.nodes {
            let changing = node.member.inventory().changing;
            left.extend(
                names.iter().filter(|flag| changing.contains(*flag)).map(|flag| format!("{flag} on {name}: {error}")),
            );
        }
        inner.wrong.extend(left);
    }
}

type Asked = Arc<Mutex<Option<Result<(), EnableError>>>>;

/// `c` needs `b` needs `a`; `d` stands alone; `h` is on.
fn flags() -> Vec<Properties> {
    let flag = |name: &str, needs: &[&str]| Properties {
        depends_on: needs.iter().map(|n| (*n).to_owned()).collect(),
        ..Properties::flag(name, Stability::Stable, "")
    };
    let hard = Properties { require_level: RequireLevel::Hard, ..Properties::flag("h", Stability::Required, "") };
    vec![hard, flag("a", &[]), flag("b", &["a"]), flag("c", &["b"]), flag("d", &[])]
}

/// Two nodes change flags at the same time, and at one message something goes wrong. What is wrong in the end; whether the
/// fault happened at all.
async fn run(fault: Option<(u64, Fault)>, defect: Option<Defect>) -> (Vec<String>, bool) {
    let world = World::new(&flags());
    sleep(Duration::from_secs(2)).await;
    let _mended = break_rule(defect);
    {
        let mut inner = world.inner.lock();
        inner.asked = 0;
        inner.fault = fault;
    }
    let asked = [("n1@h", world.enable("n1@h", &["c"]), "c"), ("n2@h", world.enable("n2@h", &["d"]), "d")];
    // The fault, and what those that are left make of it.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(60) && asked.iter().any(|(_, outcome, _)| outcome.lock().is_none()) {
        sleep(Duration::from_millis(100)).await;
        if world.inner.lock().fault.is_none() {
            break;
        }
    }
    world.inner.lock().fault = None;
    sleep(UNDECIDED + SUSPICION + Duration::from_secs(30)).await;
    let mut wrong = Vec::new();
    let happened = world.inner.lock().happened.clone();
    for flag in ["a", "b", "c", "d"] {
        if world.states(flag).contains(&State::Changing) {
            wrong.push(format!("{flag} is undecided for too long"));
        }
    }
    let dead: Vec<&'static str> =
        world.inner.lock().nodes.iter().filter(|(_, node)| !node.alive).map(|(name, _)| *name).collect();
    dead.iter().for_each(|node| world.start(node));
    sleep(Duration::from_secs(120)).await;
    let reference = world.enabled("n1@h");
    for node in NODES {
        let enabled = world.enabled(node);
        if enabled != reference {
            wrong.push(format!("{node} has {enabled:?}, n1 {reference:?}"));
        }
        let file = FlagFile::in_directory(world.folders[node].path()).load().unwrap().unwrap();
        let stored: BTreeSet<String> = file.into_iter().map(|flag| flag.name).collect();
        if stored != enabled {
            wrong.push(format!("the file of {node} has {stored:?}, the node {enabled:?}"));
        }
        let inner = world.inner.lock();
        for flag in enabled.iter().filter(|flag| *flag != "h") {
            if !inner.completed.contains(&(flag.clone(), node.to_owned())) {
                wrong.push(format!("{node} has {flag} without its callback"));
            }
        }
    }
    for (node, outcome, flag) in asked {
        match &*outcome.lock() {
            Some(Ok(())) if !reference.contains(flag) => wrong.push(format!("{flag} was enabled by {node} and is off")),
            // Whoever waits for its turn does not fail.
            outcome if happened.is_none() && *outcome != Some(Ok(())) => {
                wrong.push(format!("{flag} was not enabled by {node}: {outcome:?}"));
            }
            None if !dead.contains(&node) => wrong.push(format!("{node} got no answer about {flag}")),
            _ => {}
        }
    }
    // What failed succeeds the second time.
    let again = world.enable("n3@h", &["c", "d"]);
    sleep(Duration::from_secs(60)).await;
    if !matches!(&*again.lock(), Some(Ok(()))) {
        wrong.push(format!("the second attempt: {:?}", again.lock()));
    }
    wrong.extend(overlaps(&world));
    wrong.append(&mut world.inner.lock().wrong);
    (wrong, happened.is_some())
}

/// Callbacks of different flags never run at the same time, wherever they are.
fn overlaps(world: &World) -> Vec<String> {
    let inner = world.inner.lock();
    let mut found = Vec::new();
    for (at, (flag, node, begin, end)) in inner.callbacks.iter().enumerate() {
        for (other, elsewhere, other_begin, other_end) in &inner.callbacks[at + 1..] {
            let apart = |first: &Option<Instant>, second: &Instant| first.is_some_and(|end| end <= *second);
            if flag != other && !apart(end, other_begin) && !apart(other_end, begin) {
                found.push(format!("{flag} on {node} and {other} on {elsewhere} at the same time"));
            }
        }
    }
    found
}

/// Every fault at every so many messages, until one no longer happens.
async fn sweep(stride: usize, defect: Option<Defect>) -> Vec<String> {
    let (mut found, _) = run(None, defect).await;
    for fault in FAULTS {
        for at in (1_u64..).step_by(stride) {
            let (wrong, happened) = run(Some((at, fault)), defect).await;
            found.extend(wrong.into_iter().map(|wrong| format!("{fault:?} at message {at}: {wrong}")));
            if !happened {
                break;
            }
            if defect.is_some() && !found.is_empty() {
                return found;
            }
        }
    }
    found
}

#[tokio::test(start_paused = true)]
async fn flags_are_enabled_on_all_nodes_one_at_a_time_and_dependencies_first() {
    let (wrong, _) = run(None, None).await;
    assert_eq!(wrong, Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn nodes_agree_whatever_goes_wrong_at_any_message() {
    let found = sweep(1, None).await;
    assert!(found.is_empty(), "{} wrong:\n{}", found.len(), found[..found.len().min(20)].join("\n"));
}

#[tokio::test(start_paused = true)]
async fn rules_that_are_broken_are_found() {
    let defects = [
        Defect::TurnsOverlap,
        Defect::LeaseNotChecked,
        Defect::ChangingIsWritten,
        Defect::NoResolver,
        Defect::CallbackSkipped,
        Defect::DependencySkipped,
        Defect::NoSync,
    ];
    for defect in defects {
        assert!(!sweep(1, Some(defect)).await.is_empty(), "nothing sees {defect:?}");
    }
    assert_eq!(failed_callback(None).await, Vec::<String>::new());
    assert!(!failed_callback(Some(Defect::NoRollback)).await.is_empty(), "nothing sees that it is not rolled back");
}

/// A callback fails on one node: everything is off again, and the callbacks that ran are told.
async fn failed_callback(defect: Option<Defect>) -> Vec<String> {
    let world = World::new(&flags());
    sleep(Duration::from_secs(2)).await;
    let _mended = break_rule(defect);
    world.inner.lock().fails_on = Some(("d".to_owned(), "n2@h".to_owned()));
    let asked = world.enable("n1@h", &["d"]);
    sleep(Duration::from_secs(10)).await;
    let outcome = asked.lock().clone();
    assert!(
        matches!(&outcome, Some(Err(EnableError::Node { node, step: "callback", .. })) if node == "n2@h"),
        "{outcome:?}"
    );
    let mut wrong = std::mem::take(&mut world.inner.lock().wrong);
    if world.states("d") != [State::Disabled; 3] {
        wrong.push(format!("{:?}", world.states("d")));
    }
    wrong
}

#[tokio::test(start_paused = true)]
async fn all_nodes_have_to_run() {
    let world = World::new(&flags());
    world.kill("n3@h");
    sleep(Duration::from_secs(5)).await;
    let asked = world.enable("n1@h", &["a"]);
    sleep(Duration::from_secs(1)).await;
    let outcome = asked.lock().clone();
    assert!(
        matches!(&outcome, Some(Err(EnableError::MissingNodes { nodes, .. })) if nodes == &["n3@h"]),
        "{outcome:?}"
    );
    world.start("n3@h");
    sleep(Duration::from_secs(5)).await;
    let asked = world.enable("n1@h", &["a"]);
    sleep(Duration::from_secs(5)).await;
    assert_eq!(asked.lock().clone(), Some(Ok(())));
    assert_eq!(world.states("a"), [State::Enabled; 3]);
}

#[tokio::test(start_paused = true)]
async fn a_deprecated_feature_in_use_keeps_the_flags_off_that_need_it_gone() {
    let mut flags = flags();
    flags.push(Properties::deprecated("old", Phase::PermittedByDefault, ""));
    flags.push(Properties { depends_on: vec!["old".into()], ..Properties::flag("new", Stability::Stable, "") });
    let world = World::new(&flags);
    sleep(Duration::from_secs(2)).await;
    world.inner.lock().used.insert("old".to_owned());
    let asked = world.enable("n2@h", &["new"]);
    sleep(Duration::from_secs(10)).await;
    let outcome = asked.lock().clone();
    let Some(Err(error)) = outcome else { panic!("{outcome:?}") };
    assert!(error.to_string().contains("failed_to_deny_deprecated_features"), "{error}");
    assert_eq!((world.states("old"), world.states("new")), (vec![State::Disabled; 3], vec![State::Disabled; 3]));

    world.inner.lock().used.clear();
    let asked = world.enable("n2@h", &["new"]);
    sleep(Duration::from_secs(10)).await;
    assert_eq!(asked.lock().clone(), Some(Ok(())));
    assert_eq!((world.states("old"), world.states("new")), (vec![State::Enabled; 3], vec![State::Enabled; 3]));
    // It is never written: what is denied is said by phases, configuration and flags.
    let stored = FlagFile::in_directory(world.folders["n1@h"].path()).load().unwrap().unwrap();
    assert!(stored.iter().all(|flag| flag.name != "old"));
}
