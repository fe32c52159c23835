//! The tree against a model that does everything the slow way.

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestCaseError, TestRng, TestRunner};
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

/// One command in progress.
struct Command {
    /// The tree before it: versions rise once, from what they were then.
    before: Model,
    at: u64,
    /// Nodes whose payload changed at any moment.
    payloads: BTreeSet<Path>,
    /// Nodes whose children changed at any moment.
    children: BTreeSet<Path>,
    results: Vec<OpResult>,
}

impl Model {
    fn children(&self, path: &Path) -> impl Iterator<Item = &Path> {
        self.nodes.keys().filter(move |p| p.depth() == path.depth() + 1 && p.starts_with(path.components()))
    }

    fn meets(&self, path: &Path, condition: &Condition) -> bool {
        let node = &self.nodes[path];
        let name = path.last().unwrap();
        match condition {
            Condition::Is(component) => component == name,
            Condition::AnyName | Condition::PathMatches(NameTest::Any) => true,
            Condition::NameMatches(glob) => match (name, &glob[..]) {
                (Component::Name(octets), b"a*") => octets.starts_with(b"a"),
                (Component::Symbol(_), b"a*") => false,
                _ => unreachable!("not generated"),
            },
            Condition::NameRegex(regex) | Condition::PathMatches(NameTest::Regex(regex)) => match regex.source() {
                "^[bs]$" => *name == Component::name("b") || name.as_symbol() == Some("s"),
                "(" => false,
                _ => unreachable!("not generated"),
            },
            Condition::HasPayload(wanted) => node.payload.is_some() == *wanted,
            Condition::NodeExists(wanted) => *wanted,
            Condition::PayloadVersion(Comparison::Eq, n) => node.payload_version == *n,
            Condition::ChildListLength(Comparison::Gt, n) => self.children(path).count() as u64 > *n,
            Condition::ModRevision(Comparison::Lt, at) => node.modified < at.0,
            Condition::Not(inner) => !self.meets(path, inner),
            Condition::All(list) => list.iter().all(|c| self.meets(path, c)),
            Condition::Any(list) => list.iter().any(|c| self.meets(path, c)),
            _ => unreachable!("not generated"),
        }
    }

    /// Whether the part of the path from `depth` on fits the steps.
    fn fits(&self, steps: &[Step], path: &Path, depth: usize) -> bool {
        let Some((step, rest)) = steps.split_first() else { return depth == path.depth() };
        if depth == path.depth() {
            return false;
        }
        let place = Path::new(path.components()[..=depth].to_vec());
        match step {
            Step::Literal(literal) => place.last() == Some(literal) && self.fits(rest, path, depth + 1),
            Step::AnyDepth => self.fits(rest, path, depth + 1) || self.fits(steps, path, depth + 1),
            Step::Where(condition) => {
                let deeper = matches!(condition, Condition::PathMatches(_)) && self.fits(steps, path, depth + 1);
                deeper || self.meets(&place, condition) && self.fits(rest, path, depth + 1)
            }
        }
    }

    fn matches(&self, pattern: &Pattern) -> Vec<Path> {
        self.nodes.keys().filter(|path| self.fits(pattern.steps(), path, 0)).cloned().collect()
    }

    fn holds(&self, watch: &Watch) -> bool {
        let found = self.matches(&watch.pattern);
        if found.is_empty() {
            return watch.condition == Condition::NodeExists(false);
        }
        found.iter().all(|path| self.meets(path, &watch.condition))
    }

