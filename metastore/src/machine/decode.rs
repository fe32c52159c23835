//! Commands and replies from their stored form to memory. `None` where a part is missing, out of bounds, or of a
//! kind that this binary does not know: then the whole command is unknown.

use warren_proto::ids::Reference;

use super::wire;
use crate::tree::{
    AbortCode, Comparison, Component, Condition, Guard, KeepWhile, MAX_DEPTH, MAX_OPS, MAX_WATCHES, MetaError,
    NodeInfo, Op, OpResult, Path, Pattern, Payload, Properties, Step, Watch,
};

/// The operations of one command; `budget` bounds how many, those in branches included.
pub(crate) fn ops(stored: Vec<wire::Op>) -> Option<Vec<Op>> {
    let mut budget = MAX_OPS;
    list_of_ops(stored, &mut budget)
}

fn list_of_ops(stored: Vec<wire::Op>, budget: &mut usize) -> Option<Vec<Op>> {
    *budget = budget.checked_sub(stored.len())?;
    stored.into_iter().map(|op| self::op(op, budget)).collect()
}

fn op(stored: wire::Op, budget: &mut usize) -> Option<Op> {
    Some(match stored.kind? {
        wire::OpKind::Get(pattern) => Op::Get(self::pattern(pattern)?),
        wire::OpKind::Count(pattern) => Op::Count(self::pattern(pattern)?),
        wire::OpKind::Put(put) => Op::Put {
            path: Path::decode(&put.path)?,
            condition: put.condition.map_or(Some(Condition::always()), condition)?,
            payload: optional(put.payload, payload)?,
            keep_while: optional(put.keep_while, watches)?,
        },
        wire::OpKind::Delete(pattern) => Op::Delete(self::pattern(pattern)?),
        wire::OpKind::ClearPayload(pattern) => Op::ClearPayload(self::pattern(pattern)?),
        wire::OpKind::SetAdd(add) => Op::SetAdd {
            path: Path::decode(&add.path)?,
            kind: u16::try_from(add.kind).ok()?,
            schema: u16::try_from(add.schema).ok()?,
            element: add.element.into(),
            keep_while: optional(add.keep_while, watches)?,
        },
        wire::OpKind::SetRemove(remove) => Op::SetRemove {
            path: Path::decode(&remove.path)?,
            kind: u16::try_from(remove.kind).ok()?,
            element: remove.element.into(),
            delete_if_empty: remove.delete_if_empty,
        },
        wire::OpKind::CounterAdd(add) => {
            Op::CounterAdd { path: Path::decode(&add.path)?, delta: add.delta, initial: add.initial }
        }
        wire::OpKind::If(branch) => {
            Op::If(guard(branch.guard?)?, list_of_ops(branch.then, budget)?, list_of_ops(branch.otherwise, budget)?)
        }
        wire::OpKind::Abort(code) => Op::Abort(AbortCode::from_number(code)),
    })
}

/// Absent stays absent; present must decode.
fn optional<S, T>(stored: Option<S>, decode: impl FnOnce(S) -> Option<T>) -> Option<Option<T>> {
    match stored {
        Some(stored) => decode(stored).map(Some),
        None => Some(None),
    }
}

fn guard(stored: wire::Guard) -> Option<Guard> {
    let list = |guards: wire::Guards| guards.list.into_iter().map(guard).collect::<Option<Vec<_>>>();
    Some(match stored.kind? {
        wire::GuardKind::Exists(pattern) => Guard::Exists(self::pattern(pattern)?),
        wire::GuardKind::Absent(pattern) => Guard::Absent(self::pattern(pattern)?),
        wire::GuardKind::Count(count) => {
            let (cmp, n) = compare(count.compare?)?;
            Guard::Count(self::pattern(count.pattern?)?, cmp, n)
        }
        wire::GuardKind::Test(test) => Guard::Test(Path::decode(&test.path)?, condition(test.condition?)?),
        wire::GuardKind::Not(inner) => Guard::Not(Box::new(guard(*inner)?)),
        wire::GuardKind::All(guards) => Guard::All(list(guards)?),
        wire::GuardKind::Any(guards) => Guard::Any(list(guards)?),
    })
}

fn pattern(stored: wire::Pattern) -> Option<Pattern> {
    let mut steps = Vec::new();
    for step in stored.steps {
        match step.kind? {
            wire::StepKind::Literals(path) => {
                steps.extend(Path::decode(&path)?.components().iter().cloned().map(Step::Literal));
            }
            wire::StepKind::Where(condition) => steps.push(Step::Where(self::condition(condition)?)),
            wire::StepKind::AnyDepth(_) => steps.push(Step::AnyDepth),
        }
    }
    // With a second `**` a node could be found twice, and the cost would be that of all pairs.
    let sweeps = steps.iter().filter(|step| matches!(step, Step::AnyDepth)).count();
    (steps.len() <= MAX_DEPTH && sweeps <= 1).then(|| Pattern::new(steps))
}

