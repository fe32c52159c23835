//! Commands and replies from memory to their stored form.

use super::{encode_each, wire};
use crate::tree::{
    Answered, Assignment, Comparison, Condition, DeleteReason, FieldTest, FieldValue, Guard, KeepWhile, MetaError,
    NameTest, NodeInfo, Op, OpResult, Path, Pattern, Payload, Predicate, Report, Step, Touched, Watch,
};

pub(crate) fn ops(ops: &[Op]) -> Vec<wire::Op> {
    ops.iter().map(|op| wire::Op { kind: Some(op_kind(op)) }).collect()
}

fn op_kind(op: &Op) -> wire::OpKind {
    match op {
        Op::Get(pattern) => wire::OpKind::Get(self::pattern(pattern)),
        Op::Count(pattern) => wire::OpKind::Count(self::pattern(pattern)),
        Op::Put { path, condition, payload, keep_while } => wire::OpKind::Put(wire::Put {
            path: path.encoded(),
            condition: (*condition != Condition::always()).then(|| self::condition(condition)),
            payload: payload.as_ref().map(self::payload),
            keep_while: keep_while.as_deref().map(watches),
        }),
        Op::Delete(pattern) => wire::OpKind::Delete(self::pattern(pattern)),
        Op::ClearPayload(pattern) => wire::OpKind::ClearPayload(self::pattern(pattern)),
        Op::SetAdd { path, kind, schema, element, keep_while } => wire::OpKind::SetAdd(wire::SetAdd {
            path: path.encoded(),
            kind: u32::from(*kind),
            schema: u32::from(*schema),
            element: element.to_vec(),
            keep_while: keep_while.as_deref().map(watches),
        }),
        Op::SetRemove { path, kind, element, delete_if_empty } => wire::OpKind::SetRemove(wire::SetRemove {
            path: path.encoded(),
            kind: u32::from(*kind),
            element: element.to_vec(),
            delete_if_empty: *delete_if_empty,
        }),
        Op::CounterAdd { path, delta, initial } => {
            wire::OpKind::CounterAdd(wire::CounterAdd { path: path.encoded(), delta: *delta, initial: *initial })
        }
        Op::If(guard, then, otherwise) => {
            wire::OpKind::If(wire::If { guard: Some(self::guard(guard)), then: ops(then), otherwise: ops(otherwise) })
        }
        Op::Abort(code) => wire::OpKind::Abort(code.number()),
        Op::PutMany { pattern, payload, keep_while } => wire::OpKind::PutMany(wire::PutMany {
            pattern: Some(self::pattern(pattern)),
            payload: payload.as_ref().map(self::payload),
            keep_while: keep_while.as_deref().map(watches),
        }),
        Op::Patch(pattern, assignments) => wire::OpKind::Patch(patch(Some(pattern), assignments)),
        Op::ForEach(pattern, ops) => wire::OpKind::ForEach(wire::ForEach {
            pattern: Some(self::pattern(pattern)),
            ops: ops.iter().map(encode_each::op).collect(),
        }),
        Op::Return(answered) => wire::OpKind::Return(match answered {
            Answered::Nothing => 1,
            Answered::Last => 2,
            Answered::All => 3,
        }),
    }
}

pub(super) fn patch(pattern: Option<&Pattern>, assignments: &[Assignment]) -> wire::Patch {
    let assignment = |assignment: &Assignment| wire::Assignment {
        field: assignment.field().to_owned(),
        kind: Some(match assignment {
            Assignment::Set(_, value) => wire::AssignmentKind::Set(field_value(value)),
            Assignment::Add(_, number) => wire::AssignmentKind::Add(*number),
            Assignment::Unset(_) => wire::AssignmentKind::Unset(wire::Empty {}),
        }),
    };
    wire::Patch { pattern: pattern.map(self::pattern), assignments: assignments.iter().map(assignment).collect() }
}

fn field_value(value: &FieldValue) -> wire::FieldValue {
    let kind = match value {
        FieldValue::Text(text) => wire::FieldValueKind::Text(text.clone()),
        FieldValue::Integer(number) => wire::FieldValueKind::Integer(*number),
        FieldValue::Bool(value) => wire::FieldValueKind::Bool(*value),
        FieldValue::Bytes(octets) => wire::FieldValueKind::Bytes(octets.clone()),
        FieldValue::List(list) => {
            wire::FieldValueKind::List(wire::FieldValues { list: list.iter().map(field_value).collect() })
        }
    };
    wire::FieldValue { kind: Some(kind) }
}

fn predicate(predicate: &Predicate) -> wire::Predicate {
    let list = |list: &[Predicate]| wire::Predicates { list: list.iter().map(self::predicate).collect() };
    let kind = match predicate {
        Predicate::Field(field, test) => wire::PredicateKind::Field(field_test(field, test)),
        Predicate::Not(inner) => wire::PredicateKind::Not(Box::new(self::predicate(inner))),
        Predicate::All(predicates) => wire::PredicateKind::All(list(predicates)),
        Predicate::Any(predicates) => wire::PredicateKind::Any(list(predicates)),
    };
    wire::Predicate { kind: Some(kind) }
}