    fn guard(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Exists(pattern) => !self.matches(pattern).is_empty(),
            Guard::Absent(pattern) => self.matches(pattern).is_empty(),
            Guard::Count(pattern, Comparison::Ge, n) => self.matches(pattern).len() as u64 >= *n,
            Guard::Count(..) => unreachable!("not generated"),
            Guard::Test(path, condition) => self.nodes.contains_key(path) && self.meets(path, condition),
            Guard::Not(inner) => !self.guard(inner),
            Guard::All(list) => list.iter().all(|guard| self.guard(guard)),
            Guard::Any(list) => list.iter().any(|guard| self.guard(guard)),
        }
    }

    /// Does an operation. False where the whole command is to fail.
    fn run(&mut self, op: &Op, command: &mut Command) -> bool {
        let result = match op {
            Op::Count(pattern) => OpResult::Count(self.matches(pattern).len() as u64),
            Op::Put { path, condition, payload, keep_while } => {
                let created = !self.nodes.contains_key(path);
                if !self.put(path, condition, payload.as_ref(), keep_while.as_deref(), command) {
                    return false;
                }
                OpResult::Put { created }
            }
            Op::Delete(pattern) => {
                let found = self.matches(pattern);
                found.iter().for_each(|path| self.delete(path, command));
                self.settle(command);
                OpResult::Count(found.len() as u64)
            }
            Op::ClearPayload(pattern) => OpResult::Count(self.clear(pattern, command)),
            Op::PutMany { pattern, payload, keep_while } => {
                let steps = pattern.steps();
                let head = steps.iter().rposition(|step| !matches!(step, Step::Literal(_))).map_or(0, |at| at + 1);
                let tail = Pattern::new(steps[head..].to_vec()).as_path().unwrap();
                let heads = self.matches(&Pattern::new(steps[..head].to_vec()));
                let heads = if head == 0 { vec![Path::new(vec![])] } else { heads };
                let mut written = 0;
                for place in heads {
                    if place.depth() == 0 || self.nodes.contains_key(&place) {
                        written += 1;
                        let path = place.join(tail.components().iter().cloned());
                        let always = Condition::All(vec![]);
                        if !self.put(&path, &always, payload.as_ref(), keep_while.as_deref(), command) {
                            return false;
                        }
                    }
                }
                OpResult::Count(written)
            }
            Op::ForEach(pattern, each) => {
                let mut visited = 0;
                for place in self.matches(pattern) {
                    if !self.nodes.contains_key(&place) {
                        continue;
                    }
                    visited += 1;
                    for op in each {
                        let results = command.results.len();
                        if !self.run(&op.at(&place).unwrap(), command) {
                            return false;
                        }
                        command.results.truncate(results);
                    }
                }
                OpResult::Count(visited)
            }
            Op::CounterAdd { path, delta, initial } => {
                let old = match self.nodes.get(path).and_then(|node| node.payload.as_ref()) {
                    None => None,
                    Some(payload) if payload.kind == 2 => Some(number(payload)),
                    Some(_) => return false,
                };
                let payload = counter(old.map_or(*initial, |old| old + delta));
                if !self.put(path, &Condition::All(vec![]), Some(&payload), None, command) {
                    return false;
                }
                OpResult::Counter { old }
            }
            Op::SetAdd { path, element, .. } => {
                let Some(mut elements) = self.elements(path) else { return false };
                let changed = elements.insert(element[0]);
                if changed && !self.put(path, &Condition::All(vec![]), Some(&set(&elements)), None, command) {
                    return false;
                }
                OpResult::Set { changed }
            }
            Op::SetRemove { path, element, delete_if_empty, .. } => {
                let Some(mut elements) = self.elements(path) else { return false };
                let changed = elements.remove(&element[0]);
                if changed && elements.is_empty() && *delete_if_empty {
                    self.delete(path, command);
                    self.settle(command);
                } else if changed && !self.put(path, &Condition::All(vec![]), Some(&set(&elements)), None, command) {
                    return false;
                }
                OpResult::Set { changed }
            }
            Op::If(guard, then, otherwise) => {
                let branch = if self.guard(guard) { then } else { otherwise };
                return branch.iter().all(|op| self.run(op, command));
            }
            Op::Abort(_) => return false,
            Op::Get(_) | Op::Patch(..) | Op::Return(_) => unreachable!("not generated"),
        };
        command.results.push(result);
        true
    }

    /// The elements of the set at a place; `None` where it holds something else.
    fn elements(&self, path: &Path) -> Option<BTreeSet<u8>> {
        match self.nodes.get(path).and_then(|node| node.payload.as_ref()) {
            None => Some(BTreeSet::new()),
            Some(payload) if payload.kind == 1 => Some(payload.bytes.chunks(3).map(|element| element[2]).collect()),
            Some(_) => None,
        }
    }

    fn put(
        &mut self,
        path: &Path,
        condition: &Condition,
        payload: Option<&Payload>,
        watches: Option<&[Watch]>,
        command: &mut Command,
    ) -> bool {
        fn may_create(condition: &Condition) -> bool {
            match condition {
                Condition::Is(_) | Condition::NodeExists(false) => true,
                Condition::All(list) => list.iter().all(may_create),
                Condition::Any(list) => list.iter().any(may_create),
                _ => false,
            }
        }
        let existing = self.nodes.get(path);
        let allowed = if existing.is_some() { self.meets(path, condition) } else { may_create(condition) };
        let creating = existing.is_none_or(|node| node.payload.is_none());
        let met = |watch: &Watch| creating && watch.is_within(path.components()) || self.holds(watch);
        if !allowed || !watches.iter().copied().flatten().all(met) {
            return false;
        }
        for depth in 1..=path.depth() {
            let place = Path::new(path.components()[..depth].to_vec());
            if let Entry::Vacant(vacant) = self.nodes.entry(place.clone()) {
                command.children.extend(place.parent());
                let keep = if depth == path.depth() { Stays::Always } else { Stays::Placeholder };
                let (created, modified) = (command.at, command.at);
                vacant.insert(Slow {
                    payload: None,
                    keep,
                    payload_version: 1,
                    child_list_version: 1,
                    created,
                    modified,
                });
            }
        }
        let node = self.nodes.get_mut(path).unwrap();
        if payload.is_some() && node.payload.as_ref() != payload {
            node.payload = payload.cloned();
            node.modified = command.at;
            command.payloads.insert(path.clone());
        }
        if let Some(watches) = watches {
            node.keep = if watches.is_empty() { Stays::Always } else { Stays::While(watches.to_vec()) };
        }
        self.settle(command);
        true
    }

    fn delete(&mut self, path: &Path, command: &mut Command) {
        command.children.extend(path.parent());
        self.nodes.retain(|p, _| !p.starts_with(path.components()));
    }

    fn clear(&mut self, pattern: &Pattern, command: &mut Command) -> u64 {
        let mut cleared = 0;
        for path in self.matches(pattern) {
            if let Some(node) = self.nodes.get_mut(&path).filter(|node| node.payload.is_some()) {
                node.payload = None;
                node.modified = command.at;
                command.payloads.insert(path);
                cleared += 1;
                self.settle(command);
            }
        }
        cleared
    }

    fn settle(&mut self, command: &mut Command) {
        let goes = |model: &Model, path: &Path, node: &Slow| match &node.keep {
            Stays::Always => false,
            Stays::Placeholder => node.payload.is_none() && model.children(path).next().is_none(),
            Stays::While(watches) => !watches.iter().all(|watch| model.holds(watch)),
        };
        while let Some(path) = self.nodes.iter().find(|(p, n)| goes(self, p, n)).map(|(p, _)| p.clone()) {
            self.delete(&path, command);
        }
        self.bump(command);
    }

    /// Versions rise once a command, and only in nodes that were there before it.
    fn bump(&mut self, command: &Command) {
        for (path, node) in &mut self.nodes {
            if let Some(old) = command.before.nodes.get(path).filter(|old| old.created == node.created) {
                node.payload_version = old.payload_version + u64::from(command.payloads.contains(path));
                node.child_list_version = old.child_list_version + u64::from(command.children.contains(path));
            }
        }
    }
}

