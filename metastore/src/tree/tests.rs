//! The tree against a model that does everything the slow way.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use warren_proto::ids::Reference;

use super::*;

#[derive(Clone, Debug, PartialEq)]
enum Stays {
    Always,
    Placeholder,
    While(Vec<Watch>),
}

#[derive(Clone, Debug, PartialEq)]
struct Slow {
    payload: Option<Payload>,
    keep: Stays,
    payload_version: u64,
    child_list_version: u64,
    created: u64,
    modified: u64,
}

#[derive(Clone, Default)]
struct Model {
    nodes: BTreeMap<Path, Slow>,
}

/// What one command changed at any moment.
#[derive(Default)]
struct Seen {
    payloads: BTreeSet<Path>,
    children: BTreeSet<Path>,
}

impl Model {
    fn children(&self, path: &Path) -> impl Iterator<Item = &Path> {
        self.nodes.keys().filter(move |p| p.depth() == path.depth() + 1 && p.starts_with(path.components()))
    }

    fn matches(&self, pattern: &Pattern) -> Vec<Path> {
        let fits = |path: &&Path| {
            path.depth() == pattern.steps().len()
                && path.components().iter().zip(pattern.steps()).all(|(component, step)| match step {
                    Step::Literal(literal) => literal == component,
                    Step::Where(Condition::AnyName) => true,
                    Step::Where(_) | Step::AnyDepth => unreachable!("not generated"),
                })
        };
        self.nodes.keys().filter(fits).cloned().collect()
    }

    fn holds(&self, watch: &Watch) -> bool {
        let found = self.matches(&watch.pattern);
        let meets = |path: &Path| match watch.condition {
            Condition::NodeExists(true) => true,
            Condition::HasPayload(true) => self.nodes[path].payload.is_some(),
            _ => unreachable!("not generated"),
        };
        !found.is_empty() && found.iter().all(meets)
    }

    fn put(&mut self, act: &Put, at: u64, seen: &mut Seen) -> bool {
        let existing = self.nodes.get(&act.path);
        let allowed = match act.mode {
            Mode::Upsert => true,
            Mode::Create => existing.is_none(),
            Mode::Update => existing.is_some(),
            Mode::Fill => existing.is_none_or(|node| node.payload.is_none()),
        };
        let creating = existing.is_none_or(|node| node.payload.is_none());
        let met = |watch: &Watch| creating && watch.is_within(act.path.components()) || self.holds(watch);
        if !allowed || !act.watches.iter().flatten().all(met) {
            return false;
        }
        for depth in 1..=act.path.depth() {
            let place = Path::new(act.path.components()[..depth].to_vec());
            if let Entry::Vacant(vacant) = self.nodes.entry(place.clone()) {
                seen.children.extend(place.parent());
                let keep = if depth == act.path.depth() { Stays::Always } else { Stays::Placeholder };
                let node =
                    Slow { payload: None, keep, payload_version: 1, child_list_version: 1, created: at, modified: at };
                vacant.insert(node);
            }
        }
        let node = self.nodes.get_mut(&act.path).unwrap();
        if act.payload.is_some() && node.payload != act.payload {
            node.payload = act.payload.clone();
            node.modified = at;
            seen.payloads.insert(act.path.clone());
        }
        if let Some(watches) = &act.watches {
            node.keep = if watches.is_empty() { Stays::Always } else { Stays::While(watches.clone()) };
        }
        self.settle(seen);
        true
    }

    fn delete(&mut self, path: &Path, seen: &mut Seen) {
        seen.children.extend(path.parent());
        self.nodes.retain(|p, _| !p.starts_with(path.components()));
    }

    fn clear(&mut self, pattern: &Pattern, at: u64, seen: &mut Seen) {
        for path in self.matches(pattern) {
            if let Some(node) = self.nodes.get_mut(&path).filter(|node| node.payload.is_some()) {
                node.payload = None;
                node.modified = at;
                seen.payloads.insert(path);
                self.settle(seen);
            }
        }
    }

