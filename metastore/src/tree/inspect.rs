//! What a command's operations contain, without doing them.

use super::condition::Condition;
use super::each::EachOp;
use super::keep_while::Watch;
use super::name_test::NameRegex;
use super::pattern::{Pattern, Step};
use super::transaction::{Guard, Op};

/// Calls `each` with every condition of an operation and of those in it; parts of conditions are not named again.
fn conditions<'o>(op: &'o Op, each: &mut dyn FnMut(&'o Condition)) {
    match op {
        Op::Get(pattern) | Op::Count(pattern) | Op::Delete(pattern) | Op::ClearPayload(pattern) => of(pattern, each),
        Op::Patch(pattern, _) => of(pattern, each),
        Op::Put { condition, keep_while, .. } => {
            each(condition);
            of_watches(keep_while.as_deref(), each);
        }
        Op::PutMany { pattern, keep_while, .. } => {
            of(pattern, each);
            of_watches(keep_while.as_deref(), each);
        }
        Op::SetAdd { keep_while, .. } => of_watches(keep_while.as_deref(), each),
        Op::SetRemove { .. } | Op::CounterAdd { .. } | Op::Abort(_) | Op::Return(_) => {}
        Op::If(guard, then, otherwise) => {
            of_guard(guard, each);
            then.iter().chain(otherwise).for_each(|op| conditions(op, each));
        }
        Op::ForEach(pattern, ops) => {
            of(pattern, each);
            for op in ops {
                if let EachOp::Put { condition, keep_while, .. } = op {
                    each(condition);
                    keep_while.iter().flatten().for_each(|watch| each(&watch.condition));
                }
            }
        }
    }
}

fn of<'o>(pattern: &'o Pattern, each: &mut dyn FnMut(&'o Condition)) {
    for step in pattern.steps() {
        if let Step::Where(condition) = step {
            each(condition);
        }
    }
}

fn of_watches<'o>(watches: Option<&'o [Watch]>, each: &mut dyn FnMut(&'o Condition)) {
    for watch in watches.unwrap_or_default() {
        of(&watch.pattern, each);
        each(&watch.condition);
    }
}

fn of_guard<'o>(guard: &'o Guard, each: &mut dyn FnMut(&'o Condition)) {
    match guard {
        Guard::Exists(pattern) | Guard::Absent(pattern) | Guard::Count(pattern, ..) => of(pattern, each),
        Guard::Test(_, condition) => each(condition),
        Guard::Not(inner) => of_guard(inner, each),
        Guard::All(list) | Guard::Any(list) => list.iter().for_each(|guard| of_guard(guard, each)),
    }
}

/// Calls `each` for every regular expression in the operations.
pub(crate) fn regexes<'o>(ops: &'o [Op], each: &mut dyn FnMut(&'o NameRegex)) {
    ops.iter().for_each(|op| conditions(op, &mut |condition| condition.regexes(each)));
}

/// Whether machine version 1 defines all of it.
pub(crate) fn is_of_version_1(ops: &[Op]) -> bool {
    fn new_kind(op: &Op) -> bool {
        match op {
            Op::PutMany { .. } | Op::Patch(..) | Op::ForEach(..) | Op::Return(_) => true,
            Op::If(_, then, otherwise) => then.iter().chain(otherwise).any(new_kind),
            _ => false,
        }
    }
    fn new_condition(condition: &Condition) -> bool {
        match condition {
            Condition::NameRegex(_) | Condition::PathMatches(_) | Condition::Data(_) => true,
            Condition::Not(inner) => new_condition(inner),
            Condition::All(list) | Condition::Any(list) => list.iter().any(new_condition),
            _ => false,
        }
    }
    let mut new = ops.iter().any(new_kind);
    ops.iter().for_each(|op| conditions(op, &mut |condition| new |= new_condition(condition)));
    !new
}