/// Small numbers only.
fn counter(value: i64) -> Payload {
    let bytes = if value == 0 { vec![] } else { vec![8, 2 * u8::try_from(value).unwrap()] };
    Payload { kind: 2, schema: 1, bytes: bytes.into() }
}

fn number(payload: &Payload) -> i64 {
    payload.bytes.get(1).map_or(0, |byte| i64::from(byte / 2))
}

fn set(elements: &BTreeSet<u8>) -> Payload {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| [10, 1, *element]).collect();
    Payload { kind: 1, schema: 1, bytes: bytes.into() }
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

/// Conditions that only a deletion can end.
fn name_condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => Just(Condition::AnyName),
        1 => Just(Condition::NameMatches(b"a*".as_slice().into())),
        1 => Just(Condition::NameRegex(NameRegex::new("^[bs]$"))),
        1 => Just(Condition::NameRegex(NameRegex::new("("))),
        1 => vec(component(), 0..3).prop_map(|names| Condition::Any(names.into_iter().map(Condition::Is).collect())),
    ]
}

fn condition() -> impl Strategy<Value = Condition> {
    prop_oneof![
        4 => name_condition(),
        1 => any::<bool>().prop_map(Condition::HasPayload),
        1 => (1u64..4).prop_map(|n| Condition::PayloadVersion(Comparison::Eq, n)),
        1 => (0u64..3).prop_map(|n| Condition::ChildListLength(Comparison::Gt, n)),
        1 => (1u64..40).prop_map(|at| Condition::ModRevision(Comparison::Lt, Reference(at))),
        1 => name_condition().prop_map(|inner| Condition::Not(Box::new(inner))),
        1 => (name_condition(), any::<bool>()).prop_map(|(c, b)| Condition::All(vec![c, Condition::HasPayload(b)])),
    ]
}