fn condition(stored: wire::Condition) -> Option<Condition> {
    let list = |conditions: wire::Conditions| conditions.list.into_iter().map(condition).collect::<Option<Vec<_>>>();
    Some(match stored.kind? {
        wire::ConditionKind::Is(component) => {
            let mut rest = &component[..];
            Condition::Is(Component::decode(&mut rest).filter(|_| rest.is_empty())?)
        }
        wire::ConditionKind::AnyName(_) => Condition::AnyName,
        wire::ConditionKind::NameMatches(glob) => Condition::NameMatches(glob.into()),
        wire::ConditionKind::HasPayload(wanted) => Condition::HasPayload(wanted),
        wire::ConditionKind::NodeExists(wanted) => Condition::NodeExists(wanted),
        wire::ConditionKind::PayloadVersion(stored) => {
            let (cmp, n) = compare(stored)?;
            Condition::PayloadVersion(cmp, n)
        }
        wire::ConditionKind::ChildListVersion(stored) => {
            let (cmp, n) = compare(stored)?;
            Condition::ChildListVersion(cmp, n)
        }
        wire::ConditionKind::ChildListLength(stored) => {
            let (cmp, n) = compare(stored)?;
            Condition::ChildListLength(cmp, n)
        }
        wire::ConditionKind::CreateRevision(stored) => {
            let (cmp, n) = compare(stored)?;
            Condition::CreateRevision(cmp, Reference(n))
        }
        wire::ConditionKind::ModRevision(stored) => {
            let (cmp, n) = compare(stored)?;
            Condition::ModRevision(cmp, Reference(n))
        }
        wire::ConditionKind::Not(inner) => Condition::Not(Box::new(condition(*inner)?)),
        wire::ConditionKind::All(conditions) => Condition::All(list(conditions)?),
        wire::ConditionKind::Any(conditions) => Condition::Any(list(conditions)?),
    })
}

fn compare(stored: wire::Compare) -> Option<(Comparison, u64)> {
    let comparison = match stored.operator {
        1 => Comparison::Eq,
        2 => Comparison::Ne,
        3 => Comparison::Lt,
        4 => Comparison::Le,
        5 => Comparison::Gt,
        6 => Comparison::Ge,
        _ => return None,
    };
    Some((comparison, stored.value))
}

fn payload(stored: wire::Payload) -> Option<Payload> {
    Some(Payload {
        kind: u16::try_from(stored.kind).ok()?,
        schema: u16::try_from(stored.schema).ok()?,
        bytes: stored.bytes.into(),
    })
}

fn watches(stored: wire::KeepWhile) -> Option<Vec<Watch>> {
    if stored.watches.len() > MAX_WATCHES {
        return None;
    }
    let watch =
        |watch: wire::Watch| Some(Watch { pattern: pattern(watch.pattern?)?, condition: condition(watch.condition?)? });
    stored.watches.into_iter().map(watch).collect()
}

pub(crate) fn keep_while(stored: wire::KeepWhile) -> Option<KeepWhile> {
    watches(stored).map(KeepWhile)
}

fn node_at(stored: wire::NodeAt) -> Option<(Path, NodeInfo)> {
    let properties = Properties {
        payload_version: stored.payload_version,
        child_list_version: stored.child_list_version,
        child_list_length: stored.child_list_length,
        create_revision: Reference(stored.create_revision),
        mod_revision: Reference(stored.mod_revision),
    };
    let payload = optional(stored.payload, payload)?;
    Some((Path::decode(&stored.path)?, NodeInfo { payload, properties }))
}

fn result(stored: wire::OpResult) -> Option<OpResult> {
    Some(match stored.kind? {
        wire::OpResultKind::Nodes(nodes) => {
            OpResult::Nodes(nodes.nodes.into_iter().map(node_at).collect::<Option<_>>()?)
        }
        wire::OpResultKind::Count(n) => OpResult::Count(n),
        wire::OpResultKind::PutCreated(created) => OpResult::Put { created },
        wire::OpResultKind::SetChanged(changed) => OpResult::Set { changed },
        wire::OpResultKind::Counter(counter) => OpResult::Counter { old: counter.old },
    })
}

fn error(stored: wire::Error) -> Option<MetaError> {
    let number = stored.number;
    let node = optional(stored.node, node_at)?;
    Some(match stored.code {
        1 => MetaError::NodeNotFound { path: node?.0 },
        2 => {
            let (path, node) = node?;
            MetaError::MismatchingNode { path, node: Box::new(node) }
        }
        3 => MetaError::KeepWhileConditionsNotMet { path: node?.0, watch: number },
        4 => MetaError::Aborted { code: AbortCode::from_number(number) },
        5 => MetaError::PayloadTooLarge,
        6 => MetaError::TxnTooLarge,
        7 => MetaError::InvalidPath,
        8 => MetaError::WrongKind { path: node?.0 },
        9 => MetaError::UnknownCommand,
        10 => MetaError::Expired,
        _ => return None,
    })
}

pub(crate) fn reply(stored: wire::Reply) -> Option<Result<Vec<OpResult>, MetaError>> {
    Some(match stored.error {
        Some(why) => Err(error(why)?),
        None => Ok(stored.results.into_iter().map(result).collect::<Option<Vec<_>>>()?),
    })
}