    fn settle(&mut self, seen: &mut Seen) {
        let goes = |model: &Model, path: &Path, node: &Slow| match &node.keep {
            Stays::Always => false,
            Stays::Placeholder => node.payload.is_none() && model.children(path).next().is_none(),
            Stays::While(watches) => !watches.iter().all(|watch| model.holds(watch)),
        };
        while let Some(path) = self.nodes.iter().find(|(p, n)| goes(self, p, n)).map(|(p, _)| p.clone()) {
            self.delete(&path, seen);
        }
    }

    /// Versions rise once a command, and only in nodes that were there before it.
    fn bump(&mut self, before: &Model, seen: &Seen) {
        for (path, node) in &mut self.nodes {
            if let Some(old) = before.nodes.get(path).filter(|old| old.created == node.created) {
                node.payload_version = old.payload_version + u64::from(seen.payloads.contains(path));
                node.child_list_version = old.child_list_version + u64::from(seen.children.contains(path));
            }
        }
    }
}

#[derive(Clone, Copy, Debug)]
enum Mode {
    Upsert,
    Create,
    Update,
    Fill,
}

#[derive(Clone, Debug)]
struct Put {
    path: Path,
    mode: Mode,
    payload: Option<Payload>,
    watches: Option<Vec<Watch>>,
}

#[derive(Clone, Debug)]
enum Act {
    Put(Put),
    Delete(Pattern),
    Clear(Pattern),
}

impl Act {
    fn op(&self) -> Op {
        match self {
            Act::Put(put) => Op::Put {
                path: put.path.clone(),
                condition: match put.mode {
                    Mode::Upsert => Condition::always(),
                    Mode::Create => Condition::NodeExists(false),
                    Mode::Update => Condition::NodeExists(true),
                    Mode::Fill => Condition::absent_or_placeholder(),
                },
                payload: put.payload.clone(),
                keep_while: put.watches.clone(),
            },
            Act::Delete(pattern) => Op::Delete(pattern.clone()),
            Act::Clear(pattern) => Op::ClearPayload(pattern.clone()),
        }
    }
}

fn component() -> impl Strategy<Value = Component> {
    prop_oneof![
        Just(Component::name("a")),
        Just(Component::name("b")),
        Just(Component::name("")),
        Just(Component::Symbol(Symbol::new("s").unwrap())),
    ]
}

fn path() -> impl Strategy<Value = Path> {
    vec(component(), 1..4).prop_map(Path::new)
}

fn pattern() -> impl Strategy<Value = Pattern> {
    let step = prop_oneof![
        4 => component().prop_map(Step::Literal),
        1 => Just(Step::Where(Condition::AnyName)),
    ];
    vec(step, 1..4).prop_map(Pattern::new)
}

fn watch() -> impl Strategy<Value = Watch> {
    // Conditions that only deletions and clearing can end, so that the order of a cascade does not matter.
    prop_oneof![
        pattern().prop_map(Watch::exists),
        path().prop_map(|path| Watch { pattern: path.into(), condition: Condition::HasPayload(true) }),
    ]
}

fn payload() -> impl Strategy<Value = Payload> {
    (0u8..3).prop_map(|b| Payload { kind: 99, schema: 1, bytes: Arc::from([b]) })
}

fn act() -> impl Strategy<Value = Act> {
    let mode = prop_oneof![
        4 => Just(Mode::Upsert), 1 => Just(Mode::Create), 1 => Just(Mode::Update), 1 => Just(Mode::Fill)
    ];
    let put = (path(), mode, proptest::option::of(payload()), proptest::option::of(vec(watch(), 0..3)));
    prop_oneof![
        6 => put.prop_map(|(path, mode, payload, watches)| {
            // A watch beneath the watcher may be unmet from birth; the slow model would not tell that from a loss.
            let watches = watches.map(|list| {
                list.into_iter().filter(|watch| !watch.is_within(path.components())).collect()
            });
            Act::Put(Put { path, mode, payload, watches })
        }),
        2 => pattern().prop_map(Act::Delete),
        1 => pattern().prop_map(Act::Clear),
    ]
}