fn sweep() -> impl Strategy<Value = Step> {
    prop_oneof![
        Just(Step::AnyDepth),
        Just(Step::Where(Condition::PathMatches(NameTest::Any))),
        Just(Step::Where(Condition::PathMatches(NameTest::Regex(NameRegex::new("^[bs]$"))))),
    ]
}

/// Up to three steps, of which at most one sweeps.
fn pattern_of(condition: impl Strategy<Value = Condition>) -> impl Strategy<Value = Pattern> {
    let step = prop_oneof![4 => component().prop_map(Step::Literal), 1 => condition.prop_map(Step::Where)];
    (vec(step, 1..4), proptest::option::weighted(0.2, (sweep(), 0usize..3))).prop_map(|(mut steps, sweep)| {
        if let Some((sweep, at)) = sweep {
            let at = at % steps.len();
            steps[at] = sweep;
        }
        Pattern::new(steps)
    })
}

fn pattern() -> impl Strategy<Value = Pattern> {
    pattern_of(condition())
}

fn watch() -> impl Strategy<Value = Watch> {
    // Conditions that only deletions and clearing can end, so that the order of a cascade does not matter.
    prop_oneof![
        pattern_of(name_condition()).prop_map(Watch::exists),
        path().prop_map(|path| Watch { pattern: path.into(), condition: Condition::HasPayload(true) }),
    ]
}

fn payload() -> impl Strategy<Value = Payload> {
    (0u8..3).prop_map(|b| Payload { kind: 99, schema: 1, bytes: Arc::from([b]) })
}

fn put() -> impl Strategy<Value = Op> {
    let condition = prop_oneof![
        4 => Just(Condition::always()),
        1 => Just(Condition::NodeExists(false)),
        1 => Just(Condition::NodeExists(true)),
        1 => Just(Condition::absent_or_placeholder()),
        1 => condition(),
    ];
    let put = (path(), condition, proptest::option::of(payload()), proptest::option::of(vec(watch(), 0..3)));
    put.prop_map(|(path, condition, payload, keep_while)| {
        // A watch beneath the watcher may be unmet from birth; the slow model would not tell that from a loss.
        let outside = |watch: &Watch| !watch.is_within(path.components());
        let keep_while = keep_while.map(|list| list.into_iter().filter(outside).collect());
        Op::Put { path, condition, payload, keep_while }
    })
}

