//! Declarative transactions (spec: metadata-store.md, section 4).

use std::collections::BTreeSet;
use std::sync::Arc;

use prost::Message;
use warren_proto::ids::Reference;

use super::Tree;
use super::condition::{Comparison, Condition};
use super::each::EachOp;
use super::edit::Edit;
use super::error::{AbortCode, MetaError};
use super::keep_while::Watch;
use super::node::{NodeInfo, Payload};
use super::path::Path;
use super::pattern::Pattern;
use super::predicate::FieldValue;
use super::report::Touched;
use crate::records;

/// Operations in one command, at most, branches not taken included.
pub const MAX_OPS: usize = 10_000;
/// Nodes that the reads of one command may answer.
pub const MAX_VISITED: usize = 200_000;
/// Operations that the `ForEach`es of one command may do.
pub const MAX_DONE: usize = 1_000_000;
/// Octets of payload that the reads of one command may answer: the reply is remembered until it is acknowledged.
pub const MAX_ANSWERED: usize = 4 << 20;

/// One step of a command.
#[derive(Clone, PartialEq, Debug)]
pub enum Op {
    /// Answers every matching node.
    Get(Pattern),
    /// Answers how many nodes match.
    Count(Pattern),
    /// Writes one node.
    Put {
        /// The node.
        path: Path,
        /// What it must meet; also decides whether it may be created.
        condition: Condition,
        /// The payload; `None` leaves it as it is.
        payload: Option<Payload>,
        /// Conditions to attach; `None` leaves them as they are, an empty list removes them.
        keep_while: Option<Vec<Watch>>,
    },
    /// Deletes all matching nodes with their subtrees. To match nothing is no error.
    Delete(Pattern),
    /// Removes the payload of all matching nodes.
    ClearPayload(Pattern),
    /// Adds an element to the set at a node, created if it is not there.
    SetAdd {
        /// The node.
        path: Path,
        /// The set's payload kind.
        kind: u16,
        /// The set's payload schema.
        schema: u16,
        /// The element's canonical encoding.
        element: Arc<[u8]>,
        /// Conditions to attach; `None` leaves them as they are.
        keep_while: Option<Vec<Watch>>,
    },
    /// Removes an element from the set at a node.
    SetRemove {
        /// The node.
        path: Path,
        /// The set's payload kind.
        kind: u16,
        /// The element's canonical encoding.
        element: Arc<[u8]>,
        /// Whether the node goes with its last element.
        delete_if_empty: bool,
    },
    /// Adds to the counter at a node, created with `initial` if it is not there; wraps around.
    CounterAdd {
        /// The node.
        path: Path,
        /// What to add to an existing counter.
        delta: i64,
        /// The value that a new counter gets.
        initial: i64,
    },
    /// Does one of two lists.
    If(Guard, Vec<Op>, Vec<Op>),
    /// Undoes the whole command.
    Abort(AbortCode),
    /// Sets the payload, or the conditions, of all matching nodes. Literal steps at the pattern's end are created below
    /// each node that the steps before them match.
    PutMany {
        /// The nodes.
        pattern: Pattern,
        /// The payload; `None` leaves it as it is.
        payload: Option<Payload>,
        /// Conditions to attach; `None` leaves them as they are, an empty list removes them.
        keep_while: Option<Vec<Watch>>,
    },
    /// Changes fields of the records at all matching nodes; nodes without a payload are passed over.
    Patch(Pattern, Vec<Assignment>),
    /// Does operations for every node that matches when it begins and is still there when its turn comes.
    ForEach(Pattern, Vec<EachOp>),
    /// Ends the command: what it did so far is done, and answered is what this says.
    Return(Answered),
}

/// A change of one field of a record.
#[derive(Clone, PartialEq, Debug)]
pub enum Assignment {
    /// It gets the value.
    Set(Box<str>, FieldValue),
    /// The number is added to it; without a value it counts as zero. Must not overflow.
    Add(Box<str>, i64),
    /// It loses its value.
    Unset(Box<str>),
}

impl Assignment {
    /// The name of the field.
    pub fn field(&self) -> &str {
        match self {
            Assignment::Set(name, _) | Assignment::Add(name, _) | Assignment::Unset(name) => name,
        }
    }
}

/// What a command that ends early answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Answered {
    /// Nothing.
    Nothing,
    /// The result before it.
    Last,
    /// All results before it.
    All,
}

/// A question about the tree as the earlier operations left it.
#[derive(Clone, PartialEq, Debug)]
pub enum Guard {
    /// Something matches.
    Exists(Pattern),
    /// Nothing matches.
    Absent(Pattern),
    /// The number of matches compares so.
    Count(Pattern, Comparison, u64),
    /// The node exists and meets the condition.
    Test(Path, Condition),
    /// The guard does not hold.
    Not(Box<Guard>),
    /// All hold.
    All(Vec<Guard>),
    /// One holds.
    Any(Vec<Guard>),
}