fn field_test(field: &str, test: &FieldTest) -> wire::FieldTest {
    let (operator, values) = match test {
        FieldTest::Eq(value) => (1, vec![field_value(value)]),
        FieldTest::Ne(value) => (2, vec![field_value(value)]),
        FieldTest::Lt(value) => (3, vec![field_value(value)]),
        FieldTest::Le(value) => (4, vec![field_value(value)]),
        FieldTest::Gt(value) => (5, vec![field_value(value)]),
        FieldTest::Ge(value) => (6, vec![field_value(value)]),
        FieldTest::IsSet => (7, Vec::new()),
        FieldTest::In(values) => (8, values.iter().map(field_value).collect()),
        FieldTest::Prefix(octets) => (9, vec![field_value(&FieldValue::Bytes(octets.clone()))]),
        FieldTest::Regex(regex) => (10, vec![field_value(&FieldValue::Text(regex.source().to_owned()))]),
    };
    wire::FieldTest { field: field.to_owned(), operator, values }
}

pub(crate) fn report(report: &Report) -> wire::Report {
    wire::Report {
        payload: report.payload,
        payload_version: report.payload_version,
        child_list: report.child_list,
        revisions: report.revisions,
        indirect_deletes: report.indirect_deletes,
    }
}

fn touched(touched: &Touched) -> wire::Touched {
    wire::Touched {
        node: Some(node_at(&touched.path, touched.node.as_ref())),
        created: touched.node.is_none(),
        deleted: match touched.delete_reason {
            None => 0,
            Some(DeleteReason::Explicit) => 1,
            Some(DeleteReason::KeepWhile) => 2,
        },
    }
}

fn guard(guard: &Guard) -> wire::Guard {
    let list = |list: &[Guard]| wire::Guards { list: list.iter().map(self::guard).collect() };
    let kind = match guard {
        Guard::Exists(pattern) => wire::GuardKind::Exists(self::pattern(pattern)),
        Guard::Absent(pattern) => wire::GuardKind::Absent(self::pattern(pattern)),
        Guard::Count(pattern, cmp, n) => wire::GuardKind::Count(wire::GuardCount {
            pattern: Some(self::pattern(pattern)),
            compare: Some(compare(*cmp, *n)),
        }),
        Guard::Test(path, condition) => {
            wire::GuardKind::Test(wire::GuardTest { path: path.encoded(), condition: Some(self::condition(condition)) })
        }
        Guard::Not(inner) => wire::GuardKind::Not(Box::new(self::guard(inner))),
        Guard::All(guards) => wire::GuardKind::All(list(guards)),
        Guard::Any(guards) => wire::GuardKind::Any(list(guards)),
    };
    wire::Guard { kind: Some(kind) }
}

fn pattern(pattern: &Pattern) -> wire::Pattern {
    let mut steps = Vec::new();
    let mut literals = Vec::new();
    let flush = |literals: &mut Vec<_>, steps: &mut Vec<wire::Step>| {
        if !literals.is_empty() {
            let path = Path::new(std::mem::take(literals));
            steps.push(wire::Step { kind: Some(wire::StepKind::Literals(path.encoded())) });
        }
    };
    for step in pattern.steps() {
        let kind = match step {
            Step::Literal(component) => {
                literals.push(component.clone());
                continue;
            }
            Step::Where(condition) => wire::StepKind::Where(self::condition(condition)),
            Step::AnyDepth => wire::StepKind::AnyDepth(wire::Empty {}),
        };
        flush(&mut literals, &mut steps);
        steps.push(wire::Step { kind: Some(kind) });
    }
    flush(&mut literals, &mut steps);
    wire::Pattern { steps }
}

pub(super) fn condition(condition: &Condition) -> wire::Condition {
    let list = |list: &[Condition]| wire::Conditions { list: list.iter().map(self::condition).collect() };
    let kind = match condition {
        Condition::Is(component) => {
            let mut bytes = Vec::new();
            component.encode(&mut bytes);
            wire::ConditionKind::Is(bytes)
        }
        Condition::AnyName => wire::ConditionKind::AnyName(wire::Empty {}),
        Condition::NameMatches(glob) => wire::ConditionKind::NameMatches(glob.to_vec()),
        Condition::HasPayload(wanted) => wire::ConditionKind::HasPayload(*wanted),
        Condition::NodeExists(wanted) => wire::ConditionKind::NodeExists(*wanted),
        Condition::PayloadVersion(cmp, n) => wire::ConditionKind::PayloadVersion(compare(*cmp, *n)),
        Condition::ChildListVersion(cmp, n) => wire::ConditionKind::ChildListVersion(compare(*cmp, *n)),
        Condition::ChildListLength(cmp, n) => wire::ConditionKind::ChildListLength(compare(*cmp, *n)),
        Condition::CreateRevision(cmp, at) => wire::ConditionKind::CreateRevision(compare(*cmp, at.0)),
        Condition::ModRevision(cmp, at) => wire::ConditionKind::ModRevision(compare(*cmp, at.0)),
        Condition::Not(inner) => wire::ConditionKind::Not(Box::new(self::condition(inner))),
        Condition::All(conditions) => wire::ConditionKind::All(list(conditions)),
        Condition::Any(conditions) => wire::ConditionKind::Any(list(conditions)),
        Condition::NameRegex(regex) => wire::ConditionKind::NameRegex(regex.source().to_owned()),
        Condition::PathMatches(test) => wire::ConditionKind::PathMatches(wire::PathMatches {
            regex: match test {
                NameTest::Any => None,
                NameTest::Regex(regex) => Some(regex.source().to_owned()),
            },
        }),
        Condition::Data(predicate) => wire::ConditionKind::Data(self::predicate(predicate)),
    };
    wire::Condition { kind: Some(kind) }
}