fn set_op() -> impl Strategy<Value = Op> {
    (path(), 0u8..3, any::<bool>(), any::<bool>()).prop_map(|(path, element, add, delete_if_empty)| {
        // Mostly apart from other payloads.
        let (path, element) = (path.child(Component::name("set")), Arc::from([element]));
        match add {
            true => Op::SetAdd { path, kind: 1, schema: 1, element, keep_while: None },
            false => Op::SetRemove { path, kind: 1, element, delete_if_empty },
        }
    })
}

fn each_op() -> impl Strategy<Value = EachOp> {
    let beneath = || {
        prop_oneof![
            2 => component().prop_map(|component| Template::beneath([component])),
            1 => Just(Template::itself()),
            1 => component().prop_map(|to| Template(vec![Part::Path, Part::Parent, Part::Literal(to)])),
            1 => component().prop_map(|to| Template(vec![Part::Name(0), Part::Literal(to)])),
        ]
    };
    prop_oneof![
        2 => (beneath(), proptest::option::of(payload())).prop_map(|(path, payload)| {
            EachOp::Put { path, condition: Condition::always(), payload, keep_while: None }
        }),
        1 => beneath().prop_map(EachOp::Delete),
        1 => beneath().prop_map(EachOp::ClearPayload),
        1 => Just(EachOp::CounterAdd { path: Template::beneath([Component::name("n")]), delta: 1, initial: 0 }),
    ]
}

fn guard() -> impl Strategy<Value = Guard> {
    let simple = || {
        prop_oneof![
            pattern().prop_map(Guard::Exists),
            pattern().prop_map(Guard::Absent),
            (pattern(), 0u64..4).prop_map(|(pattern, n)| Guard::Count(pattern, Comparison::Ge, n)),
            (path(), condition()).prop_map(|(path, condition)| Guard::Test(path, condition)),
        ]
    };
    prop_oneof![
        3 => simple(),
        1 => simple().prop_map(|guard| Guard::Not(Box::new(guard))),
        1 => vec(simple(), 0..3).prop_map(Guard::All),
        1 => vec(simple(), 0..3).prop_map(Guard::Any),
    ]
}

fn op() -> impl Strategy<Value = Op> {
    let simple = || {
        prop_oneof![
            8 => put(),
            3 => pattern().prop_map(Op::Delete),
            1 => pattern().prop_map(Op::ClearPayload),
            1 => pattern().prop_map(Op::Count),
            2 => set_op(),
            1 => path().prop_map(|path| {
                Op::CounterAdd { path: path.child(Component::name("n")), delta: 1, initial: 0 }
            }),
            1 => (pattern(), proptest::option::of(payload()), any::<bool>()).prop_map(|(pattern, payload, clear)| {
                Op::PutMany { pattern, payload, keep_while: clear.then(Vec::new) }
            }),
            1 => (pattern(), vec(each_op(), 1..3)).prop_map(|(pattern, each)| Op::ForEach(pattern, each)),
        ]
    };
    prop_oneof![
        12 => simple(),
        1 => (guard(), vec(simple(), 0..3), vec(simple(), 0..3)).prop_map(|(guard, a, b)| Op::If(guard, a, b)),
    ]
}