/// What one operation answers. `If` answers nothing itself: the operations it did follow in the list.
#[derive(Clone, PartialEq, Debug)]
pub enum OpResult {
    /// `Get`: the nodes in path order.
    Nodes(Vec<(Path, NodeInfo)>),
    /// `Count`, `Delete`, `ClearPayload`, `PutMany`, `Patch`, `ForEach`: how many matched, were deleted, lost a payload,
    /// were written, had a record, were visited.
    Count(u64),
    /// `Put`: whether the node is new.
    Put {
        /// There was no such node.
        created: bool,
    },
    /// `SetAdd`: whether the element is new. `SetRemove`: whether it was there.
    Set {
        /// The set changed.
        changed: bool,
    },
    /// `CounterAdd`: the value before, `None` where the counter is new.
    Counter {
        /// The value before.
        old: Option<i64>,
    },
    /// What the command did to each node, in path order: the last result of one that asked with a [`Report`].
    Touched(Vec<Touched>),
}

type Elements = BTreeSet<Vec<u8>>;

/// A set as a payload: elements sorted, each once.
#[derive(Clone, PartialEq, prost::Message)]
struct StoredSet {
    #[prost(bytes = "vec", repeated, tag = "1")]
    elements: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct StoredCounter {
    #[prost(sint64, tag = "1")]
    value: i64,
}

/// The payload kind of counters.
const COUNTER_KIND: u16 = 2;

/// The elements of a set's payload.
pub(crate) fn set_elements(payload: &Payload) -> Result<Vec<Vec<u8>>, prost::DecodeError> {
    StoredSet::decode(&payload.bytes[..]).map(|set| set.elements)
}

/// Does the operations in order. On an error the caller drops the edit.
pub(crate) fn run(edit: &mut Edit, ops: &[Op]) -> Result<Vec<OpResult>, MetaError> {
    let mut work = Work { results: Vec::with_capacity(ops.len().min(MAX_OPS)), visited: 0, done: 0, answered: 0 };
    match work.run(edit, ops)? {
        Flow::On => {}
        Flow::Ended(Answered::All) => {}
        Flow::Ended(Answered::Nothing) => work.results.clear(),
        Flow::Ended(Answered::Last) => drop(work.results.drain(..work.results.len().saturating_sub(1))),
    }
    Ok(work.results)
}

/// Whether operations follow.
enum Flow {
    On,
    Ended(Answered),
}

struct Work {
    results: Vec<OpResult>,
    visited: usize,
    done: usize,
    answered: usize,
}

impl Work {
    fn run(&mut self, edit: &mut Edit, ops: &[Op]) -> Result<Flow, MetaError> {
        for op in ops {
            let result = match op {
                Op::If(guard, then, otherwise) => {
                    let branch = if guard.holds(edit.tree()) { then } else { otherwise };
                    match self.run(edit, branch)? {
                        Flow::On => continue,
                        ended @ Flow::Ended(_) => return Ok(ended),
                    }
                }
                Op::Return(answered) => return Ok(Flow::Ended(*answered)),
                Op::ForEach(pattern, each) => self.for_each(edit, pattern, each)?,
                op => self.one(edit, op)?,
            };
            self.results.push(result);
        }
        Ok(Flow::On)
    }

    /// An operation that contains no others.
    fn one(&mut self, edit: &mut Edit, op: &Op) -> Result<OpResult, MetaError> {
        Ok(match op {
            Op::Get(pattern) => self.get(edit.tree(), pattern)?,
            Op::Count(pattern) => OpResult::Count(count(edit.tree(), pattern)),
            Op::Put { path, condition, payload, keep_while } => {
                let old = edit.put(path, condition, payload.clone(), keep_while.as_deref())?;
                OpResult::Put { created: old.is_none() }
            }
            Op::Delete(pattern) => OpResult::Count(edit.delete(pattern)),
            Op::ClearPayload(pattern) => OpResult::Count(edit.clear(pattern)),
            Op::SetAdd { path, kind, schema, element, keep_while } => {
                set_add(edit, path, (*kind, *schema), element, keep_while.as_deref())?
            }
            Op::SetRemove { path, kind, element, delete_if_empty } => {
                set_remove(edit, path, *kind, element, *delete_if_empty)?
            }
            Op::CounterAdd { path, delta, initial } => counter_add(edit, path, *delta, *initial)?,
            Op::PutMany { pattern, payload, keep_while } => {
                self.put_many(edit, pattern, payload.as_ref(), keep_while.as_deref())?
            }
            Op::Patch(pattern, assignments) => self.patch(edit, pattern, assignments)?,
            Op::Abort(code) => return Err(MetaError::Aborted { code: *code }),
            // Decided by the caller; an operation inside `ForEach` is none of these.
            Op::If(..) | Op::Return(_) | Op::ForEach(..) => return Err(MetaError::UnknownCommand),
        })
    }