/// The tree's nodes in the model's terms.
fn slow(tree: &Tree) -> BTreeMap<Path, Slow> {
    fn walk(at: &Path, node: &Node, out: &mut BTreeMap<Path, Slow>) {
        for (component, child) in node.children() {
            let path = at.child(component.clone());
            let keep = match &child.keep {
                Keep::Always => Stays::Always,
                Keep::Placeholder => Stays::Placeholder,
                Keep::While(keep) => Stays::While(keep.0.clone()),
            };
            let slow = Slow {
                payload: child.payload.clone(),
                keep,
                payload_version: child.payload_version,
                child_list_version: child.child_list_version,
                created: child.create_revision.0,
                modified: child.mod_revision.0,
            };
            walk(&path, child, out);
            out.insert(path, slow);
        }
    }
    let mut out = BTreeMap::new();
    walk(&Path::new(Vec::new()), tree.root(), &mut out);
    out
}

/// Every difference must be in the changes, and nothing in them may contradict it.
fn check_changes(before: &Model, after: &Model, changes: &Changes) {
    for path in before.nodes.keys().chain(after.nodes.keys()) {
        let (old, new) = (before.nodes.get(path), after.nodes.get(path));
        let identity = |n: &Slow| (n.payload.clone(), n.created, n.modified);
        match changes.get(path) {
            None => assert_eq!(old.map(identity), new.map(identity), "{path} is missing"),
            Some(change) => {
                let revisions = |n: &NodeInfo| (n.properties.create_revision.0, n.properties.mod_revision.0);
                let info = |n: &NodeInfo| (n.payload.clone(), revisions(n).0, revisions(n).1);
                assert_eq!(change.old.as_ref().map(info), old.map(identity), "{path} old");
                assert_eq!(change.new.as_ref().map(info), new.map(identity), "{path} new");
                assert_eq!(change.delete_reason.is_some(), new.is_none(), "{path} reason");
            }
        }
    }
    for (path, _) in changes.iter() {
        assert!(before.nodes.contains_key(path) || after.nodes.contains_key(path), "{path} never was");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_tree_does_what_a_slow_model_does(commands in vec(vec(act(), 1..4), 1..40)) {
        let (mut tree, mut model) = (Tree::default(), Model::default());
        let mut history = vec![(tree.clone(), model.clone())];
        for (i, command) in commands.into_iter().enumerate() {
            let at = i as u64 + 1;
            let (before, mut seen, mut ok) = (model.clone(), Seen::default(), true);
            for act in &command {
                match act {
                    Act::Put(put) => ok = ok && model.put(put, at, &mut seen),
                    Act::Delete(pattern) => {
                        model.matches(pattern).iter().for_each(|path| model.delete(path, &mut seen));
                        model.settle(&mut seen);
                    }
                    Act::Clear(pattern) => model.clear(pattern, at, &mut seen),
                }
            }
            model.bump(&before, &seen);
            let ops: Vec<Op> = command.iter().map(Act::op).collect();
            let (untouched, mut edit) = (tree.clone(), Edit::new(&tree, Reference(at)));
            match run(&mut edit, &ops) {
                Ok(_) => {
                    prop_assert!(ok, "should have failed: {:?}", command);
                    let (next, changes) = edit.finish();
                    tree = next;
                    check_changes(&before, &model, &changes);
                    check_changes(&before, &model, &tree.changes_since(&untouched));
                }
                Err(why) => {
                    prop_assert!(!ok, "failed: {why} in {:?}", command);
                    model = before.clone();
                }
            }
            prop_assert_eq!(slow(&tree), model.nodes.clone());
            prop_assert_eq!(slow(&untouched), before.nodes);
            let (old_tree, old_model) = &history[i / 2];
            check_changes(old_model, &model, &tree.changes_since(old_tree));
            history.push((tree.clone(), model.clone()));
            prop_assert_eq!(tree.check_invariants(Reference(at)), Ok(()));
        }
    }
}

fn at(text: &str) -> Path {
    Path::new(text.split('/').map(Component::name).collect())
}

fn put(path: &str, watches: Vec<Watch>) -> Op {
    let payload = Some(Payload { kind: 99, schema: 1, bytes: path.as_bytes().into() });
    let keep_while = (!watches.is_empty()).then_some(watches);
    Op::Put { path: at(path), condition: Condition::always(), payload, keep_while }
}

/// Applies commands of one operation each; answers the tree and the last one's changes.
fn after(ops: Vec<Op>) -> (Tree, Changes) {
    let mut state = (Tree::default(), Changes::default());
    for (i, op) in ops.into_iter().enumerate() {
        let mut edit = Edit::new(&state.0, Reference(i as u64 + 1));
        run(&mut edit, &[op]).unwrap();
        state = edit.finish();
    }
    state
}

#[test]
fn an_equal_payload_changes_no_version_a_different_one_does_and_a_new_incarnation_starts_again() {
    let other = Op::Put {
        path: at("a"),
        condition: Condition::always(),
        payload: Some(Payload { kind: 99, schema: 1, bytes: Arc::from([9]) }),
        keep_while: None,
    };
    let (tree, _) = after(vec![put("a", vec![]), put("a", vec![])]);
    assert_eq!(tree.node(&at("a")).unwrap().properties().payload_version, 1);
    let (tree, _) = after(vec![put("a", vec![]), other.clone()]);
    let node = tree.node(&at("a")).unwrap().properties();
    assert_eq!((node.payload_version, node.create_revision.0, node.mod_revision.0), (2, 1, 2));
    let (tree, _) = after(vec![put("a", vec![]), other, Op::Delete(at("a").into()), put("a", vec![])]);
    let node = tree.node(&at("a")).unwrap().properties();
    assert_eq!((node.payload_version, node.create_revision.0), (1, 4));
}

#[test]
fn a_cascade_that_removes_a_second_child_raises_the_parents_version_once() {
    let watch = Watch::exists(at("up/a"));
    let ops = vec![put("up", vec![]), put("up/a", vec![]), put("up/b", vec![watch]), Op::Delete(at("up/a").into())];
    let (tree, changes) = after(ops);
    let up = tree.node(&at("up")).unwrap().properties();
    assert_eq!((up.child_list_length, up.child_list_version), (0, 4));
    assert_eq!(changes.len(), 2);
}

#[test]
fn a_chain_of_watchers_falls_in_one_command_and_is_reported_whole() {
    let ops = vec![
        put("c", vec![]),
        put("b", vec![Watch::exists(at("c"))]),
        put("a", vec![Watch::exists(at("b"))]),
        Op::Delete(at("c").into()),
    ];
    let (tree, changes) = after(ops);
    assert_eq!(tree.count(), 1);
    let reasons: Vec<_> = ["c", "b", "a"].iter().map(|p| changes.get(&at(p)).unwrap().delete_reason).collect();
    assert_eq!(reasons, [Some(DeleteReason::Explicit), Some(DeleteReason::KeepWhile), Some(DeleteReason::KeepWhile)]);
}

#[test]
fn two_nodes_that_watch_each_other_vanish_together() {
    let ops = vec![
        put("a", vec![]),
        put("b", vec![Watch::exists(at("a"))]),
        put("a", vec![Watch::exists(at("b"))]),
        Op::Delete(at("a").into()),
    ];
    assert_eq!(after(ops).0.count(), 1);
}

#[test]
fn empty_placeholders_go_with_the_leaf_and_one_with_a_payload_stays() {
    let (tree, changes) = after(vec![put("a/b/c/d", vec![]), put("a", vec![]), Op::Delete(at("a/b/c/d").into())]);
    assert_eq!(tree.count(), 2);
    assert!(tree.node(&at("a")).is_some());
    assert_eq!(changes.len(), 3);
}

#[test]
fn a_put_whose_condition_fails_leaves_no_placeholder() {
    let tree = Tree::default();
    let mut edit = Edit::new(&tree, Reference(1));
    let why = run(&mut edit, &[put("a/b/c", vec![Watch::exists(at("x"))])]).unwrap_err();
    assert_eq!(why, MetaError::KeepWhileConditionsNotMet { path: at("a/b/c"), watch: 0 });
    assert_eq!(edit.tree().count(), 1);
}

#[test]
fn a_put_on_an_absent_node_creates_it_only_if_the_condition_allows() {
    let attempt = |condition: Condition| {
        let mut edit = Edit::new(&Tree::default(), Reference(1));
        run(&mut edit, &[Op::Put { path: at("a"), condition, payload: None, keep_while: None }]).map(drop)
    };
    assert_eq!(attempt(Condition::absent_or_placeholder()), Ok(()));
    let versioned = Condition::PayloadVersion(Comparison::Eq, 1);
    assert_eq!(attempt(versioned), Err(MetaError::NodeNotFound { path: at("a") }));
}

#[test]
fn a_watched_pattern_is_met_while_something_matches() {
    let any_child = Watch::exists(Pattern::from(at("up")).join([Step::Where(Condition::AnyName)]));
    let start = [put("up/a", vec![]), put("up/b", vec![]), put("w", vec![any_child])];
    let with = |more: Vec<Op>| after(start.iter().cloned().chain(more).collect()).0;
    assert!(with(vec![Op::Delete(at("up/a").into())]).node(&at("w")).is_some());
    assert!(with(vec![Op::Delete(at("up/a").into()), Op::Delete(at("up/b").into())]).node(&at("w")).is_none());
    assert!(with(vec![Op::Delete(at("up").into())]).node(&at("w")).is_none());
}

#[test]
fn counters_and_sets_answer_what_they_changed() {
    let set =
        |element: &[u8]| Op::SetAdd { path: at("s"), kind: 1, schema: 1, element: element.into(), keep_while: None };
    let unset =
        |element: &[u8]| Op::SetRemove { path: at("s"), kind: 1, element: element.into(), delete_if_empty: true };
    let count = Op::CounterAdd { path: at("n"), delta: 1, initial: 7 };
    let mut edit = Edit::new(&Tree::default(), Reference(1));
    let ops = [set(b"x"), set(b"x"), unset(b"y"), unset(b"x"), unset(b"x"), count.clone(), count.clone(), count];
    let results = run(&mut edit, &ops).unwrap();
    let changed = |changed| OpResult::Set { changed };
    assert_eq!(results[..5], [changed(true), changed(false), changed(false), changed(true), changed(false)]);
    let old = |old| OpResult::Counter { old };
    assert_eq!(results[5..], [old(None), old(Some(7)), old(Some(8))]);
    assert!(edit.tree().node(&at("s")).is_none());
    assert_eq!(run(&mut edit, &[set(b"x"), Op::CounterAdd { path: at("s"), delta: 1, initial: 1 }]).unwrap_err(), {
        MetaError::WrongKind { path: at("s") }
    });
}

#[test]
fn every_depth_finds_each_node_once() {
    let (tree, _) = after(vec![put("a/b/c", vec![]), put("a/d", vec![])]);
    let mut found = Vec::new();
    tree.visit(&Pattern::from(at("a")).join([Step::AnyDepth]), &mut |at, _| {
        found.push(Path::new(at.to_vec()).to_string());
        true
    });
    assert_eq!(found, ["/a/b", "/a/b/c", "/a/d"]);
}