fn compare(comparison: Comparison, value: u64) -> wire::Compare {
    let operator = match comparison {
        Comparison::Eq => 1,
        Comparison::Ne => 2,
        Comparison::Lt => 3,
        Comparison::Le => 4,
        Comparison::Gt => 5,
        Comparison::Ge => 6,
    };
    wire::Compare { operator, value }
}

pub(super) fn payload(payload: &Payload) -> wire::Payload {
    wire::Payload { kind: u32::from(payload.kind), schema: u32::from(payload.schema), bytes: payload.bytes.to_vec() }
}

fn watches(watches: &[Watch]) -> wire::KeepWhile {
    let watch = |watch: &Watch| wire::Watch {
        pattern: Some(pattern(&watch.pattern)),
        condition: Some(condition(&watch.condition)),
    };
    wire::KeepWhile { watches: watches.iter().map(watch).collect() }
}

pub(crate) fn keep_while(keep: &KeepWhile) -> wire::KeepWhile {
    watches(&keep.0)
}

fn node_at(path: &Path, node: Option<&NodeInfo>) -> wire::NodeAt {
    let properties = node.map(|node| node.properties).unwrap_or_default();
    wire::NodeAt {
        path: path.encoded(),
        payload: node.and_then(|node| node.payload.as_ref()).map(payload),
        payload_version: properties.payload_version,
        child_list_version: properties.child_list_version,
        child_list_length: properties.child_list_length,
        create_revision: properties.create_revision.0,
        mod_revision: properties.mod_revision.0,
    }
}

fn result(result: &OpResult) -> wire::OpResult {
    let kind = match result {
        OpResult::Nodes(nodes) => wire::OpResultKind::Nodes(wire::Nodes {
            nodes: nodes.iter().map(|(path, node)| node_at(path, Some(node))).collect(),
        }),
        OpResult::Count(n) => wire::OpResultKind::Count(*n),
        OpResult::Put { created } => wire::OpResultKind::PutCreated(*created),
        OpResult::Set { changed } => wire::OpResultKind::SetChanged(*changed),
        OpResult::Counter { old } => wire::OpResultKind::Counter(wire::Counter { old: *old }),
        OpResult::Touched(nodes) => {
            wire::OpResultKind::Touched(wire::TouchedNodes { nodes: nodes.iter().map(touched).collect() })
        }
    };
    wire::OpResult { kind: Some(kind) }
}

fn error(error: &MetaError) -> wire::Error {
    let (code, node, number) = match error {
        MetaError::NodeNotFound { path } => (1, Some(node_at(path, None)), 0),
        MetaError::MismatchingNode { path, node } => (2, Some(node_at(path, Some(node))), 0),
        MetaError::KeepWhileConditionsNotMet { path, watch } => (3, Some(node_at(path, None)), *watch),
        MetaError::Aborted { code } => (4, None, code.number()),
        MetaError::PayloadTooLarge => (5, None, 0),
        MetaError::TxnTooLarge => (6, None, 0),
        MetaError::InvalidPath => (7, None, 0),
        MetaError::WrongKind { path } => (8, Some(node_at(path, None)), 0),
        MetaError::UnknownCommand => (9, None, 0),
        MetaError::Expired => (10, None, 0),
        MetaError::InvalidField { path, .. } => (11, Some(node_at(path, None)), 0),
        MetaError::UpdateInReadOnlyTransaction => (12, None, 0),
    };
    let field = match error {
        MetaError::InvalidField { field, .. } => field.to_string(),
        _ => String::new(),
    };
    wire::Error { code, node, number, field }
}

pub(crate) fn reply(reply: &Result<Vec<OpResult>, MetaError>) -> wire::Reply {
    match reply {
        Ok(results) => wire::Reply { results: results.iter().map(result).collect(), error: None },
        Err(why) => wire::Reply { results: Vec::new(), error: Some(error(why)) },
    }
}