    /// The places that match now; counts them as visited.
    fn matching(&mut self, tree: &Tree, pattern: &Pattern) -> Result<Vec<Path>, MetaError> {
        let mut places = Vec::new();
        tree.visit(pattern, &mut |at, _| {
            self.visited += 1;
            places.push(Path::new(at.to_vec()));
            self.visited <= MAX_VISITED
        });
        if self.visited > MAX_VISITED { Err(MetaError::TxnTooLarge) } else { Ok(places) }
    }

    fn put_many(
        &mut self,
        edit: &mut Edit,
        pattern: &Pattern,
        payload: Option<&Payload>,
        keep_while: Option<&[Watch]>,
    ) -> Result<OpResult, MetaError> {
        let (head, tail) = pattern.split_tail();
        let mut written = 0;
        for place in self.matching(edit.tree(), &head)? {
            // What an earlier one took along is not made again.
            if edit.tree().node(&place).is_some() {
                let path = place.join(tail.iter().cloned());
                edit.put(&path, &Condition::always(), payload.cloned(), keep_while)?;
                written += 1;
            }
        }
        Ok(OpResult::Count(written))
    }

    fn patch(&mut self, edit: &mut Edit, pattern: &Pattern, assignments: &[Assignment]) -> Result<OpResult, MetaError> {
        let mut patched = 0;
        for path in self.matching(edit.tree(), pattern)? {
            let Some(payload) = edit.tree().node(&path).and_then(|node| node.payload.clone()) else { continue };
            let payload = records::patched(&payload, assignments)
                .map_err(|field| MetaError::InvalidField { path: path.clone(), field })?;
            edit.put(&path, &Condition::always(), Some(payload), None)?;
            patched += 1;
        }
        Ok(OpResult::Count(patched))
    }

    fn for_each(&mut self, edit: &mut Edit, pattern: &Pattern, each: &[EachOp]) -> Result<OpResult, MetaError> {
        let mut visited = 0;
        for place in self.matching(edit.tree(), pattern)? {
            if edit.tree().node(&place).is_none() {
                continue;
            }
            visited += 1;
            self.done += each.len();
            if self.done > MAX_DONE {
                return Err(MetaError::TxnTooLarge);
            }
            for op in each {
                self.one(edit, &op.at(&place)?)?;
            }
        }
        Ok(OpResult::Count(visited))
    }

    fn get(&mut self, tree: &Tree, pattern: &Pattern) -> Result<OpResult, MetaError> {
        let mut nodes = Vec::new();
        tree.visit(pattern, &mut |at, node| {
            self.visited += 1;
            self.answered += node.payload.as_ref().map_or(0, |payload| payload.bytes.len());
            let fits = self.visited <= MAX_VISITED && self.answered <= MAX_ANSWERED;
            if fits {
                nodes.push((Path::new(at.to_vec()), node.info()));
            }
            fits
        });
        if self.visited > MAX_VISITED || self.answered > MAX_ANSWERED {
            return Err(MetaError::TxnTooLarge);
        }
        Ok(OpResult::Nodes(nodes))
    }
}

impl Op {
    /// Put with "there must be no such node"; `MismatchingNode` carries what is there.
    pub fn create(path: Path, payload: Payload) -> Self {
        let condition = Condition::NodeExists(false);
        Op::Put { path, condition, payload: Some(payload), keep_while: None }
    }

    /// Put with "there must be such a node"; `NodeNotFound` otherwise.
    pub fn update(path: Path, payload: Payload) -> Self {
        let condition = Condition::NodeExists(true);
        Op::Put { path, condition, payload: Some(payload), keep_while: None }
    }

    /// Put where the node meets a condition; `MismatchingNode` or `NodeNotFound` otherwise.
    pub fn compare_and_swap(path: Path, condition: Condition, payload: Payload) -> Self {
        Op::Put { path, condition, payload: Some(payload), keep_while: None }
    }