fn commands() -> impl Strategy<Value = Vec<Vec<Op>>> {
    vec(vec(op(), 1..4), 1..40)
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

/// Applies the commands to the tree and to the model and compares them after each.
fn check(commands: Vec<Vec<Op>>) -> Result<(), TestCaseError> {
    let (mut tree, mut model) = (Tree::default(), Model::default());
    let mut history = vec![(tree.clone(), model.clone())];
    for (i, ops) in commands.into_iter().enumerate() {
        let at = i as u64 + 1;
        let before = model.clone();
        let (payloads, children, results) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        let mut command = Command { before: before.clone(), at, payloads, children, results };
        let done = ops.iter().all(|op| model.run(op, &mut command));
        let (untouched, mut edit) = (tree.clone(), Edit::new(&tree, Reference(at)));
        match run(&mut edit, &ops) {
            Ok(results) => {
                prop_assert!(done, "should have failed: {:?}", ops);
                prop_assert_eq!(results, command.results);
                let (next, changes) = edit.finish();
                tree = next;
                check_changes(&before, &model, &changes);
                check_changes(&before, &model, &tree.changes_since(&untouched));
            }
            Err(why) => {
                prop_assert!(!done, "failed: {why} in {:?}", ops);
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
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_tree_does_what_a_slow_model_does(commands in commands()) {
        check(commands)?;
    }
}

#[test]
fn the_slow_model_sees_every_rule_that_is_broken() {
    for defect in defect::ALL {
        let config =
            ProptestConfig { cases: 3000, failure_persistence: None, max_shrink_iters: 0, ..ProptestConfig::default() };
        let rng = TestRng::deterministic_rng(RngAlgorithm::ChaCha);
        let mut runner = TestRunner::new_with_rng(config, rng);
        let _broken = defect::break_rule(defect);
        assert!(runner.run(&commands(), check).is_err(), "{defect:?} was not seen");
    }
}

fn at(text: &str) -> Path {
    Path::new(text.split('/').map(Component::name).collect())
}

fn written(path: &str, watches: Vec<Watch>) -> Op {
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
    let (tree, _) = after(vec![written("a", vec![]), written("a", vec![])]);
    assert_eq!(tree.node(&at("a")).unwrap().properties().payload_version, 1);
    let (tree, _) = after(vec![written("a", vec![]), other.clone()]);
    let node = tree.node(&at("a")).unwrap().properties();
    assert_eq!((node.payload_version, node.create_revision.0, node.mod_revision.0), (2, 1, 2));
    let (tree, _) = after(vec![written("a", vec![]), other, Op::Delete(at("a").into()), written("a", vec![])]);
    let node = tree.node(&at("a")).unwrap().properties();
    assert_eq!((node.payload_version, node.create_revision.0), (1, 4));
}

#[test]
fn a_cascade_that_removes_a_second_child_raises_the_parents_version_once() {
    let watch = Watch::exists(at("up/a"));
    let ops = vec![
        written("up", vec![]),
        written("up/a", vec![]),
        written("up/b", vec![watch]),
        Op::Delete(at("up/a").into()),
    ];
    let (tree, changes) = after(ops);
    let up = tree.node(&at("up")).unwrap().properties();
    assert_eq!((up.child_list_length, up.child_list_version), (0, 4));
    assert_eq!(changes.len(), 2);
}

#[test]
fn a_chain_of_watchers_falls_in_one_command_and_is_reported_whole() {
    let ops = vec![
        written("c", vec![]),
        written("b", vec![Watch::exists(at("c"))]),
        written("a", vec![Watch::exists(at("b"))]),
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
        written("a", vec![]),
        written("b", vec![Watch::exists(at("a"))]),
        written("a", vec![Watch::exists(at("b"))]),
        Op::Delete(at("a").into()),
    ];
    assert_eq!(after(ops).0.count(), 1);
}

#[test]
fn empty_placeholders_go_with_the_leaf_and_one_with_a_payload_stays() {
    let (tree, changes) =
        after(vec![written("a/b/c/d", vec![]), written("a", vec![]), Op::Delete(at("a/b/c/d").into())]);
    assert_eq!(tree.count(), 2);
    assert!(tree.node(&at("a")).is_some());
    assert_eq!(changes.len(), 3);
}

#[test]
fn a_put_whose_condition_fails_leaves_no_placeholder() {
    let tree = Tree::default();
    let mut edit = Edit::new(&tree, Reference(1));
    let why = run(&mut edit, &[written("a/b/c", vec![Watch::exists(at("x"))])]).unwrap_err();
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
    let start = [written("up/a", vec![]), written("up/b", vec![]), written("w", vec![any_child])];
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
    let (tree, _) = after(vec![written("a/b/c", vec![]), written("a/d", vec![])]);
    let mut found = Vec::new();
    tree.visit(&Pattern::from(at("a")).join([Step::AnyDepth]), &mut |at, _| {
        found.push(Path::new(at.to_vec()).to_string());
        true
    });
    assert_eq!(found, ["/a/b", "/a/b/c", "/a/d"]);
}
