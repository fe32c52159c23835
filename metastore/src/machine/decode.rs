//! Commands and replies from their stored form to memory. `None` where a part is missing, out of bounds, or of a
//! kind that this binary does not know: then the whole command is unknown.

use warren_proto::ids::Reference;

use super::{decode_each, wire};
use crate::tree::{
    AbortCode, Answered, Assignment, Comparison, Component, Condition, DeleteReason, FieldTest, FieldValue, Guard,
    KeepWhile, MAX_DEPTH, MAX_OPS, MAX_WATCHES, MetaError, NameRegex, NameTest, NodeInfo, Op, OpResult, Path, Pattern,
    Payload, Predicate, Properties, Report, Step, Touched, Watch,
};

/// The operations of one command; `budget` bounds how many, those in branches included.
pub(crate) fn ops(stored: Vec<wire::Op>) -> Option<Vec<Op>> {
    let mut budget = MAX_OPS;
    list_of_ops(stored, &mut budget)
}

/// How many operations there are, those in branches included.
pub(crate) fn count(ops: &[wire::Op]) -> usize {
    let within = |op: &wire::Op| match &op.kind {
        Some(wire::OpKind::If(branch)) => count(&branch.then) + count(&branch.otherwise),
        Some(wire::OpKind::ForEach(each)) => each.ops.len(),
        _ => 0,
    };
    ops.len() + ops.iter().map(within).sum::<usize>()
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
        wire::OpKind::PutMany(put) => Op::PutMany {
            pattern: self::pattern(put.pattern?)?,
            payload: optional(put.payload, payload)?,
            keep_while: optional(put.keep_while, watches)?,
        },
        wire::OpKind::Patch(patch) => Op::Patch(pattern(patch.pattern?)?, assignments(patch.assignments)?),
        wire::OpKind::ForEach(each) => {
            *budget = budget.checked_sub(each.ops.len())?;
            Op::ForEach(pattern(each.pattern?)?, each.ops.into_iter().map(decode_each::op).collect::<Option<Vec<_>>>()?)
        }
        wire::OpKind::Return(1) => Op::Return(Answered::Nothing),
        wire::OpKind::Return(2) => Op::Return(Answered::Last),
        wire::OpKind::Return(3) => Op::Return(Answered::All),
        wire::OpKind::Return(_) => return None,
    })
}

pub(super) fn assignments(stored: Vec<wire::Assignment>) -> Option<Vec<Assignment>> {
    let assignment = |stored: wire::Assignment| {
        let field = stored.field.into();
        Some(match stored.kind? {
            wire::AssignmentKind::Set(value) => Assignment::Set(field, field_value(value)?),
            wire::AssignmentKind::Add(number) => Assignment::Add(field, number),
            wire::AssignmentKind::Unset(_) => Assignment::Unset(field),
        })
    };
    stored.into_iter().map(assignment).collect()
}

fn field_value(stored: wire::FieldValue) -> Option<FieldValue> {
    Some(match stored.kind? {
        wire::FieldValueKind::Text(text) => FieldValue::Text(text),
        wire::FieldValueKind::Integer(number) => FieldValue::Integer(number),
        wire::FieldValueKind::Bool(value) => FieldValue::Bool(value),
        wire::FieldValueKind::Bytes(octets) => FieldValue::Bytes(octets),
        wire::FieldValueKind::List(values) => FieldValue::List(field_values(values.list)?),
    })
}

fn field_values(stored: Vec<wire::FieldValue>) -> Option<Vec<FieldValue>> {
    stored.into_iter().map(field_value).collect()
}

fn predicate(stored: wire::Predicate) -> Option<Predicate> {
    let list = |predicates: wire::Predicates| predicates.list.into_iter().map(predicate).collect::<Option<Vec<_>>>();
    Some(match stored.kind? {
        wire::PredicateKind::Field(test) => {
            Predicate::Field(test.field.into(), field_test(test.operator, test.values)?)
        }
        wire::PredicateKind::Not(inner) => Predicate::Not(Box::new(predicate(*inner)?)),
        wire::PredicateKind::All(predicates) => Predicate::All(list(predicates)?),
        wire::PredicateKind::Any(predicates) => Predicate::Any(list(predicates)?),
    })
}

fn field_test(operator: u32, values: Vec<wire::FieldValue>) -> Option<FieldTest> {
    let mut values = field_values(values)?;
    if operator == 8 {
        return Some(FieldTest::In(values));
    }
    let value = values.pop();
    if !values.is_empty() {
        return None;
    }
    Some(match (operator, value) {
        (1, Some(value)) => FieldTest::Eq(value),
        (2, Some(value)) => FieldTest::Ne(value),
        (3, Some(value)) => FieldTest::Lt(value),
        (4, Some(value)) => FieldTest::Le(value),
        (5, Some(value)) => FieldTest::Gt(value),
        (6, Some(value)) => FieldTest::Ge(value),
        (7, None) => FieldTest::IsSet,
        (9, Some(FieldValue::Bytes(octets))) => FieldTest::Prefix(octets),
        (10, Some(FieldValue::Text(regex))) => FieldTest::Regex(NameRegex::new(&regex)),
        _ => return None,
    })
}

pub(crate) fn report(stored: wire::Report) -> Report {
    Report {
        payload: stored.payload,
        payload_version: stored.payload_version,
        child_list: stored.child_list,
        revisions: stored.revisions,
        indirect_deletes: stored.indirect_deletes,
    }
}

fn touched(stored: wire::Touched) -> Option<Touched> {
    let (path, node) = node_at(stored.node?)?;
    let delete_reason = match stored.deleted {
        0 => None,
        1 => Some(DeleteReason::Explicit),
        2 => Some(DeleteReason::KeepWhile),
        _ => return None,
    };
    Some(Touched { path, node: (!stored.created).then_some(node), delete_reason })
}

/// Absent stays absent; present must decode.
pub(super) fn optional<S, T>(stored: Option<S>, decode: impl FnOnce(S) -> Option<T>) -> Option<Option<T>> {
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
    let depth = steps.len();
    Some(Pattern::new(steps)).filter(|pattern| depth <= MAX_DEPTH && pattern.sweeps() <= 1)
}

pub(super) fn condition(stored: wire::Condition) -> Option<Condition> {
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
        wire::ConditionKind::NameRegex(regex) => Condition::NameRegex(NameRegex::new(&regex)),
        wire::ConditionKind::PathMatches(test) => Condition::PathMatches(match test.regex {
            None => NameTest::Any,
            Some(regex) => NameTest::Regex(NameRegex::new(&regex)),
        }),
        wire::ConditionKind::Data(predicate) => Condition::Data(self::predicate(predicate)?),
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

pub(super) fn payload(stored: wire::Payload) -> Option<Payload> {
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
        wire::OpResultKind::Touched(nodes) => {
            OpResult::Touched(nodes.nodes.into_iter().map(touched).collect::<Option<_>>()?)
        }
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
        11 => MetaError::InvalidField { path: node?.0, field: stored.field.into() },
        12 => MetaError::UpdateInReadOnlyTransaction,
        _ => return None,
    })
}

pub(crate) fn reply(stored: wire::Reply) -> Option<Result<Vec<OpResult>, MetaError>> {
    Some(match stored.error {
        Some(why) => Err(error(why)?),
        None => Ok(stored.results.into_iter().map(result).collect::<Option<Vec<_>>>()?),
    })
}