    /// Whether it changes nothing, whatever the tree.
    pub fn reads_only(&self) -> bool {
        match self {
            Op::Get(_) | Op::Count(_) | Op::Abort(_) | Op::Return(_) => true,
            Op::If(_, then, otherwise) => then.iter().chain(otherwise).all(Op::reads_only),
            Op::Put { .. }
            | Op::Delete(_)
            | Op::ClearPayload(_)
            | Op::SetAdd { .. }
            | Op::SetRemove { .. }
            | Op::CounterAdd { .. }
            | Op::PutMany { .. }
            | Op::Patch(..)
            | Op::ForEach(..) => false,
        }
    }
}

impl Tree {
    /// Carries out a transaction that only reads, here and now: it enters no log. One that would write is refused.
    pub fn read(&self, ops: &[Op]) -> Result<Vec<OpResult>, MetaError> {
        if !ops.iter().all(Op::reads_only) {
            return Err(MetaError::UpdateInReadOnlyTransaction);
        }
        run(&mut Edit::new(self, Reference(0)), ops)
    }
}

impl Guard {
    /// Whether it holds now.
    pub fn holds(&self, tree: &Tree) -> bool {
        match self {
            Guard::Exists(pattern) => exists(tree, pattern),
            Guard::Absent(pattern) => !exists(tree, pattern),
            Guard::Count(pattern, cmp, n) => cmp.holds(count(tree, pattern), *n),
            Guard::Test(path, condition) => match (tree.node(path), path.last()) {
                (Some(node), Some(name)) => condition.holds(name, node),
                _ => false,
            },
            Guard::Not(inner) => !inner.holds(tree),
            Guard::All(list) => list.iter().all(|guard| guard.holds(tree)),
            Guard::Any(list) => list.iter().any(|guard| guard.holds(tree)),
        }
    }
}

fn exists(tree: &Tree, pattern: &Pattern) -> bool {
    let mut found = false;
    tree.visit(pattern, &mut |_, _| {
        found = true;
        false
    });
    found
}

fn count(tree: &Tree, pattern: &Pattern) -> u64 {
    let mut n = 0;
    tree.visit(pattern, &mut |_, _| {
        n += 1;
        true
    });
    n
}

/// The payload of a node that must be of this kind, if it has one.
fn payload_of(edit: &Edit, path: &Path, kind: u16) -> Result<Option<Payload>, MetaError> {
    match edit.tree().node(path).and_then(|node| node.payload.clone()) {
        Some(payload) if payload.kind != kind => Err(MetaError::WrongKind { path: path.clone() }),
        payload => Ok(payload),
    }
}

fn elements_of(edit: &Edit, path: &Path, kind: u16) -> Result<Option<(u16, Elements)>, MetaError> {
    let Some(payload) = payload_of(edit, path, kind)? else {
        return Ok(None);
    };
    match set_elements(&payload) {
        Ok(elements) => Ok(Some((payload.schema, elements.into_iter().collect()))),
        Err(_) => Err(MetaError::WrongKind { path: path.clone() }),
    }
}

fn set_payload((kind, schema): (u16, u16), elements: BTreeSet<Vec<u8>>) -> Payload {
    let set = StoredSet { elements: elements.into_iter().collect() };
    Payload { kind, schema, bytes: set.encode_to_vec().into() }
}

fn set_add(
    edit: &mut Edit,
    path: &Path,
    (kind, schema): (u16, u16),
    element: &[u8],
    keep_while: Option<&[Watch]>,
) -> Result<OpResult, MetaError> {
    let (stored, mut elements) = elements_of(edit, path, kind)?.unwrap_or((schema, BTreeSet::new()));
    if !elements.insert(element.to_vec()) {
        return Ok(OpResult::Set { changed: false });
    }
    let payload = set_payload((kind, stored), elements);
    edit.put(path, &Condition::always(), Some(payload), keep_while)?;
    Ok(OpResult::Set { changed: true })
}

fn set_remove(
    edit: &mut Edit,
    path: &Path,
    kind: u16,
    element: &[u8],
    delete_if_empty: bool,
) -> Result<OpResult, MetaError> {
    let Some((schema, mut elements)) = elements_of(edit, path, kind)? else {
        return Ok(OpResult::Set { changed: false });
    };
    if !elements.remove(element) {
        return Ok(OpResult::Set { changed: false });
    }
    if elements.is_empty() && delete_if_empty {
        edit.delete(&Pattern::from(path.clone()));
    } else {
        edit.put(path, &Condition::always(), Some(set_payload((kind, schema), elements)), None)?;
    }
    Ok(OpResult::Set { changed: true })
}

fn counter_add(edit: &mut Edit, path: &Path, delta: i64, initial: i64) -> Result<OpResult, MetaError> {
    let old = match payload_of(edit, path, COUNTER_KIND)? {
        Some(payload) => match StoredCounter::decode(&payload.bytes[..]) {
            Ok(counter) => Some(counter.value),
            Err(_) => return Err(MetaError::WrongKind { path: path.clone() }),
        },
        None => None,
    };
    let value = old.map_or(initial, |old| old.wrapping_add(delta));
    let bytes = StoredCounter { value }.encode_to_vec().into();
    let payload = Payload { kind: COUNTER_KIND, schema: 1, bytes };
    edit.put(path, &Condition::always(), Some(payload), None)?;
    Ok(OpResult::Counter { old })
}
